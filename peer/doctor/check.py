"""One thing that was looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any


class Verdict(Enum):
    """OK; WARN: takes part, but worse than it could; FAIL: cannot take part; UNKNOWN: it could not be found out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """value: what was found.  limit: what it is held against; empty where nothing is.  remedy: empty when all is well."""

    name: str
    verdict: Verdict
    value: str
    limit: str = ""
    remedy: str = ""

    def to_fields(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "verdict": self.verdict.value}


def ok(name: str, value: str, limit: str = "") -> Check:
    """All is well."""
    return Check(name, Verdict.OK, value, limit)


def at_least(name: str, found: float, least: float, show: Callable[[float], str], remedy: str, verdict: Verdict) -> Check:
    """OK from `least` on, else `verdict`."""
    limit = f"at least {show(least)}"
    return ok(name, show(found), limit) if found >= least else Check(name, verdict, show(found), limit, remedy)
