"""A run that begins with the weights of a Hugging Face folder: the state after 0 rounds, hashed, and kept on disk.

The manifest has the digest of that state.  The organiser's data directory keeps it as the checkpoint after 0 rounds, from
which its peer begins, and which other peers fetch as they fetch any checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from peer.errors import ExitCode, PeerError
from peer.paths import make_private, run_dir
from peer.weights.tokenizer_files import keep_tokenizer
from protocol.chain.disk import Disk, StoreFailed
from protocol.chain.outer_state import genesis_state
from protocol.chain.records import genesis_tip
from protocol.chain.results import Checkpoints
from protocol.run.manifest import STATE_BYTES_PER_PARAMETER, SignedManifest
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from trainer.weights.errors import FolderError
from trainer.weights.reading import WeightsFolder


class FolderStart:
    """A `protocol.run.run_file.Start`.  Raises `PeerError` for a folder that no run can begin with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._leaves: dict[int, list[Hash]] = {}
        with _refusals():
            self._weights = WeightsFolder(folder)

    @property
    def facts(self) -> Mapping[str, Any]:
        """The model section of a run that begins with the folder."""
        return self._weights.facts

    def digest(self, piece_bytes: int) -> Hash:
        """Of the state before the first round: the folder's weights, and no momentum.  Reads all of them, once."""
        if piece_bytes not in self._leaves:
            with _refusals():
                self._leaves[piece_bytes] = [chunk_hash(piece) for piece in self._pieces(piece_bytes)]
        return tree_root(self._leaves[piece_bytes])

    def keep(self, signed: SignedManifest, data: Path) -> None:
        """Write that state as the checkpoint after 0 rounds of the run, unless it is there, or the run is further.

        Raises `PeerError`, also when the folder has changed since its digest was taken.
        """
        state, folder = genesis_state(signed.manifest), run_dir(data, signed.run)
        assert state is not None, "a run that begins with a folder names its state"
        checkpoints = Checkpoints(Disk(), make_private(make_private(folder) / "checkpoints"))
        if checkpoints.marks():
            return
        changed = PeerError(f"{self.folder} has changed while it was read; give it again", ExitCode.INPUT)
        if self.digest(state.piece_bytes) != state.digest:
            raise changed
        leaves = self._leaves[state.piece_bytes]
        try:
            download = checkpoints.download(0, genesis_tip(signed.run), leaves, state.size_bytes, state.piece_bytes)
            at = 0
            with _refusals():
                for block in self._weights.values():
                    raw = block.astype("<f4", copy=False).tobytes()
                    download.view[at : at + len(raw)] = raw
                    at += len(raw)
            if download.missing():
                raise changed
            download.commit()
        except StoreFailed as error:
            raise PeerError(str(error), ExitCode.RESOURCES) from error
        keep_tokenizer(self.folder, folder)

    def _pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """The state's bytes, piece after piece."""
        held = bytearray()
        for block in self._weights.values():
            held += np.ascontiguousarray(block, "<f4").tobytes()
            while len(held) >= piece_bytes:
                yield bytes(held[:piece_bytes])
                del held[:piece_bytes]
        momentum = (STATE_BYTES_PER_PARAMETER // 2) * self._weights.config.parameters
        zeros = bytes(piece_bytes)
        while momentum or held:
            added = min(momentum, piece_bytes - len(held))
            momentum -= added
            yield bytes(held) + zeros[:added]
            held.clear()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except FolderError as error:
        raise PeerError(str(error), ExitCode.INPUT) from error
