"""Pursuit of peers that are ahead of us, in parallel with our rounds, until a `Move` is ready.

False claims must not cost us our round.  While our own round goes on, we fetch and verify records, make the fork choice, and
fetch the files that lead to the branch's state.  Only then is a `Move` ready, and we leave the round for it.  If the state
of the newest records is not available, the move extends only to the newest available state.  But we give up no record of
ours for a branch unless the branch's whole state is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import trio

from protocol.chain.history import Branch, Uprooted
from protocol.chain.replica import Replica
from protocol.disk import StoreFailed
from protocol.events.events import Dropped, Notice
from protocol.offload import Offload
from protocol.short_id import short_id
from protocol.sync.catch_up import CatchUp, WrongState
from protocol.sync.fork_choice import Choice, ForkChoice
from protocol.sync.remote_chains import Budget, Claims, LookCost, OverBudget, RemoteChains
from protocol.trainer_link import TrainerDied, TrainerGaveUp
from protocol.transport.handlers import Fault, Guard
from protocol.transport.interface import NetworkError, Session
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

# ------------------------------------------------------------------------------------------------------------------------
# Held branches: a bounded number of branches beside our chain, shown by claimants or left by us.
#
# We hold one branch for each elector of our tip, one for all other members, some for strangers, and the branches that we
# left.  To return to a held branch, we need not fetch its records again.  Each stranger has its own branch, because
# otherwise a fresh key could remove the records that another stranger has shown.  If there are too many branches, strangers'
# branches are removed first, in each group the least recently used ones first.


HELD_BYTES = 256 << 20
"""Most bytes of records of all branches that are not in use."""
HELD_BRANCHES = 64
STRANGERS_BRANCHES = 16
MEMBERS, STRANGER = "members", "stranger"


class BranchCache:
    """Held `Branch`es by slot, the most recently used at the end."""

    def __init__(self, replica: Replica, offload: Offload) -> None:
        self._replica, self._offload = replica, offload
        self._branches: dict[str, Branch] = {}

    async def load(self) -> None:
        """Load the branches from before a restart that begin on our chain; remove all other branches."""
        for slot in await self._offload(self._replica.store.branches.slots):
            await self.note(slot)

    async def note(self, slot: str) -> None:
        """Reread the branch in this slot."""
        self._branches.pop(slot, None)
        if not slot:
            return
        branch = await self._offload(Branch.open, self._replica.history, self._replica.store.branches, slot)
        if branch is not None:
            self._branches[slot] = branch
        else:
            await self._offload(self._replica.store.branches.drop, slot)

    def leaving_at(self, common: int) -> list[Branch]:
        """Return the branches that leave our chain after `common` rounds, the longest first."""
        found = [
            branch for branch in self._branches.values() if branch.is_rooted and branch.common == common < branch.length
        ]
        return sorted(found, key=lambda branch: branch.length, reverse=True)

    async def begin(self, slot: str, common: int) -> Branch:
        """Begin a new branch, replacing the one in this slot."""
        self._branches.pop(slot, None)
        await self._offload(self._replica.store.branches.drop, slot)
        branch: Branch = await self._offload(
            Branch, self._replica.history, self._replica.store.branches, slot, common
        )  # in a thread, because the roster of an old tip is read again from the disk
        self._branches[slot] = branch
        return branch

    async def trim(self, *keep: str) -> None:
        """Remove the least recently used branches while there are too many or they are too large.

        Never remove slots in `keep`.
        """
        for slot in keep:
            if slot in self._branches:
                self._branches[slot] = self._branches.pop(slot)
        free = [slot for slot in self._branches if slot not in keep]
        for slot in sorted(free, key=lambda slot: not slot.startswith(STRANGER)):
            strangers = sum(other.startswith(STRANGER) for other in self._branches)
            size = sum(branch.size_bytes for other, branch in self._branches.items() if other not in keep)
            crowded = slot.startswith(STRANGER) and strangers > STRANGERS_BRANCHES
            if crowded or len(self._branches) > HELD_BRANCHES or size > HELD_BYTES:
                del self._branches[slot]
                await self._offload(self._replica.store.branches.drop, slot)


# ------------------------------------------------------------------------------------------------------------------------


FOLLOW_AT_ONCE = 4
PATIENCE_S = 15.0
"""Seconds that a peer waits for a known peer's branch before it begins a round on its old tip."""
BEHIND_S = 60.0
"""Seconds without progress that a peer that was away waits for its next move while a member claims to be far ahead."""
PROGRESS_S = 20.0
"""Seconds that such a peer continues to wait after each arrival of checked data."""
OURS = (StoreFailed, TrainerDied, TrainerGaveUp)
"""Failures that are not the fault of the followed peer."""


@dataclass(frozen=True)
class Move:
    """Change of our chain to the first `rounds` rounds of `branch`; the state after them is on disk.

    leader: the peer that showed the branch; our own ID if we only go back.  tip: our tip when the move was found.
    """

    branch: Branch
    rounds: int
    leader: PeerId
    tip: Hash


class Following:
    """Follower of claims, at any time one of a known peer and one of a stranger; it keeps the resulting move."""

    def __init__(self, session: Session, guard: Guard, catch_up: CatchUp, choice: ForkChoice, claims: Claims) -> None:
        self.choice, self._session, self._guard, self._catch_up, self._claims = choice, session, guard, catch_up, claims
        self._replica, self._offload = replica, offload = catch_up.replica, catch_up.offload
        self.chains = RemoteChains(session, replica, offload, Budget(), choice.anchor)
        self._held = BranchCache(replica, offload)
        self._move: Move | None = None
        self._busy: dict[bool, None] = {}
        """Kinds of claimants (known or not) whose claims are being looked at."""
        self._slots: dict[str, None] = {}
        """Slots of branches that are in use."""
        self._chain_in_use = trio.Lock()
        """Held while the records of our chain change, or are compared with a branch in another thread."""
        self._moving = False
        """True while files of records are moved: no look may touch these files."""

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def move(self) -> Move | None:
        """Move to make after leaving the round; None if there is none, and while files of records are moved."""
        if self._moving:
            return None
        move, history = self._move, self._replica.history
        if move is not None and (move.tip != history.tip or move.branch.common < history.final):
            self._move = None  # restored below for the part that remains after our chain changed
            if move.branch.is_rooted and move.leader != self._session.me:
                rounds = min(self._told(self.choice.judge(move.branch, move.leader)).rounds, move.rounds)
                if rounds > move.branch.common:
                    self._move = Move(move.branch, rounds, move.leader, history.tip)
        return self._move

    def wants_back(self) -> bool:
        """Return True if we should give up provisional records; False while files of records are moved."""
        return not self._moving and self.choice.back_to() is not None

    def has_claims(self, *, known: bool | None = None) -> bool:
        """Return True if a peer claims to be ahead and is not disbelieved.

        known: ask for known peers if True, for strangers if False, for both if None.
        """
        if next(self._claims.leading(trio.current_time()), None) is None:
            return False  # the usual case: this is asked four times a second
        return any(self._claims.ahead(known=kind) for kind in ((True, False) if known is None else (known,)))

    def is_promising(self, waited_s: float, *, was_away: bool) -> bool:
        """Return True to wait for the outcome of a look, False to begin a round on our tip.

        waited_s: seconds waited so far.  was_away: see `Activity`; such a peer, or a newcomer, does not begin a round that
        is long over for the others.  Strangers delay only a peer without any record.
        """
        is_new = self._replica.history.length == 0
        progressed_at = max(self.chains.progressed_at, self._catch_up.fetcher.progressed_at)
        is_moving = min(waited_s, trio.current_time() - progressed_at) < BEHIND_S
        if was_away and is_moving and self._claims.is_far_behind():
            return True
        if (True in self._busy or (is_new and self._busy)) and trio.current_time() - progressed_at < PROGRESS_S:
            return True
        if is_new and (self._claims.hopes() or (waited_s < self._replica.rounds.eviction_s and self._held.leaving_at(0))):
            return True  # the run has begun: a peer that has its state may return
        return waited_s < PATIENCE_S and (True in self._busy or self.wants_back() or self.has_claims(known=True))

    # -- looking ------------------------------------------------------------------------------------------------------

    def is_looking(self, *, known: bool) -> bool:
        """Return True if a look at claims of known peers, or of strangers, is under way."""
        return known in self._busy

    async def look(self, *, known: bool) -> None:
        """Look at the claims of known peers, or of strangers, until there is a move; do nothing if a look is under way."""
        if known in self._busy:
            return
        self._busy[known] = None
        try:
            if known and not self._moving and self.move is None:
                await self._prepare_return()
            for peer in self._claims.ahead(known=known)[:FOLLOW_AT_ONCE]:
                if self._moving or self.move is not None:
                    return
                await self._look_at(LookCost(peer, known))
        finally:
            del self._busy[known]

    async def _prepare_return(self) -> None:
        """Prepare a move back from provisional records on which most of their electors, as heard now, do not stand."""
        rounds = self.choice.back_to()
        if rounds is None:
            return
        history = self._replica.history
        branch = Branch(history, self._replica.store.branches, "", rounds)
        reached = await self._catch_up.fetcher.bring(branch, self._catch_up.present(rounds), self._claims.sources())
        if reached == rounds and branch.is_rooted:
            self._move = Move(branch, rounds, self._session.me, history.tip)

    async def _look_at(self, look: LookCost) -> None:
        peer, claims = look.peer, self._claims
        try:
            with self._guard.report(peer, "chain", passing=OURS):
                try:
                    await self._follow(look)
                except Uprooted:
                    pass  # a move has changed our chain meanwhile
                except OverBudget:
                    claims.postpone(peer)  # the peer is not at fault
                except NetworkError as error:
                    self._session.emit(Notice("debug", f"could not follow {short_id(peer)}: {error}"))
                    claims.unanswered(look)
                except Malformed as error:
                    self._session.emit(Dropped(peer, "chain", str(error)))
                    claims.disbelieve(peer)
        except Fault:
            claims.disbelieve(peer)

    async def _follow(self, look: LookCost) -> None:
        """Fetch records, make the fork choice, then fetch the state."""
        common, length = await self.chains.common(look)
        if common == length:
            self._claims.disbelieve(look.peer)
            return
        branch = await self._branch(look, common, length)
        self._slots[branch.slot] = None
        try:
            await self._follow_branch(look, branch, length)
        finally:
            self._slots.pop(branch.slot, None)

    async def _branch(self, look: LookCost, common: int, length: int) -> Branch:
        """Return a branch for the peer's chain: a held branch that the chain contains, else a new one.

        A held branch that loses is not used: the peer may have a certificate for the same record with which it wins.
        """
        for held in self._held.leaving_at(common):
            if await self.chains.shares(look, held, length):
                choice = await self._judge(held, look.peer, length)
                if (not choice.lost or held.length < length) and held.slot not in self._in_use():
                    await self._held.trim(held.slot, *self._in_use())
                    return held
        is_elector = look.peer in self._replica.history.roster.electorate.electors
        slot = look.peer if is_elector else MEMBERS if look.known else STRANGER + look.peer
        if slot in self._in_use():
            raise OverBudget("its branch would replace a branch that is being looked at")
        branch = await self._held.begin(slot, common)
        await self._held.trim(slot, *self._in_use())
        return branch

    async def _judge(self, branch: Branch, peer: PeerId, length: int) -> Choice:
        """Return the part of a branch that we adopt.  length: the length of the peer's chain, in rounds."""
        judge = partial(self.choice.judge, branch, peer, is_whole=branch.length >= length)
        async with self._chain_in_use:
            choice: Choice = await self._offload(judge)
        return self._told(choice)

    def _told(self, choice: Choice) -> Choice:
        """Emit the events of a choice and return the choice."""
        for event in choice.news:
            self._session.emit(event)
        return choice

    def _in_use(self) -> list[str]:
        """Return the slots of branches that are in use, or about to be adopted."""
        return [*self._slots, *([self._move.branch.slot] if self._move is not None else [])]

    async def _follow_branch(self, look: LookCost, branch: Branch, length: int) -> None:
        peer, claims = look.peer, self._claims
        await self.chains.begin(look, branch, length)
        choice = await self._judge(branch, peer, length)
        if not choice.lost:
            await self.chains.extend(look, branch, length)
            choice = await self._judge(branch, peer, length)
        if choice.lost:
            claims.disbelieve(peer)
            return
        if choice.rounds <= branch.common:
            claims.postpone(peer)
            return
        self.chains.repay(look)
        present = self._catch_up.present(branch.common)
        rounds = await self._catch_up.fetcher.bring(Upto(branch, choice.rounds), present, claims.sources(peer))
        is_fork = branch.is_rooted and branch.common < self._replica.history.length
        if rounds is None or not branch.is_rooted or rounds <= branch.common or (is_fork and rounds < choice.rounds):
            claims.disbelieve(peer, is_unanswered=True)
            return
        claims.believe(peer)
        self._move = Move(branch, rounds, peer, self._replica.history.tip)

    # -- moving -------------------------------------------------------------------------------------------------------

    async def take(self, move: Move) -> bool:
        """Make the move; return True if our chain and our state have changed accordingly.

        Otherwise our chain is as before, and the caller has to restore the state.  Raises `WrongState` for a false state.
        """
        history, was = self._replica.history, self._replica.history.tip
        slots = (move.branch.slot, was.hex())
        self._move, self._moving, taken = None, True, False
        self._slots |= dict.fromkeys(slots)
        try:
            async with self._chain_in_use:
                taken = await self._catch_up.take(move.branch, move.rounds, move.leader)
            if not taken:
                self._claims.disbelieve(move.leader)
        except WrongState:
            self._claims.false_state(move.leader)
            raise
        finally:
            with trio.CancelScope(shield=True):
                for slot in slots:
                    await self._held.note(slot)
                    self._slots.pop(slot, None)
            self._moving = False
        await self._held.trim(was.hex(), *self._in_use())
        await self._offload(self._replica.prune)
        anchor = self.chains.anchor
        if taken and anchor is not None and anchor.holds(history):
            await self._offload(self._replica.store.choose, anchor)
        return taken

    async def load(self) -> None:
        """Load the branches from before a restart; call this before the first look."""
        await self._held.load()


@dataclass(frozen=True)
class Upto:
    """The first `length` rounds of a branch, as a chain."""

    branch: Branch
    length: int

    def tip_at(self, rounds: int) -> Hash:
        """Return the tip after `rounds` rounds."""
        return self.branch.tip_at(rounds)

    def commit_at(self, round: int) -> Commit:
        """Return the commit of a round."""
        return self.branch.commit_at(round)
