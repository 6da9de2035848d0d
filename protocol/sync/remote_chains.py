"""Reader of other peers' chains: the place where they leave ours, and their records from there, verified one by one.

Nothing in an answer is believed; a record is believed for its certificate.  Every answer and every signature check is paid
for from the budget, and paid back for branches that the fork choice accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import trio

from protocol.chain.branch import Branch
from protocol.chain.records import verify_commit
from protocol.chain.replica import Replica
from protocol.events.events import SyncProgress
from protocol.offload import Offload
from protocol.run.invitation import Anchor
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Session
from protocol.wire.body import Body, decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.questions import MAX_COMMITS, MAX_TIPS, CommitsReply, CommitsRequest, TipsReply, TipsRequest

# ------------------------------------------------------------------------------------------------------------------------
# Budget for looking at claims, for all claimants together.
#
# Peer IDs cost nothing, so a limit for each claimant is no limit.  Answers and signature checks are paid from one purse that
# fills up with time.  Electors and members of our chain may empty it; strangers may spend only half of it.  The cost of
# records that the fork choice accepts is paid back, so an honest swarm is followed as fast as the line allows.


BYTES_PER_MINUTE = 32 << 20
CHECKS_PER_MINUTE = 6000
"""Signature checks a minute, which take about half a second of a processor."""


class OverBudget(NetworkError):
    """Refusal to spend more on claims for now."""


@dataclass
class _Purse:
    full: float
    left: float

    def fill(self, seconds: float) -> None:
        self.left = min(self.full, self.left + self.full * seconds / 60)


class Budget:
    """Budget of bytes and signature checks for looking at claims.  `now` is trio time."""

    def __init__(self, now: float) -> None:
        self._filled = now
        self._bytes = _Purse(BYTES_PER_MINUTE, BYTES_PER_MINUTE)
        self._checks = _Purse(CHECKS_PER_MINUTE, CHECKS_PER_MINUTE)

    def allows(self, now: float, *, known: bool) -> bool:
        """Return True if a look may begin or continue.  known: the claimant is an elector or a member of our chain."""
        seconds, self._filled = now - self._filled, now
        purses = (self._bytes, self._checks)
        for purse in purses:
            purse.fill(seconds)
        return all(purse.left > (0 if known else purse.full / 2) for purse in purses)

    def pay(self, size_bytes: int, checks: int) -> None:
        """Pay for answers of `size_bytes`, and for `checks` signature checks."""
        self._bytes.left -= size_bytes
        self._checks.left -= checks

    def repay(self, size_bytes: int, checks: int) -> None:
        """Return a payment for a look whose branch the fork choice accepts."""
        self._bytes.left = min(self._bytes.full, self._bytes.left + size_bytes)
        self._checks.left = min(self._checks.full, self._checks.left + checks)


# ------------------------------------------------------------------------------------------------------------------------


ASK_TIMEOUT_S = 10.0
FORK_BYTES = 64 << 20
"""Most bytes of records in a fork that we look at."""
BEGINNING_BYTES = 512 << 20
"""Most bytes of records from genesis in a run that anybody may begin, since anybody may have made them."""

R = TypeVar("R", bound=Body)


@dataclass
class LookCost:
    """Cost so far of looking at one peer's chain.  known: the peer is an elector or a member of our chain."""

    peer: PeerId
    known: bool
    size_bytes: int = 0
    checks: int = 0


class RemoteChains:
    """Reader of peers' chains over `session`'s network.  Its requests raise `NetworkError` and `Malformed`.

    anchor: the record that our chain has to go through.  progressed_at: when a record was verified last, in trio time.
    """

    def __init__(
        self, session: Session, replica: Replica, offload: Offload, budget: Budget, anchor: Anchor | None = None
    ) -> None:
        self._session, self._replica, self._offload, self._budget = session, replica, offload, budget
        self.anchor = anchor
        self.progressed_at = -1e9

    async def common(self, look: LookCost) -> tuple[int, int]:
        """Return (rounds both chains share, length of theirs).  Looks back in windows that double."""
        window = 64
        while True:
            length = self._replica.history.length
            start = max(0, length - window + 1)
            reply = await self._tips(look, start, min(window * 2, MAX_TIPS))
            if reply.length < start:
                start = max(0, reply.length - window + 1)
                reply = await self._tips(look, start, window)
            mine = self._replica.history.tips(start, len(reply.tips))
            shared = sum(1 for ours, theirs in zip(mine, reply.tips, strict=False) if ours == theirs)
            if shared or start == 0:
                if not shared:
                    raise Malformed("a chain that begins at another genesis")
                if self.anchor is not None and reply.length < self.anchor.rounds:
                    raise NetworkError("its chain does not reach the record that our invitation names")
                return start + shared - 1, reply.length
            window *= 2

    async def shares(self, look: LookCost, branch: Branch, length: int) -> bool:
        """Return True if their chain, of this length, goes through the tip of `branch`, or ends on it."""
        rounds = min(branch.length, length)
        reply = await self._tips(look, rounds, 1)
        return reply.tips == [branch.tip_at(rounds)]

    async def _tips(self, look: LookCost, start: int, count: int) -> TipsReply:
        return await self._ask(look, "tips", TipsRequest(start=start, count=count), TipsReply)

    async def begin(self, look: LookCost, branch: Branch, length: int) -> None:
        """Append the records that the fork choice needs."""
        await self.extend(look, branch, self._needed(branch, length))

    def is_judgeable(self, branch: Branch, length: int) -> bool:
        """Return True if the branch, of a chain of `length` rounds, has all records that the fork choice needs."""
        return branch.length >= self._needed(branch, length)

    def _needed(self, branch: Branch, length: int) -> int:
        """Return the rounds up to the first record that differs, or to our invitation's record if our chain lacks that."""
        anchor = self.anchor
        named = anchor.rounds if anchor is not None and not anchor.holds(self._replica.history) else 0
        return min(max(branch.common + 1, named), length)

    async def extend(self, look: LookCost, branch: Branch, length: int) -> None:
        """Append their records up to `length` to the branch, which their chain goes through."""
        self._check_anchor(branch)
        while branch.length < length:
            for commit in await self._commits(look, branch.length, length - branch.length):
                self._pay(look, 0, len(commit.record.members) + len(commit.certificate.votes))
                await self._offload(verify_commit, self._replica.rounds, commit, branch.base)
                await self._offload(branch.append, commit)
                self._check_anchor(branch)
                self.progressed_at = trio.current_time()
            if branch.size_bytes > self._most_bytes(branch):
                raise Malformed("a branch of more records than we look at")
            self._session.emit(SyncProgress(branch.length, length))

    def _check_anchor(self, branch: Branch) -> None:
        anchor = self.anchor
        if anchor is not None and branch.length >= anchor.rounds and not anchor.holds(branch):
            raise Malformed("a history without the record that our invitation names")

    def _most_bytes(self, branch: Branch) -> float:
        if branch.start < self._replica.history.length:
            return FORK_BYTES if self.anchor is None or self.anchor.holds(self._replica.history) else BEGINNING_BYTES
        is_anyones = branch.start == 0 and self._replica.rounds.founders is None
        return BEGINNING_BYTES if is_anyones else float("inf")

    async def _commits(self, look: LookCost, start: int, count: int) -> list[Commit]:
        question = CommitsRequest(start=start, count=min(count, MAX_COMMITS))
        reply = await self._ask(look, "commits", question, CommitsReply)
        if not reply.commits:
            raise Malformed("a peer without the records it announced")
        return [await self._offload(decode_body, Commit, raw) for raw in reply.commits[:count]]

    async def _ask(self, look: LookCost, kind: str, question: Body, reply: type[R]) -> R:
        if not self._budget.allows(trio.current_time(), known=look.known):
            raise OverBudget("claims have cost enough for now")
        answer = await self._session.network.request(look.peer, kind, question.encode(), timeout_s=ASK_TIMEOUT_S)
        self._pay(look, len(answer), 0)
        return decode_body(reply, answer, max_bytes=MAX_REQUEST_BYTES)

    def _pay(self, look: LookCost, size_bytes: int, checks: int) -> None:
        look.size_bytes += size_bytes
        look.checks += checks
        self._budget.pay(size_bytes, checks)

    def repay(self, look: LookCost) -> None:
        """Pay back the cost of a look so far: the fork choice accepts its branch."""
        self._budget.repay(look.size_bytes, look.checks)
        look.size_bytes = look.checks = 0
