"""Predictions of `peer simulate` beside what real peers do: `python -m benchmarks.predictions --json`.

As root.  Real peers on emulated lines (`benchmarks.links`) make rounds in three settings: equal lines, one narrow line, and
many peers far from each other.  Their trainer processes do all their work, and take as long as told
(`tests.e2e.paced_peer`), as each has a computer of its own in a swarm.  The same settings are given to the simulation.

    --only NAME ...      some of the settings: equal, narrow, far
    --rounds N           rounds that count, after the first with all peers
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.links import Access, Links, address, why_not
from peer.planning.model import RoundLoad, RoundRules, RoundSetting, simulate
from peer.planning.swarm import PlannedPeers
from protocol.events import events as ev
from protocol.run.manifest import RunManifest, open_manifest
from tests.e2e.paced_peer import BUSY_FILE, READ
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm
from tests.e2e.utilisation import Work

PORT, PATIENCE_S = 4800, 1800.0
RUN = (
    LARGE_MODEL
    + """
[rounds]
inner_steps = 20
min_members = {peers}
"""
)
MBIT = 1e6


@dataclass(frozen=True)
class Emulated:
    """One setting.  delay_ms: one way.  train_s: seconds that a trainer takes for its steps of a round."""

    name: str
    lines: tuple[Access, ...]
    delay_ms: float
    train_s: float


SETTINGS = (
    Emulated("equal", (Access(4 * MBIT, 4 * MBIT),) * 4, 10.0, 20.0),
    Emulated("narrow", (*(Access(8 * MBIT, 8 * MBIT),) * 3, Access(4 * MBIT, 8 * MBIT)), 10.0, 20.0),
    Emulated("far", (Access(4 * MBIT, 16 * MBIT),) * 6, 100.0, 20.0),
)


@dataclass(frozen=True)
class RoundFigures:
    """Figures of a round, predicted or measured.  utilisation: share of the time in which trainers had work."""

    round_s: float
    exchange_s: float
    utilisation: float
    sent_bytes: float


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [each.name for each in SETTINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"lines cannot be emulated here: {reason}")
    print("| setting | figure | predicted | measured | predicted over measured |\n|---|---|---|---|---|", flush=True)
    rows = []
    for setting in SETTINGS:
        if setting.name in arguments.only:
            with tempfile.TemporaryDirectory() as folder:
                manifest, measured = measure(setting, arguments.rounds, Path(folder))
            predicted = predict(setting, manifest)
            _show(setting, predicted, measured)
            rows.append({"setting": setting.name, "predicted": asdict(predicted), "measured": asdict(measured)})
    if arguments.json:
        print(json.dumps({"rounds": arguments.rounds, "settings": rows}))
    return 0


def predict(setting: Emulated, manifest: RunManifest) -> RoundFigures:
    """What `peer simulate` says of these peers."""
    count = len(setting.lines)
    peers = PlannedPeers(
        speed=np.full(count, manifest.tokens_per_round / setting.train_s),
        up=np.array([line.up / 8 for line in setting.lines]),
        down=np.array([line.down / 8 for line in setting.lines]),
        rtt=np.full(count, 2 * setting.delay_ms / 1000),
        online_s=np.full(count, 1e9),
        offline_s=np.zeros(count),
    )
    forecast = simulate(RoundLoad.of(manifest, RoundSetting.of(manifest)), RoundRules.of(manifest), peers)
    return RoundFigures(forecast.round_s, forecast.exchange_s, forecast.utilisation, forecast.up_bytes)


def measure(setting: Emulated, rounds: int, folder: Path) -> tuple[RunManifest, RoundFigures]:
    """Let real peers make so many rounds."""
    with (
        Links(setting.lines, delay_s=setting.delay_ms / 1000) as links,
        Swarm(folder, RUN.format(peers=len(setting.lines))) as swarm,
    ):
        printed = swarm.command(
            swarm.place("peer-0"),
            *("run", "create", str(swarm.run_file), "--out", str(swarm.manifest)),
            *("--address", f"/ip4/{address(0)}/tcp/{PORT}"),
        )
        invitation = next(word for word in printed.split() if word.startswith("mh1"))
        peers = [_start(setting, swarm, links, number, invitation) for number in range(len(setting.lines))]
        swarm.until("a round of all peers", lambda: _whole(peers), PATIENCE_S)
        first = min(_whole(peers))
        last = first + rounds
        swarm.until(f"{rounds} rounds", lambda: all(last in peer.commits for peer in peers), PATIENCE_S)
        return open_manifest(swarm.manifest.read_bytes()).manifest, _figures(peers, first, last)


def _whole(peers: Sequence[Peer]) -> list[int]:
    """Rounds of which all peers are members."""
    return [round for round in list(peers[0].commits) if len(peers[0].members_of(round)) == len(peers)]


def _start(setting: Emulated, swarm: Swarm, links: Links, number: int, invitation: str) -> Peer:
    peer = swarm.peer(f"peer-{number}", invitation)
    words = (f"{BUSY_FILE}={_busy_file(peer)}", f"PACE_{READ.upper()}={setting.train_s}")
    peer.around = (*links.place(number), "env", *words)
    peer.local, peer.program = False, ("tests.e2e.paced_peer",)
    return peer.start("--port", str(PORT))


def _busy_file(peer: Peer) -> Path:
    return peer.folder.parent / f"{peer.name}.busy"


def _figures(peers: Sequence[Peer], first: int, last: int) -> RoundFigures:
    """Figures of the rounds after `first` up to `last`."""
    commits = {each.event.round: each.mono for each in list(peers[0].stamped) if isinstance(each.event, ev.RoundCommitted)}
    elapsed = commits[last] - commits[first]
    exchanges = [[event for event in peer.heard(ev.ExchangeFinished) if first < event.round <= last] for peer in peers]
    slowest = [max(event.seconds for event in of_round) for of_round in zip(*exchanges, strict=True)]
    work = [Work(**json.loads(line)) for peer in peers for line in _busy_file(peer).read_text().splitlines()]
    busy = sum(piece.within(commits[first], commits[last]) for piece in work)
    return RoundFigures(
        round_s=elapsed / (last - first),
        exchange_s=statistics.mean(slowest),
        utilisation=busy / len(peers) / elapsed,
        sent_bytes=statistics.median(event.up_bytes for events in exchanges for event in events),
    )


def _show(setting: Emulated, predicted: RoundFigures, measured: RoundFigures) -> None:
    for name, said in asdict(predicted).items():
        found = asdict(measured)[name]
        print(f"| {setting.name} | {name} | {said:.4g} | {found:.4g} | {said / found:.3f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
