"""Keys cost nothing: what any number of strangers can say, and what it costs the electors."""

from __future__ import annotations

import trio

from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import PeerId
from protocol.wire.messages import Finish, Plan, Proposal, ViewChange, pack
from protocol.wire.presence import Goodbye
from tests.attacks.attack import Attack, Conduct
from tests.attacks.forgeries import member, ready
from tests.attacks.ghosts import Strangers
from tests.attacks.proposers import turned_owners
from tests.attacks.stage import Stage


def waiting(count: int, every_s: float = 1.0) -> Conduct:
    """Each key says that it computes on the newest tip, and never is ready (simE)."""

    async def conduct(stage: Stage) -> None:
        crowd = Strangers(stage.world, count)
        crowd.connect()
        while True:
            node = stage.node()
            await crowd.beat(node.rounds, node.tip)
            await trio.sleep(every_s)

    return conduct


async def ahead(stage: Stage) -> None:
    """Ever new keys claim ever longer chains (simE)."""
    number, speaker, went_back = 0, stage.stranger(), stage.counter("RolledBack")
    stage.expect("nobody goes back", lambda: not went_back(), within_s=1.0)
    while True:
        number += 1
        crowd = Strangers(stage.world, 4, f"ahead {number}", speaker)
        crowd.connect()
        await crowd.beat(10**6 + number, bytes([number % 256]) * 32)
        await trio.sleep(0.8)


def ready_and_mute(count: int, every_s: float = 1.0, digest: bytes | None = None) -> Conduct:
    """Each key is alive and READY in each round, and takes no part in the exchange.

    digest: of a state that they invented, so that nobody doubts its own because more of them than electors name it (pure2).
    """

    async def conduct(stage: Stage) -> None:
        crowd, last = Strangers(stage.world, count), -1
        crowd.connect()
        doubts = stage.counter("Desynced")
        while True:
            node = stage.node()
            if node.rounds != last:
                last = node.rounds
                await crowd.be_ready(node, digest)
                assert digest is None or not doubts(), "somebody doubts its state"
            await crowd.beat(node.rounds, node.tip)
            await trio.sleep(every_s)

    return conduct


async def proposals_of_a_stranger(stage: Stage) -> None:
    """One proposal a round to everybody, with another state than theirs (simL)."""
    ghost = stage.stranger()
    fetches = stage.counter("SyncProgress"), stage.counter("Transfer", "checkpoint")
    while True:
        node = stage.node()
        base, digest = node._history.base, b"\x77" * 32
        place = member(ghost.identity, stage.run, base, digest)
        owners = bytes(stage.world.signed.manifest.chunks)
        plan = Plan(
            round=base.round, fragment=base.fragment, base=base.tip, members=[place], owners=owners, state_digest=digest
        )
        view_change = ViewChange(
            round=base.round, base=base.tip, attempt=0, absent=[], held=b"\x00", plan=None, lock=None, reduced=None
        )
        proposal = Proposal(attempt=0, absent=[], plan=plan, view_changes=[pack(ghost.identity, stage.run, view_change).raw])
        for peer in stage.honest_peers:
            stage.world.spawn(ghost.tell, peer, view_change)
            stage.world.spawn(ghost.tell, peer, proposal)
        await trio.sleep(0.5)
        assert not any(count() for count in fetches), "somebody fetches its state"


async def repeated_proposals(stage: Stage) -> None:
    """A true proposal, as a stranger says it, and changed."""
    ghost, seen = stage.stranger(), list[tuple[PeerId, Proposal]]()
    gather_from(stage, seen)
    while True:
        for _, proposal in seen[-3:]:
            changed = turned_owners(proposal)
            for peer in stage.honest_peers:
                stage.world.spawn(ghost.tell, peer, proposal)
                stage.world.spawn(ghost.tell, peer, changed)
        await trio.sleep(0.5)


def gather_from(stage: Stage, seen: list[tuple[PeerId, Proposal]]) -> None:
    """Note the proposals that honest peers take up: everybody in the round could tell a stranger of them."""
    for seat in stage.honest:
        rounds = stage.node(seat)._rounds
        receive = rounds.receive

        def overhear(sender, body, envelope, *, by=None, receive=receive):  # type: ignore[no-untyped-def]
            if isinstance(body, Proposal):
                seen.append((sender, body))
            receive(sender, body, envelope, by=by)

        rounds.receive = overhear  # type: ignore[method-assign]


async def goodbyes(stage: Stage) -> None:
    """Keys come and say goodbye, over and over."""
    number, speaker = 0, stage.stranger()
    while True:
        number += 1
        crowd = Strangers(stage.world, 20, f"passing {number}", speaker)
        crowd.connect()
        node = stage.node()
        await crowd.beat(node.rounds, node.tip)
        await trio.sleep(1.0)
        await crowd.say(Goodbye(incarnation=1, seq=100))


async def finish_all(stage: Stage) -> None:
    """Ready strangers ask everybody to finish."""
    ghost, serial = stage.stranger(), 0
    crowd = Strangers(stage.world, 12)
    crowd.connect()
    while True:
        node = stage.node()
        await crowd.be_ready(node)
        serial += 1
        for peer in stage.honest_peers:
            stage.world.spawn(ghost.tell, peer, Finish(round=node.rounds, base=node.tip))
        await trio.sleep(1.0)


async def readys_for_anything(stage: Stage) -> None:
    """READYs of many keys for rounds that are far away and tips that do not exist."""
    crowd = Strangers(stage.world, 200)
    crowd.connect()
    number = 0
    while True:
        number += 1
        base = stage.node()._history.base
        far = ready(base, ZERO_HASH, serial=number).model_copy(
            update={"round": base.round + number * 1000, "base": bytes([number % 256]) * 32}
        )
        await crowd.say(far)
        await trio.sleep(4.0)


thousand_wait, thousand_mute = waiting(1000, 5.0), ready_and_mute(1000, 5.0)

ATTACKS = [
    Attack("waiting strangers", "compute for ever", waiting(6), liars=0, keys=6),
    Attack("1000 waiting strangers", "compute for ever", thousand_wait, liars=0, keys=1000, quick=False),
    Attack("strangers ahead", "new keys with longer chains", ahead, liars=0, keys=400),
    Attack("one mute member", "a stranger ready and mute", ready_and_mute(1), liars=0, keys=1),
    Attack("ten mute members", "strangers ready and mute", ready_and_mute(10), liars=0, keys=10),
    Attack("1000 mute members", "ready, alive and mute", thousand_mute, liars=0, keys=1000, quick=False),
    Attack("strangers on another state", "more than electors", ready_and_mute(12, 0.5, b"\x55" * 32), liars=0, keys=12),
    Attack("proposals of a stranger", "with another state", proposals_of_a_stranger, liars=0, keys=1),
    Attack("repeated proposals", "true and changed ones", repeated_proposals, liars=0, keys=1),
    Attack("coming and going", "goodbyes of 20 keys a second", goodbyes, liars=0, keys=2000, quick=False),
    Attack("strangers ask to finish", "all the time", finish_all, liars=0, keys=13),
    Attack("READYs for anything", "far rounds, other tips", readys_for_anything, liars=0, keys=200, quick=False),
]
