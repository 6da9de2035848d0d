"""Dialog with the settings that a running peer takes at once: shows them, and lets a person change one.

This is only the form: the peer decides the meaning of a setting, its notation, and the values that it accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from peer.control.client import ControlError
from peer.formatting import clean, fit, size

Ask = Callable[..., Mapping[str, Any]]
"""Function that sends the peer a command, by name, with its fields, and blocks.  Raises ControlError, OSError."""
WIDTH = 74
LIST_KEYS = "Enter changes a setting   Escape closes"
INPUT_KEYS = "Enter sets it, nothing for the default   Escape leaves it as it is"


class ControlsDialog(ModalScreen[None]):
    """Dialog that lists the settings and edits one.  ask: sends the peer a command; called in threads."""

    BINDINGS = [Binding("escape", "back", "back"), Binding("q,c", "close", "close")]
    DEFAULT_CSS = """
    ControlsDialog { align: center middle; }
    ControlsDialog Vertical { width: 78; height: auto; border: solid $primary; background: $surface; padding: 0 1; }
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
            yield Static("Settings that the peer takes at once", id="title", markup=False)
            yield OptionList(id="settings", markup=False)
            yield Static("", id="meaning", markup=False)
            yield Input(id="value", max_length=200, select_on_focus=True)
            yield Static("", id="said", markup=False)
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
            title = f"Settings that the peer takes at once; {size(moved)} moved this month"
            self.query_one("#title", Static).update(title)
        options, place = self.query_one(OptionList), self.query_one(OptionList).highlighted or 0
        options.clear_options()
        options.add_options(Option(Text(self._row(each))) for each in known)
        options.highlighted = min(place, len(known) - 1) if known else None
        written = answer.get("written")
        if changed:
            self._say(f"changed, and written to {written}" if written else "changed until the peer ends")
            self._choose(typing=False)

    @staticmethod
    def _row(each: Mapping[str, Any]) -> str:
        name, shown, source = (clean(str(each.get(key) or ""), 100) for key in ("name", "shown", "source"))
        return f"{name:<20}{fit(shown or '-', 24):<26}{fit(source.rpartition('/')[2], WIDTH - 47)}"

    def _say(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#said", Static).update(clean(text, 300))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the meaning of the highlighted setting."""
        meaning = clean(str(self._settings[event.option_index].get("meaning") or ""), 200)
        self.query_one("#meaning", Static).update(meaning)

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
        self._in_a_thread("set", name=str(self._chosen.get("name")), value=text or None, keep=True)

    def _choose(self, *, typing: bool) -> None:
        """Switch to typing a value, or to choosing a setting."""
        self.set_class(typing, "typing")
        self.query_one("#typing", Static).update(INPUT_KEYS if typing else LIST_KEYS)
        (self.query_one(Input) if typing else self.query_one(OptionList)).focus()

    def action_back(self) -> None:
        """Go back from the value to the list, or from the list to the panels."""
        if self.has_class("typing"):
            self._choose(typing=False)
        else:
            self.dismiss()

    def action_close(self) -> None:
        """Go back to the panels."""
        self.dismiss()
