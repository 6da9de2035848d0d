"""Free riders against the draws of audits alone: `python -m tests.simulation.rider_draws`.

A model of `tests.simulation.free_riders` without its protocol, for large runs: in each round a drawn elector plans, without
the members that it has set aside; every honest member draws its audits by `protocol.audit.receipts`, which always find a
free rider; electors name those that they have set aside; and who misses three records in a row loses its vote.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from protocol.audit.receipts import FIRST, SECOND, AuditBook
from protocol.wire.identity import PeerId

PROBATION, MISSED = 3, 3
"""Records in a row until a member has a vote, and records missed in a row until it has none."""


@dataclass
class Found:
    """Sums over the rounds.  tokens, votes: of all and of free riders; a vote is a place among the electors of a round.

    memberships: rounds in which each of their keys was a member.  riders_aside, honest_aside: how often an honest member set
    a free rider, or an honest one, aside.
    """

    rounds: int = 0
    tokens: int = 0
    riders_tokens: int = 0
    votes: int = 0
    riders_votes: int = 0
    memberships: Counter[str] = field(default_factory=Counter)
    honest_aside: int = 0
    riders_aside: int = 0

    def shares(self) -> dict[str, float]:
        return {
            "tokens": self.riders_tokens / max(1, self.tokens),
            "votes": self.riders_votes / max(1, self.votes),
        }


def play(peers: int, riders: int, rounds: int, day: int, rows: int, seed: int) -> Found:
    """Return what free riders get; a place in a round counts as one token."""
    random, found = Random(seed), Found()
    honest = [PeerId(f"honest {number:04}") for number in range(peers - riders)]
    books = {peer: AuditBook() for peer in honest}
    bad, streak = list[PeerId](), Counter[PeerId]()
    electors = set(honest)
    for round in range(rounds):
        if round % day == 0:
            bad = [PeerId(f"{random.random()}") for _ in range(riders)]
            electors = (electors & set(honest)) | (set(bad) if not round else set())
        present = [*honest, *bad]
        planner = random.choice(sorted(electors & set(present)))
        aside = books[planner].aside(round) if planner in books else frozenset[PeerId]()
        members = [peer for peer in present if peer not in aside]
        for peer in present:
            here = peer in members
            streak[peer] = max(1, streak[peer] + 1) if here else min(-1, streak[peer] - 1)
        electors = {peer for peer in present if streak[peer] >= PROBATION or (peer in electors and streak[peer] > -MISSED)}
        found.tokens, found.votes = found.tokens + len(members), found.votes + len(electors)
        found.riders_tokens += sum(peer in bad for peer in members)
        found.riders_votes += sum(peer in bad for peer in electors)
        found.memberships.update(peer for peer in members if peer in bad)
        for peer in (peer for peer in members if peer in books):
            _audit(books[peer], peer, members, frozenset(bad), round, rows, random)
        named = {peer: books[peer].told_aside(round) for peer in electors if peer in books}
        for peer, book in books.items():
            for accuser, accused in named.items():
                if accuser != peer:
                    book.accuse(accuser, accused)
    found.rounds = rounds
    return found


def _audit(
    book: AuditBook, me: PeerId, members: Sequence[PeerId], bad: frozenset[PeerId], round: int, rows: int, random: Random
) -> None:
    book.note_trained(rows)
    for peer in book.choose(random, [each for each in members if each != me], round):
        draw = book.next_draw(peer)
        book.spend(draw)
        book.note_audited(peer, 1)
        if peer not in bad:
            book.note_sound(peer)
            continue
        if draw is FIRST:
            book.spend(SECOND)
        book.set_aside(peer, round, "its rows are not its own")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.rider_draws", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--riders", type=int, default=13)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--day", type=int, default=100, help="rounds after which free riders come back with new keys")
    parser.add_argument("--rows", type=int, default=2560, help="rows of a member's round")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    found = play(**vars(options))
    shares, keys = found.shares(), sorted(found.memberships.values())
    print(
        f"{options.riders} of {options.peers} peers claim work that they do not do, {found.rounds} rounds: "
        f"{100 * shares['tokens']:.1f} % of the places, {100 * shares['votes']:.1f} % of the votes; a key is a member of "
        f"{keys[0]} to {keys[-1]} rounds"
    )


if __name__ == "__main__":
    main()
