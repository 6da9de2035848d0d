"""Files and folders of weights are checked against the run's model before they are published, and written in its order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from peer.errors import ExitCode, PeerError
from peer.paths import run_dir
from peer.weights.publish import prepared
from protocol.formats.model import parameter_layout
from protocol.run.manifest import SignedManifest
from tests.protocol.chains import a_run
from tests.protocol.peers import ANN
from tests.protocol.versions.files import values, with_header
from trainer.config import TrainingConfig
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

RUN = a_run(ANN)
CONFIG = TrainingConfig.from_sections(RUN.manifest.trainer_sections()).model
LAYOUT = [*parameter_layout(CONFIG)]
Tensors = dict[str, tuple[str, list[int], bytes]]


def tensors() -> Tensors:
    """The run's model, as bf16."""
    return {place.name: ("BF16", list(place.shape), values(place.count, place.offset).tobytes()) for place in LAYOUT}


def write(path: Path, held: Tensors) -> Path:
    header, body = {}, b""
    for name, (form, shape, raw) in held.items():
        header[name] = {"dtype": form, "shape": shape, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    path.write_bytes(with_header(header, body))
    return path


def made_ready(signed: SignedManifest, source: Path, data: Path) -> bytes:
    with prepared(signed, source, data) as name:
        made = (run_dir(data, signed.run) / "weights" / name).read_bytes()
    assert [*(run_dir(data, signed.run) / "weights").iterdir()] == [], "it was not taken"
    return made


def test_any_order_and_any_number_of_files_become_the_same_file(tmp_path: Path) -> None:
    held = tensors()
    whole = made_ready(RUN, write(tmp_path / "a.safetensors", held), tmp_path / "data")
    turned = write(tmp_path / "b.safetensors", dict(reversed(held.items())))
    parts = tmp_path / "parts"
    parts.mkdir()
    names = [*held]
    write(parts / "model-1.safetensors", {name: held[name] for name in names[3:]})
    write(parts / "model-2.safetensors", {name: held[name] for name in names[:3]})
    assert made_ready(RUN, turned, tmp_path / "data") == whole == made_ready(RUN, parts, tmp_path / "data")
    assert whole.endswith(b"".join(raw for _, _, raw in held.values()))


def test_an_exported_folder_is_published_as_it_is(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).standard_normal(RUN.manifest.parameters).astype(np.float32)
    write_folder(tmp_path, CONFIG, [numbers], ExportFormat.BF16, context=8, eos=None)
    assert made_ready(RUN, tmp_path, tmp_path / "data") == (tmp_path / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda held: held.pop(LAYOUT[0].name), "has no tensor"),
        (lambda held: held.update(more=("BF16", [1], b"xx")), "has a tensor more, which the run's model lacks"),
        (
            lambda held: held.update({LAYOUT[0].name: ("BF16", [LAYOUT[0].count], held[LAYOUT[0].name][2])}),
            "has the shape",
        ),
        (
            lambda held: held.update({LAYOUT[0].name: ("F16", list(LAYOUT[0].shape), held[LAYOUT[0].name][2])}),
            "versions are bf16",
        ),
    ],
)
def test_what_is_not_the_runs_model_is_a_sentence(spoil: object, why: str, tmp_path: Path) -> None:
    held = tensors()
    assert callable(spoil)
    spoil(held)
    with pytest.raises(PeerError, match=why) as caught:
        made_ready(RUN, write(tmp_path / "a.safetensors", held), tmp_path / "data")
    assert caught.value.exit_code is ExitCode.INPUT
    assert not [*(run_dir(tmp_path / "data", RUN.run) / "weights").iterdir()]


def test_no_file_two_of_a_name_and_garbage_are_sentences(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    with pytest.raises(PeerError, match="no safetensors files"):
        made_ready(RUN, tmp_path / "none", tmp_path / "data")
    twice = tmp_path / "twice"
    twice.mkdir()
    for name in ("a", "b"):
        write(twice / f"{name}.safetensors", tensors())
    with pytest.raises(PeerError, match="two files"):
        made_ready(RUN, twice, tmp_path / "data")
    (tmp_path / "x.safetensors").write_bytes(json.dumps({}).encode() * 9)
    with pytest.raises(PeerError, match="no safetensors file"):
        made_ready(RUN, tmp_path / "x.safetensors", tmp_path / "data")
