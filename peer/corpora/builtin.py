"""Text that comes with the program, and the corpus that is built from it.

The text is the program's own source and documentation at one commit, in documents of a few paragraphs.  It is frozen, so the
corpus of its bytes is the same on every computer: `protocol.run.sections` names it, and every peer builds it for itself.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from peer.corpora.build import build
from peer.corpora.folder import MANIFEST, FinishedCorpus
from peer.corpora.inputs import BuildInput, Document
from peer.corpora.options import BuildOptions
from peer.corpora.run_data import OwnDocuments, RunData, link_corpus
from peer.errors import ExitCode, PeerError
from peer.files import LockHeld, locked
from peer.paths import make_private
from protocol.blobs.store import BlobStore
from protocol.run.manifest import RunManifest
from protocol.run.sections import BUILTIN, SOURCE
from protocol.sync.fetchers import file_section, keep_file

TEXT = Path(__file__).with_name("builtin.jsonl.gz")
OPTIONS = BuildOptions(held_out_percent=5, workers=1)
"""Options of the corpus of bytes."""
WAIT_S = 120.0
"""Seconds to wait for another process that builds the corpus."""


def read_text() -> list[Document]:
    """Return the documents, each identified by its file and its number there."""
    with gzip.open(TEXT, "rt", encoding="utf-8") as file:
        return [Document(record["id"], record["text"]) for record in map(json.loads, file)]


def builtin_input(documents: Sequence[Document]) -> BuildInput:
    """Return the input of a build from the documents."""
    return BuildInput(SOURCE, documents, label="the text that comes with the program")


def builtin_documents() -> OwnDocuments:
    """Return the documents as a run file names them if its tokens are not bytes."""
    return OwnDocuments(BUILTIN.root, read_text)


def builtin_corpus(built: Path) -> RunData:
    """Return the corpus of bytes below `built`, and build it if it is not there.  Raises `PeerError`.

    Takes about a second.  Several processes may ask at once.
    """
    folder = make_private(built) / f"builtin-{BUILTIN.root[:16]}"
    if _is_whole(folder):
        return RunData((folder,), {})
    try:
        with locked(built / f"{folder.name}.lock", WAIT_S):
            if not _is_whole(folder):
                shutil.rmtree(folder, ignore_errors=True)
                build([builtin_input(read_text())], OPTIONS, folder)
    except (LockHeld, OSError) as error:
        raise PeerError(f"cannot build {folder}: {error}; start this command again", ExitCode.RESOURCES) from error
    return RunData((folder,), {})


def provide_builtin(manifest: RunManifest, files: BlobStore, run_folder: Path, built: Path) -> None:
    """Give the corpus of bytes to the peer of a run, if the run names it, so that nothing is fetched.  Blocking.

    files: the run's files on this computer.  built: as in `builtin_corpus`.  Raises `PeerError` and `StoreFailed`.
    """
    if BUILTIN in manifest.data.corpora:
        (folder,) = builtin_corpus(built).folders
        keep_file(files, BUILTIN, (folder / MANIFEST).read_bytes())
        link_corpus(run_folder, manifest.data.corpora.index(BUILTIN), folder)


def _is_whole(folder: Path) -> bool:
    """Return True if all bytes of the corpus are as built; reads its 4 MB."""
    try:
        if file_section((folder / MANIFEST).read_bytes()) != BUILTIN:
            return False
        FinishedCorpus(folder).verify()
    except (OSError, PeerError):
        return False
    return True
