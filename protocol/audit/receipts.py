"""Receipts of rows: whom a peer audits, its verdicts, and the members that it sets aside.  Pure.

A member's READY commits to the receipts of the rows that it trained on (`trainer.receipts`).  After the round each peer
computes some rows of a few members again, at weights that everybody knows, and compares.  Nobody has to believe anybody: a
verdict counts only at the peer that came to it.  What another elector says makes us audit its suspects sooner, and no more.

A peer that is set aside does not count as ready here, and gets no place in our plans while others suffice
(`protocol.agreement.policy`): so it gains few tokens and, once enough electors have found out, loses its vote.  After some
rounds it gets another chance, and is audited first.  docs/internals/receipts.md says what this finds, and what it does not.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from random import Random
from statistics import fmean

from protocol.bounds import BoundedDict
from protocol.wire.identity import PeerId
from protocol.wire.presence import MAX_ASIDE

# ------------------------------------------------------------------------------------------------------------------------
# The verdict on some rows.


class ReceiptVerdict(Enum):
    """Outcome of an audit.  NONE: an audit can tell nothing, because honest receipts are not alike enough."""

    SOUND = "sound"
    SUSPECT = "suspect"
    NONE = "none"


@dataclass(frozen=True)
class VerdictRule:
    """Rule of the verdict.

    least_level: level below which there is no verdict.  mean: share of the level under which the mean of the rows is
    suspect.
    """

    least_level: float = 0.6
    mean: float = 0.7


LEAST_ROWS = 6
"""Fewest rows of a member, and of the auditor, on which there is a verdict."""
RULE = VerdictRule()
"""Bounds chosen on the runs of docs/results/receipts.md.  Single rows do not count: beside a member that cheats, single rows
of honest members are unlike, too."""


def mean_of(rows: Iterable[float]) -> float:
    """Return the mean of the cosines that are not nan; nan if these are fewer than `LEAST_ROWS`."""
    known = [each for each in rows if not math.isnan(each)]
    return fmean(known) if len(known) >= LEAST_ROWS else math.nan


def verdict(rows: Iterable[float], level: float, rule: VerdictRule = RULE) -> ReceiptVerdict:
    """Return the verdict on rows with these cosines, of which nan do not count.

    level: mean cosine of the auditor's own rows of the round, audited at the same weights; nan for none.
    """
    mean = mean_of(rows)
    if not level >= rule.least_level or math.isnan(mean):
        return ReceiptVerdict.NONE
    return ReceiptVerdict.SUSPECT if mean < rule.mean * level else ReceiptVerdict.SOUND


# ------------------------------------------------------------------------------------------------------------------------
# The draw of rows.


@dataclass(frozen=True)
class RowDraw:
    """Number of rows of a member and of the auditor, from `steps` inner steps of each."""

    steps: int
    rows: int
    own_rows: int

    @property
    def cost(self) -> int:
        """Rows to compute."""
        return self.rows + self.own_rows


FIRST, SECOND = RowDraw(12, 12, 12), RowDraw(12, 24, 12)
"""The draws of an audit; the second one is for members that the first one made suspect.

Many steps with one row each tell more than few steps with several: rows of one step are alike, and a member that left out
steps may have done the few that are drawn."""


@dataclass(frozen=True)
class DrawnRows:
    """Rows of one inner step: its place in the round, and the places of the rows in it."""

    step: int
    rows: tuple[int, ...]


def drawn_rows(
    random: Random, draw: RowDraw, steps: int, own_steps: int, width: int
) -> tuple[list[DrawnRows], list[DrawnRows]]:
    """Return the rows to audit of a member with `steps` inner steps, and of the auditor at the same shares of its round.

    One step is drawn from each of equal parts of the round, so that steps that were left out cannot be missed by chance.
    Fewer steps, or fewer rows in each, are made up for as far as possible.  width: rows of a step.
    """
    count = min(steps, max(draw.steps, -(-draw.rows // width)))
    bounds = [number * steps // count for number in range(count + 1)]
    places = [random.randrange(start, end) for start, end in pairwise(bounds)]
    own = sorted({round(place * (own_steps - 1) / max(1, steps - 1)) for place in places})
    return _rows_of(random, places, draw.rows, width), _rows_of(random, own, draw.own_rows, width)


def _rows_of(random: Random, places: Sequence[int], rows: int, width: int) -> list[DrawnRows]:
    few, more = divmod(rows, len(places))
    counts = [min(width, few + (number < more)) for number in range(len(places))]
    drawn = (tuple(sorted(random.sample(range(width), count))) for count in counts)
    return [DrawnRows(place, some) for place, some in zip(places, drawn, strict=True) if some]


# ------------------------------------------------------------------------------------------------------------------------
# What this peer knows of the members.


EACH_ROUND, SOONER, SOONER_OF_MANY = 2.0, 4.0, 8.0
"""Audits in a round of a member without a clean history, and of a doubtful or accused one, by all others together.  In large
runs an eighth of them audits the latter, at most `SOONER_OF_MANY`.

Not all audit it at once: its line has to carry the receipts to each of them."""
RARELY, FADES = 0.1, 0.9
"""Each sound audit makes the next one of that member less likely by `FADES`, down to `RARELY` (as in rollouts)."""
SHARE = 0.02
"""Most rows that audits compute, as a share of the rows that this peer trains on."""
SAVED = 4 * FIRST.cost
"""Most rows that are saved up for audits."""
ASIDE_ROUNDS, MOST_ASIDE_ROUNDS = 20, 320
"""Rounds for which a member is set aside, at first and at most; each time twice as many."""
MOST_WITHHELD, LATE, FORGIVEN = 3.0, 0.25, 0.5
"""Times that a member may fail to send the receipts to which it has committed: a late answer, or one that a broken line may
excuse, counts as `LATE`, and a sound audit makes up for `FORGIVEN`."""
MAX_KNOWN = 2048
MAX_ACCUSERS, MOST_FALSE, UNHEARD_ROUNDS = 256, 2, 1000
"""Accusers that are remembered, wrong accusations of one, and rounds in which it is not heard after them."""


@dataclass
class MemberRecord:
    """Knowledge of a member.

    sound: sound audits in a row.  audits, tokens: its audited contributions with a verdict, and the tokens that it claimed
    for them.  withheld: times without its receipts, less those that were forgiven.  is_suspect: True after a first draw that
    was suspect, until a second one was judged, maybe in a later round.  is_unclear: True if its last
    audit ended without a verdict; it is then drawn like any other member.
    until: round in which it gets another chance; 0 if it is not set aside.  times: times that it was set aside.
    reason: why it was set aside last.
    """

    sound: int = 0
    audits: int = 0
    tokens: int = 0
    withheld: float = 0.0
    is_suspect: bool = False
    is_unclear: bool = False
    until: int = 0
    times: int = 0
    reason: str = ""

    @property
    def chance(self) -> float:
        """Chance of an audit, relative to that of a member without a clean history."""
        return max(RARELY, FADES**self.sound)


class AuditBook:
    """The members that this peer has audited, and the rows that it may still compute."""

    def __init__(self, share: float = SHARE) -> None:
        self._share, self._rows = share, 0.0
        self._known = BoundedDict[PeerId, MemberRecord](MAX_KNOWN, lambda peer, known: not known.times)
        self._accused = BoundedDict[PeerId, tuple[PeerId, ...]](MAX_ACCUSERS)
        """The members that each accuser has named last."""
        self._behind: dict[PeerId, list[PeerId]] = {}
        """The accusers of each member that was drawn last: its audit judges them, whatever they say meanwhile."""
        self._false = BoundedDict[PeerId, int](MAX_ACCUSERS)
        """Audits of members that an accuser had named, and that were sound."""
        self._unheard = BoundedDict[PeerId, int](MAX_ACCUSERS)
        """The round from which an accuser is heard again."""
        self._round = 0
        """The round of the last draw."""

    @property
    def known(self) -> Mapping[PeerId, MemberRecord]:
        """The members of which we know something."""
        return self._known

    def of(self, peer: PeerId) -> MemberRecord:
        """Return the record of a member, which is kept."""
        return self._known.setdefault(peer, MemberRecord())

    # -- whom to audit ------------------------------------------------------------------------------------------------

    def note_trained(self, rows: int) -> None:
        """Note the rows of a round of ours, a share of which is saved for audits."""
        self._rows = min(SAVED, self._rows + self._share * rows)

    def spend(self, draw: RowDraw) -> None:
        """Note that the rows of a draw are computed."""
        self._rows -= draw.cost

    def accuse(self, accuser: PeerId, accused: Iterable[PeerId]) -> None:
        """Note the members that an elector has set aside, of which we audit one sooner at a time."""
        if self._round >= self._unheard.get(accuser, 0):
            self._accused[accuser] = tuple(accused)

    def choose(self, random: Random, members: Collection[PeerId], round: int) -> list[PeerId]:
        """Return the members to audit after a round, as many as we may compute rows for.

        First come the accused, suspects, and members that were set aside before.  members: the others of the round.
        """
        self._round, count = round, max(1, len(members))
        order = [peer for peer in sorted(members) if not self.is_aside(peer, round)]
        random.shuffle(order)
        first = {peer for peer in order if self._is_doubtful(peer)}
        for named in self._accused.values():
            if here := [peer for peer in named if peer in members and not self.is_aside(peer, round)]:
                first.add(random.choice(here))
        sooner = max(SOONER / count, min(1 / 8, SOONER_OF_MANY / count))
        drawn = [peer for peer in order if peer in first and random.random() < sooner]
        drawn += [p for p in order if p not in first and random.random() < EACH_ROUND / count * self._chance(p)]
        drawn = drawn[: max(0, int(self._rows // FIRST.cost))]
        self._behind = {peer: [each for each, named in self._accused.items() if peer in named] for peer in drawn}
        return drawn

    def _is_doubtful(self, peer: PeerId) -> bool:
        """Return True for a suspect, and for a member that was set aside and has passed no audit since."""
        known = self._known.get(peer)
        if known is None or known.is_unclear:
            return False
        return known.is_suspect or (known.times > 0 and not known.sound)

    def _chance(self, peer: PeerId) -> float:
        known = self._known.get(peer)
        return known.chance if known is not None else 1.0

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def is_aside(self, peer: PeerId, round: int) -> bool:
        """Return True if a member is set aside in this round."""
        known = self._known.get(peer)
        return known is not None and round < known.until

    def aside(self, round: int) -> frozenset[PeerId]:
        """Return the members that are set aside in this round."""
        return frozenset(peer for peer in self._known if self.is_aside(peer, round))

    def note_audited(self, peer: PeerId, tokens: int) -> None:
        """Note that an audit of a contribution came to a verdict.  tokens: those that the member claimed for it."""
        known = self.of(peer)
        known.audits, known.tokens, known.is_unclear = known.audits + 1, known.tokens + tokens, False

    def note_unclear(self, peer: PeerId) -> None:
        """Note an audit without a verdict: such a member must not take the place of others in every round."""
        self.of(peer).is_unclear = True

    def note_sound(self, peer: PeerId) -> None:
        """Note an audit that found nothing."""
        known = self.of(peer)
        known.sound, known.is_suspect = known.sound + 1, False
        known.withheld = max(0.0, known.withheld - FORGIVEN)
        for accuser in self._behind.pop(peer, ()):
            self._false[accuser] = self._false.get(accuser, 0) + 1
            if self._false[accuser] >= MOST_FALSE:
                self._unheard[accuser] = self._round + UNHEARD_ROUNDS
                del self._false[accuser]
                self._accused.pop(accuser, None)

    def note_suspect(self, peer: PeerId) -> None:
        """Note a first draw that was suspect: a second one decides, in a later round if this one ends before."""
        known = self.of(peer)
        known.sound, known.is_suspect = 0, True

    def next_draw(self, peer: PeerId) -> RowDraw:
        """Return the draw of a member's next audit."""
        known = self._known.get(peer)
        return SECOND if known is not None and known.is_suspect else FIRST

    def note_withheld(self, peer: PeerId, round: int, *, late: bool = False) -> bool:
        """Note receipts that were not sent; return True if the member is set aside for that.

        late: True to count it in part.
        """
        known = self.of(peer)
        known.sound, known.withheld = 0, known.withheld + (LATE if late else 1)
        if known.withheld < MOST_WITHHELD:
            return False
        return self.set_aside(peer, round, "again and again it did not send the receipts of its rows in time")

    def set_aside(self, peer: PeerId, round: int, reason: str) -> bool:
        """Set a member aside from this round on; return False if it was set aside already."""
        if self.is_aside(peer, round):
            return False
        known = self.of(peer)
        known.sound, known.withheld, known.is_suspect, known.reason = 0, 0, False, reason
        known.times += 1
        known.until = round + min(MOST_ASIDE_ROUNDS, ASIDE_ROUNDS * 2 ** (known.times - 1))
        for accuser in self._behind.pop(peer, ()):
            self._false.pop(accuser, None)
        return True

    def lift(self, peer: PeerId) -> bool:
        """Let a member take part again; return False if it was not set aside."""
        known = self._known.get(peer)
        if known is None or not known.until:
            return False
        known.until = 0
        return True

    def told_aside(self, round: int) -> list[PeerId]:
        """Return members that are set aside, for our heartbeats: of many, others in each round."""
        aside = sorted(self.aside(round))
        start = round * MAX_ASIDE % max(1, len(aside))
        return sorted((aside + aside)[start : start + min(MAX_ASIDE, len(aside))])
