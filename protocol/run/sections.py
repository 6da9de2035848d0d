"""Sections of the manifest: the base of all sections, the model, the data and its tokenizer, and the length of the run.

Chats, tokenizers and the tasks of an environment are files of the run: the manifest names them by the root over the hashes
of their chunks, and every peer fetches them from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.run.fitting import ManifestProblem, ModelShape, data_problems, model_problems, refuse, rope_problems
from protocol.wire.body import Body
from protocol.wire.hashes import Hash

# ------------------------------------------------------------------------------------------------------------------------
# The base of the manifest's sections, which can grow without changing existing runs.


class Section(Body):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation.

    LATER: fields added after the first runs.  A later field that has its default is not written, so a run that does not use
    it keeps its encoding and its ID.  A default that is written all the same is refused, as its encoding is not the only
    one.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields, known = handler(self), type(self).model_fields
        return {name: value for name, value in fields.items() if name not in self.LATER or value != known[name].default}


# ------------------------------------------------------------------------------------------------------------------------
# The length of a run: one number, in tokens or in rounds, from which its learning rate follows as well.


class Unit(StrEnum):
    """Unit in which the total of a run counts."""

    TOKENS = "tokens"
    ROUNDS = "rounds"


@dataclass(frozen=True)
class Goal:
    """The end of a run.  total: in `unit`, of all members together.  cooldown: share of it in which the rate comes down."""

    unit: Unit
    total: int
    cooldown: float


# ------------------------------------------------------------------------------------------------------------------------
# The manifest's model section: the shape of the decoder that a run trains.


class ModelSection(Section):
    """A decoder of the Llama family (Llama 3, Qwen2, Qwen3); the defaults are the demo's."""

    LATER: ClassVar[frozenset[str]] = frozenset(
        {
            "head_dim",
            "qkv_bias",
            "qk_norm",
            "rope_factor",
            "rope_low_freq_factor",
            "rope_high_freq_factor",
            "rope_original_context",
            "context",
        }
    )

    vocab: Annotated[int, Field(ge=2, le=1 << 20)] = 256
    """Size of the vocabulary in tokens (256: bytes)."""
    dim: Annotated[int, Field(ge=8, le=1 << 15)] = 128
    """Width of the residual stream."""
    layers: Annotated[int, Field(ge=1, le=256)] = 4
    """Number of decoder layers."""
    heads: Annotated[int, Field(ge=1, le=512)] = 4
    """Attention heads; dim / heads must be an even number."""
    kv_heads: Annotated[int, Field(ge=1, le=512)] = 2
    """Key and value heads; heads must be a multiple."""
    ffn: Annotated[int, Field(ge=8, le=1 << 18)] = 384
    """Width of the SwiGLU layer."""
    rope_base: Annotated[float, Field(ge=1, le=1e9, allow_inf_nan=False)] = 10_000.0
    """Base of the rotary position frequencies."""
    norm_eps: Annotated[float, Field(gt=0, le=0.1, allow_inf_nan=False)] = 1e-5
    """Epsilon of RMSNorm."""
    tied: bool = True
    """True: the output weights are the embedding's."""
    head_dim: Annotated[int, Field(ge=0, le=1024, multiple_of=2)] = 0
    """Width of an attention head, an even number; 0: dim / heads."""
    qkv_bias: bool = False
    """True: queries, keys and values have biases (Qwen2)."""
    qk_norm: bool = False
    """True: queries and keys are normed, each head by itself (Qwen3)."""
    rope_factor: Annotated[float, Field(ge=1, le=1024, allow_inf_nan=False)] = 1.0
    """The factor by which rotary positions are stretched, as Llama 3.1 does it ("llama3"); 1: not at all."""
    rope_low_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 1.0
    """Frequencies with fewer turns in rope_original_context are divided by rope_factor."""
    rope_high_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 4.0
    """Frequencies with more turns in rope_original_context are kept."""
    rope_original_context: Annotated[int, Field(ge=1, le=1 << 24)] = 8192
    """Tokens that the model read before its positions were stretched."""
    context: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    """Tokens that an exported model says it can read; 0: data.sequence_length."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse(model_problems(self._shape))
        refuse(rope_problems(self.rope_low_freq_factor, self.rope_high_freq_factor))
        return self

    @property
    def _shape(self) -> ModelShape:
        return ModelShape(
            self.vocab,
            self.dim,
            self.layers,
            self.heads,
            self.kv_heads,
            self.ffn,
            self.tied,
            self.head_dim,
            self.qkv_bias,
            self.qk_norm,
        )

    @property
    def parameters(self) -> int:
        """Parameters in the flat vector that peers exchange."""
        return self._shape.parameters


# ------------------------------------------------------------------------------------------------------------------------


FILE_CHUNK_BYTES = 1 << 20
"""Bytes of a chunk of a file."""
MAX_FILE_BYTES = 64 << 20
CHATS, TOKENIZER = "chats.jsonl", "tokenizer.json"
"""Names of the files in the run, whatever the organiser's were called."""
TASKS = "tasks/"
"""Prefix of the names of files of tasks; the environment's own names follow."""
MAX_TASKS_FILES = 16


class FileSection(Section):
    """The bytes of a file."""

    size: Annotated[int, Field(ge=1, le=MAX_FILE_BYTES)]
    """Bytes of the file."""
    root: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """The root over the hashes of its chunks, in hex."""

    @property
    def name(self) -> Hash:
        """Name of the file as a blob."""
        return Hash(bytes.fromhex(self.root))

    @property
    def chunks(self) -> int:
        """Number of chunks of the file."""
        return -(-self.size // FILE_CHUNK_BYTES)


class TasksSection(FileSection):
    """A file of the tasks that the environment of a run with rollouts reads."""

    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    """The name by which the environment calls it."""

    @property
    def called(self) -> str:
        """Name of the file among the files of the run."""
        return TASKS + self.path


class DataSection(Section):
    """Data that members read, and the amount of it in an inner step."""

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
    """The text that is read: "text" is the corpus, "chat" are chats, of which what the assistant says counts."""
    packed: bool = True
    """True: several chats share a window; none sees another."""
    chats: FileSection | None = None
    """The chats, one in a line."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        refuse(data_problems(self.sequence_length, self.sequences_per_step))
        refuse(self._chat_problems())
        return self

    def _chat_problems(self) -> Iterator[ManifestProblem]:
        if self.format == "chat" and self.chats is None:
            yield ManifestProblem(("format", "chats"), 'format is "chat", and no chats are named; add from = "chats.jsonl"')
        if self.format == "text" and self.chats is not None:
            yield ManifestProblem(("format", "chats"), 'chats are named, and format is "text"; format = "chat" would do')


class TokenizerSection(Section):
    """Tokenizer and layout of conversations; left out of a run whose model reads bytes."""

    file: FileSection
    template: Literal["raw", "plain", "chatml", "llama3"] = "plain"
    """The layout of a conversation: "raw" (nothing around what is said), "plain", "chatml" (Qwen) or "llama3"."""
    ends: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 20)]], Field(min_length=1, max_length=8)]
    """Numbers of the tokens that end a turn; the first one ends those that are learnt from."""

    def trainer_section(self) -> dict[str, Any]:
        """Return the section that `trainer.config` reads."""
        return {"template": self.template, "ends": self.ends}
