"""A peer's part in the sets of tasks from the crowd: hearing, fetching and counting them, and putting them into plans.

Every peer fetches the sets that the chain admits, and the sets of an amendment that no record has yet.  Sets that others
offer are fetched only if this peer's owner asks for them (`protocol.tasks.commands`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import trio

from protocol.blobs.swarm import Swarm
from protocol.chain.progress import TasksInForce, first_problem
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed, read_guarded, write_guarded
from protocol.events.events import Notice, TasksAmended, TaskSetFellOut, TaskSetOffered
from protocol.offload import Offload
from protocol.tasks.counting import OutcomeCounts
from protocol.tasks.library import SetFiles
from protocol.trainer_link import SharedTaskFile, Tried
from protocol.transport.handlers import Guard, Statement, hears
from protocol.transport.interface import Acceptance, NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import unpack
from protocol.wire.rollouts import AdmittedSet, Amendment, Place, TaskSet

# ------------------------------------------------------------------------------------------------------------------------
# Sets of tasks that peers offer, as one peer has heard of them.  Pure.
#
# Keys are free, so the offers of all strangers together have bounded room: the oldest of them makes room.  Members of the
# chain come before strangers.  Peers repeat their offers, so nothing is lost by that.


MOST = 256
MOST_OF_ONE = 8
"""Most sets that one peer offers at a time."""


@dataclass(frozen=True)
class SignedOffer:
    """Signed offer of a set.  raw: the statement as it travels.  is_member: True if a record names the publisher."""

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

    The first offer that was heard counts, but a member's replaces a stranger's: anybody can offer another's set, in a false
    size.
    """

    def __init__(self) -> None:
        self._known: dict[Hash, SignedOffer] = {}

    def __iter__(self) -> Iterator[SignedOffer]:
        return iter([*self._known.values()])

    def find(self, root: Hash) -> SignedOffer | None:
        """Return the offer of this set, if there is one."""
        return self._known.get(root)

    def hear(self, offer: SignedOffer) -> bool:
        """Take in an offer; return True if it is news and there is room for it."""
        known = self._known.get(offer.root)
        if known is not None and (known.is_member or not offer.is_member):
            return False
        others = [other for other in self._known.values() if other.root != offer.root]
        if sum(other.publisher == offer.publisher for other in others) >= MOST_OF_ONE:
            return False
        if known is None and len(self._known) >= MOST:
            strangers = (known for known in self._known.values() if not known.is_member)
            victim = next(strangers, next(iter(self._known.values())) if offer.is_member else None)
            if victim is None:
                return False
            del self._known[victim.root]
        self._known[offer.root] = offer
        return True

    def drop(self, root: Hash) -> None:
        """Forget the offer of a set."""
        self._known.pop(root, None)


# ------------------------------------------------------------------------------------------------------------------------


# ------------------------------------------------------------------------------------------------------------------------
# Sets of tasks in force that are out of reach: since when, and how a trainer reacts.


LOST_S = 600.0
"""Seconds out of reach after which this peer is against a set in force: otherwise the set would hold the run up."""
VOTE_S = 30.0
"""Seconds for which a voter waits for batches to learn from before it contributes nothing, to vote against a lost set."""


class LostSets:
    """Lost sets, as one peer sees them.  places: of the sets that could not be fetched or used for `LOST_S`."""

    def __init__(self, session: Session, replica: Replica) -> None:
        self._session, self._replica = session, replica
        self._lacking: dict[Place, float] = {}
        """Sets in force that are not here or cannot be used, and the time since when."""
        self.places: frozenset[Place] = frozenset()

    def note(self, tasks: TasksInForce, here: Container[Hash], unusable: Mapping[Place, str], now: float) -> None:
        """Give up sets in force that have been out of reach for too long, until they are here after all.

        here: the roots of the sets that are here.  unusable: the sets that cannot be used, and why.
        """
        lacking = [each for each in tasks.live if each.root not in here or each.place in unusable]
        self._lacking = {each.place: self._lacking.get(each.place, now) for each in lacking}
        lost = frozenset(place for place, since in self._lacking.items() if now - since >= LOST_S)
        for each in lacking:
            if each.place in lost - self.places:
                why = unusable.get(each.place)
                state = f"could not be used for {LOST_S:.0f} s ({why})" if why else f"has not come for {LOST_S:.0f} s"
                text = f"the set of tasks {each.name} {state}; a trainer without it votes to leave the set out"
                self._session.emit(Notice("warning", text))
        self.places = lost

    def patience_s(self, tasks: TasksInForce) -> float:
        """Return the seconds that a round waits for batches before a trainer contributes nothing.

        They are infinite if no set is lost.  Only a voter's word takes a set out.  Other trainers wait `LOST_S` in a round
        for the peers that have the set: so a trainer that lacks a sandbox closes no rounds before them.  If nobody has the
        set, the record that comes then may carry an amendment.
        """
        if not any(each.place in self.places for each in tasks.live):
            return inf
        electors = self._replica.history.roster.electorate.electors
        return VOTE_S if not electors or self._session.me in electors else LOST_S


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's newest amendment, as one peer has heard of it.  Pure.
#
# It is remembered until there is a newer one, even if a record has it: another branch of the chain may come that lacks that
# record, and then the amendment waits for another one.


SignedAmendment = tuple[Amendment, bytes]
"""Amendment, and its statement as it travels."""


class NewestAmendment:
    """Newest amendment that one peer knows.  The organiser has signed every amendment given to it."""

    def __init__(self) -> None:
        self._known: SignedAmendment | None = None

    def hear(self, tasks: TasksInForce, body: Amendment, raw: bytes) -> bool:
        """Take in an amendment; return True if it is news and can follow the sets in force.

        Of two with one number the first counts.
        """
        if body.number <= self._number or not _can_follow(tasks, body):
            return False
        self._known = body, raw
        return True

    def recall(self, body: Amendment, raw: bytes) -> None:
        """Take over an earlier life's amendment, which a record may have."""
        if body.number > self._number:
            self._known = body, raw

    def pending(self, tasks: TasksInForce) -> SignedAmendment | None:
        """Return the amendment while no record of the chain has it or a newer one."""
        return self._known if self._number > tasks.number else None

    def next(self, tasks: TasksInForce) -> SignedAmendment | None:
        """Return the amendment if the next record may carry it: another that came first may leave no room for it."""
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
"""Seconds between repetitions of our offers, and of an amendment that no record has: gossip may be lost, and others come."""
MOST_TOLD = 16
"""Most offers of strangers that are told in `REPEAT_S`, for all of them together."""
OWN = 1 << 50
"""Number that our offers are kept under; amendments are kept under their own numbers, which are lower."""


class TaskSets:
    """Sets of tasks at one node, in a run with rollouts; `run` it.

    own: our offers.  asked: sets that our owner wants.  counting: outcomes of tasks, at a trainer.  unusable: the sets that
    the trainer process cannot use, and why.  lost: sets in force that could not be fetched or used for long.
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
        self.nursery: trio.Nursery | None = None
        self._said_at, self._told = -REPEAT_S, 0
        self._seen = TasksInForce()
        self.lost = LostSets(session, replica)
        self.counting = OutcomeCounts()
        self.unusable: Mapping[Place, str] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        await self.files.load()
        await self._recall()
        self._seen = self.in_force
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            while True:
                with self._guard.watch(self._session.me, "tasks"):
                    await self._tend(nursery)
                await trio.sleep(LOOK_S)

    async def _recall(self) -> None:
        """Take over an earlier life's offers, amendment and counts."""
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
            self._session.emit(Notice("warning", f"what was counted of tasks cannot be read, and is counted anew: {error}"))

    async def _tend(self, nursery: trio.Nursery) -> None:
        tasks = self.in_force
        self._tell(tasks)
        self.lost.note(tasks, self.files.digests, self.unusable, trio.current_time())
        needed = self._needed()
        self.files.begin(nursery, needed)
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
        """Tell the person how the chain has changed the sets since we last looked."""
        seen, self._seen = self._seen, tasks
        if tasks.number != seen.number:
            self._session.emit(
                TasksAmended(tasks.number, tasks.since, [each.root.hex() for each in tasks.live], tasks.percent)
            )
        for each in tasks.sets:
            if each.slot in tasks.fallen and each.slot not in seen.fallen:
                self._session.emit(TaskSetFellOut(each.root.hex(), each.name, tasks.fell))

    @property
    def _counts_path(self) -> Path:
        return self._statements.folder / "counts"

    async def say(self, raw: bytes) -> None:
        """Gossip a statement."""
        with suppress(NetworkError):  # it is said again
            await self._session.network.publish(raw)

    # -- which sets there are -----------------------------------------------------------------------------------------

    @property
    def in_force(self) -> TasksInForce:
        """Sets of tasks in force at the newest version."""
        return self._replica.history.roster.tasks

    @property
    def pending(self) -> SignedAmendment | None:
        """Newest amendment, while no record has it."""
        return self._newest.pending(self.in_force)

    def at(self, version: int) -> TasksInForce:
        """Return the sets in force at a version of our chain, or at the newest one if that is lower."""
        return self._replica.history.roster_at(min(version, self._replica.history.length)).tasks

    def on(self, version: int, tip: Hash) -> TasksInForce | None:
        """Return the sets in force at the version with this tip; None if our chain does not have it at the moment."""
        history = self._replica.history
        is_ours = version <= history.length and history.tip_at(version) == tip
        return history.roster_at(version).tasks if is_ours else None

    def _versions(self) -> range:
        """Return the versions that rollouts may be of."""
        length = self._replica.history.length
        return range(max(0, length - self._max_async), length + 1)

    def _needed(self) -> dict[Hash, tuple[int, PeerId]]:
        """Return the sizes and publishers of the sets that must be here, by root."""
        sets, pending = [each for version in self._versions() for each in self.at(version).live], self.pending
        sets += pending[0].sets if pending is not None else []
        return {Hash(each.root): (each.size, PeerId(each.publisher)) for each in sets}

    def usable_files(self) -> dict[Place, SharedTaskFile]:
        """Return the sets that the trainer process should have, as far as they are here.

        These are the sets of all versions that rollouts may be of, and of an amendment that no record has yet, which takes
        no slot of theirs.
        """
        pending = self.pending
        sets = {each.slot: each for each in (pending[0].sets if pending is not None else ())}
        sets |= {each.slot: each for version in self._versions() for each in self.at(version).live}
        return {
            each.place: SharedTaskFile(first_problem(slot), each.count, self.files.path(root), self.files.digests[root])
            for slot, each in sorted(sets.items())
            if (root := Hash(each.root)) in self.files.digests
        }

    def note_unusable(self, unusable: Mapping[Place, str]) -> None:
        """Note the sets that the trainer process cannot use, and why."""
        self.unusable = unusable

    def own_offer(self, root: Hash, raw: bytes) -> None:
        """Take an offer of ours over, to repeat it and to keep its set."""
        self.own[root] = raw

    def withdraw(self, root: Hash) -> None:
        """Repeat an offer of ours no more."""
        del self.own[root]
        self.offers.drop(root)

    def ask_for(self, root: Hash) -> None:
        """Keep this set, and no other one that our owner wanted before."""
        self.asked = {root}

    def amendment(self, can_use: Callable[[Sequence[AdmittedSet]], bool]) -> bytes | None:
        """Return the amendment for our plans: the newest one, once its sets are here and can be used.

        can_use: returns True if the trainer process has these sets.
        """
        following = self._newest.next(self.in_force)
        if following is None:
            return None
        body, raw = following
        are_here = all(each.root in self.files.digests for each in body.sets)
        return raw if are_here and can_use(body.sets) else None

    def note_tried(self, tried: Iterable[Tried], makers: Sequence[PeerId | None]) -> None:
        """Count as `OutcomeCounts.note_tried`, for rollouts of versions of our chain."""
        self.counting.note_tried(tried, makers, self._roots())

    def note_scores(self, problems: Iterable[int], ours: bytes, theirs: bytes) -> None:
        """Count as `OutcomeCounts.note_scores`, for rollouts of versions of our chain."""
        self.counting.note_scores(problems, ours, theirs, self._roots())

    def _roots(self) -> Mapping[int, Hash]:
        return roots_of(each for version in self._versions() for each in self.at(version).sets)

    def against(self, tasks: TasksInForce) -> int | None:
        """Return the sets that fall out by our counts, or are lost, in the form of our READY."""
        return self.counting.against(tasks, self.lost.places)

    # -- hearing ------------------------------------------------------------------------------------------------------

    @hears(TaskSet)
    def hear_task_set(self, said: Statement[TaskSet]) -> Acceptance:
        """Take in an offer of another peer."""
        if self.nursery is None:
            return Acceptance.IGNORE
        return Acceptance.of_news(self.hear_offer(said.sender, said.body, said.raw))

    @hears(Amendment, anyone=True)  # the organiser's word counts by the manifest alone
    def hear_amendment(self, said: Statement[Amendment]) -> Acceptance:
        """Take in an amendment; return ACCEPT if it is to be handed on."""
        if self.nursery is None:
            return Acceptance.IGNORE
        if said.sender != self.organiser:
            return Acceptance.REJECT  # the peer that hands it on could know that
        if not self.take(said.body, said.raw):
            return Acceptance.IGNORE
        self.nursery.start_soon(self._keep, said.body.number, said.raw)
        return Acceptance.ACCEPT

    def hear_offer(self, publisher: PeerId, body: TaskSet, raw: bytes) -> bool:
        """Take in an offer, ours or another's; return True if it is news."""
        is_member = publisher == self._session.me or self._replica.history.has_member(publisher)
        offer = SignedOffer(body, publisher, raw, is_member)
        if not self.offers.hear(offer):
            return False
        self._told += not is_member
        if is_member or self._told <= MOST_TOLD:
            self._session.emit(TaskSetOffered(publisher, offer.root.hex(), body.name, body.count, body.size))
        return True

    def take(self, body: Amendment, raw: bytes) -> bool:
        """Take in an amendment that the organiser signed; return True if it is the newest now."""
        return self._newest.hear(self.in_force, body, raw)

    async def _keep(self, number: int, raw: bytes) -> None:
        with self._guard.watch(self.organiser, "amendment"):
            try:
                await self.keep(number, raw)
            except StoreFailed as error:
                self._session.emit(Notice("warning", f"an amendment cannot be kept: {error}"))

    async def keep(self, number: int, raw: bytes) -> None:
        """Keep the newest amendment on disk, and no older ones.  Raises `StoreFailed`."""
        await self._offload(self._statements.keep_all, [(number, raw)], number)

    async def keep_offer(self, raw: bytes) -> None:
        """Keep a statement of ours on disk.  Raises `StoreFailed`."""
        await self._offload(self._statements.keep, OWN, raw)


def roots_of(sets: Iterable[AdmittedSet]) -> dict[int, Hash]:
    """Return the roots of sets, by slot; within one chain a slot is one set's for ever."""
    return {each.slot: Hash(each.root) for each in sets}
