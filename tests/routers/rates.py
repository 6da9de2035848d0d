"""How fast bulk bytes go from one home to another, and by which way: asked of the peers, one pair after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from peer.control.client import ControlClient, ControlError
from tests.e2e.swarm import Peer
from tests.routers.pushing_peer import COMMAND

PUSH_S = 2.0
ANSWER_S = 300.0
MAPPED, DIRECT = "mapped", "direct"
WAYS = (DIRECT, MAPPED, "reversed", "punched", "relayed")


@dataclass(frozen=True)
class Rate:
    """One direction of a pair.

    way: of the bulk socket; mapped is direct to a port that a router opened.  bits_per_s: of data that the other end has,
    after the first push.  first_s: for the first push, in which a way is found.  problem: why nothing came.
    """

    way: str = ""
    bits_per_s: float = 0.0
    first_s: float = 0.0
    problem: str = ""


def rate(sender: Peer, receiver: Peer, is_mapped: bool, seconds: float) -> Rate:
    """From one to the other, for about so long.  is_mapped: whether the receiver's router opens its port."""
    try:
        client = ControlClient(sender.folder, timeout_s=ANSWER_S)
        answer = client.request(COMMAND, peer=receiver.peer_id, seconds=seconds)
    except ControlError as error:
        return Rate(problem=str(error))
    way = MAPPED if is_mapped and answer["way"] == DIRECT else answer["way"]
    return Rate(way, 8 * answer["size"] / answer["seconds"], answer["first_s"])


def shown_pair(there: Rate | None, back: Rate | None) -> str:
    """Both directions, Mbit/s; the way only once where both have the same."""
    if there is None or back is None:
        return "-"
    first, second = (f"{one.way} {mbit(one.bits_per_s)}" if one.way else "failed" for one in (there, back))
    return f"{first}, {second.removeprefix(f'{there.way} ')}"


def shown_ways(rates: Iterable[Rate]) -> str:
    """A table for people: each way's rates, Mbit/s and as a share of the direct ones, and seconds of the first push."""
    found = [rate for rate in rates if rate.way]
    direct = median([rate.bits_per_s for rate in found if rate.way == DIRECT] or [0.0])
    rows: list[Sequence[str]] = [
        ("way", "directions", "Mbit/s: median", "least", "most", "of direct", "first push, s: median", "most")
    ]
    for way in WAYS:
        if its := [rate for rate in found if rate.way == way]:
            speeds, firsts = [rate.bits_per_s for rate in its], [rate.first_s for rate in its]
            share = f"{median(speeds) / direct:.3f}" if direct else "-"
            figures = map(mbit, (median(speeds), min(speeds), max(speeds)))
            rows.append((way, str(len(its)), *figures, share, f"{median(firsts):.2f}", f"{max(firsts):.2f}"))
    return in_columns(rows)


def mbit(bits_per_s: float) -> str:
    """Mbit/s, with one decimal below 100."""
    return f"{bits_per_s / 1e6:.1f}" if bits_per_s < 99.95e6 else f"{bits_per_s / 1e6:.0f}"


def in_columns(rows: Sequence[Sequence[str]]) -> str:
    """The rows, one a line, with each column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
