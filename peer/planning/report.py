"""Report of a forecast: a table of settings, a drawing of the trainers' time, and one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from peer.formatting import fit
from peer.formatting import table as aligned
from peer.planning.cost import RoundSetting
from peer.planning.model import Doing, Forecast, RoundTrace
from peer.planning.proposal import LONG_ROUND, MANY_MEMBERS
from peer.planning.swarm import PeerGroup, QuantityRange
from peer.resources.computer import memory_need
from peer.resources.room import MARGIN_BYTES, STATES_ON_DISK
from protocol.formatting import amount, duration, line_rate, many, roughly, size
from protocol.run.manifest import RunManifest
from protocol.run.sections import Unit
from protocol.wire.envelope import MAX_MEMBERS
from trainer.memory import TrainerSetup


@dataclass(frozen=True)
class NamedForecast:
    """Forecast of one setting.

    name: heading of its column.  forecast: the forecast; its tokens are only the tokens that the loss counts, as in the
    run's total.  end_s: seconds until the run ends.  by_data: tokens after which `data.epochs` ends it; 0 if its total comes
    first.
    """

    name: str
    setting: RoundSetting
    forecast: Forecast
    end_s: float
    by_data: int = 0

    @classmethod
    def of(cls, manifest: RunManifest, name: str, setting: RoundSetting, forecast: Forecast) -> NamedForecast:
        """Return the forecast of a run with a setting.  forecast: of all tokens that its peers compute."""
        counted = replace(forecast, tokens_a_day=forecast.tokens_a_day * manifest.data.counted_share)
        token_s = DAY_S / max(counted.tokens_a_day, 1e-9)
        goal, end = manifest.goal, manifest.data_end
        end_s = goal.total * (forecast.round_s if goal.unit is Unit.ROUNDS else token_s)
        if end is not None and end.tokens * token_s <= end_s:
            return cls(name, setting, counted, end.tokens * token_s, end.tokens)
        return cls(name, setting, counted, end_s)


@dataclass(frozen=True)
class RunNeeds:
    """Bytes that a trainer needs: memory on a CPU, memory of a GPU and of its computer, and disk."""

    cpu_memory: int
    gpu_host_memory: int
    gpu_memory: int
    disk: int

    @classmethod
    def of(cls, manifest: RunManifest) -> RunNeeds:
        """Return the needs of a run's trainers."""
        on_gpu = memory_need(manifest, setup=TrainerSetup("cuda"))
        disk = STATES_ON_DISK * manifest.stored_bytes + MARGIN_BYTES
        return cls(memory_need(manifest).host, on_gpu.host, on_gpu.gpu, disk)


# ------------------------------------------------------------------------------------------------------------------------


DAY_S, YEAR_S = 86_400, 31_557_600


def peers_line(groups: Sequence[PeerGroup], source: str = "") -> list[str]:
    """Return a line for each group of peers.  source: source of their speed, as a phrase; empty if the user gave it."""
    shown = f" ({source})" if source else ""

    def speed(group: PeerGroup) -> str:
        return f"{_between(group.speed, amount)} tokens/s{' each' if group.count > 1 else ''}{shown}"

    return [
        f"{many(group.count, 'peer')}: {speed(group)}, {_between(group.up, line_rate)} up, "
        f"{_between(group.down, line_rate)} down, round trips of {_between(group.rtt, lambda s: f'{1e3 * s:.0f} ms')}, "
        + (
            f"{roughly(group.online.online_s)} online and {roughly(group.online.offline_s)} offline on average"
            if group.online.offline_s
            else "always online"
        )
        for group in groups
    ]


def _between(values: QuantityRange, show: Callable[[float], str]) -> str:
    return show(values.low) if values.low == values.high else f"{show(values.low)} to {show(values.high)}"


def table(forecasts: Sequence[NamedForecast], needs: RunNeeds) -> list[str]:
    """Return the table: a row for each figure, a column for each setting."""
    columns = [_figures(each) for each in forecasts]
    rows = [["", *(each.name for each in forecasts)]]
    rows += [[cells[0][0], *(figure for _, figure in cells)] for cells in zip(*columns, strict=True)]
    width = max(len(row[0]) for row in rows)
    return [
        *aligned(rows),
        f"{'memory':<{width}}  {size(needs.cpu_memory)} for a peer that trains on its CPU, or {size(needs.gpu_memory)} of a "
        f"GPU's and {size(needs.gpu_host_memory)} of the computer's",
        f"{'disk':<{width}}  {size(needs.disk)} of each peer",
    ]


def _figures(each: NamedForecast) -> list[tuple[str, str]]:
    """Return the figures of a column, each with its subject."""
    setting, forecast = each.setting, each.forecast
    return [
        ("codec", setting.codec),
        ("inner steps (H)", str(setting.inner_steps)),
        ("fragments (F)", str(setting.fragments)),
        ("delay (D), steps", str(setting.delay)),
        ("a step", duration(forecast.step_s)),
        ("a round", duration(forecast.round_s)),
        ("  its exchange", duration(forecast.exchange_s)),
        ("  its agreement", duration(forecast.agreement_s)),
        ("members of a round", f"{forecast.members:.1f}".removesuffix(".0")),
        ("trainers train", _share(forecast.utilisation)),
        ("  work that no record has", _share(forecast.lost)),
        ("  work beyond max_members", _share(forecast.surplus)),
        ("trainers wait for others", _share(forecast.waits_peers)),
        ("  for the exchange", _share(forecast.waits_exchange)),
        ("  for what they missed", _share(forecast.fetches)),
        ("the exchange adds", f"{_share(forecast.exchange_share)} of the time"),
        ("a member sends a round", size(forecast.up_bytes)),
        ("  receives", size(forecast.down_bytes)),
        ("a peer sends a day", f"{size(forecast.up_day[0])}, at most {size(forecast.up_day[1])}"),
        ("  receives", f"{size(forecast.down_day[0])}, at most {size(forecast.down_day[1])}"),
        ("tokens a day", amount(forecast.tokens_a_day)),
        ("the run ends after", _long(each.end_s)),
    ]


def _long(seconds: float) -> str:
    """Format a time roughly, with its years if they are many days."""
    if seconds < 0.5:
        return "less than a second"
    if seconds < YEAR_S:
        return roughly(seconds)
    return f"{seconds / DAY_S:,.0f} days ({seconds / YEAR_S:,.1f} years)"


def end_line(manifest: RunManifest, forecasts: Sequence[NamedForecast]) -> list[str]:
    """Return the sentence on the end of the run: after what, when, and at whose speed."""
    each, goal = forecasts[0], manifest.goal
    total = f"{amount(goal.total)} tokens" if goal.unit is Unit.TOKENS else many(goal.total, "round")
    if each.by_data:
        total = f"{amount(each.by_data)} tokens, when its data have been read as often as data.epochs says"
    rate = amount(each.forecast.tokens_a_day / DAY_S)
    return [f"The run ends after {total}: in {_long(each.end_s)}, at {rate} tokens/s of all these peers together."]


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def fields(
    manifest: RunManifest, groups: Sequence[PeerGroup], forecasts: Sequence[NamedForecast], needs: RunNeeds, why: str
) -> dict[str, Any]:
    """Return the JSON object.  why: the sentence on the proposal."""
    return {
        "run": {"name": manifest.name, "parameters": manifest.parameters},
        "peers": [asdict(group) for group in groups],
        "needs": asdict(needs),
        "settings": [
            {
                "name": each.name,
                **each.setting._asdict(),
                **{name: value for name, value in asdict(each.forecast).items() if name != "trace"},
                "end_s": each.end_s,
            }
            for each in forecasts
        ],
        "why": why,
    }


MOST_WAITING = 0.05
"""Share of waiting for others from which a remark explains it."""
MOST_LOST = 0.01


def remarks(each: NamedForecast, max_members: int) -> list[str]:
    """Return sentences on costs that another exchange would not save or make up for.  max_members: limit of the run."""
    found, forecast = [], each.forecast
    if each.setting.inner_steps >= LONG_ROUND and forecast.members >= MANY_MEMBERS:
        found.append(
            f"With {MANY_MEMBERS} members or more, rounds of {LONG_ROUND} steps or more end 2 to 3 % above the loss of "
            "training on all their batches together, whatever the outer step; inner_steps of 200 or less cost far less."
        )
    if forecast.surplus >= MOST_LOST:
        raised = f"raise max_members (to {MAX_MEMBERS} at most), " if max_members < MAX_MEMBERS else ""
        found.append(
            f"{_share(forecast.surplus)} of the time is spent on rounds whose {max_members} places (max_members) are taken: "
            "the members of the last round stay, and other peers wait for a free place while their work is lost; "
            f"{raised}let some peers join with --role seed, or divide them among several runs."
        )
    if forecast.lost >= MOST_LOST:
        found.append(
            f"{_share(forecast.lost)} of the time is spent on steps that no record counts, because their peers leave "
            "in a round, or need longer for a step than a round waits.  Fewer sequences_per_step or more inner_steps "
            "reduce this share."
        )
    if forecast.waits_peers >= MOST_WAITING:
        found.append(
            "Fast peers wait for slower ones: a round waits until a quorum has done all its steps, and late peers then "
            "contribute the steps that they have done."
        )
    return found


# ------------------------------------------------------------------------------------------------------------------------
# Drawing of the trainers' time: two lines of blocks for each of three peers.


SIGNS = {Doing.TRAIN: "█#", Doing.ENCODE: "▓+", Doing.WAIT_PEERS: "·.", Doing.WAIT_EXCHANGE: "░-"}
"""Signs of what a trainer does, with Unicode and without."""
LINE_SIGNS = "▔="
LABEL = 18
LEAST_WIDTH = 40
DRAWN_ROUNDS = 3
NAMES = {1: ("alone",), 2: ("faster", "slower"), 3: ("fastest", "median", "slowest")}


def drawing(trace: RoundTrace, width: int, *, unicode: bool = True) -> list[str]:
    """Draw some rounds of a few members in at most `width` columns: the trainer, and below it the line."""
    form = 0 if unicode else 1
    room = max(LEAST_WIDTH, width) - LABEL
    times = [(cell + 0.5) * DRAWN_ROUNDS * trace.seconds / room % trace.seconds for cell in range(room)]
    lines = []
    for name, course in zip(NAMES[len(trace.courses)], trace.courses, strict=True):
        label = fit(f"{name}, {amount(course.speed)}/s", LABEL - 1)
        trainer = "".join(SIGNS[course.doing(at)][form] for at in times)
        line = "".join(LINE_SIGNS[form] if at < course.exchange_s else " " for at in times)
        lines += [f"{label:<{LABEL}}{trainer}", f"{'':<{LABEL}}{line}".rstrip()]
    train, _, others, exchange = (signs[form] for signs in SIGNS.values())
    return [
        *lines,
        f"{duration(DRAWN_ROUNDS * trace.seconds)} from left to right.  A trainer: {train} trains, {others} waits for other "
        f"peers, {exchange} waits for the exchange.",
        f"Below it the peer's line: {LINE_SIGNS[form]} carries an exchange.",
    ]
