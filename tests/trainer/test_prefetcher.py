"""Frozen layers that are copied to the device one after the other give the bits of a model that lies there as a whole."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.quantizer import QuantizedMatrix
from kernels.schedule import Place
from kernels.weight_format import WeightFormat
from protocol.formats.adapter import AdapterConfig
from protocol.formats.model import ModelConfig
from tests.trainer import small
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer import memory
from trainer.config import TrainingConfig
from trainer.data.rows import Rows
from trainer.memory import TrainerSetup
from trainer.models.llama.initial import initial_parameters
from trainer.models.llama.model import Decoder, FrozenBase, through_head
from trainer.models.llama.prefetcher import LayerPrefetcher, PinnedRoom
from trainer.optim import InnerLoop
from trainer.parameters import WholeParameters
from trainer.weights.base import load_base
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat, FolderError

LAYERS, MATRICES = 5, 7
MODEL = small.MODEL | {"layers": LAYERS, "dim": 32, "ffn": 40, "heads": 4, "kv_heads": 2}
ADAPTER = AdapterConfig(rank=4)
DRAWN = np.random.default_rng(2).integers(0, 256, (4, 17))
ROWS = Rows(DRAWN.astype(np.uint8))


def run_beside(folder: Path, published: ExportFormat = ExportFormat.BF16, **changes: Any) -> TrainingConfig:
    """A run beside a base that is written to a folder.  changes: of the shape, the format, or the sections."""
    shape = {name: changes.pop(name) for name in ("tied", "dim", "ffn") if name in changes}
    model = ModelConfig.from_mapping(MODEL | shape)
    folder.mkdir()
    write_folder(folder, model, in_blocks(random_parameters(model)), published, context=64, eos=None)
    sections = small.SECTIONS | changes
    files = sections["files"] | {f"base/{path.name}": str(path) for path in folder.iterdir()}
    return TrainingConfig.from_sections(sections | {"model": MODEL | shape, "adapter": ADAPTER.model_dump(), "files": files})


def factors_of(run: TrainingConfig) -> np.ndarray:
    """Factors that change the model's results."""
    values = np.empty(run.parameters, np.float32)
    initial_parameters(run.model, 7, values, run.adapter)
    return values + 0.05 * np.random.default_rng(1).standard_normal(run.parameters).astype(np.float32)


def trained(run: TrainingConfig, base: FrozenBase, recomputed: int, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Losses, gradients and factors of three steps of two micro-batches, and a pass without gradients after each."""
    model = Decoder(run.model, small.CPU, base=base)
    model.compute_dtype = base.dtype
    model.flat.copy_(torch.from_numpy(factors_of(run)))
    loop = InnerLoop(WholeParameters(model), run.inner)

    def at_once(rows: Rows) -> int:
        model.recomputed = recomputed
        return 2

    monkeypatch.setattr(loop, "_at_once", at_once)
    found = []
    for step in range(3):
        loss = loop.step(ROWS, Place(step, 0.0)).read().mean
        with torch.no_grad():
            hidden = through_head(model, torch.from_numpy(DRAWN), None, lambda hidden, weight: hidden @ weight.T)
        found += [torch.tensor(loss), model.gradient.clone(), model.flat.clone(), hidden]
    return found


def assert_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "dtype", "tied", "recomputed"),
    [
        ("bf16", torch.float32, True, 0),
        ("int8", torch.float32, False, 2),
        ("int8", torch.bfloat16, True, LAYERS),
        ("int4", torch.float32, True, 0),
    ],
)
def test_steps_have_the_bits_of_those_with_all_layers_on_the_device(
    form: str, dtype: torch.dtype, tied: bool, recomputed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_beside(tmp_path / "base", base_format=form, tied=tied)
    offloading = load_base(replace(run, offload=True), small.CPU, dtype)
    assert not any(name.endswith("_proj.weight") for name in offloading.tensors) and offloading.dtype == dtype
    assert len(offloading.matrices) == LAYERS * MATRICES
    expected = trained(run, load_base(run, small.CPU, dtype), recomputed, monkeypatch)
    assert_equal(trained(run, offloading, recomputed, monkeypatch), expected)
    assert not torch.equal(expected[2], expected[6]), "the steps changed the factors"


def layers_copied(base: FrozenBase, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], set[int]]:
    """Note the layers that are copied from now on, and the addresses of all matrices that are read."""
    copied, read, found = list[int](), set[int](), base.prefetcher
    assert found is not None
    copy, look = found._copy_matrices, found.read

    def noted_copy(layer: int, buffer: Any) -> None:
        copied.append(layer)
        copy(layer, buffer)

    def noted_read(layer: int) -> Mapping[str, QuantizedMatrix]:
        matrices = look(layer)
        read.update(each.codes.data_ptr() for each in matrices.values())
        return matrices

    monkeypatch.setattr(found, "_copy_matrices", noted_copy)
    monkeypatch.setattr(found, "read", noted_read)
    return copied, read


@pytest.mark.parametrize("recomputed", [0, LAYERS])
def test_the_device_holds_two_layers_and_a_step_copies_each_of_the_others_twice(
    recomputed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(run_beside(tmp_path / "base", base_format="int4"), offload=True)
    base = load_base(run, small.CPU, torch.float32)
    copied, read = layers_copied(base, monkeypatch)
    model = Decoder(run.model, small.CPU, base=base)
    model.recomputed = recomputed
    tokens = torch.arange(24).reshape(2, 12)
    for expected in ([0, 1, 2, 3, 4, 2, 1, 0], [2, 3, 4, 2, 1, 0]):
        model(tokens).square().sum().backward()
        assert copied == expected
        copied.clear()
    with torch.no_grad():
        for expected in ([2, 3, 4], [0, 1, 2, 3, 4]):
            model(tokens)
            assert copied == expected
            copied.clear()
    assert len(read) == 2 * MATRICES


# -- order of a GPU's work ----------------------------------------------------------------------------------------------


@dataclass
class Queue:
    """A stream of a GPU, as far as the prefetcher uses it: work in order, which may take as long as it likes."""

    work: list[tuple[str, Any, Any]] = field(default_factory=list)
    done: int = 0

    def wait_stream(self, other: Queue) -> None:
        self.work.append(("wait", other, len(other.work)))

    def wait_event(self, event: tuple[Queue, int]) -> None:
        self.work.append(("wait", *event))

    def record_event(self) -> tuple[Queue, int]:
        return self, len(self.work)

    @property
    def is_ready(self) -> bool:
        """True if the next piece of work waits for nothing."""
        kind, other, until = self.work[self.done]
        return kind != "wait" or other.done >= until


@dataclass(frozen=True)
class Watched:
    """A matrix whose copy is work of a stream.  using: the stream in use."""

    layer: int
    using: list[Queue]
    format: WeightFormat = WeightFormat.INT8
    shape: tuple[int, int] = (2, 64)

    def copy_to(self, other: QuantizedMatrix) -> None:
        self.using[-1].work.append(("copy", other.codes, self.layer))


@pytest.mark.parametrize("seed", range(20))
def test_no_layer_is_read_before_its_copy_ends_or_overwritten_before_it_is_read(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any order in which a GPU may do the work of both streams."""
    draw, compute, side = random.Random(seed), Queue(), Queue()
    using = [compute]

    @contextmanager
    def use(stream: Queue) -> Iterator[None]:
        using.append(stream)
        yield
        using.pop()

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: compute)
    monkeypatch.setattr(torch.cuda, "stream", use)
    layers = [{"one": Watched(layer, using)} for layer in range(6)]
    made = LayerPrefetcher(layers, small.CPU)
    monkeypatch.setattr(made, "_stream", side)
    steps = [*range(6), *reversed(range(6))] * 3
    for layer in [*steps, *draw.choices(range(6), k=30), *steps]:
        codes = made.read(layer)["one"].codes
        compute.work.append(("read", codes, layer))
    reads = 0
    while ready := [queue for queue in (compute, side) if queue.done < len(queue.work) and queue.is_ready]:
        queue = draw.choice(ready)
        kind, codes, layer = queue.work[queue.done]
        if kind == "copy":
            codes.fill_(layer)
        elif kind == "read":
            reads += 1
            assert (codes == layer).all()
        queue.done += 1
    assert reads == 2 * len(steps) + 30 and side.done == len(side.work)


# -- memory of the computer ----------------------------------------------------------------------------------------------


def test_matrices_are_pinned_until_half_of_the_memory_is(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PHYS_PAGES": 8, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    matrix = QuantizedMatrix.empty(WeightFormat.INT4, (60, 128), small.CPU)
    assert (matrix.codes.nbytes, matrix.scales.nbytes) == (3840, 240), "rounded up to 4096 and 256"
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    room = PinnedRoom()
    assert [room.pin(matrix) is not matrix for _ in range(5)] == [True, True, True, False, False]
    shared = PinnedRoom(processes=2)
    assert [shared.pin(matrix) is not matrix for _ in range(2)] == [True, False]


def test_a_driver_that_pins_no_more_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nand more")

    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    room, matrix = PinnedRoom(), QuantizedMatrix.empty(WeightFormat.BF16, (2, 3), small.CPU)
    assert room.pin(matrix) is matrix and room.pin(matrix) is matrix
    assert capsys.readouterr().err == "no more memory can be pinned: CUDA error: out of memory\n"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
def test_the_estimate_counts_the_bytes_that_are_held(form: str, tied: bool, tmp_path: Path) -> None:
    run = replace(run_beside(tmp_path / "base", base_format=form, tied=tied, dim=64, ffn=128), offload=True)
    base = load_base(run, small.CPU, torch.float32)
    assert base.prefetcher is not None
    buffers = [each for buffer in (base.prefetcher._current, base.prefetcher._other) for each in buffer.matrices.values()]
    embedding = 0 if tied else base.tensors["model.embed_tokens.weight"].nbytes
    held = sum(each.nbytes for each in (*base.tensors.values(), base.scratch)) - embedding
    held += sum(each.codes.nbytes + each.scales.nbytes for each in buffers)
    assert held == memory._prefetched_bytes(run, TrainerSetup())
    layers = [each for layer in base.prefetcher._layers for each in layer.values() if isinstance(each, QuantizedMatrix)]
    kept = [part.nbytes for each in layers for part in (each.codes, each.scales)]
    assert embedding + sum(kept) == memory._offloaded_bytes(run, TrainerSetup())
    if kept:
        assert embedding + sum(map(memory.pinned_bytes, kept)) == memory._offloaded_bytes(run, TrainerSetup("cuda"))
    assert [memory.pinned_bytes(size) for size in (0, 1, 4096, 4097)] == [0, 1, 4096, 8192]


@pytest.mark.parametrize("published", list(ExportFormat))
def test_a_file_that_changes_during_the_run_is_noticed(published: ExportFormat, tmp_path: Path) -> None:
    run = replace(run_beside(tmp_path / "base", published), offload=True)
    base = load_base(run, small.CPU, torch.float32)
    matrix = base.matrices["model.layers.3.mlp.up_proj.weight"]
    plain = load_base(replace(run, offload=False), small.CPU, torch.float32).tensors
    assert torch.equal(matrix.weights(base.scratch), plain["model.layers.3.mlp.up_proj.weight"])
    path, first = tmp_path / "base" / "model.safetensors", base.matrices["model.layers.0.mlp.up_proj.weight"]
    before = path.stat().st_mtime_ns
    os.utime(path, (1, 1))
    with pytest.raises(FolderError, match="was changed while the run used it"):
        first.weights(base.scratch)
    os.utime(path, ns=(before, before))
    assert torch.equal(first.weights(base.scratch), plain["model.layers.0.mlp.up_proj.weight"]), "not what was half copied"
