"""Built-in generator: decodes many sequences at a time, each in a slot.

A waiting request gets a slot as soon as one is free, its prompt is computed in blocks between the steps of the others
(chunked prefill), and its tokens are chosen by the noise of its own key: neither the batch nor the order of requests changes
the output, beyond the rounding of sums.  When no request waits, the remaining sequences move to the lowest slots, so that a
step computes no more rows than there are sequences.

Multi-turn: at the end of the model's turn, `reply` may continue the sequence with the environment's tokens; these are part
of the output, marked as not made, and the model continues in the same slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.generate.batch import Batch, Piece
from trainer.generate.generator import Completion, Ended, Generator, Line, Reply, Request, complete, continuation
from trainer.generate.proving import Prove, ProveAll, Proving
from trainer.models.llama.config import ModelConfig

__all__ = ["Completion", "Ended", "Engine", "Generator", "Reply", "Request", "complete"]

PREFILL_TOKENS = 1024
"""Known tokens computed between two steps of the running sequences; at least one of each sequence that has some."""
GPU_STEPS = 8
"""Steps on a GPU between two checks for ended turns.  Meanwhile the host only queues work; a CPU is checked after each."""


@dataclass
class _Sequence:
    """Request in a slot.  tokens: number of known tokens.  fed: number of computed ones.  Both as far as the host knows.

    unmade: spans of the output that are the environment's.
    """

    request: Request
    tokens: int
    fed: int = 0
    running: bool = False
    unmade: list[slice] = field(default_factory=list)


class Engine:
    """Built-in `Generator`.  steps and row_steps count decoding steps, and the rows that they computed."""

    def __init__(
        self,
        config: ModelConfig,
        device: torch.device,
        *,
        slots: int,
        length: int,
        temperature: float = 1.0,
        dtype: torch.dtype = torch.float32,
        prove: Prove | None = None,
        prove_all: ProveAll | None = None,
        reply: Reply | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        steps_at_once: int | None = None,
    ) -> None:
        """slots: sequences at a time.  length: tokens of the longest, prompt included.  dtype: of weights and products.

        prove, prove_all: functions that prove one or many sequences at a time; without either, completions have hidden
        states.  prefill_tokens: known tokens computed at a time.  steps_at_once: steps between two checks for ended turns;
        None for the device's default.
        """
        self._batch = Batch(config, device, dtype, slots, length)
        self._line = Line(config.vocab, length, config.parameters)
        self._vocabulary, self._length, self._temperature = config.vocab, length, temperature
        self._proving, self._reply = Proving(prove, prove_all), reply
        self._prefill_tokens = prefill_tokens
        self._steps_at_once = steps_at_once or (GPU_STEPS if device.type == "cuda" else 1)
        self._slots: list[_Sequence | None] = [None] * slots
        self._loaded = False
        self.steps = self.row_steps = 0

    @property
    def room(self) -> int:
        """Number of further requests that could begin at once."""
        return self._line.room(len(self._slots), self._running)

    @property
    def busy(self) -> bool:
        """True if a request waits or runs, or a completion is not handed out yet."""
        return bool(self._line.requests or self._running or self._proving.held)

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises ValueError for a request that can never begin."""
        self._line.add(request)

    def load(self, flat: Tensor) -> None:
        """Complete later requests with these parameters (n), which stay unchanged until the earlier ones are completed."""
        self._line.add(flat)
        self._admit()

    def withdraw(self) -> list[Request]:
        """Remove and return the requests that have not begun."""
        requests = self._line.withdraw()
        self._admit()
        return requests

    def close(self) -> None:
        """Free the memory."""
        del self._batch

    @torch.no_grad()
    def advance(self) -> list[Completion]:
        """Compute one block of known tokens, and some steps of the running sequences; return ended completions."""
        if not self._loaded:
            raise ValueError("a generator needs parameters before it can complete anything; load some")
        self._admit()
        self._feed()
        if any(sequence and sequence.running for sequence in self._slots):
            self._pack()
            slots = max(number for number, sequence in enumerate(self._slots) if sequence) + 1
            span = max(sequence.tokens for sequence in self._slots if sequence and sequence.running)
            for step in range(self._steps_at_once):
                self._batch.step(slots, min(span + step, self._length), self._temperature)
            self.steps += self._steps_at_once
            self.row_steps += self._steps_at_once * slots
            self._end(slots)
        return self._proving.due(idle=not self._running)

    # -- beginning ----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> int:
        """Number of requests that have a slot."""
        return len(self._slots) - self._slots.count(None)

    def _admit(self) -> None:
        """Give free slots to waiting requests, and load queued weights when nothing runs any more."""
        while (entry := self._line.take(len(self._slots), self._running)) is not None:
            if isinstance(entry, Request):
                self._begin(self._slots.index(None), entry)
            else:
                self._batch.load(entry)
                self._loaded = True

    def _begin(self, slot: int, request: Request) -> None:
        self._slots[slot] = _Sequence(request, len(request.prompt))
        last = len(request.prompt) + request.max_tokens - 1
        self._batch.begin(slot, request.prompt, request.key, last, request.end_tokens)

    def _feed(self) -> None:
        """Compute a block of known tokens.  A sequence's newest token is left to the step that chooses the next one."""
        waiting = [(slot, sequence) for slot, sequence in enumerate(self._slots) if sequence and not sequence.running]
        pending = [(slot, sequence) for slot, sequence in waiting if sequence.fed < sequence.tokens - 1]
        if pending:
            width = max(1, self._prefill_tokens // len(pending))
            pieces = [Piece(slot, each.fed, min(each.fed + width, each.tokens - 1)) for slot, each in pending]
            self._batch.feed(pieces)
            for piece, (_, sequence) in zip(pieces, pending, strict=True):
                sequence.fed = piece.stop
        for slot, sequence in waiting:
            if sequence.fed == sequence.tokens - 1:
                sequence.running = True
                self._batch.running[slot] = True

    def _pack(self) -> None:
        """Move sequences to free slots below them.  After `_admit`, a slot is free only if no request may take it."""
        while None in self._slots and any(self._slots[(free := self._slots.index(None)) :]):
            source = max(number for number, sequence in enumerate(self._slots) if sequence)
            moved = self._slots[source]
            assert moved is not None
            self._batch.move(source, free, moved.tokens)
            self._slots[free], self._slots[source] = moved, None

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end(self, slots: int) -> None:
        """End or continue the sequences whose turn has ended."""
        positions, running = self._batch.progress(slots)
        for sequence, position in zip(self._slots[:slots], positions, strict=True):
            if sequence and sequence.running:
                sequence.tokens, sequence.fed = position + 1, position
        for slot, runs in enumerate(running):
            sequence = self._slots[slot]
            if runs or sequence is None or not sequence.running:
                continue
            output, made = self._output(slot, sequence)
            said = continuation(self._reply, sequence.request, output, made, self._vocabulary)
            if said is None:
                first = len(sequence.request.prompt) - 1
                self._proving.hold(sequence.request, output, made, self._batch.hidden[slot, first : first + len(output)])
                self._slots[slot] = None
            else:
                self._append(slot, sequence, said)

    def _append(self, slot: int, sequence: _Sequence, said: Sequence[int]) -> None:
        """Append the environment's tokens; the sequence continues once they are computed."""
        begin = sequence.tokens - len(sequence.request.prompt)
        sequence.unmade.append(slice(begin, begin + len(said)))
        self._batch.append(slot, sequence.tokens, said)
        sequence.tokens += len(said)
        sequence.running = False

    def _output(self, slot: int, sequence: _Sequence) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Return the output so far, and for each token True if the model chose it."""
        output = self._batch.tokens[slot, len(sequence.request.prompt) : sequence.tokens].tolist()
        made = [True] * len(output)
        for span in sequence.unmade:
            made[span] = [False] * len(made[span])
        return tuple(output), tuple(made)
