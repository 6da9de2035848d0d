"""Cost of a death in an exchange of real processes, by its moment: `python -m benchmarks.deaths`.

Needs root.  Members on emulated lines (`benchmarks.links`) exchange once undisturbed.  Then they exchange again, and one of
them is killed with SIGKILL in the middle.  The benchmark measures the time until the survivors hold the whole result,
against 1.5 times the undisturbed exchange plus the time until they noticed, and the number of chunks that lack the part of a
survivor.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from dataclasses import dataclass

from benchmarks.exchange import Member, Swarm, member_command
from benchmarks.links import Access, Links, address, why_not
from benchmarks.shaped import rate

BAR = 1.5


@dataclass(frozen=True)
class Outcome:
    """Seconds from the beginning of the exchange.

    noticed: the seconds until the last survivor noticed.  lost: (survivor, chunk) pairs.
    """

    undisturbed: float
    killed: float
    noticed: float
    done: float
    lost: int
    victims_chunks: int
    chunks: int

    @property
    def bar(self) -> float:
        return BAR * self.undisturbed + max(0.0, self.noticed - self.killed)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.deaths", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rate", type=rate, default=rate("100mbit"))
    parser.add_argument("--seconds", type=float, default=3.0, help="payload over rate")
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=1 << 18, help="parameters a chunk")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"links cannot be emulated here: {reason}")
    print(
        "| killed after (of the undisturbed) | undisturbed, s | noticed after the death, s | survivors done, s | bar, s "
        "| survivors' parts lost | chunks with the dead one's part |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for moment in range(arguments.moments):
        share = (moment + 0.5) / arguments.moments
        outcome = exchange_with_a_death(arguments, share)
        print(
            f"| {share:.2f} | {outcome.undisturbed:.2f} | {outcome.noticed - outcome.killed:.2f} | {outcome.done:.2f} | "
            f"{outcome.bar:.2f} | {outcome.lost} | {outcome.victims_chunks} of {outcome.chunks} |",
            flush=True,
        )


def exchange_with_a_death(arguments: argparse.Namespace, share: float) -> Outcome:
    lines = [Access(arguments.rate, arguments.rate) for _ in range(arguments.peers)]
    parameters = int(arguments.seconds * arguments.rate / 8 / 1.015625)
    with Links(lines) as links:
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
        swarm.ask(do="exchange")  # makes the connections
        undisturbed = max(answer["seconds"] for answer in swarm.ask(do="exchange"))
        for member in swarm.members:
            member.say(do="exchange")
        time.sleep(share * undisturbed)
        victim = swarm.members.pop()
        victim.process.kill()
        answers = [member.hear() for member in swarm.members]
        victim.process.wait(10)
        swarm.end()
    dead = swarm.introductions[-1]["peer"]
    survivors = [introduction["peer"] for introduction in swarm.introductions[:-1]]
    noticed = [answer["lost_s"][0] for answer in answers if answer["lost_s"]]
    return Outcome(
        undisturbed=undisturbed,
        killed=share * undisturbed,
        noticed=max(noticed, default=share * undisturbed),
        done=max(answer["seconds"] for answer in answers),
        lost=sum(answer["without"][peer] for answer in answers for peer in survivors),
        victims_chunks=answers[0]["chunks"] - answers[0]["without"][dead],
        chunks=answers[0]["chunks"],
    )


if __name__ == "__main__":
    main()
