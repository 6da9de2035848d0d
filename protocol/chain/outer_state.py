"""The outer state: parameters and momentum, fp32, bit-identical on every peer of the run.

The state fills one anonymous shared region, first theta, then momentum: the trainer process reads theta in place, and the
region's bytes are the checkpoint.  The digest is the root of the tree over the region's pieces of `checkpoint_chunk_bytes`,
so a
record that names the digest certifies the checkpoint.

All functions block while they process the whole memory; call them in worker threads, one caller at a time.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.layout import chunk_layout
from kernels.outer_step import OuterStep, apply_result
from protocol.chain.records import Chain
from protocol.run.manifest import BF16_BYTES, RunManifest
from protocol.wire.hashes import Hash, chunk_hash, tree_root

# ------------------------------------------------------------------------------------------------------------------------
# The outer state before the first round: its name and size, in runs whose manifest names the state.
#
# If the manifest names no such state, the initial parameters follow from the seed, and every trainer computes them.  If
# the manifest names one, the state is fetched like a checkpoint after 0 rounds, and the manifest certifies it as records
# certify later states.


@dataclass(frozen=True)
class NamedState:
    """An outer state as a blob.  digest: the root of the tree over its pieces; the last piece may be shorter."""

    digest: Hash
    size_bytes: int
    piece_bytes: int

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return -(-self.size_bytes // self.piece_bytes)


def genesis_state(manifest: RunManifest) -> NamedState | None:
    """Return the state after 0 rounds; None if it follows from the seed."""
    if manifest.genesis is None:
        return None
    return NamedState(manifest.genesis, manifest.state_bytes, manifest.checkpoint_chunk_bytes)


def certified_digest(manifest: RunManifest, chain: Chain, rounds: int) -> Hash | None:
    """Return the digest of the state after `rounds` rounds of a chain; None if nothing certifies it yet.  Blocking.

    The manifest certifies genesis; a record certifies the state before its own round.
    """
    if rounds == 0 and manifest.genesis is not None:
        return manifest.genesis
    return Hash(chain.commit_at(rounds).record.state_digest) if rounds < chain.length else None


# ------------------------------------------------------------------------------------------------------------------------
# Anonymous memory that two processes on one computer share.
#
# The memory has no name in any file system, so it is freed however the processes end: `memfd_create` if it exists, else an
# unlinked temporary file.  The owner decides which process may write which part, and when.


class SharedRegion:
    """Zeroed shared memory of `size` bytes.

    fd: file descriptor to pass to another process at its start (not inherited by default).
    view: the memory, writable, as bytes.
    """

    def __init__(self, size: int, name: str = "manyhands") -> None:
        assert size > 0, "a region has at least one byte"
        self.size = size
        self.fd = _anonymous_file(name)
        try:
            os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, size)
        except OSError:
            os.close(self.fd)
            raise
        self.view = memoryview(self._map)
        self._closed = False

    def close(self) -> None:
        """Free the memory.  Arrays over it keep it mapped until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a numpy array still uses the mapping, which is freed together with the array


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return fd


# ------------------------------------------------------------------------------------------------------------------------


BYTES_PER_VALUE = 4


def bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Return fp32 values (their bits) in bf16, rounded to nearest even as torch does; NaNs stay NaNs."""
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.dtype("<u2"))


class OuterState:
    """Parameters (theta) and momentum of a run after `rounds` rounds."""

    def __init__(self, manifest: RunManifest) -> None:
        self.rounds = 0
        self.size_bytes = manifest.state_bytes
        self._piece = manifest.checkpoint_chunk_bytes
        self._layout = chunk_layout(manifest.parameters, manifest.chunk_parameters)
        self.region = SharedRegion(self.size_bytes)
        values = np.frombuffer(self.region.view, dtype=np.float32)
        self._theta, self._momentum = values[: manifest.parameters], values[manifest.parameters :]
        self._torn = False
        self._blank = True
        """True while the new region, which contains zeros, has not been written to."""

    @property
    def view(self) -> memoryview:
        """All bytes, in the format of a checkpoint."""
        return self.region.view

    @property
    def theta(self) -> memoryview:
        """The parameters' bytes (fp32, little endian)."""
        return self.region.view[: self._theta.size * BYTES_PER_VALUE]

    def reset(self) -> None:
        """Set the state to zeros and `rounds` to 0, as before the initial parameters are written."""
        if not self._blank:
            self._theta.fill(0)
            self._momentum.fill(0)
        self.rounds, self._torn, self._blank = 0, False, False

    def load(self, checkpoint: memoryview, rounds: int) -> None:
        """Load a checkpoint of exactly `size_bytes` bytes, the state after `rounds` rounds."""
        assert len(checkpoint) == self.size_bytes
        self._torn, self._blank = True, False
        self.region.view[:] = checkpoint
        self.rounds, self._torn = rounds, False

    def apply(self, result: memoryview, step: OuterStep) -> None:
        """Apply the outer step with a round's result (codec bytes of all chunks)."""
        assert not self._torn, "a half-applied state is loaded anew, never gone on with"
        self._torn, self._blank = True, False
        for span in self._layout:
            values = slice(span.start, span.start + span.count)
            apply_result(self._theta[values], self._momentum[values], result[span.encoded], step.rate, step.momentum)
        self.rounds, self._torn = self.rounds + 1, False

    def leaves(self) -> list[Hash]:
        """Return the hashes of the checkpoint's pieces."""
        assert not self._torn
        view = self.region.view
        return [chunk_hash(view[at : at + self._piece]) for at in range(0, self.size_bytes, self._piece)]

    def digest(self) -> Hash:
        """Return the root of the state's pieces, which peers compare and records name."""
        return tree_root(self.leaves())

    def weights(self) -> Iterator[bytes]:
        """Return the parameters in bf16, rounded to nearest even, little endian, in pieces of the digest's piece size."""
        assert not self._torn
        count, bits = self._piece // BF16_BYTES, self._theta.view(np.uint32)
        return (bf16(bits[at : at + count]).tobytes() for at in range(0, bits.size, count))

    def weights_root(self) -> Hash:
        """Return the root of the tree over the pieces of `weights`."""
        return tree_root([chunk_hash(piece) for piece in self.weights()])

    def close(self) -> None:
        """Free the memory."""
        del self._theta, self._momentum
        self.region.close()
