"""Proofs of completions, made many at a time: one batch of interpolations costs little more than a single one.

A completion waits for its proofs until AT_ONCE completions wait, until nothing else runs, or for PATIENCE looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from trainer.generate.generator import Completion, Ended, Request

Prove = Callable[[Tensor], list[bytes]]
"""Function that proves hidden states, bf16 (tokens, dim), chunk by chunk: `kernels.toploc.prove`."""
ProveAll = Callable[[Sequence[Tensor]], list[list[bytes]]]
"""Function that does so for several sequences: `kernels.toploc.prove_all`."""

AT_ONCE = 16
"""Number of completions proven together."""
PATIENCE = 64
"""Most looks, one every few steps, for which a completion waits."""


class Proving:
    """Ended completions that wait for their proofs.  Without a proving function they are handed out at once, unproven."""

    def __init__(self, prove: Prove | None, prove_all: ProveAll | None) -> None:
        """Give at most one of the two functions."""
        assert prove is None or prove_all is None
        self._prove_all = _one_by_one(prove) if prove else prove_all
        self.held: list[Completion] = []
        self._looks = 0

    def hold(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...], hidden: Tensor) -> None:
        """Take an ended completion.  hidden: bf16 (output tokens, dim), which is copied."""
        ended = Ended.END_TOKEN if output[-1] in request.end_tokens else Ended.LENGTH
        self.held.append(Completion(request.id, output, made, ended, hidden=hidden.clone()))

    def due(self, idle: bool) -> list[Completion]:
        """Return the completions that are due, proven, in the order in which they ended.  idle: True if no request runs."""
        self._looks = self._looks + 1 if self.held else 0
        waits = self._prove_all and not idle and len(self.held) < AT_ONCE and self._looks <= PATIENCE
        if waits or not self.held:
            return []
        finished = self.held
        if self._prove_all:
            states = [completion.hidden for completion in finished if completion.hidden is not None]
            proofs = [b"".join(chunks) for chunks in self._prove_all(states)]
            finished = [replace(each, proofs=proof, hidden=None) for each, proof in zip(finished, proofs, strict=True)]
        self.held, self._looks = [], 0
        return finished


def _one_by_one(prove: Prove) -> ProveAll:
    return lambda sequences: [prove(hidden) for hidden in sequences]
