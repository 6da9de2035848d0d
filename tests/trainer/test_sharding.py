"""A rank's part of the parameters: alone, it is the whole model, and has its bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import kernels
from kernels.codecs.ladder import LADDER, Codec
from kernels.layout import chunk_layouts, fragment_length
from protocol.formats.model import ModelConfig
from tests.trainer import small
from tests.trainer.team import FAMILIES
from trainer.data.rows import Rows
from trainer.extras import install_command
from trainer.models.llama.model import Decoder
from trainer.objective import LanguageModelObjective
from trainer.optim import AdamW, Muon
from trainer.parameters import DifferenceEncoder, LocalParameters, NotFinite, WholeParameters
from trainer.sharding import join_group, leave_group, sharded_parameters

INNER = small.config().inner
ROWS = Rows(np.random.default_rng(3).integers(0, 259, (4, 17), dtype=np.int16))


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process is the only rank."""
    join_group(0, 1, str(tmp_path_factory.mktemp("ranks") / "store"), b"secret", small.CPU)
    yield
    leave_group()


def both(family: str = "llama") -> tuple[WholeParameters, LocalParameters, np.ndarray]:
    """The parameters of a model, whole and as a rank has them, and their values."""
    config = ModelConfig.from_mapping(small.MODEL | {"vocab": 259, "ffn": 25} | FAMILIES[family])
    theta = np.random.default_rng(1).standard_normal(config.parameters, np.float32) * np.float32(0.05)
    found = WholeParameters(Decoder(config, small.CPU)), sharded_parameters(config, small.CPU, torch.float32)
    for each in found:
        each.load(theta)
    return *found, theta


def values(parameters: LocalParameters) -> torch.Tensor:
    return torch.cat([shard.values.flatten() for shard in parameters.shards])


def step(parameters: LocalParameters, recomputed: int = 0) -> float:
    """The gradient of the mean loss of the rows."""
    parameters.model.recomputed = recomputed
    loss = LanguageModelObjective().loss(parameters.model, ROWS, 1e-4).mean
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_a_single_rank_has_the_bits_of_a_whole_model(family: str, kind: type[AdamW] | type[Muon]) -> None:
    whole, part, theta = both(family)
    optimisers = [kind(each, INNER) for each in (whole, part)]
    for _ in range(3):
        assert step(whole) == step(part)
        for optimiser in optimisers:
            optimiser.step(1e-3)
    assert torch.allclose(values(whole), values(part), rtol=0, atol=1e-8), "the norm is added up in another order"
    part.load(whole.model.flat.numpy())
    for codec in LADDER.values():
        layouts, (one, two) = chunk_layouts(codec, len(theta), 4096), (theta.copy(), theta.copy())
        out, other = (bytearray(layouts.contribution.payload_bytes) for _ in range(2))
        norm = whole.encode_difference(theta, layouts, one, memoryview(out))
        assert part.encode_difference(theta, layouts, two, memoryview(other)) == pytest.approx(norm, rel=1e-12)
        assert out == other and norm > 0 and np.array_equal(one, two)


@pytest.mark.parametrize("codec", LADDER.values(), ids=LADDER)
def test_fragments_of_a_single_rank_have_the_bytes_of_a_whole_model(codec: Codec) -> None:
    whole, part, theta = both()
    for each in (whole, part):
        each.load(theta * np.float32(1.01))
    fragments = 2 if codec.block == 4096 else 3
    length = fragment_length(len(theta), codec.block, fragments)
    layouts, (one, two), encoded = chunk_layouts(codec, length, 4096), (theta.copy(), theta.copy()), []
    assert (fragments - 1) * length < len(theta) < fragments * length, "the last fragment reaches beyond the parameters"
    for fragment in range(fragments):
        out, other = (bytearray(layouts.contribution.payload_bytes) for _ in range(2))
        norm = whole.encode_difference(theta, layouts, one, memoryview(out), fragment * length)
        assert part.encode_difference(theta, layouts, two, memoryview(other), fragment * length) == pytest.approx(norm)
        assert out == other and norm > 0 and np.array_equal(one, two)
        for span in layouts.contribution:
            assert layouts.contribution.format.is_sane(memoryview(out)[span.encoded], span.count)
        encoded.append(bytes(out))
    assert len(set(encoded)) == fragments


def test_a_merge_adds_what_was_learned_since_to_the_result() -> None:
    whole, part, theta = both()
    span, sent, now, result = range(100, len(theta) - 700), theta * 2, theta * 3, theta * 5
    for each in (whole, part):
        each.load(sent)
        each.keep(span)
        each.load(now)
        each.merge(result, span)
    wanted = now.copy()
    wanted[span.start : span.stop] = (result + (now - sent))[span.start : span.stop]
    assert np.array_equal(whole.model.flat.numpy(), wanted)
    assert torch.equal(values(part), torch.from_numpy(wanted))


def test_without_triton_a_gpu_leaves_contributions_to_the_host_and_says_what_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, _, theta = both()
    whole.load(theta[::-1].copy())
    layouts = chunk_layouts(LADDER["int4"], len(theta), 4096)
    out, other = (memoryview(bytearray(layouts.contribution.payload_bytes)) for _ in range(2))
    norm = whole.encode_difference(theta, layouts, None, out)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "kernels.codec_triton", raising=False)
    monkeypatch.delattr(kernels, "codec_triton", raising=False)
    monkeypatch.setattr(whole, "_encoder", DifferenceEncoder(torch.device("cuda")))
    for _ in range(2):
        assert whole.encode_difference(theta, layouts, None, other) == norm and out == other
    (said,) = capsys.readouterr().err.splitlines()
    assert said.endswith(f"; run {install_command('gpu')}")


def test_parameters_that_are_not_finite_are_no_contribution() -> None:
    whole, part, theta = both()
    layouts = chunk_layouts(LADDER["int4"], len(theta), 1024)
    for each in (whole, part):
        each.load(np.full_like(theta, np.nan))
        with pytest.raises(NotFinite):
            each.encode_difference(theta, layouts, None, memoryview(bytearray(layouts.contribution.payload_bytes)))
