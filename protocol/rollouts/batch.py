"""A batch of rollouts as one peer knows it: from the statement of its maker to the one verdict on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from protocol.rollouts.dealing import lot_of
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.rollouts import CODES, Reason, RolloutBatch, Verdict

RELATIVE = frozenset({Reason.WITHHELD})
"""Reasons that depend on what a validator could get: nobody lied who says otherwise."""
UNSURE = CODES.index((Verdict.INCONCLUSIVE, Reason.NONE))
WITHHELD = CODES.index((Verdict.REJECT, Reason.WITHHELD))
MOST_DEATHS = 2
"""Of our trainer process over one batch."""


Slot = tuple[PeerId, Hash, int]
"""A maker, the tip of a version, and the number of a batch: in one life a maker states one batch in it."""


class Opinion(Enum):
    """What a judgement says of the batch as a whole: one bad rollout makes it bad, for honest peers make none."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"


class Bytes(Enum):
    """Where the bytes of a batch are."""

    ABSENT = "absent"
    COMING = "coming"
    HERE = "here"
    GONE = "gone"
    """Nobody has them, or they were removed."""


class Decision(Enum):
    """The final verdict on a batch, and so on each of its rollouts."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    STALE = "stale"
    """It was not judged in time, or nobody could tell."""


@dataclass
class Dealt:
    """beacon: what draws the validators.  at: when we heard of it.  order: the first of them, drawn among `among`; None
    while they are not drawn.  early: those that lived at first.  turn: those whose turn had come when we looked last."""

    beacon: Hash
    at: float
    order: tuple[PeerId, ...] = ()
    among: frozenset[PeerId] | None = None
    early: frozenset[PeerId] = frozenset()
    turn: tuple[PeerId, ...] = ()


@dataclass(frozen=True)
class Found:
    """What a judgement comes to.  reason: of most rejections.  scores: as in `Judgement`."""

    opinion: Opinion
    reason: Reason
    scores: bytes | None = None


@dataclass
class Batch:
    """at: when it was heard.  deals: by trainer.  judgements: by validator.  own: the verdicts of our own check.

    used: learned from.
    """

    author: PeerId
    body: RolloutBatch
    raw: bytes
    at: float = 0.0
    deals: dict[PeerId, Dealt] = field(default_factory=dict)
    judgements: dict[PeerId, Found] = field(default_factory=dict)
    own: bytes | None = None
    scores: bytes | None = None
    """What our own check gave the rollouts, as in `Judgement`."""
    exact: frozenset[int] = frozenset()
    """Rollouts of which every computer comes to the same score, by their places."""
    sure: bool = True
    """Whether every honest computer comes to the opinion that our own check did."""
    bytes_: Bytes = Bytes.ABSENT
    wanted: bool = False
    """Whether we are to check it."""
    checking: bool = False
    led: bool = False
    """Whether it was for us to decide on."""
    deaths: int = 0
    """Of our trainer process, while it verified this, or learned from it."""
    decision: Decision | None = None
    used: bool = False
    is_restated: bool = False
    """Whether its maker stated another batch with its number, in another life."""
    is_withheld: bool = False
    """Whether we could not get its bytes."""
    is_named: bool = False
    """Whether our places in the last records name it."""
    is_due: bool = False
    """Whether its turn has come (`protocol.rollouts.sequence`)."""

    @property
    def root(self) -> Hash:
        """Its name."""
        return Hash(self.body.root)

    @property
    def slot(self) -> Slot:
        """Its maker's number at a version."""
        return self.author, Hash(self.body.tip), self.body.number

    @property
    def place(self) -> tuple[Slot, Hash]:
        """What says in another time that it is the same one."""
        return self.slot, self.root

    @cached_property
    def lot(self) -> Hash:
        """Draws the trainer that it is for."""
        return lot_of(Hash(self.body.tip), self.author, self.body.number)

    @property
    def is_delivered(self) -> bool:
        """Whether its maker has done its part, as far as we can see."""
        if self.used or self.is_named:
            return True
        return not self.is_withheld and not self.is_restated and (self.bytes_ is Bytes.HERE or self.decision is not None)

    @property
    def key(self) -> tuple[PeerId, Hash]:
        """Its name, with its maker's: another peer may state the same bytes."""
        return self.author, self.root


def opinion_of(codes: bytes) -> Opinion:
    """What these verdicts make of the batch."""
    if any(CODES[code][0] is Verdict.REJECT and CODES[code][1] not in RELATIVE for code in codes):
        return Opinion.BAD
    return Opinion.GOOD if all(CODES[code][0] is Verdict.ACCEPT for code in codes) else Opinion.UNSURE


def reason_of(codes: bytes) -> Reason:
    """The reason of most rejections; NONE where there is none."""
    reasons = Counter(CODES[code][1] for code in codes if CODES[code][0] is Verdict.REJECT)
    return reasons.most_common(1)[0][0] if reasons else Reason.NONE


def found_in(codes: bytes, scores: bytes | None = None) -> Found:
    """What these verdicts come to."""
    return Found(opinion_of(codes), reason_of(codes), scores)


def is_well_formed(codes: bytes, scores: bytes | None, body: RolloutBatch) -> bool:
    """Whether these can be the verdicts on a batch."""
    return len(codes) == body.rollouts and max(codes) < len(CODES) and (scores is None or len(scores) == body.rollouts)
