"""Batches of rollouts as one peer knows them: from their maker's statement to the final decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from heapq import nsmallest
from itertools import count, islice

from protocol.chain.progress import TasksInForce, first_problem
from protocol.wire.hashes import Hash, hash_bytes
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import CODES, Reason, RolloutBatch, Verdict

# ------------------------------------------------------------------------------------------------------------------------
# Draws of a batch's problems, trainer and validators.
#
# The draws are pure.  No peer that would profit from a draw can vary its inputs.  The tip of a version, the maker and the
# number of a batch draw its problems and its trainer; the contents of the batch and of its statement do not matter.  That
# trainer's signature, made after it has received the root, draws the validators.  A trainer that chose its validators itself
# would deceive only itself.  docs/internals/draws.md lists all draws of the protocol.


TWICE = 8
"""One batch in `TWICE` is dealt to two validators."""
REDRAWS = 8
"""Most tasks of a set that are drawn for one place in a batch, until one is new to the batch.  Without a new task, the place
gets a problem of the environment."""


def problems_of(
    run: Hash, tip: Hash, peer: PeerId, number: int, prompts: int, problems: int, tasks: TasksInForce
) -> tuple[int, ...]:
    """Return the numbers of the problems, all different, of batch `number` of `peer` at the version on `tip`.

    prompts: number of problems to draw.  problems: number of the environment's problems, at least `prompts`.  tasks: the
    version's sets; `tasks.percent` of the problems come from the sets, the same number from each set.  The number of
    problems from all sets, and from each set, differs by at most one between batches.  Otherwise a maker would gain by
    trying keys until a batch has many more.
    """
    seed = hash_bytes("problems", run + tip + peer.encode() + number.to_bytes(8, "big"))
    draws = (int.from_bytes(hash_bytes("problem", seed + at.to_bytes(8, "big")), "big") for at in count())
    drawn: dict[int, None] = {}
    if tasks.live:
        of_sets, first = (prompts * tasks.percent + next(draws) % 100) // 100, next(draws)
        for place in range(of_sets):
            one = tasks.live[(first + place) % len(tasks.live)]
            choices = (first_problem(one.slot) + next(draws) % one.count for _ in range(REDRAWS))
            drawn |= dict.fromkeys(islice((choice for choice in choices if choice not in drawn), 1))
    while len(drawn) < prompts:
        drawn[next(draws) % problems] = None
    return tuple(drawn)


def beacon_of(signature: bytes) -> Hash:
    """Return the beacon by which a deal's signature draws the validators."""
    return hash_bytes("deal", signature)


def places_of(beacon: Hash) -> int:
    """Return the number of validators to which a batch is dealt at first."""
    return 2 if beacon[0] % TWICE == 0 else 1


def order_of(
    beacon: Hash, root: Hash, validators: Collection[PeerId], most: int | None = None, late: Collection[PeerId] = frozenset()
) -> list[PeerId]:
    """Return the validators, or the first `most`, in the order in which the batch is dealt to them.

    A validator that joins or leaves does not change the order of the other validators.  late: validators that joined after
    the beacon was known; they come last, because their keys may have been made for this beacon.
    """
    drawn = sorted(validators, key=lambda peer: (peer in late, hash_bytes("validator", beacon + root + peer.encode())))
    return drawn[:most]


def some_of(
    tip: Hash, validators: frozenset[PeerId], most: int, late: Collection[PeerId] = frozenset()
) -> frozenset[PeerId]:
    """Return at most `most` validators, among which batches are dealt at this tip; no peer can predict them.

    late: validators that joined after the tip was known, as in `order_of`.
    """
    if len(validators) <= most:
        return validators
    drawn = nsmallest(most, validators, key=lambda peer: (peer in late, hash_bytes("some", tip + peer.encode())))
    return frozenset(drawn)


def lot_of(tip: Hash, author: PeerId, number: int) -> Hash:
    """Return the lot that draws the trainer of batch `number` of `author` at the version on `tip`.

    The batch's contents do not matter.  Otherwise its maker could vary them until the lot drew a trainer of its choice.
    """
    return hash_bytes("share", tip + author.encode() + number.to_bytes(8, "big"))


def trainer_of(lot: Hash, trainers: Sequence[PeerId]) -> PeerId | None:
    """Return the trainer of a batch with this lot; None without trainers.  trainers: the record's trainers, sorted."""
    return trainers[_number_in(lot) % len(trainers)] if trainers else None


def is_for(lot: Hash, me: PeerId, trainers: Sequence[PeerId]) -> bool:
    """Return True if `me` may learn from a batch.

    A trainer in the version's record learns from its own share.  Any other trainer learns from a share of about the same
    size (one batch in `len(trainers) + 1`), from which other trainers may learn as well.
    """
    if me in trainers:
        return trainer_of(lot, trainers) == me
    return _number_in(hash_bytes("newcomer", lot + me.encode())) % (len(trainers) + 1) == 0


def _number_in(lot: Hash) -> int:
    return int.from_bytes(lot[:8], "big")


# ------------------------------------------------------------------------------------------------------------------------


RELATIVE = frozenset({Reason.WITHHELD})
"""Reasons that depend on the bytes that a validator could get.  Disagreement about such a reason does not prove a lie."""
UNSURE = CODES.index((Verdict.INCONCLUSIVE, Reason.NONE))
WITHHELD = CODES.index((Verdict.REJECT, Reason.WITHHELD))
MOST_DEATHS = 2
"""Number of deaths of our trainer process in work on one batch after which we drop the batch."""


Slot = tuple[PeerId, Hash, int]
"""(Maker, tip of a version, number of a batch); an honest maker states one batch in a slot, unless it lost its disk."""


class Opinion(Enum):
    """Opinion of a batch as a whole: one bad rollout makes it bad, because honest peers make no bad rollout."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"


class BytesLocation(Enum):
    """Location of a batch's bytes."""

    ABSENT = "absent"
    COMING = "coming"
    HERE = "here"
    GONE = "gone"
    """No peer has the bytes, or they were removed."""


class Decision(Enum):
    """The final decision on a batch, which holds for each of its rollouts."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    STALE = "stale"
    """The batch was not judged in time, or no check was conclusive."""


@dataclass
class BatchDeal:
    """Deal of a batch by one trainer.

    beacon: draws the validators.  at: the time at which we received the deal.  order: the first validators of the deal,
    drawn among `among`, which is None before the first draw.  early: validators that were alive at the first draw.  turn:
    validators whose turn had come at our last look.
    """

    beacon: Hash
    at: float
    order: tuple[PeerId, ...] = ()
    among: frozenset[PeerId] | None = None
    early: frozenset[PeerId] = frozenset()
    turn: tuple[PeerId, ...] = ()


@dataclass(frozen=True)
class JudgementResult:
    """Summary of a judgement.  reason: the most frequent reason of its rejections.  scores: as in `Judgement`."""

    opinion: Opinion
    reason: Reason
    scores: bytes | None = None


@dataclass
class PooledBatch:
    """Batch of rollouts as one peer knows it.

    at: the time at which we received its statement.  deals: deals by trainer.  judgements: judgements by validator.  own:
    the verdicts of our own check.  used: True if we have learned from the batch.
    """

    author: PeerId
    body: RolloutBatch
    raw: bytes
    at: float = 0.0
    deals: dict[PeerId, BatchDeal] = field(default_factory=dict)
    judgements: dict[PeerId, JudgementResult] = field(default_factory=dict)
    own: bytes | None = None
    scores: bytes | None = None
    """Scores that our own check gave the rollouts, as in `Judgement`."""
    exact: frozenset[int] = frozenset()
    """Places of the rollouts whose score is the same on every computer."""
    sure: bool = True
    """True if every honest computer comes to the same opinion as our own check."""
    bytes_: BytesLocation = BytesLocation.ABSENT
    wanted: bool = False
    """True if we must check the batch."""
    checking: bool = False
    led: bool = False
    """True once we must decide on the batch."""
    deaths: int = 0
    """Deaths of our trainer process while it verified the batch or learned from it."""
    decision: Decision | None = None
    used: bool = False
    is_restated: bool = False
    """True if the maker stated another batch with this number in another incarnation."""
    is_withheld: bool = False
    """True if we could not get the bytes."""
    is_named: bool = False
    """True if our entries in the last records name the batch."""
    is_due: bool = False
    """True once the batch's turn has come (`protocol.rollouts.pool.Intake`)."""

    @property
    def root(self) -> Hash:
        """Name of the batch: the root of its bytes."""
        return Hash(self.body.root)

    @property
    def slot(self) -> Slot:
        """Slot in which the batch was stated."""
        return self.author, Hash(self.body.tip), self.body.number

    @property
    def past_key(self) -> tuple[Slot, Hash]:
        """Key that recognises the batch after we have forgotten it."""
        return self.slot, self.root

    @cached_property
    def lot(self) -> Hash:
        """Lot that draws the trainer of the batch."""
        return lot_of(Hash(self.body.tip), self.author, self.body.number)

    @property
    def is_delivered(self) -> bool:
        """True if the maker has delivered the batch, as far as we know."""
        if self.used or self.is_named:
            return True
        return (
            not self.is_withheld
            and not self.is_restated
            and (self.bytes_ is BytesLocation.HERE or self.decision is not None)
        )

    @property
    def key(self) -> tuple[PeerId, Hash]:
        """(Maker, root) of the batch: another peer may state the same bytes."""
        return self.author, self.root


def opinion_of(codes: bytes) -> Opinion:
    """Return the opinion of the batch that follows from these verdicts."""
    if any(CODES[code][0] is Verdict.REJECT and CODES[code][1] not in RELATIVE for code in codes):
        return Opinion.BAD
    return Opinion.GOOD if all(CODES[code][0] is Verdict.ACCEPT for code in codes) else Opinion.UNSURE


def reason_of(codes: bytes) -> Reason:
    """Return the most frequent reason of the rejections; NONE without a rejection."""
    reasons = Counter(CODES[code][1] for code in codes if CODES[code][0] is Verdict.REJECT)
    return reasons.most_common(1)[0][0] if reasons else Reason.NONE


def found_in(codes: bytes, scores: bytes | None = None) -> JudgementResult:
    """Return the summary of these verdicts."""
    return JudgementResult(opinion_of(codes), reason_of(codes), scores)


def is_well_formed(codes: bytes, scores: bytes | None, body: RolloutBatch) -> bool:
    """Return True if these can be the verdicts and scores of a batch."""
    return len(codes) == body.rollouts and max(codes) < len(CODES) and (scores is None or len(scores) == body.rollouts)
