"""The exchange on emulated links, against the limit of the links: `python -m benchmarks.shaped --peers 4 --rate 100mbit`.

Needs root.  Real member processes run, each in its own network namespace with `--rate` up and down.  The limit is 2 (N -
1)/N x payload/B, with B the rate and the codec's bytes as payload: a member that has to send and receive this much cannot be
faster.  The time runs from the moment when everybody has its contribution until everybody holds the whole result.

    --delay MS, --loss PERCENT    between any two peers, one way
    --congestion bbr|cubic        of the sockets, ours and iperf3's
    --iperf                       iperf3 with the same bytes between the same peers, before and after
    --slow RATE ...               the last peer's line: with equal shares, then by the bandwidth measured, against the
                                  optimum of all plans in which everybody gets everything
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks import iperf
from benchmarks.exchange import Member, Swarm, member_command
from benchmarks.exchange_parts import CODEC
from benchmarks.links import Access, Links, address, why_not
from kernels.codecs.ladder import LADDER
from kernels.layout import chunk_layouts

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
    parser.add_argument("--congestion", choices=["bbr", "cubic"], default="bbr")
    parser.add_argument("--iperf", action="store_true")
    parser.add_argument("--flows", type=int, default=1, help="TCP connections of a pair that iperf3 uses")
    parser.add_argument("--slow", type=rate, nargs="*", default=[])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not() or (iperf.why_not() if arguments.iperf else ""):
        raise SystemExit(f"links cannot be emulated here: {reason}")
    equal = [Access(arguments.rate, arguments.rate)] * arguments.peers
    print(
        f"{arguments.peers} peers, {arguments.rate / 1e6:.0f} Mbit/s each way, {arguments.delay:.0f} ms one way, "
        f"{arguments.loss:g} % lost, {arguments.congestion}; medians of {arguments.repeat}\n"
    )
    print("| slowest, Mbit/s | shares | seconds | optimum | ratio | over iperf3 | CPU s a peer | equal results | extra MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    rows = []
    for slow in arguments.slow or [None]:
        lines = [*equal[:-1], Access(slow, slow)] if slow else equal
        rows += measure(arguments, lines)
    if arguments.json:
        print(json.dumps({"peers": arguments.peers, "delay_ms": arguments.delay, "rows": rows, **rows[-1]}))


def optimum(payload: int, bytes_per_s: Sequence[float]) -> float:
    """Return the seconds of the best plan in which everybody gives and gets everything, found by bisection.

    Owner i of a share f_i carries payload x (1 + (N - 2) f_i), up and down, and the shares add up to one.
    """
    others = len(bytes_per_s) - 2
    least = max(payload / each for each in bytes_per_s)
    if others <= 0:
        return least
    low, high = least, 2 * payload / min(bytes_per_s)
    for _ in range(60):
        middle = (low + high) / 2
        shares = sum(min(1.0, (middle * each / payload - 1) / others) for each in bytes_per_s)
        low, high = (low, middle) if shares >= 1 else (middle, high)
    return high


def measure(arguments: argparse.Namespace, lines: list[Access]) -> list[dict[str, Any]]:
    """Return a row for each way to divide the chunks."""
    format = LADDER[CODEC].contribution
    parameters = int(arguments.seconds * arguments.rate / 8 * arguments.chunk / format.encoded_bytes(arguments.chunk))
    payload, peers = chunk_layouts(LADDER[CODEC], parameters, arguments.chunk).contribution.payload_bytes, len(lines)
    unequal = len({line.up for line in lines}) > 1
    best = optimum(payload, [line.up / 8 for line in lines])
    rows = []
    with Links(lines, delay_s=arguments.delay / 1000, loss=arguments.loss / 100) as links:
        theirs = [_iperf(arguments, links, payload)] if arguments.iperf else []
        swarm = Swarm(
            [
                Member(
                    links.start(
                        peer,
                        member_command(parameters, arguments.chunk, host=address(peer), congestion=arguments.congestion),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                    )
                )
                for peer in range(peers)
            ]
        )
        answers: list[dict[str, Any]] = []
        for kind in ["equal", "measured"] if unequal else ["equal"]:
            runs = []
            for _ in range(arguments.repeat):
                answers = swarm.ask(do="exchange", **_bandwidths(swarm, answers, kind))
                runs.append(max(answer["seconds"] for answer in answers))
            rows.append(_row(arguments, lines, kind, statistics.median(runs), best, answers))
        swarm.end()
        if arguments.iperf:
            theirs.append(_iperf(arguments, links, payload))
    for row in rows:
        row["over_iperf"] = row["seconds"] / statistics.mean(theirs) if theirs else None
        _show(row)
    return rows


def _iperf(arguments: argparse.Namespace, links: Links, payload: int) -> float:
    return iperf.all_to_all(links, arguments.peers, 2 * payload // arguments.peers, arguments.congestion, arguments.flows)


def _bandwidths(swarm: Swarm, answers: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    if kind == "equal":
        return {}
    together = zip(swarm.introductions, answers, strict=True)
    return {"peers": [{**introduction, "bytes_per_s": answer["bytes_per_s"]} for introduction, answer in together]}


def _row(
    arguments: argparse.Namespace,
    lines: list[Access],
    kind: str,
    seconds: float,
    best: float,
    answers: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "loss_percent": arguments.loss,
        "congestion": arguments.congestion,
        "slowest": min(line.up for line in lines),
        "shares": kind,
        "seconds": seconds,
        "limit_s": best,
        "over_limit": seconds / best,
        "cpu_seconds": statistics.mean(answer["cpu_seconds"] for answer in answers),
        "equal": len({answer["digest"] for answer in answers}) == 1,
        "extra_bytes": max(answer["extra_bytes"] for answer in answers),
        "measured": [answer["bytes_per_s"] for answer in answers],
    }


def _show(row: dict[str, Any]) -> None:
    against = f"{row['over_iperf']:.3f}" if row["over_iperf"] else "-"
    print(
        f"| {row['slowest'] / 1e6:.0f} | {row['shares']} | {row['seconds']:.2f} | {row['limit_s']:.2f} | "
        f"{row['over_limit']:.3f} | {against} | {row['cpu_seconds']:.2f} | {row['equal']} | "
        f"{row['extra_bytes'] / 1e6:.0f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
