"""Interface of generators, which complete prompts in turns with an environment, and whose weights change.

All implementations share `RequestQueue` (the order of requests and weights) and `continuation` (the environment's replies).
Requests submitted before `load` are completed with the earlier weights, and requests after it with the new ones. The
built-in implementation is `trainer.generate.engine`; the other is `trainer.generate.vllm`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from torch import Tensor

MOST_END_TOKENS = 8
"""Maximum number of end tokens of a request."""


@dataclass(frozen=True)
class Request:
    """Request for a completion.

    key: key of the noise (`sampling.stream_key`). max_tokens: maximum length of the output, replies included. end_tokens:
    tokens that end the model's turn and belong to it; at most MOST_END_TOKENS.
    """

    id: int
    prompt: tuple[int, ...]
    key: int
    max_tokens: int
    end_tokens: tuple[int, ...]


class Ended(Enum):
    """Reason why a completion ended."""

    END_TOKEN = "end token"
    LENGTH = "length"


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
    ended: Ended
    proofs: bytes = b""
    hidden: Tensor | None = None


Reply = Callable[[Request, tuple[int, ...], tuple[bool, ...]], Sequence[int] | None]
"""Function from a request, its output so far and its `made` flags to the environment's reply; None ends the completion."""


@dataclass(frozen=True)
class Slots:
    """Capacity of a generator. count: sequences at a time. length: tokens of the longest sequence, prompt included."""

    count: int
    length: int


class Generator(Protocol):
    """Generator that completes several requests at a time."""

    @property
    def room(self) -> int:
        """Number of further requests that could begin at once."""

    @property
    def busy(self) -> bool:
        """True if a request waits or runs, or a completion has not been returned yet."""

    def submit(self, request: Request) -> None:
        """Queue a request.  Raises ValueError for a request that can never begin."""

    def advance(self) -> list[Completion]:
        """Run some computation; return the completions that have ended."""

    def load(self, flat: Tensor) -> None:
        """Complete later requests with these parameters (n).

        The caller must not change them until the earlier requests are completed.
        """

    def withdraw(self) -> list[Request]:
        """Remove and return the requests that have not begun."""

    def close(self) -> None:
        """Free the memory; no other method may be called afterwards."""


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


class RequestQueue:
    """Queue of requests and parameters.  Parameters wait until no request runs with earlier parameters."""

    def __init__(self, vocabulary: int, length: int, parameters: int) -> None:
        self._vocabulary, self._length, self._parameters = vocabulary, length, parameters
        self._entries: deque[Request | Tensor] = deque()

    @property
    def requests(self) -> list[Request]:
        """Waiting requests."""
        return [entry for entry in self._entries if isinstance(entry, Request)]

    def room(self, slots: int, running: int) -> int:
        """Return the number of further requests that could begin at once."""
        if len(self.requests) < len(self._entries) and running:
            return 0
        return max(0, slots - running - len(self.requests))

    def add(self, entry: Request | Tensor) -> None:
        """Queue an entry.  Raises ValueError for a request that can never begin, and for parameters of another model."""
        if isinstance(entry, Request):
            if problem := self._problem(entry):
                raise ValueError(f"request {entry.id} {problem}")
        elif entry.shape != (self._parameters,):
            raise ValueError(f"the model has {self._parameters} parameters, not {tuple(entry.shape)}")
        self._entries.append(entry)

    def take(self, slots: int, running: int) -> Request | Tensor | None:
        """Remove and return the next entry if it may begin now, else None."""
        if not self._entries or running >= (slots if isinstance(self._entries[0], Request) else 1):
            return None
        return self._entries.popleft()

    def withdraw(self) -> list[Request]:
        """Remove and return the waiting requests."""
        requests = self.requests
        self._entries = deque(entry for entry in self._entries if isinstance(entry, Tensor))
        return requests

    def _problem(self, request: Request) -> str:
        """Return the reason why a request can never begin, as a phrase; empty if it can begin."""
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
    """Return True if all these tokens are in the vocabulary."""
    return all(0 <= token < vocabulary for token in tokens)


def continuation(
    reply: Reply | None, request: Request, output: tuple[int, ...], made: tuple[bool, ...], vocabulary: int
) -> Sequence[int] | None:
    """Return the environment's tokens after a turn, or None if the reply is None or leaves no room for a token."""
    left = request.max_tokens - len(output)
    if reply is None or left < 2:
        return None
    said = reply(request, output, made)
    if said is None or len(said) >= left:
        return None
    if not known(said, vocabulary):
        raise ValueError(f"the reply to request {request.id} has tokens outside the vocabulary of {vocabulary}")
    return said


# ------------------------------------------------------------------------------------------------------------------------
# Proofs of completions, which are made many at a time: one batch of interpolations costs little more than a single one.
#
# A completion waits for its proofs until `AT_ONCE` completions wait, until nothing else runs, or for `PATIENCE` checks.


ProveAll = Callable[[Sequence[Tensor]], list[list[bytes]]]
"""Function that proves the hidden states of several sequences, bf16 (tokens, dim) each, chunk by chunk:
`kernels.toploc.prove_all`."""

AT_ONCE = 16
"""Number of completions proven together."""
PATIENCE = 64
"""Maximum number of checks, one every few steps, for which a completion waits."""


class ProofQueue:
    """Queue of ended completions that wait for proofs.

    Without a proving function they are returned at once, without proofs.
    """

    def __init__(self, prove_all: ProveAll | None) -> None:
        self._prove_all = prove_all
        self.held: list[Completion] = []
        self._looks = 0

    def hold(self, request: Request, output: tuple[int, ...], made: tuple[bool, ...], hidden: Tensor) -> None:
        """Add an ended completion.  hidden: bf16 (output tokens, dim), which is copied."""
        ended = Ended.END_TOKEN if output[-1] in request.end_tokens else Ended.LENGTH
        self.held.append(Completion(request.id, output, made, ended, hidden=hidden.clone()))

    def due(self, idle: bool) -> list[Completion]:
        """Return the completions that are due, with proofs, in the order in which they ended.

        idle: True if no request runs.
        """
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
