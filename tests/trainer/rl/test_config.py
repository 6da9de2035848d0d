"""The defaults are the reference run's, and what makes no sense is refused."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.formats.rl import RlConfig


def test_the_defaults_are_those_of_the_reference_run() -> None:
    config = RlConfig()
    assert (config.lr, config.clip_norm, config.eps, config.delta) == (3e-7, 0.1, 0.2, 4.0)
    assert (config.group_size, config.optimizer_steps, config.max_async) == (16, 8, 2)
    assert (config.length_weight, config.min_solve_rate, config.max_solve_rate) == (0.0003, 0.1, 0.8)
    assert (config.top_k, config.chunk_tokens, config.min_end_probability) == (128, 32, 0.1)
    assert (config.temperature, config.kl_weight) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"clip": 0.1, "lr": 0.0}, "^RlConfig: lr is 0.0; it must be more than 0; clip is not a field$"),
        ({"group_size": 1}, "group_size is 1; it must be at least 2"),
        ({"kl_weight": -0.1}, "kl_weight is -0.1; it must be at least 0"),
        ({"lr": float("nan")}, "lr is nan; it must be a finite number"),
        ({"eps": 1.0}, "eps is 1.0; it must be less than 1"),
        ({"delta": 1.1}, "delta [(]1.1[)] is less than 1 [+] eps"),
        ({"min_solve_rate": 0.9}, "min_solve_rate [(]0.9[)] is more than max_solve_rate"),
        ({"row_tokens": 32_767}, "row_tokens [(]32767[)] is less than max_tokens"),
        ({"length_targets": [0]}, "length_targets.0 is 0; it must be at least 1"),
        ({"shortfall_ceiling": 0.4}, "shortfall_ceiling [(]0.4[)] is less than max_shortfall"),
        ({"shortfall_rate": float("nan")}, "shortfall_rate is nan; it must be a finite number"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RlConfig.from_mapping(change)
