"""The batches of rollouts that a peer knows, as a pure machine: heard, dealt, judged, decided, used, forgotten.

What is done with a batch follows from the peer's role (`protocol.rollouts.duties`).  Batches are bounded in number, in bytes
and in checks, for all peers together and for each (`protocol.rollouts.room`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from protocol.rollouts.batch import MOST_DEATHS, UNSURE, Batch, Bytes, Dealt, Decision, Slot, found_in, is_well_formed
from protocol.rollouts.duties import Duty, Leading, Onlooker, Validating
from protocol.rollouts.happenings import (
    Check,
    Checked,
    Contrary,
    DealHeard,
    Discard,
    Ejected,
    Fetch,
    Fetched,
    Forward,
    Heard,
    Idle,
    JudgementHeard,
    Moved,
    PoolEffect,
    PoolEvent,
    Tell,
    Tick,
)
from protocol.rollouts.intake import Intake
from protocol.rollouts.room import MOST_BATCHES, Room
from protocol.rollouts.scene import PATIENCE, Scene, discard
from protocol.rollouts.telling import judged
from protocol.run.rl_section import RlSection
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import RolloutBatch

AHEAD = 2
"""Versions that a batch may be ahead of our state: others commit before we do."""
ENOUGH = 2
"""Rounds for which a trainer has accepted batches."""
AHEAD_ROUNDS = 2
"""Rounds for which there are batches that wait for a verdict: of peers with a clean history, and of others."""


class Pool:
    """Of one peer.  draw: as `protocol.rollouts.duties.Leading` wants it."""

    def __init__(self, me: PeerId, role: Role, rl: RlSection, draw: Callable[[Hash], float]) -> None:
        self._scene = scene = Scene(me, role, rl)
        self._slots: dict[Slot, Batch] = {}
        self._intake = Intake(scene, self._slots)
        self._duty: Duty = Onlooker()
        if role is Role.TRAINER:
            self._duty = Leading(scene, self._intake, draw)
        elif role is Role.VALIDATOR:
            self._duty = Validating(scene)
        self.standing = scene.standing
        self._room = Room(scene.standing, AHEAD_ROUNDS * rl.batches_per_round)
        self._batches: dict[tuple[PeerId, Hash], Batch] = {}
        self._lacking: dict[tuple[PeerId, Hash], Batch] = {}
        """Whose bytes are to be fetched."""
        self.before: frozenset[tuple[PeerId, Hash]] = frozenset()
        """What our places in the last records name: an earlier life may have learned from it, and whoever made it says it
        again while it is young enough."""
        self._past: OrderedDict[tuple[Slot, Hash], Decision] = OrderedDict()
        """What we decided on batches that were forgotten since: where the chain goes back they come again."""
        self._stuck = False
        """Whether nothing could be fetched: what strangers say then waits for the next tick, as looking takes time."""
        self._turns = 0

    # -- looking ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Batch]:
        return iter([*self._batches.values()])

    def find(self, author: PeerId, root: Hash) -> Batch | None:
        """A batch that is known."""
        return self._batches.get((author, root))

    def lacks(self, batch: Batch) -> bool:
        """Whether the bytes of a batch are on their way, and of use."""
        return self._batches.get(batch.key) is batch and batch.bytes_ is Bytes.COMING and batch.decision is None

    def needs(self, root: Hash) -> bool:
        """Whether bytes are those of a batch that we still want, whoever else stated them too."""
        return any(batch.root == root and batch.bytes_ in (Bytes.COMING, Bytes.HERE) for batch in self._batches.values())

    def pending(self, now: float) -> int:
        """Batches of ours for whose verdict we wait before we make many more.

        One that nobody has judged for long is for a trainer that is gone, or mute: of free keys in one record there may be
        so many that they have nearly all of our batches.
        """
        young = now - PATIENCE * self._scene.rl.judge_s
        return sum(batch.author == self._scene.me and not batch.judgements and batch.at > young for batch in self)

    def unanswered(self) -> list[Batch]:
        """Batches of ours that nobody has dealt or judged."""
        return [batch for batch in self if batch.author == self._scene.me and not batch.deals and not batch.judgements]

    def usable(self, version: int) -> list[Batch]:
        """What a trainer may learn from at this version, and has not yet; the oldest first."""
        oldest = version - self._scene.rl.max_async
        found = [
            batch
            for batch in self._batches.values()
            if batch.decision is Decision.ACCEPTED
            and not batch.used
            and batch.key not in self.before
            and batch.bytes_ is Bytes.HERE
            and oldest <= batch.body.version <= version
            and self._scene.is_mine(batch)
        ]
        return sorted(found, key=lambda batch: (batch.body.version, batch.root))

    def note_death(self, batches: Sequence[Batch]) -> None:
        """Our trainer process ended while it learned from these; of those over which it ended again nothing is learned.

        One of them may be made for it, and only a validator vouch for it: so all that their makers make is checked again.
        """
        for batch in batches:
            batch.deaths += 1
            batch.used = batch.used or batch.deaths >= MOST_DEATHS
            if batch.own is None:
                self.standing.anomaly(batch.author)

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: PoolEvent, now: float) -> list[PoolEffect]:
        """What is to be done because of `event`."""
        effects = self._take(event, now)
        is_strangers = isinstance(event, Heard | DealHeard) and not self.standing.clean(event.author)
        while self._lacking and not (self._stuck and (is_strangers or isinstance(event, JudgementHeard))):
            batch = self._room.next_fetch(self._lacking.values(), self._batches.values(), self._will_be_decided)
            self._stuck = batch is None
            if batch is None:
                break
            del self._lacking[batch.key]
            batch.bytes_ = Bytes.COMING
            effects.append(Fetch(batch))
        return effects

    def _take(self, event: PoolEvent, now: float) -> list[PoolEffect]:
        match event:
            case Heard():
                return self._hear(event, now)
            case DealHeard():
                return self._hear_deal(event, now)
            case JudgementHeard():
                return self._hear_judgement(event, now)
            case Moved():
                return self._move(event, now)
            case Tick():
                self._scene.tick(event.validators, event.kept, now)
                return [effect for batch in self for effect in self._look(batch, now)]
            case Fetched():
                return self._fetched(event, now)
            case Checked():
                return self._checked(event)
            case Idle():
                return self._next_check()
            case Ejected():
                return [*self._scene.set_aside(event.peer, event.reason), *self._drop_all_of(event.peer)]

    # -- what is heard ------------------------------------------------------------------------------------------------

    def _hear(self, event: Heard, now: float) -> list[PoolEffect]:
        author, body = event.author, event.body
        if self.standing.aside(author) or not self._is_possible(body):
            return []
        known = self._slots.get((author, Hash(body.tip), body.number))
        if known is not None:
            return self._hear_again(known, event)
        is_ours = author == self._scene.me
        batch = Batch(author, body, event.raw, now, bytes_=Bytes.HERE if is_ours else Bytes.ABSENT)
        if batch.key in self._batches:
            return []
        batch.decision = self._past.get(batch.place)
        effects: list[PoolEffect] = [Forward()]
        if not is_ours:
            loser = self._room.make(batch, self._batches.values())
            if loser is batch:
                return []
            if loser is not None:
                effects += self._end(loser)
        self._batches[batch.key] = self._slots[batch.slot] = batch
        return [*effects, *self._look(batch, now)]

    def _hear_again(self, known: Batch, event: Heard) -> list[PoolEffect]:
        """Another statement for a number.  Two statements of different lives prove nothing: their maker may have lost its
        disk.  But it may also have stated one batch several times, once for each trainer.  So nobody learns from either."""
        if known.body == event.body:
            return []
        if known.body.incarnation == event.body.incarnation:
            return [Contrary(known.raw, event.raw)]
        if known.is_restated:
            return []
        known.is_restated = True
        self.standing.anomaly(known.author)
        return [Forward(), *self._drop(known, Decision.STALE)]

    def _is_possible(self, body: RolloutBatch) -> bool:
        """Whether an honest peer may have stated this lately."""
        moved, rl = self._scene.moved, self._scene.rl
        known = body.tip if body.version > moved.version else moved.tips.get(body.version)
        return (
            moved.version - rl.max_async <= body.version <= moved.version + AHEAD
            and known == body.tip
            and body.rollouts == rl.rollouts_per_batch
            and body.tokens <= body.rollouts * rl.max_tokens
            and body.size <= rl.bytes_per_batch
        )

    def _hear_deal(self, event: DealHeard, now: float) -> list[PoolEffect]:
        batch = self.find(event.author, event.root)
        if batch is None or event.trainer in batch.deals or event.trainer != self._scene.trainer_of(batch):
            return []
        batch.deals[event.trainer] = Dealt(event.beacon, now)
        return [Forward(), *self._look(batch, now)]

    def _hear_judgement(self, event: JudgementHeard, now: float) -> list[PoolEffect]:
        scene, validator, codes, scores = self._scene, event.validator, event.body.codes, event.body.scores
        batch = self.find(PeerId(event.body.author), Hash(event.body.root))
        if batch is None or not is_well_formed(codes, scores, batch.body) or not scene.is_heard(batch, validator):
            return []
        batch.judgements[validator] = found_in(codes, scores)
        scene.note_voice(validator)
        effects: list[PoolEffect] = [Forward()]
        if batch.author == scene.me:
            effects.append(Tell(judged(batch, validator, codes)))
        effects += self._duty.compare(batch, validator)
        effects += scene.accuse(batch)
        return [*effects, *self._drop_all_of(batch.author), *self._look(batch, now)]

    def _move(self, moved: Moved, now: float) -> list[PoolEffect]:
        self._intake.move(self._scene.moved, moved, now)
        self._scene.move(moved)
        effects: list[PoolEffect] = []
        for batch in self:
            version = batch.body.version
            is_old = version < moved.version - self._scene.rl.max_async
            if is_old or (version <= moved.version and moved.tips.get(version) != batch.body.tip):
                effects += self._end(batch)
        return effects

    # -- what becomes of a batch --------------------------------------------------------------------------------------

    def _look(self, batch: Batch, now: float) -> list[PoolEffect]:
        """What is to be done with it now, if anything."""
        batch.is_named = batch.key in self.before
        if batch.used or batch.is_named:
            self._lacking.pop(batch.key, None)
            return discard(batch)  # else old ones had the room that new ones need
        if batch.decision is not None or batch.author == self._scene.me:
            return []
        effects = self._duty.look(batch, now)
        if batch.bytes_ is Bytes.ABSENT and batch.decision is None and self._duty.needs_bytes(batch):
            self._lacking[batch.key] = batch
        else:
            self._lacking.pop(batch.key, None)
        return effects

    def _fetched(self, event: Fetched, now: float) -> list[PoolEffect]:
        batch = self.find(event.author, event.root)
        if batch is None or batch.decision is not None:
            if batch is not None:
                batch.bytes_ = Bytes.GONE
            return [Discard(event.root)]
        if event.here is None:
            batch.bytes_ = Bytes.ABSENT
            return []
        batch.bytes_ = Bytes.HERE if event.here else Bytes.GONE
        if event.here:
            return self._look(batch, now)
        self._room.note_withheld(batch.author)
        return [Discard(event.root), *self._duty.unavailable(batch)]

    def _will_be_decided(self, batch: Batch) -> bool:
        """Unlike one that is another trainer's by now, or of a version that cannot be checked here now."""
        return self._duty.needs_bytes(batch) and self._scene.is_checkable(batch)

    def _next_check(self) -> list[PoolEffect]:
        """In turns of peers with a clean history and of others; of those, of the one that had the fewest.

        A trainer checks no more while it has enough for several rounds, of versions whose tasks its trainer process has.
        """
        accepted = self.usable(self._scene.moved.version)
        if sum(map(self._scene.is_checkable, accepted)) >= ENOUGH * self._scene.rl.batches_per_round:
            return []
        waiting = [
            batch
            for batch in self._batches.values()
            if batch.wanted and not batch.checking and batch.bytes_ is Bytes.HERE and self._scene.is_checkable(batch)
        ]
        if not waiting:
            return []
        self._turns += 1
        batch = self._room.first(waiting, strangers_first=bool(self._turns % 2))
        batch.checking = True
        return [Check(batch)]

    def _checked(self, event: Checked) -> list[PoolEffect]:
        batch = self.find(event.author, event.root)
        if batch is None:
            return []
        batch.checking = False
        if event.died:
            batch.deaths += 1
            self.standing.anomaly(batch.author)
            if batch.deaths >= MOST_DEATHS:  # others may tell
                return self._duty.checked(batch, bytes([UNSURE]) * batch.body.rollouts)
        if event.codes is None or batch.decision is not None or not is_well_formed(event.codes, event.scores, batch.body):
            return []
        batch.scores, batch.exact, batch.sure = event.scores, event.exact, event.sure
        self._room.note_check(batch.author)
        return [*self._duty.checked(batch, event.codes), *self._drop_all_of(batch.author)]

    def _drop_all_of(self, author: PeerId) -> list[PoolEffect]:
        """If nothing of this peer is used any more: what it has made so far, too."""
        if not self.standing.aside(author):
            return []
        effects: list[PoolEffect] = []
        for batch in self:
            if batch.author == author:
                effects += self._drop(batch, Decision.REJECTED)
        return effects

    def _drop(self, batch: Batch, decision: Decision) -> list[PoolEffect]:
        """Learn nothing from it that was not learned yet."""
        if batch.used:
            return []
        self._lacking.pop(batch.key, None)
        return [*self._scene.decide(batch, decision), *discard(batch)]

    def _end(self, batch: Batch) -> list[PoolEffect]:
        """Forget a batch; what was not decided is stale."""
        del self._batches[batch.key]
        self._lacking.pop(batch.key, None)
        del self._slots[batch.slot]
        effects = [*self._scene.decide(batch, Decision.STALE), *discard(batch)]
        if batch.led and batch.decision is not None:
            self._past[batch.place] = batch.decision
            if len(self._past) > MOST_BATCHES:
                self._past.popitem(last=False)
        return effects
