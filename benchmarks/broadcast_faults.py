"""Cost of liars and deaths in a broadcast: `python -m benchmarks.broadcast_faults`.

Needs root.  An origin gives a blob to 8 receivers over emulated links, as in `benchmarks.broadcast`:

    nothing               nobody lies, nobody dies
    corrupts, stalls,     2 of the 8 claim to have the whole blob, and send other bytes, promise and send nothing,
    claims                or refuse; the 6 others are measured
    origin dies           killed (SIGKILL) when each chunk has left it once
    receiver dies         one receiver is killed at half, and started again on its folder

Prints the time until the last honest receiver had the whole blob.  A receiver that lacks chunks after twenty times as long
as the line needs is counted as unfinished.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
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
    """One broadcast with one fault."""

    def __init__(self, arguments: argparse.Namespace, fault: str) -> None:
        self.arguments, self.fault = arguments, fault
        self.size, self.count = arguments.megabytes << 20, arguments.receivers + 1
        self.limit_s = self.size * 8 / arguments.rate
        self.words = [str(self.size), str(arguments.chunk)]
        self.liars = range(self.count - arguments.liars, self.count) if fault in LIES else range(0)

    def run(self) -> dict[str, Any]:
        lines, patience_s = [Access(self.arguments.rate, self.arguments.rate)] * self.count, 20 * self.limit_s + 60
        with Links(lines) as links, tempfile.TemporaryDirectory() as folder:
            swarm = Swarm([self._start(links, peer) for peer in range(self.count)])
            members = swarm.members
            giving_up = threading.Timer(patience_s, _kill, [members])
            giving_up.daemon = True
            giving_up.start()
            members[0].say(do="make", **({"dies": True} if self.fault == "origin dies" else {}))
            words = {"do": "fetch", "name": members[0].hear()["name"], "origin": swarm.introductions[0]["peer"]}
            begun = time.perf_counter()
            for peer in range(1, self.count):
                victim = self.fault == "receiver dies" and peer == 1
                members[peer].say(**words, **({"folder": folder, "die_at": 0.5} if victim else {}))
            lost = 0
            if self.fault == "receiver dies":
                lost = members[1].hear()["here"]
                members[1].process.wait(30)
                members[1] = again = self._start(links, 1)
                again.hear()
                again.say(peers=swarm.introductions)
                again.hear()
                again.say(**words, folder=folder)
            honest = [peer for peer in range(1, self.count) if peer not in self.liars]
            answers = [answer for peer in honest if (answer := self._answer(members[peer])) is not None]
            seconds = time.perf_counter() - begun
            giving_up.cancel()
            asked = [self._asked(members[peer]) for peer in self.liars] if len(answers) == len(honest) else []
            _kill(members)
        return {"seconds": seconds, "finished": len(answers), **self._sums(answers, asked, lost)}

    def _answer(self, receiver: Member) -> dict[str, Any] | None:
        """Return a member's answer; None if the member had to be killed."""
        try:
            return receiver.hear()
        except SystemExit:
            return None

    def _start(self, links: Links, peer: int) -> Member:
        """Start a receiver; the first one keeps its key when it is started again."""
        liar = peer in self.liars
        module, last = ("benchmarks.lying_member", self.fault) if liar else ("benchmarks.broadcast_member", str(peer))
        command = [sys.executable, "-m", module, address(peer), *self.words, last]
        return Member(links.start(peer, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def _asked(self, liar: Member) -> int:
        liar.hear()  # its answer to "fetch"
        liar.say(do="count")
        return int(liar.hear()["asked"])

    def _sums(self, answers: Sequence[dict[str, Any]], asked: Sequence[int], lost: int) -> dict[str, Any]:
        """Sum up the outcome.  lost: the chunks that were there before a death."""
        chunk = self.arguments.chunk
        needed = [self.size - answer["resumed"] * chunk for answer in answers]
        twice = sum(max(0, each["chunk_bytes"] - need) for each, need in zip(answers, needed, strict=True)) / chunk
        return {
            "asked": max(asked, default=0),
            "set_aside": min((answer["set_aside"] for answer in answers), default=0),
            "twice": twice + (lost - max(answer["resumed"] for answer in answers) if lost else 0),
            "resumed": max((answer["resumed"] for answer in answers), default=0),
        }


def _kill(members: Sequence[Member]) -> None:
    for member in members:
        member.process.kill()
        member.process.wait(30)


if __name__ == "__main__":
    main()
