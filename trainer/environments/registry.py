"""All environments by name: the one place that a run's configuration leads to."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any

from trainer.environments import builtin, conversations, jsonl
from trainer.environments.environment import Environment
from trainer.environments.mixture import Mixture
from trainer.environments.reasoning_gym import ReasoningGym
from trainer.environments.verifiers_tasks import VerifiersTasks


def _mixture(of: list[dict[str, Any]]) -> Environment:
    if not isinstance(of, list) or not all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in of):
        raise ValueError("a mixture is of a list of environments, each with its name and options")
    return Mixture([open_environment(**part) for part in of])


ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "reverse": builtin.Reverse,
    "sort": builtin.SortDigits,
    "add": builtin.Add,
    "shift": builtin.Shift,
    "count": builtin.Count,
    "close": builtin.CloseBrackets,
    "guess": conversations.Guess,
    "lookup": conversations.Lookup,
    "calculate": conversations.Calculate,
    "mixture": _mixture,
    "jsonl": jsonl.open_file,
    "reasoning-gym": ReasoningGym,
    "verifiers": VerifiersTasks,
}
BUILT_IN = ("reverse", "sort", "add", "shift", "count", "close", "guess", "lookup", "calculate")
"""Those that need nothing but this package."""


def open_environment(name: str, **options: Any) -> Environment:
    """The environment of this name, with these options.

    Raises ValueError with one sentence for an unknown name or option, and for whatever else is missing here; and
    SandboxUnavailable where programs would have to be run that this computer cannot confine.
    """
    opener = ENVIRONMENTS.get(name)
    if opener is None:
        near = difflib.get_close_matches(name, ENVIRONMENTS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ENVIRONMENTS)}"
        raise ValueError(f"there is no environment {name!r}: {hint}")
    try:
        inspect.signature(opener).bind(**options)
    except TypeError as error:
        takes = ", ".join(inspect.signature(opener).parameters) or "none"
        raise ValueError(f"the environment {name!r} has other options ({error}); it takes: {takes}") from error
    return opener(**options)
