"""The `peer` command: finds the subcommand, runs it, and turns errors into one sentence and an exit code.

Nothing heavy is imported before the command is known, so that `peer --help` answers at once.  None of our other packages is
imported before `check_rooms` has checked its place.  Each command is implemented in a module of `peer.commands`.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import pkgutil
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import peer.commands
from peer.console.streams import discard, open_standard_streams
from peer.errors import ExitCode, PeerError
from peer.installation import check_rooms

# ------------------------------------------------------------------------------------------------------------------------
# Suggestion for an unknown command: the likely command, found by similar spelling or by its name in other programs.


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
        "chat": "talk ask prompt generate",
        "bench": "benchmark",
        "simulate": "predict plan forecast estimate",
        "eval": "evaluate evaluation perplexity",
        "export": "save download",
        "ledger": "credits contributions",
        "page": "html web website publish dashboard",
        "track": "tensorboard wandb mlflow log-metrics",
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
"""Names of each command in other programs, by the words typed before the command."""


class CommandParser(argparse.ArgumentParser):
    """Parser that answers mistakes with one sentence, and an unknown command with the likely one."""

    def error(self, message: str) -> NoReturn:
        """Exit with the error in one sentence, without the usage, which may fill a screen."""
        self.exit(USAGE, f"peer: {message}; `{self.prog} --help` explains the command\n")

    def refuse_unknown(self, words: Sequence[str], command: str) -> NoReturn:
        """Exit because of words that the command does not take.  command: the command with its program."""
        shown = printable(words[0])
        rule = f"has no option {shown}" if shown.startswith("-") else f"does not take the word {shown}"
        self.exit(USAGE, f"peer: `{command}` {rule}; `{command} --help` explains the command\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = action.choices
        if isinstance(action, argparse._SubParsersAction) and choices is not None and value not in choices:
            meant = nearest(str(value), list(choices), self.prog)
            remedy = f"did you mean `{meant}`?" if meant else f"`{self.prog} --help` lists them"
            self.exit(USAGE, f"peer: there is no command `{self.prog} {printable(str(value))}`; {remedy}\n")
        super()._check_value(action, value)


def printable(word: str) -> str:
    """Return the beginning of a word that a person typed, with ? for characters that cannot be printed."""
    return "".join(each if each.isprintable() else "?" for each in word)[:MAX_WORD]


def nearest(word: str, commands: Sequence[str], program: str) -> str:
    """Return the likely command with its program; empty if nothing is similar.  program: words before it ("peer run")."""
    meant = {each: f"{program} {each}" for each in commands}
    for command, words in SYNONYMS.get(program, {}).items():
        meant |= dict.fromkeys(words.split(), f"peer {command}")
    like = difflib.get_close_matches(word.lower().lstrip("-"), meant, n=1)
    return meant[like[0]] if like else ""


# ------------------------------------------------------------------------------------------------------------------------
# Order of the commands in the help.


GROUPS = (
    ("take part", "join status watch chat leave finish pause resume config"),
    ("look back, and share", "runs ledger readmit rollouts replay page track export"),
    ("organise a run", "run data tasks simulate"),
    ("this computer", "demo doctor bench id completion"),
    ("models", "eval merge weights"),
)
"""Heading and commands of each group; a test checks that every command is in a group."""
ORDER = " ".join(names for _, names in GROUPS).split()


class GroupedHelp(argparse.HelpFormatter):
    """Help that lists the commands in groups."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        known = {each.dest: each for each in action._get_subactions()}
        text = ""
        for heading, names in GROUPS:
            self._indent()
            commands = "".join(super(GroupedHelp, self)._format_action(known[name]) for name in names.split())
            self._dedent()
            text += f"\n{' ' * self._current_indent}{heading}:\n{commands}"
        return text


# ------------------------------------------------------------------------------------------------------------------------


def build_parser() -> CommandParser:
    """Return the parser of the whole command line; every module in `peer.commands` adds a part."""
    parser = CommandParser(
        prog="peer",
        formatter_class=GroupedHelp,
        description="Train a language model together with others.",
        epilog="`peer join` without an invitation joins the demo run.  docs/reference/commands.md lists the exit codes.",
    )
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(peer.commands.ATTACHED, action="store_true", help=argparse.SUPPRESS)
    peer.commands.add_common_options(parser, None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in pkgutil.iter_modules(peer.commands.__path__):
        importlib.import_module(f"peer.commands.{module.name}").register(subparsers)
    subparsers._choices_actions.sort(key=lambda command: ORDER.index(command.dest))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    open_standard_streams()
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _main(arguments: Sequence[str] | None) -> int:
    try:
        check_rooms()
    except PeerError as error:
        print(f"peer: {error.text}", file=sys.stderr)
        return error.exit_code
    parser = build_parser()
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        parser.refuse_unknown(unknown, getattr(args, "words", parser.prog))
    if args.version:
        from protocol.version import version

        print(f"peer {version()}")
        return ExitCode.OK
    if not hasattr(args, "run"):
        parser.print_help()
        return ExitCode.USAGE
    try:
        from peer.paths import data_dir

        args.data_dir = data_dir(args.data_dir)
        code = int(args.run(args))
        sys.stdout.flush()  # here, where an error is still shown as a sentence
        return code
    except BrokenPipeError:  # the reader of our output went away (`peer status | head`), which is not an error
        discard(sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if args.debug:
            raise
        known = explain(error)
        _complain(known.text)
        return known.exit_code


def _complain(text: str) -> None:
    """Print an error on standard error, if it has a reader."""
    try:
        sys.stdout.flush()
    except OSError:
        discard(sys.stdout.fileno())  # otherwise the unwritten output would raise again at the end of the process
    from protocol.formatting import visible

    try:
        print(f"peer: {visible(text)}", file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr.fileno())


def explain(error: Exception) -> PeerError:
    """Return the sentence and exit code for `error`; the sentence for an unforeseen error says how to see its traceback."""
    if isinstance(error, PeerError):
        return error
    from peer.console.problems import known_problem  # slow: only for errors of what has loaded its modules already

    known = known_problem(error)
    return known or PeerError(f"unexpected {type(error).__name__}: {error}; run it again with --debug to see where")


if __name__ == "__main__":
    sys.exit(main())
