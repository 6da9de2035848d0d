"""The checks as lines for a person, and as one JSON object for a program."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from peer.console.standard_streams import draws
from peer.doctor.check import Check, CheckResult
from peer.formatting import clean

MARKS = {CheckResult.OK: "ok", CheckResult.WARN: "WARN", CheckResult.FAIL: "FAIL", CheckResult.UNKNOWN: "?"}


def may_take_part(checks: Sequence[Check]) -> bool:
    """Return True if no check failed."""
    return all(check.verdict is not CheckResult.FAIL for check in checks)


def fields(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checks for JSON."""
    return {"ok": may_take_part(checks), "checks": [check.to_fields() for check in checks]}


def lines(checks: Sequence[Check]) -> list[str]:
    """Return a line for each check, a second one with its remedy if any, and the result."""
    width = max((len(check.name) for check in checks), default=0)
    found = list[str]()
    for check in checks:
        limit = f"  ({clean(check.limit, 80)})" if check.limit else ""
        found.append(f"{MARKS[check.verdict]:<5}{check.name:<{width}}  {clean(check.value, 300)}{limit}")
        if check.remedy:
            found.append(f"     {'':<{width}}  -> {clean(check.remedy, 300)}")
    failing = [check.name for check in checks if check.verdict is CheckResult.FAIL]
    result = f"This computer cannot take part yet: {', '.join(failing)}." if failing else "This computer can take part."
    return [*found, "", result]


class DoctorProgress:
    """Report of the running check on the terminal; silent if standard error is no terminal."""

    def __init__(self) -> None:
        self._draws = draws(sys.stderr)

    def say(self, what: str) -> None:
        """Show the check that runs now."""
        if self._draws:
            print(f"\r\x1b[Klooking at {what} …", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erase the line."""
        if self._draws:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
