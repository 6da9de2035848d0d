"""Writer of the pages in docs/reference, from the code that they describe.

`python docs/generate.py` writes them, and copies the pictures of the interface from the snapshots of the tests.
tests/test_reference.py compares all of them.  The pages are the same on every version of Python: argparse's own help, which
differs between versions, is not used.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from peer.cli import build_parser
from peer.errors import ExitCode
from peer.settings.preferences import SETTINGS, Setting
from protocol.events.events import EVENTS, PROGRESS, NoticeCode
from protocol.events.status import (
    ComputerStatus,
    ContributionStatus,
    CopiesStatus,
    GpuStatus,
    PeerStatus,
    RolloutStatus,
    RunDefinition,
    RunMixture,
    SwarmPeer,
)
from protocol.run.manifest import RunManifest
from protocol.run.run_file import DERIVED

Code = TypeVar("Code", bound=Enum)
ROOT = Path(__file__).resolve().parents[1]
REFERENCE = Path("docs/reference")
SNAPSHOTS = Path("tests/tui/__snapshots__/test_snapshots")
PICTURES = {
    "interface.svg": "test_a_run_that_says_what_it_is_for[120x40].svg",
    "interface-wide.svg": "test_a_run_that_says_what_it_is_for[200x60].svg",
    "interface-light.svg": "test_a_light_terminal.svg",
    "training.svg": "test_a_panel_alone[1-training-80x24].svg",
    "swarm.svg": "test_the_details_of_another_peer[80x24].svg",
    "round.svg": "test_a_panel_alone[3-round-80x24].svg",
    "transfers.svg": "test_a_panel_alone[4-transfers-80x24].svg",
    "log.svg": "test_a_panel_alone[5-log-80x24].svg",
    "run.svg": "test_a_panel_alone[7-run-80x24].svg",
    "samples.svg": "test_a_run_with_prompts[samples-80x24].svg",
    "me.svg": "test_the_owner_of_a_gpu[80x24].svg",
    "rollouts.svg": "test_the_rollouts_alone[writer-80x24].svg",
}
"""Pictures in docs/pictures, each with the snapshot that it is a copy of."""

WRITTEN = "<!-- Written by docs/generate.py from the code; change it there. -->\n\n"
EVENT_GROUPS = {
    "The life of a peer": "Started Left PhaseChanged TrainerStarted TrainerStopped Notice LinesLost",
    "Other peers": "PeerJoined PeerSuspected PeerGone PeerEjected MemberSetAside Dropped HandlerFailed "
    "ReachabilityChanged LinkChanged PortMapped",
    "A round": "ComputeProgress ReadySent RoundProposed ExchangeProgress MemberLost MemberRegained ExchangeFinished "
    "AuditDone ContributionAudited RoundVoted RoundsConfirmed RoundCommitted StateApplied EvalProgress EvalLoss "
    "SamplesWritten CheckpointWritten",
    "Catching up": "SyncProgress RolledBack SecondHistory StateLoaded Desynced",
    "Transfers": "TransferProgress TransferEnded",
    "Rollouts and tasks": "RolloutsGenerated BatchJudged BatchDecided RolloutsUsed RolloutsCounted NothingLearned "
    "RolloutPeerSetAside ValidatorSetAside",
}
"""Sections of the page on events, each with its events."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, in which no cell may have a bar: processors of Markdown differ in how they escape it."""
    if any("|" in cell or "\n" in cell for row in rows for cell in row):
        raise ValueError(f"a bar in a cell of the table {head}")
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------------------
# Commands, from their parsers.


def commands_page() -> str:
    """Return the page on all commands."""
    top = build_parser()
    common = [option for option in options(top) if option[0] != "`--version`"]
    found = list(subcommands(top, "peer"))
    parts = [
        "# Commands\n",
        "An error is one sentence on standard error, `peer: what is wrong; what to do`, and an [exit code](#exit-codes).  "
        "The sentence about an unknown command suggests the probable one (`peer stop`: `peer leave`).\n",
        "Options of every command:\n",
        table(["option", "meaning"], common),
        table(
            ["command", "purpose"],
            [[f"[`{words}`](#{words.replace(' ', '-')})", summary] for words, _, summary in found],
        ),
        *(command_section(words, parser) for words, parser, _ in found),
        "## Exit codes\n",
        table(["code", "name", "meaning"], exit_codes()),
    ]
    return "\n".join(parts)


def subcommands(parser: argparse.ArgumentParser, words: str) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Yield each command below `parser` with its words, its parser and its summary."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, child in action.choices.items():
                yield f"{words} {name}", child, summaries[name]
                yield from subcommands(child, f"{words} {name}")


def command_section(words: str, parser: argparse.ArgumentParser) -> str:
    """Return a command's section: its purpose, its usage, its arguments, and what its help says at the end."""
    arguments = [each for each in parser._actions if shown(each) and not each.option_strings]
    usage = " ".join([words, *(argument(each) for each in arguments)])
    rows = [*([f"`{argument(each)}`", expanded(each, parser)] for each in arguments), *own_options(parser)]
    parts = [f"## `{words}`\n", f"{parser.description}\n", f"```sh\n{usage}\n```\n"]
    if rows:
        parts.append(table(["argument", "meaning"], rows))
    if any(group.title == "settings" for group in parser._action_groups):
        parts.append("Each of the [settings](settings.md) is an option as well.\n")
    if parser.epilog:
        parts.append(f"{parser.epilog}\n")
    return "\n".join(parts)


def own_options(parser: argparse.ArgumentParser) -> list[list[str]]:
    """Return the rows of a command's options, without the common ones and without the settings."""
    settings = {setting.flag for setting in SETTINGS.values()} if parser.prog == "peer join" else set()
    return [row for row in options(parser) if row[0].split()[0].strip("`") not in {"--data-dir", "--debug", *settings}]


def options(parser: argparse.ArgumentParser) -> list[list[str]]:
    """Return a row for each option of a parser."""
    rows = []
    for action in parser._actions:
        if shown(action) and action.option_strings:
            value = "" if action.nargs == 0 else f" {argument(action)}"
            rows.append([", ".join(f"`{option}{value}`" for option in action.option_strings), expanded(action, parser)])
    return rows


def shown(action: argparse.Action) -> bool:
    """Return True if an argument is for people."""
    hidden = isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    return not hidden and action.help is not argparse.SUPPRESS


def argument(action: argparse.Action) -> str:
    """Return the notation of an argument's value, as in a usage line."""
    if isinstance(action.metavar, str):
        word = action.metavar
    elif action.choices is not None:
        word = f"{{{','.join(map(str, action.choices))}}}"
    else:
        word = action.dest.upper()
    suffix = {"?": "[{}]", "*": "[{} …]", "+": "{} …"}.get(str(action.nargs), "{}")
    return suffix.format(word)


def expanded(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return the help of an argument, with its values, and its default if the help refers to it."""
    values = {name: value for name, value in vars(action).items() if value is not argparse.SUPPRESS}
    return (action.help or "") % {**values, "prog": parser.prog}


def exit_codes() -> list[list[str]]:
    """Return a row for each exit code."""
    return [[str(code.value), code.name, text] for code, text in ({ExitCode.OK: "Done."} | meanings(ExitCode)).items()]


def meanings(codes: type[Code]) -> dict[Code, str]:
    """Return the text below each member of an enum in the code."""
    body = ast.parse(inspect.getsource(codes)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(node, ast.Assign) and isinstance(below, ast.Expr) and isinstance(node.targets[0], ast.Name):
            found[codes[node.targets[0].id]] = " ".join(ast.literal_eval(below.value).split())
    return found


# ------------------------------------------------------------------------------------------------------------------------
# Settings, from `Preferences`.


def settings_page() -> str:
    """Return the page on the settings."""
    return "\n".join(
        [
            "# Settings\n",
            "A setting is a flag of `peer join`, an environment variable, and a key in peer.toml.  A flag overrides the "
            "variable, and the variable overrides peer.toml.  [The guide](../guides/settings.md) explains the settings, and "
            "how to change them while a peer runs.\n",
            table(
                ["setting", "flag, variable", "value", "default", "takes effect", "meaning"],
                [setting_row(setting) for setting in SETTINGS.values()],
            ),
        ]
    )


def setting_row(setting: Setting) -> list[str]:
    """Return the row of a setting."""
    words = setting.notation.choices or setting.placeholder.split("|")
    return [
        f"`{setting.name}`",
        f"`{setting.flag}`, `{setting.variable}`",
        ", ".join(f"`{word}`" for word in words),
        setting.told(setting.default),
        "at once" if setting.live else "at the next start",
        setting.meaning,
    ]


# ------------------------------------------------------------------------------------------------------------------------
# Events and the status, from dataclasses whose docstrings describe their fields.

ENTRY = re.compile(r"(?:^|(?<=\.  ))([a-z_*]+(?:, [a-z_*]+)*): ")
"""The beginning of a field's description in a docstring."""


def described(cls: type, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return the general part of a class's docstring, and its description of each field of these names."""
    text = re.sub(r"(?<=\.)\s*\n\s*", "  ", inspect.getdoc(cls) or "").replace("\n", " ")
    general, *rest = ENTRY.split(text)
    found: dict[str, str] = {}
    for several, description in zip(rest[::2], rest[1::2], strict=True):
        for name in several.split(", "):
            pattern = re.compile(name.replace("*", ".*"))
            matched = [known for known in names if pattern.fullmatch(known)]
            if not matched:
                raise ValueError(f"{cls.__name__} describes {name}, which is no field of it")
            found |= dict.fromkeys(matched, description.strip().removesuffix("."))
    return as_json(general.strip()), {name: as_json(meaning) for name, meaning in found.items()}


def as_json(text: str) -> str:
    """Return a description with JSON's word for a missing value."""
    return re.sub(r"\bNone\b", "null", text)


def events_page() -> str:
    """Return the page on all events."""
    listed = [name for names in EVENT_GROUPS.values() for name in names.split()]
    if sorted(listed) != sorted(EVENTS):
        raise ValueError(f"EVENT_GROUPS and the events differ: {sorted(set(listed) ^ set(EVENTS))}")
    parts = [
        "# Events\n",
        "One stream of events describes everything that happens at a peer.  `peer join --headless --log-format json` prints "
        "it, the control socket sends it (`peer.control.client.ControlClient.events`), and `events.jsonl` in the run's "
        "folder keeps it, without progress events.\n",
        "An event is a flat map: `event` (its name), `at` (unix seconds), `mono` (seconds of a clock that never jumps), and "
        "its fields.  Peers are peer IDs, hashes are hexadecimal, sizes are bytes, times are seconds, losses are nats per "
        "token.  A number that is not finite is null in JSON.  Readers must ignore events that they do not know, because a "
        "newer version may have more.\n",
        f"{', '.join(f'`{cls.__name__}`' for cls in PROGRESS)} are progress events: each makes the one before it stale.  A "
        "subscriber gets the newest one of each kind; standard output shows at most one a second.\n",
    ]
    for title, names in EVENT_GROUPS.items():
        rows = [event_row(EVENTS[name]) for name in names.split()]
        parts += [f"## {title}\n", table(["event", "meaning", "fields"], rows)]
    codes = [[f"`{code}`", text] for code, text in meanings(NoticeCode).items()]
    parts += ["## Codes of `Notice`\n", table(["code", "meaning, and `details`"], codes)]
    return "\n".join(parts)


def event_row(cls: type) -> list[str]:
    """Return the row of an event."""
    names = [field.name for field in dataclasses.fields(cls)]
    general, found = described(cls, names)
    told = [f"{several}: {text}" if text else several for several, text in together(names, found)]
    return [f"`{cls.__name__}`", general, "; ".join(told)]


def together(names: Sequence[str], found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield fields with their description; neighbours that share one come together."""
    for text, several in itertools.groupby(names, lambda name: found.get(name) or f"`{name}`"):
        yield ", ".join(f"`{name}`" for name in several), "" if text.startswith("`") and text[1:-1] in names else text


def status_page() -> str:
    """Return the page on the status of a peer."""
    parts = [
        "# Status\n",
        "`peer status --json` prints one JSON object.  While no peer runs it has only `running` (false) and `reason`.\n",
    ]
    for title, cls, more in (
        ("`peer status --json`", PeerStatus, {"running": "true"}),
        ("`swarm`", SwarmPeer, {}),
        ("`rollouts`", RolloutStatus, {}),
        ("`copies`", CopiesStatus, {}),
        ("`run_definition`", RunDefinition, {}),
        ("`mixtures` of `run_definition`", RunMixture, {}),
        ("`computer`", ComputerStatus, {}),
        ("`gpus` of `computer`", GpuStatus, {}),
        ("`contribution`", ContributionStatus, {}),
    ):
        names = [field.name for field in dataclasses.fields(cls)]
        general, found = "", dict(more)
        for each in reversed(cls.__mro__[:-1]):
            general, told = described(each, names)
            found |= told
        missing = [name for name in names if name not in found]
        if missing:
            raise ValueError(f"{cls.__name__} does not describe {', '.join(missing)}")
        rows = [[several, text] for several, text in together([*more, *names], found)]
        parts += [f"## {title}\n", f"{general}\n", table(["key", "meaning"], rows)]
    return "\n".join(parts)


# ------------------------------------------------------------------------------------------------------------------------
# Run files, from the manifest's models.


def run_file_page() -> str:
    """Return the page on the fields of run files."""
    parts = [
        "# Run files\n",
        "A run file is TOML.  Only `name` is required.  An unknown field is an error.  `peer run show RUN.toml` prints all "
        "fields of a run with their values.  [The guide](../guides/run-files.md) explains models, lengths and voters.\n",
        "Some fields follow from others if they are left out.  `peer run create` fills in `initial_state`, `[data.chats]`, "
        "`[tokenizer]` and `files` of `[rl]` from the paths in `from` and `environment`.\n",
        "## Fields above the sections\n",
        field_table(RunManifest, ""),
    ]
    for name, model in sections(RunManifest):
        parts += [f"## `[{name}]`\n", f"{general_part(model)}\n", field_table(model, name)]
    return "\n".join(parts)


def general_part(model: type[BaseModel]) -> str:
    """Return the first paragraph of a model's docstring."""
    return (inspect.getdoc(model) or "").split("\n\n")[0].replace("\n", " ")


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield each section of a run file with its dotted name."""
    for name, field in model.model_fields.items():
        for kind in [field.annotation, *get_args(field.annotation)]:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield f"{prefix}{name}", kind
                yield from sections(kind, f"{prefix}{name}.")


def field_table(model: type[BaseModel], section: str) -> str:
    """Return the table of the fields of a section; a field that is a section has its own table."""
    below = {name.rpartition(".")[2] for name, _ in sections(model) if "." not in name}
    rows = []
    for name, field in sorted(model.model_fields.items(), key=lambda each: not each[1].is_required()):
        if name in below and not field.description:
            continue
        dotted = f"{section}.{name}" if section else name
        rows.append([f"`{name}`", values(field), default(field, dotted), field.description or ""])
    return table(["field", "values", "default", "meaning"], rows)


def default(field: FieldInfo, dotted: str) -> str:
    """Return a field's default in TOML, or the source from which it follows."""
    if dotted in DERIVED:
        return f"follows from {DERIVED[dotted]}"
    value = field.get_default(call_default_factory=True) if field.default_factory is None else []
    if field.is_required() or value is PydanticUndefined:
        return "required"
    if value is None:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`"


def values(field: FieldInfo) -> str:
    """Return the permitted values of a field: words, or the type with its bounds."""
    return " or ".join(dict.fromkeys(kinds(field.annotation, field.metadata)))


def kinds(annotation: Any, metadata: Sequence[Any]) -> Iterator[str]:
    """Yield each kind of value of an annotation, with its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from kinds(arguments[0], [*arguments[1:], *metadata])
    elif origin is Literal:
        yield ", ".join(f'`"{word}"`' for word in arguments)
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from kinds(each, metadata)
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield ", ".join(f'`"{member.value}"`' for member in annotation)
    elif annotation is not type(None):
        section = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        name = "section" if section else TYPE_NAMES.get(annotation, "list")
        yield " ".join([name, *bounds(metadata)])


TYPE_NAMES: Mapping[Any, str] = {int: "whole number", float: "number", bool: "true or false", str: "text"}


def bounds(metadata: Sequence[Any]) -> Iterator[str]:
    """Yield the bounds among the metadata of a field."""
    flat = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    for each in flat:
        match each:
            case annotated_types.Ge(ge=least):
                yield f"from {number(least)}"
            case annotated_types.Gt(gt=above):
                yield f"above {number(above)}"
    for each in flat:
        match each:
            case annotated_types.Le(le=most):
                yield f"to {number(most)}"
            case annotated_types.Lt(lt=below):
                yield f"below {number(below)}"
            case annotated_types.MaxLen(max_length=length):
                yield f"length at most {length}"
            case annotated_types.MultipleOf(multiple_of=step):
                yield f"multiple of {step}"


def number(value: Any) -> str:
    """Return a number as documents write it."""
    if isinstance(value, int) and value > 1 << 24 and not value & (value - 1):
        return f"2^{value.bit_length() - 1}"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


# ------------------------------------------------------------------------------------------------------------------------


def pages() -> dict[Path, bytes]:
    """Return every file that this program writes, by its path in the repository."""
    written = {
        "commands.md": commands_page(),
        "settings.md": settings_page(),
        "events.md": events_page(),
        "status.md": status_page(),
        "run-file.md": run_file_page(),
    }
    found = {
        REFERENCE / name: (WRITTEN + text.replace(".  ", ". ").rstrip() + "\n").encode() for name, text in written.items()
    }
    return found | {
        Path("docs/pictures") / name: (ROOT / SNAPSHOTS / source).read_bytes() for name, source in PICTURES.items()
    }


def main() -> int:
    """Write all files, and print those that were not current."""
    for path, content in pages().items():
        target = ROOT / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != content:
            target.write_bytes(content)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
