"""Registry of all environments by name; a run's configuration opens environments through it."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from trainer.environments import builtin, packages, task_file
from trainer.environments.environment import Environment, OuterEnvironment, Problem
from trainer.environments.packages import PackageProgram, ReasoningGym, VerifiersTasks, installed_version
from trainer.environments.records import ALL, SolveRates
from trainer.environments.verification import MATH_VERIFY, check_maths

# ------------------------------------------------------------------------------------------------------------------------
# Names of environments: one line of text with which a run's manifest names an environment and its options.
#
# Examples: `add`, `add(digits=3)`, `mixture(add(digits=3), sort)`, `reasoning-gym(task="chain_sum", settings={"min_terms":
# 2})`. A name may be followed, in parentheses, by options with JSON values, or by the names of a mixture's parts. Reading a
# name evaluates nothing.


MAX_NAME = 1000
"""Maximum number of characters of a name with its options."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_OPTION = re.compile(r"([a-z_]+)\s*=\s*")
_BLANKS = re.compile(r"\s*")


def read_name(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options for `open_environment`.  Raises ValueError with one sentence."""
    if len(text) > MAX_NAME:
        raise ValueError(f"the name of an environment has at most {MAX_NAME} characters with its options")
    reader = _Reader(text)
    try:
        name, options = reader.environment()
    except RecursionError:
        reader.fail("less nesting of brackets")
    reader.end()
    return name, options


def write_name(name: str, options: Mapping[str, Any]) -> str:
    """Return the text that `read_name` reads as this name and these options."""
    items = [f"{key}={json.dumps(value)}" for key, value in options.items() if key != "of"]
    items += [
        write_name(part["name"], {key: value for key, value in part.items() if key != "name"})
        for part in options.get("of", ())
    ]
    return f"{name}({', '.join(items)})" if items else name


class _Reader:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._json = json.JSONDecoder(parse_constant=lambda word: self.fail("a number"))

    def environment(self) -> tuple[str, dict[str, Any]]:
        self._skip()
        found = _NAME.match(self._text, self._at)
        if found is None:
            self.fail("an environment's name in small letters")
        self._at = found.end()
        options: dict[str, Any] = {}
        if self._takes("("):
            while not self._takes(")"):
                self._item(options)
                if not self._takes(",") and not self._text.startswith(")", self._at):
                    self.fail("a comma or a closing parenthesis")
        return found.group(), options

    def _item(self, options: dict[str, Any]) -> None:
        """Read an option, or one of the environments of a mixture."""
        found = _OPTION.match(self._text, self._at)
        if found is None:
            name, inner = self.environment()
            parts = options.setdefault("of", [])
            if not isinstance(parts, list) or "name" in inner:
                self.fail("an option that is not there already")
            parts.append({"name": name, **inner})
        else:
            if found.group(1) in options:
                self.fail("an option that is not there already")
            self._at = found.end()
            try:
                options[found.group(1)], self._at = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError:
                self.fail("a number, true, false, or a text in double quotes")
        self._skip()

    def end(self) -> None:
        self._skip()
        if self._at < len(self._text):
            self.fail("nothing more")

    def _takes(self, sign: str) -> bool:
        self._skip()
        if not self._text.startswith(sign, self._at):
            return False
        self._at += len(sign)
        self._skip()
        return True

    def _skip(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        assert found is not None, "the pattern also matches an empty text"
        self._at = found.end()

    def fail(self, wanted: str) -> NoReturn:
        raise ValueError(f"{self._text[:80]!r}: expected {wanted} at character {self._at + 1}, as in add(digits=3)")


# ------------------------------------------------------------------------------------------------------------------------
# Mixture of several environments: problem i comes from environment i mod n.


class Mixture(OuterEnvironment):
    """Environment with problems of several environments in turn.

    A problem's answer holds the inner environment's problem.
    """

    def __init__(self, environments: Sequence[Environment]) -> None:
        if not environments:
            raise ValueError("a mixture needs at least one environment")
        self._environments = tuple(environments)
        self.max_turns = max(environment.max_turns for environment in environments)

    @property
    def size(self) -> int:
        """Number of problems, as in `Environment.size`."""
        return len(self._environments) * min(environment.size for environment in self._environments)

    def problem(self, index: int) -> Problem:
        """Return the problem as `Environment.problem` describes."""
        number, part = divmod(self._checked(index), len(self._environments))
        inner = self._environments[part].problem(number)
        return Problem(index, inner.prompt, inner)

    def inner(self, problem: Problem) -> tuple[Environment, Problem]:
        """Return the environment as `OuterEnvironment.inner` describes."""
        return self._environments[problem.index % len(self._environments)], problem.answer


# ------------------------------------------------------------------------------------------------------------------------


def _parts(of: Any) -> list[dict[str, Any]]:
    if not isinstance(of, list) or not all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in of):
        raise ValueError("a mixture needs a list of environments, each with its name and options")
    return of


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "reverse": builtin.Reverse,
    "sort": builtin.SortDigits,
    "add": builtin.Add,
    "shift": builtin.Shift,
    "count": builtin.Count,
    "close": builtin.CloseBrackets,
    "guess": builtin.Guess,
    "lookup": builtin.Lookup,
    "calculate": builtin.Calculate,
    "mixture": lambda of: Mixture([open_environment(**part) for part in _parts(of)]),
    "jsonl": task_file.open_file,
    "reasoning-gym": ReasoningGym,
    "verifiers": VerifiersTasks,
}
PACKAGES = {"reasoning-gym": packages.REASONING_GYM, "verifiers": packages.VERIFIERS}
MIXTURE, FILE, TASKS = "mixture", "jsonl", "tasks/"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{32}")
BUILT_IN = ("reverse", "sort", "add", "shift", "count", "close", "guess", "lookup", "calculate")
"""Names of the environments that need no other package."""


def open_environment(name: str, **options: Any) -> Environment:
    """Open the environment of this name, with these options.

    Raises ValueError with one sentence for an unknown name or option, and if anything is missing on this computer. Raises
    SandboxUnavailable if the environment needs to run programs that this computer cannot confine.
    """
    return _opener(name, options)(**options)


def open_named(text: str, files: Mapping[str, str] | None = None, rates: SolveRates = ALL) -> Environment:
    """Open the environment that a run's manifest names. Raises the errors of `open_environment`.

    files: paths of the run's files, by name; a file of tasks is named `TASKS` + the environment's name for the file. rates:
    bounds on the solve rates of tasks in files; tasks outside the bounds get no number.
    """
    name, parts = _named(text)
    opened: list[Environment] = []
    for part in parts:
        if part["name"] != FILE:
            opened.append(open_environment(**part))
            continue
        called = TASKS + part["path"]
        if files is None or called not in files:
            raise ValueError(f"the run's file {called} is not here")
        opened.append(task_file.open_rated(files[called], part["digest"], rates))
    return Mixture(opened) if name == MIXTURE else opened[0]


def check_named(text: str, problems: int, tasks: Mapping[str, int] | None = None) -> None:
    """Raise ValueError with one sentence if no peer could open the named environment, or if it has fewer problems.

    Only environments that need no other package are opened, because packages and sandboxes differ between computers. tasks:
    number of tasks in each file, by the environment's name for the file, if known.
    """
    size = problems_of(text, tasks or {})
    if size is not None and size < problems:
        raise ValueError(f"{text} has {size} problems, not {problems}; set problems = {size}")


def problems_of(text: str, tasks: Mapping[str, int]) -> int | None:
    """Return the number of an environment's problems, given the tasks in its files; None if it is not known here."""
    sizes: list[int | None] = []
    for part in _named(text)[1]:
        if part["name"] == FILE:
            sizes.append(tasks.get(part["path"]))
        else:
            sizes.append(open_environment(**part).size if part["name"] in BUILT_IN else None)
    known = [size for size in sizes if size is not None]
    return len(sizes) * min(known) if len(known) == len(sizes) else None


def files_of(text: str) -> list[tuple[str, str]]:
    """Return names and digests of the files that a run's environment reads.  Raises ValueError."""
    return sorted({(part["path"], part["digest"]) for part in _named(text)[1] if part["name"] == FILE})


def with_digests(text: str, digest: Callable[[str], str]) -> str:
    """Return this name for a manifest, with a digest added to each file of tasks that has none.

    digest: returns the digest of a file, given the environment's name for the file. Raises ValueError for a malformed name,
    and passes on any exception of `digest`.
    """
    name, options = read_name(text)
    parts = options.get("of") if name == MIXTURE else [options]
    incomplete = False
    for part in parts if isinstance(parts, list) else []:
        path = part.get("path")
        if part.get("name", name) == FILE and "digest" not in part and isinstance(path, str) and _FILE_NAME.fullmatch(path):
            part["digest"], incomplete = digest(path), True
    return write_name(name, options) if incomplete else text


def check_packages(text: str) -> None:
    """Raise PackageMissing or SandboxUnavailable if this computer lacks a package of the environment, or its sandbox.

    Only the file itself shows which packages its tasks need. So math-verify may be missing, but must work if installed.
    Raises ValueError for a malformed or unknown name.
    """
    for part in _named(text)[1]:
        if part["name"] == FILE and importlib.util.find_spec(MATH_VERIFY[0]) is not None:
            check_maths()
        if part["name"] in PACKAGES:
            installed_version(*PACKAGES[part["name"]])
            PackageProgram("")


def _named(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the name, and the environments of a mixture or the single environment, each with its name and checked options.

    Manifests come from strangers, so a path of tasks must not lead elsewhere.  Tasks need a digest, so that all peers have
    the same ones.  Raises ValueError.
    """
    name, options = read_name(text)
    _opener(name, options)
    parts = _parts(options["of"]) if name == MIXTURE else [{"name": name, **options}]
    if name == MIXTURE and (not parts or any(part["name"] == MIXTURE for part in parts)):
        raise ValueError(
            "a mixture cannot contain a mixture; list the environments themselves, as in mixture(add(digits=3), sort)"
        )
    for part in parts:
        _opener(part["name"], {key: value for key, value in part.items() if key != "name"})
        if part["name"] != FILE:
            continue
        path, digest = part["path"], part.get("digest")
        if not isinstance(path, str) or not _FILE_NAME.fullmatch(path):
            raise ValueError("the path of a run's tasks must be the name of a file, without folders")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(
                "a file of tasks needs its digest, so that all peers have the same; `peer run create RUN.toml` adds it"
            )
    return name, parts


def _opener(name: str, options: Mapping[str, Any]) -> Callable[..., Environment]:
    """Return the function that opens an environment.  Raises ValueError for an unknown name or option."""
    opener = ENVIRONMENTS.get(name)
    if opener is None:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ENVIRONMENTS)}"
        raise ValueError(f"there is no environment {name!r}: {hint}")
    try:
        inspect.signature(opener).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(opener).parameters) or "none"
        raise ValueError(f"the environment {name!r} does not take these options ({error}); it takes: {takes}") from error
    return opener
