"""A member's own data: built as the run says, again when they change, and never shown to anybody."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from peer.corpora.folder import MANIFEST
from peer.corpora.own_data import CURRENT, OWN, OwnData, own_data
from peer.errors import PeerError
from peer.paths import BLOCKS
from peer.resources.room import DiskRoom
from protocol.chain.outer_state import OuterState
from protocol.chain.replica import Replica
from protocol.chain.store import Store
from protocol.corpora.store import RunCorpora
from protocol.disk import Disk
from protocol.node.node import shelves_of
from protocol.run.manifest import RunManifest, sign
from protocol.run.run_file import parse_run_file
from protocol.run.settings import CorpusSettings
from protocol.sync.fetchers import file_section, paths_of
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity
from protocol.wire.presence import Role
from trainer.config import OWN_CORPUS, TrainingConfig
from trainer.data.corpus import CorpusReading
from trainer.reading import reading_of

IDENTITY = Identity.from_seed(bytes(32))
ME = IDENTITY.peer_id
LOCAL = '[data]\nsource = "local"\nsequence_length = 32\nheld_out_percent = 20\n'


def a_run(more: str = "", data: str = LOCAL) -> RunManifest:
    return parse_run_file(f'name = "run"\n{data}{more}', ME)


def texts(folder: Path, count: int = 40) -> Path:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number}.txt").write_text(f"text {number} of the hospital, " * 5)
    return folder


def its(manifest: RunManifest, origin: Path, folder: Path, cap: int | None = None) -> OwnData:
    found = own_data(manifest, Role.TRAINER, str(origin), folder / "run", DiskRoom(folder, lambda: cap))
    assert found is not None
    (folder / "run").mkdir(exist_ok=True)
    return found


def reading(manifest: RunManifest, data: OwnData) -> CorpusReading:
    """What a trainer reads."""
    places = {"files": {OWN_CORPUS: str(data.manifest_path)}, "blocks": [str(data.blocks)]}
    config = TrainingConfig.from_sections(manifest.trainer_sections() | places)
    return reading_of(config)


def test_a_trainer_reads_the_rows_of_the_folder_in_order_and_begins_anew_after_the_last(tmp_path: Path) -> None:
    manifest = a_run()
    data = its(manifest, texts(tmp_path / "texts"), tmp_path)
    corpus = data.build(None)
    rows = corpus.rows(corpus.sources[0].train, 32)
    found = reading(manifest, data)
    assert [found.place(row) for row in (0, 1, rows, 5 * rows + 3)] == [(0, 0), (0, 1), (0, 0), (0, 3)]
    assert b"hospital" in bytes(found.rows(range(20)).tokens_bt.tobytes())
    assert found.held_out_windows > 0


def test_nothing_of_the_data_is_on_a_shelf_from_which_others_fetch(tmp_path: Path) -> None:
    manifest = a_run()
    data = its(manifest, texts(tmp_path / "texts"), tmp_path)
    corpus = data.build(None)
    signed = sign(IDENTITY, manifest)
    replica = Replica.open(signed, Store(tmp_path / "run", Disk(durable=False)), OuterState(manifest))
    own = CorpusSettings((data.manifest_path.parent,), tmp_path / "run" / BLOCKS, keep_share=1.0)
    corpora = RunCorpora(manifest, paths_of(manifest, replica.store.files), replica.store.disk, own)
    shelves = shelves_of(replica, corpora)
    roots = [Hash(root) for source in corpus.sources for root in (*source.train.shards, *source.held_out.shards)]
    content = data.manifest_path.read_bytes()
    roots.append(Hash(bytes.fromhex(file_section(content).root)))
    assert roots and all(shelves.find(root) is None for root in roots) and shelves.holdings() == []
    assert not manifest.files and content not in signed.raw and not any(bytes(root) in bytes(signed.raw) for root in roots)


def test_the_corpus_is_built_again_only_when_the_files_or_the_options_change(tmp_path: Path) -> None:
    folder = texts(tmp_path / "texts")
    first = its(a_run(), folder, tmp_path).build(None)
    built = [path for path in (tmp_path / "run" / OWN).iterdir() if not path.is_symlink()]
    before = built[0].stat().st_mtime_ns
    assert its(a_run(), folder, tmp_path).build(None) == first
    assert built[0].stat().st_mtime_ns == before
    (folder / "more.txt").write_text("another text " * 10)
    second = its(a_run(), folder, tmp_path).build(None)
    assert second != first and not built[0].exists(), "the old one is removed"
    assert its(a_run("least_characters = 122\n"), folder, tmp_path).build(None) != second
    (current,) = [path for path in (tmp_path / "run" / OWN).iterdir() if not path.is_symlink()]
    assert (tmp_path / "run" / OWN / CURRENT).resolve() == current


def test_a_corpus_that_fits_is_read_in_place_and_another_is_refused(tmp_path: Path) -> None:
    data = its(a_run(), texts(tmp_path / "texts"), tmp_path)
    data.build(None)
    corpus, other = data.manifest_path.parent.resolve(), tmp_path / "other"
    other.mkdir()
    again = its(a_run(), corpus, other)
    assert again.build(None) and again.manifest_path.resolve() == corpus / MANIFEST
    chats = a_run(data=LOCAL + 'format = "chat"\n')
    with pytest.raises(PeerError, match=r"does not fit the run: the corpus was built with the kind \"text\""):
        its(chats, corpus, other).build(None)


def test_data_that_hold_the_peer_s_own_files_are_refused(tmp_path: Path) -> None:
    texts(tmp_path / "texts")
    with pytest.raises(PeerError, match="holds this peer's own files .*; name a folder without them with --data"):
        its(a_run(), tmp_path, tmp_path)
    hidden = tmp_path / "texts" / ".manyhands"
    hidden.mkdir()
    assert its(a_run(), tmp_path / "texts", hidden).build(None).sources[0].train.tokens


def test_a_build_stops_when_the_disk_or_the_person_says_so_and_goes_on_later(tmp_path: Path) -> None:
    folder = texts(tmp_path / "texts")
    with pytest.raises(PeerError, match="raise max_disk, or give less data"):
        its(a_run(), folder, tmp_path, cap=1).build(None)
    data = its(a_run(), folder, tmp_path)
    data.stop()
    with pytest.raises(PeerError, match="the build was stopped"):
        data.build(None)
    assert its(a_run(), folder, tmp_path).build(None).sources[0].train.tokens


def test_who_brings_no_data_or_brings_data_to_another_run_is_told(tmp_path: Path) -> None:
    def asked(manifest: RunManifest, role: Role, origin: str | None) -> Any:
        return own_data(manifest, role, origin, tmp_path, DiskRoom(tmp_path))

    with pytest.raises(PeerError, match="name yours with --data FOLDER, .* or join without data with --role seed"):
        asked(a_run(), Role.TRAINER, None)
    with pytest.raises(PeerError, match="nowhere does not exist; correct --data"):
        asked(a_run(), Role.TRAINER, str(tmp_path / "nowhere"))
    with pytest.raises(PeerError, match="takes none of yours: leave out --data"):
        asked(a_run(data=""), Role.TRAINER, os.fspath(tmp_path))
    assert asked(a_run(), Role.SEED, None) is None and asked(a_run(data=""), Role.TRAINER, None) is None
