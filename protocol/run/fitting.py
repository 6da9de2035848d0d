"""Consistency of the numbers of a run: the problems, and values that would fit.

Pure functions on plain numbers, used by the manifest, which refuses numbers that do not fit, and by
`protocol.run.run_file`, which fills in the numbers that a run file leaves out.

The largest run has `MAX_CHUNKS` chunks of `MAX_CHUNK_PARAMETERS`.  Both are bounds on memory: a motion names and signs
every chunk, in one envelope of 1 MiB; a peer holds up to 64 parts of chunks that wait for others (4 MiB each), and the
proof of a wrong average carries every member's part of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kernels.layout import chunk_count, fragment_length
from protocol.wire.envelope import MAX_CHUNKS
from protocol.wire.messages import MAX_USED_BY_ALL

CHUNK_STEP = 256
"""Divisor of the parameters in a chunk; some codecs need a larger one."""
MAX_CHUNK_PARAMETERS = 1 << 22
MAX_PARAMETERS = MAX_CHUNKS * MAX_CHUNK_PARAMETERS
MAX_CHECKPOINT_CHUNK_BYTES = 1 << 24
MAX_CHECKPOINT_CHUNKS = 1 << 15
"""So that the list of a checkpoint's chunk hashes (1 MiB) fits into one answer."""
MAX_STEP_TOKENS = 1 << 26

FEW_CHUNKS = 64
"""Chunks of an exchange, eight for each of eight members: more are shared out hardly better, and each costs processor time
(docs/results/exchange.md)."""
FEW_CHECKPOINT_CHUNKS = 1 << 13
LEAST_CHUNK_PARAMETERS = 1 << 16
LEAST_CHECKPOINT_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class ManifestProblem:
    """Numbers that do not fit.  fields: dotted names of the fields involved.  text: one sentence with a value that fits."""

    fields: tuple[str, ...]
    text: str


class Misfit(ValueError):
    """Numbers that are allowed one by one, but not together."""

    def __init__(self, problems: Sequence[ManifestProblem]) -> None:
        super().__init__("; ".join(problem.text for problem in problems))
        self.problems = tuple(problems)


def refuse(problems: Iterator[ManifestProblem]) -> None:
    """Raise `Misfit` with all of these problems, if there are any."""
    if found := list(problems):
        raise Misfit(found)


@dataclass(frozen=True)
class ModelShape:
    """A decoder's numbers, as in the manifest's model section."""

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    tied: bool
    head_dim: int = 0
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: norms, attention, SwiGLU."""
        head = self.head_dim or self.dim // self.heads
        query_dim, kv_dim = self.heads * head, self.kv_heads * head
        biases = query_dim + 2 * kv_dim if self.qkv_bias else 0
        norms = 2 * self.dim + (2 * head if self.qk_norm else 0)
        return norms + biases + (2 * query_dim + 2 * kv_dim + 3 * self.ffn) * self.dim

    @property
    def other_parameters(self) -> int:
        """Parameters outside the layers: embeddings and the last norm."""
        return self.vocab * self.dim * (1 if self.tied else 2) + self.dim

    @property
    def parameters(self) -> int:
        """Parameters of the whole model."""
        return self.other_parameters + self.layers * self.layer_parameters


def head_count(dim: int) -> int | None:
    """Return the attention heads for a width: about 32, 64 or 128 wide each; None if no number divides it evenly."""
    wanted = 128 if dim >= 2048 else 64 if dim >= 512 else 32
    counts = [heads for heads in range(1, 513) if dim % (2 * heads) == 0]
    return min(counts, key=lambda heads: max(dim / heads / wanted, wanted * heads / dim), default=None)


def kv_head_count(heads: int) -> int:
    """Return the key and value heads: half of the heads or fewer, at most 8."""
    return max(count for count in range(1, max(1, min(8, heads // 2)) + 1) if heads % count == 0)


def ffn_width(dim: int) -> int:
    """Return the SwiGLU width: 8/3 of the model's, rounded up to a multiple of 128 (8 in models narrower than that)."""
    step = 128 if dim >= 128 else 8
    return -(-8 * dim // (3 * step)) * step


def chunk_size(parameters: int) -> int:
    """Return the parameters in a chunk of a contribution."""
    size = LEAST_CHUNK_PARAMETERS
    while size < MAX_CHUNK_PARAMETERS and chunk_count(parameters, size) > FEW_CHUNKS:
        size *= 2
    return size


def checkpoint_chunk_size(state_bytes: int) -> int:
    """Return the bytes in a chunk of a checkpoint."""
    size = LEAST_CHECKPOINT_CHUNK_BYTES
    while size < MAX_CHECKPOINT_CHUNK_BYTES and -(-state_bytes // size) > FEW_CHECKPOINT_CHUNKS:
        size *= 2
    return size


def model_problems(shape: ModelShape) -> Iterator[ManifestProblem]:
    """Yield a problem for each misfit in the model's numbers."""
    dim, heads, kv_heads = shape.dim, shape.heads, shape.kv_heads
    if shape.head_dim and dim % heads:
        above = -(-dim // heads) * heads
        yield ManifestProblem(("dim", "heads"), f"dim ({dim}) must be a multiple of heads ({heads}); dim = {above} would do")
    elif not shape.head_dim and dim % (2 * heads):
        below = dim // (2 * heads) * 2 * heads
        fitting = [f"dim = {value}" for value in (below, below + 2 * heads) if value >= 8]
        fitting += [f"heads = {count}"] if (count := head_count(dim)) else []
        yield ManifestProblem(
            ("dim", "heads"), f"dim ({dim}) must be heads ({heads}) times an even number; {' or '.join(fitting)} would do"
        )
    if heads % kv_heads:
        yield ManifestProblem(
            ("heads", "kv_heads"),
            f"heads ({heads}) must be a multiple of kv_heads ({kv_heads}); kv_heads = {kv_head_count(heads)} would do",
        )
    if shape.qkv_bias and shape.qk_norm:
        yield ManifestProblem(
            ("qkv_bias", "qk_norm"),
            "qkv_bias and qk_norm are both true, which no family of models has; qkv_bias = false would do",
        )
    if shape.parameters > MAX_PARAMETERS:
        yield ManifestProblem(
            ("vocab", "dim", "layers", "heads", "kv_heads", "ffn", "tied", "head_dim"),
            f"the model has {_giga(shape.parameters)} parameters, and at most {_giga(MAX_PARAMETERS)} are "
            f"allowed; {_smaller(shape)}",
        )


def rope_problems(low: float, high: float) -> Iterator[ManifestProblem]:
    """Yield a problem if the numbers of stretched positions do not fit."""
    if not low < high:
        yield ManifestProblem(
            ("rope_low_freq_factor", "rope_high_freq_factor"),
            f"rope_low_freq_factor ({low:g}) must be less than rope_high_freq_factor ({high:g}); 1 and 4 would do",
        )


def _smaller(shape: ModelShape) -> str:
    """Propose a change that brings the model's parameters below the limit."""
    layers = (MAX_PARAMETERS - shape.other_parameters) // shape.layer_parameters
    if layers >= 1:
        return f"layers = {layers} would do"
    dims = [shape.dim >> halvings for halvings in range(1, 12)]
    for narrower in (replace(shape, dim=dim) for dim in dims if dim >= 8 and dim % (2 * shape.heads) == 0):
        if narrower.parameters <= MAX_PARAMETERS:
            return f"dim = {narrower.dim} would do"
    return "make vocab, ffn and layers smaller"


def chunk_problems(parameters: int, chunk: int, state_bytes: int, checkpoint_chunk: int) -> Iterator[ManifestProblem]:
    """Yield a problem for each misfit in the chunks of a fragment of `parameters`, and of a state."""
    chunks, pieces = chunk_count(parameters, chunk), -(-state_bytes // checkpoint_chunk)
    if chunks > MAX_CHUNKS:
        yield ManifestProblem(
            ("chunk_parameters", "model"),
            f"chunk_parameters ({chunk}) makes {chunks} chunks of {parameters} parameters, and at most "
            f"{MAX_CHUNKS} are allowed; chunk_parameters = {chunk_size(parameters)} would do",
        )
    if pieces > MAX_CHECKPOINT_CHUNKS:
        yield ManifestProblem(
            ("checkpoint_chunk_bytes", "model"),
            f"checkpoint_chunk_bytes ({checkpoint_chunk}) makes {pieces} chunks of a state of {state_bytes} "
            f"bytes, and at most {MAX_CHECKPOINT_CHUNKS} are allowed; checkpoint_chunk_bytes = "
            f"{checkpoint_chunk_size(state_bytes)} would do",
        )


def block_problems(codec: str, block: int, chunk: int) -> Iterator[ManifestProblem]:
    """Yield a problem if a chunk is not a whole number of the codec's blocks of `block` values."""
    if chunk % block:
        yield ManifestProblem(
            ("chunk_parameters", "codec"),
            f"chunk_parameters ({chunk}) must be a multiple of {block} with the codec {codec}; chunk_parameters = "
            f"{-(-chunk // block) * block} would do",
        )


def fragment_problems(parameters: int, block: int, fragments: int, inner_steps: int) -> Iterator[ManifestProblem]:
    """Yield a problem if the parameters or the inner steps cannot be divided between the fragments."""
    if (fragments - 1) * fragment_length(parameters, block, fragments) >= parameters:
        fitting = max(
            count for count in range(1, fragments) if (count - 1) * fragment_length(parameters, block, count) < parameters
        )
        yield ManifestProblem(
            ("fragments", "model"),
            f"fragments ({fragments}) is too many for a model of {parameters} parameters; fragments = {fitting} would do",
        )
    if inner_steps % fragments:
        above = -(-inner_steps // fragments) * fragments
        yield ManifestProblem(
            ("fragments", "rounds.inner_steps"),
            f"rounds.inner_steps ({inner_steps}) must be a multiple of fragments ({fragments}), which are exchanged in "
            f"turn; inner_steps = {above} would do",
        )


def delay_problems(delay: int, inner_steps: int, fragments: int) -> Iterator[ManifestProblem]:
    """Yield a problem if a round's result may come after the members' next contributions."""
    if delay > inner_steps // fragments:
        yield ManifestProblem(
            ("rounds.delay", "rounds.inner_steps", "fragments"),
            f"rounds.delay ({delay}) is more than the steps of a round ({inner_steps} / {fragments}), at whose end the last "
            f"round's result is needed; delay = {inner_steps // fragments} would do",
        )


def data_problems(sequence_length: int, sequences_per_step: int) -> Iterator[ManifestProblem]:
    """Yield a problem if the numbers of the data do not fit."""
    if sequence_length * sequences_per_step > MAX_STEP_TOKENS:
        yield ManifestProblem(
            ("sequence_length", "sequences_per_step"),
            f"sequence_length ({sequence_length}) times sequences_per_step ({sequences_per_step}) may be at most "
            f"{MAX_STEP_TOKENS} tokens a step; sequences_per_step = {MAX_STEP_TOKENS // sequence_length} would do",
        )


def total_problems(tokens: int | None, rounds: int | None) -> Iterator[ManifestProblem]:
    """Yield a problem if the run has not exactly one total."""
    if tokens is None and rounds is None:
        yield ManifestProblem(
            ("total_tokens", "total_rounds"),
            "total_tokens or total_rounds is missing, which says when the run ends; total_rounds = 100 would do",
        )
    if tokens is not None and rounds is not None:
        yield ManifestProblem(
            ("total_tokens", "total_rounds"),
            f"total_tokens ({tokens}) and total_rounds ({rounds}) both say when the run ends; remove one of them",
        )


def member_problems(min_members: int, max_members: int) -> Iterator[ManifestProblem]:
    """Yield a problem if the numbers of members do not fit."""
    if min_members > max_members:
        yield ManifestProblem(
            ("min_members", "max_members"),
            f"min_members ({min_members}) is more than max_members ({max_members}); max_members = {min_members} would do",
        )


def used_problems(max_members: int, batches_per_round: int) -> Iterator[ManifestProblem]:
    """Yield a problem if a record has no room for the batches that all members learn from."""
    if max_members * batches_per_round > MAX_USED_BY_ALL:
        yield ManifestProblem(
            ("rl.batches_per_round", "rounds.max_members"),
            f"a record names the batches that its members learn from, {MAX_USED_BY_ALL} at most, and {max_members} members "
            f"with {batches_per_round} each have more; max_members = {MAX_USED_BY_ALL // batches_per_round} would do",
        )


def founder_problems(founders: Sequence[str], admitted: Sequence[str] | None) -> Iterator[ManifestProblem]:
    """Yield a problem for each misfit in named founders.  admitted: peers admitted by an allowlist; None without one."""
    if list(founders) != sorted(set(founders)):
        yield ManifestProblem(("founders",), "founders must be sorted and without repetition; sort it")
    strangers = [] if admitted is None else sorted(set(founders).difference(admitted))
    if strangers:
        yield ManifestProblem(
            ("founders", "allowlist", "admission"),
            f"founders names {strangers[0]}, which the allowlist does not; add it to the allowlist",
        )


def _giga(count: int) -> str:
    return f"{count / 1e9:.2f} G"
