"""Progress is told once a second at most, with the rate of what was fetched."""

from __future__ import annotations

from protocol.events import VersionProgress
from protocol.versions.progress import Progress
from tests.protocol.versions.test_route import a_blob


def test_progress_counts_bytes_that_came_and_none_that_were_there() -> None:
    told: list[VersionProgress] = []
    blob = a_blob("w", 9 * 4096 + 100)
    progress = Progress(3, "whole", blob, 0b11, 10.0, told.append)
    assert progress.told().left_s is None and progress.told().done == 2
    progress.update(0b111, 4, 10.5)
    assert told == []
    progress.update(0b1111, 4, 12.0)
    assert [(each.done, each.total, each.down_bytes_per_s, each.sources) for each in told] == [(4, 10, 4096.0, 4)]
    assert told[0].chunks == "0f00" and told[0].left_s == (5 * 4096 + 100) / 4096
    progress.update(0b1111111111, 4, 12.1)
    assert told[-1].done == 10 and told[-1].left_s == 0.0, "the end is told at once"
