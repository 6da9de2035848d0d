"""Completions of prompts: what a generator is, and the built-in one, which decodes many sequences at a time.

The built-in one has slots.  A waiting request gets a slot as soon as one is free, its prompt is computed in blocks between
the steps of the others (chunked prefill), and its tokens are chosen by noise of its own key: neither the batch nor the
order of requests changes what comes out, beyond the rounding of sums.  When nothing waits, the sequences that are left
move to the lowest slots, so that a step computes no more rows than there are sequences.

Multi-turn: at the end of the model's turn, `reply` may continue the sequence with the environment's tokens; these stand in
the output, marked as not made, and the model goes on in the same slot.

Weights are swapped between sequences: requests that were submitted before `load` are completed with the weights before it,
those after it with the new ones.  `withdraw` gives back what has not begun, for new keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from trainer.generate.batch import MOST_END_TOKENS, Batch, Piece
from trainer.models.llama.config import ModelConfig

PREFILL_TOKENS = 1024
"""Known tokens computed between two steps of the running sequences, or one of each sequence that has some."""
GPU_STEPS = 8
"""Steps after which a GPU is asked who has finished.  In between the host only queues work; a CPU is asked each time."""


@dataclass(frozen=True)
class Request:
    """What to complete.  key: of the noise (`sampling.stream_key`).  max_tokens: of the output, replies included.

    end_tokens: those that end the model's turn, which they belong to; at most MOST_END_TOKENS.
    """

    id: int
    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    end_tokens: tuple[int, ...]


class Ended(Enum):
    """Why a completion ended."""

    END_TOKEN = "end token"
    LENGTH = "length"


@dataclass(frozen=True)
class Completion:
    """What came of a request.  made: for each output token, whether the model chose it (else the environment said it).

    proofs: of the hidden states of the rows that predicted the output, one after the other; empty where nobody proves, and
    then hidden has these states, bf16 (output tokens, dim).
    """

    id: int
    output: tuple[int, ...]
    made: tuple[bool, ...]
    ended: Ended
    proofs: bytes = b""
    hidden: Tensor | None = None


Prove = Callable[[Tensor], list[bytes]]
"""Proofs of hidden states, bf16 (tokens, dim), a chunk each: `kernels.toploc.prove`."""
Reply = Callable[[Request, tuple[int, ...], tuple[bool, ...]], Sequence[int] | None]
"""The environment's tokens after the output so far (which of it was made: last argument); None ends the completion."""


class Generator(Protocol):
    """Completes requests, some at a time."""

    @property
    def room(self) -> int:
        """How many more requests could begin at once."""

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""

    def submit(self, request: Request) -> None:
        """Let a request wait for its turn.  Raises ValueError for one that can never have it."""

    def advance(self) -> list[Completion]:
        """Compute a little; what has been completed meanwhile."""

    def load(self, flat: Tensor) -> None:
        """Complete later requests with these parameters (n), which stay unchanged until the earlier ones are completed."""

    def withdraw(self) -> list[Request]:
        """Forget the requests that have not begun; they are returned."""


def complete(generator: Generator, requests: Iterable[Request]) -> Iterator[Completion]:
    """The completions in the order in which they end.  Requests are taken when there is room for them."""
    left = iter(requests)
    while True:
        for _ in range(generator.room):
            if (request := next(left, None)) is None:
                break
            generator.submit(request)
        if not generator.busy:
            return
        yield from generator.advance()


class Line:
    """Requests and parameters in the order in which they came.  Parameters wait until nothing runs with those before."""

    def __init__(self, vocabulary: int, length: int, parameters: int) -> None:
        self._vocabulary, self._length, self._parameters = vocabulary, length, parameters
        self._entries: deque[Request | Tensor] = deque()

    @property
    def requests(self) -> list[Request]:
        """Those that wait."""
        return [entry for entry in self._entries if isinstance(entry, Request)]

    def room(self, slots: int, running: int) -> int:
        """How many more requests could begin at once."""
        if len(self.requests) < len(self._entries) and running:
            return 0
        return max(0, slots - running - len(self.requests))

    def add(self, entry: Request | Tensor) -> None:
        """Raises ValueError for a request that can never begin, and for parameters of another model."""
        if isinstance(entry, Request):
            if problem := self._problem(entry):
                raise ValueError(f"request {entry.id} {problem}")
        elif entry.shape != (self._parameters,):
            raise ValueError(f"the model has {self._parameters} parameters, not {tuple(entry.shape)}")
        self._entries.append(entry)

    def take(self, slots: int, running: int) -> Request | Tensor | None:
        """What comes next, if its turn has come."""
        if not self._entries or running >= (slots if isinstance(self._entries[0], Request) else 1):
            return None
        return self._entries.popleft()

    def withdraw(self) -> list[Request]:
        """Forget the requests; they are returned."""
        requests = self.requests
        self._entries = deque(entry for entry in self._entries if isinstance(entry, Tensor))
        return requests

    def _problem(self, request: Request) -> str:
        """Why a request can never begin; empty if it can."""
        if not request.prompt or request.max_tokens < 1:
            return "needs a prompt and room for a token"
        if len(request.prompt) + request.max_tokens > self._length:
            return f"needs {len(request.prompt)} + {request.max_tokens} tokens, and there is room for {self._length}"
        if not known(request.prompt, self._vocabulary):
            return f"has tokens outside the vocabulary of {self._vocabulary}"
        if len(request.end_tokens) > MOST_END_TOKENS:
            return f"has {len(request.end_tokens)} end tokens, and {MOST_END_TOKENS} are allowed"
        return ""


def known(tokens: Sequence[int], vocabulary: int) -> bool:
    """Whether a model has all these tokens."""
    return all(0 <= token < vocabulary for token in tokens)


def continuation(
    reply: Reply | None, request: Request, output: tuple[int, ...], made: tuple[bool, ...], vocabulary: int
) -> Sequence[int] | None:
    """The environment's tokens at the end of a turn, if there are some and the model has room for a token after them."""
    left = request.max_tokens - len(output)
    if reply is None or left < 2:
        return None
    said = reply(request, output, made)
    if said is None or len(said) >= left:
        return None
    if not known(said, vocabulary):
        raise ValueError(f"the reply to request {request.id} has tokens outside the vocabulary of {vocabulary}")
    return said


def completion_of(
    request: Request, output: tuple[int, ...], made: tuple[bool, ...], hidden: Tensor, prove: Prove | None
) -> Completion:
    """What came of a request, with proofs, or else a copy of the hidden states."""
    ended = Ended.END_TOKEN if output[-1] in request.end_tokens else Ended.LENGTH
    if prove is None:
        return Completion(request.id, output, made, ended, hidden=hidden.clone())
    return Completion(request.id, output, made, ended, proofs=b"".join(prove(hidden)))


@dataclass
class _Sequence:
    """A request in a slot.  tokens: how many are known.  fed: how many of them are computed.  Both as the host knows it.

    unmade: spans of the output that the environment said.
    """

    request: Request
    tokens: int
    fed: int = 0
    running: bool = False
    unmade: list[slice] = field(default_factory=list)


class Engine:
    """The built-in `Generator`.  steps and row_steps count decoding steps, and the rows that they computed."""

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
        reply: Reply | None = None,
        prefill_tokens: int = PREFILL_TOKENS,
        steps_at_once: int | None = None,
    ) -> None:
        """slots: sequences at a time.  length: tokens of the longest, prompt included.  dtype: of weights and products.

        prefill_tokens: known tokens computed at a time.  steps_at_once: how often the device is asked who has finished; None
        for what suits it.
        """
        self._batch = Batch(config, device, dtype, slots, length)
        self._line = Line(config.vocab, length, config.parameters)
        self._vocabulary, self._length, self._temperature = config.vocab, length, temperature
        self._prove, self._reply = prove, reply
        self._prefill_tokens = prefill_tokens
        self._steps_at_once = steps_at_once or (GPU_STEPS if device.type == "cuda" else 1)
        self._slots: list[_Sequence | None] = [None] * slots
        self._finished: list[Completion] = []
        self._loaded = False
        self.steps = self.row_steps = 0

    @property
    def room(self) -> int:
        """How many more requests could begin at once."""
        return self._line.room(len(self._slots), self._running)

    @property
    def busy(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self._line.requests or self._running or self._finished)

    def submit(self, request: Request) -> None:
        """Let a request wait for its turn.  Raises ValueError for one that can never have it."""
        self._line.add(request)

    def load(self, flat: Tensor) -> None:
        """Complete later requests with these parameters (n), which stay unchanged until the earlier ones are completed."""
        self._line.add(flat)
        self._admit()

    def withdraw(self) -> list[Request]:
        """Forget the requests that have not begun; they are returned."""
        requests = self._line.withdraw()
        self._admit()
        return requests

    @torch.no_grad()
    def advance(self) -> list[Completion]:
        """Compute one block of known tokens, and some steps of the running sequences; what has ended then."""
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
        finished, self._finished = self._finished, []
        return finished

    # -- beginning ----------------------------------------------------------------------------------------------------

    @property
    def _running(self) -> int:
        """Requests that have a slot."""
        return len(self._slots) - self._slots.count(None)

    def _admit(self) -> None:
        """Give free slots to waiting requests, and load weights when it is their turn and nothing runs."""
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
        """Compute a block of known tokens.  The newest of a sequence is left to the step that chooses the next one."""
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
        """Move sequences to free slots below them.  After `_admit`, slots are free only if nobody may have them."""
        while None in self._slots and any(self._slots[(free := self._slots.index(None)) :]):
            source = max(number for number, sequence in enumerate(self._slots) if sequence)
            moved = self._slots[source]
            assert moved is not None
            self._batch.move(source, free, moved.tokens)
            self._slots[free], self._slots[source] = moved, None

    # -- ending -------------------------------------------------------------------------------------------------------

    def _end(self, slots: int) -> None:
        """Read who has come to the end of a turn, and end or continue these."""
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
                self._finished.append(self._completion(slot, sequence, output, made))
                self._slots[slot] = None
            else:
                self._append(slot, sequence, said)

    def _append(self, slot: int, sequence: _Sequence, said: Sequence[int]) -> None:
        """Go on after the environment's tokens, once these are computed."""
        begin = sequence.tokens - len(sequence.request.prompt)
        sequence.unmade.append(slice(begin, begin + len(said)))
        self._batch.append(slot, sequence.tokens, said)
        sequence.tokens += len(said)
        sequence.running = False

    def _output(self, slot: int, sequence: _Sequence) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Output so far, and which of it was made."""
        output = self._batch.tokens[slot, len(sequence.request.prompt) : sequence.tokens].tolist()
        made = [True] * len(output)
        for span in sequence.unmade:
            made[span] = [False] * len(made[span])
        return tuple(output), tuple(made)

    def _completion(self, slot: int, sequence: _Sequence, output: tuple[int, ...], made: tuple[bool, ...]) -> Completion:
        request = sequence.request
        hidden = self._batch.hidden[slot, len(request.prompt) - 1 : sequence.tokens - 1]
        return completion_of(request, output, made, hidden, self._prove)
