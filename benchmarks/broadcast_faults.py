"""What liars and deaths cost a broadcast: `python -m benchmarks.broadcast_faults`.

As root.  An origin gives a blob to 8 receivers over emulated links, as in `benchmarks.broadcast`:

    nothing               nobody lies, nobody dies
    corrupts, stalls,     2 of the 8 say that they have all, and send other bytes, promise and send nothing,
    claims                or refuse; they are seconds of the 6 others
    origin dies           killed (SIGKILL) when it has sent one copy's worth of chunks
    receiver dies         one is killed at half, and started again on its folder

Prints how long it took until the last honest receiver had all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.exchange import Member, Swarm
from benchmarks.links import Access, Links, address, why_not
from benchmarks.shaped import rate

LIES = ["corrupts", "stalls", "claims"]
FAULTS = ["nothing", *LIES, "origin dies", "receiver dies"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.broadcast_faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--receivers", type=int, default=8)
    parser.add_argument("--liars", type=int, default=2)
    parser.add_argument("--rate", type=rate, default=rate("25mbit"))
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--chunk", type=int, default=1 << 18, help="bytes a chunk")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"links cannot be emulated here: {reason}")
    size = arguments.megabytes << 20
    limit = size * 8 / arguments.rate
    print(f"{size / 1e6:.0f} MB, {arguments.receivers} receivers, {arguments.rate / 1e6:.0f} Mbit/s, size/B {limit:.1f} s\n")
    print(
        "| fault | honest receivers that finished | seconds | over size/B | chunks asked of a liar | "
        "liars set aside for wrong bytes, by each | chunks fetched twice, all |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    rows = []
    for fault in arguments.faults:
        row = Broadcast(arguments, fault).run()
        rows.append({"fault": fault, "over_limit": row["seconds"] / limit, **row})
        print(
            f"| {fault} | {row['finished']} | {row['seconds']:.1f} | {row['seconds'] / limit:.2f} | "
            f"{row['asked']} | {row['set_aside']} | {row['twice']:.0f} |",
            flush=True,
        )
    if arguments.json:
        print(json.dumps({"bytes": size, "limit_s": limit, "rows": rows}))


class Broadcast:
    """One, with one fault."""

    def __init__(self, arguments: argparse.Namespace, fault: str) -> None:
        self.arguments, self.fault = arguments, fault
        self.size, self.count = arguments.megabytes << 20, arguments.receivers + 1
        self.words = [str(self.size), str(arguments.chunk)]
        self.liars = range(self.count - arguments.liars, self.count) if fault in LIES else range(0)

    def run(self) -> dict[str, Any]:
        lines = [Access(self.arguments.rate, self.arguments.rate)] * self.count
        with Links(lines) as links, tempfile.TemporaryDirectory() as folder:
            swarm = Swarm([self._start(links, peer) for peer in range(self.count)])
            origin, honest = (
                swarm.members[0],
                [swarm.members[peer] for peer in range(1, self.count) if peer not in self.liars],
            )
            origin.say(do="make", **({"die_after": self.size} if self.fault == "origin dies" else {}))
            words = {"do": "fetch", "name": origin.hear()["name"], "origin": swarm.introductions[0]["peer"]}
            for member in swarm.members[1:]:
                victim = self.fault == "receiver dies" and member is swarm.members[1]
                member.say(**words, **({"folder": folder, "die_at": 0.5} if victim else {}))
            begun, answers = time.perf_counter(), []
            if self.fault == "receiver dies":
                before = swarm.members[1].hear()["here"]
                swarm.members[1].process.wait(30)
                swarm.members[1] = honest[0] = again = self._start(links, 1)
                again.hear()
                again.say(peers=swarm.introductions)
                again.hear()
                again.say(**words, folder=folder)
            answers = [member.hear() for member in honest]
            seconds = time.perf_counter() - begun
            asked = [self._asked(swarm.members[peer]) for peer in self.liars]
            for member in swarm.members:
                member.process.kill()
                member.process.wait(30)
        lost = before - answers[0]["resumed"] if self.fault == "receiver dies" else 0
        return {"seconds": seconds, "finished": len(answers), **self._sums(answers, asked, lost)}

    def _start(self, links: Links, peer: int) -> Member:
        """The first receiver keeps its key when it is started again."""
        liar = peer in self.liars
        module, last = ("benchmarks.lying_member", self.fault) if liar else ("benchmarks.broadcast_member", str(peer))
        command = [sys.executable, "-m", module, address(peer), *self.words, last]
        return Member(links.start(peer, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def _asked(self, liar: Member) -> int:
        liar.hear()  # its answer to "fetch"
        liar.say(do="count")
        return int(liar.hear()["asked"])

    def _sums(self, answers: Sequence[dict[str, Any]], asked: Sequence[int], lost: int) -> dict[str, Any]:
        """lost: chunks that were there before a death and not after it."""
        chunk = self.arguments.chunk
        needed = [self.size - answer["resumed"] * chunk for answer in answers]
        twice = sum(max(0, each["chunk_bytes"] - need) for each, need in zip(answers, needed, strict=True)) / chunk
        return {
            "asked": max(asked, default=0),
            "set_aside": min(answer["set_aside"] for answer in answers),
            "twice": twice + lost,
            "resumed": answers[0]["resumed"],
        }


if __name__ == "__main__":
    main()
