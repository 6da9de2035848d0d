"""Time of an exchange on this computer, and its bounds: `python -m benchmarks.exchange`.

N real processes with real sockets on loopback average a contribution of int4 codes, as peers do.  In the same run the same
processes

* push the same number of bytes to each other without averaging anything: the limit of the wire here
  (each peer 2 (N - 1)/N of the payload up, and as much down);
* average the same tensors as fp32 with gloo's all-reduce, unencrypted;
* and, with --hivemind-python, average with hivemind 1.1.12, in an interpreter that has it.

Prints a table; asserts nothing about time.  Each figure is the median over the repetitions of the slowest peer.  With
--parts it also prints the parts of an exchange's processor time (`benchmarks.exchange_parts`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

from benchmarks.exchange_parts import CODEC, parts
from kernels.aggregate import Rule
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts


@dataclass
class Member:
    """One process of the benchmark, which speaks JSON lines."""

    process: subprocess.Popen[str]

    def say(self, **words: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps(words), file=self.process.stdin, flush=True)

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a member of the benchmark ended early")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Swarm:
    """Members that know each other and are connected."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self.introductions = [member.hear() for member in members]
        self.ask(peers=self.introductions)

    def ask(self, **words: Any) -> list[dict[str, Any]]:
        """Send one command to all, and return their answers, in order."""
        for member in self.members:
            member.say(**words)
        return [member.hear() for member in self.members]

    def end(self) -> None:
        for member in self.members:
            member.say(do="end")
        for member in self.members:
            member.process.wait(30)


def member_command(
    parameters: int, chunk: int, rule: Rule = "mean", host: str = "127.0.0.1", congestion: str = "bbr"
) -> list[str]:
    return [sys.executable, "-m", "benchmarks.exchange_member", str(parameters), str(chunk), rule, host, congestion]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=__doc__)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--parameters", type=float, default=64e6)
    parser.add_argument("--chunk", type=int, default=1 << 21, help="parameters a chunk; 2^21 are 1.1 MB")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rule", choices=get_args(Rule), default="mean", help="gloo and hivemind know the mean only")
    parser.add_argument("--hivemind-python", help="an interpreter that can import hivemind")
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    parameters = int(arguments.parameters)
    ours = exchange(arguments.peers, parameters, arguments.chunk, arguments.repeat, arguments.rule)
    gloo = others([sys.executable, "-m", "benchmarks.gloo_member"], arguments.peers, parameters, arguments.repeat)
    rows = [
        (f"exchange, {CODEC}, encrypted, every byte checked", ours["exchange"], ours["bytes"]),
        ("the same bytes pushed, nothing averaged (limit here)", ours["wire"], ours["bytes"]),
        ("gloo all-reduce, fp32, unencrypted", gloo, 4 * 2 * (arguments.peers - 1) / arguments.peers),
    ]
    hivemind = None
    if arguments.hivemind_python:
        command = [arguments.hivemind_python, "benchmarks/hivemind_member.py"]
        hivemind = others(command, arguments.peers, parameters, arguments.repeat)
        rows.append(("hivemind 1.1.12 averager, fp32", hivemind, 4 * 2 * (arguments.peers - 1) / arguments.peers))
    print(
        f"{arguments.peers} peers, {parameters / 1e6:.0f} M parameters, chunks of {arguments.chunk} parameters, "
        f"{arguments.repeat} repetitions, medians\n"
    )
    print("| what | seconds | M parameters/s | bytes/parameter/peer up | time / exchange |")
    print("|---|---|---|---|---|")
    for what, seconds, volume in rows:
        print(
            f"| {what} | {seconds:.2f} | {parameters / seconds / 1e6:.0f} | {volume:.3f} | "
            f"{seconds / ours['exchange']:.2f} |"
        )
    both = chunk_layouts(LADDER[CODEC], parameters, arguments.chunk).exchanged_bytes
    formula = (arguments.peers - 1) / arguments.peers * both / parameters
    print(
        f"\nbytes on the wire over (N - 1)/N x bytes of a contribution and a result: {ours['bytes'] / formula:.4f}; "
        f"equal results: {ours['equal']}; peak memory of a peer beyond contribution and result: "
        f"{ours['extra'] / 1e6:.0f} MB"
    )
    measured = _show_parts(arguments, ours) if arguments.parts else {}
    if arguments.json:
        over = {"times_gloo": gloo / ours["exchange"], "times_hivemind": hivemind and hivemind / ours["exchange"]}
        print(json.dumps({"peers": arguments.peers, "parameters": parameters, **ours, **over, "parts": measured}))


def _show_parts(arguments: argparse.Namespace, ours: dict[str, Any]) -> dict[str, float]:
    """Print the parts of the processor time, beside a bare push of the same bytes; return the seconds of one peer."""
    total = ours["exchange cpu"]
    seconds = dict(parts(arguments.peers, int(arguments.parameters), arguments.chunk, arguments.rule))
    rows = {**seconds, "the rest": total - sum(seconds.values())}
    print("\n| processor time of a peer | seconds | share |\n|---|---|---|")
    for what, each in {**rows, "all": total, "the same bytes pushed, nothing averaged": ours["wire cpu"]}.items():
        print(f"| {what} | {each:.3f} | {each / total:.2f} |")
    return rows


def exchange(peers: int, parameters: int, chunk: int, repeat: int, rule: Rule) -> dict[str, Any]:
    """Return times of exchange and bare wire, wire bytes per parameter and peer, peak extra memory, and equality."""
    swarm = Swarm([start(member_command(parameters, chunk, rule)) for _ in range(peers)])
    times: dict[str, list[float]] = {"exchange": [], "wire": []}
    work: dict[str, list[float]] = {"exchange": [], "wire": []}
    digests: set[str] = set()
    answers: list[dict[str, Any]] = []
    for _ in range(repeat + 1):
        for what in times:
            answers = swarm.ask(do=what)
            times[what].append(max(answer["seconds"] for answer in answers))
            work[what].append(statistics.mean(answer["cpu_seconds"] for answer in answers))
            if what == "exchange":
                digests.update(answer["digest"] for answer in answers)
                volume = statistics.mean(answer["up_bytes"] for answer in answers) / parameters
    swarm.end()
    warm = {what: statistics.median(values[1:]) for what, values in times.items()}
    cpu = {f"{what} cpu": statistics.median(values[1:]) for what, values in work.items()}
    return {**warm, **cpu, "bytes": volume, "equal": len(digests) == 1, "extra": max(a["extra_bytes"] for a in answers)}


def others(command: list[str], peers: int, parameters: int, repeat: int) -> float:
    """Return the median over the repetitions of the slowest member's time with another library."""
    port = 29500 + int(time.time()) % 1000
    members: list[Member] = []
    first: dict[str, Any] = {}
    for rank in range(peers):
        members.append(start([*command, str(rank), str(peers), str(parameters), str(repeat), str(port)]))
        if rank == 0:
            first = members[0].hear()
    for member in members:
        member.say(**first)
    times: list[list[float]] = [member.hear()["seconds"] for member in members]
    for member in members:
        assert member.process.stdin is not None
        member.process.stdin.close()
    for member in members:
        member.process.wait(60)
    return float(statistics.median(max(of_all) for of_all in zip(*times, strict=True)))


def start(command: list[str]) -> Member:
    return Member(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


if __name__ == "__main__":
    main()
