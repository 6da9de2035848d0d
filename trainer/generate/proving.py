"""Proofs of completions, many at a time: one batch of interpolations costs little more than a single one.

A completion waits for its proofs until there are AT_ONCE, until nothing else runs, or until PATIENCE looks passed it over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from trainer.generate.generator import Completion, Ended, Request

Prove = Callable[[Tensor], list[bytes]]
"""Proofs of hidden states, bf16 (tokens, dim), a chunk each: `kernels.toploc.prove`."""
ProveAll = Callable[[Sequence[Tensor]], list[list[bytes]]]
"""The same for several sequences: `kernels.toploc.prove_all`."""

AT_ONCE = 16
"""Completions that are proven together."""
PATIENCE = 64
"""How often a completion is passed over at most; it is looked at after every few steps."""


class Proving:
    """Completions that have ended and are not handed out yet.  Where nobody proves, they are handed out as they are."""

    def __init__(self, prove: Prove | None, prove_all: ProveAll | None) -> None:
        """At most one of them is given."""
        assert prove is None or prove_all is None
        self._prove_all = _one_by_one(prove) if prove else prove_all
        self.held: list[Completion] = []
        self._looks = 0

    def hold(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...], hidden: Tensor) -> None:
        """Take what came of a request.  hidden: bf16 (output tokens, dim), of which a copy is kept."""
        ended = Ended.END_TOKEN if output[-1] in request.end_tokens else Ended.LENGTH
        self.held.append(Completion(request.id, output, made, ended, hidden=hidden.clone()))

    def due(self, idle: bool) -> list[Completion]:
        """What is to be handed out now, proven, in the order in which it ended.  idle: whether nothing runs any more."""
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
