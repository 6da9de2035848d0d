"""Drawing with characters, and the status of a peer in words."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from protocol.formatting import amount, clean, harmless, many, naming, roughly, size

if TYPE_CHECKING:
    from protocol.events.status import CopiesStatus, GpuStatus, PeerStatus, RunDefinition, SwarmPeer


# ------------------------------------------------------------------------------------------------------------------------
# Drawing with characters: bars, curves in one line, and text cut to a number of columns.
#
# Pure and light: the terminal interface and the demo draw with it.


BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"


def bar(done: int, total: int, width: int, *, unicode: bool = True) -> str:
    """Return a progress bar of exactly `width` columns."""
    filled = 0 if total <= 0 else max(0, min(width, width * done // total))
    full, empty = ("━", "─") if unicode else ("#", ".")
    return full * filled + empty * (width - filled)


def sparkline(values: Sequence[float], width: int, *, unicode: bool = True) -> str:
    """Return the last `width` values as a row of blocks; values that are not finite leave a gap."""
    shown = list(values)[-width:] if width > 0 else []
    finite = [value for value in shown if math.isfinite(value)]
    if not finite:
        return ""
    blocks = BLOCKS if unicode else ASCII_BLOCKS
    low, high = min(finite), max(finite)
    scale = (len(blocks) - 1) / (high - low) if high > low else 0.0
    return "".join(blocks[round((value - low) * scale)] if value in finite else " " for value in shown)


def chunk_map(cells: str, width: int) -> str:
    """Draw the map of a blob's chunks in at most `width` columns."""
    number, line = min(width, len(cells)), ""
    for column in range(number):
        part = set(cells[column * len(cells) // number : (column + 1) * len(cells) // number])
        line += "#" if part == {"#"} else "." if part <= {"."} else "+"
    return line


def columns(text: str) -> int:
    """Return the columns that `text` takes on a terminal."""
    return sum(_columns_of(character) for character in text)


def fit(text: str, width: int) -> str:
    """Return `text` cut to `width` columns, without the characters that `clean` removes."""
    if text.isascii() and text.isprintable():
        return text[: max(0, width)]
    taken, kept = 0, []
    for character in harmless(text):
        taken += _columns_of(character)
        if taken > width:
            break
        kept.append(character)
    return "".join(kept)


def wrapped(text: str, width: int) -> list[str]:
    """Return `text` in lines of at most `width` columns, broken between words, and within words that are wider."""
    lines, line = [], ""
    for word in filter(None, ("".join(harmless(each)) for each in text.split())):
        if line and columns(line) + 1 + columns(word) <= width:
            line += f" {word}"
            continue
        lines += [line] if line else []
        while columns(word) > width and (part := fit(word, width)):
            lines.append(part)
            word = word[len(part) :]
        line = word
    return [*lines, line] if line else lines


def pad(text: str, width: int) -> str:
    """Return `text` in exactly `width` columns, the last of which is a space."""
    cut = fit(text, width - 1)
    return cut + " " * (width - columns(cut))


def table(rows: Sequence[Sequence[str]], numbers: Collection[int] = ()) -> list[str]:
    """Return the rows as lines whose columns are aligned.  numbers: places of the columns that are aligned to the right."""
    widths = [max(map(columns, column)) for column in zip(*rows, strict=True)]

    def aligned(cell: str, place: int) -> str:
        gap = " " * (widths[place] - columns(cell))
        return gap + cell if place in numbers else cell + gap

    return ["  ".join(aligned(cell, place) for place, cell in enumerate(row)).rstrip() for row in rows]


def spread(left: str, right: str, width: int) -> str:
    """Place `left` and `right` at the two ends of a line; return `left` alone if both do not fit."""
    gap = width - columns(left) - columns(right)
    return left + " " * gap + right if gap >= 1 else left


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


# ------------------------------------------------------------------------------------------------------------------------


def trainer_line(status: PeerStatus) -> str:
    """Describe the trainer: its device, how well it uses the device, and its process."""
    if not status.trainer_pid:
        return "none now"
    device = [clean(status.device, 40)] if status.device else []
    on_gpu = not status.device.startswith("cpu")  # on a processor that other programs use, the measured speed says little
    speed = [f"{100 * status.mfu:.0f} % of the GPU's speed (MFU)"] if status.mfu is not None and on_gpu else []
    busy = [f"trained {100 * status.busy_share:.0f} % of the last hour"] if status.busy_share is not None else []
    energy = [f"{1000 * status.joules_per_token:.1f} mJ a token"] if status.joules_per_token is not None else []
    return ", ".join([*device, *speed, *energy, *busy, f"process {status.trainer_pid}"])


def energy(joules: float) -> str:
    """Format an energy: "12 Wh", "1.3 kWh"."""
    hours = joules / 3600
    return f"{hours / 1000:.1f} kWh" if hours >= 999.5 else f"{hours:.0f} Wh" if hours >= 9.95 else f"{hours:.1f} Wh"


def gpu_line(gpu: GpuStatus) -> str:
    """Describe a GPU: its load, power, temperature, memory and model, as far as its driver tells them."""
    parts = []
    if gpu.busy_share is not None:
        parts.append(f"{100 * gpu.busy_share:.0f} % busy")
    if gpu.watts is not None:
        parts.append(f"{gpu.watts:.0f} W")
    if gpu.temperature is not None:
        parts.append(f"{gpu.temperature:.0f} °C")
    if gpu.memory_used is not None and gpu.memory_total is not None:
        parts.append(f"{size(gpu.memory_used)} of {size(gpu.memory_total)}")
    if gpu.name:
        parts.append(clean(gpu.name, 60))
    return ", ".join(parts) or "no figures"


def computer_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Describe the peer's computer: a word and a text for each GPU, the energy, and the processor with the memory."""
    computer = status.computer
    if computer is None:
        return []
    rows = [("gpu", gpu_line(gpu)) for gpu in computer.gpus]
    if computer.joules is not None or computer.all_joules is not None:
        now = f"{energy(computer.joules or 0.0)} since the start"
        rows.append(("energy", f"{now}, {energy(computer.all_joules or 0.0)} in all"))
    used = [f"{size(computer.memory_used)} of {size(computer.memory_total)} of memory"] if computer.memory_total else []
    busy = [f"{100 * computer.busy_share:.0f} % busy"] if computer.busy_share is not None else []
    power = [f"{computer.watts:.0f} W"] if computer.watts is not None else []
    rows.append(("processor", ", ".join([*busy, *power, *used, clean(computer.processor, 60)])))
    return rows


def contribution_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Describe the peer's contribution: a word and a text for its tokens with its rank, and for its rounds."""
    given = status.contribution
    if given is None:
        return []
    place = f"; rank {given.rank} of {given.contributors}" if given.rank is not None else ""
    days = f", {given.days} days in a row" if given.days > 1 else ""
    counted = f"{given.rounds} of {many(status.round, 'round')}, the last {given.streak} in a row"
    if given.streak > given.rounds:  # a peer that makes rollouts is not a member of any round
        counted = f"the last {many(given.streak, 'round')} in a row"
    return [
        ("given", f"{amount(given.tokens_today)} tokens today, {amount(given.tokens)} in all{place}"),
        ("counted", f"{counted}{days}"),
    ]


def limit_rows(status: PeerStatus) -> list[tuple[str, str]]:
    """Describe the planned rests of the peer, and the limits in force: a word and a text for each.

    Empty for a peer that has not read its computer yet, or whose version does not report the limits.
    """
    if status.computer is None:
        return []
    memory = status.computer.memory_limit
    limits = [f"{clean(name)} {clean(shown)}" for name, shown in status.limits.items()]
    limits += [f"memory {size(memory)} (container)"] if memory is not None else []
    rests = clean(status.next_rest, 300) or "none planned; `peer config schedule` plans hours"
    computes = status.role != "seed"
    return [*([("rests", rests)] if computes else []), ("limits", ", ".join(limits) or "none; `peer config` sets some")]


def claimed_pace(known: SwarmPeer) -> str:
    """Format the rate of training that a peer claims, which nobody checks, beside the rate for which it got credit."""
    claim, counted = f"{amount(known.tokens_per_s)} tokens/s", known.counted_tokens_per_s
    return claim if counted is None else f"claims {claim}, counted {amount(counted)}"


def rounds_line(status: PeerStatus) -> str:
    """Describe the committed rounds: "104 rounds, the last 3 provisional: bob (…Ab12cd) has not confirmed them yet".

    A recording does not tell which rounds are final, so the line of a recording does not say it.
    """
    text, provisional, away = many(status.round, "round"), status.provisional_rounds, status.unconfirmed_by
    if not status.round or not status.electors:
        return text
    if provisional:
        name = naming(status.names())
        who = ", ".join(name(peer) for peer in away[:3]) + (f" and {len(away) - 3} more" if len(away) > 3 else "")
        which = "the last one" if provisional == 1 else f"the last {provisional}"
        them = "it" if provisional == 1 else "them"
        return f"{text}, {which} provisional" + (
            f": {who} {'has' if len(away) == 1 else 'have'} not confirmed {them} yet" * bool(away)
        )
    return f"{text}, all final" if status.final_rounds == status.round else f"{text}, not final yet"


def votes_line(status: PeerStatus) -> str:
    """Describe the voters on the next round, and the cost of a vote of founders alone; empty if unknown."""
    voters = status.electors
    if status.founders_vote_until is not None:
        return founders_alone(voters, status.peer, status.organiser, status.founders_vote_until)
    if status.peer not in voters:
        return f"{many(len(voters), 'other peer')}, not this one yet" if voters else ""
    return (
        f"this peer and {many(len(voters) - 1, 'other')}"
        if len(voters) > 1
        else "this peer alone, until another has earned a vote"
    )


def founders_alone(founders: Sequence[str], me: str, organiser: str, until_round: int) -> str:
    """Describe the cost to an open run of the rule that only its founders vote at first.  me: the peer ID of the reader."""
    if len(founders) > 1:
        who, which, others = f"the {len(founders)} founders alone vote", "most of their computers are", "the others"
    else:
        who, which, others = "the founder alone votes", "its computer is", "they"
        if me in founders:
            who, which = "you alone vote", "this computer is"
        elif organiser in founders:
            who = "the organiser alone votes"
    return (
        f"{who} until round {until_round} or later: while {which} cut off from the others, the rounds that {others} make "
        "meanwhile are lost"
    )


MOST_EPOCHS = 4
"""Times for which repeated data is worth almost as much as new data (Muennighoff et al. 2023, "Scaling data-constrained
language models")."""


def times_text(times: float) -> str:
    """Format how often data is read: "less than 0.1 times", "about 0.4 times", "about once", "about 3 times"."""
    shown = rounded(times)
    if not shown:
        return "less than 0.1 times"
    return "about once" if shown == 1 else f"about {shown:g} times"


def rounded(times: float) -> float:
    """Return how often data is read, with the digits that are shown."""
    return round(times) if times >= 9.95 else round(times, 1)


def epochs_read(facts: RunDefinition, *, per_member: bool, most_members: int | None = None) -> str:
    """Describe how often a run reads its sources; empty if nothing is known.

    per_member: True if the number is for one member alone, because the run's total counts rounds.  most_members: largest
    number of members of a round; None if it is unknown.
    """
    times = sorted(facts.times_read.items(), key=lambda each: -each[1])
    if not times:
        return ""
    told = {times_text(count) for _, count in times}
    listed = ", ".join(f"{clean(name, 64)} {times_text(count)}" for name, count in times)
    said = f"each source {told.pop()}" if len(told) == 1 else listed
    more = " with one member, and more often with more" if per_member else ""
    is_reached = most_members is None or times[0][1] * most_members > facts.epochs
    if facts.epochs and more and is_reached:
        most = many(facts.epochs, "time")
        more = f" with one member, and at most {most} with more" if rounded(times[0][1]) < facts.epochs else ""
    often = "; above 4 times a model learns its data by heart" if times[0][1] > MOST_EPOCHS else ""
    return f"reads {said}{more}{often}"


def goal_done(status: PeerStatus) -> tuple[int, int]:
    """Return the finished part and the total of a run: in tokens if the end of its data ends it, else in its goal's unit."""
    return (status.run_tokens, status.data_total) if status.data_total else (status.goal_done, status.goal_total)


def goal_amount(status: PeerStatus) -> str:
    """Format the part of the run that is done: "41 of 100 rounds (41 %)".  The status must have a total."""
    part, whole = goal_done(status)
    is_tokens = status.goal_unit == "tokens" or status.data_total
    total = f"{amount(whole)} tokens" if is_tokens else many(whole, "round")
    done = amount(part) if is_tokens else str(part)
    ends = ", when its data have been read as often as data.epochs says" if status.data_total else ""
    return f"{done} of {total} ({min(100, 100 * part // whole)} %){ends}"


def goal_line(status: PeerStatus) -> str:
    """Format the run's progress: "41 of 100 rounds (41 %), about 2 hours to go", or the fact that it has ended."""
    if not status.goal_total:
        return "not known yet"
    text = goal_amount(status)
    if status.run_ended:
        return f"{text}; the run has ended, and `peer export FOLDER` writes its final state"
    left = status.goal_left_s
    return text if left is None else f"{text}, about {roughly(left)} to go at the speed of the last round"


BLOCK_ORIGINS = {
    "peer": "from peers",
    "seed": "from seeds",
    "mirror": "from mirrors",
    "disk": "from this disk",
    "copy": "to keep for others",
}


def blocks_by_origin(told: Mapping[str, int]) -> str:
    """Describe where the blocks of the run's corpora came from.  told: bytes by origin, as the status has them."""
    parts = [f"{size(told[origin])} {phrase}" for origin, phrase in BLOCK_ORIGINS.items() if told.get(origin)]
    return ", ".join(parts) or "none yet"


def copies(told: CopiesStatus, *, for_all: bool = False) -> str:
    """Describe the copies of the run's data.  for_all: True for readers at other peers."""
    if told.peers == 1 or not told.total_bytes:
        return f"{size(told.total_bytes)} of data, and no other peer to keep them"
    if told.answered == 1:
        return "no other peer has said yet what it has"
    at_others = (
        (told.here_only_bytes, "at this peer only"),
        (told.lone_bytes - told.here_only_bytes, "at one other peer only"),
    )
    lone = at_others if told.here_only_bytes and not for_all else ((told.lone_bytes, "at one peer only"),)
    places = (told.missing_bytes, "at no peer"), *lone
    parts = [f"{_percent(part, told.total_bytes)} {where}" for part, where in places if part > 0]
    beside = f", beside {many(told.mirrors, 'mirror')}" if told.mirrors else ""
    if parts:
        return f"{', '.join(parts)}, of {size(told.total_bytes)}{beside}"
    if told.short_bytes:
        share = _percent(told.total_bytes - told.short_bytes, told.total_bytes, down=True)
        return f"all at two peers or more, {share} at {told.wanted}{beside}"
    return f"all at {told.wanted} peers or more{beside}"


def _percent(part: float, whole: float, *, down: bool = False) -> str:
    """Return a share in percent; a share above 0 is at least 1 %, unless it is rounded down."""
    return f"{math.floor(100 * part / whole) if down else max(1, round(100 * part / whole))} %"
