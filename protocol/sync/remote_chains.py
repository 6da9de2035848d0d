"""Other peers' chains: peers that claim to be ahead, the points where their chains leave ours, and their verified records.

Nothing in an answer is trusted; a record is trusted because of its certificate.  Every answer and every signature check is
paid for from the budget; the cost is refunded for branches that the fork choice accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf
from typing import TypeVar

import trio

from protocol.bounds import Backoff, BoundedDict
from protocol.chain.history import Branch
from protocol.chain.records import verify_commit
from protocol.chain.replica import Replica
from protocol.events.events import SyncProgress
from protocol.membership.liveness import Liveness, Membership
from protocol.offload import Offload
from protocol.run.invitation import Anchor
from protocol.transport.interface import MAX_REQUEST_BYTES, NetworkError, Session
from protocol.transport.limits import Allowance, TokenBucket
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import Body, decode_body
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit
from protocol.wire.questions import MAX_COMMITS, MAX_TIPS, CommitsReply, CommitsRequest, TipsReply, TipsRequest

# ------------------------------------------------------------------------------------------------------------------------
# Claims of peers to be ahead of us, and the order in which we look at them.
#
# A heartbeat can claim any tip.  A claimant has to show certified records and their state.  If it cannot, or if its branch
# loses, it is disbelieved for a while, longer each time.  We disbelieve the peer, not the tip: any peer can claim the tip of
# an honest peer and show other records, and another peer may have a better certificate for the record.  Electors and members
# of our chain come first.  Strangers follow in the order of their first claims, so that fresh keys stand behind
# older ones.


MAX_REMEMBERED = 1024
"""Most peers remembered as disbelieved, and most peers remembered as claimants."""
DISBELIEF_S = 5.0
MAX_DISBELIEF_S = 600.0
MAX_UNANSWERED_S = 60.0
"""Longest time without a look at a peer that did not answer, or whose verified branch leads to a state that no peer has (s).

It may have told the truth, like a peer on a busy computer.  The limit applies to known peers, and to all peers while we have
no record and know no peer."""
WAIT_S = 2.0
"""Seconds until we look again at a provisional record that we did not adopt: other electors may be heard by then."""
HOPE_S = 30.0
"""Seconds that a newcomer waits for a claimed chain.  It does not wait for a claimant that is disbelieved for this long."""
FALSE_STATE_S = 60.0
"""Seconds without following strangers after a stranger's branch had a false state; doubles each time."""
FAR_ROUNDS = 2
"""Most rounds by which a peer may be behind another one and still train for a round in which it can be a member."""
MAX_SOURCES = 16
MAX_NAMED = 4


class Claims:
    """Comparison of the tips in live peers' heartbeats with our chain."""

    def __init__(self, replica: Replica, membership: Membership) -> None:
        self._replica, self._membership = replica, membership
        self._disbelieved = BoundedDict[PeerId, tuple[float, float]](MAX_REMEMBERED)
        """(Time until which we do not look at a peer, length of that pause); the peer disbelieved last comes last."""
        self._first = BoundedDict[PeerId, int](MAX_REMEMBERED)
        """Places of strangers in the order of their first claims."""
        self._heard = 0
        self._strangers = Backoff(FALSE_STATE_S, MAX_DISBELIEF_S)

    def is_known(self, peer: PeerId) -> bool:
        """Return True if the peer is an elector of our tip, or a member of our chain."""
        history = self._replica.history
        return history.has_member(peer) or peer in history.roster.electorate.electors

    def rounds_of(self, peer: PeerId) -> int:
        """Return the number of rounds that a peer's last heartbeat claims."""
        neighbour = self._membership.get(peer)
        return neighbour.heartbeat.round if neighbour else 0

    def ahead(self, *, known: bool) -> list[PeerId]:
        """Return live, believed peers whose tip is not in our chain, in the order in which to look at them.

        known: return electors and members if True, strangers if False.  Known peers that were never disbelieved come first,
        the most advanced first; the others take turns.  Every other stranger is the one that was disbelieved longest ago, so
        that older keys cannot take all turns either.
        """
        now = trio.current_time()
        if not known and now < self._strangers.until:
            return []
        claimants = sorted(peer for peer in self.leading(now) if self.is_known(peer) is known)
        if known:
            return sorted(claimants, key=lambda peer: (*self._disbelieved.get(peer, (0.0, 0.0)), -self.rounds_of(peer)))
        for peer in claimants:
            if peer not in self._first:
                self._heard += 1
                self._first[peer] = self._heard
        by_age = sorted(claimants, key=lambda peer: self._first.get(peer, self._heard))
        again = sorted((peer for peer in claimants if peer in self._disbelieved), key=lambda peer: self._disbelieved[peer])
        both = (peer for pair in zip_longest(by_age, again) for peer in pair if peer is not None)
        return list(dict.fromkeys(both))

    def leading(self, now: float) -> Iterator[PeerId]:
        """Yield live, believed peers whose tip is not in our chain.  Called four times a second, mostly with no result."""
        history = self._replica.history
        length, tip, alive = history.length, history.tip, Liveness.ALIVE
        for peer, neighbour in self._membership:
            beat = neighbour.heartbeat
            if (beat.round == length and beat.tip == tip) or neighbour.liveness is not alive:
                continue
            if (beat.round == 0 and length > 0) or now < self._disbelieved.get(peer, (0.0, 0.0))[0]:
                continue
            if beat.round > length or history.tip_at(beat.round) != beat.tip:
                yield peer

    def is_far_behind(self) -> bool:
        """Return True if a live member of our chain, believed or not, claims more than `FAR_ROUNDS` rounds beyond ours."""
        length = self._replica.history.length
        ahead = (peer for peer in self._membership.live_peers() if self.rounds_of(peer) > length + FAR_ROUNDS)
        return any(map(self.is_known, ahead))

    def who_has_begun(self) -> list[PeerId]:
        """Return live peers that claim to have records; because of them, a peer without records begins no round.

        A peer that has repeatedly shown nothing does not count, so its claim cannot keep others from beginning a run.
        """
        waits_s = {peer: self._disbelieved.get(peer, (0.0, 0.0))[1] for peer in self._membership.live_peers()}
        return [peer for peer, wait_s in waits_s.items() if self.rounds_of(peer) > 0 and wait_s < HOPE_S]

    def hopes(self) -> bool:
        """Return True if a newcomer without records should still wait for a live peer, even a disbelieved one."""
        return trio.current_time() - self._membership.started <= HOPE_S and bool(self.who_has_begun())

    def sources(self, leader: PeerId | None = None) -> list[PeerId]:
        """Return the sources for results and checkpoints: the leader, then members (strangers if there are no members)."""
        live = self._membership.live_peers()
        first = [peer for peer in live if peer == leader]
        members = [peer for peer in live if peer != leader and self.is_known(peer)]
        others = [] if members else [peer for peer in live if peer != leader]
        return [*first, *members, *others][:MAX_SOURCES]

    def may_hold(self, me: PeerId) -> list[PeerId]:
        """Return the others that may have the results of our chain: heard peers, and the chain's electors and members."""
        roster = self._replica.history.roster
        heard = sorted((peer for peer, _ in self._membership), key=lambda peer: not self._membership.is_live(peer))
        others = dict.fromkeys([*heard, *roster.electorate.electors, *sorted(roster.members)])
        return [peer for peer in others if peer != me]

    def names(self, peers: Sequence[PeerId]) -> str:
        """Return the names of some peers for users, at most `MAX_NAMED`."""
        named = [self._membership.name(peer) for peer in peers[:MAX_NAMED]]
        return ", ".join(named) + (f" and {len(peers) - MAX_NAMED} more" if len(peers) > MAX_NAMED else "")

    # -- outcomes -----------------------------------------------------------------------------------------------------

    def believe(self, peer: PeerId) -> None:
        """Believe a peer again, because it showed the chain that it had claimed."""
        self._disbelieved.pop(peer, None)

    def postpone(self, peer: PeerId) -> None:
        """Look at a peer again after `WAIT_S`, without disbelieving it longer.

        The peer showed records that we do not adopt at the electors' present positions, or more records than we can look at
        now.
        """
        _, wait_s = self._disbelieved.get(peer, (0.0, DISBELIEF_S / 2))
        self._disbelieved.renew(peer, (trio.current_time() + WAIT_S, wait_s))

    def disbelieve(self, peer: PeerId, *, is_unanswered: bool = False) -> None:
        """Ignore a peer's claims for a while, for twice as long as the last time.

        is_unanswered: the peer showed nothing false; it did not answer, or no peer sent us the state of its branch.
        """
        _, wait_s = self._disbelieved.get(peer, (0.0, DISBELIEF_S / 2))
        may_be_busy = is_unanswered and (self.is_known(peer) or self._replica.history.length == 0)
        wait_s = max(wait_s, min(wait_s * 2, MAX_UNANSWERED_S if may_be_busy else MAX_DISBELIEF_S))
        self._disbelieved.renew(peer, (trio.current_time() + wait_s, wait_s))

    def unanswered(self, look: LookCost) -> None:
        """Disbelieve a peer that did not answer, unless this look has verified records of its chain.

        Such a peer told the truth, and others keep it busy; we look again after `WAIT_S`, and go on from those records.
        """
        if look.records:
            self.believe(look.peer)
            self.postpone(look.peer)
        else:
            self.disbelieve(look.peer, is_unanswered=True)

    def false_state(self, leader: PeerId) -> None:
        """Disbelieve a peer whose branch had a false state; if it is a stranger, follow no strangers for a while."""
        self.disbelieve(leader)
        if not self.is_known(leader):
            self._strangers.failed(trio.current_time())


# ------------------------------------------------------------------------------------------------------------------------
# Budget for looking at claims, for all claimants together.
#
# Peer IDs cost nothing, so limits per claimant would be useless.  Answers and signature checks are paid from one budget that
# fills up with time.  Electors and members of our chain may empty it; strangers may spend only a tenth of it.  The cost of
# records that the fork choice accepts is refunded, so an honest swarm is followed as fast as the line allows.


BYTES_PER_MINUTE = 160 << 20
CHECKS_PER_MINUTE = 30_000
"""Signature checks a minute; they take about 2.5 s of processor time.  A night of short rounds takes some minutes."""
STRANGERS_SHARE = 0.1


class OverBudget(NetworkError):
    """Refusal to spend more on claims for now."""


LOOKS = Allowance(CHECKS_PER_MINUTE / 60, BYTES_PER_MINUTE / 60, burst_s=60.0)


class Budget:
    """Budget of bytes and signature checks for looking at claims, full at first.  `now` is trio time."""

    def __init__(self) -> None:
        self._bucket = TokenBucket(LOOKS)

    def allows(self, now: float, *, known: bool) -> bool:
        """Return True if a look may begin or continue.  known: True for electors and members of our chain."""
        return self._bucket.left_s(now) > (0 if known else LOOKS.burst_s * (1 - STRANGERS_SHARE))

    def pay(self, now: float, size_bytes: int, checks: int) -> None:
        """Pay for answers of `size_bytes`, and for `checks` signature checks; negative numbers refund a payment."""
        self._bucket.charge(now, checks, size_bytes)


# ------------------------------------------------------------------------------------------------------------------------
# Records of another peer's chain.


ASK_TIMEOUT_S = 10.0
FORK_BYTES = 64 << 20
"""Most bytes of records that we look at in a stranger's fork."""
BEGINNING_BYTES = 512 << 20
"""Most bytes of records that we look at in a member's fork, or from genesis in a run that any peer may begin."""

R = TypeVar("R", bound=Body)


@dataclass
class LookCost:
    """Cost so far of looking at one peer's chain, and what it has shown.

    known: True if the peer is an elector or a member of our chain.  records: number of records verified.
    """

    peer: PeerId
    known: bool
    size_bytes: int = 0
    checks: int = 0
    records: int = 0


class RemoteChains:
    """Reader of peers' chains over `session`'s network.  Its requests raise `NetworkError` and `Malformed`.

    anchor: the record that our chain must contain.  progressed_at: when a record was last verified, in trio time.
    """

    def __init__(
        self, session: Session, replica: Replica, offload: Offload, budget: Budget, anchor: Anchor | None = None
    ) -> None:
        self._session, self._replica, self._offload, self.budget = session, replica, offload, budget
        self.anchor = anchor
        self.progressed_at = -1e9

    async def common(self, look: LookCost) -> tuple[int, int]:
        """Return (number of rounds that both chains share, length of the peer's chain).

        Looks back in windows that double in size.
        """
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
        """Return True if the peer's chain, of this length, contains the tip of `branch`, or ends on the branch."""
        rounds = min(branch.length, length)
        reply = await self._tips(look, rounds, 1)
        return reply.tips == [branch.tip_at(rounds)]

    async def _tips(self, look: LookCost, start: int, count: int) -> TipsReply:
        return await self._ask(look, "tips", TipsRequest(start=start, count=count), TipsReply)

    async def begin(self, look: LookCost, branch: Branch, length: int) -> None:
        """Append the records that the fork choice needs.

        They include the first record that differs and, if our chain lacks it, the record that our invitation names.
        """
        anchor = self.anchor
        named = anchor.rounds if anchor is not None and not anchor.holds(self._replica.history) else 0
        await self.extend(look, branch, min(max(branch.common + 1, named), length))

    async def extend(self, look: LookCost, branch: Branch, length: int) -> None:
        """Append the peer's records up to `length` to the branch, which the peer's chain contains."""
        self._check_anchor(branch)
        while branch.length < length:
            for commit in await self._commits(look, branch.length, length - branch.length):
                self._pay(look, 0, len(commit.record.members) + len(commit.certificate.votes))
                await self._offload(verify_commit, self._replica.rounds, commit, branch.base)
                await self._offload(branch.append, commit)
                self._check_anchor(branch)
                self.progressed_at = trio.current_time()
                look.records += 1
            if branch.start < self._replica.history.length:
                is_ours = self.anchor is None or self.anchor.holds(self._replica.history)
                most_bytes: float = FORK_BYTES if is_ours and not look.known else BEGINNING_BYTES
            else:
                is_anyones = branch.start == 0 and self._replica.rounds.founders is None
                most_bytes = BEGINNING_BYTES if is_anyones else inf
            if branch.size_bytes > most_bytes:
                raise Malformed("a branch of more records than we look at")
            self._session.emit(SyncProgress(branch.length, length))

    def _check_anchor(self, branch: Branch) -> None:
        anchor = self.anchor
        if anchor is not None and branch.length >= anchor.rounds and not anchor.holds(branch):
            raise Malformed("a history without the record that our invitation names")

    async def _commits(self, look: LookCost, start: int, count: int) -> list[Commit]:
        question = CommitsRequest(start=start, count=min(count, MAX_COMMITS))
        reply = await self._ask(look, "commits", question, CommitsReply)
        if not reply.commits:
            raise Malformed("a peer without the records it announced")
        return [await self._offload(decode_body, Commit, raw) for raw in reply.commits[:count]]

    async def _ask(self, look: LookCost, kind: str, question: Body, reply: type[R]) -> R:
        if not self.budget.allows(trio.current_time(), known=look.known):
            raise OverBudget("claims have cost enough for now")
        answer = await self._session.network.request(look.peer, kind, question.encode(), timeout_s=ASK_TIMEOUT_S)
        self._pay(look, len(answer), 0)
        return decode_body(reply, answer, max_bytes=MAX_REQUEST_BYTES)

    def _pay(self, look: LookCost, size_bytes: int, checks: int) -> None:
        look.size_bytes += size_bytes
        look.checks += checks
        self.budget.pay(trio.current_time(), size_bytes, checks)

    def repay(self, look: LookCost) -> None:
        """Refund the cost of a look so far, because the fork choice has accepted the branch."""
        self._pay(look, -look.size_bytes, -look.checks)
