"""Lines of tasks as people write them."""

from __future__ import annotations

import json
from typing import Any

KINDS: dict[str, dict[str, Any]] = {
    "exact_answer": {"ground_truth": "Paris"},
    "numeric_answer": {"ground_truth": "3.5", "tolerance": 0.01},
    "verifiable_math": {"ground_truth": "\\frac{1}{2}"},
    "verifiable_code": {
        "language": "python",
        "test_cases": [
            {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
            {"type": "stdin_stdout", "input": "20 2\n", "output": "22\n"},
        ],
    },
}
CALLS: dict[str, Any] = {
    "language": "python",
    "test_cases": [
        {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3},
        {"type": "function_call", "fn_name": "add", "input": ["a", "b"], "output": ["ab"]},
    ],
}


def record(kind: str = "exact_answer", **changes: Any) -> dict[str, Any]:
    """The fields of a line; those with the value `...` are left out."""
    fields = {
        "problem_id": f"{kind}-1", "source": "tests", "task_type": kind, "in_source_id": None, "prompt": "What is it?",
        "gold_standard_solution": None, "verification_info": KINDS[kind], "metadata": {}, "hf_dataset_name": "tests/tests",
    }  # fmt: skip
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def line(kind: str = "exact_answer", **changes: Any) -> bytes:
    return json.dumps(record(kind, **changes)).encode()
