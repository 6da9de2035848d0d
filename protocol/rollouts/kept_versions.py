"""Versions of the weights that the trainer process holds: to generate, to verify, and for old probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import trio

from protocol.chain.replica import Replica
from protocol.rollouts.work import TrainerLock
from protocol.trainer_link import RolloutLink, StateMark
from protocol.wire.hashes import Hash

SPARE = 2
"""Versions that a trainer process keeps beyond `max_async`."""


class Keeping(Protocol):
    """Keeper of the outer state (`protocol.node.state_keeper`)."""

    changing: trio.Lock

    @property
    def mark(self) -> StateMark:
        """Number of rounds that the state is made of, and its digest (empty until it is known)."""
        ...


class KeptVersions:
    """Tips of the versions that the trainer process holds.

    A version that came and went while the process was busy is never held, and so not verified here.
    """

    def __init__(self, replica: Replica, keeping: Keeping, link: RolloutLink, turn: TrainerLock, max_async: int) -> None:
        self._replica, self._keeping, self._link, self._turn = replica, keeping, link, turn
        self._most = max_async + SPARE
        self._tips: dict[int, Hash] = {}
        self._pid: int | None = None

    @property
    def tips(self) -> Mapping[int, Hash]:
        """Tips by version, the newest last; none without a process, and none for a new process, which has been given no
        version yet."""
        return self._tips if self._link.pid is not None and self._pid == self._link.pid else {}

    @property
    def newest(self) -> tuple[int, Hash] | None:
        """Version and tip of our state, if the process holds it; None while it is still to be given."""
        rounds, tip = self._present()
        return (rounds, tip) if self.tips.get(rounds) == tip else None

    def _present(self) -> tuple[int, Hash]:
        rounds = min(self._replica.state.rounds, self._replica.history.length)
        return rounds, self._replica.history.tip_at(rounds)

    async def follow(self) -> None:
        """Give the process the present version, unless it holds it or somebody is changing the state.  Raises
        `TrainerDied`."""
        if self.newest is not None or not self._keeping.mark.digest:
            return
        async with self._turn.taken():
            try:
                self._keeping.changing.acquire_nowait()
            except trio.WouldBlock:
                return  # another state is coming
            try:
                rounds, tip = self._present()
                if self._keeping.mark.rounds != rounds or self._replica.state.rounds != rounds:
                    return
                pid = self._link.pid
                await self._link.keep_version(rounds, self._replica.state.theta)
            finally:
                self._keeping.changing.release()
        held = {} if self._pid != pid else {version: known for version, known in self._tips.items() if version < rounds}
        held[rounds], self._pid = tip, pid
        self._tips = {version: held[version] for version in sorted(held)[-self._most :]}
