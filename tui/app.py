"""Terminal interface of a running peer: panels, keys, and the commands that the keys send to the peer.

Everything shown comes from a `FeedSource`.  Twice a second the interface takes all messages since the last frame, so that a
flood of events costs one redraw.  Commands to the peer block in threads, never in the event loop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container
from textual.events import Resize
from textual.geometry import Size
from textual.notifications import SeverityLevel
from textual.reactive import Reactive
from textual.widget import Widget
from textual.widgets import Static

from peer.control.client import ControlError, Stamped
from peer.control.curves import RunCurves
from protocol.events.events import Left
from protocol.events.status import PeerStatus
from protocol.formatting import clean, duration
from tui import widgets
from tui.contributions import Contributions
from tui.feed import FeedSource, PeerFound, Stopped
from tui.own_peer import OwnPeer
from tui.panels import header, log, me, rollouts, round, run, samples, swarm, training, transfers
from tui.panels.drawing import Look, hints
from tui.picture import Picture
from tui.theme import DARK, DARK_NAME, DARK_PALETTE, LIGHT, LIGHT_PALETTE, OTHER_SHADE
from tui.widgets import Confirm, ControlsDialog, Draw, Help, Panel, PeerSearch

FRAME_S = 0.5
PAUSE_S = 3600
WIDE, HIGH = 110, 30
"""Smallest width and height of a terminal, in columns and lines, for panels in two columns."""
Keys = tuple[tuple[str, str], ...]
"""Keys in the last line, each with its effect."""
KEYS: Keys = (
    ("q", "close"),
    ("?", "help"),
    ("p", "pause"),
    ("c", "controls"),
    ("f", "finish"),
    ("x", "stop the peer"),
    ("i", "invitation"),
)
KEYS_OF_OWN: Keys = (("q", "detach"), ("Ctrl-C", "leave"), *KEYS[1:5], ("i", "invitation"))
PANELS: tuple[tuple[str, str, Draw], ...] = (
    ("1", training.TITLE, training.draw),
    ("8", rollouts.TITLE, rollouts.draw),
    ("2", swarm.TITLE, swarm.draw),
    ("3", round.TITLE, round.draw),
    ("7", run.TITLE, run.draw),
    ("4", transfers.TITLE, transfers.draw),
    ("5", log.TITLE, log.draw),
    ("6", me.TITLE, me.draw),
    ("9", samples.TITLE, samples.draw),
)
"""Key, title and content of each panel, in the order in which a large terminal shows them."""
ROLLOUTS = "8"
"""Key of the panel that is shown only in a run with rollouts."""
SAMPLES = "9"
"""Key of the panel that is shown only in a run with prompts, and only alone, because it is for reading."""


class PeerApp(App[None]):
    """View of the messages from `source`, until it is closed or its own peer has ended.

    own: the peer that this interface started; that peer leaves when the view closes, unless it was detached.
    unicode: True if the terminal can draw more than ASCII.  theme: the colours to begin with, by name.
    left: the sentence about the peer's departure; empty while it runs.
    """

    BETWEEN: tuple[Callable[[], Widget], ...] = ()
    """Factories of the widgets between the head and the panels."""
    ENABLE_COMMAND_PALETTE = False
    TITLE = "manyhands"
    CSS = """
    Screen { layout: vertical; }
    #head { height: auto; padding: 0 1; }
    #keys { height: 1; padding: 0 1; color: $text-muted; }
    #panels { height: 1fr; layout: vertical; }
    #panels Panel { height: 1fr; }
    #tabs { height: 1; padding: 0 1; }
    .together #panels Panel { border: round $primary; padding: 0; }
    .together #panels { layout: grid; grid-size: 2 4; grid-columns: 1fr 1fr; grid-rows: 1.6fr 1fr 1fr 1fr; }
    .together #training { column-span: 2; }
    .together.with-rollouts #training { column-span: 1; }
    .together #tabs { display: none; }
    """
    BINDINGS = [
        Binding("q,ctrl+q", "close", "close"),
        Binding("ctrl+c", "interrupt", "close, or leave", priority=True),
        Binding("question_mark", "open('help')", "help"),
        *(Binding(key, f"alone('{key}')", title) for key, title, _ in PANELS),
        Binding("0,escape", "alone('')", "all panels"),
        Binding("tab", "next(1)", "next panel", priority=True),
        Binding("shift+tab", "next(-1)", "panel before", priority=True),
        Binding("i", "invite", "copy the invitation"),
        Binding("down", "scroll(1)"),
        Binding("up", "scroll(-1)"),
        Binding("pagedown", "scroll(10)"),
        Binding("pageup", "scroll(-10)"),
        Binding("home", "scroll(-100000)"),
        Binding("z", "zoom", "zoom of the curves"),
        Binding("u", "unit", "curves by tokens or time"),
        Binding("s", "order", "order"),
        Binding("slash", "search", "find a peer"),
        Binding("l", "filter", "log"),
        Binding("p", "pause", "pause"),
        Binding("P", f"pause_for({PAUSE_S})", "pause for an hour"),
        Binding("c", "open('controls')", "controls"),
        Binding("f", "finish", "finish"),
        Binding("x", "leave", "stop the peer"),
        Binding("a", "acknowledge", "alarm seen"),
        Binding("t", "shade", "light or dark"),
    ]

    ansi_theme_dark = Reactive(DARK_PALETTE, init=False)
    ansi_theme_light = Reactive(LIGHT_PALETTE, init=False)

    def __init__(
        self, source: FeedSource, own: OwnPeer | None = None, *, unicode: bool = True, theme: str = DARK_NAME
    ) -> None:
        super().__init__()
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = theme
        self._source, self._own, self._unicode = source, own, unicode
        self._keys = KEYS if own is None else KEYS_OF_OWN
        self.left = ""
        self.picture = Picture()
        self._stopped = "looking for the peer"
        self._alone = ""
        self._arranged: list[str] = []
        """Keys of the panels that the run had when they were arranged."""

    def compose(self) -> ComposeResult:
        """Lay out the head, the panels and the line of keys."""
        yield Static(id="head")
        yield from (widget() for widget in self.BETWEEN)
        yield Static(id="tabs", markup=False)
        with Container(id="panels"):
            for key, title, draw in PANELS:
                yield Panel(key, title, draw, self.picture, Look(unicode=self._unicode))
        yield Static(hints(self._keys), id="keys")

    def on_mount(self) -> None:
        """Begin to follow the peer."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.action_interrupt)
        self._source.start()
        self._arrange(self.size)
        self.set_interval(FRAME_S, self.take)

    def on_unmount(self) -> None:
        """Stop following the peer."""
        self._source.close()

    def on_resize(self, event: Resize) -> None:
        """Arrange the panels for the new size."""
        self._arrange(event.size)

    # -- messages of the peer -----------------------------------------------------------------------------------------

    def take(self) -> None:
        """Fold all messages since the last call into the picture, and draw it."""
        ended = self._own is not None and self._own.ending() is not None  # checked first: no message comes after the end
        told = self._source.take()
        for each in told:
            match each:
                case PeerFound():
                    self._stopped = ""
                case Stopped(reason):
                    self._stopped = reason
                case PeerStatus():
                    self.picture.update(each)
                case RunCurves():
                    self.picture.curves = each
                case Contributions():
                    self.picture.contributions = each
                case Stamped(event=event):
                    self.picture.apply(each)
                    if isinstance(event, Left):
                        self.left = event.sentence()
        if ended:
            self.exit()
        elif told:
            self._draw()

    def _draw(self) -> None:
        if self._present != self._arranged:
            return self._arrange(self.size)  # also draws
        head = self.query_one("#head", Static)
        lines = header.draw(self.picture, self._stopped, max(1, self.size.width - 2), self._unicode)
        head.update(Text("\n").join(lines))
        for panel in self.query(Panel):
            if panel.display:
                panel.show()

    def _arrange(self, size: Size) -> None:
        """Choose the panels to show: all, if the terminal has room and no panel is to be alone; otherwise one, with tabs."""
        below = self.screen_stack[0]  # the screen below a dialog, if one is open
        together = size.width >= WIDE and size.height >= HIGH and not self._alone
        below.set_class(together, "together")
        self._arranged = self._present
        below.set_class(self.picture.has_rollouts, "with-rollouts")
        for (key, title, _), panel in zip(PANELS, self.query(Panel), strict=True):
            panel.display = (key == self._shown or (together and key != SAMPLES)) and key in self._present
            panel.border_title = f"[$accent]{key}[/] {title}" if together else ""  # otherwise the tabs show it
            panel.look.alone = not together
        self._name_choices()
        tabs = sorted((key, title) for key, title, _ in PANELS if key in self._present)
        gap = "  " if len("  ".join(f"{key} {title}" for key, title in tabs)) <= size.width - 2 else " "
        self.query_one("#tabs", Static).update(
            Text(gap).join(
                Text(f"{key} {title}", "bold reverse") if key == self._shown else hints([(key, title)])
                for key, title in tabs
            )
        )
        self._draw()

    def _name_choices(self) -> None:
        """Name the chosen order and filter at the lower edge of their panels, each with its key."""
        peers, lines = self._panel("2"), self._panel("5")
        peers.border_subtitle = f"[$accent]s[/] by {swarm.ORDERS[peers.look.order].name}"
        lines.border_subtitle = f"[$accent]l[/] {log.FILTERS[lines.look.filter][0]}"

    @property
    def _present(self) -> list[str]:
        """Keys of the panels that this run has, ascending."""
        absent = {ROLLOUTS: not self.picture.has_rollouts, SAMPLES: not self.picture.has_samples}
        return sorted(key for key, _, _ in PANELS if not absent.get(key))

    @property
    def _shown(self) -> str:
        """Key of the panel that is shown if only one is."""
        return self._alone if self._alone in self._present else self._present[0]

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_open(self, what: str) -> None:
        """Open a dialog: the help, or the settings that the peer applies at once."""
        text = widgets.KEYS + (widgets.OF_A_VIEW if self._own is None else widgets.OF_OWN) + widgets.ELSEWHERE
        self.push_screen(ControlsDialog(self._source.ask) if what == "controls" else Help(text))

    def action_close(self) -> None:
        """Close the view; the peer keeps running."""
        if self._own is not None:
            self._own.detach()
        self.exit()

    def action_interrupt(self) -> None:
        """Make our own peer leave, the second time at once; close the view of any other peer."""
        if self._own is None:
            self.exit()
            return
        again = self._own.leaving
        self._own.leave()
        self._say("leaving at once" if again else "saying goodbye to the swarm; press Ctrl-C again to leave at once")

    def action_alone(self, key: str) -> None:
        """Show one panel on the whole screen, or all of them."""
        if key and key not in self._present:
            return
        self._alone = "" if key == self._alone else key
        self._arrange(self.size)

    def action_next(self, steps: int) -> None:
        """Show the next panel alone, or the one before; not below a dialog."""
        if len(self.screen_stack) > 1:
            return
        present = self._present
        self._alone = present[(present.index(self._shown) + steps) % len(present)]
        self._arrange(self.size)

    def action_invite(self) -> None:
        """Copy the invitation, or the command that makes one, to the clipboard of the terminal (OSC 52)."""
        status = self.picture.status
        text = (status.invitation or status.invite_command) if status is not None else ""
        if not text:
            return self._say("there is no invitation to copy: only this run's organiser can invite peers", "warning")
        self.copy_to_clipboard(clean(text, 8000))
        self._say("copied for pasting; in a terminal without a clipboard, `peer status` prints it")

    def action_scroll(self, lines: int) -> None:
        """Scroll the panel shown alone, otherwise the log, the other way, because its newest lines are last."""
        panel = self._panel(self._shown if not self.screen.has_class("together") else "5")
        panel.look.scroll = max(0, panel.look.scroll + (-lines if panel.id == "log" else lines))
        panel.look.moved += lines
        panel.show()

    def action_search(self) -> None:
        """Ask for a part of a name, an ID or a team, and show the peers that have it."""
        panel = self._panel("2")

        def answered(text: str | None) -> None:
            if text is not None:
                panel.look.search, self._alone = text, "2"
                self._arrange(self.size)

        self.push_screen(PeerSearch(panel.look.search), answered)

    def action_order(self) -> None:
        """Switch to the next order of the swarm."""
        panel = self._panel("2")
        panel.look.order = (panel.look.order + 1) % len(swarm.ORDERS)
        self._name_choices()
        panel.show()

    def action_zoom(self) -> None:
        """Switch to the next part of the run that the curves show."""
        panel = self._panel("1")
        panel.look.zoom = (panel.look.zoom + 1) % len(training.ZOOMS)
        panel.show()

    def action_unit(self) -> None:
        """Switch the curves between tokens and time."""
        panel = self._panel("1")
        panel.look.unit = (panel.look.unit + 1) % len(training.UNITS)
        panel.show()

    def action_filter(self) -> None:
        """Switch to the next filter of the log."""
        panel = self._panel("5")
        panel.look.filter = (panel.look.filter + 1) % len(log.FILTERS)
        self._name_choices()
        panel.show()

    def action_acknowledge(self) -> None:
        """Mark the alarms as seen."""
        self.picture.acknowledge()
        self._draw()

    def action_shade(self) -> None:
        """Switch between the light and the dark theme."""
        self.theme = OTHER_SHADE[self.theme]

    def action_pause(self) -> None:
        """Pause the peer, if the person confirms; resume it after a pause."""
        status = self.picture.status
        if status is not None and status.why_idle == "paused":
            self._ask("resume", "the peer is running again")
        else:
            self._confirm("Pause the peer until p is pressed again?", "pause", "paused; press p to resume")

    def action_pause_for(self, seconds: int) -> None:
        """Pause the peer for this many seconds, if the person confirms."""
        for_so_long = duration(seconds)
        self._confirm(f"Pause the peer for {for_so_long}?", "pause", f"paused for {for_so_long}", seconds=seconds)

    def action_finish(self) -> None:
        """Stop the peer when the round is complete, if the person confirms."""
        self._confirm("Stop the peer when this round is complete?", "finish", "the peer will stop after this round")

    def action_leave(self) -> None:
        """Stop the peer now, if the person confirms."""
        self._confirm("Say goodbye and stop the peer now?", "leave", "the peer is stopping")

    def _confirm(self, question: str, command: str, done: str, **fields: Any) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._ask(command, done, **fields)

        self.push_screen(Confirm(question), answered)

    def _ask(self, command: str, done: str, **fields: Any) -> None:
        """Send a command in a thread, and show its outcome at the edge of the screen."""

        def ask() -> None:
            try:
                answer = self._source.ask(command, **fields)
            except (ControlError, OSError) as error:
                self.call_from_thread(self._say, str(error), "error")
                return
            rests = str(answer.get("rests") or "")
            self.call_from_thread(self._say, f"{done}, but {rests}" if rests else done)

        self.run_worker(ask, thread=True, group="asking")

    def _say(self, text: str, severity: SeverityLevel = "information") -> None:
        self.notify(clean(text, 300), severity=severity, markup=False)

    def _panel(self, key: str) -> Panel:
        return next(panel for (known, _, _), panel in zip(PANELS, self.query(Panel), strict=True) if known == key)
