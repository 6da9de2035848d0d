"""The outer state: parameters and momentum, fp32, bit-identical on every peer of the run.

It lies in one anonymous shared region, theta first, then momentum: the trainer process reads theta where it lies, and the
region's bytes are the checkpoint.  The digest is the root of the tree over the region's pieces of
`checkpoint_chunk_bytes`, so a record that names the digest certifies the checkpoint.

Everything here blocks for as long as memory takes; call it in worker threads.  One caller at a time.
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
from kernels.outer import apply_result
from kernels.outer_step import OuterStep
from protocol.chain.records import Chain
from protocol.run.manifest import BF16_BYTES, RunManifest
from protocol.wire.hashes import Hash, chunk_hash, tree_root

# ------------------------------------------------------------------------------------------------------------------------
# The outer state before the first round, in runs whose manifest names it: what it is called, and how large it is.
#
# Where the manifest names none, the initial parameters follow from the seed, and every trainer makes them.  Where it names
# one, the state is fetched like a checkpoint, the one after 0 rounds, and the manifest vouches for it as a record does for
# the others.


@dataclass(frozen=True)
class NamedState:
    """An outer state as a blob.  digest: the root of the tree over its pieces; the last one may be shorter."""

    digest: Hash
    size_bytes: int
    piece_bytes: int

    @property
    def pieces(self) -> int:
        """How many there are."""
        return -(-self.size_bytes // self.piece_bytes)


def genesis_state(manifest: RunManifest) -> NamedState | None:
    """The state after 0 rounds; None where it follows from the seed."""
    if manifest.genesis is None:
        return None
    return NamedState(manifest.genesis, manifest.state_bytes, manifest.checkpoint_chunk_bytes)


def certified_digest(manifest: RunManifest, chain: Chain, rounds: int) -> Hash | None:
    """The digest of the state after `rounds` rounds of a chain; None where nothing says it yet.  Blocking.

    The manifest says it of genesis, and a record of the rounds before it.
    """
    if rounds == 0 and manifest.genesis is not None:
        return manifest.genesis
    return Hash(chain.commit_at(rounds).record.state_digest) if rounds < chain.length else None


# ------------------------------------------------------------------------------------------------------------------------
# Anonymous memory that two processes on one computer share.
#
# The memory has no name in any file system, so nothing is left behind however the processes end: `memfd_create` where
# there is one, an unlinked temporary file elsewhere.  Who may write what, and when, is the owner's business.


class SharedRegion:
    """`size` bytes of zeroed shared memory.

    fd: file descriptor to hand to another process at its start (not inherited unless it is asked for).
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
        """Give the memory back.  Arrays that still look at it keep it mapped until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a numpy array still looks at it; the mapping goes with the array


def _anonymous_file(name: str) -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return fd


# ------------------------------------------------------------------------------------------------------------------------


BYTES_PER_VALUE = 4


def bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """fp32 values (their bits) in bf16, rounded to nearest even as torch does; NaNs stay NaNs."""
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.dtype("<u2"))


class OuterState:
    """theta and momentum of a run after `rounds` rounds."""

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
        """Nobody has written anything into the new region, which is zeros."""

    @property
    def view(self) -> memoryview:
        """All bytes, as a checkpoint has them."""
        return self.region.view

    @property
    def theta(self) -> memoryview:
        """The parameters' bytes (fp32, little endian)."""
        return self.region.view[: self._theta.size * BYTES_PER_VALUE]

    @property
    def leaf_count(self) -> int:
        """How many chunks a checkpoint of this state has."""
        return -(-self.size_bytes // self._piece)

    def reset(self) -> None:
        """Zeros, and no rounds applied: the state before the initial parameters are written."""
        if not self._blank:
            self._theta.fill(0)
            self._momentum.fill(0)
        self.rounds, self._torn, self._blank = 0, False, False

    def load(self, checkpoint: memoryview, rounds: int) -> None:
        """Take over a checkpoint of exactly `size_bytes` bytes."""
        assert len(checkpoint) == self.size_bytes
        self._torn, self._blank = True, False
        self.region.view[:] = checkpoint
        self.rounds, self._torn = rounds, False

    def apply(self, result: memoryview, step: OuterStep) -> None:
        """The outer step with a round's result (codec bytes of all chunks)."""
        assert not self._torn, "a half-applied state is loaded anew, never gone on with"
        self._torn, self._blank = True, False
        for span in self._layout:
            values = slice(span.start, span.start + span.count)
            apply_result(self._theta[values], self._momentum[values], result[span.encoded], step.rate, step.momentum)
        self.rounds, self._torn = self.rounds + 1, False

    def leaves(self) -> list[Hash]:
        """The hashes of the checkpoint's pieces."""
        assert not self._torn
        view = self.region.view
        return [chunk_hash(view[at : at + self._piece]) for at in range(0, self.size_bytes, self._piece)]

    def digest(self) -> Hash:
        """What peers compare, and records name."""
        return tree_root(self.leaves())

    def weights(self) -> Iterator[bytes]:
        """The parameters in bf16, rounded to nearest even, little endian, in pieces as large as those of the digest."""
        assert not self._torn
        count, bits = self._piece // BF16_BYTES, self._theta.view(np.uint32)
        return (bf16(bits[at : at + count]).tobytes() for at in range(0, bits.size, count))

    def weights_root(self) -> Hash:
        """The root of the tree over these pieces."""
        return tree_root([chunk_hash(piece) for piece in self.weights()])

    def close(self) -> None:
        """Give the memory back."""
        del self._theta, self._momentum
        self.region.close()
