"""Result of one check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class CheckResult(Enum):
    """Verdict of a check.  WARN: takes part, but worse than it could; FAIL: cannot take part; UNKNOWN: no answer."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One check.  value: the finding.  limit: compared with it; empty if there is none.  remedy: empty if all is well."""

    name: str
    verdict: CheckResult
    value: str
    limit: str = ""
    remedy: str = ""

    def to_fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        return {**asdict(self), "verdict": self.verdict.value}


def ok(name: str, value: str, limit: str = "") -> Check:
    """Return a check that found nothing wrong."""
    return Check(name, CheckResult.OK, value, limit)


def at_least(
    name: str, found: float, least: float, show: Callable[[float], str], remedy: str, verdict: CheckResult
) -> Check:
    """Return OK if `found` is at least `least`, else `verdict`."""
    limit = f"at least {show(least)}"
    return ok(name, show(found), limit) if found >= least else Check(name, verdict, show(found), limit, remedy)
