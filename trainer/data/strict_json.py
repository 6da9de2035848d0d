"""Strict reader of JSON values from other peers, with the same result on every computer.

JSON does not define the meaning of a field that appears twice, and Python's limit on nesting depends on its version. A value
that only some computers can read would split a swarm.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects."""


class UndecodableText(ValueError):
    """Error for bytes that are not UTF-8; the text is a sentence."""


def parsed(data: bytes, *, has_nan: bool = True) -> Any:
    """Return the JSON value in `data`.  Raises ValueError with the flaw: "it is not JSON", a field twice, deep nesting.

    has_nan: True to read NaN and Infinity, which some programs write although JSON lacks them.
    """
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=None if has_nan else _refuse)
    except UnicodeDecodeError as error:
        raise UndecodableText(f"it is not UTF-8 text at byte {error.start + 1}; save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        flaw = error.msg.removesuffix(" at")
        raise ValueError(f"it is not JSON ({flaw} at {line}column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except ValueError as error:
        raise ValueError("it has a number with too many digits" if "digits" in str(error) else str(error)) from error
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer))
        level = [each for each in inner if isinstance(each, dict | list)]
    if level:
        raise ValueError(f"it is nested too deeply: lists and objects may be nested at most {MAX_DEPTH} times")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the field {twice!r:.40} appears twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")
