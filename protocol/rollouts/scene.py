"""What a peer knows besides the batches: the chain, who lives, and whom it believes."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.events.events import BatchDecided, BatchJudged, Event, RolloutPeerSetAside, ValidatorSetAside
from protocol.rollouts.batch import Batch, Bytes, Dealt, Decision, Opinion, found_in
from protocol.rollouts.dealing import is_for, order_of, places_of, some_of, trainer_of
from protocol.rollouts.happenings import Discard, Judge, Moved, PoolEffect, Tell
from protocol.rollouts.standing import Standing
from protocol.run.rl_section import RlSection
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import CODES, Judgement, Reason, Verdict

# ------------------------------------------------------------------------------------------------------------------------
# Batches, verdicts and decisions as events.


def judged(batch: Batch, validator: PeerId, codes: bytes) -> BatchJudged:
    """What a validator said of a batch."""
    verdicts = [CODES[code][0] for code in codes]
    reasons = sorted({CODES[code][1].value for code in codes} - {Reason.NONE.value})
    return BatchJudged(
        batch.author,
        batch.body.version,
        batch.body.number,
        batch.root.hex(),
        validator,
        verdicts.count(Verdict.ACCEPT),
        verdicts.count(Verdict.REJECT),
        verdicts.count(Verdict.INCONCLUSIVE),
        reasons,
    )


def decided(batch: Batch, reason: Reason) -> BatchDecided:
    """The final verdict on a batch."""
    assert batch.decision is not None
    body = batch.body
    return BatchDecided(
        batch.author,
        body.version,
        body.number,
        batch.root.hex(),
        batch.decision.value,
        reason.value,
        body.rollouts,
        batch.own is not None,
    )


def set_aside(peer: PeerId, reason: str, role: Role) -> Event:
    """Nothing of this peer is used any more, as what it is."""
    return ValidatorSetAside(peer, reason) if role is Role.VALIDATOR else RolloutPeerSetAside(peer, reason)


# ------------------------------------------------------------------------------------------------------------------------


FIRST_ASKED = 8
"""Validators that a batch is dealt to at most, one after another; there is room for their verdicts in any case."""
PATIENCE = 2
"""Of them, so many may be silent for `judge_s`; then a trainer checks itself."""
MOST_DEALT = 64
"""Validators among whom batches are dealt: keys are free, and a crowd of them is not to cost us time."""
MOST_REDRAWN = 256
"""Deals whose validators are drawn anew between two ticks, as others live now: one that comes and goes without end is not to
cost us time either.  For the others those of before count, of whom nobody waits longer than for one that is silent."""
MOST_OTHERS = 16
"""Verdicts of others on a batch, which may come to be asked, or tell us of ours."""


class Scene:
    """Of one peer.  moved: the newest state.  validators: that live.  kept: tips of the versions that our trainer holds."""

    def __init__(self, me: PeerId, role: Role, rl: RlSection) -> None:
        self.me, self.role, self.rl = me, role, rl
        self.standing = Standing()
        self.moved = Moved(0, {}, {}, ())
        self.validators: frozenset[PeerId] = frozenset()
        self._live: frozenset[PeerId] = frozenset()
        """All validators that live."""
        self._early: frozenset[PeerId] | None = None
        """Those that did when the newest version came; None in the first one of our life."""
        self.kept: Mapping[int, Hash] = {}
        self.accepted_at = 0.0
        """When we accepted a batch last."""
        self._now = 0.0
        self._redraws = MOST_REDRAWN
        self._mute: set[PeerId] = set()
        """Validators that let a turn pass, and have said nothing since: their turn is the next one's, too."""

    def move(self, moved: Moved) -> None:
        """The state is another one."""
        self._early = self._live if self.moved.tips else None
        self.moved = moved

    def tick(self, validators: frozenset[PeerId], kept: Mapping[int, Hash], now: float) -> None:
        """These validators live, and our trainer process holds these versions."""
        self._now = now
        tip = self.moved.tips.get(self.moved.version, Hash(b""))
        late = validators - self._early if self._early is not None else frozenset[PeerId]()
        drawn, self._live = some_of(tip, validators, MOST_DEALT, late), validators
        self.kept, self._redraws = kept, MOST_REDRAWN
        if drawn != self.validators:
            self.validators = drawn
        self._mute &= self.validators

    # -- looking ------------------------------------------------------------------------------------------------------

    def is_mine(self, batch: Batch) -> bool:
        """Whether we are a trainer that the batch is for."""
        return self.role is Role.TRAINER and self.is_ours(batch.body.version, batch.lot)

    def is_ours(self, version: int, lot: Hash) -> bool:
        """Whether a batch of this version with this lot is for us, as a trainer."""
        trainers = self.moved.trainers.get(version)
        return trainers is not None and is_for(lot, self.me, trainers)

    def trainer_of(self, batch: Batch) -> PeerId | None:
        """The member of its version's record that a batch is for; None where there is none, or it is not known here."""
        return trainer_of(batch.lot, self.moved.trainers.get(batch.body.version, ()))

    def turn(self, batch: Batch, dealt: Dealt, now: float) -> tuple[list[PeerId], bool]:
        """The validators whose turn has come, in order, and whether to wait for others that follow them."""
        order, waited = self._order(batch, dealt), int((now - dealt.at) // self.rl.judge_s)
        passed = places_of(dealt.beacon) + waited - 1 if waited else 0
        self._mute.update(peer for peer in order[:passed] if peer not in batch.judgements and peer != self.me)
        turn: list[PeerId] = []
        lacking = places_of(dealt.beacon)
        for peer in order:
            if not lacking:
                break
            turn.append(peer)
            lacking -= not self._is_no_help(batch, peer)
        dealt.turn = tuple(turn)
        return turn, len(turn) < len(order) and waited < PATIENCE

    def _is_no_help(self, batch: Batch, peer: PeerId) -> bool:
        if peer in batch.judgements:
            return opinion_in(batch, peer) is Opinion.UNSURE
        return peer in self._mute

    def _order(self, batch: Batch, dealt: Dealt) -> tuple[PeerId, ...]:
        """Those of a deal that may be asked."""
        if dealt.among is None or (dealt.among is not self.validators and self._redraws > 0):
            self._redraws -= dealt.among is not None
            validators = self.validators - {batch.author}
            dealt.early = dealt.early if dealt.among is not None else validators
            late = validators - dealt.early
            dealt.order = tuple(order_of(dealt.beacon, batch.root, validators, FIRST_ASKED, late))
            dealt.among = self.validators
        return dealt.order

    def note_voice(self, validator: PeerId) -> None:
        """A validator said something about a batch."""
        self._mute.discard(validator)

    def is_heard(self, batch: Batch, judge: PeerId) -> bool:
        """Whether there is room for what this peer says of a batch: electors and those that are dealt it first find some."""
        if judge in batch.judgements or judge == batch.author:
            return False
        asked = {*self.moved.electors}
        for dealt in batch.deals.values():
            asked.update(self._order(batch, dealt))
        others = sum(peer not in asked for peer in batch.judgements)
        if judge in asked:
            return True
        return others < MOST_OTHERS and (judge in self.validators or batch.author == self.me)

    def lacks_tip(self, batch: Batch) -> bool:
        """Whether its version is ahead of our state."""
        return batch.body.version not in self.moved.tips

    def is_checkable(self, batch: Batch) -> bool:
        """Whether our trainer process has its version, and our chain, which may have gone back before it for now."""
        version, tip = batch.body.version, batch.body.tip
        return self.kept.get(version) == tip and self.moved.tips.get(version) == tip

    # -- what follows from a verdict ----------------------------------------------------------------------------------

    def decide(self, batch: Batch, decision: Decision, reason: Reason = Reason.NONE) -> list[PoolEffect]:
        """The one verdict on a batch; a later one changes nothing.  The bytes stay where it is accepted."""
        if batch.decision is not None:
            return []
        batch.decision, batch.wanted = decision, False
        if decision is Decision.ACCEPTED:
            self.accepted_at = self._now
        is_for_us = batch.led or (batch.author == self.me and not batch.judgements)
        told: list[PoolEffect] = [Tell(decided(batch, reason))] if is_for_us else []
        return told if decision is Decision.ACCEPTED else [*told, *discard(batch)]

    def say(self, batch: Batch, codes: bytes) -> list[PoolEffect]:
        """Our verdicts, to everybody."""
        batch.own, batch.wanted = codes, False
        batch.judgements[self.me] = found_in(codes, batch.scores)
        said = Judgement(author=batch.author, root=batch.root, codes=codes, scores=batch.scores)
        return [Judge(said), Tell(judged(batch, self.me, codes)), *self.accuse(batch)]

    def accuse(self, batch: Batch) -> list[PoolEffect]:
        """Set its maker aside where enough electors came to the same as validators that rejected the batch."""
        bad = [peer for peer in batch.judgements if opinion_in(batch, peer) is Opinion.BAD]
        if batch.author == self.me or len(bad) < 2:
            return []
        if not self.standing.reproduced(batch.author, bad, frozenset(self.moved.electors)):
            return []
        return self.set_aside(batch.author, f"several peers found: {batch.judgements[bad[0]].reason.value}")

    def set_aside(self, peer: PeerId, reason: str, role: Role = Role.ROLLOUT) -> list[PoolEffect]:
        """Use nothing of this peer any more."""
        return [Tell(set_aside(peer, reason, role))] if self.standing.set_aside(peer, reason) else []


def opinion_in(batch: Batch, validator: PeerId) -> Opinion | None:
    """What a validator said of a batch; None where it said nothing."""
    found = batch.judgements.get(validator)
    return found.opinion if found is not None else None


def discard(batch: Batch) -> list[PoolEffect]:
    """Its bytes are not needed any more; those that are on their way have no place among the fetches from now on."""
    if batch.bytes_ not in (Bytes.COMING, Bytes.HERE):
        return []
    batch.bytes_ = Bytes.GONE
    return [Discard(batch.root)]
