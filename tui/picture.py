"""Picture of a peer for a viewer: events and status folded into the data that the panels draw.

Pure: no clock, socket or terminal.  Durations come from the peer's monotonic clock, in the events; everything is bounded, so
that a viewer may watch for months.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass, field, fields, replace

from peer.control.client import Stamped
from peer.control.curves import RunCurves
from protocol.events import events as ev
from protocol.events.rollout_tally import RolloutTally
from protocol.events.status import PeerStatus
from protocol.formatting import naming
from tui.contributions import Contributions

KEPT_LINES = 10_000
KEPT_ROUNDS = 500
KEPT_RATES = 600
"""Number of rates kept: one for each status, one status a second."""
KEPT_ALARMS = 20
KEPT_ENDED = 20
KEPT_AUDITS = 2048

TRAINING, WAIT, EXCHANGE, VOTES, COMMIT = "train", "wait", "exchange", "votes", "commit"
PARTS = (TRAINING, WAIT, EXCHANGE, VOTES, COMMIT)
"""Parts of a round, in order."""
TRAINED_AHEAD = "trained ahead"
"""Time of the other parts in which this peer trained for the next round."""
PLUMBING = (
    ev.ReadySent,
    ev.ExchangeFinished,
    ev.RoundsConfirmed,
    ev.StateApplied,
    ev.CheckpointWritten,
    ev.RolloutsGenerated,
    ev.RolloutsUsed,
    ev.BatchJudged,
)
"""Events that the log shows only on request: every round has them, and its record or a verdict tells the outcome."""
TOLD_PHASES = ("starting", "syncing", "paused", "seeding", "stopping")
"""Phases that the log tells; the others alternate within each round."""
PART_OF_PHASE = {
    "computing": TRAINING,
    "ready": WAIT,
    "exchanging": EXCHANGE,
    "voting": VOTES,
    "applying": COMMIT,
}


def log_level(event: ev.Event) -> str:
    """Return the severity of an event in the log: its own, and debug for the plumbing of a round."""
    match event:
        case ev.PhaseChanged(phase) if phase not in TOLD_PHASES:
            return "debug"
        case ev.RoundProposed(attempt=0):
            return "debug"
        case _:
            return "debug" if isinstance(event, PLUMBING) else event.severity


@dataclass(frozen=True)
class LogLine:
    """Line of the log.  at: seconds since 1970.  level: info, warning, error or debug."""

    at: float
    level: str
    text: str


@dataclass
class RoundPicture:
    """A round as this peer saw it.

    began: time on its monotonic clock.  seconds: time in each part so far, and of `TRAINED_AHEAD`.  members: number of
    members in the round's record, 0 before the record.  mine: True if this peer is one of these members, None before the
    record.  fragment, fragments: as in the event `RoundCommitted`.
    """

    round: int
    began: float
    seconds: dict[str, float] = field(default_factory=dict)
    members: int = 0
    mine: bool | None = None
    fragment: int = 0
    fragments: int = 1

    @property
    def busy_share(self) -> float | None:
        """Share of its time in which this peer trained; None if no training was seen, as when the view opened later."""
        trained = self.seconds.get(TRAINING, 0.0) + self.seconds.get(TRAINED_AHEAD, 0.0)
        return trained / sum(self.seconds.get(part, 0.0) for part in PARTS) if trained else None


@dataclass
class PeerAudit:
    """Outcomes of this peer's checks of another one, as far as events told them.

    right: its averages that were recomputed and found right.  lost: exchanges in which it stopped delivering.  proven: the
    lie for which it was ejected; empty without one.
    """

    right: int = 0
    lost: int = 0
    proven: str = ""


@dataclass
class Picture:
    """Picture of one peer, updated by events and by status."""

    status: PeerStatus | None = None
    names: dict[str, str] = field(default_factory=dict)
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    curves: RunCurves = field(default_factory=RunCurves)
    """Losses of the run since the view or the peer knows them."""
    evals: deque[ev.EvalLoss] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    """Held-out losses, the last one of each state."""
    ready: ev.ReadySent | None = None
    """This peer's last contribution."""
    rounds: deque[RoundPicture] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    """Rounds, the current one last."""
    chunks: tuple[int, int, tuple[str, ...]] | None = None
    """Chunks of the running exchange: number done, total, and the peers that the exchange waits for."""
    coming: dict[str, ev.TransferProgress] = field(default_factory=dict)
    """Blobs being fetched, by name, in the order of their last progress."""
    ended: deque[ev.TransferEnded] = field(default_factory=lambda: deque(maxlen=KEPT_ENDED))
    rates: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_RATES))
    """Bytes per second up and down, a pair for each status."""
    alarms: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_ALARMS))
    """Events that a person must not overlook, until acknowledged."""
    rollouts: RolloutTally = field(default_factory=RolloutTally)
    contributions: Contributions = field(default_factory=Contributions)
    """Contributions of all peers; empty before the peer told them."""
    audits: dict[str, PeerAudit] = field(default_factory=dict)
    """Outcomes of checks, by peer."""
    peer_rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Bytes per second to and from each other peer, between the last two statuses."""
    committed: int = 0
    """Number of committed rounds seen; `rounds` has the latest ones."""
    counted: int = 0
    """Number of committed rounds seen that include this peer's contribution."""
    streak: int = 0
    """Number of the latest rounds in a row that include this peer's contribution."""
    _phase: tuple[str, str, float] = ("", "", 0.0)
    """The peer's phase, its reason to be idle, and the time since when."""
    _moved: tuple[float, int, int] | None = None

    def update(self, status: PeerStatus) -> None:
        """Store the present status."""
        self.names.update(status.names())
        moved = (status.uptime_s, status.up_bytes, status.down_bytes)
        if self._moved is not None and (seconds := moved[0] - self._moved[0]) > 0:
            self.rates.append((max(0, moved[1] - self._moved[1]) / seconds, max(0, moved[2] - self._moved[2]) / seconds))
        if self._moved is None or moved[0] != self._moved[0]:
            self._moved = moved
        self._measure_peers(status)
        self.status = status
        self.rollouts.me = status.peer

    def _measure_peers(self, status: PeerStatus) -> None:
        before = self.status
        seconds = status.uptime_s - before.uptime_s if before is not None else 0.0
        if before is None or seconds <= 0:
            return
        carried = {each.peer: (each.up_bytes, each.down_bytes) for each in before.swarm}
        self.peer_rates = {
            each.peer: (max(0, each.up_bytes - old[0]) / seconds, max(0, each.down_bytes - old[1]) / seconds)
            for each in status.swarm
            if (old := carried.get(each.peer)) is not None
        }

    def running(self) -> RoundPicture | None:
        """Return the running round up to the last status; None between rounds."""
        if not self.rounds or self.rounds[-1].mine is not None:
            return None
        running = replace(self.rounds[-1], seconds=dict(self.rounds[-1].seconds))
        phase, why, since = self._phase
        if self.status is not None and since:
            _add_part(running.seconds, phase, why, self.status.mono - since)
        return running

    @property
    def incomplete_chunks(self) -> tuple[int, int, tuple[str, ...]] | None:
        """Chunks of the running exchange; None once all are done, because the peer then waits for something else."""
        return self.chunks if self.chunks is not None and self.chunks[0] < self.chunks[1] else None

    @property
    def has_rollouts(self) -> bool:
        """True if the status or an event showed that the run has rollouts."""
        return self.rollouts.seen or (self.status is not None and self.status.rollouts is not None)

    @property
    def has_samples(self) -> bool:
        """True if the status or an event showed that the run has prompts, or if answers to problems are known."""
        definition = self.status.run_definition if self.status is not None else None
        has_prompts = definition is not None and bool(definition.prompts)
        return has_prompts or bool(self.curves.samples.states) or self.curves.answers is not None

    def apply(self, stamped: Stamped) -> None:
        """Fold an event into the picture."""
        event = stamped.event
        match event:
            case ev.Started(peer):
                self.rollouts.me = peer
                self.chunks, self._moved, self._phase = None, None, ("", "", 0.0)
                self.coming.clear()
            case ev.TransferProgress(blob=blob):
                self.coming.pop(blob, None)
                self.coming[blob] = event
            case ev.TransferEnded(blob=blob):
                self.coming.pop(blob, None)
                self.ended.append(event)
            case ev.ReadySent():
                self.ready = event
                self._apply_of_a_round(stamped)
            case ev.EvalLoss(rounds):
                if self.evals and self.evals[-1].rounds == rounds:
                    self.evals.pop()  # a mean of fewer members
                self.evals.append(event)
            case ev.PeerJoined(peer, name):
                self.names[peer] = name
            case ev.AuditDone(right=right):
                for peer, count in right.items():
                    self._audit(peer).right += count
            case ev.MemberLost(_, peer):
                self._audit(peer).lost += 1
            case ev.MemberRegained(_, peer):
                self._audit(peer).lost = max(0, self._audit(peer).lost - 1)
            case ev.PeerEjected(peer, reason):
                self._audit(peer).proven = reason
            case _:
                self._apply_of_a_round(stamped)
        self.curves.apply(stamped)
        self.rollouts.apply(event, stamped.at)
        self._take_line(stamped)

    def copy(self) -> Picture:
        """Return an independent copy."""
        other = copy(self)
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, deque | dict):
                setattr(other, each.name, value.copy())
        other.rollouts, other.curves = self.rollouts.copy(), self.curves.copy()
        other.audits = {peer: replace(each) for peer, each in self.audits.items()}
        other.rounds = deque((replace(each, seconds=dict(each.seconds)) for each in self.rounds), maxlen=KEPT_ROUNDS)
        return other

    def acknowledge(self) -> None:
        """Drop the alarms, which the person has seen."""
        self.alarms.clear()

    def _audit(self, peer: str) -> PeerAudit:
        """Return the outcomes of a peer, to change them; forget the oldest if there are too many."""
        if peer not in self.audits and len(self.audits) >= KEPT_AUDITS:
            del self.audits[next(iter(self.audits))]
        return self.audits.setdefault(peer, PeerAudit())

    def _apply_of_a_round(self, stamped: Stamped) -> None:
        event = stamped.event
        match event:
            case ev.PhaseChanged(phase, why, _):
                self._close_part(stamped.mono)
                self._phase = (phase, why, stamped.mono)
                if phase == "computing" and (not self.rounds or self.rounds[-1].mine is not None):
                    number = self.rounds[-1].round + 1 if self.rounds else self.status.round if self.status else 0
                    self.rounds.append(RoundPicture(number, stamped.mono))
                if phase != "exchanging":
                    self.chunks = None
            case ev.ComputeProgress(round=number, ahead=False):
                if not self.rounds or self.rounds[-1].round < number:
                    self.rounds.append(RoundPicture(number, stamped.mono))
            case ev.ExchangeProgress(_, done, total, waiting):
                self.chunks = (done, total, tuple(waiting))
            case ev.RoundCommitted(number, _, members, mine=mine):
                self._close_part(stamped.mono)
                self.committed += 1
                self.counted += mine
                self.streak = self.streak + 1 if mine else 0
                if not self.rounds or self.rounds[-1].round != number:
                    self.rounds.append(RoundPicture(number, stamped.mono))
                last = self.rounds[-1]
                last.members, last.mine, last.fragment, last.fragments = len(members), mine, event.fragment, event.fragments
            case ev.RolledBack(to_round):
                while self.rounds and self.rounds[-1].round >= to_round:
                    self.rounds.pop()
                while self.evals and self.evals[-1].rounds > to_round:
                    self.evals.pop()

    def _close_part(self, now: float) -> None:
        """Add the time of the ending phase to the current round's part for this phase."""
        phase, why, since = self._phase
        if self.rounds and (self.rounds[-1].mine is None or phase == "applying"):  # its state is applied after the record
            _add_part(self.rounds[-1].seconds, phase, why, now - since)
        self._phase = (phase, why, now)

    def _take_line(self, stamped: Stamped) -> None:
        event, kind = stamped.event, log_level(stamped.event)
        if isinstance(event, ev.PROGRESS):
            return
        text = event.sentence(naming(self.names))
        if not text:
            return
        line = LogLine(stamped.at, kind, text)
        self.lines.append(line)
        if event.is_alarm:
            self.alarms.append(line)


def _add_part(seconds: dict[str, float], phase: str, why: str, lasted_s: float) -> None:
    """Add the time of a phase to its part of a round.  why: the reason for computing nothing then."""
    part = PART_OF_PHASE.get(phase)
    if part is not None:
        for each in (part,) if part == TRAINING or why else (part, TRAINED_AHEAD):
            seconds[each] = seconds.get(each, 0.0) + max(0.0, lasted_s)
