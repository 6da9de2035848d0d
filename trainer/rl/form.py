"""Checks of a rollout that need no model: its prompt, its bounds, its proofs' form, and its conversation."""

from __future__ import annotations

from enum import StrEnum

from kernels.toploc import MalformedProof, check_form, proof_sizes
from trainer.data.tokens import Tokenizer
from trainer.environments.conversation import read_turns
from trainer.environments.environment import Environment, Problem
from trainer.models.llama.config import ModelConfig
from trainer.rl.config import RlConfig
from trainer.rl.rollout import Rollout


class RejectionReason(StrEnum):
    """Reason why a rollout is rejected."""

    MALFORMED = "malformed"
    WRONG_PROMPT = "wrong prompt"
    WRONG_REPLY = "wrong reply"
    WRONG_COMPUTATION = "wrong computation"
    BAD_TERMINATION = "bad termination"
    BAD_SAMPLING = "bad sampling"


class RolloutRefused(ValueError):
    """Error for a rollout that no honest peer makes; the text says why."""

    def __init__(self, reason: RejectionReason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


class Forms:
    """Checks of the form of a run's rollouts."""

    def __init__(self, model: ModelConfig, environment: Environment, tokenizer: Tokenizer, config: RlConfig) -> None:
        self._model, self._environment, self._tokenizer, self._config = model, environment, tokenizer, config

    def read(self, rollout: Rollout) -> tuple[Problem, tuple[str, ...]]:
        """Check a rollout; return its problem and the model's turns.

        Raises `RolloutRefused`, and ValueError if there is no such problem.
        """
        problem = self._environment.problem(rollout.problem)
        if list(rollout.prompt) != self._tokenizer.prompt(problem.prompt):
            raise RolloutRefused(RejectionReason.WRONG_PROMPT, f"the prompt is not that of problem {rollout.problem}")
        self._check_bounds(rollout)
        try:
            return problem, read_turns(self._environment, problem, rollout.output, rollout.made, self._tokenizer)
        except ValueError as error:
            raise RolloutRefused(RejectionReason.WRONG_REPLY, str(error)) from error

    def proofs(self, rollout: Rollout) -> list[bytes]:
        """Return the proofs of a rollout's chunks, and any bytes left over as one more."""
        config, at, proofs = self._config, 0, []
        for size in proof_sizes(len(rollout.output), self._model.dim, config.top_k, config.chunk_tokens):
            proofs.append(rollout.proofs[at : at + size])
            at += size
        return [*proofs, rollout.proofs[at:]] if at < len(rollout.proofs) else proofs

    def _check_bounds(self, rollout: Rollout) -> None:
        config, count = self._config, len(rollout.output)
        if count > config.max_tokens:
            raise RolloutRefused(RejectionReason.MALFORMED, f"the output has {count} tokens, more than {config.max_tokens}")
        if max(rollout.output) >= self._model.vocab:
            raise RolloutRefused(
                RejectionReason.MALFORMED, f"the output has a token {max(rollout.output)}, which there is not"
            )
        try:
            check_form(self.proofs(rollout), count, self._model.dim, config.top_k, config.chunk_tokens)
        except MalformedProof as error:
            raise RolloutRefused(RejectionReason.MALFORMED, str(error)) from error
