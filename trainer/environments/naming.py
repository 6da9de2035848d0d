"""Names of environments: one line of text by which a run's manifest names an environment and its options.

`add`, `add(digits=3)`, `mixture(add(digits=3), sort)`, `reasoning-gym(task="chain_sum", settings={"min_terms": 2})`: a name,
and in parentheses options with JSON values, or the names of a mixture's parts.  Reading evaluates nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

MAX_NAME = 1000
"""Most characters of a name with its options."""
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_OPTION = re.compile(r"([a-z_]+)\s*=\s*")
_BLANKS = re.compile(r"\s*")


def read_name(text: str) -> tuple[str, dict[str, Any]]:
    """Return name and options, as `open_environment` takes them.  Raises ValueError with one sentence."""
    if len(text) > MAX_NAME:
        raise ValueError(f"the name of an environment has at most {MAX_NAME} characters with its options")
    reader = _Reader(text)
    try:
        name, options = reader.environment()
    except RecursionError:
        reader.fail("fewer brackets in each other")
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
            self.fail("an environment's name, of small letters")
        self._at = found.end()
        options: dict[str, Any] = {}
        if self._takes("("):
            while not self._takes(")"):
                self._item(options)
                if not self._takes(",") and not self._text.startswith(")", self._at):
                    self.fail("a comma or a closing parenthesis")
        return found.group(), options

    def _item(self, options: dict[str, Any]) -> None:
        """Read an option, or one of a mixture's environments."""
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
        assert found is not None, "it matches nothing as well"
        self._at = found.end()

    def fail(self, wanted: str) -> NoReturn:
        raise ValueError(f"{self._text[:80]!r}: {wanted} is wanted at character {self._at + 1}, as in add(digits=3)")
