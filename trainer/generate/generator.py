"""Generators, which complete prompts in turns with an environment, and whose weights change.

`Generator` has what all implementations share: the waiting requests, the environment's replies, and the proofs. The built-in
implementation is `trainer.generate.engine`; the other is `trainer.generate.vllm`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from protocol.formats.model import ModelConfig

MOST_END_TOKENS = 8
"""Maximum number of end tokens of a request."""


@dataclass(frozen=True)
class Request:
    """Request for a completion.

    key: key of the noise (`sampling.stream_key`). max_tokens: maximum length of the output, replies included. end_tokens:
    tokens that end the model's turn and belong to it; at most MOST_END_TOKENS. max_turn_tokens: maximum length of a turn, at
    which the completion ends; 0 for no other limit than `max_tokens`.
    """

    id: int
    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    end_tokens: tuple[int, ...]
    max_turn_tokens: int = 0

    def turn_room(self, written: int) -> int:
        """Return the maximum number of tokens of a turn after this many tokens of the output."""
        left = self.max_tokens - written
        return min(left, self.max_turn_tokens) if self.max_turn_tokens else left


@dataclass(frozen=True)
class Completion:
    """Completion of a request.

    made: for each output token, True if the model chose it, False if it comes from the environment. proofs: concatenated
    proofs of the hidden states of the rows that predicted the output; empty in a generator without proofs. hidden: these
    states, bf16 (output tokens, dim), in a generator without proofs.
    """

    id: int
    output: tuple[int, ...]
    made: tuple[bool, ...]
    proofs: bytes = b""
    hidden: Tensor | None = None


Reply = Callable[[Request, tuple[int, ...], tuple[bool, ...]], Sequence[int] | None]
"""Function from a request, its output so far and its `made` flags to the environment's reply; None ends the completion."""


@dataclass(frozen=True)
class Slots:
    """Capacity of a generator. count: sequences at a time. length: tokens of the longest sequence, prompt included."""

    count: int
    length: int


ProveAll = Callable[[Sequence[Tensor]], list[list[bytes]]]
"""Function that proves the hidden states of several sequences, bf16 (tokens, dim) each, chunk by chunk:
`kernels.toploc.prove_all`."""

AT_ONCE = 16
"""Number of completions proven together: one batch of interpolations costs little more than a single one."""


class Generator(ABC):
    """Generator that completes several requests at a time.  temperature: of the tokens chosen from now on."""

    temperature = 1.0

    def __init__(self, config: ModelConfig, slots: Slots, prove_all: ProveAll | None, reply: Reply | None) -> None:
        """Make a generator without parameters.

        prove_all: proves the hidden states of sequences; if None, completions carry the hidden states instead.
        """
        self._config, self._capacity, self._prove_all, self._reply = config, slots, prove_all, reply
        self._waiting: deque[Request] = deque()
        self._ended: list[Completion] = []
        """Ended completions without their proofs."""
        self._loaded = False

    @property
    @abstractmethod
    def _running(self) -> int:
        """Number of requests that have begun."""

    @property
    def room(self) -> int:
        """Number of further requests that could begin at once."""
        return max(0, self._capacity.count - self._running - len(self._waiting))

    @property
    def busy(self) -> bool:
        """True if a request waits or runs, or a completion has not been returned yet."""
        return bool(self._waiting or self._running or self._ended)

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises ValueError for a request that can never begin."""
        flaw, needed = "", len(request.prompt) + request.max_tokens
        if not request.prompt or request.max_tokens < 1:
            flaw = "needs a prompt and room for a token"
        elif needed > self._capacity.length:
            flaw = f"needs {needed} tokens, but a sequence has at most {self._capacity.length}"
        elif not self._are_known(request.prompt):
            flaw = f"has tokens outside the vocabulary of {self._config.vocab}"
        elif len(request.end_tokens) > MOST_END_TOKENS:
            flaw = f"has {len(request.end_tokens)} end tokens, but at most {MOST_END_TOKENS} are allowed"
        if flaw:
            raise ValueError(f"request {request.id} {flaw}")
        self._waiting.append(request)

    @abstractmethod
    def load(self, flat: Tensor) -> None:
        """Complete later requests with these parameters (n), on any device and in any precision.

        Raises ValueError while a request waits or runs.
        """

    @abstractmethod
    def advance(self) -> list[Completion]:
        """Run some computation; return the completions that have ended."""

    @abstractmethod
    def close(self) -> None:
        """Free the memory; no other method may be called afterwards."""

    def _are_known(self, tokens: Sequence[int]) -> bool:
        return all(0 <= token < self._config.vocab for token in tokens)

    def _check_idle(self) -> None:
        if self.busy:
            raise ValueError("parameters are loaded only while no request waits or runs")

    def _check_loaded(self) -> None:
        if not self._loaded:
            raise ValueError("a generator needs parameters before it can complete anything; load some")

    def _continuation(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...]) -> Sequence[int] | None:
        """Return the environment's tokens after a turn, or None if none follow.

        None follow a turn without an end token, nor if the reply would leave no room for a token.
        """
        left = request.max_tokens - len(output)
        if self._reply is None or left < 2 or output[-1] not in request.end_tokens:
            return None
        said = self._reply(request, output, made)
        if said is None or len(said) >= left:
            return None
        if not self._are_known(said):
            raise ValueError(f"the reply to request {request.id} has tokens outside the vocabulary of {self._config.vocab}")
        return said

    def _hold(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...], hidden: Tensor) -> None:
        """Add an ended completion.  hidden: bf16 (output tokens, dim), which is copied."""
        self._ended.append(Completion(request.id, output, made, hidden=hidden.clone()))

    def _proven(self) -> list[Completion]:
        """Return the ended completions with proofs, in their order, if they are many, or if no request runs."""
        if self._prove_all and self._running and len(self._ended) < AT_ONCE:
            return []
        ended = self._ended
        if self._prove_all and ended:
            states = [completion.hidden for completion in ended if completion.hidden is not None]
            proofs = [b"".join(chunks) for chunks in self._prove_all(states)]
            ended = [replace(each, proofs=proof, hidden=None) for each, proof in zip(ended, proofs, strict=True)]
        self._ended = []
        return ended


def complete(
    generator: Generator, requests: Iterable[Request], between: Callable[[], None] = lambda: None
) -> Iterator[Completion]:
    """Yield completions in the order in which they end.  Requests are taken from `requests` when the generator has room.

    between: called before each `advance` of the generator; may wait, or raise an exception.
    """
    left = iter(requests)
    while True:
        for _ in range(generator.room):
            if (request := next(left, None)) is None:
                break
            generator.submit(request)
        if not generator.busy:
            return
        between()
        yield from generator.advance()
