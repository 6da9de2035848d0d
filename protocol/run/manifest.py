"""The run manifest: the definition of a run, fixed by its organiser once and for all.

Decides the fields, their ranges and their consistency; the manifest's hash is the run ID and its signature is the
organiser's.  Ranges are strict because a manifest comes from a stranger: nothing in it may make a peer set aside absurd
memory or wait absurdly long.  The peer decides whether its own machine can carry the run (`state_bytes`), and
`protocol.run.run_file` reads manifests from files that people wrote.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import ceil
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from kernels.aggregate import Rule, agreement_of, weights_of
from kernels.codecs.ladder import LADDER, Codec, CodecName
from kernels.layout import Layouts, chunk_count, chunk_layouts, fragment_length, fragment_spans
from kernels.mixture import MixturePhase, RowMixture
from kernels.outer_step import MEAN, OuterStep, automatic, sharing_rate
from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.formats.model import MAX_CHUNK_PARAMETERS, MAX_CHUNKS, MAX_PARAMETERS, ModelConfig
from protocol.formats.rl import RlConfig
from protocol.formats.section import PRINTABLE, Problems, Section
from protocol.formats.training import (
    RECEIPT_BYTES,
    DataConfig,
    Fraction,
    InnerConfig,
    Positive,
    SamplesConfig,
    TokenizerConfig,
)
from protocol.run.sections import (
    BUILTIN,
    CORPORA,
    TOKENIZER,
    AboutSection,
    BaseSection,
    DataSection,
    FileSection,
    Goal,
    RequiresSection,
    RlSection,
    TokenizerSection,
    Unit,
    builtin_source,
)
from protocol.wire.canonical import Malformed
from protocol.wire.envelope import MAX_FRAGMENTS, MAX_MEMBERS, Body, PeerField, decode_body, open_envelope
from protocol.wire.hashes import ZERO_HASH, Hash, hash_bytes
from protocol.wire.identity import Identity
from protocol.wire.messages import MAX_USED_BY_ALL, Total, pack

PROTOCOL_VERSION = 3
"""The version of the protocol that this software speaks.  Raise it if a kind of statement changes its name or its fields."""

MAX_ALLOWLIST = 4096
MAX_ELECTORS = 64
"""Most voters on one record, and most founders."""
MAX_MANIFEST_BYTES = 320 << 10
MAX_RECEIPTS_BYTES = 16 << 20
"""Most bytes of the receipts of a member's round; with more rows a run has none."""
STATE_BYTES_PER_PARAMETER = 8
"""Parameter and momentum, fp32 each."""
RESIDUAL_BYTES_PER_PARAMETER = 4
"""The part of a difference that error feedback remembers, fp32."""
BF16_BYTES = 2


CHUNK_STEP = 256
"""Divisor of the parameters in a chunk; some codecs need a larger one."""
MAX_CHECKPOINT_CHUNK_BYTES = 1 << 24
MAX_CHECKPOINT_CHUNKS = 1 << 15
"""Most chunks of a checkpoint: the list of their hashes (1 MiB) must fit into one answer."""
FEW_CHUNKS = 64
"""Chunks of an exchange, eight for each of eight members: more are shared out hardly better, and each costs processor time
(docs/results/exchange.md)."""
FEW_CHECKPOINT_CHUNKS = 1 << 13
LEAST_CHUNK_PARAMETERS = 1 << 16
LEAST_CHECKPOINT_CHUNK_BYTES = 1 << 18


def chunk_size(parameters: int) -> int:
    """Return the parameters in a chunk of a contribution, for a run file that leaves them out."""
    size = LEAST_CHUNK_PARAMETERS
    while size < MAX_CHUNK_PARAMETERS and chunk_count(parameters, size) > FEW_CHUNKS:
        size *= 2
    return size


def checkpoint_chunk_size(state_bytes: int) -> int:
    """Return the bytes in a chunk of a checkpoint, for a run file that leaves them out."""
    size = LEAST_CHECKPOINT_CHUNK_BYTES
    while size < MAX_CHECKPOINT_CHUNK_BYTES and -(-state_bytes // size) > FEW_CHECKPOINT_CHUNKS:
        size *= 2
    return size


class OuterSection(Section):
    """Nesterov SGD on the weighted mean of the members' differences, the same in every round."""

    lr: Positive = 0.7
    """Outer learning rate."""
    momentum: Fraction = 0.9
    """Outer momentum."""


OUTER_FORMS = ("outer as a word", "outer as a section")
"""Names that pydantic gives to the two forms of the outer step in the places of its errors."""
FOUNDERS_FORMS = ("founders as a word", "founders as a list")
"""Names that pydantic gives to the two forms of the founders."""


Outer = Annotated[
    Annotated[Literal["auto"], Tag(OUTER_FORMS[0])] | Annotated[OuterSection, Tag(OUTER_FORMS[1])],
    Discriminator(lambda value: OUTER_FORMS[isinstance(value, Mapping | OuterSection)]),
]


Founders = Annotated[
    Annotated[Literal["anyone"], Tag(FOUNDERS_FORMS[0])]
    | Annotated[list[PeerField], Field(min_length=1, max_length=MAX_ELECTORS), Tag(FOUNDERS_FORMS[1])],
    Discriminator(lambda value: FOUNDERS_FORMS[isinstance(value, list)]),
]


class RoundSection(Section):
    """Length of a round, its participants, and the limits on waiting."""

    LATER: ClassVar[frozenset[str]] = frozenset({"delay", "audits"})

    inner_steps: Annotated[int, Field(ge=1, le=10_000)] = 20
    """Inner steps of a member between two exchanges of a parameter (H); a round has 1 / fragments of them."""
    delay: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Steps that a member may continue to train before it needs a round's result; 0: it waits at once."""
    min_members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = 1
    """Minimum number of members of a round."""
    max_members: Annotated[int, Field(ge=1, le=MAX_MEMBERS)] = 64
    """Maximum number of members of a round."""
    grace_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 10.0
    """Seconds that a ready quorum waits for the other peers; longer in long rounds, as far as their work is worth it."""
    eviction_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 20.0
    """Seconds after which a missing elector may be counted as absent."""
    stall_s: Annotated[float, Field(ge=1, le=3600, allow_inf_nan=False)] = 10.0
    """Seconds without any progress after which an attempt is given up."""
    seasoning_rounds: Annotated[int, Field(ge=1, le=100)] = 3
    """Records in a row to which a peer contributes before it gets a vote."""
    tenure_rounds: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Records on which an elector votes before it is senior; younger ones hold a quarter of the votes in an open run."""
    listen_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = 6.0
    """Seconds for which a peer hears that most electors are not on a provisional record before it gives the record up."""
    audits: bool = True
    """True if members keep receipts of the rows that they train on, which others audit."""

    def _problems(self) -> Problems:
        least, most = self.min_members, self.max_members
        if least > most:
            text = f"min_members ({least}) is more than max_members ({most}); max_members = {least} would do"
            yield "min_members max_members", text


class Admission(StrEnum):
    """Admission rule of a run."""

    OPEN = "open"
    INVITE = "invite"
    ALLOWLIST = "allowlist"


@dataclass(frozen=True)
class DataEnd:
    """End of a run that may read its data only so often.

    tokens: tokens of all members together, as the loss counts them.  rounds: rounds of one member.
    """

    tokens: int
    rounds: int


class RunManifest(Section, Body):
    """A run.  Two runs that differ in any field are different runs."""

    KIND: ClassVar[str] = "manifest"
    LATER: ClassVar[frozenset[str]] = frozenset(
        {
            "about",
            "adapter",
            "base",
            "initial_state",
            "requires",
            "rl",
            "samples",
            "tokenizer",
            "total_rounds",
            "total_tokens",
        }
    )

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)]
    """Name of the run, for people."""
    organiser: PeerField
    """Peer ID of the organiser, who signs the manifest and the tokens."""
    founders: Founders
    """A list of the peer IDs that vote until four peers have earned a vote, sorted; or "anyone": the last members vote."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the initial parameters, and of the lengths that prompts of rollouts name."""
    initial_state: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$", max_length=64)] = ""
    """Digest of the outer state before the first round, in hex; empty if it follows from the seed."""
    protocol_min: Annotated[int, Field(ge=1, le=1_000_000)] = PROTOCOL_VERSION
    """Oldest protocol version that may take part."""
    protocol_max: Annotated[int, Field(ge=1, le=1_000_000)] = PROTOCOL_VERSION
    """Newest protocol version that may take part."""
    model: ModelConfig = ModelConfig()
    adapter: AdapterConfig | None = None
    """Trained factors beside the matrices of a frozen model; left out if the whole model is trained."""
    base: BaseSection | None = None
    """The frozen model of a run with an adapter."""
    data: DataSection = DataSection()
    inner: InnerConfig = InnerConfig()
    outer: Outer = "auto"
    """The outer step: "auto" (rate, momentum, and the factor on `rl.lr` follow from the members), or lr and momentum."""
    rounds: RoundSection = RoundSection()
    codec: CodecName = "int4"
    """Encoding of contributions and results; a run file may also say "auto", which means "int4"."""
    fragments: Annotated[int, Field(ge=1, le=MAX_FRAGMENTS)] = 1
    """Number of fragments of the state; each round exchanges one of them, in turn."""
    chunk_parameters: Annotated[int, Field(ge=CHUNK_STEP, le=MAX_CHUNK_PARAMETERS, multiple_of=CHUNK_STEP)] = 1 << 16
    """Parameters in one chunk of a contribution; a multiple of 256, and of the codec's block (4096 for top64)."""
    aggregation: Rule = "clip"
    """The rule that makes one result of all contributions: "mean" (by tokens), "clip", "trimmed" or "centered_clip"."""
    admission: Annotated[Admission, Field(strict=False)] = Admission.OPEN
    """The peers that may take part: "open", "invite" (a token of the organiser) or "allowlist"."""
    allowlist: Annotated[list[PeerField], Field(max_length=MAX_ALLOWLIST)] = Field(default_factory=list)
    """Peer IDs that may take part when admission is "allowlist"; sorted."""
    checkpoint_interval: Annotated[int, Field(ge=1, le=100_000)] = 4
    """Rounds between checkpoints on disk."""
    checkpoint_chunk_bytes: Annotated[int, Field(ge=1 << 12, le=MAX_CHECKPOINT_CHUNK_BYTES, multiple_of=1 << 12)] = 1 << 20
    """Bytes in one chunk of a checkpoint; a multiple of 4096."""
    total_tokens: Total | None = None
    """Tokens of all members together at which the run ends; a run has this or total_rounds."""
    total_rounds: Total | None = None
    """Rounds after which the run ends; a run has this or total_tokens."""
    rl: RlSection | None = None
    """Reinforcement learning from rollouts; left out if the run only reads text."""
    tokenizer: TokenizerSection | None = None
    """The tokenizer of all texts; left out if the model reads bytes."""
    about: AboutSection | None = None
    """The organiser's description of the run, its home page and its licence; left out if there is none."""
    samples: SamplesConfig | None = None
    """Prompts that a member completes at each evaluation; left out if there are none."""
    requires: RequiresSection | None = None
    """Requirements for computers that train; left out if only the model's needs count."""

    def _problems(self) -> Problems:
        if self.protocol_min > self.protocol_max:
            yield (
                "protocol_min protocol_max",
                f"protocol_min ({self.protocol_min}) is more than protocol_max "
                f"({self.protocol_max}); protocol_max = {self.protocol_min} would do",
            )
        if (self.adapter is None) != (self.base is None):
            yield (
                "adapter base model",
                "an adapter needs the weights of a model that stays as it is; add [model] from with its folder, or remove "
                "the section [adapter]",
            )
        if self.adapter is not None and self.inner.optimizer == "muon":
            yield (
                "adapter inner.optimizer",
                'inner.optimizer is "muon", which is for whole matrices and not for factors; optimizer = "adamw" would do',
            )
        if self.tokenizer is not None and max(self.tokenizer.ends) >= self.model.vocab:
            yield (
                "tokenizer.ends model.vocab",
                f"a token that ends a turn has the number {max(self.tokenizer.ends)}, but the model has {self.model.vocab} "
                "tokens; use the tokenizer of the model",
            )
        if self.rl is not None and self.data.is_local:
            yield (
                "data.source rl",
                'data.source is "local", but a run with rollouts learns from problems that all peers can check; remove '
                "data.source, or the section [rl]",
            )
        if self.rl is not None:
            most, batches = self.rounds.max_members, self.rl.batches_per_round
            if most * batches > MAX_USED_BY_ALL:
                yield (
                    "rl.batches_per_round rounds.max_members",
                    f"a record may name at most {MAX_USED_BY_ALL} batches, but {most} members learn from {batches} each; "
                    f"max_members = {MAX_USED_BY_ALL // batches} would do",
                )
        if self.total_tokens is None and self.total_rounds is None:
            yield (
                "total_tokens total_rounds",
                "total_tokens and total_rounds are both missing, so the run never ends; total_rounds = 100 would do",
            )
        if self.total_tokens is not None and self.total_rounds is not None:
            yield (
                "total_tokens total_rounds",
                f"total_tokens ({self.total_tokens}) and total_rounds ({self.total_rounds}) both say when the run ends; "
                "remove one of them",
            )
        block, fragments, inner_steps = LADDER[self.codec].block, self.fragments, self.rounds.inner_steps
        if (fragments - 1) * self.fragment_parameters >= self.parameters:
            yield "fragments model", f"fragments ({fragments}) is too many for a model of {self.parameters} parameters"
        if inner_steps % fragments:
            yield (
                "fragments rounds.inner_steps",
                f"rounds.inner_steps ({inner_steps}) must be a multiple of fragments ({fragments}), which are exchanged in "
                f"turn; inner_steps = {-(-inner_steps // fragments) * fragments} would do",
            )
        if self.rounds.delay > self.round_steps:
            yield (
                "rounds.delay rounds.inner_steps fragments",
                f"rounds.delay ({self.rounds.delay}) is more than the steps of a round ({self.rounds.inner_steps} / "
                f"{self.fragments}), at whose end the last round's result is needed; delay = {self.round_steps} would do",
            )
        if self.rl is not None and self.is_streamed:
            yield (
                "fragments rounds.delay rl",
                "a run with rollouts exchanges whole states and waits for them; fragments = 1 and rounds.delay = 0 would do",
            )
        if self.chunk_parameters % block:
            yield (
                "chunk_parameters codec",
                f"chunk_parameters ({self.chunk_parameters}) must be a multiple of {block} with the codec {self.codec}; "
                f"chunk_parameters = {-(-self.chunk_parameters // block) * block} would do",
            )
        pieces = -(-self.state_bytes // self.checkpoint_chunk_bytes)
        if self.parameters > MAX_PARAMETERS:
            what, fields = "model", "model.vocab model.dim model.layers model.ffn"
            remedy = "make vocab, dim, ffn or layers smaller, or train an adapter"
            if self.adapter is not None:
                what, fields, remedy = "adapter", "adapter.rank", "make adapter.rank smaller"
            yield (
                fields,
                f"the {what} has {self.parameters / 1e9:.2f} G parameters, but at most {MAX_PARAMETERS / 1e9:.2f} G can be "
                f"trained; {remedy}",
            )
        elif self.chunks > MAX_CHUNKS:
            yield (
                "chunk_parameters model",
                f"chunk_parameters ({self.chunk_parameters}) makes {self.chunks} chunks, but at most {MAX_CHUNKS} are "
                f"allowed; chunk_parameters = {chunk_size(self.fragment_parameters)} would do",
            )
        if pieces > MAX_CHECKPOINT_CHUNKS and self.parameters <= MAX_PARAMETERS:
            yield (
                "checkpoint_chunk_bytes model",
                f"checkpoint_chunk_bytes ({self.checkpoint_chunk_bytes}) makes {pieces} chunks of a state, but at most "
                f"{MAX_CHECKPOINT_CHUNKS} are allowed; checkpoint_chunk_bytes = {checkpoint_chunk_size(self.state_bytes)} "
                "would do",
            )
        if self.allowlist != sorted(set(self.allowlist)):
            yield ("allowlist", "allowlist must be sorted and without repetition; sort the list and remove repetitions")
        founders = [] if self.founders == "anyone" else self.founders
        if founders != sorted(set(founders)):
            yield ("founders", "founders must be sorted and without repetition; sort the list and remove repetitions")
        strangers = sorted({*founders} - {self.organiser, *self.allowlist})
        if self.admission is Admission.ALLOWLIST and strangers:
            yield (
                "founders allowlist admission",
                f"founders names {strangers[0]}, which is not on the allowlist; add it there",
            )
        if self.admission is Admission.ALLOWLIST and not self.allowlist:
            yield (
                "allowlist admission",
                'admission is "allowlist" but the allowlist is empty; put peer IDs into it, or admit by "invite"',
            )

    @property
    def goal(self) -> Goal:
        """The end of the run, as long as the organiser has not extended it."""
        if self.total_tokens is not None:
            return Goal(Unit.TOKENS, self.total_tokens, self.inner.cooldown)
        assert self.total_rounds is not None, "a run has a total"
        return Goal(Unit.ROUNDS, self.total_rounds, self.inner.cooldown)

    @property
    def parameters(self) -> int:
        """Parameters that are trained and exchanged: all of the model, or the values of the adapter."""
        return self.model.parameters if self.adapter is None else adapter_parameters(self.model, self.adapter)

    @property
    def computed_parameters(self) -> int:
        """Number of parameters that give the arithmetic of a token: a frozen one takes four operations, another one six."""
        frozen = self.model.parameters if self.adapter is not None else 0
        return self.parameters + 2 * frozen // 3

    @property
    def files(self) -> dict[str, FileSection]:
        """The files that every peer of the run has, by name."""
        tokenizer = {TOKENIZER: self.tokenizer.file} if self.tokenizer is not None else {}
        corpora = {f"{CORPORA}{number}": file for number, file in enumerate(self.data.corpora)}
        tasks = {file.called: file for file in self.rl.files} if self.rl is not None else {}
        base = {file.called: file for file in self.base.files} if self.base is not None else {}
        return {**tokenizer, **corpora, **tasks, **base}

    @property
    def genesis(self) -> Hash | None:
        """Digest of the outer state before the first round; None if the initial parameters follow from the seed."""
        return Hash(bytes.fromhex(self.initial_state)) if self.initial_state else None

    @property
    def round_steps(self) -> int:
        """Inner steps of a member in a round of text."""
        return self.rounds.inner_steps // self.fragments

    @property
    def is_streamed(self) -> bool:
        """True if members keep their own parameters from round to round, and may train while a round is agreed on."""
        return self.fragments > 1 or self.rounds.delay > 0

    @property
    def receipt_bytes(self) -> int:
        """Bytes of the receipts of a member's round; 0 in runs whose rows others cannot check, or not at public weights."""
        told = RECEIPT_BYTES * self.round_steps * self.data.sequences_per_step
        checked = self.rl is None and not self.data.is_local and self.data.format != "preference" and not self.is_streamed
        return told if self.rounds.audits and checked and told <= MAX_RECEIPTS_BYTES else 0

    @property
    def tokens_per_round(self) -> int:
        """Tokens that a member reads in a round of all its inner steps, which the loss counts at most."""
        return self.round_steps * self.data.sequences_per_step * self.data.row_tokens

    @property
    def counted_per_round(self) -> float:
        """Tokens that the loss counts in a round of all a member's inner steps, as totals and credits do; exact for text."""
        return self.tokens_per_round * self.data.counted_share

    @property
    def mixture(self) -> RowMixture:
        """Order of the sources' rows; a run without corpora has one source."""
        return _mixture(self._phases)

    @property
    def _phases(self) -> tuple[MixturePhase, ...]:
        own = tuple(source.weight for source in self.data.sources) or (1,)
        mixtures = [own, *(tuple(phase.weights) for phase in self.data.phases)]
        return tuple(MixturePhase(start, weights) for start, weights in zip(self.data.phase_starts, mixtures, strict=True))

    @property
    def data_rows(self) -> int | None:
        """Rows of the run before a source would be read more often than `data.epochs` allows; None without a limit."""
        if not self.data.epochs or not self.data.sources:
            return None
        return _rows_within(self._phases, tuple(source.rows * self.data.epochs for source in self.data.sources))

    @property
    def data_end(self) -> DataEnd | None:
        """End of the run by `data.epochs`, whether or not its total comes first; None without a limit on epochs.

        Members read whole steps, so the rows of an unfinished step at the end are not read.
        """
        if self.rl is not None or (rows := self.data_rows) is None:
            return None
        step_rows = self.data.sequences_per_step
        whole = rows - rows % step_rows
        return DataEnd(self.tokens_of_rows(whole), ceil(whole / (self.round_steps * step_rows)))

    @property
    def ending_data(self) -> DataEnd | None:
        """End of the run by `data.epochs` if it comes before the manifest's total, with one member; otherwise None."""
        end, goal = self.data_end, self.goal
        if end is None or (end.tokens if goal.unit is Unit.TOKENS else end.rounds) > goal.total:
            return None
        return end

    def times_read(self) -> dict[str, float]:
        """Return how often the run reads each source until its total; for a total of rounds, with one member.

        Empty without sources, and in a run whose rounds all learn from rollouts.
        """
        data, warm = self.data, self.rl.warm_rounds if self.rl is not None else None
        if not data.sources or warm == 0:
            return {}
        round_rows = self.round_steps * data.sequences_per_step
        rounds = self.total_rounds if warm is None else min(warm, self.total_rounds or warm)
        rows = (rounds or 0) * round_rows
        if rounds is None and self.total_tokens:  # the rows after which the loss has counted so many tokens
            rows = bisect_left(range(self.total_tokens), self.total_tokens, key=self.tokens_of_rows)
        limit = self.data_rows
        counts = self.mixture.counts(rows if limit is None else min(rows, limit))
        return {source.name: count / source.rows for source, count in zip(data.sources, counts, strict=True)}

    def tokens_of_rows(self, rows: int) -> int:
        """Return the tokens that the loss counts in the first rows of the run."""
        counts = self.mixture.counts(rows)
        return sum(
            count * self.data.epoch_tokens(each) // each.rows for count, each in zip(counts, self.data.sources, strict=True)
        )

    def learns_from_rollouts(self, round: int) -> bool:
        """Return True if a round's members learn from accepted rollouts; otherwise they read text."""
        return self.rl is not None and round >= self.rl.warm_rounds

    def leases_rows(self, round: int) -> bool:
        """Return True if a round's members read rows that the record chain leases to them (`protocol.chain.leases`)."""
        return not self.data.is_local and not self.learns_from_rollouts(round)

    def steps_of(self, round: int) -> int:
        """Return the inner steps of a member in a round, or the optimiser steps if it learns from rollouts."""
        rollouts = self.rl is not None and self.learns_from_rollouts(round)
        return self.rl.optimizer_steps if rollouts and self.rl is not None else self.round_steps

    @property
    def layouts(self) -> Layouts:
        """Chunks of contributions and of results; their values are counted from the start of the fragment."""
        return _layouts(LADDER[self.codec], self.fragment_parameters, self.chunk_parameters)

    @property
    def chunks(self) -> int:
        """Chunks of a contribution."""
        return chunk_count(self.fragment_parameters, self.chunk_parameters)

    @property
    def fragment_parameters(self) -> int:
        """Values in a fragment; in the last one, some of them may lie beyond the parameters."""
        return fragment_length(self.parameters, LADDER[self.codec].block, self.fragments)

    @property
    def fragment_spans(self) -> tuple[range, ...]:
        """Parameters of each fragment."""
        return fragment_spans(self.parameters, LADDER[self.codec].block, self.fragments)

    @property
    def state_bytes(self) -> int:
        """Bytes of the outer state, which every peer holds in memory."""
        return STATE_BYTES_PER_PARAMETER * self.parameters

    @property
    def reference_bytes(self) -> int:
        """Bytes of the weights that the KL term compares with, which trainers and seeds keep; 0 in a run without them.

        A run with an adapter compares with its frozen model.
        """
        compares = self.rl is not None and self.rl.kl_weight and self.adapter is None
        return BF16_BYTES * self.parameters if compares else 0

    @property
    def initial_bytes(self) -> int:
        """Bytes of the weights that a loss of preferences compares with; 0 in other runs."""
        return BF16_BYTES * self.parameters if self.data.format == "preference" and self.adapter is None else 0

    @property
    def residual_bytes(self) -> int:
        """Bytes of a trainer's residual of error feedback; 0 with a codec without it."""
        return 0 if LADDER[self.codec].feedback is None else RESIDUAL_BYTES_PER_PARAMETER * self.parameters

    @property
    def stored_bytes(self) -> int:
        """Bytes on the disk for each state that is kept there."""
        return self.state_bytes + self.reference_bytes + self.initial_bytes

    def outer_step(self, round: int, tokens: Sequence[int], result: memoryview) -> OuterStep:
        """Return rate and momentum of a round whose members contributed `tokens`, even if some chunks lack a few of them.

        result: the round's result, whose headers tell how far the members agree.
        """
        if isinstance(self.outer, OuterSection):
            return OuterStep(self.outer.lr, self.outer.momentum)
        if self.learns_from_rollouts(round):
            return MEAN
        weights, agreement = weights_of(self.aggregation, tokens), agreement_of(result, self.layouts.result)
        return automatic(weights, self.rounds.inner_steps, LADDER[self.codec], agreement)

    def rate_factor(self, round: int, tokens: Sequence[int]) -> float:
        """Return the factor on the learning rate of a round, if the members of the one before contributed `tokens`."""
        is_shared = self.learns_from_rollouts(round) and not isinstance(self.outer, OuterSection)
        return sharing_rate(weights_of(self.aggregation, tokens)) if is_shared else 1.0

    def trainer_sections(self) -> dict[str, Any]:
        """Return all that a trainer needs to know, as plain values: the input of `trainer.config`."""
        data = _fields(self.data, DataConfig)
        if self.data.sources:  # with the places of the sources and of the mixtures
            corpora = [(each.name, f"{CORPORA}{each.corpus}") for each in self.data.sources]
            data["sources"] = [{"name": name, "corpus": corpus, "source": name} for name, corpus in corpora]
            data["phases"] = [{"start": each.start, "weights": list(each.weights)} for each in self._phases]
        learning = {"rl": _fields(self.rl, RlConfig), "environment": self.rl.environment} if self.rl is not None else {}
        tokenizer = {"tokenizer": _fields(self.tokenizer, TokenizerConfig)} if self.tokenizer is not None else {}
        samples = {"samples": self.samples.model_dump()} if self.samples is not None else {}
        frozen: dict[str, Any] = {"adapter": self.adapter.model_dump()} if self.adapter is not None else {}
        frozen |= {"base_format": self.base.format} if self.base is not None else {}
        frozen |= {"receipts": True} if self.receipt_bytes else {}
        return {
            **frozen,
            **learning,
            **tokenizer,
            **samples,
            "seed": self.seed,
            "model": self.model.model_dump(),
            "data": data,
            "inner": self.inner.model_dump(),
            "inner_steps": self.round_steps,
            "fragments": self.fragments,
            "delay": self.rounds.delay,
            "chunk_parameters": self.chunk_parameters,
            "codec": self.codec,
        }


def _fields(section: Section, kind: type[Section]) -> dict[str, Any]:
    """Return the fields of a section that its base `kind` defines."""
    return section.model_dump(include=set(kind.model_fields))


@lru_cache(maxsize=16)
def _mixture(phases: tuple[MixturePhase, ...]) -> RowMixture:
    return RowMixture(phases)


@lru_cache(maxsize=16)
def _rows_within(phases: tuple[MixturePhase, ...], limits: tuple[int, ...]) -> int | None:
    return _mixture(phases).rows_within(limits)


@lru_cache(maxsize=16)
def _layouts(codec: Codec, values: int, chunk_parameters: int) -> Layouts:
    return chunk_layouts(codec, values, chunk_parameters)


@dataclass(frozen=True)
class SignedManifest:
    """A manifest, its run ID and the signed envelope that proves both."""

    manifest: RunManifest
    run: Hash
    raw: bytes


def run_id(manifest: RunManifest) -> Hash:
    """Return the hash of a manifest, which names the run."""
    return hash_bytes("manifest", manifest.encode())


def sign(identity: Identity, manifest: RunManifest) -> SignedManifest:
    """Sign `manifest` as its organiser."""
    assert manifest.organiser == identity.peer_id, "only the organiser signs a manifest"
    return SignedManifest(manifest, run_id(manifest), pack(identity, ZERO_HASH, manifest).raw)


def open_manifest(raw: bytes | memoryview) -> SignedManifest:
    """Return the manifest in a signed envelope; raise `Malformed` with one sentence if there is none."""
    envelope = open_envelope(raw, ZERO_HASH, max_bytes=MAX_MANIFEST_BYTES)
    if envelope.kind != RunManifest.KIND:
        raise Malformed("a signed statement, but not a manifest")
    manifest = decode_body(RunManifest, envelope.body, max_bytes=MAX_MANIFEST_BYTES)
    if manifest.organiser != envelope.sender:
        raise Malformed("a manifest that its organiser did not sign")
    if manifest.encode() != envelope.body:
        raise Malformed("manifest is not in canonical form")
    return SignedManifest(manifest, run_id(manifest), envelope.raw)


@lru_cache(maxsize=1)
def demo_manifest() -> SignedManifest:
    """Return the built-in demo run.  Its organiser's key is public on purpose: the run is open, so nothing can be gained."""
    organiser = Identity.from_seed(hash_bytes("demo organiser", b"public"))
    manifest = RunManifest(
        name="demo",
        organiser=organiser.peer_id,
        founders="anyone",
        data=DataSection(sequence_length=256, sequences_per_step=4, corpora=[BUILTIN], sources=[builtin_source(256)]),
        inner=InnerConfig(lr=2e-3, warmup_steps=30),
        rounds=RoundSection(inner_steps=40),
        samples=SamplesConfig(prompts=["Every peer ", "def test_"]),
        total_tokens=200_000_000,
    )
    return sign(organiser, manifest)
