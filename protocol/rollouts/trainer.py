"""Exclusive use of the trainer process, which does one thing at a time: compute, generate, verify, or take a version."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from math import inf
from typing import Protocol

import trio

from protocol.chain.replica import Replica
from protocol.events.events import Notice
from protocol.events.status import WhyIdle
from protocol.membership.activity import Activity
from protocol.run.settings import NodeSettings
from protocol.tasks.task_sets import TaskSets
from protocol.trainer_link import RolloutLink, SharedTaskFile, StateMark
from protocol.transport.interface import Session
from protocol.wire.hashes import Hash
from protocol.wire.presence import Phase, Role
from protocol.wire.rollouts import AdmittedSet, SetKey

# ------------------------------------------------------------------------------------------------------------------------
# Work status of a rollout peer or a validator: computing, or the reason for not computing.


LASTS_S = 2.0
"""Shortest gap between two batches that is shown as idle (s)."""
WORK = {Role.ROLLOUT: Phase.GENERATING, Role.VALIDATOR: Phase.VERIFYING}


class WorkStatus:
    """Work status of one peer, shown while the peer is not busy with a round's state; a pause hides it."""

    def __init__(self, activity: Activity, role: Role) -> None:
        self._activity, self._phase = activity, WORK[role]
        self._why, self._detail = WhyIdle.WAITING_FOR_WEIGHTS, "the trainer has no weights yet"
        self._idle_since: float | None = None

    def show(self) -> None:
        """Show the status, because the round leaves this peer free to work."""
        self._activity.show(self._phase, self._why, self._detail)

    def works(self) -> None:
        """Note that the peer computes from now on."""
        self._idle_since = None
        self._change(WhyIdle.BUSY, "")

    def idles(self, why: WhyIdle, detail: str, now: float) -> None:
        """Note that the peer does not compute, for this reason; call this repeatedly while the peer is idle."""
        self._idle_since = now if self._idle_since is None else self._idle_since
        if self._why is not WhyIdle.BUSY or now - self._idle_since >= LASTS_S:
            self._change(why, detail)

    def _change(self, why: WhyIdle, detail: str) -> None:
        if (why, detail) == (self._why, self._detail):
            return
        self._why, self._detail = why, detail
        if self._activity.beneath is self._phase:
            self.show()


# ------------------------------------------------------------------------------------------------------------------------


REST_S = 60.0
"""Seconds of rest after which a peer cancels its batch: otherwise it would miss the versions that come during the rest."""


class TrainerLock:
    """Lock on one trainer process, taken in the order of requests.  Call `look` regularly."""

    def __init__(self) -> None:
        self._lock = trio.Lock()
        self._tips: Mapping[int, Hash] = {}
        self._rests_since: float | None = None
        self._batch: tuple[int, Hash] | None = None
        """Version and tip of the batch for which the process is lent now."""
        self._scope = trio.CancelScope()

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Hold the process exclusively inside the context."""
        async with self._lock:
            yield

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Hold the process as in `taken`, for work on a batch, whose version `about` sets.

        The work is cancelled when the batch becomes useless, or when the peer rests for longer than `REST_S`.
        """
        async with self._lock:
            with trio.CancelScope() as self._scope:
                try:
                    yield
                finally:
                    self._batch = None

    def about(self, version: int, tip: Hash) -> None:
        """Set the version and tip of the batch for which the process is lent."""
        self._batch = version, tip

    def moved(self, tips: Mapping[int, Hash]) -> None:
        """Set the versions of which rollouts are useful now."""
        self._tips = tips

    def rest(self, on: bool) -> None:
        """Begin or end a rest of the peer."""
        self._rests_since = trio.current_time() if on else None

    def look(self) -> None:
        """Cancel work on a batch that has become useless, and work during a long rest."""
        since = self._rests_since
        rests_long = since is not None and trio.current_time() - since >= REST_S
        if self._batch is not None and (rests_long or self._tips.get(self._batch[0]) != self._batch[1]):
            self._scope.cancel()


# ------------------------------------------------------------------------------------------------------------------------
# Versions of the weights that the trainer process holds, to generate, to verify, and to compute old probabilities.


SPARE = 2
"""Number of versions that a trainer process keeps in addition to `max_async`."""


class Keeping(Protocol):
    """Keeper of the outer state (`protocol.node.state`)."""

    changing: trio.Lock

    @property
    def mark(self) -> StateMark:
        """Number of rounds applied to the state, and the state's digest (empty until it is known)."""
        ...


class KeptVersions:
    """Tips of the versions that the trainer process holds.

    A version that was replaced while the process was busy is never held, so we verify no batches of it.
    """

    def __init__(self, replica: Replica, keeping: Keeping, link: RolloutLink, turn: TrainerLock, max_async: int) -> None:
        self._replica, self._keeping, self._link, self._turn = replica, keeping, link, turn
        self._most = max_async + SPARE
        self._tips: dict[int, Hash] = {}
        self._pid: int | None = None

    @property
    def tips(self) -> Mapping[int, Hash]:
        """Tips by version, the newest last; none without a process.

        A new process holds no version at first.
        """
        return self._tips if self._link.pid is not None and self._pid == self._link.pid else {}

    @property
    def newest(self) -> tuple[int, Hash] | None:
        """Version and tip of our state; None until the process holds that version."""
        rounds, tip = self._present()
        return (rounds, tip) if self.tips.get(rounds) == tip else None

    def _present(self) -> tuple[int, Hash]:
        rounds = min(self._replica.state.rounds, self._replica.history.length)
        return rounds, self._replica.history.tip_at(rounds)

    async def follow(self) -> None:
        """Give the process the present version, unless it holds that version or the state is being changed.

        Raises `TrainerDied`.
        """
        if self.newest is not None or not self._keeping.mark.digest:
            return
        async with self._turn.taken():
            try:
                self._keeping.changing.acquire_nowait()
            except trio.WouldBlock:
                return  # the state is about to change
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


# ------------------------------------------------------------------------------------------------------------------------
# Sets of tasks in the trainer process: we give it the versions' sets, and report a missing set.


AGAIN_S = 60.0
"""Seconds after which we try unusable sets again."""


class LoadedTasks:
    """Sets of tasks that one trainer process has.

    While the process lacks a set of a version, it does not generate with, verify or learn from that version.
    """

    def __init__(self, session: Session, tasks: TaskSets, link: RolloutLink, turn: TrainerLock) -> None:
        self._session, self._tasks, self._link, self._turn = session, tasks, link, turn
        self._given: Mapping[SetKey, SharedTaskFile] = {}
        self._held: frozenset[SetKey] = frozenset()
        self._pid: int | None = None
        self._again_at, self._told = inf, ""

    def has(self, sets: Sequence[AdmittedSet]) -> bool:
        """Return True if the process has all of these sets."""
        return not sets or (self._pid == self._link.pid and self._held.issuperset(each.key for each in sets))

    def missing(self, version: int) -> str:
        """Return the reason why a version must wait for its tasks, as a sentence; empty if all tasks are in the process."""
        for each in self._tasks.at(version).live:
            if each.root not in self._tasks.files.digests:
                return f"the tasks of the set {each.name} ({each.root.hex()[:12]}) are still being fetched"
            if each.key in self._tasks.unusable:
                return f"the tasks of the set {each.name} cannot be used here: {self._tasks.unusable[each.key]}"
            if not self.has([each]):
                return f"the trainer process reads the tasks of the set {each.name}"
        return ""

    async def follow(self) -> None:
        """Give the process the sets that it lacks, and every `AGAIN_S` the sets that it refused.

        A refusal may come from a damaged file, or from a problem of this computer.  Raises `TrainerDied`.
        """
        if trio.current_time() >= self._again_at:
            await self._tasks.files.look_again([root for _, root in self._tasks.unusable])
        wanted = self._tasks.usable_files()
        is_given = wanted == self._given and (not wanted or self._pid == self._link.pid)
        if is_given and trio.current_time() < self._again_at:
            return
        async with self._turn.taken():
            refused = await self._link.use_tasks([*wanted.values()])
            self._pid = self._link.pid
        self._given = wanted
        self._held = frozenset(key for key, file in wanted.items() if file.first not in refused)
        self._tasks.note_unusable({key: refused[file.first] for key, file in wanted.items() if file.first in refused})
        self._again_at = trio.current_time() + AGAIN_S if refused else inf
        text = "; ".join(self._tasks.unusable.values())
        if text and text != self._told:
            self._session.emit(Notice("warning", f"a set of tasks cannot be used here: {text}"))
        self._told = text


# ------------------------------------------------------------------------------------------------------------------------


class SharedTrainer:
    """Role of one peer in rollouts, its trainer process, and the versions and tasks that the process holds.

    link: the trainer process, if it can generate and verify.  tasks: the sets of tasks of this peer.  status: work status of
    a rollout peer or a validator; None at other peers.
    """

    def __init__(
        self,
        session: Session,
        replica: Replica,
        keeping: Keeping,
        link: RolloutLink | None,
        tasks: TaskSets,
        activity: Activity,
        settings: NodeSettings,
    ) -> None:
        assert replica.manifest.rl is not None, "no run with rollouts"
        self.link, self.tasks, self.keeping = link, tasks, keeping
        self.role, self.incarnation = settings.role, settings.incarnation
        self.lock, self.permit = TrainerLock(), activity.permit
        self.status = WorkStatus(activity, self.role) if self.role in WORK and link is not None else None
        self.versions: KeptVersions | None = None
        self._given: LoadedTasks | None = None
        if link is not None:
            self.versions = KeptVersions(replica, keeping, link, self.lock, replica.manifest.rl.max_async)
            self._given = LoadedTasks(session, tasks, link, self.lock)

    def has_tasks(self, version: int) -> bool:
        """Return True if the process has all sets of a version of our chain, or if there is no process."""
        return self.can_use(self.tasks.at(version).live)

    def can_use(self, sets: Sequence[AdmittedSet]) -> bool:
        """Return True if the process has all of these sets, or if there is no process."""
        return self._given is None or self._given.has(sets)

    def missing(self, version: int) -> str:
        """Return the reason why a version must wait for its tasks, as a sentence; empty if it need not wait."""
        return self._given.missing(version) if self._given is not None else ""

    def holds(self, version: int, tip: Hash) -> bool:
        """Return True if the process holds the weights of this version at this tip."""
        return self.versions is not None and self.versions.tips.get(version) == tip

    def ready_tips(self) -> dict[int, Hash]:
        """Return the tips of versions for which the process has the weights and the tasks."""
        if self.versions is None:
            return {}
        return {version: tip for version, tip in self.versions.tips.items() if self.has_tasks(version)}

    async def follow(self) -> None:
        """Give the process the present version and the sets of tasks that it lacks.  Raises `TrainerDied`."""
        if self.versions is not None and self._given is not None:
            await self.versions.follow()
            await self._given.follow()

    def rest(self, on: bool) -> None:
        """Begin or end a rest of the peer."""
        self.lock.rest(on)
        if self.link is not None and self.role is not Role.TRAINER:  # `OwnTrainer` pauses a trainer's process
            (self.link.pause if on else self.link.resume)()
