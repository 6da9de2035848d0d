"""Verification of rollouts: the checks of a validator, which any peer with the weights can repeat.

The checks come in this order, the cheap ones first; the first that fails is the reason for rejection:

* form: the assigned problems and copies, each once; lengths, tokens and proofs within bounds; the prompt is the problem's;
* conversation: the replies in the output are the environment's;
* computation: prompt and output go through the reference model at once, and the hidden states match the proofs (TOPLOC);
* termination: the output ends when the conversation is over, or at the length limit; an end token that the noise did not
  choose (below) was at least not unlikely.  An end token that it did choose may be unlikely: that happens to honest peers;
* sampling: each token is the one that the key's noise chooses (`trainer.generate.sampling`), within a tolerance.  So a
  smaller model's text is found even if the proofs are the right model's, and so is a copy of another peer's rollout.

The reward is computed here.  The consequences of a verdict are decided elsewhere.

The tolerances are in `trainer.rl.tolerances`.  The author of a rollout knows them, and can place its proofs or tokens at the
limit, so that they pass on one device and fail on another.  So each verdict has a flag `sure`, true if every honest device
reaches the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.toploc import Mismatch, compare_all, proof_sizes
from trainer.data.tokens import Tokenizer
from trainer.environments.environment import Environment, Problem
from trainer.generate.sampling import near_ties, probability, shortfall, stream_key
from trainer.models.llama.model import Decoder
from trainer.rl.config import RlConfig
from trainer.rl.form import Forms, RejectionReason, RolloutRefused
from trainer.rl.rollout import Rollout
from trainer.rl.tolerances import DEVICES_APART, BatchBounds, Choices, Measured, Tolerances

CPU_TOKENS = 2048
"""Tokens that a CPU computes at once: a layer's values for more would not fit its caches."""
CHOICES = 1 << 22
"""Logits that are processed together, each with some 40 bytes of noise and sums."""


@dataclass(frozen=True)
class Assignment:
    """Contents required of a batch: `copies` completions of each problem, by `peer` with version `version` of the model."""

    run: bytes
    version: int
    peer: str
    problems: tuple[int, ...]
    copies: int


@dataclass(frozen=True)
class Judged:
    """Verdict on a rollout.  reason: None unless it is rejected.  detail: a sentence, empty for an accepted rollout.

    reward: in [0, 1]; None if the rollout is rejected, or if this computer could not score it (then reason is None as well).
    measured: None if the form was wrong.  tokens: number that the model made; 0 if the form was wrong.  exact: True if every
    computer gives this reward.  sure: True if all honest devices accept this rollout, or all reject it.
    """

    reason: RejectionReason | None
    detail: str = ""
    reward: float | None = None
    measured: Measured | None = None
    tokens: int = 0
    exact: bool = False
    sure: bool = True


class Verifier:
    """Verifier of rollouts of one version, with the run's tolerances.  model: with its weights, in any precision."""

    def __init__(self, model: Decoder, environment: Environment, tokenizer: Tokenizer, config: RlConfig) -> None:
        self._model, self._environment, self._tokenizer = model, environment, tokenizer
        self._config, self._tolerances = config, Tolerances.of(config)
        self._forms = Forms(model.config, environment, tokenizer, config)

    def verify(
        self, assignment: Assignment, rollouts: Sequence[Rollout], between: Callable[[], None] = lambda: None
    ) -> list[Judged]:
        """Return a verdict for each given rollout, in order; assigned rollouts that are missing get none.

        between: called before each pass through the model; may wait, or raise.
        """
        verdicts: list[Judged | None] = [None] * len(rollouts)
        turns: dict[int, tuple[Problem, tuple[str, ...]]] = {}
        seen: set[tuple[int, int]] = set()
        for index, rollout in enumerate(rollouts):
            try:
                turns[index] = self._check_form(assignment, rollout, seen)
            except RolloutRefused as refusal:
                verdicts[index] = Judged(refusal.reason, refusal.detail)
        own, narrow, wide = (self._bounds(1 + sign * DEVICES_APART) for sign in (0, -1, 1))
        for indices in self._micro_batches(rollouts, list(turns)):
            between()
            for index, found in zip(indices, self._measure(assignment, [rollouts[each] for each in indices]), strict=True):
                rollout = rollouts[index]
                stop = self._stop(rollout, *turns[index])
                judged = self._judge(rollout, self._flaw(own, rollout, *found, stop), own.measured(*found), *turns[index])
                flaws = [self._flaw(each, rollout, *found, stop) for each in (narrow, wide)]
                other = flaws[0] if judged.reason is None else flaws[1]
                verdicts[index] = replace(judged, sure=(other is None) is (judged.reason is None))
        return [verdict for verdict in verdicts if verdict is not None]

    def _check_form(
        self, assignment: Assignment, rollout: Rollout, seen: set[tuple[int, int]]
    ) -> tuple[Problem, tuple[str, ...]]:
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
        return self._forms.read(rollout)

    # -- computation with the model -----------------------------------------------------------------------------------

    def _micro_batches(self, rollouts: Sequence[Rollout], indices: list[int]) -> list[list[int]]:
        """Group rollouts of similar length, as many in each group as fit into a pass."""
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
    def _measure(self, assignment: Assignment, rollouts: Sequence[Rollout]) -> list[tuple[list[Mismatch], Choices]]:
        """Measure rollouts in one pass over their prompts and outputs, using the rows that predict output tokens."""
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
        """Return the `Choices` of each rollout: figures of the tokens that the model made.

        own: hidden states (tokens of the output, dim) of each.  The rows of all rollouts are processed together, a limited
        number at a time, as each needs memory for every token of the vocabulary.
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
        short, likely, dense = [], [], []
        for hidden_nh, chosen_n, key_n, position_n in zip(*parts, strict=True):
            logits_nv = _logits(model, hidden_nh)
            short.append(shortfall(logits_nv, chosen_n, key_n, position_n, temperature).cpu())
            likely.append(probability(logits_nv, chosen_n, temperature).cpu())
            dense.append(near_ties(logits_nv, temperature).cpu())
        counts = [sum(each.made) for each in rollouts]
        by_rollout = (
            torch.split(each, counts) for each in (tokens_n, torch.cat(short), torch.cat(likely), torch.cat(dense))
        )
        return [Choices(*each) for each in zip(*by_rollout, strict=True)]

    # -- the verdict --------------------------------------------------------------------------------------------------

    def _bounds(self, factor: float) -> BatchBounds:
        """Return the run's tolerances, widened by a factor, for the rollouts of a batch."""
        whole = min(self._config.top_k, self._config.chunk_tokens * self._model.config.dim)
        return BatchBounds(self._tolerances.times(factor), self._tokenizer.ends, whole)

    def _flaw(
        self, bounds: BatchBounds, rollout: Rollout, mismatches: Sequence[Mismatch], choices: Choices, stop: str
    ) -> tuple[RejectionReason, str] | None:
        """Return why a rollout is rejected within these bounds, or None."""
        config = self._config
        sizes = proof_sizes(len(rollout.output), self._model.config.dim, config.top_k, config.chunk_tokens)
        values = [size // 2 - 1 for size in sizes]
        return bounds.flaw(bounds.measured(mismatches, choices), choices, values, stop)

    def _judge(
        self,
        rollout: Rollout,
        flaw: tuple[RejectionReason, str] | None,
        measured: Measured,
        problem: Problem,
        turns: tuple[str, ...],
    ) -> Judged:
        made = sum(rollout.made)
        if flaw is not None:
            return Judged(*flaw, None, measured, made)
        try:
            reward = self._environment.score(problem, turns)
        except Exception as error:  # noqa: BLE001 - an environment that fails over a text says nothing about its author
            return Judged(None, f"it could not be scored here: {type(error).__name__}", None, measured, made)
        assert 0 <= reward <= 1, "an environment's score is from 0 to 1"
        return Judged(None, "", reward, measured, made, self._environment.is_exact(problem))

    def _stop(self, rollout: Rollout, problem: Problem, turns: tuple[str, ...]) -> str:
        """Return the flaw in the place where the output stops, as a sentence; empty for none."""
        left = self._config.max_tokens - len(rollout.output)
        ended = rollout.made[-1] and rollout.output[-1] in self._tokenizer.ends
        if left and not (ended and self._is_over(problem, turns, left)):
            return f"the output stops after {len(rollout.output)} tokens without an end"
        return ""

    def _is_over(self, problem: Problem, turns: tuple[str, ...], left: int) -> bool:
        """Return True if the model has no further turn: there is no reply, or no room for a token after it."""
        reply = self._environment.reply(problem, turns)
        return reply is None or len(self._tokenizer.reply(reply)) >= left


def _length(rollout: Rollout) -> int:
    """Return the number of tokens that go through the model."""
    return len(rollout.prompt) + len(rollout.output) - 1


def _logits(model: Decoder, hidden_nh: Tensor) -> Tensor:
    """Return logits (N, vocabulary), fp32."""
    weight = model.output_weight
    return (hidden_nh.to(weight.dtype) @ weight.T).float()
