"""Sections of the manifest: description, requirements, model, data, tokenizer, length of the run, reinforcement learning.

Tokenizers, tasks of environments and the manifests of corpora are files of the run: the manifest names them by the root over
the hashes of their chunks, and every peer fetches them from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from kernels.mixture import MAX_WEIGHTS
from protocol.run.fitting import ManifestProblem, ModelShape, data_problems, model_problems, refuse, rope_problems
from protocol.wire.envelope import PRINTABLE, Body
from protocol.wire.hashes import Hash
from protocol.wire.messages import MAX_USED
from protocol.wire.presence import MAX_PROMPTS
from protocol.wire.rollouts import MAX_BATCH_BYTES, MAX_ROLLOUTS

# ------------------------------------------------------------------------------------------------------------------------
# The base of the manifest's sections, which can grow without changing existing runs.


class Section(Body):
    """A part of the manifest.  The docstring below a field is its description in messages and documentation.

    LATER: fields added after the first runs.  A later field that has its default is not written, so a run that does not use
    it keeps its encoding and its ID.  A later field that is written with its default is refused, because each manifest has
    only one valid encoding.
    """

    LATER: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields, known = handler(self), type(self).model_fields
        return {name: value for name, value in fields.items() if name not in self.LATER or value != known[name].default}


# ------------------------------------------------------------------------------------------------------------------------
# The organiser's words about the run, which people read before they take part.


HOME_PAGE = r"^(https://[A-Za-z0-9.-]+(:[0-9]{1,5})?([/?#][A-Za-z0-9._~:/?#!$&()*+,;=%@-]*)?)?$"
"""Pattern of a web address without a user's name, which could pass for its host; empty: none."""


class AboutSection(Section):
    """The organiser's words about the run, for people; nobody checks them, and the software does not act on them."""

    description: Annotated[str, Field(max_length=500, pattern=PRINTABLE)] = ""
    """Purpose of the run in a sentence or two, without line breaks."""
    url: Annotated[str, Field(max_length=200, pattern=HOME_PAGE)] = ""
    """Home page of the run: an address that begins with https://."""
    licence: Annotated[str, Field(max_length=64, pattern=PRINTABLE)] = ""
    """Licence of the weights that the run makes, such as "Apache-2.0"."""


# ------------------------------------------------------------------------------------------------------------------------
# The prompts by which people see what the model has learned.


class SamplesSection(Section):
    """Prompts that a member completes at each evaluation, for people: they see how the model's texts change."""

    prompts: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200, pattern=PRINTABLE)]],
        Field(min_length=1, max_length=MAX_PROMPTS),
    ]
    """The prompts, each without line breaks; in a run on chats, preferences or rollouts each is a message of the user."""
    tokens: Annotated[int, Field(ge=1, le=64)] = 48
    """Tokens of a completion at most."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[ManifestProblem]:
        if len(set(self.prompts)) < len(self.prompts):
            yield ManifestProblem(("prompts",), "two prompts are the same; remove one of them")


# ------------------------------------------------------------------------------------------------------------------------
# The least computer that may train in the run.


Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
LEAST_VERSION = r"^(>=[0-9]{1,4}(\.[0-9]{1,4}){0,2})?$"
"""Pattern of the least version of the software; empty: any."""


class RequiresSection(Section):
    """Requirements of the organiser for the computers of those who train, beyond the memory that follows from the model.

    A value of 0 requires nothing.  Each peer checks itself: the requirements spare people an attempt, and keep nobody out.
    """

    LATER: ClassVar[frozenset[str]] = frozenset({"version"})

    memory_gb: Amount = 0.0
    """Memory of the computer, in GB."""
    gpu_gb: Amount = 0.0
    """Memory of one of its NVIDIA GPUs, in GB."""
    disk_gb: Amount = 0.0
    """Room for the run on disk, within max_disk, in GB."""
    up_mbit: Amount = 0.0
    """Mbit/s that a peer's max_up must allow, and its line should carry."""
    down_mbit: Amount = 0.0
    """Mbit/s that a peer's max_down must allow, and its line should carry."""
    version: Annotated[str, Field(max_length=20, pattern=LEAST_VERSION)] = ""
    """Least version of the software, such as ">=0.2" or ">=0.2.1"; empty: any."""


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
    """The factor by which rotary positions are stretched, in the same way as in Llama 3.1 ("llama3"); 1: not at all."""
    rope_low_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 1.0
    """Frequencies that make fewer turns than this within rope_original_context are divided by rope_factor."""
    rope_high_freq_factor: Annotated[float, Field(gt=0, le=1024, allow_inf_nan=False)] = 4.0
    """Frequencies that make more turns than this within rope_original_context are kept."""
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
    def family(self) -> str:
        """Name of the models that are shaped like this one."""
        return "Qwen3" if self.qk_norm else "Qwen2" if self.qkv_bias else "Llama"

    @property
    def parameters(self) -> int:
        """Parameters in the flat vector that peers exchange."""
        return self._shape.parameters


# ------------------------------------------------------------------------------------------------------------------------
# Files of the run, and the sections that name them.


FILE_CHUNK_BYTES = 1 << 20
"""Bytes of a chunk of a file."""
MAX_FILE_BYTES = 64 << 20
CORPORA = "corpora/"
"""Prefix of the names of the corpora's manifests; their numbers follow."""
MAX_CORPORA, MAX_SOURCES, MAX_PHASES, MAX_MIRRORS = 16, 16, 16, 8
MAX_WEIGHT = MAX_WEIGHTS // MAX_SOURCES
MirrorField = Annotated[str, Field(pattern=r"^https?://[\x21-\x7e]{1,400}$")]
"""Address of a folder on a web server."""
TOKENIZER = "tokenizer.json"
"""Name of the file in the run, whatever the organiser's was called."""
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


class SourceSection(Section):
    """A source of rows: one source of one of the run's corpora."""

    LATER: ClassVar[frozenset[str]] = frozenset({"counted"})

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$")]
    """Name of the source in its corpus."""
    corpus: Annotated[int, Field(ge=0, lt=MAX_CORPORA)] = 0
    """Number of its corpus, from 0."""
    weight: Annotated[int, Field(ge=0, le=MAX_WEIGHT)] = 1
    """Share of the rows that come from it: its weight, divided by the sum of all weights."""
    rows: Annotated[int, Field(ge=1, le=1 << 44)]
    """Rows that it has to learn from, in one epoch."""
    counted: Annotated[int, Field(ge=0, le=1 << 61)] = 0
    """Tokens of these rows that the loss counts; 0: all that they predict.  For people: nothing follows from it."""


class PhaseSection(Section):
    """A later mixture of the sources."""

    from_tokens: Annotated[int, Field(ge=1, le=1 << 50)]
    """Tokens read by all members together from which the mixture is used."""
    weights: Annotated[list[Annotated[int, Field(ge=0, le=MAX_WEIGHT)]], Field(min_length=1, max_length=MAX_SOURCES)]
    """Weight of each source, in their order."""


FieldName = Annotated[str, Field(min_length=1, max_length=200)]


class ConditionSection(Section):
    """Condition on the records that are read: a field has one of some values."""

    field: FieldName
    """Name of the field."""
    values: Annotated[list[Annotated[str, Field(max_length=200)]], Field(min_length=1, max_length=64)]
    """Values that are read."""


class LocalSection(Section):
    """Reading of the members' own data, in a run with source = "local"."""

    LATER: ClassVar[frozenset[str]] = frozenset({"keep_repeated"})

    text: FieldName = "text"
    """Field of a record that holds its text or its turns."""
    id: Annotated[str, Field(max_length=200)] = ""
    """Field of a record that identifies it; empty: its text does."""
    where: Annotated[list[ConditionSection], Field(max_length=16)] = []
    """Conditions on the records."""
    least_characters: Annotated[int, Field(ge=1, le=1 << 40)] = 1
    """Shortest text that is read."""
    most_characters: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Longest text that is read; 0: no limit."""
    most_rows: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    """Records that are read of each input, from its beginning; 0: all."""
    held_out_percent: Annotated[int, Field(ge=1, le=50)] = 5
    """Share of the documents that is held out for the evaluation loss, in percent."""
    keep_repeated: bool = False
    """True: documents with the text of another are read as often as they are there; false: once."""


class DataSection(Section):
    """Data that members read, and the amount of it in an inner step."""

    LATER: ClassVar[frozenset[str]] = frozenset(
        {
            "format",
            "documents",
            "corpora",
            "sources",
            "phases",
            "epochs",
            "mirrors",
            "beta",
            "label_smoothing",
            "source",
            "local",
        }
    )

    sequence_length: Annotated[int, Field(ge=8, le=1 << 17)] = 512
    """Tokens predicted in one window."""
    sequences_per_step: Annotated[int, Field(ge=1, le=1 << 16)] = 4
    """Windows in one inner step of one member."""
    format: Literal["text", "chat", "preference"] = "text"
    """The rows: "text"; "chat", of which what the assistant says counts; or "preference", pairs of answers (DPO)."""
    documents: Literal["masked", "joined"] = "joined"
    """The documents of a row of text: "masked" (none sees another, and positions restart) or "joined"."""
    corpora: Annotated[list[FileSection], Field(max_length=MAX_CORPORA)] = []
    """The manifests of the run's corpora."""
    sources: Annotated[list[SourceSection], Field(max_length=MAX_SOURCES)] = []
    """The sources that are mixed; weights count rows."""
    phases: Annotated[list[PhaseSection], Field(max_length=MAX_PHASES)] = []
    """Later mixtures, ascending; before the first one, the weights of the sources are used."""
    epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Times that each source is read at most; the run ends before one would be read again.  0: no limit."""
    mirrors: Annotated[list[MirrorField], Field(max_length=MAX_MIRRORS)] = []
    """Web addresses at which the corpora's folders lie; blocks are fetched from there too."""
    beta: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 0.1
    """Strength with which preferences hold the model near the initial weights (DPO's beta)."""
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5, allow_inf_nan=False)] = 0.0
    """Share of the preferences that are taken to be the wrong way round (conservative DPO)."""
    source: Literal["corpora", "local"] = "corpora"
    """Origin of the rows: "corpora", those of the run; or "local", each member's own data, which stays on its computer."""
    local: LocalSection | None = None
    """Reading of the members' own data, if source is "local"."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        refuse(data_problems(self.sequence_length, self.sequences_per_step))
        refuse(self._source_problems())
        refuse(self._local_problems())
        return self

    @property
    def row_tokens(self) -> int:
        """Most tokens that the loss of a row of the run counts; a row of preferences is a pair of rows."""
        return self.sequence_length * (2 if self.format == "preference" else 1)

    def epoch_tokens(self, source: SourceSection) -> int:
        """Return the tokens of a source that the loss counts in one epoch."""
        most = source.rows * self.row_tokens
        return max(source.rows, min(source.counted, most)) if source.counted else most

    @property
    def counted_share(self) -> float:
        """Share of the tokens of a row that the loss counts, in the first mixture: rows have questions and padding, too."""
        weights = sum(source.weight for source in self.sources)
        if not weights:
            return 1.0
        counted = sum(source.weight * self.epoch_tokens(source) / source.rows for source in self.sources)
        return counted / weights / self.row_tokens

    @property
    def is_local(self) -> bool:
        """True if each member reads data of its own."""
        return self.source == "local"

    def _local_problems(self) -> Iterator[ManifestProblem]:
        shared = {
            "corpora": self.corpora,
            "sources": self.sources,
            "phases": self.phases,
            "mirrors": self.mirrors,
            "epochs": self.epochs,
        }
        named = tuple(name for name, value in shared.items() if value)
        if self.is_local and named:
            yield ManifestProblem(
                (*named, "source"),
                f'source is "local", so each member brings data of its own, and {", ".join(named)} would name data of the '
                "run; remove one of the two",
            )
        if self.local is not None and not self.is_local:
            yield ManifestProblem(
                ("local", "source"), 'local is about the members\' own data, and source is not "local"; remove it'
            )

    def _source_problems(self) -> Iterator[ManifestProblem]:
        if self.format != "text" and not self.corpora and not self.is_local:
            yield ManifestProblem(
                ("format", "corpora"),
                f'format is "{self.format}", and no {self.format}s are named; add from = "{self.format}s.jsonl"',
            )
        if bool(self.corpora) != bool(self.sources):
            yield ManifestProblem(("corpora", "sources"), "a run with corpora names sources in them; add both, or neither")
        if any(source.corpus >= len(self.corpora) for source in self.sources):
            yield ManifestProblem(("sources", "corpora"), "a source names a corpus that the run does not have; correct it")
        if len({source.name for source in self.sources}) < len(self.sources):
            yield ManifestProblem(
                ("sources",), "two sources have one name; remove one, or build its corpus with another name"
            )
        if self.phase_starts != sorted(set(self.phase_starts)):
            yield ManifestProblem(("phases",), "phases must begin one after the other, at least a row apart; sort them")
        mixtures = [[source.weight for source in self.sources], *(phase.weights for phase in self.phases)]
        if any(len(weights) != len(self.sources) or (weights and not any(weights)) for weights in mixtures):
            yield ManifestProblem(
                ("phases", "sources"), "each mixture needs a weight for each source, and one above 0; correct the weights"
            )

    @property
    def phase_starts(self) -> list[int]:
        """First row of each mixture, the sources' own first."""
        return [0, *(-(-phase.from_tokens // self.sequence_length) for phase in self.phases)]


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


# ------------------------------------------------------------------------------------------------------------------------
# The manifest's section on reinforcement learning: the environment, its rollouts, and the learning from them.
#
# All fields but `OURS` are the trainer's (`trainer.rl.config`), with the same names and defaults.


OURS = frozenset({"environment", "problems", "prompts_per_batch", "batches_per_round", "judge_s", "warm_rounds", "files"})
"""Fields that the trainer does not read in this section."""

HEAD_BYTES, TOKEN_BYTES = 32, 3
"""Bytes of a rollout's head, and of a token in it, at most (`trainer.rl.rollout`)."""

Weight = Annotated[float, Field(ge=0, le=1e3, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Above = Annotated[float, Field(gt=0, le=1e3, allow_inf_nan=False)]
Mantissa = Annotated[float, Field(ge=0, le=127, allow_inf_nan=False)]
Decay = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Tokens = Annotated[int, Field(ge=1, le=1 << 24)]


class RlSection(Section):
    """Rollouts and their learning; left out of a run that only reads text."""

    LATER: ClassVar[frozenset[str]] = frozenset({"files"})

    environment: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[\x20-\x7e]+$")]
    """Name of the tasks that rollouts solve, with its options: "add", "add(digits=3)", "mixture(add(digits=3), sort)"."""
    problems: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 16
    """Problems of the environment that are drawn from: those numbered 0 to problems - 1."""
    prompts_per_batch: Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)] = 8
    """Prompts of a batch, which a rollout peer makes at a time."""
    batches_per_round: Annotated[int, Field(ge=1, le=MAX_USED)] = 32
    """Accepted batches that a trainer waits for before it learns from them."""
    warm_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Rounds of ordinary training, on the text of the data section, before the first one that learns from rollouts."""
    judge_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds after which a batch that its validator has not judged is dealt to the next one."""
    group_size: Annotated[int, Field(ge=2, le=1024)] = 16
    """Completions of each prompt (G); one alone could be compared with none."""
    max_tokens: Tokens = 32_768
    """Tokens of an output at most."""
    temperature: Above = 1.0
    """Logits are divided by it, in sampling and in the loss."""
    max_async: Annotated[int, Field(ge=0, le=16)] = 2
    """Versions by which a rollout may be older than the one that is trained."""
    length_weight: Weight = 0.0003
    """Reward taken away for each token between an output's length and the one that its prompt names."""
    length_targets: Annotated[list[Tokens], Field(max_length=64)] = []
    """Lengths in tokens of which each prompt names one; none is no length reward."""
    min_solve_rate: Share = 0.1
    """Tasks in files whose record has a `solve_rate` below it, from 0 to 1, are left out: too hard to learn from."""
    max_solve_rate: Share = 0.8
    """Tasks in files whose record has a `solve_rate` above it, from 0 to 1, are left out: too easy to learn from."""
    divide_by_std: bool = True
    """True: advantages are divided by the standard deviation of their group's rewards."""
    drop_zero_advantage: bool = True
    """True: groups in which all rewards are equal are left out of the batch."""
    eps: Decay = 0.2
    """Ratios of new to old probability count between 1 - eps and 1 + eps."""
    delta: Annotated[float, Field(ge=1, le=1e3, allow_inf_nan=False)] = 4.0
    """Ratios of tokens with a negative advantage count up to this."""
    entropy_weight: Weight = 1e-4
    """Weight of the entropy bonus: a nat is worth so much loss."""
    kl_weight: Weight = 0.0
    """Weight of the divergence from the weights that rollouts began with: a nat costs so much loss."""
    optimizer_steps: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Steps in which a version's rollouts are trained on once."""
    lr: Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)] = 3e-7
    """AdamW's learning rate after the warm-up, constant."""
    warmup_steps: Annotated[int, Field(ge=0, le=2**40)] = 25
    """Optimiser steps of the run over which the rate rises from 0."""
    clip_norm: Above = 0.1
    """Gradients are scaled down to this global norm."""
    beta1: Decay = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: Decay = 0.95
    """AdamW's decay of the mean of their squares."""
    adam_eps: Above = 1e-8
    """Added by AdamW to the root of the mean square."""
    weight_decay: Weight = 0.0
    """AdamW's, of matrices: by so much times the rate a step."""
    row_tokens: Tokens = 40_960
    """Tokens of a row into which sequences are packed: as many as the longest prompt and output together, less one."""
    micro_batch_tokens: Tokens = 40_960
    """Tokens that are computed at once: as many rows as have no more, and at least one row."""
    top_k: Annotated[int, Field(ge=1, le=65_497)] = 128
    """Values of a chunk's hidden states that its proof commits to."""
    chunk_tokens: Annotated[int, Field(ge=1, le=1 << 16)] = 32
    """Tokens that share a proof."""
    min_end_probability: Share = 0.1
    """An output shorter than `max_tokens` ends with an end token of at least this probability under the model."""
    max_exponent_mismatches: Annotated[int, Field(ge=0, le=65_497)] = 38
    """Values of a chunk's proof whose exponents may differ from those that a validator computes."""
    max_mantissa_mean: Mantissa = 10.0
    """Mean by which the 7 bits of mantissa of the others may differ."""
    max_mantissa_median: Mantissa = 8.0
    """Median by which they may differ."""
    max_shortfall: Above = 0.5
    """Units of logits over temperature by which all but two tokens of a rollout may fall short of the sampling's choice."""
    shortfall_ceiling: Above = 1.0
    """Units by which any token may fall short at most; max_shortfall at least."""
    shortfall_rate: Annotated[float, Field(ge=0, le=0.1, allow_inf_nan=False)] = 0.001
    """Mean by which honest tokens fall short, per unit of 1 - sum p^2; tokens together may by three times as much."""
    files: Annotated[list[TasksSection], Field(max_length=MAX_TASKS_FILES)] = []
    """The files that the environment reads, which every peer fetches; they follow from those beside the run file."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[ManifestProblem]:
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            yield ManifestProblem(("files",), "files must be sorted by path and without repetition; sort them")
        if self.rollouts_per_batch > MAX_ROLLOUTS:
            would_do = max(1, MAX_ROLLOUTS // self.group_size)
            yield ManifestProblem(
                ("prompts_per_batch", "group_size"),
                f"a batch of {self.prompts_per_batch} prompts with {self.group_size} completions each has more than "
                f"{MAX_ROLLOUTS} rollouts; prompts_per_batch = {would_do} would do",
            )
        if self.problems < self.prompts_per_batch:
            yield ManifestProblem(
                ("problems", "prompts_per_batch"),
                f"a batch has {self.prompts_per_batch} different problems, and there are {self.problems}; "
                f"prompts_per_batch = {self.problems} would do",
            )
        if self.min_solve_rate > self.max_solve_rate:
            yield ManifestProblem(
                ("min_solve_rate", "max_solve_rate"),
                f"min_solve_rate ({self.min_solve_rate:g}) is more than max_solve_rate ({self.max_solve_rate:g}); "
                "exchange them",
            )
        if self.row_tokens < self.max_tokens:
            yield ManifestProblem(
                ("row_tokens", "max_tokens"),
                f"row_tokens ({self.row_tokens}) is less than max_tokens ({self.max_tokens}), and a sequence is never cut; "
                f"row_tokens = {self.max_tokens + self.max_tokens // 4} would do",
            )
        if self.shortfall_ceiling < self.max_shortfall:
            yield ManifestProblem(
                ("shortfall_ceiling", "max_shortfall"),
                f"shortfall_ceiling ({self.shortfall_ceiling:g}) is less than max_shortfall ({self.max_shortfall:g}); "
                f"shortfall_ceiling = {2 * self.max_shortfall:g} would do",
            )
        if self.delta < 1 + self.eps:
            yield ManifestProblem(("delta", "eps"), f"delta ({self.delta:g}) is less than 1 + eps; delta = 4.0 would do")

    @property
    def rollouts_per_batch(self) -> int:
        """Rollouts of a batch."""
        return self.prompts_per_batch * self.group_size

    @property
    def tokens_per_batch(self) -> int:
        """Tokens of a batch's outputs at most."""
        return self.rollouts_per_batch * self.max_tokens

    @property
    def bytes_per_batch(self) -> int:
        """Bytes of a batch at most: of each rollout its head, its tokens, a bit for each token's maker, and its proofs."""
        proofs = -(-self.max_tokens // self.chunk_tokens) * 2 * (1 + self.top_k)
        each = HEAD_BYTES + TOKEN_BYTES * (self.row_tokens + 1) + -(-self.max_tokens // 8) + proofs
        return min(MAX_BATCH_BYTES, HEAD_BYTES + self.rollouts_per_batch * each)

    @property
    def tokens_per_round(self) -> int:
        """Tokens that a member learns from in a round at most: prompts do not count."""
        return self.batches_per_round * self.tokens_per_batch

    def trainer_section(self) -> dict[str, Any]:
        """Return the section that `trainer.rl.config` reads."""
        fields = {name: value for name, value in self.model_dump().items() if name not in OURS}
        return {**fields, "prompts": self.prompts_per_batch * self.batches_per_round}
