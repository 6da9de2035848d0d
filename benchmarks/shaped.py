"""The exchange on emulated links, against what the links allow: `python -m benchmarks.shaped --peers 4 --rate 100mbit`.

As root.  Real member processes, each in its own network namespace with `--rate` up and down.  The limit is
2 (N - 1)/N x payload/B, with B the rate and the codec's bytes as payload: nobody can be faster who has to send and to
receive so much.  The time runs from the moment everybody has its contribution to everybody holding the whole result.

    --delay MS, --loss PERCENT    between any two peers, one way
    --slow RATE                   the last peer's line; then once with equal shares, once by the bandwidth measured
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
from typing import Any

from benchmarks.exchange import Member, Swarm, member_command
from benchmarks.links import Access, Links, address, why_not
from kernels.layout import chunk_layout, payload_bytes

UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def rate(text: str) -> float:
    return float(text[:-4]) * UNITS[text[-4:].lower()]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.shaped", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rate", type=rate, default=rate("100mbit"))
    parser.add_argument("--seconds", type=float, default=10.0, help="payload over rate")
    parser.add_argument("--chunk", type=int, default=1 << 20, help="parameters a chunk")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--loss", type=float, default=0.0)
    parser.add_argument("--slow", type=rate)
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"links cannot be emulated here: {reason}")
    lines = [Access(arguments.rate, arguments.rate) for _ in range(arguments.peers)]
    if arguments.slow:
        lines[-1] = Access(arguments.slow, arguments.slow)
    parameters = int(arguments.seconds * arguments.rate / 8 / 1.015625)
    with Links(lines, delay_s=arguments.delay / 1000, loss=arguments.loss / 100) as links:
        swarm = Swarm(
            [
                Member(
                    links.start(
                        peer,
                        member_command(parameters, arguments.chunk, host=address(peer)),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )
                for peer in range(arguments.peers)
            ]
        )
        report(arguments, lines, parameters, swarm)
        swarm.end()


def report(arguments: argparse.Namespace, lines: list[Access], parameters: int, swarm: Swarm) -> None:
    payload, peers = payload_bytes(chunk_layout(parameters, arguments.chunk)), len(lines)
    limit = 2 * (peers - 1) / peers * payload / (arguments.rate / 8)
    print(
        f"{peers} peers, {arguments.rate / 1e6:.0f} Mbit/s each way, {payload / 1e6:.0f} MB of codec bytes, "
        f"{arguments.delay:.0f} ms one way, {arguments.loss:g} % lost\n"
    )
    print("| owner shares | seconds | limit of equal lines | ratio | CPU s a peer | equal results | extra memory, MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    answers: list[dict[str, Any]] = []
    kinds = ["equal", "measured"] if arguments.slow else ["equal"]
    for kind in kinds:
        runs = []
        for _ in range(arguments.repeat):
            words: dict[str, Any] = {"do": "exchange"}
            if kind == "measured":
                words["peers"] = [
                    {**introduction, "bytes_per_s": answer["bytes_per_s"]}
                    for introduction, answer in zip(swarm.introductions, answers, strict=True)
                ]
            answers = swarm.ask(**words)
            runs.append(max(answer["seconds"] for answer in answers))
        seconds = statistics.median(runs)
        print(
            f"| {kind} | {seconds:.2f} | {limit:.2f} | {seconds / limit:.3f} | "
            f"{statistics.mean(a['cpu_seconds'] for a in answers):.2f} | {len({a['digest'] for a in answers}) == 1} | "
            f"{max(a['extra_bytes'] for a in answers) / 1e6:.0f} |",
            flush=True,
        )
    measured = ", ".join(f"{answer['bytes_per_s'] * 8 / 1e6:.1f}" for answer in answers)
    print(f"\nbandwidth the peers measured, Mbit/s: {measured}")


if __name__ == "__main__":
    main()
