"""Treatment of batches by each role, and its context at one peer: the chain, the live validators, and the trust in peers.

This module is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from protocol.events.events import BatchDecided, BatchJudged, RolloutPeerSetAside, ValidatorSetAside
from protocol.rollouts.batch import (
    WITHHELD,
    BatchDeal,
    BytesLocation,
    Decision,
    Opinion,
    PooledBatch,
    found_in,
    is_for,
    opinion_of,
    order_of,
    places_of,
    reason_of,
    some_of,
    trainer_of,
)
from protocol.rollouts.events import (
    CompareScores,
    DiscardBytes,
    EmitEvent,
    GossipDeal,
    GossipVerdicts,
    PoolEffect,
    TipChanged,
)
from protocol.rollouts.trust import TrustScores
from protocol.run.sections import RlSection
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, UNSCORED, Judgement, Reason, Verdict

# ------------------------------------------------------------------------------------------------------------------------
# Batches, verdicts and decisions as events.


def judged(batch: PooledBatch, validator: PeerId, codes: bytes) -> BatchJudged:
    """Return the event for a validator's judgement of a batch."""
    verdicts = [CODES[code][0] for code in codes]
    good, bad, unsure = map(verdicts.count, (Verdict.ACCEPT, Verdict.REJECT, Verdict.INCONCLUSIVE))
    reasons = sorted({CODES[code][1].value for code in codes} - {Reason.NONE.value})
    what = (batch.author, batch.body.version, batch.body.number, batch.root.hex())
    return BatchJudged(*what, validator, good, bad, unsure, reasons)


# ------------------------------------------------------------------------------------------------------------------------


FIRST_ASKED = 8
"""Most validators to which a batch is dealt, one after another; their verdicts are always accepted."""
PATIENCE = 2
"""Number of silent validators for which a trainer waits, `judge_s` each, before it checks a batch itself."""
MOST_DEALT = 64
"""Most validators among which batches are dealt: keys are free, and a crowd of keys must not cost us time."""
MOST_REDRAWN = 256
"""Most deals whose validators are drawn anew between two ticks because the live validators changed.  A validator that keeps
joining and leaving must not cost us time either.  Further deals keep their validators; we wait for each of these validators
no longer than for a silent one."""
MOST_OTHERS = 16
"""Most verdicts on a batch from validators that were not asked.  We keep some, because a validator may be asked later, or
may have judged our own batch."""


class PoolContext:
    """Context of one peer's batches.

    moved: the newest state.  validators: the live validators among which batches are dealt.  kept: tips of the versions that
    our trainer process holds.
    """

    def __init__(self, me: PeerId, role: Role, rl: RlSection) -> None:
        self.me, self.role, self.rl = me, role, rl
        self.trust = TrustScores()
        self.moved = TipChanged(0, {}, {}, ())
        self.validators: frozenset[PeerId] = frozenset()
        self._live: frozenset[PeerId] = frozenset()
        """All live validators."""
        self._early: frozenset[PeerId] | None = None
        """Validators that were alive when the newest version came; None in the first version after our start."""
        self.kept: Mapping[int, Hash] = {}
        self.accepted_at = 0.0
        """Time at which we last accepted a batch."""
        self._now = 0.0
        self._redraws = MOST_REDRAWN
        self._mute: set[PeerId] = set()
        """Validators that missed a turn and have stated nothing since; the next validator is asked at the same time."""

    def move(self, moved: TipChanged) -> None:
        """Note a change to another state."""
        self._early = self._live if self.moved.tips else None
        self.moved = moved

    def tick(self, validators: frozenset[PeerId], kept: Mapping[int, Hash], now: float) -> None:
        """Note the live validators and the versions that our trainer process holds."""
        self._now = now
        tip = self.moved.tips.get(self.moved.version, Hash(b""))
        late = validators - self._early if self._early is not None else frozenset[PeerId]()
        drawn, self._live = some_of(tip, validators, MOST_DEALT, late), validators
        self.kept, self._redraws = kept, MOST_REDRAWN
        if drawn != self.validators:  # otherwise it stays the same object, by which deals know that nothing changed
            self.validators = drawn
        self._mute &= self.validators

    # -- looking ------------------------------------------------------------------------------------------------------

    def is_mine(self, batch: PooledBatch) -> bool:
        """Return True if we are a trainer and the batch is for us."""
        return self.role is Role.TRAINER and self.is_ours(batch.body.version, batch.lot)

    def is_ours(self, version: int, lot: Hash) -> bool:
        """Return True if a batch of this version with this lot is for us, if we are a trainer."""
        trainers = self.moved.trainers.get(version)
        return trainers is not None and is_for(lot, self.me, trainers)

    def trainer_of(self, batch: PooledBatch) -> PeerId | None:
        """Return the trainer, in the version's record, of a batch; None without a trainer or a known record."""
        return trainer_of(batch.lot, self.moved.trainers.get(batch.body.version, ()))

    def turn(self, batch: PooledBatch, dealt: BatchDeal, now: float) -> tuple[list[PeerId], bool]:
        """Return (validators whose turn has come, in order; True if we still wait for validators after them)."""
        order, waited = self._order(batch, dealt), int((now - dealt.at) // self.rl.judge_s)
        passed = places_of(dealt.beacon) + waited - 1 if waited else 0
        self._mute.update(peer for peer in order[:passed] if peer not in batch.judgements and peer != self.me)
        turn: list[PeerId] = []
        lacking = places_of(dealt.beacon)
        for peer in order:
            if not lacking:
                break
            turn.append(peer)
            is_no_help = opinion_in(batch, peer) is Opinion.UNSURE if peer in batch.judgements else peer in self._mute
            lacking -= not is_no_help
        dealt.turn = tuple(turn)
        return turn, len(turn) < len(order) and waited < PATIENCE

    def _order(self, batch: PooledBatch, dealt: BatchDeal) -> tuple[PeerId, ...]:
        """Return the validators of a deal that may be asked; draw them anew if the live validators changed."""
        if dealt.among is None or (dealt.among is not self.validators and self._redraws > 0):
            self._redraws -= dealt.among is not None
            validators = self.validators - {batch.author}
            dealt.early = dealt.early if dealt.among is not None else validators
            late = validators - dealt.early
            dealt.order = tuple(order_of(dealt.beacon, batch.root, validators, FIRST_ASKED, late))
            dealt.among = self.validators
        return dealt.order

    def note_voice(self, validator: PeerId) -> None:
        """Note that a validator has judged a batch."""
        self._mute.discard(validator)

    def is_heard(self, batch: PooledBatch, judge: PeerId) -> bool:
        """Return True if we accept this peer's verdicts on a batch.

        The verdicts of electors, and of the validators to which the batch is dealt, are always accepted.
        """
        if judge in batch.judgements or judge == batch.author:
            return False
        asked = {*self.moved.electors}
        for dealt in batch.deals.values():
            asked.update(self._order(batch, dealt))
        others = sum(peer not in asked for peer in batch.judgements)
        if judge in asked:
            return True
        return others < MOST_OTHERS and (judge in self.validators or batch.author == self.me)

    def is_checkable(self, batch: PooledBatch) -> bool:
        """Return True if our trainer process and our chain both have the batch's version; the chain may have gone back."""
        version, tip = batch.body.version, batch.body.tip
        return self.kept.get(version) == tip and self.moved.tips.get(version) == tip

    # -- consequences of a verdict ------------------------------------------------------------------------------------

    def decide(self, batch: PooledBatch, decision: Decision, reason: Reason = Reason.NONE) -> list[PoolEffect]:
        """Decide on a batch; only the first decision counts.  The bytes of an accepted batch are kept."""
        if batch.decision is not None:
            return []
        batch.decision, batch.wanted = decision, False
        if decision is Decision.ACCEPTED:
            self.accepted_at = self._now
        told: list[PoolEffect] = []
        if batch.led or (batch.author == self.me and not batch.judgements):
            body, checked = batch.body, batch.own is not None
            what = (batch.author, body.version, body.number, batch.root.hex())
            told = [EmitEvent(BatchDecided(*what, decision.value, reason.value, body.rollouts, checked))]
        return told if decision is Decision.ACCEPTED else [*told, *discard(batch)]

    def say(self, batch: PooledBatch, codes: bytes) -> list[PoolEffect]:
        """State our verdicts on a batch to all peers."""
        batch.own, batch.wanted = codes, False
        batch.judgements[self.me] = found_in(codes, batch.scores)
        said = Judgement(author=batch.author, root=batch.root, codes=codes, scores=batch.scores)
        return [GossipVerdicts(said), EmitEvent(judged(batch, self.me, codes)), *self.accuse(batch)]

    def accuse(self, batch: PooledBatch) -> list[PoolEffect]:
        """Set the batch's maker aside if enough electors have rejected its batches as other peers have."""
        bad = [peer for peer in batch.judgements if opinion_in(batch, peer) is Opinion.BAD]
        if batch.author == self.me or len(bad) < 2:
            return []
        if not self.trust.reproduced(batch.author, bad, frozenset(self.moved.electors)):
            return []
        return self.set_aside(batch.author, f"several peers found: {batch.judgements[bad[0]].reason.value}")

    def set_aside(self, peer: PeerId, reason: str, role: Role = Role.ROLLOUT) -> list[PoolEffect]:
        """Set a peer aside: its batches and verdicts are no longer used."""
        told = ValidatorSetAside if role is Role.VALIDATOR else RolloutPeerSetAside
        return [EmitEvent(told(peer, reason))] if self.trust.set_aside(peer, reason) else []


def opinion_in(batch: PooledBatch, validator: PeerId) -> Opinion | None:
    """Return a validator's opinion of a batch; None if it has not judged the batch."""
    found = batch.judgements.get(validator)
    return found.opinion if found is not None else None


def discard(batch: PooledBatch) -> list[PoolEffect]:
    """Discard the bytes of a batch; a fetch under way frees its place at once."""
    if batch.bytes_ not in (BytesLocation.COMING, BytesLocation.HERE):
        return []
    batch.bytes_ = BytesLocation.GONE
    return [DiscardBytes(batch.root)]


# ------------------------------------------------------------------------------------------------------------------------
# Treatment of a batch by a validator, and by the trainer of the batch.  This part is pure.
#
# A trainer makes one final decision on a batch:
#
# * Accepted: every validator to which the batch is dealt has accepted all of its rollouts, and so has our own check, if one
#   was drawn.
# * Rejected: our own check rejected a rollout, or we could not get the bytes.  We check each rejection by a validator:
#   honest peers make no such rollout, so either the maker or the validator has lied.
# * Stale: the batch was neither accepted nor rejected while it was young enough, or no check was conclusive.
#
# Our own check replaces validators that are missing, silent or set aside.  It replaces all validators at a trainer that was
# not in the last record, because no validator works for such a trainer yet.


SURE = (Opinion.GOOD, Opinion.BAD)


class RolePolicy:
    """Treatment of another peer's batch before it is decided.  This is the policy of peers that only forward messages."""

    def look(self, batch: PooledBatch, now: float) -> list[PoolEffect]:
        """Return the effects that are due now; set `batch.wanted` if we must check the batch."""
        return []

    def needs_bytes(self, batch: PooledBatch) -> bool:
        """Return True if we must fetch the bytes."""
        return False

    def unavailable(self, batch: PooledBatch) -> list[PoolEffect]:
        """Return the effects if no peer has the bytes."""
        return []

    def checked(self, batch: PooledBatch, codes: bytes) -> list[PoolEffect]:
        """Return the effects of our own verdicts."""
        return []

    def compare(self, batch: PooledBatch, validator: PeerId) -> list[PoolEffect]:
        """Return the effects of comparing another peer's verdicts with our own."""
        return []


class ValidatorPolicy(RolePolicy):
    """Policy of a validator, which verifies the batches dealt to it and states its verdicts."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def look(self, batch: PooledBatch, now: float) -> list[PoolEffect]:
        """Implement `RolePolicy.look`."""
        batch.wanted = batch.own is None and batch.wanted
        for dealt in batch.deals.values() if batch.own is None and not batch.wanted else ():
            turn, _ = self._context.turn(batch, dealt, now)
            said = [peer for peer in turn if opinion_in(batch, peer) in SURE]
            batch.wanted |= self._context.me in turn and len(said) < places_of(dealt.beacon)
        return []

    def needs_bytes(self, batch: PooledBatch) -> bool:
        """Implement `RolePolicy.needs_bytes`."""
        return batch.wanted

    def unavailable(self, batch: PooledBatch) -> list[PoolEffect]:
        """Implement `RolePolicy.unavailable`."""
        return self._context.say(batch, bytes([WITHHELD]) * batch.body.rollouts)

    def checked(self, batch: PooledBatch, codes: bytes) -> list[PoolEffect]:
        """Implement `RolePolicy.checked`."""
        return self._context.say(batch, codes)


class TrainerPolicy(RolePolicy):
    """Policy of a trainer, which deals its batches, receives the verdicts, checks, and decides.

    admits: returns True if it is the turn of a batch that is for us.  draw: maps each root to a number from 0 to 1 that no
    other peer can predict.
    """

    def __init__(
        self, context: PoolContext, admits: Callable[[PooledBatch, float], bool], draw: Callable[[Hash], float]
    ) -> None:
        self._context, self._admits, self._draw = context, admits, draw

    def needs_bytes(self, batch: PooledBatch) -> bool:
        """Implement `RolePolicy.needs_bytes`."""
        return batch.is_due and self._context.is_mine(batch)

    def look(self, batch: PooledBatch, now: float) -> list[PoolEffect]:
        """Implement `RolePolicy.look`."""
        context = self._context
        if not context.is_mine(batch) or batch.own is not None:
            return []
        batch.is_due = batch.is_due or self._admits(batch, now)
        if not batch.is_due:
            return []
        batch.led = True
        dealt = batch.deals.get(context.me)
        if dealt is None:
            if context.validators - {batch.author} and context.trainer_of(batch) == context.me:
                # no validator spends time on a withheld batch
                return [GossipDeal(batch)] if batch.bytes_ is BytesLocation.HERE else []
            batch.wanted = True  # no validator works for us yet, or none is alive
            return []
        turn, more = context.turn(batch, dealt, now)
        said = [peer for peer in turn if opinion_in(batch, peer) in SURE]
        is_bad = any(opinion_in(batch, peer) is Opinion.BAD for peer in said)
        if is_bad or any(context.trust.aside(peer) for peer in turn):
            batch.wanted = True
        elif len(said) >= places_of(dealt.beacon):
            chance = max(map(context.trust.chance, [batch.author, *said]))
            batch.wanted = batch.wanted or self._draw(batch.root) < chance
            if not batch.wanted and batch.bytes_ is BytesLocation.HERE:
                return context.decide(batch, Decision.ACCEPTED)
        elif not more:
            batch.wanted = True  # enough validators have been asked
        return []

    def unavailable(self, batch: PooledBatch) -> list[PoolEffect]:
        """Implement `RolePolicy.unavailable`."""
        batch.is_withheld = True
        self._context.trust.anomaly(batch.author)
        # tells the maker, since we have not dealt the batch
        said = self._context.say(batch, bytes([WITHHELD]) * batch.body.rollouts)
        return [*said, *self._context.decide(batch, Decision.REJECTED, Reason.WITHHELD)]

    def checked(self, batch: PooledBatch, codes: bytes) -> list[PoolEffect]:
        """Implement `RolePolicy.checked`."""
        context, opinion, reason = self._context, opinion_of(codes), reason_of(codes)
        effects = context.say(batch, codes)
        for validator in [*batch.judgements]:
            effects += self.compare(batch, validator)
        dealt = batch.deals.get(context.me)
        for validator in dealt.turn if dealt is not None and opinion in SURE else ():  # others may only repeat verdicts
            if opinion_in(batch, validator) is opinion and not context.trust.aside(validator):
                context.trust.right(validator)
        if opinion is Opinion.GOOD:
            context.trust.right(batch.author)
            return [*effects, *context.decide(batch, Decision.ACCEPTED)]
        if opinion is Opinion.BAD:
            aside = context.set_aside(batch.author, f"a rollout that we checked: {reason.value}")
            return [*effects, *context.decide(batch, Decision.REJECTED, reason), *aside]
        if reason is Reason.NONE:
            return [*effects, *context.decide(batch, Decision.STALE)]
        context.trust.anomaly(batch.author)
        return [*effects, *context.decide(batch, Decision.REJECTED, reason)]

    def compare(self, batch: PooledBatch, validator: PeerId) -> list[PoolEffect]:
        """Set a validator aside if our check contradicts its verdict, or a score that is the same on all computers.

        On other scores honest peers may differ: then the maker or the set of tasks is at fault.
        """
        context = self._context
        if batch.own is None or validator == context.me:
            return []
        ours, theirs = opinion_of(batch.own), opinion_in(batch, validator)
        if ours is Opinion.UNSURE or theirs not in SURE:
            return []
        if ours is not theirs and not batch.sure:
            context.trust.anomaly(validator)
            return []
        if ours is not theirs:
            said = "accepted" if theirs is Opinion.GOOD else "rejected"
            return context.set_aside(validator, f"it {said} rollouts, but our own check contradicts this", Role.VALIDATOR)
        scores = batch.judgements[validator].scores
        if ours is Opinion.BAD or batch.scores is None or scores is None:
            return []
        if any(scores[place] not in (batch.scores[place], UNSCORED) for place in batch.exact):
            return context.set_aside(validator, "its scores for rollouts differ from our own scores", Role.VALIDATOR)
        dealt = batch.deals.get(context.me)
        # of those that were asked only: a crowd of keys could outvote them
        is_asked = dealt is not None and validator in dealt.order[: places_of(dealt.beacon)]
        return [CompareScores(batch, batch.scores, scores)] if is_asked else []
