"""Consistency of the numbers of a run: the problems, and values that would fit.

Pure functions on plain numbers, used by the manifest, which refuses numbers that do not fit, and by
`protocol.run.run_file`, which fills in the numbers that a run file leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels.layout import chunk_count, fragment_length
from protocol.formats.model import MAX_CHUNK_PARAMETERS, MAX_CHUNKS
from protocol.formats.section import ManifestProblem
from protocol.wire.messages import MAX_USED_BY_ALL

CHUNK_STEP = 256
"""Divisor of the parameters in a chunk; some codecs need a larger one."""
MAX_CHECKPOINT_CHUNK_BYTES = 1 << 24
MAX_CHECKPOINT_CHUNKS = 1 << 15
"""So that the list of a checkpoint's chunk hashes (1 MiB) fits into one answer."""

FEW_CHUNKS = 64
"""Chunks of an exchange, eight for each of eight members: more are shared out hardly better, and each costs processor time
(docs/results/exchange.md)."""
FEW_CHECKPOINT_CHUNKS = 1 << 13
LEAST_CHUNK_PARAMETERS = 1 << 16
LEAST_CHECKPOINT_CHUNK_BYTES = 1 << 18


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


def used_problems(max_members: int, batches_per_round: int) -> Iterator[ManifestProblem]:
    """Yield a problem if a record has no room for the batches that all members learn from."""
    if max_members * batches_per_round > MAX_USED_BY_ALL:
        yield ManifestProblem(
            ("rl.batches_per_round", "rounds.max_members"),
            f"a record names the batches that its members learn from, {MAX_USED_BY_ALL} at most, and {max_members} members "
            f"with {batches_per_round} each have more; max_members = {MAX_USED_BY_ALL // batches_per_round} would do",
        )
