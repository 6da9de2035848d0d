"""Verification of rollouts: the checks of a validator, which any peer with the weights can repeat.

The checks run in this order, cheapest first. The first check that fails gives the reason for rejection:

* form: the rollout answers an assigned problem and copy, and each copy occurs once; lengths, tokens and proofs are within
  bounds; the prompt is the problem's prompt;
* conversation: the replies in the output are the environment's replies. Replies that come from a program of the model are
  checked last, so that nobody but the model chooses the programs. A program may be slow or draw random numbers, so another
  reply proves nothing: the rollout is then neither accepted nor rejected;
* computation: prompt and output go through the reference model in one pass, and the hidden states match the proofs (TOPLOC);
* termination: the output ends when the conversation is over, or at the length limit. An end token that the noise did not
  choose (see sampling) must have a minimum probability. An end token that the noise did choose may be unlikely, because
  honest peers also draw such tokens;
* sampling: each token is the one that the key's noise chooses (`trainer.generate.sampling`), within a tolerance. This check
  finds a smaller model's text even if the proofs come from the right model, and a copy of another peer's rollout.

The reward is computed here. Other modules decide the consequences of a verdict.

The tolerances are `Tolerances`. A rollout's author knows them, and can place its proofs or tokens at the limit, so that they
pass on one device and fail on another. Each verdict therefore has a flag `sure`, which is true if every honest device
reaches the same verdict.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self

import torch
from torch import Tensor

from kernels.toploc import MalformedProof, Mismatch, Thresholds, check_form, compare_all, proof_sizes
from protocol.formats.bets import Growth
from protocol.formats.model import ModelConfig
from protocol.formats.rl import Precision, RlConfig
from trainer.config import CHOICES
from trainer.data.tokens import Tokenizer
from trainer.device import is_gpu
from trainer.environments.environment import (
    Environment,
    Problem,
    ReplyDiffers,
    ReplyUnavailable,
    read_turns,
    reply_tokens,
)
from trainer.generate.sampling import near_ties, probability, shortfall, stream_key
from trainer.models.llama.model import Decoder
from trainer.rl.betting import HonestBounds
from trainer.rl.rollout import Rollout

# ------------------------------------------------------------------------------------------------------------------------
# Checks of a rollout that need no model: its prompt, its bounds, its proofs' form, and its conversation.


class RejectionReason(StrEnum):
    """Reason why a rollout is rejected."""

    MALFORMED = "malformed"
    WRONG_PROMPT = "wrong prompt"
    WRONG_REPLY = "wrong reply"
    WRONG_COMPUTATION = "wrong computation"
    BAD_TERMINATION = "bad termination"
    BAD_SAMPLING = "bad sampling"


class RolloutRefused(ValueError):
    """Error for a rollout that no honest peer makes; the text gives the reason."""

    def __init__(self, reason: RejectionReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class FormChecker:
    """Checks of the form of a run's rollouts."""

    def __init__(self, model: ModelConfig, environment: Environment, tokenizer: Tokenizer, config: RlConfig) -> None:
        self._model, self._environment, self._tokenizer, self._config = model, environment, tokenizer, config

    def read(self, rollout: Rollout) -> tuple[Problem, tuple[str, ...]]:
        """Check a rollout; return its problem and the model's turns.

        Raises `RolloutRefused`, ReplyUnavailable if only the environment's replies could not be checked here, and ValueError
        if the problem does not exist.
        """
        problem = self.problem(rollout)
        return problem, self.turns(problem, rollout)

    def problem(self, rollout: Rollout) -> Problem:
        """Return a rollout's problem, after the checks that need no reply of the environment.  Raises as `read` does."""
        problem = self._environment.problem(rollout.problem)
        if list(rollout.prompt) != self._tokenizer.prompt(problem.prompt):
            raise RolloutRefused(RejectionReason.WRONG_PROMPT, f"the prompt is not the prompt of problem {rollout.problem}")
        self._check_bounds(rollout)
        return problem

    def turns(self, problem: Problem, rollout: Rollout) -> tuple[str, ...]:
        """Return the model's turns, after a check of the environment's replies.  Raises as `read` does."""
        written, limit = (rollout.output, rollout.made), self._config.max_turn_tokens
        try:
            return read_turns(self._environment, problem, *written, self._tokenizer, limit)
        except ReplyDiffers as error:
            if self._environment.has_exact_replies(problem):
                raise RolloutRefused(RejectionReason.WRONG_REPLY, str(error)) from error
            raise ReplyUnavailable("a program of the model gives another reply here") from error
        except ValueError as error:
            raise RolloutRefused(RejectionReason.WRONG_REPLY, str(error)) from error

    def proofs(self, rollout: Rollout) -> list[bytes]:
        """Return the proofs of a rollout's chunks; any leftover bytes form one more entry."""
        config, at, proofs = self._config, 0, []
        for size in proof_sizes(len(rollout.output), self._model.dim, config.top_k, config.chunk_tokens):
            proofs.append(rollout.proofs[at : at + size])
            at += size
        return [*proofs, rollout.proofs[at:]] if at < len(rollout.proofs) else proofs

    def _check_bounds(self, rollout: Rollout) -> None:
        config, count = self._config, len(rollout.output)
        if count > config.max_tokens:
            raise RolloutRefused(RejectionReason.MALFORMED, f"the output has {count} tokens, more than {config.max_tokens}")
        if not rollout.made[0]:
            raise RolloutRefused(RejectionReason.WRONG_REPLY, "the output does not begin with a turn of the model")
        if max(rollout.output) >= self._model.vocab:
            raise RolloutRefused(
                RejectionReason.MALFORMED, f"the output has a token {max(rollout.output)}, which does not exist"
            )
        try:
            check_form(self.proofs(rollout), count, self._model.dim, config.top_k, config.chunk_tokens)
        except MalformedProof as error:
            raise RolloutRefused(RejectionReason.MALFORMED, str(error)) from error


# ------------------------------------------------------------------------------------------------------------------------
# Tolerances of verification: the largest differences between an honest peer's device and ours.
#
# A cheating peer uses up a known tolerance, so no tolerance may be a share of the output: a long output would have room for
# a false answer. Three rules limit the shortfall of tokens from the tokens that the noise chooses
# (`trainer.generate.sampling.shortfall`):
#
# * no token falls short by more than `ceiling`;
# * at most `MOST_BEYOND` tokens of a rollout fall short by more than `shortfall`;
# * over any stretch of a batch's tokens the shortfalls sum to at most `SLACK` + `RATE_FACTOR` x rate x the density of
#   near-ties. Rounding exchanges two tokens only if they are nearly tied, which has the density 1 - sum p^2; the expected
#   shortfall is then a constant, `rate`, times this density. So while the model is certain, length adds no allowance.
#
# The third rule is a one-sided CUSUM (Page 1954): later tokens cannot use the allowance that earlier honest tokens left
# unused. The sum continues from one rollout of a batch to the next, so the slack is granted once per batch, not once per
# rollout.


MOST_BEYOND = 2
"""Maximum number of tokens, in a rollout of any length, that may fall short by more than the run's `max_shortfall`."""
SLACK = 0.5
"""Largest sum of shortfalls over any stretch of tokens, beyond the part that rounding explains."""
RATE_FACTOR = 3.0
"""Multiple of the mean honest shortfall that a stretch of any length may have."""
DEVICES_APART = 2 / 3
"""Share of a tolerance by which two honest devices may differ when they measure the same rollout. The share follows from the
margin of proposed tolerances (`benchmarks.calibration.MARGIN`)."""


@dataclass(frozen=True)
class Choices:
    """Measurements of the tokens of a rollout that the model made, on the host. Each field is a tensor (n).

    tokens: int64. shortfalls, probabilities: one for each token. densities: density of near-ties, 1 - sum p^2, at each
    token.
    """

    tokens: Tensor
    shortfalls: Tensor
    probabilities: Tensor
    densities: Tensor


@dataclass(frozen=True)
class Tolerances:
    """Largest differences that an honest peer's device may cause.

    shortfall, ceiling, rate: see the comment above; in units of logits over temperature.
    end_probability: minimum probability of an end token that falls short by more than `shortfall`.
    """

    proofs: Thresholds
    shortfall: float
    ceiling: float
    rate: float
    end_probability: float
    slack: float = SLACK
    rate_factor: float = RATE_FACTOR

    @classmethod
    def of(cls, config: RlConfig) -> Self:
        """Return the tolerances of a run."""
        return cls(
            Thresholds(config.max_exponent_mismatches, config.max_mantissa_mean, config.max_mantissa_median),
            config.max_shortfall,
            config.shortfall_ceiling,
            config.shortfall_rate,
            config.min_end_probability,
        )

    def times(self, factor: float) -> Self:
        """Return tolerances for a device whose differences are `factor` times as large.

        The multiple of the honest rate changes only half as much: the rate is a mean over many tokens, and devices differ
        less in this mean than in one token.
        """
        proofs = self.proofs
        return replace(
            self,
            proofs=Thresholds(
                int(factor * proofs.exponent_mismatches), factor * proofs.mantissa_mean, factor * proofs.mantissa_median
            ),
            shortfall=factor * self.shortfall,
            ceiling=factor * self.ceiling,
            slack=factor * self.slack,
            rate_factor=(1 + factor) / 2 * self.rate_factor,
            end_probability=min(1.0, self.end_probability / factor),
        )

    def fields(self) -> dict[str, Any]:
        """Return these tolerances as fields of a run's `[rl]`."""
        return {
            "max_exponent_mismatches": self.proofs.exponent_mismatches,
            "max_mantissa_mean": self.proofs.mantissa_mean,
            "max_mantissa_median": self.proofs.mantissa_median,
            "max_shortfall": self.shortfall,
            "shortfall_ceiling": self.ceiling,
            "shortfall_rate": self.rate,
        }


@dataclass(frozen=True)
class Measured:
    """Measurements of a rollout, also for calibration.

    mismatches: one for each chunk of tokens. shortfall: the largest shortfall. beyond: number of tokens beyond the
    tolerance.  end_probability: the smallest probability of an end token beyond the tolerance; 1 if there is none. total,
    density: sum of the shortfalls, and sum of 1 - sum p^2. stretch: the largest sum over a stretch of this rollout alone,
    minus the allowance for its densities.
    """

    mismatches: tuple[Mismatch, ...]
    shortfall: float
    beyond: int
    end_probability: float
    total: float = 0.0
    density: float = 0.0
    stretch: float = 0.0


class BatchBounds:
    """Tolerances applied to the rollouts of one batch, one after the other."""

    def __init__(self, tolerances: Tolerances, ends: Sequence[int], chunk_values: int) -> None:
        """Begin a batch.

        ends: tokens that end a turn.  chunk_values: number of values that a whole chunk's proof commits to.
        """
        self.tolerances, self._ends, self._chunk_values = tolerances, torch.tensor(ends), chunk_values
        self._level = 0.0
        """The CUSUM after the accepted rollouts so far."""

    def measured(self, mismatches: Sequence[Mismatch], choices: Choices) -> Measured:
        """Return the measurements that these tolerances limit."""
        short_n, likely_n = choices.shortfalls, choices.probabilities
        beyond_n = ~(short_n <= self.tolerances.shortfall)
        ends_n = likely_n[beyond_n & torch.isin(choices.tokens, self._ends)]
        return Measured(
            tuple(mismatches),
            float(short_n.max()),
            int(beyond_n.sum()),
            float(ends_n.min()) if len(ends_n) else 1.0,
            float(short_n.double().sum()),
            float(choices.densities.double().sum()),
            self._stretch(choices, 0.0)[0],
        )

    def flaw(
        self, measured: Measured, choices: Choices, values: Sequence[int], stop: str
    ) -> tuple[RejectionReason, str] | None:
        """Return the reason to reject the batch's next rollout, or None. An accepted rollout counts in later CUSUMs.

        values: number of values that each chunk's proof commits to.  stop: the flaw in the output's end; empty if none.
        """
        for number, (mismatch, count) in enumerate(zip(measured.mismatches, values, strict=True)):
            proofs = self.tolerances.proofs
            if count < self._chunk_values:  # in a short chunk, fewer values may differ
                most = math.ceil(proofs.exponent_mismatches * count / self._chunk_values)
                proofs = replace(proofs, exponent_mismatches=most)
            if not proofs.accept(mismatch):
                return RejectionReason.WRONG_COMPUTATION, (
                    f"chunk {number} does not match the weights: {mismatch.exponent_mismatches} exponents differ, "
                    f"mantissas by {mismatch.mantissa_mean:.3g} on average (median {mismatch.mantissa_median:.3g})"
                )
        if stop:
            return RejectionReason.BAD_TERMINATION, stop
        if not measured.end_probability >= self.tolerances.end_probability:
            detail = f"a turn ends with a token of probability {measured.end_probability:.2g}"
            return RejectionReason.BAD_TERMINATION, f"{detail}, which the sampling does not choose"
        worst, level = self._stretch(choices, self._level)
        if detail := self._sampling(measured, len(choices.tokens), worst):
            return RejectionReason.BAD_SAMPLING, detail
        self._level = level
        return None

    def _sampling(self, measured: Measured, count: int, worst: float) -> str:
        """Return the flaw in the choice of the tokens, as a sentence; empty if there is none."""
        if not measured.shortfall <= self.tolerances.ceiling:
            return f"a token falls short of the one that the sampling chooses by {measured.shortfall:.3g}"
        if measured.beyond > MOST_BEYOND:
            return f"{measured.beyond} of {count} tokens are not those that the sampling chooses"
        if not worst <= self.tolerances.slack:
            return f"tokens fall short of those that the sampling chooses by {worst:.3g} more than rounding explains"
        return ""

    def _stretch(self, choices: Choices, level: float) -> tuple[float, float]:
        """Return the largest and the last value of the CUSUM over these tokens, starting from `level`."""
        rate = self.tolerances.rate_factor * self.tolerances.rate
        sums_n = (choices.shortfalls.double() - rate * choices.densities.double()).cumsum(0)
        lowest_n = sums_n.cummin(0).values.clamp(max=-level)
        above_n = sums_n - lowest_n
        return float(above_n.max()), float(above_n[-1])


# ------------------------------------------------------------------------------------------------------------------------


CPU_TOKENS = 2048
"""Tokens that a CPU computes at once; the values of a layer for more tokens would not fit in its caches."""
MAX_DETAIL = 200


@dataclass(frozen=True)
class Assignment:
    """Contents required of a batch: `copies` completions of each problem, by `peer` with version `version` of the model.

    number: number of the batch among the peer's batches of this version.  precision: stated precision of the peer's matrix
    products.
    """

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int
    number: int = 0
    precision: Precision = Precision.FLOAT32

    def key(self, problem: int, copy: int) -> int:
        """Return the key of the noise of one completion (`trainer.generate.sampling.stream_key`)."""
        return stream_key(self.run, self.version, self.peer, self.number, problem, copy)


@dataclass(frozen=True)
class Judged:
    """Verdict on a rollout. reason: None unless it is rejected. detail: a sentence; empty for an accepted rollout.

    reward: in [0, 1]; None if the rollout is rejected, or if this computer could not score it (then reason is also None).
    measured: None if the form was wrong. tokens: number of tokens that the model made; 0 if the form was wrong. exact: True
    if every computer computes this reward. sure: True if all honest devices accept this rollout, or all reject it. growth:
    growth of the bets against the maker's honesty; empty if the form was wrong.
    """

    reason: RejectionReason | None
    detail: str = ""
    reward: float | None = None
    measured: Measured | None = None
    tokens: int = 0
    exact: bool = False
    sure: bool = True
    growth: Growth = ()

    def fields(self) -> dict[str, Any]:
        """Return the verdict as fields for the peer, with the beginning of the detail."""
        return {
            "reason": self.reason.value if self.reason else "",
            "detail": self.detail[:MAX_DETAIL],
            "reward": self.reward,
            "tokens": self.tokens,
            "exact": self.exact,
            "sure": self.sure,
            "growth": self.growth,
        }


@dataclass(frozen=True)
class Reading:
    """Conversation of a rollout whose form is right.

    turns: empty until the replies are checked.  stop: the flaw in its end, as a sentence; empty if there is none.  unread:
    the reason why the environment's replies could not be checked here, as a sentence; empty if they could.
    """

    problem: Problem
    turns: tuple[str, ...] = ()
    stop: str = ""
    unread: str = ""


class Verifier:
    """Verifier of rollouts of one version, with the run's tolerances.

    model: the model with the version's weights, in any precision.  precision: of its matrix products.
    """

    def __init__(
        self,
        model: Decoder,
        environment: Environment,
        tokenizer: Tokenizer,
        config: RlConfig,
        precision: Precision = Precision.FLOAT32,
    ) -> None:
        self._model, self._environment, self._tokenizer = model, environment, tokenizer
        self._config, self._tolerances, self._precision = config, Tolerances.of(config), precision
        self._forms = FormChecker(model.config, environment, tokenizer, config)

    def verify(
        self, assignment: Assignment, rollouts: Sequence[Rollout], between: Callable[[], None] = lambda: None
    ) -> list[Judged]:
        """Return a verdict for each given rollout, in order; missing rollouts get no verdict.

        between: called before each pass through the model; may wait, or raise.
        """
        verdicts: list[Judged | None] = [None] * len(rollouts)
        readings: dict[int, Reading] = {}
        seen: set[tuple[int, int]] = set()
        for index, rollout in enumerate(rollouts):
            try:
                problem = self._check_form(assignment, rollout, seen)
                is_exact = self._environment.has_exact_replies(problem)
                readings[index] = self._read(problem, rollout) if is_exact else Reading(problem)
            except RolloutRefused as refusal:
                verdicts[index] = Judged(refusal.reason, refusal.detail)
        whole = min(self._config.top_k, self._config.chunk_tokens * self._model.config.dim)
        own, narrow, wide = (
            BatchBounds(self._tolerances.times(factor), self._tokenizer.ends, whole)
            for factor in (1, 1 - DEVICES_APART, 1 + DEVICES_APART)
        )
        honest = HonestBounds.of(self._config, same_precision=assignment.precision is self._precision)
        for indices in self._micro_batches(rollouts, list(readings)):
            between()
            for index, found in zip(indices, self._measure(assignment, [rollouts[each] for each in indices]), strict=True):
                rollout = rollouts[index]
                reading, is_refused = readings[index], False
                flaw = self._flaw(own, rollout, *found, reading.stop)
                if flaw is None and not self._environment.has_exact_replies(reading.problem):
                    try:
                        reading = self._read(reading.problem, rollout)
                        flaw = (RejectionReason.BAD_TERMINATION, reading.stop) if reading.stop else None
                    except RolloutRefused as refusal:
                        flaw, is_refused = (refusal.reason, refusal.detail), True
                judged = self._judge(rollout, flaw, own.measured(*found), reading)
                flaws = [self._flaw(each, rollout, *found, reading.stop) for each in (narrow, wide)]
                other = flaws[0] if judged.reason is None else flaws[1]
                mismatches, choices = found
                mantissas = [each.mantissa_mean for each in mismatches]
                growth = honest.growth(choices.shortfalls, choices.densities, mantissas)
                sure = is_refused or (other is None) is (judged.reason is None)
                verdicts[index] = replace(judged, sure=sure, growth=growth)
        return [verdict for verdict in verdicts if verdict is not None]

    def _check_form(self, assignment: Assignment, rollout: Rollout, seen: set[tuple[int, int]]) -> Problem:
        place = (rollout.problem, rollout.copy)
        if rollout.problem not in assignment.problems or rollout.copy >= assignment.copies:
            raise RolloutRefused(
                RejectionReason.WRONG_PROMPT,
                f"copy {rollout.copy} of problem {rollout.problem} was not assigned to this peer",
            )
        if place in seen:
            raise RolloutRefused(
                RejectionReason.MALFORMED, f"copy {rollout.copy} of problem {rollout.problem} is there twice"
            )
        seen.add(place)
        return self._forms.problem(rollout)

    def _read(self, problem: Problem, rollout: Rollout) -> Reading:
        """Return the reading of a rollout's conversation.  Raises RolloutRefused."""
        try:
            turns = self._forms.turns(problem, rollout)
            return Reading(problem, turns, self._stop(rollout, problem, turns))
        except ReplyUnavailable as failure:
            return Reading(problem, unread=str(failure))

    # -- computation with the model -----------------------------------------------------------------------------------

    def _micro_batches(self, rollouts: Sequence[Rollout], indices: list[int]) -> list[list[int]]:
        """Group rollouts of similar length; each group holds as many as fit into a pass."""
        most = self._config.micro_batch_tokens
        if not is_gpu(self._model.flat.device):
            most = min(most, CPU_TOKENS)
        indices = sorted(indices, key=lambda index: _length(rollouts[index]))
        batches: list[list[int]] = []
        for index in indices:
            if not batches or (len(batches[-1]) + 1) * _length(rollouts[index]) > most:
                batches.append([])
            batches[-1].append(index)
        return batches

    @torch.no_grad()
    def _measure(self, assignment: Assignment, rollouts: Sequence[Rollout]) -> list[tuple[list[Mismatch], Choices]]:
        """Measure rollouts in one pass over their prompts and outputs, using only the rows that predict output tokens."""
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

    def _choices(self, assignment: Assignment, rollouts: Sequence[Rollout], own: Sequence[Tensor]) -> list[Choices]:
        """Return the `Choices` of each rollout: measurements of the tokens that the model made.

        own: hidden states (tokens of the output, dim) of each rollout. The rows of all rollouts are processed together, a
        limited number at a time, because each row needs memory for every token of the vocabulary.
        """
        model, temperature = self._model, self._config.temperature
        made_n = torch.tensor([made for each in rollouts for made in each.made])
        tokens_n = torch.tensor([token for each in rollouts for token in each.output])[made_n]
        positions = [torch.arange(len(each.prompt), _length(each) + 1) for each in rollouts]
        keys = [assignment.key(each.problem, each.copy) for each in rollouts]
        keys_n = torch.tensor(keys).repeat_interleave(torch.tensor([len(each.output) for each in rollouts]))[made_n]
        device, rows = model.flat.device, max(1, CHOICES // model.config.vocab)
        rows_of_all = (torch.cat(list(own))[made_n.to(device)], tokens_n, keys_n, torch.cat(positions)[made_n])
        parts = [torch.split(each.to(device), rows) for each in rows_of_all]
        short, likely, dense = [], [], []
        for hidden_nh, chosen_n, key_n, position_n in zip(*parts, strict=True):
            weight = model.output_weight
            logits_nv = (hidden_nh.to(weight.dtype) @ weight.T).float()
            short.append(shortfall(logits_nv, chosen_n, key_n, position_n, temperature).cpu())
            likely.append(probability(logits_nv, chosen_n, temperature).cpu())
            dense.append(near_ties(logits_nv, temperature).cpu())
        counts = [sum(each.made) for each in rollouts]
        by_rollout = (
            torch.split(each, counts) for each in (tokens_n, torch.cat(short), torch.cat(likely), torch.cat(dense))
        )
        return [Choices(*each) for each in zip(*by_rollout, strict=True)]

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _flaw(
        self, bounds: BatchBounds, rollout: Rollout, mismatches: Sequence[Mismatch], choices: Choices, stop: str
    ) -> tuple[RejectionReason, str] | None:
        """Return the reason to reject a rollout under these bounds, or None."""
        config = self._config
        sizes = proof_sizes(len(rollout.output), self._model.config.dim, config.top_k, config.chunk_tokens)
        values = [size // 2 - 1 for size in sizes]
        return bounds.flaw(bounds.measured(mismatches, choices), choices, values, stop)

    def _judge(
        self,
        rollout: Rollout,
        flaw: tuple[RejectionReason, str] | None,
        measured: Measured,
        reading: Reading,
    ) -> Judged:
        made, problem = sum(rollout.made), reading.problem
        if flaw is not None:
            return Judged(*flaw, None, measured, made)
        if reading.unread:
            return Judged(None, reading.unread, None, measured, made)
        try:
            reward = self._environment.score(problem, reading.turns)
        except Exception as error:  # noqa: BLE001 - a failing environment proves nothing about the author
            return Judged(None, f"it could not be scored here: {type(error).__name__}", None, measured, made)
        assert 0 <= reward <= 1, "an environment's score is from 0 to 1"
        return Judged(None, "", reward, measured, made, self._environment.is_exact(problem))

    def _stop(self, rollout: Rollout, problem: Problem, turns: tuple[str, ...]) -> str:
        """Return the flaw in the end of the output, as a sentence; empty if there is none.

        The output may stop at a limit, or at the end of a turn if no reply follows, or if the reply leaves no room for a
        token.  Raises ReplyUnavailable.
        """
        left = self._config.max_tokens - len(rollout.output)
        if not left:
            return ""
        if not rollout.made[-1] or rollout.output[-1] not in self._tokenizer.ends:
            if self._config.max_turn_tokens and self._last_turn(rollout) == self._config.max_turn_tokens:
                return ""
        else:
            reply = reply_tokens(self._environment, problem, turns, self._tokenizer)
            if reply is None or len(reply) >= left:
                return ""
            if not self._environment.has_exact_replies(problem):  # it may have left no room where the rollout was made
                raise ReplyUnavailable("a program of the model gives a reply here that leaves room to go on")
        return f"the output stops after {len(rollout.output)} tokens without an end"

    def _last_turn(self, rollout: Rollout) -> int:
        """Return the number of tokens of a last turn without an end token."""
        pairs = zip(reversed(rollout.output), reversed(rollout.made), strict=True)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[1] and pair[0] not in self._tokenizer.ends, pairs))


def _length(rollout: Rollout) -> int:
    """Return the number of tokens that go through the model."""
    return len(rollout.prompt) + len(rollout.output) - 1
