"""The defaults are the reference run's, and what makes no sense is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from trainer.rl.config import RlConfig


def test_the_defaults_are_those_of_the_reference_run() -> None:
    config = RlConfig()
    assert (config.lr, config.clip_norm, config.eps, config.delta) == (3e-7, 0.1, 0.2, 4.0)
    assert (config.prompts, config.group_size, config.optimizer_steps, config.max_async) == (256, 16, 8, 2)
    assert (config.length_weight, config.min_solve_rate, config.max_solve_rate) == (0.0003, 0.1, 0.8)
    assert (config.top_k, config.chunk_tokens, config.min_end_probability) == (128, 32, 0.1)
    assert (config.temperature, config.kl_weight) == (1.0, 0.0)


def test_a_section_says_what_differs() -> None:
    config = RlConfig.from_mapping({"lr": 1e-3, "length_targets": [10, 20]})
    assert config == RlConfig(lr=1e-3, length_targets=(10, 20))
    with pytest.raises(ValueError, match=r"unknown fields \['clip'\]"):
        RlConfig.from_mapping({"clip": 0.1})


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"group_size": 0}, "group_size must be at least 1"),
        ({"row_tokens": 0}, "row_tokens must be at least 1"),
        ({"kl_weight": -0.1}, "kl_weight must not be negative"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"eps": 1.0}, "eps must be from 0 to below 1"),
        ({"delta": 1.1}, "delta must be at least 1 [+] eps"),
        ({"min_solve_rate": 0.9}, "solve rates"),
        ({"min_end_probability": 1.1}, "min_end_probability"),
        ({"row_tokens": 32_767}, "row_tokens must be at least max_tokens"),
        ({"length_targets": (0,)}, "length_targets"),
        ({"shortfall_ceiling": 0.4}, "shortfall_ceiling must be at least max_shortfall"),
        ({"shortfall_ceiling": float("nan")}, "shortfall_ceiling must be at least max_shortfall"),
        ({"shortfall_rate": -1e-3}, "shortfall_rate must not be negative"),
        ({"shortfall_rate": float("nan")}, "shortfall_rate must not be negative"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=part):
        RlConfig(**change)


def test_a_peer_reads_it_without_torch() -> None:
    code = "import sys, trainer.rl.config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
