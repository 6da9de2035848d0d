"""Several tips: parts of a run go on without each other, and what each peer holds for final stays compatible.

A peer stands on a chain beyond a common tip, and keeps its locks and confirmed tips through restarts.  A step concerns a
*part*: some peers that hear each other and nobody else.  Any part may act at any time, so peers fall asleep, are cut off and
come back without steps of their own; only a restart is a step, because the peer then says that it was away.  In a part

* a peer judges another one's chain, or gives up records (`ForkChoice` itself, over chains in memory);
* the voters on one tip vote as `VoteLog` allows.  Any of them may lock, and if enough do, one of them or all receive the
  certificate.  A part without a quorum of the electors leaves the others out.

The agreement on one tip is one step, because `search.py` explores it: a ballot of all electors carries on the newest lock of
its voters, and attempts at one tip are numbered in the order in which they happen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain as joined
from itertools import combinations
from types import SimpleNamespace
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from protocol.chain import store
from protocol.chain.electorate import quorum_size
from protocol.chain.finality import Finality, RecentWork
from protocol.chain.history import ProvisionalMark
from protocol.chain.records import is_full, record_hash
from protocol.chain.store import VoteFiles
from protocol.node import round_parts
from protocol.node.round_parts import VoteLog
from protocol.sync import fork_choice
from protocol.sync.fork_choice import Constituency, ForkChoice, Side, took_part
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Lock, Signature, VoterState
from tests.explore.council import Council, Seats

ROOT = -1
"""The common tip, in place of a record."""
NAMES = "ABCDE"
"""Names of the peers; A is the founder."""


class Link(NamedTuple):
    """A record of a chain, with the certificate that a peer holds for it."""

    record: int
    absent: Seats
    signers: Seats


Links = tuple[Link, ...]
"""A chain beyond the common tip."""


class WholeLock(NamedTuple):
    """A lock of the whole electorate at a tip."""

    tip: int
    record: int
    attempt: int


class Peer(NamedTuple):
    """An honest peer.  confirmed: the entries that the product's `VoteLog` writes to disk."""

    chain: Links
    was_away: bool = False
    locks: frozenset[WholeLock] = frozenset()
    confirmed: frozenset[Any] = frozenset()

    @property
    def tip(self) -> int:
        """The tip on which the peer stands."""
        return tip_of(self.chain)

    @property
    def lock(self) -> WholeLock | None:
        """The lock at its own tip."""
        return next((lock for lock in self.locks if lock.tip == self.tip), None)

    @property
    def says_away(self) -> bool:
        """What its heartbeats say: a lock at its tip is a reason to stay there."""
        return self.was_away and self.lock is None


State = tuple[Peer, ...]


class Heard(NamedTuple):
    """What another peer's heartbeats and records show."""

    seat: int
    chain: Links
    was_away: bool
    bound: int


@dataclass(frozen=True)
class Parting:
    """A configuration.

    electors: how many of the peers vote, A first.  work: recent tokens of each peer.  depth: most records beyond the common
    tip.  attempts: most ballots of all electors at one tip.  liar: the seat of a liar.  is_open: keys are free.
    loses_seats: electors that are not members of a record lose their seats until they are members again.
    branches: most records on one tip.  restarts: whether peers restart.  settles: whether parts can always go on is checked,
    not only what is final.  max_states: states after which the search stops.
    """

    electors: int
    work: tuple[int, ...]
    depth: int = 2
    attempts: int = 1
    is_open: bool = False
    loses_seats: bool = False
    liar: int | None = None
    branches: int = 2
    restarts: bool = True
    settles: bool = True
    max_states: int = 1_000_000

    def __str__(self) -> str:
        kind = "open" if self.is_open else "admission"
        lies = f", {NAMES[self.liar]} lies" if self.liar is not None else ""
        seats = ", seats are lost" if self.loses_seats else ""
        return (
            f"{len(self.work)} peers, {self.electors} vote, work {self.work}, {kind}{lies}{seats}, {self.depth} records deep"
        )


@dataclass(frozen=True)
class Parted:
    """Outcome of a search.  flaw: None if there is none.  trace: the shortest way to it, in words."""

    states: int
    settlings: int
    exhaustive: bool
    seconds: float
    flaw: str | None
    trace: tuple[str, ...]


def tip_of(chain: Links) -> int:
    """Return the tip after a chain."""
    return chain[-1].record if chain else ROOT


# ------------------------------------------------------------------------------------------------------------------------
# Chains, as the product's functions read them.


class _Chain:
    """A chain with the interface of `History`; `common` is set where it serves as a `Branch`."""

    def __init__(self, world: World, links: Links) -> None:
        self.links, self.length = links, len(links)
        self._tips = [world.hash(ROOT), *(world.hash(link.record) for link in links)]
        self._commits = [world.commit(link) for link in links]
        finality, work = Finality(), world.work
        settings, electors = SimpleNamespace(is_open=world.config.is_open, founders=world.electors), world.electors_after(())
        self._rosters: list[Any] = []

        def note_roster() -> None:
            electorate = SimpleNamespace(electors=electors, settings=settings)
            self._rosters.append(SimpleNamespace(electorate=electorate, work=work, finality=finality))

        note_roster()
        self.marks: dict[int, ProvisionalMark] = {}
        for round, commit in enumerate(self._commits):
            if not is_full(commit.certificate):
                absent = frozenset(PeerId(peer) for peer in commit.certificate.absent)
                self.marks[round] = ProvisionalMark(electors, absent, work)
            members = [PeerId(member.peer) for member in commit.record.members]
            finality = finality.after(electors, quorum_size(len(electors)), commit.certificate, members)
            work = RecentWork((*work.records[1:], tuple((peer, 1) for peer in members)))
            electors = world.electors_after(links[: round + 1])
            note_roster()
        self.roster, self.final, self.tip = self._rosters[-1], finality.final, self._tips[-1]

    @cached_property
    def provisional(self) -> list[int]:
        return [round for round in self.marks if round >= self.final]

    def tips(self, start: int, count: int) -> list[Hash]:
        return self._tips[start : start + count]

    def tip_at(self, rounds: int) -> Hash:
        return self._tips[rounds]

    def commit_at(self, round: int) -> Commit:
        return self._commits[round]

    def certificate_at(self, round: int) -> Certificate:
        return self._commits[round].certificate

    def roster_at(self, rounds: int) -> Any:
        return self._rosters[rounds]

    def electors_at(self, rounds: int) -> tuple[PeerId, ...]:
        electors: tuple[PeerId, ...] = self._rosters[rounds].electorate.electors
        return electors


class _Branch:
    """A chain with the interface of `Branch`: it leaves ours after `common` rounds."""

    def __init__(self, chain: _Chain, common: int) -> None:
        self._chain, self.common, self.length, self.final = chain, common, chain.length, chain.final
        self.provisional = {round: mark for round, mark in chain.marks.items() if round >= common}
        self.tips, self.tip_at, self.commit_at = chain.tips, chain.tip_at, chain.commit_at


class Others:
    """The `Membership` of a peer, which hears these others."""

    def __init__(self, me: PeerId, beats: Mapping[PeerId, Any]) -> None:
        self.me, self._beats = me, beats
        self.get, self.is_live = beats.get, beats.__contains__

    def __iter__(self) -> Iterator[tuple[PeerId, Any]]:
        return iter(self._beats.items())


class Votes(VoteFiles):
    """The votes of a peer, in memory."""

    def __init__(self, world: World, peer: Peer) -> None:
        self._entries = peer.confirmed
        self._kept = {world.hash(lock.tip): world.voter_state(lock) for lock in peer.locks}

    def load(self, round: int, tip: Hash) -> Any:
        return self._kept.get(tip)

    def save(self, round: int, tip: Hash, raw: bytes) -> None:
        pass

    def has_lost(self, round: int, tip: Hash) -> bool:
        return False

    @property
    def has_lost_confirmed(self) -> bool:
        return False

    def confirmed(self) -> frozenset[Any]:
        return self._entries

    def confirm(self, records: Collection[Any]) -> None:
        self._entries = frozenset([*self._entries, *records])


# ------------------------------------------------------------------------------------------------------------------------


class _Clock:
    """A clock that is far ahead whenever it is read: no peer gives up what it does before a wait is over."""

    def __init__(self) -> None:
        self._now = 0.0

    def current_time(self) -> float:
        self._now += 1e6
        return self._now


class World:
    """Records, and the decisions of peers, each computed once."""

    def __init__(self, config: Parting) -> None:
        self.config, council = config, Council()
        self._template = council.records[0]
        self._index = council.indices[0]
        members = {PeerId(member.peer): member for member in council.plan.members}
        self.peers = tuple(sorted(members))[: len(config.work)]
        self._members = [members[peer] for peer in self.peers]
        self.electors = self.peers[: config.electors]
        self.work = RecentWork((tuple(zip(self.peers, config.work, strict=True)),) * 16)
        self._keys: dict[object, int] = {}
        self._records: list[tuple[Any, Hash, str]] = []
        self._members_of: list[Seats] = []
        self._root = Hash(council.base.tip)
        self._chains: dict[Links, _Chain] = {}
        self._commits: dict[Link, Commit] = {}
        self._voter_states: dict[WholeLock, VoterState] = {}
        self._targets: dict[object, tuple[tuple[str, Links], ...]] = {}
        self._bound: dict[tuple[int, Peer], int] = {}
        self._may_vote: dict[tuple[int, Peer], bool] = {}
        self._confirmed: dict[tuple[int, Peer, int], frozenset[Any]] = {}

    # -- records ------------------------------------------------------------------------------------------------------

    def record(self, tip: int, members: Seats, what: object, is_whole: bool) -> int:
        """Return the record on `tip` that these members make; `what` tells it from others."""
        key = (tip, members, what, is_whole)
        if key not in self._keys:
            number = self._keys[key] = len(self._records)
            record = self._template.model_copy(
                update={
                    "previous": self.hash(tip),
                    "members": [self._members[seat] for seat in members],
                    "result_root": number.to_bytes(32),
                }
            )
            self._records.append((record, record_hash(record), f"{'R' if is_whole else 'X'}{number}"))
            self._members_of.append(members)
        return self._keys[key]

    def hash(self, record: int) -> Hash:
        """Return the hash of a record, which is the tip after it."""
        return self._root if record == ROOT else self._records[record][1]

    def name(self, record: int) -> str:
        """Return a record's name."""
        return "T" if record == ROOT else self._records[record][2]

    def commit(self, link: Link) -> Commit:
        """Return a record with the certificate that a peer holds."""
        if link not in self._commits:
            votes = [Signature(peer=self.peers[seat], signature=bytes(64)) for seat in link.signers]
            certificate = Certificate(attempt=0, absent=[self.peers[seat] for seat in link.absent], votes=votes)
            record = self._records[link.record][0]
            self._commits[link] = Commit.model_construct(record=record, index=self._index, certificate=certificate)
        return self._commits[link]

    def voting_after(self, links: Links) -> Seats:
        """Return the electors at the tip after a chain."""
        seats = range(self.config.electors)
        for link in reversed(links if self.config.loses_seats else ()):
            if members := tuple(seat for seat in self._members_of[link.record] if seat in seats):
                return members
        return tuple(seats)

    def electors_after(self, links: Links) -> tuple[PeerId, ...]:
        """Return the IDs of these electors."""
        return tuple(self.peers[seat] for seat in self.voting_after(links))

    def voter_state(self, lock: WholeLock) -> VoterState:
        """Return what binds a peer at the tip of a lock."""
        if lock not in self._voter_states:
            record = self._records[lock.record][0]
            self._voter_states[lock] = VoterState.model_construct(
                round=0,
                base=self.hash(lock.tip),
                attempt=lock.attempt,
                absent=[],
                first=self.hash(lock.record),
                second=self.hash(lock.record),
                lock=Lock.model_construct(record=record),
                reduced=None,
            )
        return self._voter_states[lock]

    def chain(self, links: Links) -> _Chain:
        """Return a chain."""
        if links not in self._chains:
            self._chains[links] = _Chain(self, links)
        return self._chains[links]

    def took_most(self, links: Links, common: int) -> bool:
        """Return True if members with more than half of the recent work took part in a branch."""
        chain = self.chain(links)
        work: RecentWork = chain.roster_at(common).work
        return work.is_most(took_part(cast("Any", chain), common))

    # -- voters -------------------------------------------------------------------------------------------------------

    def may_vote(self, seat: int, peer: Peer) -> bool:
        """Return True if `VoteLog` lets this elector vote on its tip."""
        key = (seat, peer)
        if key not in self._may_vote:
            base = cast("Any", SimpleNamespace(round=len(peer.chain), tip=self.hash(peer.tip)))
            _, abstains = _result(self._vote_log(seat, peer, Votes(self, peer)).load(base))
            self._may_vote[key] = not abstains
        return self._may_vote[key]

    def locked(self, seat: int, peer: Peer, lock: WholeLock) -> Peer:
        """Return this elector after its second vote in a ballot of all."""
        key = (seat, peer, lock.record)
        if key not in self._confirmed:
            votes = Votes(self, peer)
            kept = self.voter_state(lock).model_copy(update={"encode": bytes})
            _result(self._vote_log(seat, peer, votes).save(kept))
            self._confirmed[key] = votes.confirmed()
        others = frozenset(each for each in peer.locks if each.tip != lock.tip)
        return peer._replace(locks=others | {lock}, confirmed=self._confirmed[key])

    def _vote_log(self, seat: int, peer: Peer, votes: Votes) -> VoteLog:
        session = cast("Any", SimpleNamespace(me=self.peers[seat], emit=lambda event: None))
        return VoteLog(session, self._replica(peer, votes), cast("Any", _offload), cast("Any", None), is_copy=False)

    def _replica(self, peer: Peer, votes: Votes) -> Any:
        rounds = SimpleNamespace(founders=self.electors, is_open=self.config.is_open, listen_s=6.0)
        return SimpleNamespace(history=self.chain(peer.chain), store=SimpleNamespace(votes=votes), rounds=rounds)

    def bound(self, seat: int, peer: Peer) -> int:
        """Return the number of rounds to which a peer says that it is bound."""
        key = (seat, peer)
        if key not in self._bound:
            noted: list[int] = []
            membership = Others(self.peers[seat], {})
            activity = SimpleNamespace(was_away=peer.says_away, note_bound=noted.append)
            replica = self._replica(peer, Votes(self, peer))
            ForkChoice(replica, cast("Any", membership), cast("Any", activity)).back_to()
            self._bound[key] = noted[-1]
        return self._bound[key]

    def contradicts(self, one: Peer, other: Peer) -> bool:
        """Return True if `one` has confirmed a record, and `other` is bound to another record on the same tip."""
        if not one.confirmed:
            return False
        votes = Votes(self, other)
        return any(votes.is_bound_elsewhere(*entry) for entry in one.confirmed)

    # -- fork choice --------------------------------------------------------------------------------------------------

    def targets(self, seat: int, peer: Peer, heard: tuple[Heard, ...]) -> tuple[tuple[str, Links], ...]:
        """Return the chains to which a peer moves that hears these others, each with the reason."""
        key = (seat, peer, heard)
        if key not in self._targets:
            self._targets[key] = tuple(self._moves(seat, peer, heard))
        return self._targets[key]

    def _moves(self, seat: int, peer: Peer, heard: tuple[Heard, ...]) -> Iterator[tuple[str, Links]]:
        replica = self._replica(peer, Votes(self, peer))
        beats = {
            self.peers[other]: SimpleNamespace(
                heartbeat=SimpleNamespace(round=len(links), tip=self.hash(tip_of(links)), was_away=away, bound=bound)
            )
            for other, links, away, bound in heard
        }
        membership = Others(self.peers[seat], beats)
        activity = SimpleNamespace(was_away=peer.says_away, note_bound=lambda rounds: None)
        choice = ForkChoice(replica, cast("Any", membership), cast("Any", activity))
        history = self.chain(peer.chain)
        for other, links, *_ in heard:
            common = common_of(peer.chain, links)
            if common < len(links):
                chain = self.chain(links)
                who = Constituency.of(chain.roster_at(common))
                first = who.rank(chain.commit_at(common), took_part(cast("Any", chain), common))
                choice.showed(self.peers[other], Side(history.tip_at(common), first, common))
        choice.back_to()
        back = choice.back_to()  # much later, as `_Clock` says
        if back is not None:
            yield "returns", peer.chain[:back]
        for other, links, *_ in heard:
            common = common_of(peer.chain, links)
            if other == self.config.liar or common == len(links):
                continue
            rooted = (*peer.chain[:common], *links[common:])  # with our own certificates for the records that we share
            branch = cast("Any", _Branch(self.chain(rooted), common))
            rounds = choice.judge(branch, self.peers[other]).rounds
            if rounds > common:
                yield f"follows {NAMES[other]}", rooted[:rounds]


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


async def _offload(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def common_of(one: Links, other: Links) -> int:
    """Return the number of records that two chains share."""
    for round, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine.record != theirs.record:
            return round
    return min(len(one), len(other))


# ------------------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A step, in words, and the state to which it leads.  flaw: what is wrong with it."""

    words: str
    state: State
    flaw: str | None = None


CALM_RECORDS = 3
"""Records beyond the depth that peers may make and follow to settle: at the second one, a lost seat votes again."""


class Parts:
    """Breadth-first search through all states of a configuration."""

    def __init__(self, config: Parting) -> None:
        self.config, self.world = config, World(config)
        seats = [seat for seat in range(len(config.work)) if seat != config.liar]
        self._honest = tuple(seats)
        self._places = {seat: place for place, seat in enumerate(seats)}
        self._groups = [group for size in range(1, len(seats) + 1) for group in combinations(seats, size)]
        self._settled: set[tuple[Seats, State]] = set()

    def run(self) -> Parted:
        """Search until a flaw is found or all states are known."""
        with ExitStack() as stack:
            stack.enter_context(patch.object(fork_choice, "trio", _Clock()))
            for module in (store, round_parts):
                stack.enter_context(patch.object(module, "read_voter_state", lambda kept: kept))
            return self._run()

    def _run(self) -> Parted:
        began, start = time.perf_counter(), (Peer(()),) * len(self._honest)
        parents: dict[State, tuple[State, str] | None] = {start: None}
        waiting = deque([start])

        def outcome(flaw: str | None, trace: tuple[str, ...] = ()) -> Parted:
            seconds = time.perf_counter() - began
            return Parted(len(parents), len(self._settled), not waiting, seconds, flaw, trace)

        while waiting and len(parents) < self.config.max_states:
            state = waiting.popleft()
            if not self._is_small(state):
                continue
            flaw = self._conflict(state) or (self._unsettled(state) if self.config.settles else None)
            if flaw is not None:
                return outcome(flaw, (*_trace(parents, state), self.read(state)))
            for step in self.steps(state):
                if step.flaw is not None:
                    return outcome(step.flaw, (*_trace(parents, state), step.words, self.read(step.state)))
                if step.state not in parents:
                    parents[step.state] = state, step.words
                    waiting.append(step.state)
        return outcome(None)

    def _is_small(self, state: State) -> bool:
        """Return True if few enough records stand on each tip."""
        seen: dict[int, set[int]] = {}
        for peer in state:
            for tip, link in zip((ROOT, *(link.record for link in peer.chain)), peer.chain, strict=False):
                seen.setdefault(tip, set()).add(link.record)
            for lock in peer.locks:
                seen.setdefault(lock.tip, set()).add(lock.record)
        return all(len(records) <= self.config.branches for records in seen.values())

    # -- steps --------------------------------------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step]:
        """Return all steps from a state."""
        for place, peer in enumerate(state):
            if self.config.restarts and not peer.was_away:
                yield Step(f"{NAMES[self._honest[place]]} restarts", _with(state, {place: restarted(peer)}))
        for group in self._groups:
            yield from self._moves(state, group, calm=False)
            yield from self._ballots(state, group, calm=False)

    def _moves(self, state: State, group: Seats, *, calm: bool) -> Iterator[Step]:
        """Peers of a group follow others of it.  calm: up to the longest branch that calm ballots make."""
        if len({state[self._places[seat]].chain for seat in group}) == 1 and self.config.liar is None:
            return
        for seat in group:
            place = self._places[seat]
            peer = state[place]
            others = [(other, state[self._places[other]]) for other in group if other != seat]
            heard = tuple(Heard(other, each.chain, each.says_away, self.world.bound(other, each)) for other, each in others)
            for why, chain in self.world.targets(seat, peer, heard):
                if len(chain) > self.config.depth + (CALM_RECORDS if calm else 1):
                    continue
                after = _with(state, {place: peer._replace(chain=chain)})
                words = f"{_read_group(group)}: {NAMES[seat]} {why} to {self.world.name(tip_of(chain))}"
                yield Step(words, after, self._flaw_of_move(seat, peer, chain, others))

    def _ballots(self, state: State, group: Seats, *, calm: bool) -> Iterator[Step]:
        """Ballots on each tip.  calm: nobody is cut off meanwhile."""
        for tip in dict.fromkeys(state[self._places[seat]].tip for seat in group):
            at = tuple(seat for seat in group if state[self._places[seat]].tip == tip)
            depth = len(state[self._places[at[0]]].chain)
            if depth >= self.config.depth + (CALM_RECORDS if calm else 0):
                continue
            liars = (False,) if self.config.liar is None or calm else (False, True)
            for with_liar in liars:
                yield from self._ballot(state, group, at, tip, with_liar=with_liar, calm=calm)

    def _ballot(self, state: State, group: Seats, at: Seats, tip: int, *, with_liar: bool, calm: bool) -> Iterator[Step]:
        electors = self.world.voting_after(state[self._places[at[0]]].chain)
        liars = (self.config.liar,) if with_liar and self.config.liar in electors else ()
        absent = self._absent(electors, {*group, *liars})
        if absent is None:
            return
        words = f"{_read_group(group)}{' and the liar' if liars else ''} on {self.world.name(tip)}"
        if len(absent) == len(electors):
            link = Link(self.world.record(tip, at, "members", False), absent, at)
            yield from self._committed(state, at, at, link, {}, words, calm)
            return
        voters = [seat for seat in at if seat in electors and seat not in absent and self._may_vote(state, seat)]
        need = quorum_size(len(electors) - len(absent))
        locks = [lock for seat in voters if (lock := state[self._places[seat]].lock) is not None]
        highest = max(locks, key=lambda lock: lock.attempt, default=None)
        if absent:
            bound = {lock.record for lock in locks} - {highest.record if highest else ROOT}
            voters = [seat for seat in voters if getattr(state[self._places[seat]].lock, "record", None) not in bound]
        if len(voters) + len(liars) < need:
            return
        signers = tuple(sorted([*voters, *liars]))
        if absent:
            record = highest.record if highest else self.world.record(tip, at, (signers, absent), False)
            yield from self._committed(state, at, tuple(voters), Link(record, absent, signers), {}, words, calm)
            return
        attempt = 1 + max((lock.attempt for peer in state for lock in peer.locks if lock.tip == tip), default=-1)
        if attempt >= self.config.attempts + (2 if calm else 0):
            return
        record = highest.record if highest else self.world.record(tip, at, attempt, True)
        lockings = _subsets(voters) if not calm else [tuple(voters)]
        for locking in lockings:
            locked = {seat: WholeLock(tip, record, attempt) for seat in locking}
            if len(locking) + len(liars) >= need:
                link = Link(record, (), tuple(sorted([*locking, *liars])))
                yield from self._committed(state, at, locking, link, locked, words, calm)
            else:
                names = " and ".join(NAMES[seat] for seat in locking)
                yield Step(f"{words}: {names} lock on {self.world.name(record)}", self._after(state, locked, {}))

    def _committed(
        self,
        state: State,
        at: Seats,
        voters: Seats,
        link: Link,
        locked: Mapping[int, WholeLock],
        words: str,
        calm: bool,
    ) -> Iterator[Step]:
        """One voter receives the certificate, or all that stand on the tip do."""
        kind = f"{self.world.name(link.record)} by {''.join(NAMES[seat] for seat in link.signers)}"
        kind += f" without {''.join(NAMES[seat] for seat in link.absent)}" if link.absent else " (full)"
        ones = [(voter,) for voter in voters if len(at) > 1 and not calm and not link.absent]
        for receivers in [at, *ones]:
            who = "all" if receivers is at else f"only {NAMES[receivers[0]]}"
            yield Step(f"{words} make {kind}; received by {who}", self._after(state, locked, dict.fromkeys(receivers, link)))

    def _after(self, state: State, locked: Mapping[int, WholeLock], links: Mapping[int, Link]) -> State:
        changed: dict[int, Peer] = {}
        for seat, lock in locked.items():
            place = self._places[seat]
            changed[place] = self.world.locked(seat, state[place], lock)
        for seat, link in links.items():
            place = self._places[seat]
            peer = changed.get(place, state[place])
            changed[place] = peer._replace(chain=(*peer.chain, link), was_away=False)
        return _with(state, changed)

    def _absent(self, electors: Seats, here: set[int]) -> Seats | None:
        """Return the electors left out by a part, as `policy.Closing.absent` chooses them; None if it must wait."""
        gone = [seat for seat in electors if seat not in here]
        present = len(electors) - len(gone)
        for count in range(len(gone) + 1):
            if count == len(electors) or present >= quorum_size(len(electors) - count):
                return tuple(gone[:count])
        return None

    def _may_vote(self, state: State, seat: int) -> bool:
        return self.world.may_vote(seat, state[self._places[seat]])

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _conflict(self, state: State) -> str | None:
        """Two peers hold records for final that contradict each other."""
        finals = [(place, peer.chain[: self.world.chain(peer.chain).final]) for place, peer in enumerate(state)]
        for (one, mine), (other, theirs) in combinations(finals, 2):
            common = common_of(mine, theirs)
            if common < min(len(mine), len(theirs)):
                names = [self.world.name(final[common].record) for final in (mine, theirs)]
                return (
                    f"two final records on one tip: {names[0]} at {NAMES[self._honest[one]]}, "
                    f"{names[1]} at {NAMES[self._honest[other]]}"
                )
        return None

    def _flaw_of_move(self, seat: int, peer: Peer, chain: Links, others: Sequence[tuple[int, Peer]]) -> str | None:
        """A peer gives up records for which no rule gives it up."""
        world, name = self.world, NAMES[seat]
        common = common_of(peer.chain, chain)
        if common < world.chain(peer.chain).final:
            return f"{name} gives up a final record"
        if common == len(peer.chain):
            return self._flaw_of_following(seat, peer, chain, others)
        if common == len(chain):  # returns
            at = [each for _, each in others if each.tip == tip_of(chain) and not each.says_away]
            if not at and not any(
                common_of(each.chain, peer.chain) <= common and self.world.bound(other, each) > common
                for other, each in others
            ):
                return f"{name} gives up {world.name(peer.chain[common].record)} for a peer that was away"
            return None
        mine, theirs = peer.chain[common], chain[common]
        if not mine.absent and theirs.absent and not world.chain(chain).final > common:
            return f"{name} gives up a full record for a provisional one"
        by_work = not (self.config.is_open and any(s < self.config.electors for s in (*mine.signers, *theirs.signers)))
        is_by_work = mine.absent and theirs.absent and by_work and world.chain(chain).final <= common
        shown = [each.chain for _, each in others if each.chain[: len(chain)] == chain]  # a peer may follow a part of it
        if is_by_work and world.took_most(peer.chain, common) and not any(world.took_most(its, common) for its in shown):
            return f"{name} gives up records of members with most of the work"
        return None

    def _flaw_of_following(self, seat: int, peer: Peer, chain: Links, others: Sequence[tuple[int, Peer]]) -> str | None:
        """A founder of an open run follows a record that no elector signed, for a minority of the others' work."""
        link = chain[len(peer.chain)]
        if not self.config.is_open or seat >= self.config.electors or len(link.absent) < self.config.electors:
            return None
        if self.world.chain(chain).final > len(peer.chain):
            return None
        roster = self.world.chain(peer.chain).roster
        work = roster.work.bounded_by(roster.electorate.electors)
        on = [other for other, each in others if len(each.chain) > common_of(each.chain, peer.chain)]  # or coming over
        part = took_part(cast("Any", self.world.chain(chain)), len(peer.chain))
        backing = part | {self.world.peers[other] for other in on}
        if not work.is_most(backing, without=[self.world.peers[seat]]):
            return f"{NAMES[seat]} follows a minority of the others' work"
        return None

    def _unsettled(self, state: State) -> str | None:
        """Some peers, as they hear each other, can never again make a record together."""
        for group in self._groups:
            if len(group) < len(self._honest) and self._are_bound_apart(state, group):
                continue  # nobody can give in: each of the records may be final already
            if not self._settles(group, tuple(state[self._places[seat]] for seat in group)):
                return f"{_read_group(group)} hear each other, and can never make a record together"
        return None

    def _are_bound_apart(self, state: State, group: Seats) -> bool:
        """Return True if one peer has confirmed a record, and another one is bound to another record on the same tip."""
        peers = [state[self._places[seat]] for seat in group]
        return any(self.world.contradicts(one, other) for one in peers for other in peers)

    def _settles(self, group: Seats, peers: State) -> bool:
        if (group, peers) in self._settled:
            return True
        blank = Peer(())
        whole = [blank] * len(self._honest)
        for seat, peer in zip(group, peers, strict=True):
            whole[self._places[seat]] = peer
        start = tuple(whole)
        parents: dict[State, State | None] = {start: None}
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            mine = tuple(state[self._places[seat]] for seat in group)
            if (group, mine) in self._settled or self._can_decide(state, group):
                at: State | None = state
                while at is not None:
                    self._settled.add((group, tuple(at[self._places[seat]] for seat in group)))
                    at = parents[at]
                return True
            for step in joined(self._moves(state, group, calm=True), self._ballots(state, group, calm=True)):
                if step.state not in parents:
                    parents[step.state] = state
                    waiting.append(step.state)
        return False

    def _can_decide(self, state: State, group: Seats) -> bool:
        """Return True if all stand on one tip, and enough of them may vote there."""
        if len({state[self._places[seat]].tip for seat in group}) > 1:
            return False
        electors = self.world.voting_after(state[self._places[group[0]]].chain)
        absent = self._absent(electors, {*group})
        if absent is None:
            return True  # a liar or a peer that is not heard is needed
        if len(absent) == len(electors):
            return True
        voters = [seat for seat in group if seat in electors and self._may_vote(state, seat)]
        return len(voters) >= quorum_size(len(electors) - len(absent))

    # -- words --------------------------------------------------------------------------------------------------------

    def read(self, state: State) -> str:
        """Return a state in words."""
        return "; ".join(self._read(seat, peer) for seat, peer in zip(self._honest, state, strict=True))

    def _read(self, seat: int, peer: Peer) -> str:
        chain = self.world.chain(peer.chain)
        records = ["T", *(self.world.name(link.record) + ("" if link.absent else "*") for link in peer.chain)]
        text = f"{NAMES[seat]} at {'-'.join(records)}, {chain.final} final"
        locks = [f"{self.world.name(lock.tip)}:{self.world.name(lock.record)}" for lock in sorted(peer.locks)]
        text += f", locked {', '.join(locks)}" if locks else ""
        return text + (", was away" if peer.was_away else "")


def restarted(peer: Peer) -> Peer:
    """Return a peer after a restart: it says that it was away; what binds it is on its disk."""
    return peer._replace(was_away=True)


def _with(state: State, changed: Mapping[int, Peer]) -> State:
    return tuple(changed.get(place, peer) for place, peer in enumerate(state))


def _subsets(seats: Sequence[int]) -> list[Seats]:
    return [subset for size in range(1, len(seats) + 1) for subset in combinations(seats, size)]


def _read_group(group: Seats) -> str:
    return "".join(NAMES[seat] for seat in group)


def _trace(parents: Mapping[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    words: list[str] = []
    while (came := parents[state]) is not None:
        state, word = came
        words.append(word)
    return tuple(reversed(words))
