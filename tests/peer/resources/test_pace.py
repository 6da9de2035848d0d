"""The speed of this computer, as the next run finds it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from peer.resources.pace import FILE_NAME, KEPT_S, LOOK_S, keep_own_pace, keep_pace, kept_pace
from protocol.run.manifest import RunManifest
from protocol.run.run_file import parse_run_file
from protocol.wire.identity import Identity

ME = Identity.from_seed(bytes(32)).peer_id
MANIFEST = parse_run_file('name = "run"\n', ME)
CHATS = parse_run_file(
    f'name = "run"\n[data]\ncorpora = [{{size = 1, root = "{"ab" * 32}"}}]\nformat = "chat"\nsequence_length = 256\n'
    'sources = [{name = "talk", rows = 40, counted = 2560}]\n',
    ME,
)
"""Chats of which the loss counts a quarter."""
ROLLOUTS = parse_run_file('name = "run"\n[rl]\nenvironment = "add"\n', ME)


def test_a_measurement_is_kept_until_it_is_old(tmp_path: Path) -> None:
    assert kept_pace(tmp_path) is None
    keep_pace(tmp_path, 500.0, MANIFEST.parameters, "`peer bench`", lambda: 1000.0)
    kept = kept_pace(tmp_path, lambda: 1000.0 + KEPT_S - 1)
    assert kept is not None and kept.tokens_per_s(MANIFEST) == pytest.approx(500.0) and "by `peer bench`" in kept.of
    assert kept_pace(tmp_path, lambda: 1000.0 + KEPT_S) is None and kept_pace(tmp_path, lambda: 999.0) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_no_speed_is_kept_that_is_none(tmp_path: Path, rate: float) -> None:
    keep_pace(tmp_path, rate, 10, "`peer bench`")
    assert not (tmp_path / FILE_NAME).exists()


DAMAGED = ["", "[]", "{", '{"flops": 5}', '{"flops": "x", "at": 1, "source": "x"}', '{"flops": 0, "at": 1, "source": "x"}']
ODD = ['{"flops": 1e99999, "at": 1, "source": "x"}', '{"flops": 5, "at": 1, "source": "a\\u001b[2J"}']


@pytest.mark.parametrize("text", [*DAMAGED, *ODD])
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    assert kept_pace(tmp_path, lambda: 2.0) is None


@pytest.mark.usefixtures("no_threads")
@pytest.mark.parametrize(("manifest", "rates"), [(MANIFEST, [100.0, 50.0]), (CHATS, [400.0, 200.0]), (ROLLOUTS, [])])
def test_a_peer_keeps_its_own_speed_after_its_first_round_and_when_it_has_changed(
    manifest: RunManifest, rates: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chats with the tokens that the loss does not count, and not of learning from rollouts."""
    assert written_in(manifest, tmp_path, monkeypatch) == pytest.approx(rates)


def written_in(manifest: RunManifest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    written: list[float] = []
    monkeypatch.setattr("peer.resources.pace.keep_pace", lambda folder, rate, parameters, source: written.append(rate))
    status: Any = SimpleNamespace(round=0, tokens_per_s=100.0)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_own_pace, folder, lambda: status, manifest)
            for round, rate in ((0, 100.0), (1, 100.0), (2, 105.0), (3, 0.0), (4, 50.0), (5, 50.0)):
                status.round, status.tokens_per_s = round, rate
                await trio.sleep(LOOK_S + 1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return written
