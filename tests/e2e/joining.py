"""`python -m tests.e2e.joining`: what a joiner costs those who train, and how long it takes until its work counts.

As root.  Real peers on emulated lines (`benchmarks.links`) make rounds together; then newcomers join, one after the other,
each of whom fetches the whole state from the others, trains, and leaves again.  Compared are the tokens a second of the
others in rounds in which a newcomer was fetching with those in rounds without one.  All peers share the processors of one
machine here, which newcomers at home would bring along: theirs have the lowest priority.  With `--seeds` they do not train,
so that what others lose to them is what their fetching costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from benchmarks.links import Access, Links, address, why_not
from benchmarks.shaped import rate
from protocol.events import events as ev
from tests.e2e.swarm import LARGE_MODEL, Peer, Swarm

PORT = 4800
Happened = TypeVar("Happened", bound=ev.Event)
RUN = (
    LARGE_MODEL
    + """
[rounds]
inner_steps = {steps}
min_members = 2
grace_s = 4
eviction_s = 30
stall_s = 5
"""
)


@dataclass(frozen=True)
class Span:
    """A round of the others.  at: when it was committed, wall clock.  ready_s: of `seconds`, until all had trained."""

    at: float
    seconds: float
    ready_s: float
    tokens: int

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Join:
    """Seconds after `peer join` of a newcomer.  begun: wall clock.  A seed is never ready, and nothing of it is counted."""

    begun: float
    greeted: float
    fetched: float
    ready: float | None = None
    counted: float | None = None

    @property
    def over(self) -> float:
        return self.fetched if self.counted is None else self.counted


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.e2e.joining", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--joins", type=int, default=3)
    parser.add_argument("--rate", type=rate, default=rate("8mbit"))
    parser.add_argument("--delay", type=float, default=0.0, help="ms, one way")
    parser.add_argument("--seeds", action="store_true", help="newcomers do not train: they leave when they have the state")
    parser.add_argument("--steps", type=int, default=60, help="inner steps a round")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if reason := why_not():
        raise SystemExit(f"lines cannot be emulated here: {reason}")
    lines = [Access(arguments.rate, arguments.rate)] * (arguments.peers + arguments.joins)
    with (
        tempfile.TemporaryDirectory() as folder,
        Links(lines, delay_s=arguments.delay / 1000) as links,
        Swarm(Path(folder), RUN.format(steps=arguments.steps)) as swarm,
    ):
        printed = swarm.command(
            swarm.place("peer-0"),
            *("run", "create", str(swarm.run_file), "--out", str(swarm.manifest)),
            *("--address", f"/ip4/{address(0)}/tcp/{PORT}"),
        )
        invitation = next(word for word in printed.split() if word.startswith("mh1"))
        others = [_start(swarm, links, number, invitation) for number in range(arguments.peers)]
        first = swarm.whole(*others) + 1
        joins = []
        for number in range(arguments.joins):
            _rounds(swarm, others, 3)
            words = ("--role", "seed") if arguments.seeds else ()
            goal = swarm.newest()
            newcomer = _start(swarm, links, arguments.peers + number, invitation, words, "nice", "-n", "19")
            joins.append(_seed(swarm, newcomer, goal) if arguments.seeds else _join(swarm, newcomer, goal))
            print(f"newcomer {number + 1} of {arguments.joins}: {joins[-1]}", file=sys.stderr)
            for at, ended in _stamped(newcomer, ev.TransferEnded):
                end = "" if ended.complete else ", broken off"
                what = f"{ended.what} {ended.number}: {ended.fetched_bytes / 1e6:.1f} MB in {ended.seconds:.1f} s{end}"
                print(f"  after {at - joins[-1].begun:.1f} s {what}", file=sys.stderr, flush=True)
        spans, size = _spans(others, first), max(event.size_bytes for event in others[0].heard(ev.CheckpointWritten))
    _show(arguments, spans, joins, size)
    return 0


def _start(swarm: Swarm, links: Links, number: int, invitation: str, words: Sequence[str] = (), *around: str) -> Peer:
    peer = swarm.peer(f"peer-{number}", invitation)
    peer.around, peer.local = (*links.place(number), *around), False
    return peer.start("--port", str(PORT), *words)


def _rounds(swarm: Swarm, peers: Sequence[Peer], count: int) -> None:
    until = swarm.newest() + count
    swarm.until(f"{count} rounds more", lambda: all(peer.committed >= until for peer in peers))


def _join(swarm: Swarm, newcomer: Peer, goal: int) -> Join:
    """Until a round counts it; then it leaves.  goal: rounds that the others had committed when it was started."""

    def counted() -> list[float]:
        return [at for at, event in _stamped(newcomer, ev.RoundCommitted) if event.mine]

    swarm.until("a round with the newcomer", counted)
    at = counted()[0]
    newcomer.leave()
    join = _fetched(newcomer, goal)
    ready = min(at for at, _ in _stamped(newcomer, ev.ReadySent))
    return replace(join, ready=ready - join.begun, counted=at - join.begun)


def _seed(swarm: Swarm, newcomer: Peer, goal: int) -> Join:
    """Until it has the state; then it leaves."""
    swarm.until("a newcomer that has the state", lambda: newcomer.committed >= goal)
    newcomer.leave()
    return _fetched(newcomer, goal)


def _fetched(newcomer: Peer, goal: int) -> Join:
    begun, greeted = (min(at for at, _ in _stamped(newcomer, kind)) for kind in (ev.Started, ev.PeerJoined))
    loaded = [(at, event.rounds) for at, event in _stamped(newcomer, ev.StateLoaded)]
    applied = [(at, event.rounds) for at, event in _stamped(newcomer, ev.StateApplied)]
    fetched = min(at for at, rounds in (*loaded, *applied) if rounds >= goal)
    return Join(begun, greeted - begun, fetched - begun)


def _stamped(peer: Peer, kind: type[Happened]) -> list[tuple[float, Happened]]:
    return [(stamped.at, stamped.event) for stamped in list(peer.stamped) if isinstance(stamped.event, kind)]


def _spans(others: Sequence[Peer], first: int) -> list[Span]:
    """The rounds from `first` on in which all of the others, and nobody else, were members."""
    peers = {peer.peer_id for peer in others}
    ready = [(at, event) for peer in others for at, event in _stamped(peer, ev.ReadySent)]
    found, before = list[Span](), 0.0
    for at, event in _stamped(others[0], ev.RoundCommitted):
        if event.round > first and set(event.members) == peers:
            trained = [(when, told.tokens) for when, told in ready if told.round == event.round]
            last, tokens = max(when for when, _ in trained), sum(count for _, count in trained)
            found.append(Span(at, at - before, last - before, tokens))
        before = at
    return found


def _fetching(span: Span, joins: Sequence[Join]) -> bool | None:
    """Whether a newcomer was fetching in all of this round; None if for a part of it, or if one was there otherwise."""
    begun = span.at - span.seconds
    met = [join for join in joins if join.begun < span.at and begun < join.begun + join.over]
    if not met:
        return False
    whole = any(join.begun + join.greeted <= begun and span.at <= join.begun + join.fetched for join in met)
    return True if whole else None


def _show(arguments: argparse.Namespace, spans: Sequence[Span], joins: Sequence[Join], size: int) -> None:
    calm = [span for span in spans if _fetching(span, joins) is False]
    met = [span for span in spans if _fetching(span, joins)]
    alone_s = size / (arguments.rate / 8)
    without, beside = (statistics.median(span.tokens_per_s for span in some) if some else 0.0 for some in (calm, met))
    share = beside / without if met and calm else None
    print("| others | state, MB | Mbit/s | rounds without, with | tokens/s without | with | share |", end="")
    print(" training without, s | with | the rest without, s | with |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    print(
        f"| {arguments.peers} | {size / 1e6:.1f} | {arguments.rate / 1e6:.0f} | {len(calm)}, {len(met)} | "
        f"{without:.0f} | {beside:.0f} | " + (f"{share:.3f}" if share else "-"),
        *(f"{_median(some):.1f}" for some in ([span.ready_s for span in calm], [span.ready_s for span in met])),
        *(f"{_median(some):.1f}" for some in ([span.seconds - span.ready_s for span in each] for each in (calm, met))),
        sep=" | ",
        end=" |\n\n",
    )
    print("| newcomer | met a peer, s | has the state | has trained | is counted | state/rate | state over that |")
    print("|---|---|---|---|---|---|---|")
    for number, join in enumerate(joins, start=1):
        print(
            f"| {number} | {join.greeted:.1f} | {join.fetched:.1f} | {_seconds(join.ready)} | {_seconds(join.counted)} | "
            f"{alone_s:.1f} | {join.fetched / alone_s:.2f} |"
        )
    if arguments.json:
        rows = [{**asdict(join), "state_over_rate_s": alone_s} for join in joins]
        told = [{**asdict(span), "with_joiner": _fetching(span, joins)} for span in spans]
        print(
            json.dumps(
                {
                    "peers": arguments.peers,
                    "throughput_with_joiner": share,
                    "state_bytes": size,
                    "joins": rows,
                    "rounds": told,
                }
            )
        )


def _median(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) if seconds else 0.0


def _seconds(at: float | None) -> str:
    return "-" if at is None else f"{at:.1f}"


if __name__ == "__main__":
    sys.exit(main())
