"""Small worlds end with the records, members and states with which they ended before."""

from __future__ import annotations

import pytest

from tests.simulation.golden import golden, outcomes


@pytest.mark.slow
def test_ten_worlds_end_as_before() -> None:
    ended, expected = outcomes(), golden()
    changed = [
        f"{name}: {outcome}, before {expected.get(name)}" for name, outcome in ended.items() if expected.get(name) != outcome
    ]
    assert not changed and ended.keys() == expected.keys(), "\n".join(
        ["`python -m tests.simulation.golden` writes them anew, if that is meant:", *changed]
    )
