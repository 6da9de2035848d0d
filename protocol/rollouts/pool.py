"""Pure state machine of the batches that a peer knows: received, dealt, judged, decided, used, forgotten.

The peer's role determines the treatment of a batch (`protocol.rollouts.policy`).  The number of batches, their bytes and
their checks are limited, for all peers together and for each peer (`protocol.rollouts.trust`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from protocol.bounds import BoundedDict
from protocol.rollouts.batch import (
    MOST_DEATHS,
    UNSURE,
    BatchDeal,
    BytesLocation,
    Decision,
    PooledBatch,
    Slot,
    found_in,
    is_well_formed,
    lot_of,
)
from protocol.rollouts.events import (
    BatchHeard,
    BatchVerified,
    ContradictoryBatches,
    DealHeard,
    DiscardBytes,
    Ejected,
    EmitEvent,
    FetchBatch,
    FetchEnded,
    ForwardBatch,
    JudgementHeard,
    PoolEffect,
    PoolEvent,
    PoolTick,
    TipChanged,
    TrainerIdle,
    VerifyBatch,
)
from protocol.rollouts.policy import PATIENCE, PoolContext, RolePolicy, TrainerPolicy, ValidatorPolicy, discard, judged
from protocol.rollouts.trust import MOST_BATCHES, WITHHELD_COSTS, PoolLimits
from protocol.run.sections import RlSection
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.presence import Role
from protocol.wire.rollouts import MAX_BATCHES, RolloutBatch

# ------------------------------------------------------------------------------------------------------------------------
# Intake of batches by a trainer: from makers that it knew before the version, and in the order of the batches' numbers.
#
# The intake is pure.  A version's tip draws the problems of each batch, and any peer can compute the problems for all
# numbers and all keys.  Two rules follow:
#
# * **Numbers are taken in order.**  A trainer takes its batches of one maker and version one after another, each once the
#   batch before it has been delivered.  A batch that is not delivered (never announced, its bytes withheld, or announced
#   twice) blocks later batches for `HOLD_S`, and its maker's history begins anew.  Only our own fetches count here, and only
#   for our own decisions: a failed fetch proves nothing to other peers, so it cannot be used to frame a peer.
# * **Keys made for a tip have to wait.**  A maker that we did not know when the version came waits for the next version.
#
# Some versions do not follow the version that we had before: the first versions after our start, and the versions of another
# branch after a move.  For these versions, we take each maker's batches from the first number that we receive, because
# earlier statements may not be repeated.


HOLD_S = 600.0
"""Seconds for which a batch that is not delivered blocks the later batches of its maker."""
NEWCOMERS_S = 600.0
"""Seconds without an accepted batch after which makers that came after a version are admitted to it.  Otherwise the version
would never end once all earlier makers have left."""
MOST_SEQUENCES = 4096
"""Most pairs of maker and version whose numbers we count; beyond that, the pair longest without a batch is forgotten."""


@dataclass
class _MakerSequence:
    """Progress of a maker at a version.

    next: the batch number that we wait for.  held_since: the time at which that number began to block later ones.
    """

    next: int
    held_since: float | None = None


class Intake:
    """Intake of one trainer.  slots: the known batches."""

    def __init__(self, context: PoolContext, slots: Mapping[Slot, PooledBatch]) -> None:
        self._context, self._slots = context, slots
        self._sequences = BoundedDict[tuple[PeerId, Hash], _MakerSequence](MOST_SEQUENCES)
        self._known: dict[Hash, frozenset[PeerId]] = {}
        """Makers that we knew when a version came, by the version's tip; only versions that followed the one before."""
        self._followed: frozenset[Hash] = frozenset()
        self._came_at = 0.0
        """Time at which the newest version came."""

    def move(self, before: TipChanged, after: TipChanged, now: float) -> None:
        """Note a change to another state."""
        same = after.before or after.tips.get(before.version)
        follows = before.version in before.tips and same == before.tips[before.version]
        new = [tip for version, tip in after.tips.items() if follows and version > before.version]
        self._followed = self._followed.intersection(after.tips.values()).union(new)
        self._known = {tip: makers for tip, makers in self._known.items() if tip in self._followed}
        if after.makers:
            self._known |= dict.fromkeys(new, after.makers)
        if new:
            self._came_at = now

    def admits(self, batch: PooledBatch, now: float) -> bool:
        """Return True if it is the turn of this batch, which is for us."""
        return self._is_known(batch, now) and self._is_next(batch, now)

    def _is_known(self, batch: PooledBatch, now: float) -> bool:
        known = self._known.get(Hash(batch.body.tip))
        if known is None or batch.author in known:
            return True
        if now - max(self._came_at, self._context.accepted_at) < NEWCOMERS_S:
            return False
        del self._known[Hash(batch.body.tip)]
        return True

    def _is_next(self, batch: PooledBatch, now: float) -> bool:
        author, tip, number = batch.slot
        sequence = self._sequences.get((author, tip))
        if sequence is None:
            sequence = _MakerSequence(self._ours(batch, 0) if tip in self._followed else number)
            self._sequences[author, tip] = sequence
        while sequence.next < number:
            if not self._passes(self._slots.get((author, tip, sequence.next)), sequence, author, now):
                return False
            sequence.next, sequence.held_since = self._ours(batch, sequence.next + 1), None
            self._sequences.renew((author, tip), sequence)
        return sequence.next == number

    def _passes(self, first: PooledBatch | None, sequence: _MakerSequence, author: PeerId, now: float) -> bool:
        """Return True if later numbers no longer need to wait for this one."""
        if first is not None and first.is_delivered:
            return True
        if first is not None and not first.is_withheld and not first.is_restated:
            return False  # we cause the delay
        if sequence.held_since is None:
            sequence.held_since = now
        if now - sequence.held_since < HOLD_S:
            return False
        self._context.trust.anomaly(author)
        return True

    def _ours(self, batch: PooledBatch, start: int) -> int:
        """Return the first batch number from `start` that is for us at the version of `batch`; `batch` itself is for us."""
        author, tip, _ = batch.slot
        numbers = range(start, MAX_BATCHES)
        return next(number for number in numbers if self._context.is_ours(batch.body.version, lot_of(tip, author, number)))


# ------------------------------------------------------------------------------------------------------------------------


AHEAD = 2
"""Most versions by which a batch may be ahead of our state, because other peers may commit before we do."""
ENOUGH = 2
"""A trainer stops checking batches once it has accepted enough of them for this many rounds."""
AHEAD_ROUNDS = 2
"""Number of rounds for which batches are fetched before their verdicts; the limit applies to each group of peers."""


class Pool:
    """Pool of the batches that one peer knows.  draw: function as for `TrainerPolicy`."""

    def __init__(self, me: PeerId, role: Role, rl: RlSection, draw: Callable[[Hash], float]) -> None:
        self._context = context = PoolContext(me, role, rl)
        self._slots: dict[Slot, PooledBatch] = {}
        self._intake = Intake(context, self._slots)
        self._duty = RolePolicy()
        if role is Role.TRAINER:
            self._duty = TrainerPolicy(context, self._intake.admits, draw)
        elif role is Role.VALIDATOR:
            self._duty = ValidatorPolicy(context)
        self.trust = context.trust
        self._room = PoolLimits(context.trust, AHEAD_ROUNDS * rl.batches_per_round)
        self._batches: dict[tuple[PeerId, Hash], PooledBatch] = {}
        self._lacking: dict[tuple[PeerId, Hash], PooledBatch] = {}
        """Batches whose bytes we need to fetch."""
        self.before: frozenset[tuple[PeerId, Hash]] = frozenset()
        """Batches named by our entries in the last records.  We may have learned from them before a restart, and their
        makers state them again while they are young enough."""
        self._past = BoundedDict[tuple[Slot, Hash], Decision](MOST_BATCHES)
        """Decisions on forgotten batches; they still hold if the chain goes back and makers state the batches again."""
        self._stuck = False
        """True if no batch could be fetched.  Statements of strangers then start no new search before the next tick, because
        a search takes time."""
        self._turns = 0

    # -- looking ------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[PooledBatch]:
        return iter([*self._batches.values()])

    def find(self, author: PeerId, root: Hash) -> PooledBatch | None:
        """Return a batch; None if it is not known."""
        return self._batches.get((author, root))

    def lacks(self, batch: PooledBatch) -> bool:
        """Return True if the bytes of a batch are on their way and still needed."""
        return self._batches.get(batch.key) is batch and batch.bytes_ is BytesLocation.COMING and batch.decision is None

    def needs(self, root: Hash) -> bool:
        """Return True if some known batch still needs these bytes, whichever maker stated it."""
        return any(
            batch.root == root and batch.bytes_ in (BytesLocation.COMING, BytesLocation.HERE)
            for batch in self._batches.values()
        )

    def pending(self, now: float) -> int:
        """Return the number of our batches without a verdict, which limits the batches that we make.

        A batch without a verdict for long does not count, because its trainer is gone or mute: one record may name enough
        free keys to receive nearly all of our batches.
        """
        young = now - PATIENCE * self._context.rl.judge_s
        return sum(batch.author == self._context.me and not batch.judgements and batch.at > young for batch in self)

    def unanswered(self) -> list[PooledBatch]:
        """Return our batches that no peer has dealt or judged."""
        return [batch for batch in self if batch.author == self._context.me and not batch.deals and not batch.judgements]

    def usable(self, version: int) -> list[PooledBatch]:
        """Return the unused batches from which a trainer may learn at this version, the oldest version first."""
        oldest = version - self._context.rl.max_async
        found = [
            batch
            for batch in self._batches.values()
            if batch.decision is Decision.ACCEPTED
            and not batch.used
            and batch.key not in self.before
            and batch.bytes_ is BytesLocation.HERE
            and oldest <= batch.body.version <= version
            and self._context.is_mine(batch)
        ]
        return sorted(found, key=lambda batch: (batch.body.version, batch.root))

    def remember(self, named: frozenset[tuple[PeerId, Hash]]) -> None:
        """Note the batches (author, root) that our entries in the last records name."""
        self.before = named

    def note_used(self, batches: Sequence[PooledBatch]) -> None:
        """Note that we have learned from these batches."""
        for batch in batches:
            batch.used = True

    def note_death(self, batches: Sequence[PooledBatch]) -> None:
        """Note that our trainer process died while it learned from these batches.

        After a second death we do not learn from a batch again.  Its maker may have made it to kill the process, and a
        validator may have accepted it falsely.  So if we had not checked the batch ourselves, we check all batches of its
        maker again.
        """
        for batch in batches:
            batch.deaths += 1
            batch.used = batch.used or batch.deaths >= MOST_DEATHS
            if batch.own is None:
                self.trust.anomaly(batch.author)

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: PoolEvent, now: float) -> list[PoolEffect]:
        """Return the effects of `event`."""
        effects = self._take(event, now)
        is_strangers = isinstance(event, BatchHeard | DealHeard) and not self.trust.clean(event.author)
        while self._lacking and not (self._stuck and (is_strangers or isinstance(event, JudgementHeard))):
            batch = self._room.next_fetch(
                self._lacking.values(),
                self._batches.values(),
                lambda batch: self._duty.needs_bytes(batch) and self._context.is_checkable(batch),
            )
            self._stuck = batch is None
            if batch is None:
                break
            del self._lacking[batch.key]
            batch.bytes_ = BytesLocation.COMING
            effects.append(FetchBatch(batch))
        return effects

    def _take(self, event: PoolEvent, now: float) -> list[PoolEffect]:
        match event:
            case BatchHeard():
                return self._hear(event, now)
            case DealHeard():
                batch = self.find(event.author, event.root)
                if batch is None or event.trainer in batch.deals or event.trainer != self._context.trainer_of(batch):
                    return []
                batch.deals[event.trainer] = BatchDeal(event.beacon, now)
                return [ForwardBatch(), *self._look(batch, now)]
            case JudgementHeard():
                return self._hear_judgement(event, now)
            case TipChanged():
                return self._move(event, now)
            case PoolTick():
                self._context.tick(event.validators, event.kept, now)
                return [effect for batch in self for effect in self._look(batch, now)]
            case FetchEnded():
                return self._fetched(event, now)
            case BatchVerified():
                return self._checked(event)
            case TrainerIdle():
                return self._next_check()
            case Ejected():
                return [*self._context.set_aside(event.peer, event.reason), *self._drop_all_of(event.peer)]

    # -- statements ---------------------------------------------------------------------------------------------------

    def _hear(self, event: BatchHeard, now: float) -> list[PoolEffect]:
        author, body = event.author, event.body
        if self.trust.aside(author) or not self._is_possible(body):
            return []
        known = self._slots.get((author, Hash(body.tip), body.number))
        if known is not None:
            return self._hear_again(known, event)
        is_ours = author == self._context.me
        batch = PooledBatch(author, body, event.raw, now, bytes_=BytesLocation.HERE if is_ours else BytesLocation.ABSENT)
        if batch.key in self._batches:
            return []
        batch.decision = self._past.get(batch.past_key)
        effects: list[PoolEffect] = [ForwardBatch()]
        if not is_ours:
            loser = self._room.make(batch, self._batches.values())
            if loser is batch:
                return []
            if loser is not None:
                effects += self._end(loser)
        self._batches[batch.key] = self._slots[batch.slot] = batch
        return [*effects, *self._look(batch, now)]

    def _hear_again(self, known: PooledBatch, event: BatchHeard) -> list[PoolEffect]:
        """Handle another statement for a number.

        Two statements of different incarnations prove nothing: their maker may have lost its disk.  But the maker may also
        have stated one batch several times, once for each trainer.  So no trainer learns from either batch.
        """
        if known.body == event.body:
            return []
        if known.body.incarnation == event.body.incarnation:
            return [ContradictoryBatches(known.raw, event.raw)]
        if known.is_restated:
            return []
        known.is_restated = True
        self.trust.anomaly(known.author)
        return [ForwardBatch(), *self._drop(known, Decision.STALE)]

    def _is_possible(self, body: RolloutBatch) -> bool:
        """Return True if an honest peer may have made this statement recently."""
        moved, rl = self._context.moved, self._context.rl
        known = body.tip if body.version > moved.version else moved.tips.get(body.version)
        return (
            moved.version - rl.max_async <= body.version <= moved.version + AHEAD
            and known == body.tip
            and body.rollouts == rl.rollouts_per_batch
            and body.tokens <= body.rollouts * rl.max_tokens
            and body.size <= rl.bytes_per_batch
        )

    def _hear_judgement(self, event: JudgementHeard, now: float) -> list[PoolEffect]:
        context, validator, codes, scores = self._context, event.validator, event.body.codes, event.body.scores
        batch = self.find(PeerId(event.body.author), Hash(event.body.root))
        if batch is None or not is_well_formed(codes, scores, batch.body) or not context.is_heard(batch, validator):
            return []
        batch.judgements[validator] = found_in(codes, scores)
        context.note_voice(validator)
        effects: list[PoolEffect] = [ForwardBatch()]
        if batch.author == context.me:
            effects.append(EmitEvent(judged(batch, validator, codes)))
        effects += self._duty.compare(batch, validator)
        effects += context.accuse(batch)
        return [*effects, *self._drop_all_of(batch.author), *self._look(batch, now)]

    def _move(self, moved: TipChanged, now: float) -> list[PoolEffect]:
        self._intake.move(self._context.moved, moved, now)
        self._context.move(moved)
        effects: list[PoolEffect] = []
        for batch in self:
            version = batch.body.version
            is_old = version < moved.version - self._context.rl.max_async
            if is_old or (version <= moved.version and moved.tips.get(version) != batch.body.tip):
                effects += self._end(batch)
        return effects

    # -- fate of a batch ----------------------------------------------------------------------------------------------

    def _look(self, batch: PooledBatch, now: float) -> list[PoolEffect]:
        """Return the effects that are due now for a batch."""
        batch.is_named = batch.key in self.before
        if batch.used or batch.is_named:
            self._lacking.pop(batch.key, None)
            return discard(batch)  # otherwise old batches would hold the space that new batches need
        if batch.decision is not None or batch.author == self._context.me:
            return []
        effects = self._duty.look(batch, now)
        if batch.bytes_ is BytesLocation.ABSENT and batch.decision is None and self._duty.needs_bytes(batch):
            self._lacking[batch.key] = batch
        else:
            self._lacking.pop(batch.key, None)
        return effects

    def _fetched(self, event: FetchEnded, now: float) -> list[PoolEffect]:
        batch = self.find(event.author, event.root)
        if batch is None or batch.decision is not None:
            if batch is not None:
                batch.bytes_ = BytesLocation.GONE
            return [DiscardBytes(event.root)]
        if event.here is None:
            batch.bytes_ = BytesLocation.ABSENT
            return []
        batch.bytes_ = BytesLocation.HERE if event.here else BytesLocation.GONE
        if event.here:
            return self._look(batch, now)
        self._room.charge(batch.author, WITHHELD_COSTS)
        return [DiscardBytes(event.root), *self._duty.unavailable(batch)]

    def _next_check(self) -> list[PoolEffect]:
        """Choose the next batch to check; peers with a clean history and other peers take turns.

        In either group, the maker that has used least comes first.  A trainer checks no batch while it has accepted
        batches for `ENOUGH` rounds that its trainer process can check (weights and tasks).
        """
        accepted = self.usable(self._context.moved.version)
        if sum(map(self._context.is_checkable, accepted)) >= ENOUGH * self._context.rl.batches_per_round:
            return []
        waiting = [
            batch
            for batch in self._batches.values()
            if batch.wanted
            and not batch.checking
            and batch.bytes_ is BytesLocation.HERE
            and self._context.is_checkable(batch)
        ]
        if not waiting:
            return []
        self._turns += 1
        batch = self._room.first(waiting, strangers_first=bool(self._turns % 2))
        batch.checking = True
        return [VerifyBatch(batch)]

    def _checked(self, event: BatchVerified) -> list[PoolEffect]:
        batch = self.find(event.author, event.root)
        if batch is None:
            return []
        batch.checking = False
        if event.died:
            batch.deaths += 1
            self.trust.anomaly(batch.author)
            if batch.deaths >= MOST_DEATHS:  # other peers may be able to judge the batch
                return self._duty.checked(batch, bytes([UNSURE]) * batch.body.rollouts)
        if event.codes is None or batch.decision is not None or not is_well_formed(event.codes, event.scores, batch.body):
            return []
        batch.scores, batch.exact, batch.sure = event.scores, event.exact, event.sure
        self._room.charge(batch.author)
        effects = self._duty.checked(batch, event.codes)
        if alarm := self.trust.bet(batch.author, event.growth) if event.growth else "":
            effects += self._context.set_aside(batch.author, alarm)
        return [*effects, *self._drop_all_of(batch.author)]

    def _drop_all_of(self, author: PeerId) -> list[PoolEffect]:
        """Drop all batches of a peer, if the peer is set aside."""
        if not self.trust.aside(author):
            return []
        effects: list[PoolEffect] = []
        for batch in self:
            if batch.author == author:
                effects += self._drop(batch, Decision.REJECTED)
        return effects

    def _drop(self, batch: PooledBatch, decision: Decision) -> list[PoolEffect]:
        """Drop a batch with this decision, unless we have already learned from it."""
        if batch.used:
            return []
        self._lacking.pop(batch.key, None)
        return [*self._context.decide(batch, decision), *discard(batch)]

    def _end(self, batch: PooledBatch) -> list[PoolEffect]:
        """Forget a batch; an undecided one becomes stale."""
        del self._batches[batch.key]
        self._lacking.pop(batch.key, None)
        del self._slots[batch.slot]
        effects = [*self._context.decide(batch, Decision.STALE), *discard(batch)]
        if batch.led and batch.decision is not None:
            self._past[batch.past_key] = batch.decision
        return effects
