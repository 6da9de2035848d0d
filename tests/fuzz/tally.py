"""What came of the cases of a fuzzer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Tally:
    """outcomes: by kind of case, and what came of it.  failures: sentences."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def count(self, kind: str, outcome: str) -> None:
        """One more case of a kind came to this."""
        self.outcomes.setdefault(kind, Counter())[outcome] += 1

    @property
    def cases(self) -> int:
        """All of them."""
        return sum(counts.total() for counts in self.outcomes.values())
