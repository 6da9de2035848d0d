"""Runs that go on with an adapter of PEFT, and the models and sections that no run with an adapter can have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.errors import PeerError
from peer.joining.purpose import adapter_words, purpose_lines
from peer.joining.run_source import create_run
from peer.paths import run_dir
from peer.resources.computer import memory_need
from protocol.chain.outer_state import OuterState
from protocol.chain.stored_run import StoredRun
from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.formats.model import ModelConfig
from protocol.run.manifest import demo_manifest
from protocol.run.run_file import RunFileError, dump, parse_run_file
from protocol.run.sections import BaseFileSection, BaseSection
from protocol.wire.identity import PeerId
from tests.trainer.made_tokenizer import ENDS, make_tokenizer
from tests.trainer.weights.models import LLAMA3, in_blocks, random_parameters
from trainer.memory import TrainerSetup
from trainer.weights.folder import write_folder
from trainer.weights.peft_folder import write_peft_folder
from trainer.weights.safetensors_file import ExportFormat

MODEL = ModelConfig.from_mapping(LLAMA3 | {"vocab": 256, "tied": True})
ADAPTER = AdapterConfig(rank=4, alpha=16.0, targets="attention")
RUN = """
name = "talk"
total_rounds = 10
checkpoint_chunk_bytes = 8192
[model]
from = "base"
[adapter]
from = "old"
"""


def write_model(folder: Path, model: ModelConfig = MODEL) -> None:
    folder.mkdir()
    write_folder(folder, model, in_blocks(random_parameters(model)), ExportFormat.BF16, context=64, eos=None)


def write_adapter(folder: Path, model: ModelConfig = MODEL) -> np.ndarray:
    values = np.random.default_rng(3).standard_normal(adapter_parameters(model, ADAPTER)).astype(np.float32)
    folder.mkdir()
    write_peft_folder(folder, model, ADAPTER, in_blocks(values), ExportFormat.FP32, base_name="someone/other")
    return values


def write_run(folder: Path, text: str = RUN) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_a_run_that_goes_on_with_an_adapter_begins_with_exactly_its_factors(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    values = write_adapter(tmp_path / "old")
    told: list[tuple[str, str]] = []
    signed = create_run(write_run(tmp_path), tmp_path / "data", lambda *said: told.append(said))
    manifest = signed.manifest
    assert manifest.adapter == ADAPTER and manifest.base is not None
    state = OuterState(manifest)
    np.frombuffer(state.theta, np.float32)[:] = values
    assert manifest.genesis == state.digest()
    stored = StoredRun(signed, run_dir(tmp_path / "data", signed.run)).newest()
    assert stored.rounds == 0 and stored.start is not None and bytes(stored.start) == bytes(state.view)
    assert dict(told)["adapter"].startswith("its folder says that it was trained on someone/other")
    assert "that goes on with another one beside the frozen model base," in dict(purpose_lines(manifest))["trains"]
    assert adapter_words(manifest).startswith(" of an adapter on ")
    assert parse_run_file(dump(manifest), PeerId(manifest.organiser)) == manifest


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (RUN + "rank = 8\n", "adapter.rank is 8, but the adapter in .*old has 4; remove rank"),
        (RUN + 'alpha = 16\ntargets = "all"\n', "adapter.targets is 'all', but .* has 'attention'"),
        (RUN.replace('[model]\nfrom = "base"\n', ""), r"needs the weights of its base; add \[model\] from"),
        (RUN.replace('"old"', "3"), r"\[adapter\] from must be the path of a folder"),
        (RUN.replace('"old"', '"nothing"'), "adapter_config.json"),
    ],
)
def test_a_section_that_does_not_fit_its_adapter_is_refused_with_a_sentence(text: str, part: str, tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "old")
    with pytest.raises((RunFileError, PeerError), match=part):
        create_run(write_run(tmp_path, text), tmp_path / "data")


def test_an_adapter_of_another_base_is_refused_with_the_name_of_its_own(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "old", MODEL.changed(ffn=2 * MODEL.ffn, kv_heads=MODEL.heads))
    with pytest.raises(PeerError, match="use the adapter's own base .'someone/other'"):
        create_run(write_run(tmp_path), tmp_path / "data")


def test_factors_that_change_after_they_were_hashed_begin_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "old")
    weights = tmp_path / "old" / "adapter_model.safetensors"

    def change(*_: object) -> None:
        weights.write_bytes(weights.read_bytes()[:-4] + np.float32(7).tobytes())

    monkeypatch.setattr("peer.weights.brought.Brought.check", change)  # it is called between the two readings
    with pytest.raises(PeerError, match="old has changed while it was read"):
        create_run(write_run(tmp_path), tmp_path / "data")


def test_a_mixture_of_experts_is_no_base(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    config = tmp_path / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_type": "qwen3_moe", "num_experts": 8}))
    with pytest.raises(PeerError, match="model_type is .qwen3_moe., and a run trains"):
        create_run(write_run(tmp_path, RUN.replace('from = "old"\n', "")), tmp_path / "data")


def test_tokens_that_the_base_does_not_have_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "base", MODEL.changed(vocab=256))
    make_tokenizer(tmp_path / "base" / "tokenizer.json")
    text = RUN.replace('from = "old"\n', "") + f"[tokenizer]\nends = {list(ENDS)}\n"
    with pytest.raises((RunFileError, PeerError), match="but the model has 256 tokens; use the tokenizer of the model"):
        create_run(write_run(tmp_path, text), tmp_path / "data")


def test_preferences_of_an_adapter_need_no_weights_of_the_beginning(tmp_path: Path) -> None:
    write_model(tmp_path / "base")
    write_adapter(tmp_path / "old")
    manifest = create_run(write_run(tmp_path), tmp_path / "data").manifest
    preferences = manifest.model_copy(update={"data": manifest.data.changed(format="preference")})
    assert preferences.genesis is not None and not preferences.initial_bytes
    whole = preferences.model_copy(update={"adapter": None, "base": None})
    assert whole.initial_bytes == 2 * MODEL.parameters


LLAMA_1B = {"vocab": 128_256, "dim": 2048, "layers": 16, "heads": 32, "kv_heads": 8, "ffn": 8192, "tied": True}
QWEN_8B = {"vocab": 151_936, "dim": 4096, "layers": 36, "heads": 32, "kv_heads": 8, "ffn": 12_288, "qk_norm": True}
SIZES = {
    "1B": LLAMA_1B | {"head_dim": 64},
    "3B": LLAMA_1B | {"dim": 3072, "layers": 28, "heads": 24, "head_dim": 128},
    "8B": QWEN_8B | {"head_dim": 128, "tied": False},
    "14B": QWEN_8B | {"dim": 5120, "layers": 40, "heads": 40, "ffn": 17_408, "head_dim": 128, "tied": False},
}
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "adapters.md"


@pytest.mark.parametrize("size", SIZES)
def test_the_guide_has_the_memory_that_an_adapter_is_estimated_to_need(size: str) -> None:
    demo, needs = demo_manifest().manifest, []
    file = BaseFileSection(path="config.json", size=1, root="0" * 64)
    changes: dict[str, Any] = {"model": ModelConfig.from_mapping(SIZES[size]), "adapter": AdapterConfig(rank=32)}
    for form in ("bf16", "int8", "int4"):
        base = BaseSection.model_validate({"files": [file], "format": form})
        data = demo.data.changed(sequence_length=2048)
        manifest = demo.model_copy(update={**changes, "base": base, "data": data})
        needs.append(f"{memory_need(manifest, setup=TrainerSetup('cuda')).gpu / 1e9:.1f}")
    row = next(line for line in GUIDE.read_text().splitlines() if line.startswith(f"| {size} ("))
    assert [cell.strip() for cell in row.split("|")[2:-1]] == needs
