"""Making the provisional records of our chain full, beside the rounds: from the first one on, for what is final is a prefix.

We vote for one when a full record stands on it: then a quorum of the electors has gone on from it.  The votes are asked for,
not told: whoever lacks some asks another peer every few seconds, and gets all that it knows.
"""

from __future__ import annotations

import trio

from protocol.consensus.ratification import RATIFYING, Tally, objection_to_ratify, ratify
from protocol.events import Notice
from protocol.network.interface import NetworkError, Refused
from protocol.network.session import Session
from protocol.node.guard import Guard
from protocol.node.rounds import kept_on_disk
from protocol.offload import Offload
from protocol.state.chain import is_full, verify_quorum
from protocol.state.replica import Replica
from protocol.state.vote_files import NEVER
from protocol.wire.body import decode_body
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Certificate, Commit, Signature, Step, Vote
from protocol.wire.questions import RatificationRequest

EVERY_S = 5.0
"""Seconds between two questions to others."""
ANSWER_S = 5.0


class Ratifier:
    """Votes, collects votes and answers for one node.

    changing: held while the chain changes.  We vote while it does not: else it could go back to the tip on which the record
    stands, and a round there would not know of the vote.
    is_copy: the data directory was copied or put back.  Until the rounds vote again nothing is ratified, and never a record
    of before: what we said there may be missing.
    """

    def __init__(
        self, session: Session, guard: Guard, replica: Replica, offload: Offload, changing: trio.Lock, *, is_copy: bool
    ) -> None:
        self._session, self._guard, self._replica = session, guard, replica
        self._offload, self._changing, self._is_copy = offload, changing, is_copy
        self._tally: Tally | None = None
        """Of the first provisional record."""
        self._asked = 0

    async def run(self) -> None:
        """Until cancelled."""
        if self._is_copy:
            await self._offload(self._replica.store.votes.set_complete_from, NEVER)
        while True:
            await trio.sleep(EVERY_S)
            async with self._changing:
                tally = self._tally = self._current()
                if tally is not None:
                    await self._vote(tally)
            if tally is not None:
                found = tally.certificate if tally.is_enough else await self._ask(tally)
                if found is not None:
                    await self._strengthen(tally, found)

    async def _strengthen(self, tally: Tally, certificate: Certificate) -> None:
        """Put a full certificate in place of the provisional one, if the record is still in our chain."""
        history = self._replica.history
        async with self._changing:
            current = self._current()
            if current is None or current.record != tally.record:
                return
            await self._offload(history.strengthen, tally.base.round, certificate)
        self._session.emit(Notice("info", f"the electors are back and agree: {history.final} rounds are final now"))

    def _current(self) -> Tally | None:
        """The votes for the first provisional record of our chain; None when there is none, or nobody could ratify it."""
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
        """For a record on which a full one stands, if we are an elector and nothing that we said forbids it.

        It is on disk before anybody can ask for it.  Where it may be lost what we said there, we say nothing.
        """
        me, base, votes = self._session.me, tally.base, self._replica.store.votes
        if me not in base.electors or tally.has(me) or not self._is_built_upon(base.round):
            return
        if base.round < await self._offload(votes.complete_from):
            return
        kept = kept_on_disk(await self._offload(votes.load, base.round, base.tip))
        if kept is None and await self._offload(votes.has_lost, base.round, base.tip):
            return
        if objection_to_ratify(kept, tally.record) is not None:
            return
        bound, vote = ratify(kept, base, tally.record)
        if bound != kept:
            await self._offload(votes.save, base.round, base.tip, bound.encode())
        tally.add([Signature(peer=me, signature=self._session.seal(vote).signature)])

    def _is_built_upon(self, round: int) -> bool:
        """Whether a full record stands on the record of this round, in our chain."""
        history = self._replica.history
        return history.length - 1 - round > sum(other > round for other in history.provisional)

    # -- the votes of others ------------------------------------------------------------------------------------------

    async def _ask(self, tally: Tally) -> Certificate | None:
        """Ask the next of our neighbours, first electors whose vote we lack; a full certificate, if there is one now."""
        peers = sorted(self._session.network.connected())
        peers = [peer for peer in peers if peer in tally.base.electors and not tally.has(peer)] or peers
        if not peers:
            return None
        self._asked += 1
        peer = peers[self._asked % len(peers)]
        with self._guard.watch(peer, "ratification"):
            question = RatificationRequest(round=tally.base.round, record_hash=tally.record)
            try:
                raw = await self._session.network.request(peer, "ratification", question.encode(), timeout_s=ANSWER_S)
                return self._take(tally, decode_body(Certificate, raw))
            except (NetworkError, Malformed):
                return None  # it knows nothing of it, or says nothing of use
        return None

    def _take(self, tally: Tally, shown: Certificate) -> Certificate | None:
        """What another peer knows: votes to ratify, or a full certificate of another attempt.  Raises `Malformed`."""
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

    # -- what others ask ----------------------------------------------------------------------------------------------

    async def answer(self, peer: PeerId, data: bytes) -> bytes:
        """All votes that we know to ratify a record, or its full certificate.  Raises `Refused`."""
        try:
            question = decode_body(RatificationRequest, data)
        except Malformed as error:
            raise Refused(str(error)) from error
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
        commit: Commit = await self._offload(history.commit_at, round)
        return commit.certificate
