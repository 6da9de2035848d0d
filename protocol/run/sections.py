"""Sections of the manifest as peers read them: description, requirements, files, data, length, reinforcement learning.

`protocol.formats` has the sections and fields that trainers also read.

Tokenizers, tasks of environments and the manifests of corpora are files of the run: the manifest names them by the root over
the hashes of their chunks, and every peer fetches them from others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, ClassVar, TypeGuard

from pydantic import Field

from kernels.mixture import MAX_WEIGHTS
from protocol.formats.adapter import BASE_PREFIX, WeightFormatName
from protocol.formats.rl import RlConfig
from protocol.formats.section import PRINTABLE, Problems, Section
from protocol.formats.training import DataConfig, TokenizerConfig
from protocol.wire.hashes import Hash
from protocol.wire.messages import MAX_USED
from protocol.wire.questions import MAX_LEAVES
from protocol.wire.rollouts import MAX_BATCH_BYTES, MAX_ROLLOUTS

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
    """Oldest version of the software that may train, such as ">=0.2" or ">=0.2.1"; empty: any."""


# ------------------------------------------------------------------------------------------------------------------------
# The length of a run: one number, in tokens or in rounds, from which its learning rate follows as well.


class Unit(StrEnum):
    """Unit in which the total of a run counts."""

    TOKENS = "tokens"
    ROUNDS = "rounds"


@dataclass(frozen=True)
class Goal:
    """The end of a run.

    total: amount in `unit`, of all members together.  cooldown: share of the total in which the rate comes down.
    """

    unit: Unit
    total: int
    cooldown: float


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
    """Size of the file in bytes."""
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


MAX_BASE_FILES = 256
"""Most files of a frozen model; each takes about 200 of the manifest's bytes."""
MAX_BASE_FILE_BYTES = MAX_LEAVES * FILE_CHUNK_BYTES
"""Largest file of a frozen model: 32 GiB."""


class BaseFileSection(FileSection):
    """A file of the frozen model's folder, as it was published."""

    size: Annotated[int, Field(ge=1, le=MAX_BASE_FILE_BYTES)]
    """Size of the file in bytes."""
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$")]
    """Its name in the folder."""

    @property
    def called(self) -> str:
        """Name of the file among the files of the run."""
        return BASE_PREFIX + self.path


class BaseSection(Section):
    """The frozen model beside whose matrices a run trains factors: the files of a Hugging Face folder, unchanged."""

    files: Annotated[list[BaseFileSection], Field(min_length=1, max_length=MAX_BASE_FILES)]
    """The files of the folder that define the model: config.json, and its weights as safetensors."""
    name: Annotated[str, Field(max_length=100, pattern=PRINTABLE)] = ""
    """Name of the folder, for people and for exports; empty if the organiser did not say one."""
    format: WeightFormatName = "bf16"
    """Format in which every peer holds the matrices: "bf16", "int8" or "int4"."""
    mirrors: Annotated[list[MirrorField], Field(max_length=MAX_MIRRORS)] = []
    """Addresses of folders on web servers with the files, such as https://huggingface.co/NAME/resolve/REVISION."""
    share: bool = True
    """True if peers give the files to each other; False for a licence under which everybody has to get them alone."""

    def _problems(self) -> Problems:
        names = [file.path for file in self.files]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            yield "files", f"{twice[0]} is listed twice among the files of the frozen model; remove one of them"
        if "config.json" not in names:
            yield "files", "config.json is not among the files of the frozen model, which it describes; add it"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


SOURCE_NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"
"""Pattern of the name of a source."""


class SourceSection(Section):
    """A source of rows: one source of one of the run's corpora."""

    LATER: ClassVar[frozenset[str]] = frozenset({"counted"})

    name: Annotated[str, Field(pattern=SOURCE_NAME)]
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
    """Field of a record that identifies it; empty: its text identifies it."""
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
    """True: every copy of a repeated document is read; false: only one copy."""


class DataSection(DataConfig):
    """Data that members read, and the amount of it in an inner step."""

    LATER: ClassVar[frozenset[str]] = DataConfig.LATER | {"corpora", "sources", "phases", "epochs", "mirrors", "local"}

    corpora: Annotated[list[FileSection], Field(max_length=MAX_CORPORA)] = []
    """The manifests of the run's corpora."""
    sources: Annotated[list[SourceSection], Field(max_length=MAX_SOURCES)] = []
    """The sources that are mixed; weights count rows."""
    phases: Annotated[list[PhaseSection], Field(max_length=MAX_PHASES)] = []
    """Later mixtures, ascending; before the first one, the weights of the sources are used."""
    epochs: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Most times that each source is read; the run ends before a source would be read again.  0: no limit."""
    mirrors: Annotated[list[MirrorField], Field(max_length=MAX_MIRRORS)] = []
    """Web addresses at which the corpora's folders lie; blocks are fetched from there as well."""
    local: LocalSection | None = None
    """Reading of the members' own data, if source is "local"."""

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
        """Share of the tokens of a row that the loss counts, in the first mixture: rows also have questions and padding."""
        weights = sum(source.weight for source in self.sources)
        if not weights:
            return 1.0
        counted = sum(source.weight * self.epoch_tokens(source) / source.rows for source in self.sources)
        return counted / weights / self.row_tokens

    @property
    def is_local(self) -> bool:
        """True if each member reads data of its own."""
        return self.source == "local"

    def _problems(self) -> Problems:
        yield from super()._problems()
        named = [name for name in ("corpora", "sources", "phases", "mirrors", "epochs") if getattr(self, name)]
        if self.is_local and named:
            yield (
                " ".join([*named, "source"]),
                f'source is "local", so each member brings data of its own, and {", ".join(named)} would name data of the '
                "run; remove one of the two",
            )
        if self.local is not None and not self.is_local:
            yield ("local source", 'local is about the members\' own data, but source is not "local"; remove local')
        if self.format != "text" and not self.corpora and not self.is_local:
            yield (
                "format corpora",
                f'format is "{self.format}", but no {self.format}s are named; add from = "{self.format}s.jsonl"',
            )
        if bool(self.corpora) != bool(self.sources):
            yield ("corpora sources", "a run with corpora names sources in them; give both corpora and sources, or neither")
        if any(source.corpus >= len(self.corpora) for source in self.sources):
            yield ("sources corpora", "a source names a corpus that the run does not have; correct its corpus number")
        if len({source.name for source in self.sources}) < len(self.sources):
            yield ("sources", "two sources have the same name; remove one, or build its corpus with another name")
        if self.phase_starts != sorted(set(self.phase_starts)):
            yield ("phases", "phases must begin in ascending order, at least a row apart; sort the phases")
        mixtures = [[source.weight for source in self.sources], *(phase.weights for phase in self.phases)]
        if any(len(weights) != len(self.sources) or (weights and not any(weights)) for weights in mixtures):
            yield ("phases sources", "each mixture needs a weight for each source, and one above 0; correct the weights")

    @property
    def phase_starts(self) -> list[int]:
        """First row of each mixture, the sources' own first."""
        return [0, *(-(-phase.from_tokens // self.sequence_length) for phase in self.phases)]


class TokenizerSection(TokenizerConfig):
    """Tokenizer and layout of conversations; left out of a run whose model reads bytes."""

    file: FileSection


# ------------------------------------------------------------------------------------------------------------------------
# Corpus of the text that comes with the program (`peer.corpora.builtin`), which every peer builds for itself.
#
# The demo run and every run file without data of its own name it.  The numbers follow from the text, which is frozen.


SOURCE, EXAMPLES = "manyhands", "examples"
"""Name of its only source, and of the source of an environment's solved examples, which no organiser brings either."""
BUILTIN = FileSection(size=687, root="e93f39312e0ce89cd71ca0e98767817cf7951cbd2a38a2c1a93e7c0ad680a1db")
"""The manifest of the corpus, as a file of the run."""
TOKENS = 4_141_363
"""Tokens to learn from, which are bytes."""


def builtin_source(length: int) -> SourceSection:
    """Return the source of a run whose rows predict `length` tokens."""
    return SourceSection(name=SOURCE, rows=-(-(TOKENS - 1) // length))


def reads_builtin(section: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return True if a data section of a run file names no data, so that the run reads the text of the program."""
    names_none = isinstance(section, Mapping) and not {"from", "sources", "corpora", "corpus"} & set(section)
    return names_none and section.get("format", "text") == "text" and section.get("source") != "local"


# ------------------------------------------------------------------------------------------------------------------------
# The manifest's section on reinforcement learning: the environment, its rollouts, and the learning from them.


HEAD_BYTES, TOKEN_BYTES = 32, 3
"""Most bytes of a rollout's head, and of a token in the rollout (`trainer.rl.rollout`)."""


class RlSection(RlConfig):
    """Rollouts and their learning; left out of a run that only reads text."""

    LATER: ClassVar[frozenset[str]] = frozenset(
        {"files", "exchange_rate", "mantissa_rate", "same_shortfall_rate", "same_exchange_rate", "same_mantissa_rate"}
    )

    environment: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[\x20-\x7e]+$")]
    """Name of the tasks that rollouts solve, with its options: "add", "add(digits=3)", "mixture(add(digits=3), sort)"."""
    problems: Annotated[int, Field(ge=1, le=1 << 40)] = 1 << 16
    """Number of the environment's problems that are drawn from; they are numbered 0 to problems - 1."""
    prompts_per_batch: Annotated[int, Field(ge=1, le=MAX_ROLLOUTS)] = 8
    """Prompts of a batch, which a rollout peer makes at a time."""
    batches_per_round: Annotated[int, Field(ge=1, le=MAX_USED)] = 32
    """Accepted batches that a trainer waits for before it learns from them."""
    warm_rounds: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Rounds of ordinary training, on the text of the data section, before the first one that learns from rollouts."""
    judge_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 60.0
    """Seconds after which a batch that its validator has not judged is dealt to the next one."""
    files: Annotated[list[TasksSection], Field(max_length=MAX_TASKS_FILES)] = []
    """The files that the environment reads, which every peer fetches; they follow from the files beside the run file."""

    def _problems(self) -> Problems:
        yield from super()._problems()
        paths = [file.path for file in self.files]
        if paths != sorted(set(paths)):
            yield ("files", "files must be sorted by path and without repetition; sort them and remove repetitions")
        if self.rollouts_per_batch > MAX_ROLLOUTS:
            would_do = max(1, MAX_ROLLOUTS // self.group_size)
            yield (
                "prompts_per_batch group_size",
                f"a batch of {self.prompts_per_batch} prompts with {self.group_size} completions each has more than "
                f"{MAX_ROLLOUTS} rollouts; prompts_per_batch = {would_do} would do",
            )
        if self.problems < self.prompts_per_batch:
            yield (
                "problems prompts_per_batch",
                f"a batch has {self.prompts_per_batch} different problems, but there are {self.problems}; "
                f"prompts_per_batch = {self.problems} would do",
            )

    @property
    def rollouts_per_batch(self) -> int:
        """Rollouts of a batch."""
        return self.prompts_per_batch * self.group_size

    @property
    def tokens_per_batch(self) -> int:
        """Most tokens of a batch's outputs."""
        return self.rollouts_per_batch * self.max_tokens

    @property
    def bytes_per_batch(self) -> int:
        """Most bytes of a batch: of each rollout its head, its tokens, a bit for each token's maker, and its proofs."""
        proofs = -(-self.max_tokens // self.chunk_tokens) * 2 * (1 + self.top_k)
        each = HEAD_BYTES + TOKEN_BYTES * (self.row_tokens + 1) + -(-self.max_tokens // 8) + proofs
        return min(MAX_BATCH_BYTES, HEAD_BYTES + self.rollouts_per_batch * each)

    @property
    def tokens_per_round(self) -> int:
        """Most tokens that a member learns from in a round; prompts do not count."""
        return self.batches_per_round * self.tokens_per_batch
