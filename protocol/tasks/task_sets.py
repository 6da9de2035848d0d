"""The crowd's sets of tasks at one peer: receiving, fetching and counting them, and proposing amendments in plans.

Every peer fetches the sets that the chain admits, and the sets of an amendment that no record carries yet.  A peer fetches
other offered sets only if its user asks for them (`protocol.tasks.commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import trio

from protocol.blobs.swarm import Swarm
from protocol.bounds import BoundedDict
from protocol.chain.progress import TasksInForce, first_problem
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed, read_guarded, write_guarded
from protocol.events.events import Notice, NoticeCode
from protocol.formatting import clean, many, size
from protocol.offload import Offload
from protocol.tasks.counting import OutcomeCounts
from protocol.tasks.library import SetFiles
from protocol.trainer_link import SharedTaskFile, Tried
from protocol.transport.handlers import Guard, Statement, hears
from protocol.transport.interface import Acceptance, NetworkError, Session
from protocol.transport.task_group import TaskGroup
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import unpack
from protocol.wire.rollouts import AdmittedSet, Amendment, SetKey, TaskSet

# ------------------------------------------------------------------------------------------------------------------------
# Offers of sets of tasks that one peer has received.  This part is pure.
#
# Keys are free, so the number of offers is limited for all strangers together: the oldest such offer is evicted first.
# Members of the chain come before strangers.  No offer is lost by an eviction, because peers repeat their offers.


MOST = 256
MOST_OF_ONE = 8
"""Most sets that one peer may offer at a time."""


@dataclass(frozen=True)
class SignedOffer:
    """Signed offer of a set.  raw: the encoded statement.  is_member: True if a record names the publisher."""

    body: TaskSet
    publisher: PeerId
    raw: bytes
    is_member: bool = False

    @property
    def root(self) -> Hash:
        """Name of the set."""
        return Hash(self.body.root)


class Offers:
    """Offers by the names of their sets.

    The first received offer of a set counts, but a member's offer replaces a stranger's: any key can offer another peer's
    set with a false size.
    """

    def __init__(self) -> None:
        self._known = BoundedDict[Hash, SignedOffer](MOST, lambda _, offer: not offer.is_member)

    def __iter__(self) -> Iterator[SignedOffer]:
        return iter([*self._known.values()])

    def hear(self, offer: SignedOffer) -> bool:
        """Receive an offer; return True if it is new and was kept."""
        known = self._known.get(offer.root)
        if known is not None and (known.is_member or not offer.is_member):
            return False
        others = [other for other in self._known.values() if other.root != offer.root]
        if sum(other.publisher == offer.publisher for other in others) >= MOST_OF_ONE:
            return False
        self._known[offer.root] = offer
        return offer.root in self._known

    def drop(self, root: Hash) -> None:
        """Forget the offer of a set."""
        self._known.pop(root, None)


# ------------------------------------------------------------------------------------------------------------------------
# Sets of tasks in force that a peer cannot get or use, and the reaction of a trainer.


LOST_S = 600.0
"""Seconds after which this peer votes against an unavailable set in force: otherwise the set would stop the run."""
VOTE_S = 30.0
"""Seconds for which an elector waits for batches before it contributes nothing, to vote against a lost set."""


class LostSets:
    """Lost sets at one peer.  keys: the keys of the sets that could not be fetched or used for `LOST_S`."""

    def __init__(self, session: Session, replica: Replica) -> None:
        self._session, self._replica = session, replica
        self._lacking: dict[SetKey, float] = {}
        """Sets in force that we lack or cannot use, each with the time at which that began."""
        self.keys: frozenset[SetKey] = frozenset()

    def note(self, tasks: TasksInForce, here: Container[Hash], unusable: Mapping[SetKey, str], now: float) -> None:
        """Mark sets in force as lost that have been unavailable for `LOST_S`, until we can use them again.

        here: the roots of the sets that we have.  unusable: the sets that we cannot use, with the reasons.
        """
        lacking = [each for each in tasks.live if each.root not in here or each.key in unusable]
        self._lacking = {each.key: self._lacking.get(each.key, now) for each in lacking}
        lost = frozenset(key for key, since in self._lacking.items() if now - since >= LOST_S)
        for each in lacking:
            if each.key in lost - self.keys:
                why = unusable.get(each.key)
                state = f"could not be used for {LOST_S:.0f} s ({why})" if why else f"has not come for {LOST_S:.0f} s"
                text = f"the set of tasks {each.name} {state}; a trainer without it votes to leave the set out"
                self._session.emit(Notice("warning", text))
        self.keys = lost

    def patience_s(self, tasks: TasksInForce) -> float:
        """Return the time that a round waits for batches before a trainer contributes nothing (s).

        The time is infinite if no set is lost.  Only electors can vote a set out.  Other trainers wait `LOST_S` in a round
        for the peers that have the set, so that a trainer without a sandbox closes no round before these peers.  If no peer
        has the set, the next record may carry an amendment.
        """
        if not any(each.key in self.keys for each in tasks.live):
            return inf
        electors = self._replica.history.roster.electorate.electors
        return VOTE_S if not electors or self._session.me in electors else LOST_S


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's newest amendment that one peer has received.  This part is pure.
#
# A peer remembers the amendment until it receives a newer one, even if a record carries the amendment.  If another branch of
# the chain without that record wins, the amendment waits for another record.


SignedAmendment = tuple[Amendment, bytes]
"""(Amendment, encoded statement)."""


class NewestAmendment:
    """Newest amendment that one peer knows.  The organiser has signed every amendment given to it."""

    def __init__(self) -> None:
        self._known: SignedAmendment | None = None

    def hear(self, tasks: TasksInForce, body: Amendment, raw: bytes) -> bool:
        """Receive an amendment; return True if it is new and can follow the sets in force.

        Of two amendments with the same number, the first counts.
        """
        if body.number <= self._number or not _can_follow(tasks, body):
            return False
        self._known = body, raw
        return True

    def recall(self, body: Amendment, raw: bytes) -> None:
        """Restore an amendment from before a restart; a record may carry it already."""
        if body.number > self._number:
            self._known = body, raw

    def pending(self, tasks: TasksInForce) -> SignedAmendment | None:
        """Return the amendment; None if a record of the chain carries it or a newer one."""
        return self._known if self._number > tasks.number else None

    def next(self, tasks: TasksInForce) -> SignedAmendment | None:
        """Return the amendment if the next record may carry it; an earlier amendment may have made it invalid."""
        pending = self.pending(tasks)
        return pending if pending is not None and _can_follow(tasks, pending[0]) else None

    @property
    def _number(self) -> int:
        return self._known[0].number if self._known is not None else 0


def _can_follow(tasks: TasksInForce, body: Amendment) -> bool:
    try:
        tasks.flaw(body)
    except Malformed:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------------------


LOOK_S = 0.5
REPEAT_S = 30.0
"""Seconds between repetitions of our offers and of a pending amendment: gossip may be lost, and new peers join."""
MOST_TOLD = 16
"""Most offers of strangers that are reported in `REPEAT_S`, for all strangers together."""
OWN = 1 << 50
"""Number under which our offers are stored; amendments are stored under their own numbers, which are lower."""


class TaskSets:
    """Sets of tasks at one node, in a run with rollouts; call `run`.

    own: our offers.  asked: sets that our user wants.  counting: outcomes of tasks, at a trainer.  unusable: the sets that
    the trainer process cannot use, with the reasons.  lost: sets in force that we could not fetch or use for `LOST_S`.
    tidying: held while sets that nobody needs are removed, and while one becomes ours: `own` and `asked` must not change in
    the middle of a removal, which would remove a set that was just published.
    """

    def __init__(self, session: Session, guard: Guard, replica: Replica, offload: Offload, swarm: Swarm) -> None:
        self._session, self._guard, self._replica, self._offload = session, guard, replica, offload
        self._max_async = replica.manifest.rl.max_async if replica.manifest.rl is not None else 0
        self.organiser = PeerId(replica.manifest.organiser)
        self._statements = replica.store.tasks
        self.files = SetFiles(session, guard, replica.store.tasks, offload, swarm)
        self.offers = Offers()
        self.own: dict[Hash, bytes] = {}
        self._newest = NewestAmendment()
        self.asked: set[Hash] = set()
        self.tidying = trio.Lock()
        self.running = TaskGroup()
        self._said_at, self._told = -REPEAT_S, 0
        self._seen = TasksInForce()
        self.lost = LostSets(session, replica)
        self.counting = OutcomeCounts()
        self.unusable: Mapping[SetKey, str] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        await self.files.load()
        await self._recall()
        self._seen = self.in_force
        async with self.running.open():
            while True:
                with self._guard.watch(self._session.me, "tasks"):
                    await self._tend()
                await trio.sleep(LOOK_S)

    async def _recall(self) -> None:
        """Load the offers, the amendment and the counts from before a restart."""
        for raw in await self._offload(self._statements.statements):
            try:
                sender, body, _ = unpack(raw, self._session.run)
            except Malformed:
                continue
            if isinstance(body, TaskSet) and sender == self._session.me and body.root in self.files.digests:
                self.own[Hash(body.root)] = raw
                self.offers.hear(SignedOffer(body, sender, raw, is_member=True))
            elif isinstance(body, Amendment) and sender == self.organiser:
                self._newest.recall(body, raw)
        counts = await self._offload(read_guarded, self._statements.disk, self._counts_path)
        try:
            self.counting = OutcomeCounts.decode(counts) if counts is not None else self.counting
        except ValueError as error:
            self._session.emit(Notice("warning", f"the counts of task outcomes cannot be read, and begin at 0: {error}"))

    async def _tend(self) -> None:
        tasks = self.in_force
        self._tell(tasks)
        self.lost.note(tasks, self.files.digests, self.unusable, trio.current_time())
        async with self.tidying:
            needed = self._needed()
            self.files.begin(self.running, needed)
            await self.files.tidy({*needed, *self.own, *self.asked})
        if self.counting.is_new:
            self.counting.keep_only(roots_of(tasks.sets))
            await self._offload(write_guarded, self._statements.disk, self._counts_path, self.counting.encode())
        if trio.current_time() - self._said_at >= REPEAT_S:
            self._said_at, self._told = trio.current_time(), 0
            pending = self.pending
            for raw in [*self.own.values(), *([pending[1]] if pending is not None else [])]:
                await self.say(raw)

    def _tell(self, tasks: TasksInForce) -> None:
        """Report the changes that the chain has made to the sets since the last call."""
        seen, self._seen = self._seen, tasks
        if tasks.number != seen.number:
            sets = [each.root.hex() for each in tasks.live]
            share = f", of which {tasks.percent} % of the problems are" if sets else ""
            which = f"{len(sets)} sets of tasks are in force (amendment {tasks.number})"
            text = f"from version {tasks.since} on {which}{share}"
            details = {"number": tasks.number, "version": tasks.since, "sets": sets, "percent": tasks.percent}
            self._session.emit(Notice("info", text, NoticeCode.TASKS_AMENDED, details))
        for each in tasks.sets:
            if each.slot in tasks.fallen and each.slot not in seen.fallen:
                called = f"{clean(each.name, 64)} ({each.root.hex()[:12]})"
                text = f"the set of tasks {called} was dropped at version {tasks.fell}, by the trainers' counts"
                details = {"root": each.root.hex(), "name": each.name, "version": tasks.fell}
                self._session.emit(Notice("info", text, NoticeCode.TASK_SET_FELL_OUT, details))

    @property
    def _counts_path(self) -> Path:
        return self._statements.folder / "counts"

    async def say(self, raw: bytes) -> None:
        """Gossip a statement."""
        with suppress(NetworkError):  # the statement is repeated
            await self._session.network.publish(raw)

    # -- which sets there are -----------------------------------------------------------------------------------------

    @property
    def in_force(self) -> TasksInForce:
        """Sets of tasks in force at the newest version."""
        return self._replica.history.roster.tasks

    @property
    def pending(self) -> SignedAmendment | None:
        """Newest amendment; None once a record carries it."""
        return self._newest.pending(self.in_force)

    def at(self, version: int) -> TasksInForce:
        """Return the sets in force at a version of our chain, or at the newest version if our chain is shorter."""
        return self._replica.history.roster_at(min(version, self._replica.history.length)).tasks

    def on(self, version: int, tip: Hash) -> TasksInForce | None:
        """Return the sets in force at the version with this tip; None if our chain does not contain this tip now."""
        history = self._replica.history
        is_ours = version <= history.length and history.tip_at(version) == tip
        return history.roster_at(version).tasks if is_ours else None

    def _versions(self) -> range:
        """Return the versions of which rollouts are useful now."""
        length = self._replica.history.length
        return range(max(0, length - self._max_async), length + 1)

    def _needed(self) -> dict[Hash, tuple[int, PeerId]]:
        """Return (size, publisher) of each set that we need, by root."""
        sets, pending = [each for version in self._versions() for each in self.at(version).live], self.pending
        sets += pending[0].sets if pending is not None else []
        return {Hash(each.root): (each.size, PeerId(each.publisher)) for each in sets}

    def usable_files(self) -> dict[SetKey, SharedTaskFile]:
        """Return the sets that the trainer process should have, as far as we have them.

        These are the sets of all versions of which rollouts are useful, and of a pending amendment, which uses none of the
        slots of these sets.
        """
        pending = self.pending
        sets = {each.slot: each for each in (pending[0].sets if pending is not None else ())}
        sets |= {each.slot: each for version in self._versions() for each in self.at(version).live}
        return {
            each.key: SharedTaskFile(first_problem(slot), each.count, self.files.path(root), self.files.digests[root])
            for slot, each in sorted(sets.items())
            if (root := Hash(each.root)) in self.files.digests
        }

    def note_unusable(self, unusable: Mapping[SetKey, str]) -> None:
        """Note the sets that the trainer process cannot use, with the reasons."""
        self.unusable = unusable

    def withdraw(self, root: Hash) -> None:
        """Stop repeating our own offer."""
        del self.own[root]
        self.offers.drop(root)

    def ask_for(self, root: Hash) -> None:
        """Keep this set instead of any set that our user asked for before."""
        self.asked = {root}

    def amendment(self, can_use: Callable[[Sequence[AdmittedSet]], bool]) -> bytes | None:
        """Return the newest amendment for our plans; None before we have all its sets and can use them.

        can_use: returns True if the trainer process has these sets.
        """
        following = self._newest.next(self.in_force)
        if following is None:
            return None
        body, raw = following
        are_here = all(each.root in self.files.digests for each in body.sets)
        return raw if are_here and can_use(body.sets) else None

    def note_tried(self, tried: Iterable[Tried], makers: Sequence[PeerId | None]) -> None:
        """Count as `OutcomeCounts.note_tried` does, for rollouts of versions of our chain."""
        self.counting.note_tried(tried, makers, self._roots())

    def note_scores(self, problems: Iterable[int], ours: bytes, theirs: bytes) -> None:
        """Count as `OutcomeCounts.note_scores` does, for rollouts of versions of our chain."""
        self.counting.note_scores(problems, ours, theirs, self._roots())

    def _roots(self) -> Mapping[int, Hash]:
        return roots_of(each for version in self._versions() for each in self.at(version).sets)

    def against(self, tasks: TasksInForce) -> int | None:
        """Return the sets that fall out by our counts or are lost, as a READY encodes them."""
        return self.counting.against(tasks, self.lost.keys)

    # -- hearing ------------------------------------------------------------------------------------------------------

    @hears(TaskSet)
    def hear_task_set(self, said: Statement[TaskSet]) -> Acceptance:
        """Receive an offer of another peer."""
        if not self.running.is_open:
            return Acceptance.IGNORE
        return Acceptance.of_news(self.hear_offer(said.sender, said.body, said.raw))

    @hears(Amendment, anyone=True)  # the manifest alone authorises the organiser
    def hear_amendment(self, said: Statement[Amendment]) -> Acceptance:
        """Receive an amendment; return ACCEPT if the network should forward it."""
        if not self.running.is_open:
            return Acceptance.IGNORE
        if said.sender != self.organiser:
            return Acceptance.REJECT  # the forwarder could have checked the sender
        if not self.take(said.body, said.raw):
            return Acceptance.IGNORE
        self.running.start(self._keep_heard, said.body.number, said.raw)
        return Acceptance.ACCEPT

    def hear_offer(self, publisher: PeerId, body: TaskSet, raw: bytes) -> bool:
        """Receive an offer, our own or another peer's; return True if it is new."""
        is_member = publisher == self._session.me or self._replica.history.has_member(publisher)
        offer = SignedOffer(body, publisher, raw, is_member)
        if not self.offers.hear(offer):
            return False
        self._told += not is_member
        if is_member or self._told <= MOST_TOLD:
            root, what = offer.root.hex(), f"{many(body.count, 'task')} ({size(body.size)})"
            text = f"{publisher} offers {what}, {clean(body.name, 64)}: set {root[:12]}"
            details = {"peer": publisher, "root": root, "name": body.name, "tasks": body.count, "size_bytes": body.size}
            self._session.emit(Notice("info", text, NoticeCode.TASK_SET_OFFERED, details))
        return True

    def take(self, body: Amendment, raw: bytes) -> bool:
        """Receive an amendment that the organiser signed; return True if it is now the newest."""
        return self._newest.hear(self.in_force, body, raw)

    async def _keep_heard(self, number: int, raw: bytes) -> None:
        with self._guard.watch(self.organiser, "amendment"):
            try:
                await self.keep(number, raw)
            except StoreFailed as error:
                self._session.emit(Notice("warning", f"an amendment cannot be kept: {error}"))

    async def keep(self, number: int, raw: bytes) -> None:
        """Store the newest amendment on disk, and remove older ones.  Raises `StoreFailed`."""
        await self._offload(self._statements.keep_all, [(number, raw)], number)

    async def keep_offer(self, root: Hash, raw: bytes) -> None:
        """Store our own offer on disk, to repeat it and to keep its set.  Raises `StoreFailed`."""
        await self._offload(self._statements.keep, OWN, raw)
        self.own[root] = raw


def roots_of(sets: Iterable[AdmittedSet]) -> dict[int, Hash]:
    """Return the roots of sets, by slot; within one chain a slot never changes its set."""
    return {each.slot: Hash(each.root) for each in sets}
