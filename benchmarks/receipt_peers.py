"""Real peers of mixed precision, some of which claim work that they do not do: `python -m benchmarks.receipt_peers --json`.

Each cheat and number of cheats has a run of its own.  Every second honest peer trains in bf16, the others in fp32; cheats
join once the honest have made a round.  A run ends after `--rounds` rounds with cheats, or later, once all honest peers have
set all cheats aside, and at the latest after `--most` rounds, but lasts `--minutes` at least.  "none" is a run without
cheats, for its loss.

Exits with 1 if an honest peer set another honest one aside.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.copies import say
from benchmarks.diloco import numbers
from protocol.audit.receipts import ASIDE_ROUNDS
from protocol.events import events as ev
from tests.e2e.cheating_peer import BF16, CHEAT, CHEATS
from tests.e2e.swarm import Peer, Swarm
from tests.e2e.test_receipts import RUN, set_aside

PATIENCE_S = 1800.0
NONE = "none"
COLUMNS = ("cheats", "s", "rounds", "until aside", "pairs", "credit", "told", "honest aside", "held-out loss")


@dataclass(frozen=True)
class CheatsMeasured:
    """Outcome of a run.

    rounds: number of rounds, from the first one with a cheat as a member.  until_aside: for each honest peer and cheat, the
    rounds until the peer set it aside, if it did; pairs: number of such pairs.  credit: share of the places in these rounds,
    and so of the tokens, that cheats had.  told: cheats whose own view says that they were set aside.  honest_aside: honest
    members that an honest peer set aside.  loss: held-out loss of the newest state that honest peers measured; None if none
    was.
    """

    cheat: str
    cheats: int
    seconds: float
    rounds: int
    until_aside: list[int]
    pairs: int
    credit: float
    told: int
    honest_aside: int
    loss: float | None

    def row(self) -> str:
        """Return a row of the table."""
        until = f"{median(self.until_aside):.0f}, at most {max(self.until_aside)}" if self.until_aside else "-"
        cells = (
            f"{self.cheats} of {self.cheat}" if self.cheats else NONE,
            f"{self.seconds:.0f}",
            str(self.rounds),
            until,
            f"{len(self.until_aside)} of {self.pairs}",
            f"{100 * self.credit:.1f} %",
            str(self.told),
            str(self.honest_aside),
            f"{self.loss:.3f}" if self.loss is not None else "-",
        )
        return f"| {' | '.join(cells)} |"


def started(swarm: Swarm, name: str, way: str) -> Peer:
    """Start a peer of a swarm.  way: a cheat, `BF16`, or empty for an honest one in fp32."""
    peer = swarm.peer(name)
    if way:
        peer.program, swarm.environment[CHEAT] = ("tests.e2e.cheating_peer",), way
    return peer.start()


def measure(folder: Path, cheat: str, cheats: int, peers: int, rounds: int, most: int, minutes: float) -> CheatsMeasured:
    """Play a run.  cheats: their number, 0 for none."""
    with Swarm.created(folder, RUN) as swarm:
        honest = [started(swarm, f"honest-{number}", BF16 if number % 2 else "") for number in range(peers - cheats)]
        swarm.until("a round of the honest", lambda: all(peer.committed for peer in honest), PATIENCE_S)
        begun, first = time.monotonic(), swarm.newest()
        liars = [started(swarm, f"cheat-{number}", cheat) for number in range(cheats)]
        if liars:
            swarm.until("a round with a cheat", lambda: _rounds_with(honest[0], liars), PATIENCE_S)
            first = _rounds_with(honest[0], liars)[0]

        def is_done() -> bool:
            made = swarm.newest() - first
            are_aside = all({each.peer_id for each in liars} <= set_aside(peer) for peer in honest)
            is_long = time.monotonic() - begun >= 60 * minutes
            return is_long and (made >= most or (made >= rounds and are_aside))

        swarm.until("its rounds", is_done, PATIENCE_S + 60 * minutes)
        seconds = time.monotonic() - begun
        seen = {round: commit.members for round, commit in honest[0].commits.items() if round >= first}
        places = sum(liar.peer_id in members for liar in liars for members in seen.values())
        names = {peer.peer_id for peer in honest}
        measured = {each.rounds: each for peer in honest for each in peer.heard(ev.EvalLoss) if each.by in names}
        until = {
            (peer.peer_id, event.peer): event.until - ASIDE_ROUNDS - first
            for peer in honest
            for event in reversed(peer.heard(ev.MemberSetAside))
            if event.peer not in names
        }
        return CheatsMeasured(
            cheat=cheat,
            cheats=cheats,
            seconds=seconds,
            rounds=swarm.newest() - first,
            until_aside=sorted(until.values()),
            pairs=len(honest) * cheats,
            credit=places / max(1, sum(len(members) for members in seen.values())),
            told=sum(any("set this peer aside" in said.text for said in liar.heard(ev.Notice)) for liar in liars),
            honest_aside=sum(len(set_aside(peer) & names) for peer in honest),
            loss=measured[max(measured)].loss if measured else None,
        )


def _rounds_with(peer: Peer, liars: Sequence[Peer]) -> list[int]:
    """Return the rounds that a peer has seen in which a cheat was a member, in order."""
    names = {liar.peer_id for liar in liars}
    return [round for round, commit in sorted(peer.commits.items()) if names & set(commit.members)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.receipt_peers", description="Real peers, some of which claim work that they do not do."
    )
    parser.add_argument(
        "--cheats", type=lambda text: text.split(","), default=[NONE, *CHEATS], help=", ".join([NONE, *CHEATS])
    )
    parser.add_argument("--numbers", type=numbers, default=[1, 2], help="numbers of cheats among the peers")
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--most", type=int, default=120, help="rounds after which a run ends in any case")
    parser.add_argument("--minutes", type=float, default=0.0, help="least time of a run, from its first round")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args(arguments)
    if strange := set(options.cheats) - {NONE, *CHEATS}:
        parser.error(f"there is no cheat {sorted(strange)[0]!r}; there are {', '.join([NONE, *CHEATS])}")
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n", flush=True)
    found = list[CheatsMeasured]()
    for cheat in options.cheats:
        for count in options.numbers if cheat != NONE else [0]:
            with tempfile.TemporaryDirectory() as folder:
                found.append(
                    measure(Path(folder), cheat, count, options.peers, options.rounds, options.most, options.minutes)
                )
            print(found[-1].row(), flush=True)
    say(f"{sum(each.seconds for each in found) / 60:.0f} minutes")
    if options.json:
        print(json.dumps({"runs": [asdict(each) for each in found]}))
    return any(each.honest_aside for each in found)


if __name__ == "__main__":
    sys.exit(main())
