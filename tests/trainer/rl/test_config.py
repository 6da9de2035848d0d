"""Numbers of a run with rollouts that make no sense are refused."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.formats.rl import RlConfig


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"clip": 0.1, "lr": 0.0}, "^RlConfig: lr is 0.0; it must be more than 0; clip is not a field$"),
        ({"lr": float("nan")}, "lr is nan; it must be a finite number"),
        ({"delta": 1.1}, "delta [(]1.1[)] is less than 1 [+] eps"),
        ({"min_solve_rate": 0.9}, "min_solve_rate [(]0.9[)] is more than max_solve_rate"),
        ({"row_tokens": 32_767}, "row_tokens [(]32767[)] is less than max_tokens"),
        ({"length_targets": [0]}, "length_targets.0 is 0; it must be at least 1"),
        ({"shortfall_ceiling": 0.4}, "shortfall_ceiling [(]0.4[)] is less than max_shortfall"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RlConfig.from_mapping(change)
