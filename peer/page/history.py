"""History of a run as its folder tells it: rounds and credits in the records; names, held-out losses, samples in the log.

What was counted is remembered, also for the next process: records of a large run take a minute to count, and the event log
drops its oldest lines.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from math import fsum, isfinite
from pathlib import Path
from typing import Any

from peer.control.client import MOST, logged_events
from peer.control.curves import MOST_STEPS_BACK, AnswersOfRound, SampleHistory, StepBack
from peer.control.event_log import LOG_NAMES
from peer.control.ledger import CountedChain
from peer.control.names import kept_names
from peer.files import read_json, remove_left_overs, write_atomically
from protocol.chain.base import round_settings
from protocol.chain.credit import Ledger, reward_of
from protocol.chain.electorate import Electorate
from protocol.chain.progress import RunProgress, extension_of
from protocol.chain.store import Records
from protocol.chain.stored_run import ReadOnlyDisk
from protocol.events.events import EvalLoss, PeerJoined, RolledBack, RolloutsUsed, SamplesWritten, Started
from protocol.formatting import plain
from protocol.run.manifest import SignedManifest
from protocol.team import team_named
from protocol.wire.envelope import MAX_LOSS, MAX_NUMBER
from protocol.wire.hashes import Hash
from protocol.wire.messages import Commit


@dataclass(frozen=True)
class Round:
    """One committed round.

    rounds, tokens: counted towards a total, up to the end of this round.  loss, losses: of its members, as they claim, the
    latter by source.  reward: of its rollouts, as its members claim; None without rollouts.
    """

    rounds: int
    tokens: int
    members: int
    loss: float
    losses: Mapping[str, float]
    reward: float | None


@dataclass(frozen=True)
class HeldOut:
    """Held-out loss of a state, as a peer measured it.  losses: by source."""

    loss: float
    losses: Mapping[str, float]


TALLY_NAME = "tally.json"
TALLY_FORM = 2
"""Number of the file's form; a file of another form is not read."""
MAX_TALLY_BYTES = 256 << 20
SAVE_EVERY = 100
"""Records after which the file is written again; later records are counted again by the next process."""


class RunHistory:
    """History of the run in `folder`, up to the newest record and line of the log that `read` has seen.  Blocking.

    names, teams: of peers in the records, by peer ID, as they last named them.  held_out: by the rounds of the states.
    samples: of some of the states.  answers: of the last round in which this peer learned from rollouts, or None.
    steps_back: times at which this peer gave up rounds, ascending; nothing else here is of such a round.

    A file in the folder keeps what was counted; it is not used if it is damaged.  Nothing else in the folder changes, so the
    peer may run.
    """

    def __init__(self, signed: SignedManifest, folder: Path) -> None:
        self._signed, self._settings = signed, round_settings(signed.run, signed.manifest)
        self._chain = CountedChain(Records(ReadOnlyDisk(), folder / "records"), signed.run)
        self._folder, self._path = folder, folder / TALLY_NAME
        kept = kept_names(folder)
        self.names, self.teams = {peer: plain(name) for peer, name in kept.names.items()}, kept.teams
        self.held_out: dict[int, HeldOut] = {}
        self.samples = SampleHistory()
        self.answers: AnswersOfRound | None = None
        self.steps_back: list[StepBack] = []
        self._begin()
        self._load()

    def _begin(self) -> None:
        self.rounds: list[Round] = []
        self.progress = RunProgress(self._signed.manifest.goal)
        self._electorate = Electorate.start(self._settings)
        self._saved = 0

    @property
    def ledger(self) -> Ledger:
        """Credits of the counted records."""
        return self._chain.ledger

    def read(self) -> None:
        """Count the records that were added, all again if the peer has replaced counted ones; then read the log."""
        if self._chain.begins_anew():
            self._begin()
        while (commit := self._chain.count_next()) is not None:
            self._note(commit)
        self._read_log()
        if len(self.rounds) >= self._saved + SAVE_EVERY:
            self._save()

    def _note(self, commit: Commit) -> None:
        record, sources = commit.record, self._signed.manifest.data.sources
        self.progress = self.progress.after(self._electorate.counted_tokens(commit), extension_of(record))
        self._electorate = self._electorate.after_commit(commit)
        losses = {sources[source].name: loss for source, loss in record.losses.items() if source < len(sources)}
        self.rounds.append(
            Round(len(self.rounds) + 1, self.progress.tokens, len(record.members), record.loss, losses, reward_of(record))
        )

    def _read_log(self) -> None:
        """Apply the events in the log, in order; applying one again changes nothing."""
        kinds = (PeerJoined, Started, EvalLoss, SamplesWritten, RolloutsUsed, RolledBack)
        with suppress(OSError):
            for stamped in logged_events((self._folder / name for name in reversed(LOG_NAMES)), *kinds):
                match stamped.event:
                    case PeerJoined(peer, known, team) | Started(peer, known, team=team) if peer in self.ledger.credits:
                        self.names[peer], self.teams[peer] = plain(known), team_named(team)
                    case EvalLoss(rounds, loss, losses=losses) if 1 <= rounds <= len(self.rounds):
                        if all(abs(each) <= MAX_LOSS for each in (loss, *losses.values())):
                            self.held_out[rounds] = HeldOut(loss, losses)
                    case SamplesWritten(rounds, by, completions) if 0 <= rounds <= len(self.rounds):
                        self.samples.add(stamped.at, rounds, by, completions)
                    case RolloutsUsed(number, answers=answers) if number <= len(self.rounds):
                        self.answers = AnswersOfRound.read(number, answers) or self.answers
                    case RolledBack(rounds, abandoned):
                        self._go_back(stamped.at, rounds, abandoned)

    def _go_back(self, at: float, rounds: int, abandoned: int) -> None:
        """Drop what earlier events told of rounds that were given up, and note the step back if it is new."""
        for later in [known for known in self.held_out if known > rounds]:
            del self.held_out[later]
        self.samples.cut(rounds)
        if self.answers is not None and self.answers.round >= rounds:
            self.answers = None
        if all((known.at, known.rounds) != (at, rounds) for known in self.steps_back):
            tokens = self.rounds[min(rounds, len(self.rounds)) - 1].tokens if rounds > 0 and self.rounds else 0
            self.steps_back = [*self.steps_back, StepBack(at, rounds, tokens, abandoned)][-MOST_STEPS_BACK:]

    def _save(self) -> None:
        progress = self.progress
        fields = {
            "form": TALLY_FORM,
            "tip": self._chain.tip.hex(),
            "total": progress.goal.total,
            "progress": [progress.added, progress.begun, progress.first],
            "electorate": self._electorate.to_fields(),
            "rounds": [[each.tokens, each.members, each.loss, each.losses, each.reward] for each in self.rounds],
            "ledger": self.ledger.to_fields(),
            "held_out": [[rounds, each.loss, each.losses] for rounds, each in self.held_out.items()],
            "samples": self.samples.to_lists(),
            "steps_back": [list(astuple(each)) for each in self.steps_back],
        }
        with suppress(OSError):  # what is not kept is counted again
            remove_left_overs(self._folder, TALLY_NAME)
            write_atomically(self._path, json.dumps(fields, separators=(",", ":")).encode())
            self._saved = len(self.rounds)

    def _load(self) -> None:
        try:
            fields = read_json(self._path, MAX_TALLY_BYTES)
            if fields["form"] != TALLY_FORM:
                return
            rounds = [
                Round(
                    number,
                    _count(tokens),
                    _count(members),
                    _number(loss),
                    _losses(losses),
                    None if reward is None else _number(reward),
                )
                for number, (tokens, members, loss, losses, reward) in enumerate(fields["rounds"], 1)
            ]
            added, begun, first = map(_count, fields["progress"])
            goal = replace(self._signed.manifest.goal, total=_count(fields["total"]))
            progress = RunProgress(goal, len(rounds), rounds[-1].tokens, added, begun, first)
            electorate = Electorate.from_fields(self._settings, fields["electorate"])
            held_out = {_count(at): HeldOut(_number(loss), _losses(losses)) for at, loss, losses in fields["held_out"]}
            samples = SampleHistory.from_lists(fields.get("samples", ()))
            steps_back = StepBack.from_lists(fields.get("steps_back", ()))
            ledger, tip = Ledger.from_fields(fields["ledger"]), Hash(bytes.fromhex(fields["tip"]))
            for count in (each for credit in ledger.credits.values() for each in vars(credit).values()):
                _count(count)
        except (ValueError, ArithmeticError, TypeError, LookupError, AttributeError):
            return
        self._chain.resume(len(rounds), tip, ledger)
        self.rounds, self.progress, self._saved = rounds, progress, len(rounds)
        self._electorate = electorate
        self.held_out, self.samples, self.steps_back = held_out, samples, steps_back


def _losses(fields: Mapping[str, Any]) -> dict[str, float]:
    return {str(source): _number(loss) for source, loss in fields.items()}


def _count(value: Any) -> int:
    """Return a count in a file; raises ValueError for one that no run reaches."""
    if not 0 <= int(value) <= MOST:
        raise ValueError(f"{value} counts nothing")
    return int(value)


def _number(value: Any) -> float:
    """Return a number in a file; raises ValueError for one that no message has."""
    if not abs(float(value)) <= MAX_NUMBER:
        raise ValueError(f"{value} is neither a loss nor a reward")
    return float(value)


# ------------------------------------------------------------------------------------------------------------------------
# Curves with few points: each point stands for some rounds in a row.


@dataclass(frozen=True)
class CurvePoint:
    """Point of a curve that stands for some rounds in a row.

    rounds, tokens: done by all members up to the last of them.  value: mean.  low, high: least and largest value.
    """

    rounds: int
    tokens: int
    value: float
    low: float
    high: float


def curve(rounds: Sequence[Round], value: Callable[[Round], float | None], most: int) -> list[CurvePoint]:
    """Return at most `most` points; rounds without a finite value are left out."""
    step = max(1, -(-len(rounds) // most))
    points = []
    for start in range(0, len(rounds), step):
        part = rounds[start : start + step]
        values = [each for each in map(value, part) if each is not None and isfinite(each)]
        if values:
            mean = fsum(values) / len(values)
            points.append(CurvePoint(part[-1].rounds, part[-1].tokens, mean, min(values), max(values)))
    return points
