"""Whether rollouts are what they claim to be: the checks of a validator, each of which anybody with the weights can repeat.

In this order, the cheap ones first; the first that fails is the reason:

* form: the assigned problems and copies, each once; lengths, tokens and proofs within bounds; the prompt is the problem's;
* conversation: what the environment is said to have said is what it says;
* computation: prompt and output go through the reference model at once, and the hidden states match the proofs (TOPLOC);
* termination: the output ends where the conversation is over, or at the length limit; an end token that the noise did not
  choose (below) was at least not unlikely.  One that it did choose may be unlikely: that happens to honest peers;
* sampling: each token is the one that the key's noise chooses (`trainer.generate.sampling`), within a tolerance.  So text
  that a smaller model wrote is found even where the proofs are those of the right one, and so is a copy of another's.

The reward is computed here.  What a verdict leads to is decided elsewhere.

Who makes a rollout knows the tolerances, and can have its proofs or tokens be as far off as just passes on one device, and
does not on another.  So a verdict says whether it is sure: that every honest device comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from kernels.toploc import Mismatch, Thresholds, compare_all
from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, Problem
from trainer.generate.sampling import probability, shortfall, stream_key
from trainer.models.llama.model import Decoder
from trainer.rl.config import RlConfig
from trainer.rl.form import Forms, Reason, Refused
from trainer.rl.rollout import Rollout

CPU_TOKENS = 2048
"""Tokens that a CPU computes at once: what a layer makes of more does not fit its caches."""
CHOICES = 1 << 22
"""Logits that are looked at together, each with some 40 bytes of noise and sums."""
DEVICES_APART = 2 / 3
"""Of a tolerance: by so much two honest devices may measure the same rollout differently.  Tolerances are proposed so
(`trainer.rl.calibration.MARGIN`)."""


@dataclass(frozen=True)
class Tolerances:
    """What an honest peer's device may do differently.

    shortfall: how far, in units of logits over temperature, a token may be from the one that the noise chooses.
    share_beyond: of the tokens of a rollout that may be farther than that.
    end_probability: of an end token that is farther than that, at least.
    """

    proofs: Thresholds
    shortfall: float
    share_beyond: float
    end_probability: float

    @classmethod
    def of(cls, config: RlConfig) -> Self:
        """Those of a run."""
        return cls(
            Thresholds(config.max_exponent_mismatches, config.max_mantissa_mean, config.max_mantissa_median),
            config.max_shortfall,
            config.max_share_beyond,
            config.min_end_probability,
        )

    def times(self, factor: float) -> Self:
        """So many times as tolerant of what a device does."""
        proofs = self.proofs
        return replace(
            self,
            proofs=Thresholds(
                int(factor * proofs.exponent_mismatches), factor * proofs.mantissa_mean, factor * proofs.mantissa_median
            ),
            shortfall=factor * self.shortfall,
            end_probability=min(1.0, self.end_probability / factor),
        )

    def fields(self) -> dict[str, Any]:
        """As the fields of a run's `[rl]`, which `RlConfig` has as well."""
        return {
            "max_exponent_mismatches": self.proofs.exponent_mismatches,
            "max_mantissa_mean": self.proofs.mantissa_mean,
            "max_mantissa_median": self.proofs.mantissa_median,
            "max_shortfall": self.shortfall,
            "max_share_beyond": self.share_beyond,
        }


@dataclass(frozen=True)
class Assignment:
    """What a batch has to contain: `copies` completions of each problem, by `peer` with version `version` of the weights."""

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int


@dataclass(frozen=True)
class Measured:
    """What was measured of a rollout, for calibration.

    mismatches: of each chunk of tokens.  shortfall: the largest.  beyond: tokens farther off than the tolerance.
    end_probability: the least that an end token had which is beyond the tolerance; 1 where there is none.
    mean_probability: of the chosen tokens.
    """

    mismatches: tuple[Mismatch, ...]
    shortfall: float
    beyond: int
    end_probability: float
    mean_probability: float


@dataclass(frozen=True)
class Judged:
    """The verdict on a rollout.  reason: None unless it is rejected.  detail: a sentence, empty for an accepted one.

    reward: in [0, 1]; None unless it is accepted: without a reason, too, this computer could not score it.  measured: None
    where the form was wrong already.  tokens: that the model made; 0 where the form was wrong.  exact: whether every
    computer comes to this reward.  sure: whether every honest device accepts this rollout, or every one rejects it.
    """

    reason: Reason | None
    detail: str = ""
    reward: float | None = None
    measured: Measured | None = None
    tokens: int = 0
    exact: bool = False
    sure: bool = True


class Verifier:
    """Judges rollouts of one version, as tolerantly as the run says.  model: with its weights, in any precision."""

    def __init__(self, model: Decoder, environment: Environment, tokenizer: Tokenizer, config: RlConfig) -> None:
        self._model, self._environment, self._tokenizer = model, environment, tokenizer
        self._config, self._tolerances = config, Tolerances.of(config)
        self._narrow, self._wide = (self._tolerances.times(1 + sign * DEVICES_APART) for sign in (-1, 1))
        self._forms = Forms(model.config, environment, tokenizer, config)

    def verify(
        self, assignment: Assignment, rollouts: Sequence[Rollout], between: Callable[[], None] = lambda: None
    ) -> list[Judged]:
        """A verdict for each rollout, in their order.  A batch that lacks some of what was assigned has these left out.

        between: called before each pass through the model; may wait, or raise.
        """
        verdicts: list[Judged | None] = [None] * len(rollouts)
        turns: dict[int, tuple[Problem, tuple[str, ...]]] = {}
        seen: set[tuple[int, int]] = set()
        for index, rollout in enumerate(rollouts):
            try:
                turns[index] = self._check_form(assignment, rollout, seen)
            except Refused as refusal:
                verdicts[index] = Judged(refusal.reason, refusal.detail)
        for indices in self._micro_batches(rollouts, list(turns)):
            between()
            for index, found in zip(indices, self._measure(assignment, [rollouts[each] for each in indices]), strict=True):
                judged = self._judge(rollouts[index], self._measured(*found, self._tolerances), *turns[index])
                other = self._narrow if judged.reason is None else self._wide
                flaw = self._flaw(rollouts[index], self._measured(*found, other), other, *turns[index])
                verdicts[index] = replace(judged, sure=(flaw is None) is (judged.reason is None))
        return [verdict for verdict in verdicts if verdict is not None]

    def _check_form(
        self, assignment: Assignment, rollout: Rollout, seen: set[tuple[int, int]]
    ) -> tuple[Problem, tuple[str, ...]]:
        place = (rollout.problem, rollout.copy)
        if rollout.problem not in assignment.problems or rollout.copy >= assignment.copies:
            raise Refused(
                Reason.WRONG_PROMPT, f"copy {rollout.copy} of problem {rollout.problem} was not assigned to this peer"
            )
        if place in seen:
            raise Refused(Reason.MALFORMED, f"copy {rollout.copy} of problem {rollout.problem} is there twice")
        seen.add(place)
        return self._forms.read(rollout)

    # -- what needs the model -----------------------------------------------------------------------------------------

    def _micro_batches(self, rollouts: Sequence[Rollout], indices: list[int]) -> list[list[int]]:
        """Those of like length together, as many as fit."""
        most = self._config.micro_batch_tokens
        if self._model.flat.device.type == "cpu":
            most = min(most, CPU_TOKENS)
        indices = sorted(indices, key=lambda index: _length(rollouts[index]))
        batches: list[list[int]] = []
        for index in indices:
            if not batches or (len(batches[-1]) + 1) * _length(rollouts[index]) > most:
                batches.append([])
            batches[-1].append(index)
        return batches

    @torch.no_grad()
    def _measure(
        self, assignment: Assignment, rollouts: Sequence[Rollout]
    ) -> list[tuple[list[Mismatch], tuple[Tensor, Tensor, Tensor]]]:
        """One pass over prompt and output but its last token; of each, the rows that predict the output's tokens."""
        width, device = max(_length(rollout) for rollout in rollouts), self._model.flat.device
        tokens_bt = torch.zeros((len(rollouts), width), dtype=torch.int64)
        for row, rollout in enumerate(rollouts):
            tokens = torch.tensor(rollout.prompt + rollout.output[:-1])
            tokens_bt[row, : len(tokens)] = tokens
        hidden_bth = self._model(tokens_bt.to(device))
        own = [hidden_bth[row, len(each.prompt) - 1 :][: len(each.output)] for row, each in enumerate(rollouts)]
        mismatches = compare_all(
            [hidden.bfloat16() for hidden in own],
            [self._forms.proofs(rollout) for rollout in rollouts],
            self._config.top_k,
            self._config.chunk_tokens,
        )
        return [*zip(mismatches, self._choices(assignment, rollouts, own), strict=True)]

    def _choices(
        self, assignment: Assignment, rollouts: Sequence[Rollout], own: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each rollout the tokens that the model made, their shortfalls and their probabilities, on the host.

        own: hidden states (tokens of the output, dim) of each.  The rows of all are looked at together, so many at a time
        that their numbers for every token of the vocabulary need not much memory.
        """
        model, temperature = self._model, self._config.temperature
        made_n = torch.tensor([made for each in rollouts for made in each.made])
        tokens_n = torch.tensor([token for each in rollouts for token in each.output])[made_n]
        positions = [torch.arange(len(each.prompt), _length(each) + 1) for each in rollouts]
        keys = [
            stream_key(assignment.run, assignment.version, assignment.peer, each.problem, each.copy) for each in rollouts
        ]
        keys_n = torch.tensor(keys).repeat_interleave(torch.tensor([len(each.output) for each in rollouts]))[made_n]
        device, rows = model.flat.device, max(1, CHOICES // model.config.vocab)
        rows_of_all = (torch.cat(list(own))[made_n.to(device)], tokens_n, keys_n, torch.cat(positions)[made_n])
        parts = [torch.split(each.to(device), rows) for each in rows_of_all]
        short, likely = [], []
        for hidden_nh, chosen_n, key_n, position_n in zip(*parts, strict=True):
            logits_nv = _logits(model, hidden_nh)
            short.append(shortfall(logits_nv, chosen_n, key_n, position_n, temperature).cpu())
            likely.append(probability(logits_nv, chosen_n, temperature).cpu())
        counts = [sum(each.made) for each in rollouts]
        return [*zip(*(torch.split(each, counts) for each in (tokens_n, torch.cat(short), torch.cat(likely))), strict=True)]

    def _measured(
        self, mismatches: Sequence[Mismatch], choices: tuple[Tensor, Tensor, Tensor], tolerances: Tolerances
    ) -> Measured:
        tokens_n, short_n, probability_n = choices
        beyond_n = short_n > tolerances.shortfall
        ends_n = probability_n[beyond_n & torch.isin(tokens_n, torch.tensor(self._tokenizer.ends, device=tokens_n.device))]
        return Measured(
            tuple(mismatches),
            float(short_n.max()),
            int(beyond_n.sum()),
            float(ends_n.min()) if len(ends_n) else 1.0,
            float(probability_n.mean()),
        )

    def _judge(self, rollout: Rollout, measured: Measured, problem: Problem, turns: tuple[str, ...]) -> Judged:
        made = sum(rollout.made)
        if flaw := self._flaw(rollout, measured, self._tolerances, problem, turns):
            return Judged(*flaw, None, measured, made)
        try:
            reward = self._environment.score(problem, turns)
        except Exception as error:  # noqa: BLE001 - an environment that fails over a text says nothing about its author
            return Judged(None, f"it could not be scored here: {type(error).__name__}", None, measured, made)
        assert 0 <= reward <= 1, "an environment's score is from 0 to 1"
        return Judged(None, "", reward, measured, made, self._environment.is_exact(problem))

    def _flaw(
        self, rollout: Rollout, measured: Measured, tolerances: Tolerances, problem: Problem, turns: tuple[str, ...]
    ) -> tuple[Reason, str] | None:
        """Why a rollout of which this was measured is rejected with these tolerances; None where it is not."""
        far = [number for number, each in enumerate(measured.mismatches) if not tolerances.proofs.accept(each)]
        if far:
            return Reason.WRONG_COMPUTATION, _told(far[0], measured.mismatches[far[0]])
        if termination := self._termination(rollout, measured, tolerances, problem, turns):
            return Reason.BAD_TERMINATION, termination
        if measured.beyond > tolerances.share_beyond * sum(rollout.made):
            detail = f"{measured.beyond} of {sum(rollout.made)} tokens are not those that the sampling chooses"
            return Reason.BAD_SAMPLING, detail
        return None

    def _termination(
        self, rollout: Rollout, measured: Measured, tolerances: Tolerances, problem: Problem, turns: tuple[str, ...]
    ) -> str:
        """What is wrong with where the output ends; empty for nothing."""
        left = self._config.max_tokens - len(rollout.output)
        ended = rollout.made[-1] and rollout.output[-1] in self._tokenizer.ends
        if left and not (ended and self._is_over(problem, turns, left)):
            return f"the output stops after {len(rollout.output)} tokens without an end"
        if measured.end_probability < tolerances.end_probability:
            return (
                f"a turn ends with a token of probability {measured.end_probability:.2g}, which the sampling does not choose"
            )
        return ""

    def _is_over(self, problem: Problem, turns: tuple[str, ...], left: int) -> bool:
        """Whether the model has no further turn: nothing is replied, or no token is left for an answer to it."""
        reply = self._environment.reply(problem, turns)
        return reply is None or len(self._tokenizer.reply(reply)) >= left


def _length(rollout: Rollout) -> int:
    """Tokens that go through the model."""
    return len(rollout.prompt) + len(rollout.output) - 1


def _logits(model: Decoder, hidden_nh: Tensor) -> Tensor:
    """(N, vocabulary), fp32."""
    weight = model.output_weight
    return (hidden_nh.to(weight.dtype) @ weight.T).float()


def _told(number: int, mismatch: Mismatch) -> str:
    return (
        f"chunk {number} is not what the weights give: {mismatch.exponent_mismatches} exponents differ, "
        f"mantissas by {mismatch.mantissa_mean:.3g} on average (median {mismatch.mantissa_median:.3g})"
    )
