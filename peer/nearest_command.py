"""A word that is no command: the command that was meant, by its spelling or by what other programs call it."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any, NoReturn

USAGE = 2
MAX_WORD = 40
SYNONYMS = {
    "peer": {
        "leave": "stop quit exit kill end shutdown disconnect down",
        "join": "start train connect up restart",
        "status": "info stats ps state",
        "watch": "top view ui tui attach log logs",
        "resume": "continue unpause",
        "config": "settings set get configure",
        "runs": "list ls",
        "doctor": "check diagnose test",
        "bench": "benchmark",
        "export": "save download",
        "ledger": "credits contributions",
        "id": "whoami identity",
        "run create": "create init new",
        "run invite": "invite",
        "run show": "show",
        "--help": "help",
        "--version": "version",
    },
    "peer run": {
        "run create": "new init make",
        "run show": "info print",
        "run invite": "token invitation",
        "runs": "list ls",
        "join": "join start",
        "leave": "leave stop",
        "status": "status",
    },
}
"""What people type instead of a command, by the words before it."""


class CommandParser(argparse.ArgumentParser):
    """Says of an unknown command in one sentence which one was meant."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if isinstance(action, argparse._SubParsersAction) and choices is not None and value not in choices:
            self._refuse(str(value), list(choices))
        super()._check_value(action, value)

    def _refuse(self, word: str, commands: list[str]) -> NoReturn:
        shown = "".join(each if each.isprintable() else "?" for each in word)[:MAX_WORD]
        meant = nearest(word, commands, self.prog)
        remedy = f"did you mean `{meant}`?" if meant else f"`{self.prog} --help` lists them"
        self.exit(USAGE, f"peer: there is no command `{self.prog} {shown}`; {remedy}\n")


def nearest(word: str, commands: Sequence[str], program: str) -> str:
    """The whole command that was meant; empty where nothing is like it.  program: the words before it, as "peer run"."""
    meant = {each: f"{program} {each}" for each in commands}
    for command, words in SYNONYMS.get(program, {}).items():
        meant |= dict.fromkeys(words.split(), f"peer {command}")
    like = difflib.get_close_matches(word.lower().lstrip("-"), meant, n=1)
    return meant[like[0]] if like else ""
