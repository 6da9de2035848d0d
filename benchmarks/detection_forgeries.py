"""Forgeries of `benchmarks.detection`: peers with the right weights and honest proofs that choose tokens by their own rule.

Each continues with the tokens of the noise after its own tokens, so only its own tokens fall short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.detection_peers import GROUP, ME, RUN, TOKENIZER, VERSION, Choice, Numbers, Peer, Run, quantised
from protocol.formats.rl import RlConfig
from trainer.generate.sampling import choose, gumbel, near_ties, stream_key
from trainer.rl.rollout import Rollout
from trainer.rl.verification import RATE_FACTOR, SLACK

SLOTS = 128
"""Completions that are generated at a time."""
ANSWER = "\nAnswer: 42"
LETTERS = torch.tensor([chr(token).isalpha() and token < 128 for token in range(256)])


class Written:
    """A choice that writes given tokens at some places of each output, and follows the noise elsewhere."""

    def __init__(self, first: int, count: int, tokens: Sequence[int], places: Sequence[int]) -> None:
        """Prepare the choice.

        first, count: the first completion and the number of completions.  tokens, places: the token for each of these places
        of the output.
        """
        self.tokens: dict[tuple[int, int], int] = {}
        for index, key in _keys(first, count):
            begin = len(TOKENIZER.encode(Numbers().problem(index).prompt))
            self.tokens |= {(key, begin + place): token for token, place in zip(tokens, places, strict=True)}

    def __call__(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        chosen_b = choose(logits_bv, keys_b, positions_b, temperature)
        for row, place in enumerate(zip(keys_b.tolist(), positions_b.tolist(), strict=True)):
            chosen_b[row] = self.tokens.get(place, int(chosen_b[row]))
        return chosen_b


class ByKey:
    """A choice that differs between completions, so that forgeries of many kinds are generated in one batch."""

    def __init__(self, choices: dict[int, Choice]) -> None:
        """Prepare the choice.

        choices: the choice for each key of the noise; completions with other keys follow the noise.
        """
        self._choices = choices

    def __call__(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        rows: dict[Choice, list[int]] = {}
        for row, key in enumerate(keys_b.tolist()):
            rows.setdefault(self._choices.get(key, choose), []).append(row)
        chosen_b = torch.empty_like(keys_b)
        for choice, some in rows.items():
            chosen_b[some] = choice(logits_bv[some], keys_b[some], positions_b[some], temperature)
        return chosen_b


@dataclass(eq=False)
class Steered:
    """A choice that prefers a letter, which is rewarded, if a letter falls short by less than `within`.

    rate: the run's shortfall rate, to which all of its completions together keep; None for a peer that ignores the run's
    rules.
    """

    within: float
    rate: float | None = None
    level: float = 0.0

    def __call__(self, logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        perturbed_bv = gumbel(keys_b, positions_b, logits_bv.shape[1]).add_(logits_bv.float() / temperature)
        below_bv = perturbed_bv.amax(dim=1, keepdim=True) - perturbed_bv
        letter_bv = below_bv.masked_fill(~LETTERS[: logits_bv.shape[1]], math.inf)
        chosen_b = torch.where(letter_bv.amin(dim=1) < self.within, letter_bv.argmin(dim=1), below_bv.argmin(dim=1))
        if self.rate is None:
            return chosen_b
        for row, density in enumerate(near_ties(logits_bv, temperature).tolist()):
            after = self.level + float(below_bv[row, chosen_b[row]]) - RATE_FACTOR * self.rate * density
            if after > 0.95 * SLACK:
                chosen_b[row] = below_bv[row].argmin()
                after = self.level - RATE_FACTOR * self.rate * density
            self.level = max(0.0, after)
        return chosen_b


def top_p(share: float) -> Choice:
    """Return a choice among the likeliest tokens that together have this share of the probability."""

    def chosen(logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
        ordered_bv, order_bv = torch.softmax(logits_bv.float() / temperature, dim=1).sort(dim=1, descending=True)
        cut_bv = ordered_bv.cumsum(dim=1) - ordered_bv >= share
        outside_bv = torch.zeros_like(cut_bv).scatter(1, order_bv, cut_bv)
        return choose(logits_bv.float().masked_fill(outside_bv, -math.inf), keys_b, positions_b, temperature)

    return chosen


def at_temperature(factor: float) -> Choice:
    """Return a choice at a multiple of the run's temperature."""
    return lambda logits_bv, keys_b, positions_b, temperature: choose(logits_bv, keys_b, positions_b, factor * temperature)


def forged(run: Run, count: int, kinds: Mapping[str, Callable[[int], Choice]]) -> dict[str, list[Rollout]]:
    """Return `count` completions of each kind, generated together.

    kinds: the choice from completion number `first` on.
    """
    choices: dict[int, Choice] = {}
    for number, kind in enumerate(kinds.values()):
        choice = kind(number * count)
        choices |= {key: choice for _, key in _keys(number * count, count)}
    made = Peer(run, choice=ByKey(choices), slots=min(SLOTS, len(kinds) * count)).rollouts(len(kinds) * count)
    return {name: made[number * count : (number + 1) * count] for number, name in enumerate(kinds)}


def forgeries(run: Run, count: int, rate: float) -> Iterator[tuple[str, list[Rollout]]]:
    """Yield rollouts of each kind of forgery, each with completions of its own.

    rate: the calibrated `shortfall_rate`, for a peer that knows it.
    """
    answer, length = TOKENIZER.encode(ANSWER), run.length
    spread = [round((number + 0.5) * length / len(answer)) for number in range(len(answer))]

    def written(places: Sequence[int], first: int) -> Choice:
        return Written(first, count, answer, places)

    written_at: dict[str, Sequence[int]] = {
        "an answer written in: start": range(1, 1 + len(answer)),
        "an answer written in: middle": range(length // 2, length // 2 + len(answer)),
        "an answer written in: end": range(length - len(answer), length),
        "an answer written in: places spread over it": spread,
    }
    kinds: dict[str, Callable[[int], Choice]] = {
        "none: an honest peer": lambda first: choose,
        **{name: partial(written, places) for name, places in written_at.items()},
        "steered among near-ties within 0.05": lambda first: Steered(0.05),
        "steered among near-ties within 0.2": lambda first: Steered(0.2),
        "steered among near-ties within 0.5": lambda first: Steered(0.5),
        "steered as far as the default rules let it": lambda first: Steered(0.5, RlConfig().shortfall_rate),
        "steered as far as the calibrated rules let it": lambda first: Steered(0.5, rate),
        "forged sampling: temperature 0.95": lambda first: at_temperature(0.95),
        "forged sampling: temperature 1.1": lambda first: at_temperature(1.1),
        "forged sampling: top-p 0.95": lambda first: top_p(0.95),
        "forged sampling: top-p 0.99": lambda first: top_p(0.99),
    }
    for name, rollouts in forged(run, count, kinds).items():
        first = written_at.get(name, range(1))[0]
        yield name, [each for each in rollouts if len(each.output) > first]  # one that ended before is honest
    for levels, name in ((127, "int8"), (7, "int4")):
        yield f"weights rounded to {name}", Peer(run, quantised(run.theta, levels)).rollouts(count)


def _keys(first: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the problem and the key of each of the completions from number `first` on."""
    for number in range(first, first + count):
        index = number // GROUP
        yield index, stream_key(RUN, VERSION, ME, 0, index, number % GROUP)
