"""The parts of `peer bench`, each with little to do: they give figures, leave nothing behind, and fail with a sentence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from peer.errors import ExitCode, PeerError
from peer.measurements import speeds
from peer.measurements.exchange import measure_exchange
from peer.measurements.speeds import PIECE_BYTES, measure_disk, measure_training


def test_the_disk_is_measured_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    speed = measure_disk(tmp_path, most_bytes=2 * PIECE_BYTES, seconds=1000.0)
    assert speed.bytes_moved == 2 * PIECE_BYTES and speed.write_bytes_per_s > 0 and speed.read_bytes_per_s > 0
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "KEPT_FREE_BYTES", 1 << 60)
    with pytest.raises(PeerError, match="make room") as caught:
        measure_disk(tmp_path)
    assert caught.value.exit_code == ExitCode.RESOURCES


def test_an_exchange_of_real_peers_is_measured() -> None:
    speed = trio.run(measure_exchange, 2, 1 << 12, 1 << 10, 0.0)
    assert speed.parameters_per_s > 0 and (speed.peers, speed.parameters) == (2, 1 << 12)


@pytest.mark.slow
def test_a_trainer_that_cannot_start_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "START_DEADLINE_S", 0.0)
    with pytest.raises(PeerError, match="could not be measured: it did not train in time") as caught:
        trio.run(measure_training, 0.0)
    assert caught.value.exit_code == ExitCode.TRAINER
