"""A peer that finds a file of its data directory damaged goes on without it, or ends with one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.damage import KINDS, outcomes

pytestmark = pytest.mark.slow

TRAINED_ON = {"moments": "moments of an earlier start are not used", "residual": "begin again with zeros"}
"""Files that a trainer begins with, and what its log says when it does not."""


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another"])
def test_damage_to_any_file_is_repaired_or_named(beside: bool, tmp_path: Path) -> None:
    found = list(outcomes(tmp_path, list(KINDS), beside=beside))
    assert not [each for each in found if not each.is_good]
    for each in found:
        if each.kind in TRAINED_ON and each.damage in ("zeros", "flipped bit"):
            assert each.goes_on and TRAINED_ON[each.kind] in each.said, each
    assert all(each.goes_on for each in found if each.kind != "identity" and each.damage == "flipped bit")
