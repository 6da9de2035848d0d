"""The outer state: parameters and momentum, fp32, bit-identical on every peer of the run.

The state fills one shared region, first theta, then momentum: the trainer process reads theta in place, and the region's
bytes are the checkpoint.  The digest is the root of the tree over the region's pieces of `checkpoint_chunk_bytes`, so a
record that names the digest certifies the checkpoint.

The region lies in memory, or in a file if memory is short.  Either way it is lost with the process, and a later process
makes it anew from the checkpoint and the results on disk.  All functions go through the region in order, a piece at a time,
and let go of the memory of each piece of a file.

All functions block while they process the whole region; call them in worker threads, one caller at a time.  Only functions
that change nothing may run beside one another: a checkpoint is written while a READY names the state.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kernels.outer_step import OuterStep, apply_result
from protocol.chain.records import Chain
from protocol.disk import ScratchFolder, in_turn, let_go, pieces_of
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
# Memory that two processes on one computer share.
#
# Anonymous memory has no name in any file system, so it is freed however the processes end: `memfd_create` if it exists,
# otherwise an unlinked temporary file.  The pages of a file in a scratch folder can be taken back by the system; the file is
# removed at the latest when the folder is opened again.  The owner decides which process may write which part, and when.


class SharedRegion:
    """Zeroed bytes that processes share, `size` of them, in memory or in a file of `scratch`.  Raises `StoreFailed`.

    fd: file descriptor to pass to another process at its start (not inherited by default).
    view: the bytes, writable.
    """

    def __init__(self, size: int, name: str = "manyhands", scratch: ScratchFolder | None = None) -> None:
        assert size > 0, "a region has at least one byte"
        self.size, self._scratch, self._name = size, scratch, name
        self._map: mmap.mmap
        if scratch is not None:
            self.fd, self._map = scratch.make(name, size)
        else:
            self.fd, self._map = _anonymous_memory(name, size)
        self.view = memoryview(self._map)
        self._closed = False

    def close(self) -> None:
        """Free the bytes.  Arrays over them keep them mapped until they are gone."""
        if self._closed:
            return
        self._closed = True
        os.close(self.fd)
        try:
            self.view.release()
            self._map.close()
        except BufferError:
            pass  # a numpy array still uses the mapping, which is freed together with the array
        if self._scratch is not None:
            self._scratch.remove(self._name)


def _anonymous_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp(prefix=name)
        os.unlink(path)
    try:
        os.ftruncate(fd, size)
        return fd, mmap.mmap(fd, size)
    except OSError:
        os.close(fd)
        raise


# ------------------------------------------------------------------------------------------------------------------------


BYTES_PER_VALUE = 4


def bf16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """Return fp32 values (their bits) in bf16, rounded to nearest even as torch does; NaNs stay NaNs."""
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(is_nan, np.uint32(0x7FC0), rounded).astype(np.dtype("<u2"))


def bf16_pieces(theta: memoryview, piece_bytes: int) -> Iterator[bytes]:
    """Return parameters, fp32 in memory or in a mapped file, as little-endian bf16, in pieces of `piece_bytes`."""
    pieces = pieces_of(theta, piece_bytes // BF16_BYTES * BYTES_PER_VALUE)
    return (bf16(np.frombuffer(piece, np.uint32)).tobytes() for piece in pieces)


class OuterState:
    """Parameters (theta) and momentum of a run after `rounds` rounds.

    scratch: the folder of the file that holds them; None to hold them in memory.  Raises `StoreFailed`.
    """

    def __init__(self, manifest: RunManifest, scratch: ScratchFolder | None = None) -> None:
        self.rounds = 0
        self.size_bytes = manifest.state_bytes
        self._piece = manifest.checkpoint_chunk_bytes
        self._layout, self._fragments = manifest.layouts.result, manifest.fragment_spans
        self.region = SharedRegion(self.size_bytes, "state", scratch)
        values = np.frombuffer(self.region.view, dtype=np.float32)
        self._theta, self._momentum = values[: manifest.parameters], values[manifest.parameters :]
        self._leaves: list[Hash | None] = [None] * -(-self.size_bytes // self._piece)
        """Hashes of the pieces that have not changed since they were hashed."""
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
        self._forget(0, self.size_bytes)
        if not self._blank:
            self._torn, zeros = True, bytes(self._piece)
            for piece in pieces_of(self.view, self._piece):
                piece[:] = zeros[: len(piece)]
        self.rounds, self._torn, self._blank = 0, False, False

    def load(self, checkpoint: memoryview, rounds: int) -> None:
        """Load a checkpoint of exactly `size_bytes` bytes, the state after `rounds` rounds."""
        assert len(checkpoint) == self.size_bytes
        self._torn, self._blank = True, False
        self._forget(0, self.size_bytes)
        for mine, piece in zip(pieces_of(self.view, self._piece), pieces_of(checkpoint, self._piece), strict=True):
            mine[:] = piece
        self.rounds, self._torn = rounds, False

    def apply(self, result: memoryview, fragment: int, step: OuterStep) -> None:
        """Apply the outer step with a round's result, the encoded chunks of a fragment."""
        assert not self._torn, "a half-applied state is loaded anew, never gone on with"
        self._torn, self._blank = True, False
        parts = in_turn(result, (span.encoded for span in self._layout))
        values = self._fragments[fragment]
        theta, momentum = (vector[values.start : values.stop] for vector in (self._theta, self._momentum))
        for first in (values.start, self._theta.size + values.start):
            self._forget(BYTES_PER_VALUE * first, BYTES_PER_VALUE * (first + len(values)))
        for span, part in zip(self._layout, parts, strict=True):
            apply_result(theta[span.values], momentum[span.values], part, self._layout.format, span.count, step)
            for first in (values.start + span.start, self._theta.size + values.start + span.start):
                let_go(self.view[BYTES_PER_VALUE * first : BYTES_PER_VALUE * (first + span.count)])
        self.rounds, self._torn = self.rounds + 1, False

    def leaves(self) -> list[Hash]:
        """Return the hashes of the checkpoint's pieces, all computed anew."""
        return self._hashed([None] * len(self._leaves))

    def digest(self) -> Hash:
        """Return the root of the state's pieces, which peers compare and records name.  Hashes only pieces that changed."""
        return tree_root(self._hashed(self._leaves))

    def _hashed(self, known: Sequence[Hash | None]) -> list[Hash]:
        """Return the hashes of all pieces, of which some are known, and remember them; two threads may do so at once."""
        assert not self._torn
        hashes = [leaf or self._hash_piece(number) for number, leaf in enumerate(known)]
        self._leaves = [*hashes]
        return hashes

    def _hash_piece(self, number: int) -> Hash:
        piece = self.view[number * self._piece : (number + 1) * self._piece]
        found = chunk_hash(piece)
        let_go(piece)
        return found

    def _forget(self, start: int, stop: int) -> None:
        """Forget the hashes of the pieces with the bytes from `start` to `stop`, which change."""
        for number in range(start // self._piece, -(-stop // self._piece)):
            self._leaves[number] = None

    def weights(self) -> Iterator[bytes]:
        """Return the parameters in bf16, rounded to nearest even, little endian, in pieces of the digest's piece size."""
        assert not self._torn
        return bf16_pieces(self.theta, self._piece)

    def weights_root(self) -> Hash:
        """Return the root of the tree over the pieces of `weights`."""
        return tree_root([chunk_hash(piece) for piece in self.weights()])

    def close(self) -> None:
        """Free the memory."""
        del self._theta, self._momentum
        self.region.close()
