"""Predictions of `peer simulate` beside real peers: `python -m benchmarks.predictions --json`.

Needs root.  Real peers on emulated lines (`benchmarks.links`) make rounds in four settings: equal lines, one narrow line,
peers far from each other that continue to train while a fragment is exchanged, and one slow trainer.  Their trainer
processes do all their work, and each step takes a given time (`tests.e2e.paced_peer`), because in a swarm each peer has a
computer of its own.  The processor is idle for most of the time, so other work beside the measurement changes little.  The
same settings are given to the simulation.  Bytes are counted on a peer's line, with all headers.

    --only NAME ...      some of the settings: equal, narrow, overlapped, uneven
    --rounds N           rounds that count, after the first with all peers and two more

The bar: no prediction is off by more than a tenth.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.links import Access, Links, address, why_not
from peer.planning.cost import RoundLoad, RoundRules, RoundSetting
from peer.planning.model import forecast_rounds
from peer.planning.swarm import PlannedPeers
from protocol.events import events as ev
from protocol.run.manifest import RunManifest, open_manifest
from tests.e2e.paced_peer import BUSY_FILE, STEP_S, Work
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm

PORT, PATIENCE_S = 4800, 600.0
SETTLING = 2
"""Rounds after the first one with all peers that do not count: the first overlapped rounds have no early leases."""
BAR = 0.1
RUN = (
    "fragments = {fragments}"
    + LARGE_MODEL
    + """
[rounds]
inner_steps = {inner_steps}
delay = {delay}
min_members = {min_members}
"""
)
MBIT = 1e6


@dataclass(frozen=True)
class Emulated:
    """One setting.

    lines, step_s: each peer's line, and the seconds of its step.  latency_s: the latency one way.  inner_steps, fragments,
    delay: the same as in a run file.
    """

    name: str
    lines: tuple[Access, ...]
    step_s: tuple[float, ...]
    latency_s: float
    inner_steps: int = 10
    fragments: int = 1
    delay: int = 0

    @property
    def run(self) -> str:
        """The run file.  One peer may be late."""
        return RUN.format(**vars(self), min_members=len(self.lines) - 1)


EQUAL = (Access(4 * MBIT, 4 * MBIT),) * 4
SETTINGS = (
    Emulated("equal", EQUAL, (1.0,) * 4, 0.01),
    Emulated("narrow", (*EQUAL[1:], Access(2 * MBIT, 4 * MBIT)), (2.0,) * 4, 0.01, inner_steps=5),
    Emulated("overlapped", (Access(1 * MBIT, 4 * MBIT),) * 6, (1.0,) * 6, 0.1, inner_steps=40, fragments=4, delay=4),
    Emulated("uneven", EQUAL, (1.0, 1.0, 1.0, 1.5), 0.01),
)


@dataclass(frozen=True)
class RoundFigures:
    """Figures of the rounds, predicted or measured.

    exchange_s: the seconds of the slowest member.  utilisation: the share of the time in which trainers had work.
    sent_bytes: the bytes of a peer in a round.  tokens_per_s: the tokens of all members that records count.
    """

    round_s: float
    exchange_s: float
    utilisation: float
    sent_bytes: float
    tokens_per_s: float


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predictions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [each.name for each in SETTINGS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"lines cannot be emulated here: {reason}")
    print("| setting | figure | predicted | measured | predicted over measured |\n|---|---|---|---|---|", flush=True)
    rows, holds = [], True
    for setting in SETTINGS:
        if setting.name in arguments.only:
            with tempfile.TemporaryDirectory() as folder:
                manifest, measured = measure(setting, arguments.rounds, Path(folder))
            predicted = predict(setting, manifest)
            holds &= _show(setting, predicted, measured)
            rows.append({"setting": setting.name, "predicted": asdict(predicted), "measured": asdict(measured)})
    if arguments.json:
        print(json.dumps({"rounds": arguments.rounds, "holds": holds, "settings": rows}))
    return 0 if holds else 1


def predict(setting: Emulated, manifest: RunManifest) -> RoundFigures:
    """Return the prediction of `peer simulate` for these peers."""
    count = len(setting.lines)
    peers = PlannedPeers(
        speed=manifest.tokens_per_round / manifest.round_steps / np.array(setting.step_s),
        up=np.array([line.up / 8 for line in setting.lines]),
        down=np.array([line.down / 8 for line in setting.lines]),
        rtt=np.full(count, 2 * setting.latency_s),
        online_s=np.full(count, 1e9),
        offline_s=np.zeros(count),
    )
    forecast = forecast_rounds(RoundLoad.of(manifest, RoundSetting.of(manifest)), RoundRules.of(manifest), peers)
    tokens_per_s = forecast.tokens_a_day / 86_400
    return RoundFigures(forecast.round_s, forecast.exchange_s, forecast.utilisation, forecast.up_bytes, tokens_per_s)


def measure(setting: Emulated, rounds: int, folder: Path) -> tuple[RunManifest, RoundFigures]:
    """Let real peers make this number of rounds."""
    with Links(setting.lines, delay_s=setting.latency_s) as links, Swarm(folder, setting.run) as swarm:
        printed = swarm.command(
            swarm.place("peer-0"),
            *("run", "create", str(swarm.run_file), "--out", str(swarm.manifest)),
            *("--address", f"/ip4/{address(0)}/tcp/{PORT}"),
        )
        invitation = next(word for word in printed.split() if word.startswith("mh1"))
        peers = [_start(setting, swarm, links, number, invitation) for number in range(len(setting.lines))]
        swarm.until("a round of all peers", lambda: _whole(peers), PATIENCE_S)
        first = min(_whole(peers)) + SETTLING
        sent = []
        for last in (first, first + rounds):
            swarm.until(f"round {last}", partial(_all_committed, peers, last), PATIENCE_S)
            sent.append([links.sent_bytes(number) for number in range(len(peers))])
        sent_bytes = statistics.median(after - before for before, after in zip(*sent, strict=True)) / rounds
        return open_manifest(swarm.manifest.read_bytes()).manifest, _figures(peers, range(first + 1, last + 1), sent_bytes)


def _whole(peers: Sequence[Peer]) -> list[int]:
    """Return the rounds of which all peers are members."""
    return [round for round in list(peers[0].commits) if len(peers[0].members_of(round)) == len(peers)]


def _all_committed(peers: Sequence[Peer], round: int) -> bool:
    return all(round in peer.commits for peer in peers)


def _start(setting: Emulated, swarm: Swarm, links: Links, number: int, invitation: str) -> Peer:
    peer = swarm.peer(f"peer-{number}", invitation)
    words = (f"{BUSY_FILE}={_busy_file(peer)}", f"{STEP_S}={setting.step_s[number]}")
    peer.around = (*links.place(number), "env", *words)
    peer.local, peer.program = False, ("tests.e2e.paced_peer",)
    return peer.start("--port", str(PORT))


def _busy_file(peer: Peer) -> Path:
    return peer.folder.parent / f"{peer.name}.busy"


def _figures(peers: Sequence[Peer], rounds: range, sent_bytes: float) -> RoundFigures:
    """Return the figures of these rounds."""
    commits = {each.event.round: each.mono for each in list(peers[0].stamped) if isinstance(each.event, ev.RoundCommitted)}
    begin, end = commits[rounds[0] - 1], commits[rounds[-1]]
    slowest = dict[int, float]()
    for event in (event for peer in peers for event in peer.heard(ev.ExchangeFinished)):
        slowest[event.round] = max(slowest.get(event.round, 0.0), event.seconds)
    work = [Work(**json.loads(line)) for peer in peers for line in _busy_file(peer).read_text().splitlines()]
    return RoundFigures(
        round_s=(end - begin) / len(rounds),
        exchange_s=statistics.mean(slowest[round] for round in rounds),
        utilisation=sum(piece.within(begin, end) for piece in work) / len(peers) / (end - begin),
        sent_bytes=sent_bytes,
        tokens_per_s=sum(peers[0].commits[round].tokens for round in rounds) / (end - begin),
    )


def _show(setting: Emulated, predicted: RoundFigures, measured: RoundFigures) -> bool:
    """Print the figures of a setting; return True if no prediction is off by more than the bar."""
    holds = True
    for name, said in asdict(predicted).items():
        ratio = said / asdict(measured)[name]
        holds &= abs(ratio - 1) <= BAR
        print(f"| {setting.name} | {name} | {said:.4g} | {asdict(measured)[name]:.4g} | {ratio:.3f} |", flush=True)
    return holds


if __name__ == "__main__":
    sys.exit(main())
