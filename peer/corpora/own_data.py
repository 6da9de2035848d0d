"""A member's own data, in a run on the members' own data (`[data] source = "local"`).

The data never leave the computer: the corpus is built below the run's folder from files that only this peer reads, it is in
no store from which others fetch (`protocol.blobs.store`), and no message names its blocks.  The manifest fixes the tokenizer
and the form of the rows.  The corpus is built at the start of the peer, and again when a file has changed.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

from peer.corpora.build import PARTIAL, BuildProgress
from peer.corpora.folder import MANIFEST, FinishedCorpus
from peer.corpora.inputs import HUB, is_read_with
from peer.corpora.run_data import RunData, built_name, point, run_data, token_format, tokenizer_flaw
from peer.errors import ExitCode, PeerError
from peer.paths import make_private
from peer.resources.room import DiskRoom
from protocol.corpora.manifest import SHARDS, CorpusManifest, corpus_flaw
from protocol.formatting import amount, roughly, size
from protocol.run.manifest import RunManifest
from protocol.run.sections import LocalSection
from protocol.wire.presence import Role

LOST = "the corpus of {data} has lost a block, perhaps because somebody removed files: start the peer again to build it anew"
NEEDED = (
    "the members of this run train on their own data: name yours with --data FOLDER, which stays on this computer, or join "
    "without data with --role seed"
)
UNWANTED = "this run names the data that it trains on, so it takes none of yours: leave out --data, and data in peer.toml"
OWN, CURRENT = "own", "current"
"""Folder of the corpora in a run's folder, and the link to the one in use."""


def own_data(manifest: RunManifest, role: Role, origin: str | None, run_folder: Path, room: DiskRoom) -> OwnData | None:
    """Return the own data of a peer; None if it needs none.  Blocking.  Raises `PeerError`.

    origin: file, folder, corpus or data set that the person names.
    """
    if not manifest.data.is_local:
        if origin is not None:
            raise PeerError(UNWANTED, ExitCode.INPUT)
        return None
    if role is not Role.TRAINER:
        return None
    if origin is None:
        raise PeerError(NEEDED, ExitCode.INPUT)
    data = OwnData(manifest, origin, run_folder, room)
    data.check()
    return data


class OwnData:
    """The member's own data for one run.  origin: file, folder, corpus or data set that the person names.

    progress: a sentence about the build.
    """

    def __init__(self, manifest: RunManifest, origin: str, run_folder: Path, room: DiskRoom) -> None:
        self._manifest, self.origin, self._folder, self._room = manifest, origin, run_folder / OWN, room
        self._stopped = threading.Event()
        self.progress = f"building a corpus from {origin}"

    @property
    def manifest_path(self) -> Path:
        """Path of the corpus's manifest, once it is built."""
        return self._folder / CURRENT / MANIFEST

    @property
    def blocks(self) -> Path:
        """Folder of the corpus's shards, once it is built."""
        return self._folder / CURRENT / SHARDS

    def check(self) -> None:
        """Raise `PeerError` if the data are not where the person says.  Blocking."""
        if self.origin.startswith(HUB):
            return
        if not Path(self.origin).exists():
            raise PeerError(f"{self.origin} does not exist; correct --data", ExitCode.INPUT)
        if is_read_with(Path(self.origin), self._folder):
            raise PeerError(
                f"{self.origin} holds this peer's own files ({self._folder}), which would be read as documents; name a "
                "folder without them with --data",
                ExitCode.INPUT,
            )

    def stop(self) -> None:
        """Stop a build in progress; the next build continues where it stopped."""
        self._stopped.set()

    def forget(self) -> None:
        """Remove what was built, so that the next start builds it again.  Blocking."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def build(self, tokenizer: Path | None) -> CorpusManifest:
        """Build the corpus, unless it is built; return its manifest.  Blocking.  Raises `PeerError`.

        tokenizer: the run's tokenizer.json; None for bytes.
        """
        make_private(self._folder)
        section = self._section()
        facts = vars(self._manifest.tokenizer) if self._manifest.tokenizer is not None else {}
        tokens = token_format(section, tokenizer, facts)
        try:
            self._remove_others(built_name(section, Path("/"), tokens))
            data = run_data(section, Path("/"), tokens, self._folder, self._tell)
        except OSError as error:
            raise PeerError(f"{self.origin} cannot be read ({error.strerror}); check --data", ExitCode.INPUT) from error
        manifest = self._checked(data, tokenizer)
        point(self._folder / CURRENT, data.folders[0])
        return manifest

    def _section(self) -> dict[str, Any]:
        """Return the data section of a run file that would build a corpus from this data."""
        data = self._manifest.data
        local = data.local or LocalSection()
        return {
            "source": "local",
            "from": self.origin,
            "format": data.format,
            "sequence_length": data.sequence_length,
            **{name: value for name, value in vars(local).items() if value},
            "where": {each.field: list(each.values) for each in local.where},
        }

    def _remove_others(self, key: str) -> None:
        """Remove corpora of earlier states of the files, and builds of them."""
        for path in self._folder.iterdir():
            if path.is_dir() and not path.is_symlink() and path.name not in (key, key + PARTIAL):
                shutil.rmtree(path)

    def _tell(self, progress: BuildProgress) -> None:
        """Store the progress; raise `PeerError` to stop the build."""
        if self._stopped.is_set():
            raise PeerError("the build was stopped; join again to go on", ExitCode.RESOURCES)
        done = f"{100 * progress.done // max(1, progress.total)} %" if progress.total else size(progress.done)
        left = f", {roughly(progress.left_s)} left" if progress.left_s is not None else ""
        what = "reading" if progress.phase == "read" else "writing the corpus of"
        self.progress = f"{what} {self.origin}: {done}, {amount(progress.tokens_per_s)} tokens/s{left}"
        if not self._room.left_bytes():
            raise PeerError(
                f"the corpus of {self.origin} does not fit on the disk, or within max_disk, at {self._folder}: make room, "
                "raise max_disk, or give less data",
                ExitCode.RESOURCES,
            )

    def _checked(self, data: RunData, tokenizer: Path | None) -> CorpusManifest:
        manifest, run = FinishedCorpus(data.folders[0]).manifest, self._manifest
        flaw = corpus_flaw(run, manifest, "the corpus") or tokenizer_flaw([manifest], tokenizer)
        if flaw:
            raise PeerError(
                f"{self.origin} does not fit the run: {flaw}; give the files from which the corpus was built", ExitCode.INPUT
            )
        length = run.data.sequence_length
        if not any(manifest.rows(each.held_out, length) for each in manifest.sources):
            held_out = sum(each.held_out.tokens for each in manifest.sources)
            raise PeerError(
                f"{self.origin} has {held_out} tokens held out for the evaluation, and a row needs {length + 1}; give more "
                "data with --data",
                ExitCode.INPUT,
            )
        return manifest
