"""Speed of the lines to other peers, measured by the peer that runs here.  Blocking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peer.bench.figures import LineSpeed, PeerLine
from peer.control.client import ControlClient, ControlError, NotRunning
from peer.errors import ExitCode, PeerError

TIMEOUT_S = 30.0
"""Timeout that covers a few peers for a few seconds each."""


def measure_lines(data_dir: Path, run: str | None = None) -> LineSpeed:
    """Measure the lines to the peers of the running peer's run.  run: the ID that this run must have.  Raises PeerError."""
    client = ControlClient(data_dir, timeout_s=TIMEOUT_S)
    try:
        running = client.status().run
        if run is not None and running != run:
            raise PeerError(f"the peer here takes part in another run, {running[:12]}; measure with that", ExitCode.INPUT)
        return _read(client.request("lines"))
    except NotRunning as error:
        raise PeerError(f"{error}; `peer join` starts one, whose lines can be measured", ExitCode.NOT_RUNNING) from error
    except ControlError as error:
        raise PeerError(str(error), ExitCode.UNREACHABLE) from error


def _read(answer: dict[str, Any]) -> LineSpeed:
    """Parse the peer's answer; raises ControlError if its form is another, as in another version."""
    try:
        peers = [
            PeerLine(
                str(one["peer"]),
                str(one["name"]),
                int(one["down_bytes"]),
                float(one["down_bytes_per_s"]),
                str(one["problem"]),
            )
            for one in answer["peers"]
        ]
        return LineSpeed(str(answer["run"]), peers, float(answer["up_bytes_per_s"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError("the peer's answer lacks a figure; is it of another version?") from error
