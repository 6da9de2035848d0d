"""How fast this computer trains, measured once and kept: it takes a trainer's start and a few steps."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from importlib.metadata import version as version_of
from pathlib import Path

from peer.bench.figures import TrainingSpeed
from peer.bench.training import measure_training
from peer.doctor.check import Check, Verdict, ok
from peer.errors import PeerError
from peer.files.atomic import write_atomically
from peer.formatting import amount
from peer.resources.computer import usable_cores
from protocol.version import version

KEPT_IN = "doctor.json"
KEPT_S = 7 * 86_400.0
MAX_BYTES = 4096


async def training(folder: Path, *, anew: bool) -> tuple[Check, TrainingSpeed | None]:
    """The demo's model in a real trainer.  anew: measure again, whatever is kept."""
    kept = None if anew else _kept(folder)
    try:
        speed = kept or await measure_training()
    except PeerError as error:
        remedy = "look into trainer.log, or run `peer bench --only training --debug`"
        return Check("training", Verdict.FAIL, error.text, "", remedy), None
    if kept is None:
        _keep(folder, speed)
    where = speed.device if speed.device != "cpu" else f"{speed.threads} threads"
    since = " (measured before; --anew measures again)" if kept else ""
    return ok("training", f"{amount(speed.tokens_per_s)} tokens/s of the demo's model, {where}{since}"), speed


def _what() -> dict[str, object]:
    """What the figure depends on."""
    return {"version": version(), "torch": version_of("torch"), "cores": usable_cores()}


def _keep(folder: Path, speed: TrainingSpeed) -> None:
    told = {"what": _what(), "at": time.time(), "speed": asdict(speed)}
    try:
        write_atomically(folder / KEPT_IN, json.dumps(told).encode())
    except OSError:
        return  # another check tells what is wrong with the disk


def _kept(folder: Path) -> TrainingSpeed | None:
    try:
        with (folder / KEPT_IN).open("rb") as file:
            told = json.loads(file.read(MAX_BYTES))
        speed = TrainingSpeed(**told["speed"])
        known = told["what"] == _what() and 0 <= time.time() - float(told["at"]) < KEPT_S
        return speed if known and float(speed.tokens_per_s) > 0 and int(speed.parameters) > 0 else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
