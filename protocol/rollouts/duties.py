"""What a validator, and a trainer that a batch is for, do with it.  Pure.

A trainer's decision on a batch, once and for all:

* Accepted: every validator that it is dealt to has accepted all of its rollouts, and our own check, if one was drawn, too.
* Rejected: our own check rejected a rollout.  Each rejection by a validator is checked: honest peers make no such rollout,
  and so each is a lie of its maker or of the validator.  Or its bytes are not to be had.
* Stale: none of this while it was young enough, or nobody could tell.

Our own check takes the place of validators that are missing, silent or set aside, and of all of them for a trainer that was
not in the last record, for which nobody works yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from protocol.rollouts.batch import WITHHELD, Batch, Bytes, Decision, Opinion, opinion_of, reason_of
from protocol.rollouts.dealing import places_of
from protocol.rollouts.happenings import Compare, Deal, PoolEffect
from protocol.rollouts.intake import Intake
from protocol.rollouts.scene import Scene, opinion_in
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import UNSCORED, Reason

SURE = (Opinion.GOOD, Opinion.BAD)


class Duty(Protocol):
    """What is done with a batch of another peer, before it is decided."""

    def look(self, batch: Batch, now: float) -> list[PoolEffect]:
        """See what is to be done now; `batch.wanted` where we are to check it."""
        ...

    def needs_bytes(self, batch: Batch) -> bool:
        """Whether the bytes are to be fetched."""
        ...

    def unavailable(self, batch: Batch) -> list[PoolEffect]:
        """Nobody has the bytes."""
        ...

    def checked(self, batch: Batch, codes: bytes) -> list[PoolEffect]:
        """Our own verdicts."""
        ...

    def compare(self, batch: Batch, validator: PeerId) -> list[PoolEffect]:
        """Another one's verdicts beside our own."""
        ...


class Onlooker:
    """Of peers that only hand on what they hear."""

    def look(self, batch: Batch, now: float) -> list[PoolEffect]:
        """As `Duty.look`."""
        return []

    def needs_bytes(self, batch: Batch) -> bool:
        """As `Duty.needs_bytes`."""
        return False

    def unavailable(self, batch: Batch) -> list[PoolEffect]:
        """As `Duty.unavailable`."""
        return []

    def checked(self, batch: Batch, codes: bytes) -> list[PoolEffect]:
        """As `Duty.checked`."""
        return []

    def compare(self, batch: Batch, validator: PeerId) -> list[PoolEffect]:
        """As `Duty.compare`."""
        return []


class Validating(Onlooker):
    """Verifies what is dealt to us, and says so."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def look(self, batch: Batch, now: float) -> list[PoolEffect]:
        """As `Duty.look`."""
        batch.wanted = batch.own is None and (batch.wanted or self._is_dealt_to_me(batch, now))
        return []

    def _is_dealt_to_me(self, batch: Batch, now: float) -> bool:
        for dealt in batch.deals.values():
            turn, _ = self._scene.turn(batch, dealt, now)
            said = [peer for peer in turn if opinion_in(batch, peer) in SURE]
            if self._scene.me in turn and len(said) < places_of(dealt.beacon):
                return True
        return False

    def needs_bytes(self, batch: Batch) -> bool:
        """As `Duty.needs_bytes`."""
        return batch.wanted

    def unavailable(self, batch: Batch) -> list[PoolEffect]:
        """As `Duty.unavailable`."""
        return self._scene.say(batch, bytes([WITHHELD]) * batch.body.rollouts)

    def checked(self, batch: Batch, codes: bytes) -> list[PoolEffect]:
        """As `Duty.checked`."""
        return self._scene.say(batch, codes)


class Leading(Onlooker):
    """Deals the batches that are for us, hears the verdicts, checks, and decides.

    draw: a number from 0 to 1 that a name gives, and that nobody else can foresee.
    """

    def __init__(self, scene: Scene, intake: Intake, draw: Callable[[Hash], float]) -> None:
        self._scene, self._intake, self._draw = scene, intake, draw

    def needs_bytes(self, batch: Batch) -> bool:
        """As `Duty.needs_bytes`."""
        return batch.is_due and self._scene.is_mine(batch)

    def look(self, batch: Batch, now: float) -> list[PoolEffect]:
        """As `Duty.look`."""
        scene = self._scene
        if not scene.is_mine(batch) or batch.own is not None:
            return []
        batch.is_due = batch.is_due or self._intake.admits(batch, now)
        if not batch.is_due:
            return []
        batch.led = True
        dealt = batch.deals.get(scene.me)
        if dealt is None:
            if scene.validators - {batch.author} and scene.trainer_of(batch) == scene.me:
                return [Deal(batch)] if batch.bytes_ is Bytes.HERE else []  # what is withheld costs nobody else anything
            batch.wanted = True  # nobody works for us yet, or there is nobody
            return []
        turn, more = scene.turn(batch, dealt, now)
        said = [peer for peer in turn if opinion_in(batch, peer) in SURE]
        is_bad = any(opinion_in(batch, peer) is Opinion.BAD for peer in said)
        if is_bad or any(scene.standing.aside(peer) for peer in turn):
            batch.wanted = True
        elif len(said) >= places_of(dealt.beacon):
            chance = max(map(scene.standing.chance, [batch.author, *said]))
            batch.wanted = batch.wanted or self._draw(batch.root) < chance
            if not batch.wanted and batch.bytes_ is Bytes.HERE:
                return scene.decide(batch, Decision.ACCEPTED)
        elif not more:
            batch.wanted = True  # enough have been asked
        return []

    def unavailable(self, batch: Batch) -> list[PoolEffect]:
        """As `Duty.unavailable`."""
        batch.is_withheld = True
        self._scene.standing.anomaly(batch.author)
        said = self._scene.say(batch, bytes([WITHHELD]) * batch.body.rollouts)  # for its maker: it was dealt to nobody
        return [*said, *self._scene.decide(batch, Decision.REJECTED, Reason.WITHHELD)]

    def checked(self, batch: Batch, codes: bytes) -> list[PoolEffect]:
        """As `Duty.checked`."""
        scene, opinion, reason = self._scene, opinion_of(codes), reason_of(codes)
        effects = scene.say(batch, codes)
        for validator in [*batch.judgements]:
            effects += self.compare(batch, validator)
        self._note_agreement(batch, opinion)
        if opinion is Opinion.GOOD:
            scene.standing.right(batch.author)
            return [*effects, *scene.decide(batch, Decision.ACCEPTED)]
        if opinion is Opinion.BAD:
            aside = scene.set_aside(batch.author, f"a rollout that we checked: {reason.value}")
            return [*effects, *scene.decide(batch, Decision.REJECTED, reason), *aside]
        if reason is Reason.NONE:
            return [*effects, *scene.decide(batch, Decision.STALE)]
        scene.standing.anomaly(batch.author)
        return [*effects, *scene.decide(batch, Decision.REJECTED, reason)]

    def compare(self, batch: Batch, validator: PeerId) -> list[PoolEffect]:
        """As `Duty.compare`: whose verdict our check contradicts is set aside, and whose score, where all computers come to
        one: over others honest peers may differ, and the maker, or the set of tasks, is at fault."""
        scene = self._scene
        if batch.own is None or validator == scene.me:
            return []
        ours, theirs = opinion_of(batch.own), opinion_in(batch, validator)
        if ours is Opinion.UNSURE or theirs not in SURE:
            return []
        if ours is not theirs and not batch.sure:
            scene.standing.anomaly(validator)
            return []
        if ours is not theirs:
            said = "accepted" if theirs is Opinion.GOOD else "rejected"
            return scene.set_aside(validator, f"it {said} rollouts, and our own check says the contrary", Role.VALIDATOR)
        scores = batch.judgements[validator].scores
        if ours is Opinion.BAD or batch.scores is None or scores is None:
            return []
        if any(scores[place] not in (batch.scores[place], UNSCORED) for place in batch.exact):
            return scene.set_aside(validator, "it gave rollouts other scores than those of our own check", Role.VALIDATOR)
        dealt = batch.deals.get(scene.me)
        is_asked = dealt is not None and validator in dealt.order[: places_of(dealt.beacon)]
        return [Compare(batch, batch.scores, scores)] if is_asked else []  # else a crowd of keys outvoted who was asked

    def _note_agreement(self, batch: Batch, ours: Opinion) -> None:
        """Who was asked and said the same before us was right.  Others may only repeat what they heard."""
        standing, dealt = self._scene.standing, batch.deals.get(self._scene.me)
        for validator in dealt.turn if dealt is not None and ours in SURE else ():
            if opinion_in(batch, validator) is ours and not standing.aside(validator):
                standing.right(validator)
