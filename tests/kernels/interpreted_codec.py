"""Tests of the GPU's formats under Triton's interpreter.  Run by test_codec_triton in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import codec_triton
from kernels.codecs.format import HEADER_BYTES, norm
from kernels.codecs.ladder import LADDER, Codec
from kernels.layout import chunk_layouts
from protocol.formats.model import ModelConfig
from tests.kernels.test_codecs import encoded
from tests.kernels.test_reduce import mean_of
from tests.kernels.vectors import Floats, normal, vectors
from tests.trainer import small
from trainer.models.llama.model import Decoder
from trainer.parameters import LocalParameters, NotFinite, WholeParameters
from trainer.sharding import join_group, leave_group, sharded_parameters

every_codec = pytest.mark.parametrize("codec", LADDER.values(), ids=LADDER)
with_feedback = pytest.mark.parametrize("name", ["int4", "int2", "top64"])


def on_gpu(codec: Codec, base: Floats, values: Floats, residual: Floats | None = None) -> tuple[bytes, float]:
    """The bytes and the norm; the residual is replaced."""
    out = torch.zeros(codec.contribution.encoded_bytes(values.size), dtype=torch.uint8)
    left = torch.from_numpy(residual) if residual is not None else None
    length = codec_triton.encode_difference(codec, torch.from_numpy(base), torch.from_numpy(values), left, out)
    return out.numpy().tobytes(), length


def mean_on_gpu(codec: Codec, parts: list[bytes], weights: list[int], count: int) -> bytes:
    out = torch.zeros(codec.result.encoded_bytes(count), dtype=torch.uint8)
    tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]
    codec_triton.weighted_mean(codec, tensors, weights, count, out)
    return out.numpy().tobytes()


@every_codec
@settings(max_examples=10, deadline=None)
@given(values=vectors())
def test_encode_gives_the_bytes_of_the_cpu(codec: Codec, values: Floats) -> None:
    assert on_gpu(codec, values, np.zeros_like(values))[0] == encoded(codec.contribution, values)


@every_codec
@pytest.mark.parametrize("count", [1, 9999])
def test_difference_and_norm_are_those_of_the_cpu(codec: Codec, count: int) -> None:
    base, values = normal(count, 1), normal(count, 2)
    data, length = on_gpu(codec, base, values)
    assert data == encoded(codec.contribution, base - values)
    assert length == pytest.approx(norm(base - values), rel=1e-12)


@with_feedback
def test_the_residual_has_the_bits_of_the_cpu(name: str) -> None:
    codec, count = LADDER[name], 9999
    base, values = normal(count, 1), normal(count, 2)
    ours, theirs = normal(count, 3), normal(count, 3)
    ours[count // 2] = theirs[count // 2] = np.nan
    out = bytearray(encoded(codec.contribution, np.zeros(count, np.float32)))
    for _ in range(2):
        data, length = on_gpu(codec, base, values, ours)
        codec.encode_range(base - values, theirs, out, count, 0)
        assert data == out and ours.tobytes() == theirs.tobytes()
        assert length == pytest.approx(norm(base - values), rel=1e-12)


@pytest.mark.parametrize("count", [600, 9000])
def test_sparse_and_equal_values_give_the_bytes_of_the_cpu(count: int) -> None:
    codec, place = LADDER["top64"], np.arange(count)
    for values in (np.where(place % 97 == 0, 1, 0), place % 3 - 1, np.where(place < 70, place - 30, 0)):
        difference = values.astype(np.float32)
        assert on_gpu(codec, difference, np.zeros_like(difference))[0] == encoded(codec.contribution, difference)


@every_codec
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_differences_that_are_not_finite_are_refused(codec: Codec, bad: float) -> None:
    values = normal(600)
    values[599] = bad
    with pytest.raises(ValueError, match="not finite"), np.errstate(invalid="ignore"):
        on_gpu(codec, normal(600, 1), values)


@every_codec
@settings(max_examples=6, deadline=None)
@given(values=vectors(), weights=st.lists(st.integers(1, 2**40), min_size=1, max_size=4))
def test_weighted_mean_gives_the_bytes_of_the_cpu(codec: Codec, values: Floats, weights: list[int]) -> None:
    parts = [encoded(codec.contribution, np.roll(values, place)) for place in range(len(weights))]
    mean = mean_on_gpu(codec, parts, weights, values.size)
    assert mean[HEADER_BYTES:] == mean_of(codec, parts, weights, values.size)[HEADER_BYTES:]
    assert codec.result.is_sane(mean, values.size)


@every_codec
@pytest.mark.parametrize("count", [1, 9999])
def test_weighted_mean_of_ordinary_values_gives_the_bytes_of_the_cpu(codec: Codec, count: int) -> None:
    parts = [encoded(codec.contribution, normal(count, seed)) for seed in range(4)]
    mean, expected = mean_on_gpu(codec, parts, [5, 1, 7, 2], count), mean_of(codec, parts, [5, 1, 7, 2], count)
    assert mean[HEADER_BYTES:] == expected[HEADER_BYTES:]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the only rank."""
    join_group(0, 1, str(tmp_path / "store"), b"secret", small.CPU)
    yield
    leave_group()


@pytest.mark.parametrize(("kind", "name"), [("whole", "top64"), ("shared", "int4")])
def test_a_whole_contribution_has_the_bytes_of_the_cpu(
    alone: None, kind: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of one process, and of a rank, whose tensors meet within blocks."""
    config = ModelConfig.from_mapping(small.MODEL | {"vocab": 259, "ffn": 25})
    theta, local = normal(config.parameters, 1), normal(config.parameters, 2)
    layouts = chunk_layouts(LADDER[name], config.parameters, 4096)
    ours, theirs = (memoryview(bytearray(layouts.contribution.payload_bytes)) for _ in range(2))
    residuals = [normal(config.parameters, 3) for _ in range(2)]
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
    length = parameters.encode_difference(theta, layouts, residuals[0], ours)
    assert length == pytest.approx(on_host.encode_difference(theta, layouts, residuals[1], theirs), rel=1e-9)
    assert ours == theirs and np.array_equal(residuals[0], residuals[1])
    local[5000] = np.inf
    parameters.load(local)
    with pytest.raises(NotFinite), np.errstate(invalid="ignore"):
        parameters.encode_difference(theta, layouts, residuals[0], ours)
    assert not capsys.readouterr().err, "the host did not help"
