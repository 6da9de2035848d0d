"""A peer alone in its run that finds a file of its data directory damaged goes on without it, or ends with one sentence.

`python -m benchmarks.damage` plays all kinds of files and of damage.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.damage import outcomes

pytestmark = pytest.mark.slow

KINDS = (
    "identity",
    "incarnation",
    "manifest of the run",
    "newest votes",
    "first record",
    "newest record",
    "all results",
    "shards of a corpus",
    "moments",
)
TOLD = {
    "first record": "4 records after round 0 cannot be read",
    "newest record": "1 record after round 3 cannot be read",
    "moments": "moments of an earlier start are not used",
}
"""What a peer or its trainer says of flipped bits."""


def test_damage_to_a_file_is_repaired_or_named(tmp_path: Path) -> None:
    found = list(outcomes(tmp_path, KINDS, ["flipped bit"]))
    assert {each.kind for each in found} == set(KINDS) and not [each for each in found if not each.is_good]
    for each in found:
        if each.kind in TOLD:
            assert each.goes_on and TOLD[each.kind] in each.said, each
