"""Hostile peers with real sockets: genuine libp2p identities that keep no rule, against one peer of a running swarm.

Each attack is a function that goes on until it can no longer, or has done what it does.  The network under it is ours,
used past its own limits.  `assault` runs all of them against a swarm that trains, and tells what came of each.
`python -m tests.e2e.hostile` prints it as a table.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import trio

from protocol.events import events as ev
from protocol.run.manifest import open_manifest
from protocol.wire.identity import PeerId
from tests.e2e.attacks import BANNED, FLOODS, HARMLESS, Attack, Cast, until_broken
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm

MEMORY_BYTES = 160 << 20
"""What a peer's memory may grow by under all of this."""


@dataclass
class Outcome:
    """Of one attack.  reason: of the ban.  rounds: committed by all meanwhile.  grown: memory of the target, so far."""

    name: str
    sent: int
    seconds: float
    reason: str
    rounds: int
    grown: int


@dataclass
class Assault:
    """Attacks one after the other on `target`, while `swarm` trains.  patient: wait for a round of all after each one."""

    swarm: Swarm
    target: Peer
    outcomes: list[Outcome] = field(default_factory=list)
    patient: bool = True
    attacks: dict[str, Attack] = field(default_factory=lambda: {**BANNED, **FLOODS, **HARMLESS})
    on_outcome: Callable[[Outcome], None] = lambda outcome: None

    async def run(self) -> None:
        await self._in_thread(lambda: self.swarm.whole(*self.swarm.peers))
        signed = open_manifest(self.swarm.manifest.read_bytes())
        status = self.target.status()
        process = psutil.Process(self.target.pid)
        before = process.memory_info().rss
        async with trio.open_nursery() as nursery:
            casts = {name: Cast(signed.run, PeerId(status["peer"])) for name in self.attacks}
            async with trio.open_nursery() as entrance:  # all at once: an address that a ban fell on has to wait
                for cast in casts.values():
                    entrance.start_soon(nursery.start, cast.play, status["addresses"])
            for name, attack in self.attacks.items():
                cast = casts[name]
                outcome = await self._one(cast, name, attack)
                outcome.grown = process.memory_info().rss - before
                self.outcomes.append(outcome)
                self.on_outcome(outcome)
            nursery.cancel_scope.cancel()

    async def _one(self, cast: Cast, name: str, attack: Attack) -> Outcome:
        began, rounds = trio.current_time(), self._rounds()
        with trio.move_on_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_broken, partial(attack, cast))
                while name in BANNED and not cast.out:
                    await trio.sleep(0.05)
                if name in BANNED:
                    nursery.cancel_scope.cancel()
        seconds = trio.current_time() - began
        if name in BANNED:
            await self._in_thread(lambda: self.swarm.until(f"a ban for {name}", lambda: self._ban_of(cast)))
        reason = self._ban_of(cast)
        if self.patient:
            await self._in_thread(lambda: self._a_round_after(name, rounds))
        return Outcome(name, cast.sent, seconds, reason, self._rounds() - rounds, 0)

    def _a_round_after(self, name: str, rounds: int) -> None:
        self.swarm.until(f"a round of all after {name}", lambda: self._rounds() > rounds)

    def _rounds(self) -> int:
        return min(peer.committed for peer in self.swarm.peers)

    def _ban_of(self, cast: Cast) -> str:
        bans = [ban for ban in self.target.notices(ev.NoticeCode.PEER_BANNED) if ban["peer"] == cast.identity.peer_id]
        return str(bans[0]["reason"]) if bans else ""

    async def _in_thread(self, work: Callable[[], Any]) -> None:
        await trio.to_thread.run_sync(work)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, Swarm(Path(folder)) as swarm:
        swarm.create_run()
        for name in ("one", "two", "three"):
            swarm.peer(name).start()
        every = {**BANNED, **FLOODS, **HARMLESS}
        chosen = {name: every[name] for name in sys.argv[1:] or every}
        assault = Assault(swarm, swarm.peers[0], attacks=chosen, on_outcome=_print)
        print("| attack | sent | until it was out (s) | why, as its target said | rounds meanwhile | memory of the target |")
        print("|---|---|---|---|---|---|")
        trio.run(assault.run)
    return 0


def _print(outcome: Outcome) -> None:
    why = outcome.reason or "nobody to name"
    print(
        f"| {outcome.name} | {outcome.sent} | {outcome.seconds:.1f} | {why} | {outcome.rounds} "
        f"| {outcome.grown / 1e6:+.0f} MB |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
