"""What a generator is: it completes prompts, some at a time, in turns with an environment, with weights that change.

`Line` and `continuation` hold what every implementation has to get right: which request or weights come next, and when the
environment has a word.  Requests that were submitted before `load` are completed with the weights before it, those after it
with the new ones.  The built-in implementation is `trainer.generate.engine`; another is `trainer.generate.vllm`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from torch import Tensor

MOST_END_TOKENS = 8
"""Of one request."""


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

    def close(self) -> None:
        """Give its memory back; nothing else is asked of it then."""


def complete(
    generator: Generator, requests: Iterable[Request], between: Callable[[], None] = lambda: None
) -> Iterator[Completion]:
    """The completions in the order in which they end.  Requests are taken when there is room for them.

    between: called before each turn of the generator; may wait, or raise.
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
