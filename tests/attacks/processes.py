"""Attacks on real processes and sockets: what a hostile neighbour sends, and a member that withholds.

`python -m tests.attacks --processes` runs them after all others; they take minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from protocol.transport.interface import NetworkError
from protocol.wire.hashes import ZERO_HASH
from protocol.wire.identity import PeerId
from protocol.wire.messages import Accusation, Plan, Proposal, pack
from tests.attacks.attack import Outcome
from tests.attacks.forgeries import keys, sealed_with_nonce
from tests.e2e.attacks import Cast
from tests.e2e.hostile import MEMORY_BYTES, Assault
from tests.e2e.swarm import Peer, Swarm
from tests.protocol.members import a_member
from tests.protocol.peers import a_first_ready, a_heartbeat

FOR_S = 30.0
"""How long a lasting one goes on."""
ROUNDS = 4


async def one_ready_signed_twice(cast: Cast) -> None:
    """simG: two signatures of one key over one READY."""
    for nonce in (111111111111111, 222222222222222):
        await cast.say([sealed_with_nonce(cast.identity, cast.run, a_first_ready(), nonce).raw])
        await trio.sleep(1)


async def one_proof_two_accusers(cast: Cast) -> None:
    """simH: accusations by two keys that name one proof, in one write."""
    for number in range(20):
        said = Accusation(accused=keys(1)[0].peer_id, evidence=bytes([number]) * 32, size=100)
        await cast.say([pack(key, cast.run, said).raw for key in keys(2, f"accuser {number}")])
        await trio.sleep(0.2)


async def waiting_and_ahead(cast: Cast) -> None:
    """simE: thirty keys compute for ever or are far ahead, by turns."""
    crowd, seq = keys(30), 0
    with trio.move_on_after(FOR_S):
        while True:
            seq += 1
            round, tip = (10**6, bytes([seq % 256]) * 32) if seq % 2 else (0, ZERO_HASH)
            await cast.say([pack(key, cast.run, a_heartbeat(seq=seq, round=round, tip=tip)).raw for key in crowd])
            await trio.sleep(1)


async def another_state(cast: Cast) -> None:
    """simL: proposals on a state that nobody has."""
    assert cast.network is not None
    place = a_member(cast.identity.peer_id)
    with trio.move_on_after(FOR_S):
        for round in range(10**6):
            plan = Plan(
                round=round % 20, fragment=0, base=ZERO_HASH, members=[place], owners=bytes(8), state_digest=b"\x77" * 32
            )
            body = Proposal(attempt=0, absent=[], plan=plan, view_changes=[b"\x00"])
            try:
                await cast.network.request(cast.target, "round", pack(cast.identity, cast.run, body).raw, timeout_s=5)
            except NetworkError:
                await trio.sleep(0.2)
            await trio.sleep(0.2)


GOSSIPED: dict[str, tuple[int, Callable[[Cast], Awaitable[None]]]] = {
    "one READY signed twice": (1, one_ready_signed_twice),
    "one proof, two accusers": (40, one_proof_two_accusers),
    "30 keys wait or are ahead": (30, waiting_and_ahead),
    "proposals on another state": (1, another_state),
}


def by_neighbours() -> list[Outcome]:
    """Each by a peer of its own on one of three peers that train; a round of all has to come after each."""
    outcomes = {name: Outcome(f"processes: {name}", "by a neighbour", 0, count) for name, (count, _) in GOSSIPED.items()}
    try:
        with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
            swarm.create_run()
            for name in ("one", "two", "three"):
                swarm.peer(name).start()
            assault = Assault(swarm, swarm.peers[0], attacks={name: conduct for name, (_, conduct) in GOSSIPED.items()})
            trio.run(assault.run)
            for each in assault.outcomes:
                outcomes[each.name].measured.rounds = each.rounds
                outcomes[each.name].details = f"{each.grown / 1e6:+.0f} MB"
                if each.grown > MEMORY_BYTES:
                    outcomes[each.name].failure = f"the memory of its target grew by {each.grown >> 20} MiB"
            assert all(peer.lives == 1 and peer.up for peer in swarm.peers), "a peer died"
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        for outcome in outcomes.values():
            outcome.failure = outcome.failure or f"{type(error).__name__}: {str(error)[:500]}"
    return list(outcomes.values())


def mute_member() -> list[Outcome]:
    """simK: one of four peers says READY, gives nothing, and pushes worthless parts."""
    outcome = Outcome("processes: bogus parts", "by one of four members", 1, 0)
    try:
        with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
            swarm.create_run()
            liar, *honest = (swarm.peer(name) for name in ("liar", "one", "two", "three"))
            liar.program = ("tests.attacks.mute_peer",)
            for peer in (*honest, liar):
                peer.start()
            swarm.until("the liar is a member", lambda: any(_is_named(peer, liar) for peer in honest))
            start = min(peer.committed for peer in honest)
            swarm.until("rounds in spite of it", lambda: min(peer.committed for peer in honest) >= start + ROUNDS)
            outcome.measured.rounds = min(peer.committed for peer in honest) - start
            swarm.equal(swarm.whole(*honest), *honest)
    except AssertionError as error:
        outcome.failure = str(error)[:500]
    return [outcome]


def _is_named(peer: Peer, liar: Peer) -> bool:
    peer_id: Any = liar.peer_id
    return bool(peer_id) and any(PeerId(peer_id) in commit.members for commit in peer.commits.values())


def run_processes() -> list[Outcome]:
    """All of them, one after the other."""
    return [*by_neighbours(), *mute_member()]
