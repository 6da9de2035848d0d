"""Chains and branches that did not happen, or that nobody stands on any more; joiners, leavers and minorities."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from protocol.chain.base import Base
from protocol.chain.records import genesis_tip, record_hash
from protocol.events.events import Event, RoundCommitted
from protocol.run.manifest import SignedManifest
from protocol.transport.interface import NetworkError
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.messages import Commit
from tests.attacks.attack import Attack, Conduct
from tests.attacks.forgeries import (
    Invention,
    certificate,
    chain_of_keys,
    commit,
    invented,
    keys,
    member,
)
from tests.attacks.forgers import Withholding, lying
from tests.attacks.ghosts import Historian, Strangers
from tests.attacks.stage import Stage, anybodys_run, found_by, stranger_key
from tests.protocol.answering import ABOUT_BLOBS
from tests.simulation.seat import Seat

Chain = Callable[[Stage], list[Commit]]


def shown(chain: Chain, rounds: int) -> Conduct:
    """After so many rounds a stranger claims a chain, and nobody gives up what it has."""

    async def conduct(stage: Stage) -> None:
        await stage.world.until("some rounds", lambda: stage.rounds() >= rounds, within_s=120)
        stage.expect_kept(rounds)
        ghost = Historian(stage.world, stranger_key(16))
        ghost.chain = chain(stage)
        await ghost.beat_on()

    return conduct


def made_by(count: int, length: int, kept: int = 0) -> Chain:
    """Made by so many keys, from our own record of this number on (from genesis: nobody has its state, simM)."""

    def chain(stage: Stage) -> list[Commit]:
        start = [stage.node().commit_at(round) for round in range(kept)]
        return chain_of_keys(stage.world.signed.manifest, stage.run, keys(count), length, start=start)

    return chain


def over_first_result(length: int) -> Chain:
    """With as many members as the first record had, its index, and a lower hash (simN).

    Of the first record alone the state can be had, from our own results.
    """

    def chain(stage: Stage) -> list[Commit]:
        node, manifest = stage.node(), stage.world.signed.manifest
        first, signers = node.commit_at(0), keys(len(node.commit_at(0).record.members))
        base = Base(0, 0, genesis_tip(stage.run), ())
        record, serial = first.record, 0
        while record is first.record or record_hash(record) > node.tip_at(1):  # the lower hash is preferred
            serial += 1
            members = [member(key, stage.run, base, first.record.state_digest, serial) for key in signers]
            made = invented(manifest, base, members, first.record.state_digest, None)
            record = made.record.model_copy(update={"result_root": first.record.result_root})
        start = commit(Invention(record, list(first.index)), certificate(stage.run, record, signers))
        return chain_of_keys(manifest, stage.run, signers, length, digest=ZERO_HASH, start=[start])

    return chain


async def branch_of_one_elector(stage: Stage) -> None:
    """A longer branch on which one elector takes all others for absent, record after record."""
    await stage.world.until("some rounds", lambda: stage.rounds() >= 5, within_s=120)
    liar, node = stage.liars[0], stage.node()
    stage.world.faults.kill(liar)
    chain = [node.commit_at(round) for round in range(4)]
    stage.expect_kept(5)
    electors = [peer for peer in node._history.base.electors if peer != liar.peer]
    digest = node._replica.state.digest()
    manifest = stage.world.signed.manifest
    while len(chain) < 30:
        base = Base(len(chain), 0, record_hash(chain[-1].record), ())
        place = member(liar.identity, stage.run, base, digest)
        made = invented(manifest, base, [place], digest, None)
        chain.append(commit(made, certificate(stage.run, made.record, [liar.identity], absent=electors)))
    ghost = Historian(stage.world, liar.identity)
    ghost.chain = chain
    await ghost.beat_on()


async def _joins(stage: Stage, lie: Conduct) -> None:
    """The last seat joins beside a lie about the history."""
    *founders, joiner = stage.world.seats
    for seat in founders:
        stage.world.start(seat)
    await stage.world.until_round(6, within_s=60)
    stage.world.spawn(lie, stage)
    await trio.sleep(2)
    stage.world.start(joiner)

    def stands() -> bool:
        honest = [seat.node for seat in stage.honest if seat.node is not None and seat is not joiner]
        return joiner.node is not None and joiner.node.rounds > 6 and joiner.node.tip in [node.tip for node in honest]

    await stage.world.until("the joiner stands where the others do", stands, within_s=180)


async def joiner_shown_another_chain(stage: Stage) -> None:
    """A newcomer hears of a longer chain that keys made, beside the true one."""

    async def lie(stage: Stage) -> None:
        ghost = Historian(stage.world, stranger_key(16))
        ghost.chain = made_by(16, 40)(stage)
        await ghost.beat_on()

    await _joins(stage, lie)


async def joiner_shown_a_longer_one(stage: Stage) -> None:
    """Its first records are true, the rest is by one elector alone."""
    await _joins(stage, branch_of_one_elector)


async def joiners_without_state(stage: Stage) -> None:
    """The founder dies when two newcomers have its records, and before they have its state (simI)."""
    founder, *joiners = stage.world.seats
    stage.world.start(founder)
    await stage.world.until_round(14, within_s=200)
    for seat in joiners:
        stage.world.start(seat)
    with trio.fail_after(60):
        while not all(seat.node is not None and seat.node.rounds >= 14 for seat in joiners):
            await trio.sleep(0.001)
    stage.world.faults.kill(founder)
    stage.honest = joiners
    reached = max(seat.node.state_mark.rounds for seat in joiners if seat.node is not None)
    await stage.world.until("rounds of the two", lambda: all(_state(seat) >= reached + 2 for seat in joiners), 400)
    stage.world.start(founder)
    stage.honest = [founder, *joiners]
    await stage.world.until("the founder's records are back", lambda: all(_state(seat) >= 16 for seat in stage.honest), 400)


def first_found(peers: int) -> SignedManifest:
    """Founded by the first seat."""
    return found_by([0])


def _state(seat: Seat) -> int:
    return seat.node.state_mark.rounds if seat.node is not None else 0


async def minority_shown_later(stage: Stage) -> None:
    """Two of five are apart for a while, make provisional records, and come back with them."""
    await stage.begin()
    few, many = stage.world.seats[:2], stage.world.seats[2:]
    stage.world.faults.partition(many, few)
    await trio.sleep(60)
    reached = min(seat.node.rounds for seat in many if seat.node is not None)
    stage.world.faults.heal()
    await stage.world.until("rounds of all", lambda: min(stage.world.rounds()) >= reached + 3, 120)


async def minority_kept_by_a_liar(stage: Stage) -> None:
    """The same, and one of the two shows what they made for ever after."""
    await stage.begin()
    liar, mate, *many = stage.world.seats
    stage.world.faults.partition(many, [liar, mate])
    await trio.sleep(60)
    node = stage.node(liar)
    chain = [node.commit_at(round) for round in range(node.rounds)]
    stage.world.faults.kill(liar)
    stage.world.faults.heal()
    ghost = Historian(stage.world, liar.identity)
    ghost.chain = chain
    stage.world.spawn(ghost.beat_on)
    for kept in chain[-3:]:
        for peer in stage.honest_peers:
            stage.world.spawn(ghost.tell, peer, kept)
    reached = stage.rounds()
    await stage.world.until("rounds of all honest", lambda: stage.rounds() >= reached + 6, 240)


async def decided_and_gone(leave: int, stage: Stage) -> None:
    """Who decides a round dies with the commit, some that voted say goodbye, and the rest goes on at once (pure2)."""
    world = stage.world
    await stage.begin()
    struck: list[Seat] = []

    def strike(seat: Seat, event: Event) -> None:
        if isinstance(event, RoundCommitted) and not struck:
            struck.append(seat)
            world.faults.kill(seat)

    world.listeners.append(strike)
    quiet = Withholding(Commit)
    with lying({seat.peer: quiet for seat in world.seats}):
        await world.until("a record that one peer has", lambda: bool(struck), 120)
        leavers = [seat for seat in world.seats if seat.up and seat not in struck][:leave]
        for seat in leavers:
            world.leave(seat)
    reached = max(world.rounds())
    await world.until("rounds of those that stay", lambda: min(world.rounds()) >= reached + 3, 240)
    for seat in world.seats:
        if not seat.up:
            world.start(seat)
    await world.until("rounds of all", lambda: min(world.rounds()) >= reached + 6, 240)


async def crowd_at_the_beginning(stage: Stage) -> None:
    """More keys than founders are ready before the first record of a run with named founders."""
    crowd = Strangers(stage.world, 12)
    for seat in stage.world.seats:
        stage.world.start(seat)
    await trio.sleep(1.0)
    crowd.connect()
    for _ in range(20):
        node = stage.honest[0].node
        if node is not None:
            await crowd.beat(node.rounds, node.tip)
            await crowd.be_ready(node)
        await trio.sleep(1.0)
    await stage.world.until("some rounds", lambda: stage.rounds() >= 3, 120)
    electors = stage.node()._history.base.electors
    assert {seat.peer for seat in stage.world.seats} == set(electors), "only founders vote"


async def answers_with_garbage(stage: Stage) -> None:
    """Claims a longer chain, and answers questions about it with anything."""
    ghost = stage.stranger()
    for kind in ("tips", "commits", "have", *ABOUT_BLOBS):
        ghost.answers[kind] = b"\x00" * 1000
    seq = 0
    while True:
        seq += 1
        await ghost.gossip(ghost.beat(seq, 10**6, bytes([seq % 256]) * 32))
        for peer in stage.honest_peers:
            try:
                await ghost.network.request(peer, "commits", b"\x00" * 1000, timeout_s=5)
            except NetworkError:
                continue
        await trio.sleep(2.0)


ATTACKS = [
    Attack("another genesis", "a longer chain by 64 keys", shown(made_by(64, 12), 8), liars=0, keys=64),
    Attack(
        "another genesis, demo run",
        "the same where anyone may begin",
        shown(made_by(64, 12), 8),
        liars=0,
        keys=64,
        run=anybodys_run,
    ),
    Attack("another first record", "over the true first result", shown(over_first_result(12), 4), liars=0, keys=5),
    Attack(
        "another first record, demo",
        "where anyone may begin",
        shown(over_first_result(12), 4),
        liars=0,
        keys=5,
        run=anybodys_run,
    ),
    Attack("first record only", "one record by 5 keys", shown(over_first_result(1), 4), liars=0, keys=5),
    Attack("branch of keys", "27 records by 16 keys", shown(made_by(16, 30, kept=3), 5), liars=0, keys=16),
    Attack("branch of one elector", "26 records, all others absent", branch_of_one_elector),
    Attack("joiner shown keys' chain", "40 records", joiner_shown_another_chain, 5, 0, 16, begun=False),
    Attack("joiner shown one elector's", "a longer branch", joiner_shown_a_longer_one, 5, 1, begun=False),
    *(
        Attack(f"joiners without state{where}", "the founder dies", joiners_without_state, 3, 0, run=run, begun=False)
        for where, run in (("", anybodys_run), (", founded", first_found))
    ),
    Attack("minority shown later", "two of five were apart", minority_shown_later, 5, 0, begun=False),
    Attack("minority kept by a liar", "and shown for ever", minority_kept_by_a_liar, 5, 1, begun=False),
    *(
        Attack(f"decided, dead, {leave} leave", "the rest goes on", partial(decided_and_gone, leave), 5, 0, begun=False)
        for leave in (1, 2)
    ),
    Attack("crowd at the beginning", "twelve keys ready first", crowd_at_the_beginning, 4, 0, 12, begun=False),
    Attack("answers with garbage", "about a longer chain", answers_with_garbage, liars=0, keys=1),
]
