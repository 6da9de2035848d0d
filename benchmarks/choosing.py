"""Gain of a maker that chooses among completions: `python -m benchmarks.choosing [--lengths 512 1200 2048] [--json]`.

One token exchanged for its near-tie re-rolls the rest of a rollout.  So a maker has as many completions to choose from as
its rollout has near-ties within a tolerance.  This maker knows its validator's logits exactly.  It generates the honest
completion and up to `--tries` completions with one exchange each, and sends the one with the highest reward, the share of
letters.

A maker that keeps to the rules of one batch may spend 3 times the shortfall rate.  A maker that must also stay below the
alarm of the betting test may spend 1.5 times the shortfall rate and the exchange rate in the mean: so near-ties up to twice
the first, and if the second is less than one exchange for each rollout, it chooses in that share of its rollouts.  The table
has the near-ties within these budgets, the share of problems solved by the best completion if an honest one solves a tenth,
the rewards, and the rollouts until the betting test sets the maker aside.  Rates: --rates NAME SHORTFALL EXCHANGE, as often
as needed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.detection_forgeries import LETTERS, ByKey, Written
from benchmarks.detection_peers import FAMILIES, GROUP, ME, RUN, TOKENIZER, VERSION, Peer, Run, model_of, parameters
from protocol.formats.bets import total_growth
from protocol.formats.rl import RlConfig
from protocol.rollouts.betting import Wealth
from trainer.generate.sampling import gumbel, near_ties, stream_key
from trainer.rl.betting import SLACK_FACTOR
from trainer.rl.rollout import Rollout
from trainer.rl.verification import RATE_FACTOR, SLACK, Assignment, Verifier

SOLVED = 0.1
"""Share of problems that an honest completion solves, for the share that the best of a rollout's near-ties solves."""
MOST_ROLLOUTS = 4000
MOST_AT_ONCE = 0.9 * SLACK
"""Largest shortfall of one token: no stretch of tokens may have more."""


@dataclass(frozen=True)
class NearTies:
    """Near-ties of one rollout, the nearest first, and its sum of densities.

    gaps: shortfall of the exchanged token.  places: place in the output.  tokens: the exchanged token.
    """

    gaps: Tensor
    places: Tensor
    tokens: Tensor
    density: float

    def within(self, budget: float) -> int:
        """Return the number of near-ties within a budget of shortfall."""
        return int((self.gaps <= budget).sum())


@torch.no_grad()
def near_ties_of(run: Run, rollout: Rollout) -> NearTies:
    """Return the near-ties at the tokens that the model made."""
    model = run.model(torch.float32)
    hidden_nh = model(torch.tensor([rollout.prompt + rollout.output[:-1]]))[0, len(rollout.prompt) - 1 :]
    logits_nv = hidden_nh @ model.output_weight.T
    positions_n = torch.arange(len(rollout.prompt), len(rollout.prompt) + len(rollout.output))
    keys_n = torch.full_like(positions_n, key_of(rollout))
    best = (gumbel(keys_n, positions_n, logits_nv.shape[1]) + logits_nv / run.rl.temperature).topk(2, dim=1)
    made = torch.tensor(rollout.made)
    gaps_n = (best.values[:, 0] - best.values[:, 1]).masked_fill(~made, math.inf)
    order = gaps_n.argsort()
    density = float(near_ties(logits_nv, run.rl.temperature)[made].sum())
    return NearTies(gaps_n[order], order, best.indices[order, 1], density)


def key_of(rollout: Rollout) -> int:
    return stream_key(RUN, VERSION, ME, 0, rollout.problem, rollout.copy)


def worth(rollout: Rollout) -> float:
    """Return the reward: the share of letters among the tokens that the model made."""
    return float(LETTERS[torch.tensor(rollout.output)][torch.tensor(rollout.made)].float().mean())


def chosen(
    run: Run, honest: Sequence[Rollout], ties: Sequence[NearTies], counts: Sequence[int], tries: int
) -> list[Rollout]:
    """Return the best of each rollout and up to `tries` others with one exchange; counts: near-ties that may be used."""
    best, random = list(honest), torch.Generator().manual_seed(1)
    orders = [torch.randperm(count, generator=random)[:tries].tolist() for count in counts]
    for turn in range(max(map(len, orders), default=0)):
        choices = {}
        for rollout, tie, order in zip(honest, ties, orders, strict=True):
            if turn < len(order):
                written = Written(0, 0, (), ())
                place = (key_of(rollout), len(rollout.prompt) + int(tie.places[order[turn]]))
                written.tokens[place] = int(tie.tokens[order[turn]])
                choices[key_of(rollout)] = written
        made = Peer(run, choice=ByKey(dict(choices)), slots=len(honest)).rollouts(len(honest))
        best = [max(pair, key=worth) for pair in zip(best, made, strict=True)]
    return best


def measured(run: Run, rl: RlConfig, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return the verdicts, and the rollouts until the betting test sets their maker aside, if it goes on like this."""
    problems = tuple(sorted({each.problem for each in rollouts}))
    judged = Verifier(run.model(torch.float32), run.environment, TOKENIZER, rl).verify(
        Assignment(RUN, VERSION, ME, problems, GROUP), rollouts
    )
    growth, wealth, aside = total_growth(each.growth for each in judged), Wealth(), None
    for sent in range(len(rollouts), MOST_ROLLOUTS, len(rollouts)):
        wealth = wealth.after(growth)
        if wealth.reason:
            aside = sent
            break
    return {
        "reward": statistics.mean(map(worth, rollouts)),
        "rejected": sum(each.reason is not None for each in judged),
        "sure": sum(each.sure for each in judged),
        "largest": max(each.measured.shortfall for each in judged if each.measured is not None),
        "set_aside_after": aside,
    }


def rows(
    family: str, length: int, count: int, tries: int, rates: Sequence[tuple[str, float, float]]
) -> Iterator[dict[str, Any]]:
    """Yield what an honest maker gets, and a choosing one with each of these rates."""
    config = model_of(family, length)
    run = Run(config, parameters(config), length)
    honest = Peer(run, slots=count).rollouts(count)
    ties = [near_ties_of(run, each) for each in honest]
    density = statistics.mean(each.density for each in ties)
    rewards = [worth(each) for each in honest]
    yield {"who": "honest", "density": density, "reward": statistics.mean(rewards), "spread": statistics.stdev(rewards)}
    for name, shortfall, exchange in rates:
        rl = run.rl.changed(shortfall_rate=shortfall, exchange_rate=exchange)
        exchange = min(exchange, shortfall**0.5)
        share = min(1.0, SLACK_FACTOR * exchange * density)
        budgets = {
            "rules alone": (1.0, min(MOST_AT_ONCE, RATE_FACTOR * shortfall * density)),
            "below the alarm": (share, min(MOST_AT_ONCE, 2 * SLACK_FACTOR * shortfall * density / share)),
        }
        for what, (part, budget) in budgets.items():
            counts = [each.within(budget) for each in ties]
            number = statistics.mean(counts)
            solved = SOLVED + part * ((1 - SOLVED) - (1 - SOLVED) ** (number + 1))
            row = {"who": what, "rates": name, "share": part, "near_ties": number, "solved": solved}
            if not tries or max(counts) == 0:
                yield row if max(counts) else {**row, "gain": 0.0}
                continue
            best = chosen(run, honest, ties, counts, tries)
            gain = statistics.mean(map(worth, best)) - statistics.mean(rewards)
            yield {**row, "gain": part * gain, **measured(run, rl, best)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.choosing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1200, 2048])
    parser.add_argument("--family", choices=list(FAMILIES), default="llama")
    parser.add_argument("--rollouts", type=int, default=16, metavar="N")
    parser.add_argument(
        "--tries", type=int, default=7, metavar="N", help="most completions with an exchange; 0 counts alone"
    )
    parser.add_argument("--rates", nargs=3, action="append", metavar=("NAME", "SHORTFALL", "EXCHANGE"), default=[])
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    usual = RlConfig()
    rates = [("default", usual.shortfall_rate, usual.exchange_rate)]
    rates += [(name, float(shortfall), float(exchange)) for name, shortfall, exchange in arguments.rates]
    for length in arguments.lengths:
        for row in rows(arguments.family, length, arguments.rollouts, arguments.tries, rates):
            row = {"family": arguments.family, "length": length, **row}
            fields = (
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
            )
            print(json.dumps(row) if arguments.json else ", ".join(fields), flush=True)


if __name__ == "__main__":
    main()
