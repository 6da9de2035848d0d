"""The live view of a running peer: a pure function from what is known to lines of text.

`View` folds events and status into what is worth showing; `render` lays it out for a terminal of a given size.  Neither
looks at a clock, a terminal or a socket, so both are tested as text; drawing is `peer.console.display`'s business.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from peer.control.client import Stamped
from peer.drawing import bar, columns, fit, pad, sparkline, spread
from peer.formatting import amount, clean, naming, number, short, size, to_go
from peer.sentences import chunk_map, coming, level, sentence
from protocol import events as ev
from protocol.status import PeerStatus, SwarmPeer

MIN_WIDTH, MIN_HEIGHT = 40, 10
KEPT_EVENTS = 100
KEPT_LOSSES = 500
MEASURING = "measuring the held-out loss"
UNKNOWN = PeerStatus(
    peer="",
    name="",
    run="",
    run_name="-",
    role="",
    phase="starting",
    why_idle="",
    why_detail="",
    version="",
    pid=0,
    uptime_s=0.0,
)
"""Stands for the status before the peer has told one."""


@dataclass(frozen=True)
class Bar:
    """A wait with a measure: `done` of `total` of something.  note: what else is worth a line of its own below it."""

    what: str
    done: int
    total: int
    detail: str
    note: str = ""


@dataclass
class View:
    """What a person wants to see of one peer."""

    status: PeerStatus = UNKNOWN
    bar: Bar | None = None
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LOSSES))
    evals: list[tuple[int, float, str]] = field(default_factory=list)
    """Rounds, held-out loss after them, and the peer that says so."""
    happened: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=KEPT_EVENTS))
    names: dict[str, str] = field(default_factory=dict)
    coming: dict[str, ev.TransferProgress] = field(default_factory=dict)
    """Blobs on their way, by name, the last one that moved at the end."""
    left: ev.Left | None = None

    def update(self, status: PeerStatus) -> None:
        """Take the status as it is now."""
        self.status = status
        self.names.update(status.names())

    def apply(self, stamped: Stamped) -> None:
        """Take note of an event."""
        event = stamped.event
        match event:
            case ev.ComputeProgress(round, steps, total, loss, rate, left_s):
                self.bar = _training(round, steps, total, loss, rate, left_s)
            case ev.ExchangeProgress(round, done, total, waiting):
                waits = "waiting for " + ", ".join(naming(self.names)(peer) for peer in waiting[:2]) if waiting else ""
                self.bar = Bar(f"round {round}: exchanging", done, total, waits)
            case ev.SyncProgress(done, total):
                self.bar = Bar("fetching records", done, total, "")
            case ev.TransferProgress(blob=blob):
                self.coming = {**{name: told for name, told in self.coming.items() if name != blob}, blob: event}
            case ev.TransferEnded(blob=blob):
                self.coming.pop(blob, None)
            case ev.EvalProgress(_, done, total) if self.bar is None or self.bar.what == MEASURING:
                self.bar = Bar(MEASURING, done, total, "")  # beside training, its place is the line of the losses
            case ev.PhaseChanged():
                self.bar = None
            case ev.RoundCommitted(_, _, _, _, loss, _):
                self.losses.append(loss)
            case ev.EvalLoss(rounds, loss, by):
                self.evals = [*self.evals, (rounds, loss, by)][-KEPT_LOSSES:]
                if self.bar is not None and self.bar.what == MEASURING:
                    self.bar = None
            case ev.PeerJoined(peer, name):
                self.names[peer] = name
            case ev.Left():
                self.left = event
        if not isinstance(event, ev.PhaseChanged) and level(event) != "debug":
            text = sentence(event, naming(self.names))
            if text:
                self.happened.append((stamped.at, level(event), text))


def render(view: View, width: int, height: int, *, clock: str = "", unicode: bool = True) -> list[str]:
    """At most `height` lines of at most `width` columns.  clock: what to show as time, at the right of the top line."""
    width, height = max(width, MIN_WIDTH), max(height, MIN_HEIGHT)
    rule = ("─" if unicode else "-") * width
    now = [*_now(view, width, unicode), *_coming(view, width)]
    top = [*_header(view, width, clock), rule, *now, *_curve(view, width, unicode), rule]
    footer = "Ctrl-C leaves (twice: at once)   elsewhere: peer status, peer pause, peer leave"
    room = height - len(top) - 2
    swarm = _swarm(view, max(2, min(room // 2, 1 + len(view.status.swarm) + 1)))
    recent = _recent(view, room - len(swarm))
    lines = [*top, *swarm, rule, *recent]
    lines = lines[: height - 1] + [""] * (height - 1 - len(lines)) + [footer]
    return [fit(line if unicode else line.replace("…", "..").replace("·", "|"), width) for line in lines]


def _header(view: View, width: int, clock: str) -> list[str]:
    status = view.status
    peers = 1 + status.peers
    left = (
        f"manyhands · {clean(status.run_name)} · round {status.round} · {status.phase} · "
        f"{peers} {'peer' if peers == 1 else 'peers'}"
    )
    me = f"{clean(status.name, 24)} {short(status.peer)} · {status.role}"
    return [spread(left, clock, width), spread(me, f"run {status.run[:12]}", width)]


def _now(view: View, width: int, unicode: bool) -> list[str]:
    """Two lines: the wait with its bar, and why, when this peer is not computing."""
    status = view.status
    why = clean(status.why_detail or status.why_idle, 200)
    shown = view.bar or _about_to_train(status)
    if shown is None:
        return [f"now     {status.phase}", f"        {why}"]
    counts = f"{shown.done}/{shown.total}"
    room = max(8, min(30, width - 8 - columns(shown.what) - len(counts) - columns(shown.detail) - 6))
    line = f"now     {shown.what} {bar(shown.done, shown.total, room, unicode=unicode)} {counts}  {shown.detail}"
    return [line, f"        {why or shown.note}"]


def _coming(view: View, width: int) -> list[str]:
    """What is fetched: the blob that moved last with its map, and how many others there are."""
    if not view.coming:
        return []
    *others, newest = view.coming.values()
    more = f"  (and {len(others)} more)" if others else ""
    return [f"coming  {coming(newest)}{more}", f"        {chunk_map(newest.chunks, width - 8)}"]


def _training(round: int, steps: int, total: int, loss: float | None, rate: float, left_s: float | None) -> Bar:
    parts = [f"{amount(rate)} tokens/s", to_go(left_s)]
    return Bar(f"round {round}: training", steps, total, "  ".join(part for part in parts if part), f"loss {number(loss)}")


def _about_to_train(status: PeerStatus) -> Bar | None:
    """The bar of a round that has no step yet, with the rate of the round before."""
    if status.phase != "computing" or status.round_left_s is None:
        return None
    return _training(status.round, status.steps, status.inner_steps, status.loss, status.tokens_per_s, status.round_left_s)


def _curve(view: View, width: int, unicode: bool) -> list[str]:
    status = view.status
    curve = sparkline(list(view.losses), min(30, width - 40), unicode=unicode)
    if view.losses:
        loss = f"{curve} {number(view.losses[0])} to {number(view.losses[-1])}"
    else:
        loss = f"{number(status.loss)} (no round committed yet)"
    loss += _held_out(view)
    moved = f"traffic up {size(status.up_bytes)}, down {size(status.down_bytes)}"
    running = f"trainer {status.trainer_pid}" if status.trainer_pid else "no trainer"
    return [f"loss    {loss}", f"{moved} · {running} · state {status.state_digest[:12] or '-'}"]


def _held_out(view: View) -> str:
    """The newest held-out loss, how far we are with the next one, and whose word it is."""
    percent = view.status.eval_percent
    measuring = "" if percent is None else f", measuring {percent} %"
    if not view.evals:
        return measuring
    rounds, value, by = view.evals[-1]
    return f"  held out {number(value)} after {rounds}{measuring}  by {naming(view.names)(by)}"


def _swarm(view: View, lines: int) -> list[str]:
    """A table of the peers, ourselves first."""
    status = view.status
    me = SwarmPeer(
        peer=status.peer,
        name=f"{status.name} (me)",
        role=status.role,
        phase=status.phase,
        round=status.round,
        steps=status.steps,
        tokens_per_s=status.tokens_per_s,
        liveness="alive",
        heard_s=0.0,
        version=status.version,
    )
    rows = [me, *sorted(status.swarm, key=lambda known: (known.liveness != "alive", known.peer))]
    table = [f"{'PEER':<26}{'PHASE':<12}{'ROUND':>6}{'STEPS':>7}{'TOKENS/S':>10}  SEEN"]
    for known in rows[: lines - 1]:
        name = pad(f"{clean(known.name, 16)} {short(known.peer)}", 26)
        seen = "now" if known.heard_s < 3 else f"{known.heard_s:.0f} s ago"
        state = known.phase if known.liveness == "alive" else known.liveness
        table.append(f"{name}{state:<12}{known.round:>6}{known.steps:>7}{amount(known.tokens_per_s):>10}  {seen}")
    if len(rows) > lines - 1:
        table[-1] = f"… and {len(rows) - lines + 2} more"
    return table


def _recent(view: View, lines: int) -> list[str]:
    if lines <= 0:
        return []
    marks = {"warning": "! ", "error": "! "}
    return [marks.get(kind, "  ") + text for _, kind, text in list(view.happened)[-lines:]]
