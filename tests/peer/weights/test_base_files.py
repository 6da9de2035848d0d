"""The files of a frozen model lie where they were: they are found, checked, and never written to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from peer.console.display import Style
from peer.daemon.participation import Participation
from peer.daemon.settings import DaemonSettings, RunChoice
from peer.errors import PeerError
from peer.joining.run_source import create_run
from peer.paths import run_dir
from peer.resources.room import DiskRoom
from peer.settings.file import gather
from peer.weights.base_files import description_flaw, find_base, is_here, missing_bytes
from protocol.blobs.blob import EvenSpans
from protocol.blobs.store import BlobStore, StoreShelf, leaves_of
from protocol.disk import Disk
from protocol.formats.model import ModelConfig, parameter_layout
from protocol.node.node import Node, withheld
from protocol.run.manifest import SignedManifest
from protocol.run.run_file import RunFileError
from protocol.run.sections import FILE_CHUNK_BYTES, BaseSection
from protocol.sync.fetchers import file_section, keep_file
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from tests.trainer.weights.models import LLAMA3, in_blocks, random_parameters
from trainer.weights.folder import INDEX, write_folder
from trainer.weights.safetensors_file import ExportFormat

RUN = """
name = "talk"
total_rounds = 10
[model]
from = "base"
[adapter]
"""


def make_base(folder: Path) -> Path:
    config = ModelConfig.from_mapping(LLAMA3 | {"vocab": 256, "tied": True})
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, config, in_blocks(random_parameters(config)), ExportFormat.BF16, context=64, eos=None)
    (folder / "run.toml").write_text(RUN)
    return folder


def created(folder: Path, more: str = "") -> SignedManifest:
    make_base(folder / "base")
    (folder / "run.toml").write_text(RUN.replace("[adapter]", f"{more}\n[adapter]"))
    return create_run(folder / "run.toml", folder / "data")


def store_in(data: Path, signed: SignedManifest) -> BlobStore:
    files = BlobStore(Disk(durable=False), run_dir(data, signed.run) / "files")
    files.folder.mkdir(parents=True, exist_ok=True)
    files.load()
    return files


def participation(data: Path, signed: SignedManifest) -> Participation:
    choice = RunChoice(signed.run, PeerId(signed.manifest.organiser), signed)
    settings = DaemonSettings(data, Style.SILENT, gather({}, {"PEER_CONFIG": ""}))
    return Participation(settings, Identity.generate(), choice, DiskRoom(data), lambda event: None)


def test_the_organisers_files_are_links_that_are_forgotten_and_not_written_to_when_they_change(tmp_path: Path) -> None:
    signed = created(tmp_path)
    assert signed.manifest.base is not None
    files = store_in(tmp_path / "data", signed)
    for file in signed.manifest.base.files:
        assert files.path(file.name).resolve() == tmp_path / "base" / file.path
        assert files.is_right(file.name, file.size, FILE_CHUNK_BYTES)
    weights = next(file for file in signed.manifest.base.files if file.path.endswith(".safetensors"))
    original = tmp_path / "base" / weights.path
    altered = bytearray(original.read_bytes())
    altered[-1] ^= 1
    original.write_bytes(altered)
    assert files.read(weights.name, EvenSpans(weights.size, FILE_CHUNK_BYTES)[0], leaves_of(b"x", 1)[0]) is None
    assert not files.has(weights.name) and not files.path(weights.name).is_symlink()
    part = files.begin(weights.name, weights.size)
    part.view[:4] = b"done"
    assert original.read_bytes() == altered, "a person's file is only read"


def test_a_newcomer_uses_the_files_of_hugging_faces_cache_if_their_bytes_are_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = created(tmp_path)
    assert signed.manifest.base is not None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    model = tmp_path / "hub" / "models--someone--base"
    snapshot, blobs = model / "snapshots" / "c0ffee", model / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(signed.manifest.base.files):
        blob = blobs / f"{number:064x}"
        blob.write_bytes((tmp_path / "base" / file.path).read_bytes())
        (snapshot / file.path).symlink_to(os.path.relpath(blob, snapshot))
    files = store_in(tmp_path / "newcomer", signed)
    assert find_base(signed.manifest.base, files) == len(signed.manifest.base.files)
    assert find_base(signed.manifest.base, files) == 0, "they are here already"
    weights = max(signed.manifest.base.files, key=lambda file: file.size)
    cached = snapshot / weights.path
    moved = model / "snapshots" / "decaf" / weights.path
    moved.parent.mkdir()
    cached.resolve().rename(blobs / f"{99:064x}")
    cached.unlink()
    moved.symlink_to(os.path.relpath(blobs / f"{99:064x}", moved.parent))
    files = store_in(tmp_path / "newcomer", signed)
    assert not is_here(files, weights), "the cache has a new revision, and the old file is gone"
    assert find_base(signed.manifest.base, files) == 1 and is_here(files, weights)
    other = blobs / f"{0:064x}"
    other.write_bytes(other.read_bytes()[:-1] + b"?")
    second = store_in(tmp_path / "second", signed)
    assert find_base(signed.manifest.base, second) == len(signed.manifest.base.files) - 1, (
        "of the right size, with other bytes"
    )


def test_what_could_not_be_a_base_is_not_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One bit differs, a link leads out of the cache, a sparse file has the size alone, a pipe never ends."""
    signed = created(tmp_path)
    assert signed.manifest.base is not None
    weights = max(signed.manifest.base.files, key=lambda file: file.size)
    original = (tmp_path / "base" / weights.path).read_bytes()
    altered = bytearray(original)
    altered[len(altered) // 2] ^= 1
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def candidate(commit: str) -> Path:
        folder = tmp_path / "hub" / "models--someone--base" / "snapshots" / commit
        folder.mkdir(parents=True)
        return folder / weights.path

    candidate("a").write_bytes(altered)
    candidate("b").symlink_to(tmp_path / "base" / weights.path)
    with candidate("c").open("wb") as sparse:
        sparse.truncate(weights.size)
    with candidate("d").open("wb") as sparse:
        sparse.truncate(1 << 42)
    os.mkfifo(candidate("e"))
    files = store_in(tmp_path / "newcomer", signed)
    assert find_base(signed.manifest.base, files) == 0 and not files.has(weights.name)
    candidate("f").write_bytes(original)
    assert find_base(signed.manifest.base, files) == 1


def test_a_begun_file_has_its_room_already_and_leaves_it_to_a_file_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed = created(tmp_path)
    base = signed.manifest.base
    assert base is not None
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    files, weights = store_in(tmp_path / "newcomer", signed), max(base.files, key=lambda file: file.size)
    assert missing_bytes(base, files) == base.size_bytes
    files.begin(weights.name, weights.size).view[:4] = b"some"
    again = store_in(tmp_path / "newcomer", signed)  # after a kill
    assert missing_bytes(base, again) == base.size_bytes - weights.size
    part = participation(tmp_path / "newcomer", signed)
    assert part.more_bytes() == base.size_bytes - weights.size, "for which a peer waits that found its disk full"
    folder = tmp_path / "hub" / "models--someone--base" / "snapshots" / "c0ffee"
    folder.mkdir(parents=True)
    (folder / weights.path).write_bytes((tmp_path / "base" / weights.path).read_bytes())
    assert find_base(base, again) == 1 and not again.parts() and not [*again.folder.glob("part-*")]


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("", {}, ""),
        ("config.json", {"num_hidden_layers": 7}, "describes another model than the run"),
        (INDEX, {"weight_map": {}}, "does not list model.embed_tokens.weight"),
        ("model-1.safetensors", 1 << 30, "bytes, not between"),
        ("model-2.safetensors", 100, "has a file model-2.safetensors, which no trainer reads"),
        ("config.json", 3 << 20, "config.json of the run's frozen model is too large"),
    ],
)
def test_a_model_that_no_trainer_could_read_is_known_by_its_small_files(
    tmp_path: Path, name: str, change: Any, said: str
) -> None:
    """The weights are not here."""
    signed, store = created(tmp_path), BlobStore(Disk(durable=False), tmp_path / "files")
    model = signed.manifest.model
    index = {"weight_map": {place.name: "model-1.safetensors" for place in parameter_layout(model)}}
    small = {"config.json": json.loads((tmp_path / "base" / "config.json").read_bytes()), INDEX: index}
    sizes: dict[str, Any] = {"model-1.safetensors": 2 * model.parameters + 5_000}
    if isinstance(change, dict):
        small |= {each: small[each] | change for each in [name] if name}
    else:
        sizes[name] = change
    listed = {path: {"path": path, "size": size, "root": "0" * 64} for path, size in sizes.items()}
    for path in small.keys() - sizes.keys():
        raw = json.dumps(small[path]).encode()
        keep_file(store, file_section(raw), raw)
        listed[path] = {"path": path, **file_section(raw).model_dump()}
    base = BaseSection.from_mapping({"files": [*listed.values()]})
    flaw = description_flaw(signed.manifest.model_copy(update={"base": base}), store)
    assert said in flaw and bool(flaw) is bool(said)


def test_a_peer_leaves_with_the_sentence_once_the_small_files_are_here(tmp_path: Path) -> None:
    signed = created(tmp_path)
    part, files = participation(tmp_path / "data", signed), store_in(tmp_path / "data", signed)
    store: Any = SimpleNamespace(files=files)
    node: Any = SimpleNamespace(files=SimpleNamespace(until_small_here=trio.lowlevel.checkpoint))
    trio.run(part._judge_base, signed.manifest, store, node)
    assert not part.leaving
    another = signed.manifest.model.model_copy(update={"layers": 9})
    trio.run(part._judge_base, signed.manifest.model_copy(update={"model": another}), store, node)
    assert part.leaving and "describes another model than the run; ask the organiser" in str(part._trainer_problem)


def test_a_model_that_may_not_be_passed_on_is_named_by_its_hashes_only(tmp_path: Path) -> None:
    signed = created(tmp_path, "share = false")
    assert signed.manifest.base is not None and not signed.manifest.base.share
    files, names = store_in(tmp_path / "data", signed), {file.name for file in signed.manifest.base.files}
    replica: Any = SimpleNamespace(manifest=signed.manifest)
    assert withheld(replica) == names, "by the whole node, from which no chunk goes (`tests.protocol.blobs.test_swarm`)"
    shelf = StoreShelf(files, "file", FILE_CHUNK_BYTES)

    async def offload(function: Callable[[], Any]) -> Any:
        return function()

    for given in (set[Hash](), names):
        swarm = SimpleNamespace(transfers=list, gives=given.__contains__)
        node: Any = SimpleNamespace(_swarm=swarm, _shelves=shelf, _offload=offload)
        listed = trio.run(Node.weights, node)["blobs"]
        assert {each["blob"] for each in listed} == {name.hex() for name in given}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('[inner]\noptimizer = "muon"\n', "whole matrices"),
        ("[adapter]\nrank = 300\n", "rank"),
    ],
)
def test_an_adapter_that_cannot_be_trained_is_refused_with_a_sentence(tmp_path: Path, more: str, said: str) -> None:
    make_base(tmp_path / "base")
    text = RUN.replace("[adapter]\n", "") + more + ("" if "[adapter]" in more else "[adapter]\n")
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises((RunFileError, PeerError), match=said):
        create_run(tmp_path / "run.toml", tmp_path / "data")


def test_an_adapter_needs_a_model_that_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('name = "talk"\ntotal_rounds = 10\n[adapter]\n')
    with pytest.raises(RunFileError, match=r"\[model\] from"):
        create_run(tmp_path / "run.toml", tmp_path / "data")


@pytest.mark.parametrize(
    ("names", "said"), [(["config.json"] * 2, "listed twice"), (["model.safetensors"], "config.json is not among")]
)
def test_a_manifest_lists_each_file_once_and_the_one_that_describes_the_model(names: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BaseSection.from_mapping({"files": [{"path": name, "size": 1, "root": "0" * 64} for name in names]})
