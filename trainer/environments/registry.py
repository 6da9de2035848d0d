"""Registry of all environments by name; a run's configuration opens environments through it."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from trainer.environments import builtin, packages, task_file, tools
from trainer.environments.environment import Environment, OuterEnvironment, Problem
from trainer.environments.packages import PackageProgram, ReasoningGym, VerifiersTasks, installed_version
from trainer.environments.records import ALL, SolveRates
from trainer.environments.sandbox import Sandbox
from trainer.environments.tools import ToolLimits
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
            if found.group(1) in (*options, "name"):
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
    "tools": lambda of, use, turns=4, reply_bytes=1024, seconds=5, corpus=None, digest=None: _with_tools(
        open_environment(**_single(of)), use, ToolLimits(turns, reply_bytes, seconds), corpus, digest
    ),
    "jsonl": task_file.open_file,
    "reasoning-gym": ReasoningGym,
    "verifiers": VerifiersTasks,
}
PACKAGES = {"reasoning-gym": packages.REASONING_GYM, "verifiers": packages.VERIFIERS}
MIXTURE, WITH_TOOLS, FILE, TASKS = "mixture", "tools", "jsonl", "tasks/"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Names of files that a run may read."""
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

    files: paths of the run's files, by name; a file of tasks or a corpus is named `TASKS` + the environment's name for the
    file. rates: bounds on the solve rates of tasks in files; tasks outside the bounds get no number.
    """

    def path_of(name: str) -> str:
        if files is None or TASKS + name not in files:
            raise ValueError(f"the run's file {TASKS + name} is not here")
        return files[TASKS + name]

    def opened(part: dict[str, Any]) -> Environment:
        name, options = part["name"], {key: value for key, value in part.items() if key != "name"}
        if name == MIXTURE:
            return Mixture([opened(inner) for inner in options["of"]])
        if name == WITH_TOOLS:
            corpus = path_of(options["corpus"]) if "corpus" in options else None
            own = opened(_single(options["of"]))
            return _with_tools(own, options["use"], _limits(options), corpus, options.get("digest"))
        if name == FILE:
            return task_file.open_rated(path_of(options["path"]), options["digest"], rates)
        return open_environment(**part)

    return opened(_named(text))


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

    def size_of(part: dict[str, Any]) -> int | None:
        if part["name"] == MIXTURE:
            sizes = [size_of(inner) for inner in part["of"]]
            known = [size for size in sizes if size is not None]
            return len(sizes) * min(known) if len(known) == len(sizes) else None
        if part["name"] == WITH_TOOLS:
            return size_of(_single(part["of"]))
        if part["name"] == FILE:
            return tasks.get(part["path"])
        return open_environment(**part).size if part["name"] in BUILT_IN else None

    return size_of(_named(text))


def files_of(text: str) -> list[tuple[str, str]]:
    """Return names and digests of the files that a run's environment reads.  Raises ValueError."""
    return sorted({(part[key], part["digest"]) for part, key in _reading(_named(text))})


def corpora_of(text: str) -> set[str]:
    """Return the names of the files that a run's environment reads as corpora, not as tasks.  Raises ValueError."""
    return {part[key] for part, key in _reading(_named(text)) if key == "corpus"}


def with_digests(text: str, digest: Callable[[str], str]) -> str:
    """Return this name for a manifest, with a digest added to each file that has none.

    digest: returns the digest of a file, given the environment's name for the file. Raises ValueError for a malformed name,
    and passes on any exception of `digest`.
    """
    name, options = read_name(text)
    incomplete = False
    named = {"name": name, **options}
    try:
        reading = [*_reading(named)]
    except ValueError:  # reported when the environment is opened
        return text
    for part, key in reading:
        if "digest" not in part and isinstance(part[key], str) and FILE_NAME.fullmatch(part[key]):
            part["digest"], incomplete = digest(part[key]), True
    return write_name(named.pop("name"), named) if incomplete else text


def check_packages(text: str) -> None:
    """Raise PackageMissing or SandboxUnavailable if this computer lacks a package of the environment, or its sandbox.

    Only the file itself shows which packages its tasks need. So math-verify may be missing, but must work if installed.
    Raises ValueError for a malformed or unknown name.
    """
    for part in _parts_below(_named(text)):
        if part["name"] == FILE and importlib.util.find_spec(MATH_VERIFY[0]) is not None:
            check_maths()
        if part["name"] == WITH_TOOLS and tools.PythonTool.name in part["use"]:
            Sandbox()
        if part["name"] in PACKAGES:
            installed_version(*PACKAGES[part["name"]])
            PackageProgram("")


def _named(text: str) -> dict[str, Any]:
    """Return the named environment, with its name and checked options; the environments inside another one are in `of`.

    Manifests come from strangers, so a path must not lead elsewhere.  Files need a digest, so that all peers have the same
    ones.  Raises ValueError.
    """
    name, options = read_name(text)
    named = {"name": name, **options}
    for part in _parts_below(named):
        _opener(part["name"], {key: value for key, value in part.items() if key != "name"})
        if part["name"] == MIXTURE and (not part["of"] or any(inner["name"] == MIXTURE for inner in _parts(part["of"]))):
            raise ValueError(
                "a mixture cannot contain a mixture; list the environments themselves, as in mixture(add(digits=3), sort)"
            )
        if part["name"] == WITH_TOOLS:
            _check_tools(part)
    for part, key in _reading(named):
        path, digest = part[key], part.get("digest")
        if not isinstance(path, str) or not FILE_NAME.fullmatch(path):
            raise ValueError("the path of a run's tasks or corpus must be the name of a file, without folders")
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ValueError(
                "a file of tasks or a corpus needs its digest, so that all peers have the same; "
                "`peer run create RUN.toml` adds it"
            )
    return named


def _parts_below(part: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an environment, and all the environments inside it.  Raises ValueError for a malformed list of environments."""
    yield part
    if part["name"] in (MIXTURE, WITH_TOOLS) and "of" in part:
        for inner in _parts(part["of"]):
            yield from _parts_below(inner)


def _reading(part: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each environment that reads a file, with the option that names the file."""
    for each in _parts_below(part):
        for name, key in ((FILE, "path"), (WITH_TOOLS, "corpus")):
            if each["name"] == name and key in each:
                yield each, key


def _single(of: Any) -> dict[str, Any]:
    parts = _parts(of)
    if len(parts) != 1:
        raise ValueError('tools are added to one environment, as in tools(add(digits=5), use=["calculator"])')
    return parts[0]


def _limits(options: Mapping[str, Any]) -> ToolLimits:
    """Return the limits in the options of `tools`.  Raises ValueError."""
    return ToolLimits(**{key: options[key] for key in ("turns", "reply_bytes", "seconds") if key in options})


def _check_tools(part: Mapping[str, Any]) -> None:
    """Raise ValueError for tools that no peer could open."""
    use, inner = part["use"], _single(part["of"])
    known = isinstance(use, list) and use and all(isinstance(name, str) and name in tools.TOOLS for name in use)
    if not known or len(set(use)) != len(use):
        raise ValueError(f"use is a list of tools, each once: {', '.join(tools.TOOLS)}")
    if (tools.CorpusSearch.name in use) != ("corpus" in part):
        raise ValueError('the tool search needs a file of documents, as in use=["search"], corpus="docs.jsonl"')
    _limits(part)
    if inner["name"] in (MIXTURE, WITH_TOOLS):
        raise ValueError("tools are added to each environment of a mixture, as in mixture(tools(add, use=[…]), sort)")
    if inner["name"] in BUILT_IN and open_environment(**inner).max_turns > 1:
        raise ValueError(f"{inner['name']} has several turns itself, so no tools can be added to it")


def _with_tools(own: Environment, use: Any, limits: ToolLimits, corpus: str | None, digest: str | None) -> Environment:
    made: list[tools.Tool] = []
    for name in use:
        if name == tools.Calculator.name:
            made.append(tools.Calculator())
        elif name == tools.PythonTool.name:
            made.append(tools.PythonTool(limits.seconds))
        elif name == tools.CorpusSearch.name and corpus is not None:
            made.append(tools.CorpusSearch(tools.read_corpus(task_file.read_file(corpus, digest)), limits.reply_bytes))
        else:
            raise ValueError(f"there is no tool {name!r} without a corpus; there are {', '.join(tools.TOOLS)}")
    return tools.WithTools(own, made, limits)


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
