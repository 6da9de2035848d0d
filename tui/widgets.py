"""Widgets: panels with lines drawn by the modules of `tui.panels`, and the dialogs over the panels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import Key
from textual.geometry import Region
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from peer.control.client import ControlError
from peer.formatting import fit
from protocol.formatting import clean, size
from tui.panels.drawing import Look
from tui.picture import Picture

# ------------------------------------------------------------------------------------------------------------------------
# Dialogs over the panels: the help, and the confirmation of a command.


KEYS = """\
1 to 9    one panel alone (8 rollouts, 9 samples); again or 0: all
Tab       the next panel; with Shift the one before
up, down  scroll (also page up, page down, home)
z         zoom of the curves        u  curves by tokens or by time
s         sort the swarm            l  filter the log
/         find peers; in the swarm alone up and down choose one
p         pause, after a question; p again resumes
P         pause for an hour, after a question
c         controls: settings that take effect at once
f         finish this round, then stop the peer
x         say goodbye and stop the peer
i         copy the invitation, to paste it elsewhere
a         mark alarms as seen       t  light or dark
"""
OF_A_VIEW = """\
q         close this view; the peer keeps running
"""
OF_OWN = """\
q         detach: the peer keeps running in the background
Ctrl-C    say goodbye and stop the peer; twice: at once
Closing the terminal also stops the peer.
"""
ELSEWHERE = """
From a shell: peer watch opens this view, peer leave stops the peer,
peer config shows the settings.                    Escape closes
"""


class PeerSearch(ModalScreen[str | None]):
    """Question for a part of a peer's name, ID or team; empty text shows all peers again, and Escape changes nothing."""

    BINDINGS = [Binding("escape", "give_up", "close")]
    DEFAULT_CSS = """
    PeerSearch { align: center middle; }
    PeerSearch Vertical { width: 50; height: auto; padding: 1 2; border: round $accent; background: $surface; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay out the question."""
        with Vertical():
            yield Static("Peers with this in their name, ID or team:", markup=False)
            yield Input(self._text, max_length=64)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with what was typed."""
        self.dismiss(event.value.strip())

    def action_give_up(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class Help(ModalScreen[None]):
    """Help on every key, as a text."""

    BINDINGS = [Binding("escape,question_mark,q,enter", "dismiss_it", "close")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help Static { width: 72; height: auto; border: round $accent; background: $surface; padding: 0 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Lay out one box."""
        yield Static(self._text, markup=False)

    def action_dismiss_it(self) -> None:
        """Go back to the panels."""
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """Question answered by typing `YES`; any other key means no.

    One letter would not do: who types "python" for another program has typed `p` and `y`.
    """

    YES = "yes"
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Vertical { width: 64; height: auto; border: round $warning; background: $surface; padding: 0 1; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question
        self._typed = ""

    def compose(self) -> ComposeResult:
        """Lay out one box."""
        with Vertical():
            yield Static(self._question, markup=False)
            yield Static(self._answer(), id="answer", markup=False)

    def _answer(self) -> str:
        return f"{self._typed or f'type {self.YES}':<10}any other key: no"

    def on_key(self, event: Key) -> None:
        """Take a letter of the answer; close the dialog, and return the answer to its caller, once it is known."""
        event.stop()
        self._typed += event.key
        if self._typed == self.YES or not self.YES.startswith(self._typed):
            self.dismiss(self._typed == self.YES)
        else:
            self.query_one("#answer", Static).update(self._answer())


# ------------------------------------------------------------------------------------------------------------------------
# Dialog that shows the settings that a running peer applies at once, and lets a person change one.
#
# This is only the form: the peer decides the meaning of a setting, its notation, and the values that it accepts.


Ask = Callable[..., Mapping[str, Any]]
"""Function that sends the peer a command by name, with fields, and blocks.  Raises ControlError, OSError."""
WIDTH, SHOWN = 74, 24
"""Columns of a line of the dialog, and of a value in it."""
LIST_KEYS = "Enter changes a setting   Escape closes"
INPUT_KEYS = "Enter saves it, empty for the default   Escape closes without a change"
ASKING = "asking the peer …"


class ControlsDialog(ModalScreen[None]):
    """Dialog that lists the settings and edits one.  ask: sends the peer a command; called in threads."""

    BINDINGS = [Binding("escape,q,c", "close", "close")]
    DEFAULT_CSS = """
    ControlsDialog { align: center middle; }
    ControlsDialog Vertical { width: 78; height: auto; border: round $accent; background: $surface; padding: 0 1; }
    ControlsDialog OptionList { height: auto; max-height: 14; border: none; padding: 0; }
    ControlsDialog Input, ControlsDialog Input:focus { border: none; height: 1; padding: 0; display: none; }
    ControlsDialog.typing Input, ControlsDialog.typing Input:focus { display: block; }
    """

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self._ask = ask
        self._settings: list[Mapping[str, Any]] = []
        self._chosen: Mapping[str, Any] = {}

    def compose(self) -> ComposeResult:
        """Lay out the list, the meaning of the highlighted setting, the input line, the peer's answer and the keys."""
        with Vertical():
            yield Static("Settings that take effect at once", id="title", markup=False)
            yield OptionList(id="settings", markup=False)
            yield Static("", id="meaning", markup=False)
            yield Input(id="value", max_length=200, select_on_focus=True)
            yield Static(ASKING, id="said", markup=False)
            yield Static(LIST_KEYS, id="typing", markup=False)

    def on_mount(self) -> None:
        """Ask the peer for the settings in force."""
        self.query_one(OptionList).focus()
        self._in_a_thread("settings")

    # -- answers of the peer ------------------------------------------------------------------------------------------

    def _in_a_thread(self, command: str, **fields: Any) -> None:
        def ask() -> None:
            try:
                answer = self._ask(command, **fields)
            except (ControlError, OSError) as error:
                self.app.call_from_thread(self._say, str(error))
                return
            self.app.call_from_thread(self._take, answer, bool(fields))

        self.run_worker(ask, thread=True, group="controls")

    def _take(self, answer: Mapping[str, Any], changed: bool) -> None:
        if not self.is_attached:
            return
        settings, month = answer.get("settings"), answer.get("month")
        known = [each for each in settings if isinstance(each, Mapping) and each.get("live")] if settings else []
        self._settings = known
        moved = month.get("bytes") if isinstance(month, Mapping) else None
        if isinstance(moved, int):
            title = f"Settings that take effect at once; {size(moved)} moved this month"
            self.query_one("#title", Static).update(title)
        options, place = self.query_one(OptionList), self.query_one(OptionList).highlighted or 0
        options.clear_options()
        options.add_options(Option(Text(self._row(each))) for each in known)
        options.highlighted = min(place, len(known) - 1) if known else None
        written = answer.get("written")
        self._say("")
        if changed:
            self._say(f"changed, and written to {written}" if written else "changed until the peer stops")
            self._choose(typing=False)

    @staticmethod
    def _row(each: Mapping[str, Any]) -> str:
        name, shown, source = (clean(str(each.get(key) or ""), 100) for key in ("name", "shown", "source"))
        return f"{name:<20}{fit(shown or '-', SHOWN):<26}{fit(source.rpartition('/')[2], WIDTH - 47)}"

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#said", Static).update(clean(text, 300))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the meaning of the highlighted setting."""
        chosen = self._settings[event.option_index]
        meaning, shown = (clean(str(chosen.get(key) or ""), 200) for key in ("meaning", "shown"))
        whole = f"; now {shown}" if len(shown) > SHOWN else ""
        self.query_one("#meaning", Static).update(meaning + whole)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the input line with the value of the chosen setting."""
        self._chosen = self._settings[event.option_index]
        self._say("")
        value = self.query_one(Input)
        value.value, value.placeholder = str(self._chosen.get("shown") or ""), "the default"
        self._choose(typing=True)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Send the new value to the peer."""
        text = event.value.strip()
        self._say(ASKING)
        self._in_a_thread("set", name=str(self._chosen.get("name")), value=text or None, keep=True)

    def _choose(self, *, typing: bool) -> None:
        """Switch to typing a value, or to choosing a setting."""
        self.set_class(typing, "typing")
        self.query_one("#typing", Static).update(INPUT_KEYS if typing else LIST_KEYS)
        (self.query_one(Input) if typing else self.query_one(OptionList)).focus()

    def action_close(self) -> None:
        """Go back to the panels."""
        self.dismiss()


# ------------------------------------------------------------------------------------------------------------------------
# Panels.


Draw = Callable[[Picture, int, int, Look], list[Text]]


class Panel(Widget):
    """Widget that draws one side of `picture`.  key: the digit that shows the panel alone.

    Only changed lines are drawn again, because most of a frame does not change.
    """

    DEFAULT_CSS = """
    Panel { border-top: solid $primary; padding: 0 1; }
    Panel { border-title-color: $text; border-title-style: bold; border-subtitle-color: $text-muted; }
    """

    def __init__(self, key: str, title: str, draw: Draw, picture: Picture, look: Look) -> None:
        super().__init__(id=title.lower())
        self.border_title = f"{key} {title}"
        self._draw, self.picture, self.look = draw, picture, look
        self.lines: list[Text] = []
        """Lines on the screen."""

    def show(self) -> None:
        """Draw the picture as it is now."""
        width, height = self.content_size
        before, self.lines = self.lines, self._draw(self.picture, width, height, self.look)[:height]
        looks = ([(each.plain, each.spans) for each in lines] for lines in (before, self.lines))
        changed = [y for y, (old, new) in enumerate(zip_longest(*looks)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))  # in the content's coordinates

    def on_resize(self) -> None:
        """Draw everything again for the new size."""
        self.show()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return a line of the content, in the widget's colours."""
        width, base = self.content_size.width, self.rich_style
        if y >= len(self.lines):
            return Strip.blank(width, base)
        strip = Strip(list(self.lines[y].render(self.app.console))).apply_style(base)
        return strip.adjust_cell_length(width, base)

    @property
    def text(self) -> str:
        """Text on the screen, without styles."""
        return "\n".join(line.plain for line in self.lines)
