"""History of a run, read from the records and the event log in its folder, for all views of the past.

The page, trackers, pushes, the ledger, the interface's curves and this peer's rank are views of `RunHistory`.  The records
give rounds and credits; the log gives names, held-out losses, samples, and the times of rounds.  A running peer stores its
counts in a file, because records of a large run take a minute to count, the log drops its oldest lines, and no record says
on which day it was made.  Commands read that file, and count the later records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, timedelta
from math import fsum, isfinite
from pathlib import Path
from typing import Any, TypeVar

import trio

from peer.control.client import MOST, Stamped, logged_events
from peer.control.curves import RunCurves, StepBack
from peer.control.event_log import LOG_NAMES, EventLog
from peer.files import read_json, remove_left_overs, write_atomically
from protocol.chain.base import round_settings
from protocol.chain.credit import Credit, Ledger, reward_of
from protocol.chain.electorate import Electorate
from protocol.chain.progress import RunProgress, extension_of
from protocol.chain.records import genesis_tip, record_hash
from protocol.chain.store import Records
from protocol.chain.stored_run import ReadOnlyDisk
from protocol.events import events as ev
from protocol.events.status import ContributionStatus, NodeStatus
from protocol.formatting import plain
from protocol.run.manifest import SignedManifest
from protocol.team import team_named
from protocol.wire.envelope import MAX_LOSS
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId
from protocol.wire.messages import Commit

FILE_NAME = "history.json"
FORM = 1
"""Version of the file's format; a file of another version is not read."""
MAX_FILE_BYTES = 256 << 20
AT_ONCE = 200
"""Records that a running peer counts at a time, so that it can leave meanwhile."""
MOST_NEW = 16
"""Largest number of new rounds at one read that count as today's; more rounds were fetched, and are of earlier days."""
MAX_NAMES = 10_000
"""Largest number of members whose names are kept, the last seen ones: anybody can make many identities."""
EVENTS = (ev.RoundCommitted, ev.EvalLoss, ev.SamplesWritten, ev.RolloutsUsed, ev.RolledBack, ev.PeerJoined, ev.Started)


@dataclass(frozen=True, slots=True)
class Round:
    """One committed round.

    rounds, tokens: numbers up to the end of this round that count towards a total.  loss, losses: mean loss that the members
    claim, and the same by source.  reward: mean reward of the rollouts that the members claim; None without rollouts.
    """

    rounds: int
    tokens: int
    members: int
    loss: float
    losses: Mapping[str, float]
    reward: float | None


@dataclass(frozen=True)
class HeldOut:
    """Held-out loss of a state, as a peer measured it.  losses: held-out losses by source."""

    loss: float
    losses: Mapping[str, float]


class RunHistory:
    """History of the run in `folder`, up to the newest record and line of the log that `read` has seen.  Blocking.

    signed: the run's manifest.  me: the peer whose contribution is counted.  today: returns the local date.
    length, tip: number of counted records, and the hash of the last one.  names, teams: names and teams that the peers in
    the records last chose, by peer ID; an empty text means no team.  curves: curves of the events.

    Only `save` changes anything in the folder; a damaged file is ignored.
    """

    def __init__(self, signed: SignedManifest, folder: Path, me: str = "", today: Callable[[], date] = date.today) -> None:
        self.signed, self._settings = signed, round_settings(signed.run, signed.manifest)
        self._folder, self._me, self._today = folder, PeerId(me), today
        self._records = Records(ReadOnlyDisk(), folder / "records")
        self.names, self.teams = dict[str, str](), dict[str, str]()
        self.curves = RunCurves()
        self._day, self._tokens_today = today(), 0
        self._last_day: date | None = None
        """Last day with credit."""
        self._days = 0
        """Days in a row with credit, up to that day."""
        self._is_complete = False
        """True once all records that were there at the start are counted."""
        self._replaced = 0
        """Work of `me` in the records before a recount, while the recount runs; otherwise 0."""
        self._begin()
        self._load()
        self._is_saved = True

    def _begin(self) -> None:
        self.rounds: list[Round] = []
        self.ledger, self.tip = Ledger(), genesis_tip(self.signed.run)
        self.progress = RunProgress(self.signed.manifest.goal)
        self._electorate = Electorate.start(self._settings)
        self._streak = 0

    @property
    def length(self) -> int:
        """Number of counted records."""
        return len(self.rounds)

    @property
    def held_out(self) -> dict[int, HeldOut]:
        """Held-out losses by the rounds of their states, ascending; for old states, means of several losses."""
        by_source = [
            (name, {each.rounds: each.value for each in series.points}) for name, series in self.curves.by_source.items()
        ]
        return {
            each.rounds: HeldOut(
                each.value, {name: values[each.rounds] for name, values in by_source if each.rounds in values}
            )
            for each in self.curves.held_out.points
            if 1 <= each.rounds <= self.length
        }

    @property
    def steps_back(self) -> list[StepBack]:
        """Times at which this peer gave up rounds, ascending; the rest of the history has nothing of those rounds."""
        tokens = [0, *(each.tokens for each in self.rounds)]
        return [replace(each, tokens=tokens[min(max(0, each.rounds), self.length)]) for each in self.curves.steps_back]

    # -- records ------------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Count the records that were added, and read the log; reading a line again changes nothing."""
        while not self.count():
            pass
        self.read_log()

    def count(self) -> bool:
        """Count the next records, or all again if the peer has replaced counted ones; return False if there may be more."""
        last = self._records.at(self.length - 1) if self.length else None
        if self.length and (last is None or record_hash(last.record) != self.tip):
            self._is_complete, self._replaced = False, _work(self._mine)
            self._begin()
        start, before = self.length, _work(self._mine)
        while self.length < start + AT_ONCE and (commit := self._records.at(self.length)) is not None:
            if commit.record.previous != self.tip:
                break
            self._add(commit)
        is_done = self.length < start + AT_ONCE
        if self._is_complete and self.length <= start + MOST_NEW:
            self._begin_day()
            tokens = _work(self._mine) - before
            self._tokens_today += tokens
            if tokens and self._last_day != self._day:
                self._days = self._days + 1 if self._last_day == self._day - timedelta(days=1) else 1
                self._last_day = self._day
        self._is_complete = self._is_complete or is_done
        if is_done:  # rounds that were given up are of today: older ones are rarely given up
            self._tokens_today = max(0, self._tokens_today - max(0, self._replaced - _work(self._mine)))
            self._replaced = 0
        return is_done

    def _add(self, commit: Commit) -> None:
        record, sources, mine = commit.record, self.signed.manifest.data.sources, self._mine
        self._is_saved = False
        self.ledger.add(commit)
        is_counted = (self._mine.rounds, self._mine.batches) != (mine.rounds, mine.batches)
        self._streak = self._streak + 1 if is_counted else 0
        self.progress = self.progress.after(self._electorate.counted_tokens(commit), extension_of(record))
        self._electorate = self._electorate.after_commit(commit)
        losses = {sources[source].name: loss for source, loss in record.losses.items() if source < len(sources)}
        members, reward = len(record.members), reward_of(record)
        self.rounds.append(Round(self.length + 1, self.progress.tokens, members, record.loss, losses, reward))
        self.tip = record_hash(record)

    # -- events -------------------------------------------------------------------------------------------------------

    def read_log(self) -> None:
        """Apply the events in the log, in order, without events of records that are not counted."""
        with suppress(OSError):
            for stamped in logged_events((self._folder / name for name in reversed(LOG_NAMES)), *EVENTS):
                match stamped.event:
                    case ev.EvalLoss(rounds) | ev.SamplesWritten(rounds) if not 0 <= rounds <= self.length:
                        continue
                    case ev.RolloutsUsed(number) | ev.RoundCommitted(number) if not 0 <= number <= self.length:
                        continue
                self.apply(stamped)

    def apply(self, stamped: Stamped) -> None:
        """Apply the next event of this peer."""
        match stamped.event:
            case ev.PeerJoined(peer, name, team) | ev.Started(peer, name, team=team):
                self._note(peer, name, team)
            case ev.EvalLoss(loss=loss, losses=losses) if any(abs(each) > MAX_LOSS for each in (loss, *losses.values())):
                return  # a damaged log
            case _:
                self.curves.apply(stamped)
                self._is_saved = False

    def note_names(self, status: NodeStatus) -> None:
        """Store the names and teams that the peers of a running node have now."""
        names, teams = status.names(), status.teams()
        for peer, name in names.items():
            self._note(peer, name, teams[peer])

    def _note(self, peer: str, name: str, team: str) -> None:
        if peer in self.ledger.credits:
            known = self.names.pop(peer, None), self.teams.get(peer)  # the last entry of the dictionary was seen last
            self.names[peer], self.teams[peer] = plain(name), team_named(team)
            self._is_saved = self._is_saved and known == (self.names[peer], self.teams[peer])
        if len(self.names) > MAX_NAMES:
            oldest = next(iter(self.names))
            del self.names[oldest], self.teams[oldest]

    # -- the contribution of one peer ---------------------------------------------------------------------------------

    @property
    def _mine(self) -> Credit:
        return self.ledger.credits.get(self._me, Credit())

    def _begin_day(self) -> None:
        if self._day != (today := self._today()):
            self._day, self._tokens_today = today, 0

    def contribution(self) -> ContributionStatus:
        """Return the contribution of `me`, with its place in the ledger as rank."""
        self._begin_day()
        credits, mine = self.ledger.credits, self._mine
        order = mine.tokens, mine.accepted_tokens
        is_recent = self._last_day is not None and self._last_day >= self._day - timedelta(days=1)
        ahead = sum((each.tokens, each.accepted_tokens) > order for each in credits.values())
        return ContributionStatus(
            rounds=mine.rounds,
            tokens=_work(mine),
            tokens_today=self._tokens_today,
            rank=1 + ahead if _work(mine) else None,
            contributors=sum(_work(each) > 0 for each in credits.values()),
            streak=self._streak,
            days=self._days if is_recent else 0,
        )

    # -- the file -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write the file, if all records are counted and something is new.  Only a running peer does so."""
        if not self._is_complete or self._is_saved:
            return
        progress = self.progress
        fields = {
            "form": FORM,
            "tip": self.tip.hex(),
            "total": progress.goal.total,
            "progress": [progress.added, progress.begun, progress.first],
            "electorate": self._electorate.to_fields(),
            "rounds": [[each.tokens, each.members, each.loss, each.losses, each.reward] for each in self.rounds],
            "ledger": self.ledger.to_fields(),
            "curves": self.curves.to_fields(),
            "names": {peer: [name, self.teams[peer]] for peer, name in self.names.items()},
            "streak": self._streak,
            "day": self._day.isoformat(),
            "tokens_today": self._tokens_today,
            "last_day": self._last_day.isoformat() if self._last_day is not None else None,
            "days": self._days,
        }
        with suppress(OSError):  # the store reports a full disk; unsaved records are counted again
            remove_left_overs(self._folder, FILE_NAME)
            write_atomically(self._folder / FILE_NAME, json.dumps(fields, separators=(",", ":")).encode())
            self._is_saved = True

    def _load(self) -> None:
        try:
            fields = read_json(self._folder / FILE_NAME, MAX_FILE_BYTES)
            if fields["form"] != FORM or not _is_plausible(fields):
                return
            rounds = [
                Round(
                    number,
                    int(tokens),
                    int(members),
                    float(loss),
                    _losses(losses),
                    None if reward is None else float(reward),
                )
                for number, (tokens, members, loss, losses, reward) in enumerate(fields["rounds"], 1)
            ]
            goal = replace(self.signed.manifest.goal, total=int(fields["total"]))
            added, begun, first = map(int, fields["progress"])
            progress = RunProgress(goal, len(rounds), rounds[-1].tokens, added, begun, first)
            electorate = Electorate.from_fields(self._settings, fields["electorate"])
            ledger, tip = Ledger.from_fields(fields["ledger"]), Hash(bytes.fromhex(fields["tip"]))
            curves = RunCurves.from_fields(fields["curves"])
            names = {str(peer): (plain(name), team_named(team)) for peer, (name, team) in fields["names"].items()}
            streak, tokens_today, days = (int(fields[name]) for name in ("streak", "tokens_today", "days"))
            day, last = date.fromisoformat(fields["day"]), fields["last_day"]
            last_day = date.fromisoformat(last) if last is not None else None
        except (ValueError, ArithmeticError, TypeError, LookupError, AttributeError):
            return
        self.rounds, self.progress, self.ledger, self.tip = rounds, progress, ledger, tip
        self._electorate, self.curves, self._streak = electorate, curves, streak
        self.names, self.teams = ({peer: each[place] for peer, each in names.items()} for place in (0, 1))
        self._day, self._tokens_today, self._last_day, self._days = day, tokens_today, last_day, days


def _work(credit: Credit) -> int:
    return credit.tokens + credit.accepted_tokens


def _losses(fields: Mapping[str, Any]) -> dict[str, float]:
    return {str(source): float(loss) for source, loss in fields.items()}


def _is_plausible(fields: Any) -> bool:
    """Return True if all numbers in a value from JSON are possible in a run."""
    if isinstance(fields, dict | list):
        return all(map(_is_plausible, fields.values() if isinstance(fields, dict) else fields))
    return not isinstance(fields, int | float) or abs(fields) <= MOST  # False for NaN


# ------------------------------------------------------------------------------------------------------------------------
# Curves with few points: each point stands for some rounds in a row.


@dataclass(frozen=True)
class CurvePoint:
    """Point of a curve that stands for some rounds in a row.

    rounds, tokens: numbers that all members had done at the last of these rounds.  value: mean.  low, high: least and
    largest value.
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


# ------------------------------------------------------------------------------------------------------------------------
# The history of a running peer.


LOOK_S = 2.0
PIECE_S = 0.1
"""Pause between two pieces of a long chain."""
SAVE_S = 60.0
"""Seconds between two writes; if this process is killed, rounds since the last write do not count as today's."""

T = TypeVar("T")


class HistoryKeeper:
    """Keeps the history of a running peer's run current, and on disk, in `run`.

    make: opens the history; None while the run's manifest is unknown.  log: event log of the peer.  tip: returns the hash of
    the newest record; None while the node does not run.  status: returns the status of the node.  contribution: this peer's
    contribution; None before all records are counted.
    """

    def __init__(
        self,
        make: Callable[[], RunHistory | None],
        log: EventLog,
        tip: Callable[[], Hash | None],
        status: Callable[[], NodeStatus],
    ) -> None:
        self._make, self._log, self._tip, self._status = make, log, tip, status
        self._history: RunHistory | None = None
        self._lock = trio.Lock()
        self.contribution: ContributionStatus | None = None

    async def run(self) -> None:
        """Count until cancelled."""
        saved_at = trio.current_time()
        with self._log.subscribe(float("inf")) as events:
            while (history := await trio.to_thread.run_sync(self._make)) is None:
                await trio.sleep(LOOK_S)
            try:
                async with self._lock:
                    self._history = history
                    await self._count(history)  # before the node runs, so that all later records are new
                    await trio.to_thread.run_sync(history.read_log)
                while True:
                    async with self._lock:
                        if self._tip() not in (None, history.tip):
                            await self._count(history)
                        for stamped in events.waiting():
                            history.apply(stamped)
                        self.contribution = history.contribution()
                        if trio.current_time() - saved_at >= SAVE_S:
                            saved_at = trio.current_time()
                            history.note_names(self._status())
                            await trio.to_thread.run_sync(history.save)
                    await trio.sleep(LOOK_S)
            finally:
                with trio.CancelScope(shield=True):
                    async with self._lock:
                        history.save()

    async def read(self, view: Callable[[RunHistory], T]) -> T | None:
        """Return the result of `view` for the whole history, computed in a thread; None while the run is unknown."""
        async with self._lock:
            if (history := self._history) is None:
                return None
            await self._count(history)
            return await trio.to_thread.run_sync(view, history)

    async def _count(self, history: RunHistory) -> None:
        while not await trio.to_thread.run_sync(history.count):
            await trio.sleep(PIECE_S)
