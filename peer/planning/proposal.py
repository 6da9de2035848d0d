"""Proposal of the settings of a run: the shortest H at the best precision that wastes almost no time.

Time is wasted on the exchange, if members do not train meanwhile, and on steps that no record counts.  The codecs are tried
in the order of their measured losses (docs/results/diloco.md): int4 costs none, int2 a little, top64 more.  With each
codec, a short H comes first; with each H, rounds that wait for the whole exchange (F = 1, D = 0), then a delay, then more
fragments, whose exchanges are shorter.  With many members, int2 comes before long rounds of int4, because these cost more.
Settings are tried with the peers always online, so chance has no part.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from peer.planning.cost import RoundLoad, RoundRules, RoundSetting
from peer.planning.model import APPLY_PER_S, Forecast, forecast_rounds
from peer.planning.swarm import PlannedPeers
from protocol.formatting import many
from protocol.run.manifest import RunManifest

CODECS = ("int4", "int2", "top64")
"""Codecs in the order of preference."""
INNER_STEPS = (20, 30, 50, 100, 200, 300, 500)
"""Numbers of inner steps (H) that are tried."""
MANY_MEMBERS, LONG_ROUND = 8, 300
"""With this many members, no outer step makes up for the loss that rounds of this many inner steps cost
(docs/results/diloco.md)."""
FRAGMENTS = (1, 2, 4)
"""Numbers of fragments that are tried."""
DELAY_SHARE = 4
"""Ratio of the inner steps to the longest delay; longer delays were not compared."""
MOST_WASTED = 0.01
"""Share of the time that may be wasted."""


@dataclass(frozen=True)
class _SettingTrial:
    setting: RoundSetting
    forecast: Forecast

    @property
    def waste(self) -> float:
        """Share of the time that the exchange adds, or that peers lose because their steps are too long."""
        return self.forecast.exchange_share + self.forecast.lost


def propose(manifest: RunManifest, rules: RoundRules, peers: PlannedPeers) -> tuple[RoundSetting, str]:
    """Return the proposed settings for a run and its peers, and a sentence that gives the reason.  Raises NeverTogether."""
    always = replace(peers, offline_s=np.zeros(len(peers)))
    tried: list[_SettingTrial] = []
    for codec, lengths in _preferences(len(peers)):
        for trial in _trials(codec, lengths, manifest, rules, always):
            tried.append(trial)
            if trial.waste < MOST_WASTED:
                return trial.setting, _reason(trial, tried)
        best = min(tried, key=lambda trial: trial.waste)
        if best.forecast.exchange_share < MOST_WASTED:
            break  # a smaller exchange would change nothing
    by_slow = best.forecast.exchange_share < MOST_WASTED
    why = f"no setting wastes less than {_percent(MOST_WASTED)} of the time, and this one wastes {_percent(best.waste)}" + (
        ", because of slow peers" if by_slow else "; a smaller model or faster lines would help"
    )
    return best.setting, why


def _preferences(peers: int) -> Sequence[tuple[str, Sequence[int]]]:
    """Return the codecs and the values of H for so many peers, in the order in which they are tried."""
    if peers < MANY_MEMBERS:
        return [(codec, INNER_STEPS) for codec in CODECS]
    short, long = ([steps for steps in INNER_STEPS if (steps >= LONG_ROUND) == is_long] for is_long in (False, True))
    *precise, sparse = CODECS
    return [*((codec, short) for codec in precise), *((codec, long) for codec in precise), (sparse, INNER_STEPS)]


def _trials(
    codec: str, lengths: Sequence[int], manifest: RunManifest, rules: RoundRules, peers: PlannedPeers
) -> Iterator[_SettingTrial]:
    """Yield the settings with this codec in the order of preference, with their forecasts."""
    for inner_steps in lengths:
        for fragments in FRAGMENTS:
            if inner_steps % fragments:
                continue
            setting = RoundSetting(codec, inner_steps, fragments, 0)
            load = RoundLoad.of(manifest, setting)
            waiting = forecast_rounds(load, rules, peers)
            if fragments == 1:
                yield _SettingTrial(setting, waiting)
            hidden_s = waiting.exchange_s + waiting.agreement_s + load.parameters / APPLY_PER_S
            delay = min(math.ceil(hidden_s / waiting.step_s), inner_steps // DELAY_SHARE, load.steps)
            delayed = replace(load, delay=delay)
            yield _SettingTrial(setting._replace(delay=delay), forecast_rounds(delayed, rules, peers))


def _reason(chosen: _SettingTrial, tried: list[_SettingTrial]) -> str:
    """Return the sentence on the chosen setting, the last one tried."""
    setting = chosen.setting
    meanwhile = f", since members train {many(setting.delay, 'step')} during an exchange" if setting.delay else ""
    parts = [f"it wastes {_percent(chosen.waste)} of the time{meanwhile}"]
    same = [each for each in tried if each.setting.codec == setting.codec]
    if shorter := [each.setting.inner_steps for each in same if each.setting.inner_steps < setting.inner_steps]:
        least = min(each.waste for each in same if each.setting.inner_steps == shorter[-1])
        parts.append(f"with H = {shorter[-1]} it would be {_percent(least)}")
    if setting.fragments > 1:
        fewer = [
            each.waste
            for each in same
            if each.setting.inner_steps == setting.inner_steps and each.setting.fragments < setting.fragments
        ]
        parts.append(f"with fewer fragments {_percent(min(fewer))}")
    best = setting.codec == CODECS[0]
    parts.append("int4 costs no loss" if best else "with a more precise codec the lines could not carry it")
    return "; ".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
