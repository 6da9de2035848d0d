"""Progress of a run, the organiser's amendments to it, and its sets of tasks.

All three are functions of the chain, and so the same for all peers.

The total is a number of rounds or of tokens.  Rounds are counted.  The tokens of each member of a record are weighted by the
share of its chunks that were averaged, and bounded (`counted_tokens`), because nobody can check a member's claim.  In an
open run, where keys are free, the electors' claims are the bound, for each member and for all other members together.  So
a crowd of keys without seats adds at most half of what the electors do, and ends no run in one record.  Where the members
vote instead (the first record of a run without named founders, and with `founders = "anyone"` until four peers are seated),
a crowd of which more are members than can be liars counts as it claims: four keys beside three honest members end a run in
one record.

The first record that reaches the total is the last one: the only record that may follow it carries the organiser's
`Extension` to a larger total.  The learning rate follows from the share of the total that is done; an extension that is made
during the cooldown of the rate, or after the end, begins a new stage: the rate warms up again, stays, and cools down in the
last share of the added rounds or tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from kernels.aggregate import weights_of
from kernels.schedule import Place, RatePhase, rate_phase, scheduled_rate, warmed
from protocol.chain.credit import trained
from protocol.run.manifest import RunManifest
from protocol.run.sections import Goal, Unit
from protocol.wire import canonical
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import decode_body
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import MAX_TOTAL, Commit, Extension, Record, unpack
from protocol.wire.rollouts import MAX_AMENDMENT_BYTES, MAX_SET_TASKS, AdmittedSet, Amendment

# ------------------------------------------------------------------------------------------------------------------------
# Amendments: signed changes of the organiser to a run that has begun, carried in the chain.
#
# A plan carries at most one amendment, and so does the record made from it: of the task sets (`protocol.wire.rollouts`), or
# an extension of the run (`protocol.wire.messages`).


def open_amendment(raw: bytes, run: Hash, organiser: PeerId) -> Amendment | Extension:
    """Return the amendment that the organiser of this run signed; raises `Malformed` for anything else."""
    sender, body, _ = unpack(raw, run, max_bytes=MAX_AMENDMENT_BYTES)
    if not isinstance(body, Amendment | Extension) or sender != organiser:
        raise Malformed("not an amendment of the organiser")
    return body


def extension_of(record: Record) -> Extension | None:
    """Return the extension of the run in a verified record; None if it carries none."""
    body = _amendment_of(record)
    return body if isinstance(body, Extension) else None


def _amendment_of(record: Record) -> Amendment | Extension | None:
    if record.amendment is None:
        return None
    fields = canonical.decode(record.amendment, max_bytes=MAX_AMENDMENT_BYTES)
    assert isinstance(fields, dict)
    kind: type[Amendment | Extension] = Extension if fields["kind"] == Extension.KIND else Amendment
    return decode_body(kind, fields["body"], max_bytes=MAX_AMENDMENT_BYTES)


# ------------------------------------------------------------------------------------------------------------------------
# Task sets from the crowd that are in force at a version: a function of the chain, and so the same for all peers.
#
# A record may carry an amendment that the organiser signed; its sets are in force from the version that the record makes.
# Members of a record may vote sets out on the basis of their counts.  If more than half of the voters are against a set in
# one record, the set is excluded from then on, until the organiser gives it another slot.


OWN_PROBLEMS = 1 << 40
"""First number of a problem from the crowd; lower numbers belong to the manifest's environment."""


def first_problem(slot: int) -> int:
    """Return the number of the first problem of the set in a slot; its other problems follow."""
    return OWN_PROBLEMS + slot * MAX_SET_TASKS


def place_of(problem: int) -> tuple[int, int] | None:
    """Return the slot of a problem's set and the task's number in it; None for a problem of the manifest's environment."""
    return divmod(problem - OWN_PROBLEMS, MAX_SET_TASKS) if problem >= OWN_PROBLEMS else None


@dataclass(frozen=True)
class TasksInForce:
    """State of the task sets at a version.

    number: number of the newest amendment, 0 before the first one.  percent: percentage of the problems that come from the
    sets.  sets: sets of that amendment.  fallen: slots of the sets that were voted out.  highest: highest slot ever given.
    since: first version with that amendment.  fell: first version without the set that was voted out last.
    """

    number: int = 0
    percent: int = 0
    sets: tuple[AdmittedSet, ...] = ()
    fallen: frozenset[int] = frozenset()
    highest: int = 0
    since: int = 0
    fell: int = 0

    @cached_property
    def live(self) -> tuple[AdmittedSet, ...]:
        """Sets from which problems are drawn, by slot."""
        return tuple(each for each in self.sets if each.slot not in self.fallen)

    def flaw(self, amendment: Amendment, *, has_rollouts: bool = True) -> None:
        """Raise `Malformed` if this amendment cannot come next."""
        if not has_rollouts:
            raise Malformed("an amendment of tasks in a run without rollouts")
        if amendment.number <= self.number:
            raise Malformed(f"an amendment with the number {amendment.number}, after one with {self.number}")
        if any(each.slot <= self.highest and each not in self.sets for each in amendment.sets):
            raise Malformed("an amendment that gives a slot to another set")

    def after(self, record: Record, electors: Sequence[PeerId]) -> TasksInForce:
        """Return the state after one more, verified record.  electors: the voters; if empty, the record's members vote."""
        amendment = _amendment_of(record)
        new = amendment if isinstance(amendment, Amendment) else None
        if new is None and not self.live:
            return self
        voters: set[str] = {*electors} or {member.peer for member in record.members}
        against = [member.against or 0 for member in record.members if member.peer in voters]
        fallen = self.fallen | {
            each.slot for at, each in enumerate(self.sets) if 2 * sum(mask >> at & 1 for mask in against) > len(voters)
        }
        version = record.round + 1
        fell = self.fell if fallen == self.fallen else version
        if new is None:
            return self if fallen == self.fallen else replace(self, fallen=fallen, fell=fell)
        slots = [each.slot for each in new.sets]
        highest, left = max([self.highest, *slots]), fallen.intersection(slots)
        return TasksInForce(new.number, new.percent, tuple(new.sets), left, highest, since=version, fell=fell)


# ------------------------------------------------------------------------------------------------------------------------
# The progress of a run.


ENDLESS = Goal(Unit.ROUNDS, MAX_TOTAL, 0.0)


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run after some of its records.

    goal: set by the manifest and the extensions so far.  rounds, tokens: amounts done.  added: tokens of the last record.
    begun: amount done, in the goal's unit, when the present stage began.  first: first round of that stage.
    is_out_of_rows: True once all rows of the run's data are read, if they are limited (`protocol.chain.leases`).
    """

    goal: Goal = ENDLESS
    rounds: int = 0
    tokens: int = 0
    added: int = 0
    begun: int = 0
    first: int = 0
    is_out_of_rows: bool = False

    @property
    def done(self) -> int:
        """Amount done, in the goal's unit."""
        return self.tokens if self.goal.unit is Unit.TOKENS else self.rounds

    @property
    def is_over(self) -> bool:
        """True if the run has reached its total, or has no row left to read."""
        return self.done >= self.goal.total or self.is_out_of_rows

    @property
    def share(self) -> float:
        """Share of the present stage that is done, 0 to 1."""
        return self._share(self.done)

    @property
    def next_share(self) -> float:
        """Share after the next round, if the next round adds as much as the last one."""
        return self._share(self.done + (self.added if self.goal.unit is Unit.TOKENS else 1))

    def _share(self, done: int) -> float:
        return min(1.0, max(0, done - self.begun) / (self.goal.total - self.begun))

    def check(self, extension: Extension | None) -> None:
        """Check that the next record may carry this extension, or none; raises `Malformed` otherwise."""
        if extension is None or self.is_out_of_rows:
            if self.is_over:
                raise Malformed("a record after the end of the run")
        elif extension.total <= self.goal.total:
            raise Malformed(f"an extension to {extension.total} {self.goal.unit}, but the total is {self.goal.total}")
        elif extension.total <= self.done:
            raise Malformed(f"an extension to {extension.total} {self.goal.unit}, but {self.done} are done already")

    def extended(self, extension: Extension) -> RunProgress:
        """Return the progress with the total of an extension that `check` accepted, from the next round on."""
        goal = replace(self.goal, total=extension.total)
        if self.share < 1 - self.goal.cooldown:
            return replace(self, goal=goal)
        return replace(self, goal=goal, begun=self.done, first=self.rounds)

    def after(self, added: int, extension: Extension | None) -> RunProgress:
        """Return the progress after one more record, which has been verified.

        added: tokens of the record that count (`counted_tokens`).  extension: the extension in the record.
        """
        before = self if extension is None else self.extended(extension)
        return replace(before, rounds=self.rounds + 1, tokens=self.tokens + added, added=added)


def rate_of(manifest: RunManifest, progress: RunProgress) -> tuple[float, RatePhase]:
    """Return the learning rate of the first step of the next round, and its phase; rates on rollouts never decay."""
    inner, steps = manifest.inner, manifest.steps_of(progress.rounds)
    if manifest.rl is not None and manifest.learns_from_rollouts(progress.rounds):
        rl, step = manifest.rl, progress.rounds * steps
        phase = RatePhase.WARM_UP if step < rl.warmup_steps else RatePhase.STABLE
        return rl.lr * warmed(step, rl.warmup_steps), phase
    place = Place((progress.rounds - progress.first) * steps, progress.share)
    return scheduled_rate(inner, place), rate_phase(inner, place)


def data_total(manifest: RunManifest, progress: RunProgress) -> int:
    """Return the tokens of all members after which `data.epochs` ends the run; 0 if its total comes first.

    A total of rounds is compared at the mean speed so far, and before the first round at the speed of one member.
    """
    end, goal = manifest.data_end, progress.goal
    if end is None:
        return 0
    if goal.unit is Unit.TOKENS:
        is_first = end.tokens <= goal.total
    elif progress.rounds and progress.tokens:
        is_first = progress.tokens * goal.total >= progress.rounds * end.tokens
    else:
        is_first = end.rounds <= goal.total
    return end.tokens if is_first else 0


PACED_ROUNDS = 8
"""Rounds over which the tokens of a member are counted: in a single round, chance would decide."""


class RunPace:
    """Speed of the run and its members as this peer measures it: the time between records that it saw being made."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._seconds, self._tokens = 0.0, 0
        self._rounds: deque[tuple[float, Mapping[PeerId, int]]] = deque(maxlen=PACED_ROUNDS)

    def note(self, commit: Commit, now: float) -> None:
        """Note a new record."""
        if self._at is not None:
            self._seconds, self._tokens = now - self._at, sum(counted_by_member(commit))
            self._rounds.append((self._seconds, {peer: each.tokens for peer, each in trained(commit)}))
        self._at = now

    def counted(self, peer: PeerId) -> float | None:
        """Return the tokens a second for which a member got credit in the last rounds; None if it is in none of them.

        It is less than the member's speed of training, because a round also takes the exchange, and waits for slow members.
        """
        seconds = sum(seconds for seconds, _ in self._rounds)
        if seconds <= 0 or not any(peer in tokens for _, tokens in self._rounds):
            return None
        return sum(tokens.get(peer, 0) for _, tokens in self._rounds) / seconds

    def pause(self) -> None:
        """Ignore the time until the next record: after a pause, it says nothing about the speed."""
        self._at = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens a second of all members; None before two records in a row were noted."""
        return self._tokens / self._seconds if self._seconds > 0 else None

    def left_s(self, progress: RunProgress, data_total: int = 0) -> float | None:
        """Return the seconds until the run ends, at the speed of the last round; None if that is unknown.

        data_total: the result of `data_total`.
        """
        added, left = (progress.added if progress.goal.unit is Unit.TOKENS else 1), progress.goal.total - progress.done
        if data_total:
            added, left = progress.added, data_total - progress.tokens
        if self._seconds <= 0 or not added:
            return None
        return max(0, left) / added * self._seconds


# ------------------------------------------------------------------------------------------------------------------------
# Tokens of a record that count.


MOST_OF_OTHERS = Fraction(1, 2)
"""Most tokens of all other members together, as a multiple of the electors' tokens, if keys are free."""


def counted_tokens(commit: Commit, electors: Collection[PeerId] | None = None, liars: int = 0) -> int:
    """Return the tokens of a record that count towards the run's total.

    electors: the electors of the tip that the record stands on, if unknown keys are admitted; None if the organiser admits
    members.  liars: number of liars that the electors tolerate.

    With `electors`, a member counts for the tokens that it claims, but at most for a number that more electors claim than
    can be liars; so no crowd of keys moves the limit.  All members that are not electors count for at most half as much as
    the electors.  If too few electors are members, the record adds nothing.
    """
    if electors is None:
        return sum(counted_by_member(commit))
    members = commit.record.members
    claims = sorted((member.tokens for member in members if member.peer in electors), reverse=True)
    limit = claims[liars] if liars < len(claims) else 0
    own = others = 0
    for member, share in zip(members, commit.averaged(), strict=True):
        tokens = min(member.tokens, limit) * share // len(commit.index)
        if member.peer in electors:
            own += tokens
        else:
            others += tokens
    return own + min(others, int(MOST_OF_OTHERS * own))


def counted_by_member(commit: Commit) -> list[int]:
    """Return the tokens of each member of a record, limited like its weight in an average, times its averaged share.

    The limit (`kernels.aggregate.weights_of`) follows from the median member, so it is a bound only if keys are not free.
    """
    members, chunks = commit.record.members, len(commit.index)
    bounded = weights_of("clip", [member.tokens for member in members])
    return [tokens * share // chunks for tokens, share in zip(bounded, commit.averaged(), strict=True)]
