"""What is read: a text that is there or chats, in which tokens.

Chats, tokenizers and the tasks of an environment are files of the run: the manifest names them by the root over the hashes
of their chunks, and every peer fetches them from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from protocol.run.fitting import Problem, data_problems, refuse
from protocol.run.section import Section
from protocol.wire.hashes import Hash

FILE_CHUNK_BYTES = 1 << 20
"""How the bytes of a file are cut into chunks."""
MAX_FILE_BYTES = 64 << 20
CHATS, TOKENIZER = "chats.jsonl", "tokenizer.json"
"""What the files are called, whatever the organiser's were called."""
TASKS = "tasks/"
"""What the names of files of tasks begin with; the environment's own names follow."""
MAX_TASKS_FILES = 16


class FileSection(Section):
    """The bytes of a file."""

    size: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)]
    """Bytes of the file."""
    root: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The root over the hashes of its chunks, in hex."""

    @property
    def name(self) -> Hash:
        """Of the file as a blob."""
        return Hash(bytes.fromhex(self.root))

    @property
    def chunks(self) -> int:
        """How many it has."""
        return -(-self.size // FILE_CHUNK_BYTES)


class TasksSection(FileSection):
    """A file of the tasks that the environment of a run with rollouts reads."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    """What the environment calls it."""

    @property
    def called(self) -> str:
        """Its name among the files of the run."""
        return TASKS + self.path


class DataSection(Section):
    """What is read, and how much of it in an inner step."""

    LATER: ClassVar[frozenset[str]] = frozenset({"format", "packed", "chats"})

    corpus: Literal["stdlib", "examples"] = "stdlib"
    """Source of the text: "stdlib" is Python's own standard library, "examples" are the environment's solved problems."""
    sequence_length: Annotated[int, Field(ge=8, le=1 << 17)] = 512
    """Tokens predicted in one window."""
    sequences_per_step: Annotated[int, Field(ge=1, le=1 << 16)] = 4
    """Windows in one inner step of one member."""
    held_out_percent: Annotated[int, Field(ge=1, le=50)] = 5
    """Share of the files, or chats, kept for the evaluation loss, in percent."""
    format: Literal["text", "chat"] = "text"
    """What is read: "text" is the corpus, "chat" are chats, of which what the assistant says counts."""
    packed: bool = True
    """Whether several chats share a window; none sees another."""
    chats: FileSection | None = None
    """The chats, one in a line."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        refuse(data_problems(self.sequence_length, self.sequences_per_step))
        refuse(self._chat_problems())
        return self

    def _chat_problems(self) -> Iterator[Problem]:
        if self.format == "chat" and self.chats is None:
            yield Problem(("format", "chats"), 'format is "chat", and no chats are named; add from = "chats.jsonl"')
        if self.format == "text" and self.chats is not None:
            yield Problem(("format", "chats"), 'chats are named, and format is "text"; format = "chat" would do')


class TokenizerSection(Section):
    """How texts become tokens; left out of a run whose model reads bytes."""

    file: FileSection
    template: Literal["raw", "plain", "chatml", "llama3"] = "plain"
    """How a conversation is laid out: "raw" (nothing around what is said), "plain", "chatml" (Qwen) or "llama3"."""
    ends: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 20)]], Field(min_length=1, max_length=8)]
    """Numbers of the tokens that end a turn; the first one ends those that are learnt from."""

    def trainer_section(self) -> dict[str, Any]:
        """What `trainer.config` reads."""
        return {"template": self.template, "ends": self.ends}
