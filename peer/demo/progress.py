"""What one peer of a demo does now, folded from its events and its status."""

from __future__ import annotations

from dataclasses import dataclass, field

from peer.control.client import Stamped
from peer.formatting import amount, naming, to_go
from protocol.events import events as ev
from protocol.events.status import PeerStatus

MEASURING = "measuring the held-out loss"


@dataclass(frozen=True)
class Bar:
    """A wait with a measure: `done` of `total` of something."""

    what: str
    done: int
    total: int
    detail: str = ""


@dataclass
class Progress:
    """Of one peer.  status: None before it has told one.  bar: None while what it does has no measure."""

    status: PeerStatus | None = None
    bar: Bar | None = None
    names: dict[str, str] = field(default_factory=dict)

    def update(self, status: PeerStatus) -> None:
        """Take the status as it is now."""
        self.status = status
        self.names.update(status.names())

    def apply(self, stamped: Stamped) -> None:
        """Take note of an event."""
        match stamped.event:
            case ev.ComputeProgress(round, steps, total, _, rate, left_s):
                detail = "  ".join(part for part in (f"{amount(rate)} tokens/s", to_go(left_s)) if part)
                self.bar = Bar(f"round {round}: training", steps, total, detail)
            case ev.ExchangeProgress(round, done, total, waiting):
                waits = "waiting for " + ", ".join(naming(self.names)(peer) for peer in waiting[:2]) if waiting else ""
                self.bar = Bar(f"round {round}: exchanging", done, total, waits)
            case ev.SyncProgress(done, total):
                self.bar = Bar("fetching records", done, total)
            case ev.EvalProgress(_, done, total) if self.bar is None or self.bar.what == MEASURING:
                self.bar = Bar(MEASURING, done, total)  # beside training, the bar is the training's
            case ev.EvalLoss() if self.bar is not None and self.bar.what == MEASURING:
                self.bar = None
            case ev.PhaseChanged():
                self.bar = None
            case ev.PeerJoined(peer, name):
                self.names[peer] = name
