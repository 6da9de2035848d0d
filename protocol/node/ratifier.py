"""Ratification, beside the rounds: makes the provisional records of our chain full.

It starts with the first provisional record, for final records are a prefix of the chain.  We vote for a record that is
settled for us and on which a full one stands.  From then on we go back before it only for a full record: an elector that
went back otherwise could say nothing there any more, and too many of them would leave that tip without a quorum.

The votes are asked for, not told: a peer that lacks some asks another one every few seconds and gets all that it knows.
"""

from __future__ import annotations

from typing import Protocol

import trio

from protocol.agreement.ballot import RATIFYING
from protocol.agreement.ratification import Tally, has_ratified, objection_to_ratify, ratify
from protocol.chain.records import is_full, record_hash, verify_quorum
from protocol.chain.replica import Replica
from protocol.chain.store import NEVER
from protocol.events.events import RecordRatified
from protocol.node.rounds import read_voter_state
from protocol.offload import Offload
from protocol.sync.claims import Settled
from protocol.transport.handlers import Guard, answers
from protocol.transport.interface import NetworkError, Refused, Session
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Signature, Step, Vote
from protocol.wire.questions import RatificationRequest

EVERY_S = 5.0
"""Seconds between two questions to others."""
ANSWER_S = 5.0


class OurChain(Protocol):
    """Interface that changes our chain and knows how far it is settled (`protocol.sync.following.Following`)."""

    settled: Settled

    async def strengthen(self, round: int, certificate: Certificate) -> None:
        """Make a provisional record full with this certificate, which is already verified."""
        ...


class Ratifier:
    """Votes, collects votes and answers for one node.

    changing: held while the chain changes.  We hold it to vote: otherwise the chain could go back to the tip on which the
    record stands, and a round there would not know of the vote.
    is_copy: the data directory was copied or put back.  Nothing is ratified until the rounds vote again, and an earlier
    record never: our statements there may be missing.
    """

    def __init__(
        self,
        session: Session,
        guard: Guard,
        replica: Replica,
        offload: Offload,
        chain: OurChain,
        changing: trio.Lock,
        *,
        is_copy: bool,
    ) -> None:
        self._session, self._guard, self._replica = session, guard, replica
        self._offload, self._chain, self._changing, self._is_copy = offload, chain, changing, is_copy
        self._tally: Tally | None = None
        """Votes for the first provisional record."""
        self._asked = 0

    async def load(self) -> None:
        """Recall the records that we ratified in an earlier life: they still bind us."""
        history, votes = self._replica.history, self._replica.store.votes
        if self._is_copy:
            await self._offload(votes.set_complete_from, NEVER)
        for round in history.provisional:
            kept = read_voter_state(await self._offload(votes.load, round, history.tip_at(round)))
            if kept is not None and has_ratified(kept) and kept.second == history.tip_at(round + 1):
                self._chain.settled.bind(round + 1)

    async def run(self) -> None:
        """Vote, ask for votes and make records full, until cancelled."""
        while True:
            async with self._changing:
                tally = self._tally = self._current()
                if tally is not None:
                    await self._vote(tally)
            found = tally.certificate if tally is not None and tally.is_enough else None
            if tally is None or (found is None and (found := await self._ask(tally)) is None):
                await trio.sleep(EVERY_S)
            else:
                await self._strengthen(tally, found)

    async def _strengthen(self, tally: Tally, certificate: Certificate) -> None:
        """Put a full certificate in place of the provisional one, if the record is still in our chain."""
        round = tally.base.round
        async with self._changing:
            current = self._current()
            if current is None or current.record != tally.record:
                return
            await self._chain.strengthen(round, certificate)
        self._session.emit(RecordRatified(round, tally.record.hex(), self._replica.history.final))

    def _current(self) -> Tally | None:
        """Return the votes for the first provisional record of our chain; None if there is none or nobody can ratify it."""
        history = self._replica.history
        first = next(iter(history.provisional), None)
        if first is None:
            return None
        base, record = history.base_at(first, history.tip_at(first)), history.tip_at(first + 1)
        if base is None or not base.electors:
            return None
        known = self._tally
        same = known is not None and (known.record, known.base.tip) == (record, base.tip)
        return known if same else Tally(self._session.run, base, record)

    # -- our own vote -------------------------------------------------------------------------------------------------

    async def _vote(self, tally: Tally) -> None:
        """Vote for a settled record on which a full one stands, if we are an elector and no earlier statement forbids it.

        The vote is on disk before anybody can ask for it.  If our earlier statements there may be lost, we say nothing.
        """
        me, base, votes, settled = self._session.me, tally.base, self._replica.store.votes, self._chain.settled
        if me not in base.electors:
            return
        if tally.has(me):
            settled.bind(base.round + 1)  # our chain may have been another one meanwhile
            return
        kept = read_voter_state(await self._offload(votes.load, base.round, base.tip))
        is_bound = kept is not None and has_ratified(kept) and kept.second == tally.record
        if not is_bound and (base.round >= settled.rounds or not self._is_built_upon(base.round)):
            return
        if base.round < await self._offload(votes.complete_from):
            return
        if kept is None and await self._offload(votes.has_lost, base.round, base.tip):
            return
        if objection_to_ratify(kept, tally.record) is not None:
            return
        bound, vote = ratify(kept, base, tally.record)
        if bound != kept:
            await self._offload(votes.save, base.round, base.tip, bound.encode())
            self._session.emit(RecordRatified(base.round, tally.record.hex(), self._replica.history.final))
        settled.bind(base.round + 1)
        tally.add([Signature(peer=me, signature=self._session.seal(vote).signature)])

    def _is_built_upon(self, round: int) -> bool:
        """Return True if a full record stands on the record of this round, in our chain."""
        history = self._replica.history
        return history.length - 1 - round > sum(other > round for other in history.provisional)

    # -- the votes of others ------------------------------------------------------------------------------------------

    async def _ask(self, tally: Tally) -> Certificate | None:
        """Ask the next neighbour for votes; return a full certificate, if there is one now.

        The questions go in turns to any neighbour and to an elector whose vote we lack.
        """
        peers = sorted(self._session.network.connected())
        if not peers:
            return None
        self._asked += 1
        lacking = [peer for peer in peers if peer in tally.base.electors and not tally.has(peer)]
        chosen = lacking if lacking and self._asked % 2 else peers
        peer = chosen[self._asked // 2 % len(chosen)]
        with self._guard.watch(peer, "ratification"):
            question = RatificationRequest(round=tally.base.round, record_hash=tally.record)
            try:
                raw = await self._session.network.request(peer, "ratification", question.encode(), timeout_s=ANSWER_S)
                return self._take(tally, decode_body(Certificate, raw))
            except (NetworkError, Malformed):
                return None  # the peer knows nothing of the record, or its answer is useless
        return None

    def _take(self, tally: Tally, shown: Certificate) -> Certificate | None:
        """Take in votes to ratify, or a full certificate of another attempt; return a full certificate, if there is one now.

        Raises `Malformed`.
        """
        if not is_full(shown):
            return None
        if shown.attempt == RATIFYING:
            tally.add(shown.votes)
            return tally.certificate if tally.is_enough else None
        base = tally.base
        vote = Vote(
            round=base.round,
            base=base.tip,
            attempt=shown.attempt,
            step=Step.SECOND,
            absent=[],
            record_hash=tally.record,
        )
        verify_quorum(self._session.run, base, base.electors, vote, shown.votes)
        return shown

    # -- answers to others --------------------------------------------------------------------------------------------

    @answers("ratification", RatificationRequest)
    async def answer(self, peer: PeerId, question: RatificationRequest) -> bytes:
        """Return all votes that we know to ratify a record, or its full certificate.  Raises `Refused`."""
        found = await self._known(question.round, Hash(question.record_hash))
        if found is None:
            raise Refused("no votes for that record here")
        return found.encode()

    async def _known(self, round: int, record: Hash) -> Certificate | None:
        history = self._replica.history
        if self._tally is not None and self._tally.record == record:
            return self._tally.certificate
        if round >= history.length or history.tip_at(round + 1) != record or round in history.provisional:
            return None
        commit: Commit | None = await self._offload(history.kept, round)
        is_ours = commit is not None and record_hash(commit.record) == record
        return commit.certificate if commit is not None and is_ours else None  # our chain may be changing its branch
