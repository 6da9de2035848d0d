"""Reports of the measured figures, for people and for programs."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from peer.control.client import running_status
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import named_run, read_manifest, stored_manifest
from peer.measurements.speeds import Figures, LineSpeed, TrainingSpeed
from protocol.events.status import PeerStatus
from protocol.formatting import amount, clean, duration, line_rate, many, short, size
from protocol.run.manifest import RunManifest, SignedManifest, demo_manifest
from protocol.version import version
from protocol.wire.hashes import Hash

# ------------------------------------------------------------------------------------------------------------------------
# Meaning of the measured figures for taking part in a run, as rows of a table.


STATE_BYTES = 8
"""Bytes per parameter in a checkpoint: the parameter and its momentum."""
Row = tuple[str, str, str]
"""Row of the table: the subject, the figure, and its meaning."""


@dataclass(frozen=True)
class RunSize:
    """Size of a run.  members: peers that share an exchange.  payload_bytes: size of a contribution, and of a result."""

    name: str
    parameters: int
    payload_bytes: int
    members: int
    round_tokens: int

    @classmethod
    def of(cls, manifest: RunManifest, members: int) -> RunSize:
        """Return the size of a run.

        members: number of members in its last round; at least two, and at least the run's minimum, are assumed.
        """
        step_tokens = manifest.data.sequences_per_step * manifest.data.sequence_length
        least = max(2, manifest.rounds.min_members)
        return cls(
            clean(manifest.name, 24),
            manifest.parameters,
            manifest.layouts.exchanged_bytes,
            max(members, least),
            manifest.rounds.inner_steps * step_tokens,
        )

    @property
    def exchange_bytes(self) -> float:
        """Bytes that each member sends, and receives, in an exchange."""
        return (self.members - 1) / self.members * self.payload_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of a checkpoint, which a newcomer fetches."""
        return STATE_BYTES * self.parameters


def rows(figures: Figures, run: RunSize) -> list[Row]:
    """Return the rows in the order of the measurements; a missing figure becomes a row with the reason."""
    found: list[Row] = []
    if (codec := figures.codec) is not None:
        for what, rate, mb in (
            ("encode", codec.encode_parameters_per_s, codec.encode_mb_per_s),
            ("decode", codec.decode_parameters_per_s, codec.decode_mb_per_s),
        ):
            text = f"{amount(rate)} parameters/s, {mb:.0f} MB/s"
            found.append((f"{what}, one core", text, f"{_time(run.parameters / rate)} for the parameters of {run.name}"))
    if (exchange := figures.exchange) is not None:
        text = f"{amount(exchange.parameters_per_s)} parameters/s"
        least = _time(run.parameters / exchange.parameters_per_s)
        meaning = f"an exchange of {run.name} takes {least} if lines take no time"
        found.append((f"exchange, {exchange.peers} peers here", text, meaning))
    if figures.training is not None:
        found.append(_training(figures.training, run))
    if (disk := figures.disk) is not None:
        state = f"a checkpoint of {run.name}, {size(run.state_bytes)}"
        cached = " (from memory)" if disk.read_is_cached else ""
        found += [
            ("disk, write", f"{size(disk.write_bytes_per_s)}/s", _for(run.state_bytes, disk.write_bytes_per_s, state)),
            ("disk, read", f"{size(disk.read_bytes_per_s)}/s{cached}", _for(run.state_bytes, disk.read_bytes_per_s, state)),
        ]
    if figures.lines is not None:
        found += _lines(figures.lines, run)
    return found + [(part, "not measured", reason) for part, reason in figures.missing.items()]


def _training(training: TrainingSpeed, run: RunSize) -> Row:
    """Return the row for training: time per token is about proportional to parameters."""
    where = training.device if training.device != "cpu" else f"cpu, {many(training.threads, 'thread')}"
    figure = f"{amount(training.tokens_per_s)} tokens/s, {100 * training.mfu:.0f} % MFU in {training.precision}"
    rate = training.tokens_per_s * training.parameters / run.parameters
    takes = duration(run.round_tokens / max(rate, 1e-9))
    is_same = run.parameters == training.parameters
    meaning = f"a round of {run.name} computes for {'' if is_same else 'very roughly '}{takes}"
    return f"training, {training.model} model, {where}", figure, meaning


def _lines(lines: LineSpeed, run: RunSize) -> list[Row]:
    found: list[Row] = []
    for line in lines.peers:
        name = f"from {clean(line.name, 16)} ({short(line.peer)})"
        if line.down_bytes_per_s:
            meaning = _for(run.state_bytes, line.down_bytes_per_s, f"{size(run.state_bytes)} that a newcomer fetches")
            found.append((name, line_rate(line.down_bytes_per_s), meaning))
        else:
            found.append((name, "not measured", clean(line.problem, 80)))
    up, down = lines.up_bytes_per_s, lines.down_bytes_per_s
    if not up:
        found.append(("to peers", "not known yet", "known after a round in which this peer sends more than 256 kB a second"))
    else:
        found.append(
            ("to peers (seen in rounds, or the cap)", line_rate(up), f"sends {size(run.exchange_bytes)} in an exchange")
        )
    if up and down:
        meaning = _for(run.exchange_bytes, min(up, down), f"an exchange of {run.members} members")
        found.append(("both ways", line_rate(min(up, down)), meaning))
    return found


def _for(count: float, bytes_per_s: float, what: str) -> str:
    return f"{_time(count / max(bytes_per_s, 1e-9))} for {what}"


def _time(seconds: float) -> str:
    """Return a duration as text, with more digits below two seconds."""
    if seconds >= 2:
        return duration(seconds)
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{max(seconds * 1e3, 0.1):.1f} ms"


# ------------------------------------------------------------------------------------------------------------------------
# Run with which the figures are compared: the named run, else the run of the peer here, else the demo.


def chosen(word: str | None, folder: Path) -> tuple[SignedManifest, PeerStatus | None]:
    """Return the run, and the status of the peer here if that peer takes part in this run.

    word: a run's name, or any word that `peer join` and `peer run show` accept.  folder: the data directory.  Raises
    PeerError.
    """
    status = running_status(folder)
    if word is None:
        signed = stored_manifest(Hash(bytes.fromhex(status.run)), folder) if status is not None else None
        signed = signed or demo_manifest()
    else:
        signed = _named(word, folder)
    return signed, status if status is not None and status.run == signed.run.hex() else None


def _named(word: str, folder: Path) -> SignedManifest:
    manifests = [read_manifest(path) for path in sorted(folder.glob("runs/*/manifest"))]
    named = [signed for signed in manifests if signed.manifest.name == word]
    if len(named) > 1:
        raise PeerError(f"{len(named)} runs are called {word[:80]}; give the run ID", ExitCode.INPUT)
    if named or word == demo_manifest().manifest.name:
        return named[0] if named else demo_manifest()
    return named_run(word, folder)


# ------------------------------------------------------------------------------------------------------------------------


def fields(figures: Figures, run_id: str, run: RunSize, seconds: float) -> dict[str, Any]:
    """Return the JSON object.  seconds: duration of the measurement."""
    size = {**asdict(run), "exchange_bytes": run.exchange_bytes, "state_bytes": run.state_bytes}
    about = {"version": version(), "seconds": seconds, "cores": os.cpu_count(), "run": {"id": run_id, **size}}
    return about | figures.to_fields()
