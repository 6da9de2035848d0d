"""Dialogs over the panels: the help, and the confirmation of a command."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static

KEYS = """\
1 to 7    one panel alone (7: rollouts), the same key or 0 for all
up, down  scroll (also page up, page down, home)
s         order of the swarm        l  what the log shows
p         pause; p again resumes    P  pause for an hour
c         controls: settings that the peer takes at once
f         finish this round, then stop the peer
x         say goodbye and stop the peer
a         the alarm was seen        t  light or dark
"""
OF_A_VIEW = """\
q         close this view; the peer goes on
"""
OF_OWN = """\
q         detach: the peer goes on, unseen
Ctrl-C    say goodbye and stop the peer; twice: at once
Closing the terminal stops the peer, too.
"""
ELSEWHERE = """
From a shell: peer watch comes back, peer leave stops the peer,
peer config shows the settings.                    Escape closes
"""


class Help(ModalScreen[None]):
    """Help on every key.  own: True if this interface started the peer."""

    BINDINGS = [Binding("escape,question_mark,q,enter", "dismiss_it", "close")]
    DEFAULT_CSS = """
    Help { align: center middle; }
    Help Static { width: 72; height: auto; border: solid $primary; background: $surface; padding: 0 1; }
    """

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self._own = own

    def compose(self) -> ComposeResult:
        """Lay out one box."""
        yield Static(KEYS + (OF_OWN if self._own else OF_A_VIEW) + ELSEWHERE, markup=False)

    def action_dismiss_it(self) -> None:
        """Go back to the panels."""
        self.dismiss()


class Confirm(ModalScreen[bool]):
    """Question answered with yes or no; Escape, q and Enter mean no."""

    BINDINGS = [Binding("y", "answer(True)", "yes"), Binding("n,escape,q,enter", "answer(False)", "no")]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm Vertical { width: 64; height: auto; border: solid $warning; background: $surface; padding: 0 1; }
    """

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Lay out one box."""
        with Vertical():
            yield Static(self._question, markup=False)
            yield Static("y  yes        n  no", markup=False)

    def action_answer(self, yes: bool) -> None:
        """Close the dialog and return the answer to its caller."""
        self.dismiss(yes)
