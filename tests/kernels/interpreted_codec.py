"""Tests of the GPU's codec under Triton's interpreter.  Run by test_codec_triton in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from kernels import codec, codec_triton
from kernels.layout import chunk_layout, payload_bytes
from tests.kernels.test_codec import by_definition, encoded
from tests.kernels.test_reduce import mean_of
from tests.kernels.vectors import Floats, normal, vectors
from tests.trainer import small
from trainer.models.llama.config import ModelConfig
from trainer.models.llama.model import Decoder
from trainer.parameters import LocalParameters, NotFinite, WholeParameters
from trainer.sharding import join_group, leave_group, sharded_parameters


def on_gpu(base: Floats, values: Floats) -> tuple[bytes, float]:
    out = torch.zeros(codec.encoded_bytes(values.size), dtype=torch.uint8)
    norm = codec_triton.encode_difference(torch.from_numpy(base), torch.from_numpy(values), out)
    return out.numpy().tobytes(), norm


def mean_on_gpu(parts: list[bytes], weights: list[int], count: int) -> bytes:
    out = torch.zeros(codec.encoded_bytes(count), dtype=torch.uint8)
    tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]
    codec_triton.weighted_mean(tensors, weights, count, out)
    return out.numpy().tobytes()


@settings(max_examples=60, deadline=None)
@given(vectors())
def test_encode_gives_the_bytes_of_the_cpu(values: Floats) -> None:
    assert on_gpu(values, np.zeros_like(values))[0] == by_definition(values)


@pytest.mark.parametrize("count", [1, 256, 4096, 4097, 9999])
def test_difference_and_norm_are_those_of_the_cpu(count: int) -> None:
    base, values = normal(count, 1), normal(count, 2)
    data, norm = on_gpu(base, values)
    assert data == encoded(base - values)
    assert norm == pytest.approx(codec.norm(base - values), rel=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_differences_that_are_not_finite_are_refused(bad: float) -> None:
    values = normal(600)
    values[599] = bad
    with pytest.raises(ValueError, match="not finite"), np.errstate(invalid="ignore"):
        on_gpu(normal(600, 1), values)


@settings(max_examples=40, deadline=None)
@given(vectors(), st.lists(st.integers(1, 2**40), min_size=1, max_size=4))
def test_weighted_mean_gives_the_bytes_of_the_cpu(values: Floats, weights: list[int]) -> None:
    parts = [encoded(np.roll(values, place)) for place in range(len(weights))]
    assert mean_on_gpu(parts, weights, values.size) == mean_of(parts, weights, values.size)


@pytest.mark.parametrize("count", [1, 4096, 4097, 9999])
def test_weighted_mean_of_ordinary_values_gives_the_bytes_of_the_cpu(count: int) -> None:
    parts = [encoded(normal(count, seed)) for seed in range(4)]
    assert mean_on_gpu(parts, [5, 1, 7, 2], count) == mean_of(parts, [5, 1, 7, 2], count)


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only rank."""
    join_group(0, 1, HashStore(), small.CPU)
    yield
    leave_group()


@pytest.mark.parametrize("kind", ["whole", "shared"])
def test_a_whole_contribution_has_the_bytes_of_the_cpu(
    alone: None, kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one process, and of a rank, whose tensors meet within blocks."""
    config = ModelConfig.from_mapping(small.MODEL | {"vocab": 259, "ffn": 25})
    theta, local = normal(config.parameters, 1), normal(config.parameters, 2)
    layout = chunk_layout(config.parameters, 1024)
    ours, theirs = (memoryview(bytearray(payload_bytes(layout))) for _ in range(2))
    on_host = WholeParameters(Decoder(config, small.CPU))
    on_host.load(local)
    with monkeypatch.context() as patch:  # the encoder takes the device for a GPU, and Triton's interpreter computes there
        patch.setattr("trainer.parameters.DifferenceEncoder.__init__", lambda self, device: setattr(self, "_on_host", False))
        parameters: LocalParameters = (
            WholeParameters(Decoder(config, small.CPU))
            if kind == "whole"
            else sharded_parameters(config, small.CPU, torch.float32)
        )
    parameters.load(local)
    norm = parameters.encode_difference(theta, layout, ours)
    assert norm == pytest.approx(on_host.encode_difference(theta, layout, theirs), rel=1e-9) and ours == theirs
    local[5000] = np.inf
    parameters.load(local)
    with pytest.raises(NotFinite), np.errstate(invalid="ignore"):
        parameters.encode_difference(theta, layout, ours)
    assert not capsys.readouterr().err, "the host did not help"
