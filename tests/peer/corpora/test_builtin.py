"""The text that comes with the program is one corpus everywhere, which every peer has without fetching it."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from peer.corpora.builtin import builtin_corpus, provide_builtin
from peer.corpora.folder import MANIFEST, FinishedCorpus
from protocol.blobs.store import BlobStore
from protocol.disk import Disk
from protocol.run.manifest import demo_manifest
from protocol.run.run_file import parse_run_file
from protocol.run.sections import BUILTIN, FILE_CHUNK_BYTES, SOURCE, TOKENS, builtin_source
from protocol.sync.fetchers import file_section, paths_of
from protocol.wire.identity import Identity
from tests.trainer import small
from trainer.config import TrainingConfig
from trainer.worker import Worker

ME = Identity.from_seed(bytes(32)).peer_id


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "corpora"
    builtin_corpus(folder)
    return folder


def test_the_build_gives_the_corpus_that_the_manifests_name(built: Path) -> None:
    corpus = FinishedCorpus(builtin_corpus(built).folders[0])
    assert file_section((corpus.path / MANIFEST).read_bytes()) == BUILTIN
    (source,) = corpus.manifest.sources
    assert (source.name, source.train.tokens) == (SOURCE, TOKENS)
    for length in (8, 256, 1 << 17):
        assert corpus.manifest.rows(source.train, length) == builtin_source(length).rows
    corpus.verify()


def test_a_run_file_without_data_and_the_demo_run_read_it() -> None:
    plain = parse_run_file('name = "plain"\n[data]\nsequence_length = 128\n', ME)
    for manifest in (plain, demo_manifest().manifest):
        assert manifest.data.corpora == [BUILTIN]
        assert manifest.data.sources == [builtin_source(manifest.data.sequence_length)]


def test_a_peer_has_the_corpus_of_a_run_that_names_it_and_its_trainer_reads_it(built: Path, tmp_path: Path) -> None:
    manifest, files = demo_manifest().manifest, BlobStore(Disk(), tmp_path / "files")
    (tmp_path / "files").mkdir()
    provide_builtin(manifest, files, tmp_path, built)
    assert files.is_right(BUILTIN.name, BUILTIN.size, FILE_CHUNK_BYTES)
    folder = (tmp_path / "corpora" / "0").resolve()
    corpus = builtin_corpus(built)
    assert folder == corpus.folders[0].resolve()
    places = corpus.places
    assert {name: path.read_bytes() for name, path in places.files.items()} == {
        name: path.read_bytes() for name, path in paths_of(manifest, files).items()
    }
    worker = Worker(TrainingConfig.from_sections(manifest.trainer_sections() | places.sections), small.CPU)
    assert worker.batch([0, builtin_source(256).rows]).tokens_bt.shape == (2, 257)
    assert worker.reading.held_out_windows * 256 > 100_000


@pytest.mark.slow
def test_processes_that_need_it_at_once_build_it_once_and_a_damaged_one_again(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        folders = [each.folders[0] for each in pool.map(builtin_corpus, [tmp_path / "built"] * 3)]
    assert len(set(folders)) == 1 and [path.name for path in (tmp_path / "built").iterdir() if path.is_dir()] == [
        folders[0].name
    ]
    for path in [path for path in folders[0].rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 64
        for damaged in (bytes(len(whole)), whole[: len(whole) // 2], flipped):
            path.write_bytes(damaged)
            FinishedCorpus(builtin_corpus(tmp_path / "built").folders[0]).verify()
            assert path.read_bytes() == whole
        path.unlink()
        path.mkdir()
        FinishedCorpus(builtin_corpus(tmp_path / "built").folders[0]).verify()
