"""Merges by their formulas, and over folders in any format."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from protocol.formats.model import ModelConfig, parameter_layout
from tests.trainer.weights.models import F32, QWEN3, SHAPE, in_blocks, random_parameters
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.merging import Linear, Rule, Slerp, Ties, merged
from trainer.weights.safetensors_file import ExportFormat, FolderError

CONFIG = ModelConfig.from_mapping(SHAPE | {"tied": True})


def vectors(count: int, size: int = 1000) -> list[F32]:
    random = np.random.default_rng(5)
    return [random.standard_normal(size).astype(np.float32) for _ in range(count)]


def folder(path: Path, seed: int, config: ModelConfig = CONFIG, form: ExportFormat = ExportFormat.FP32) -> WeightsFolder:
    path.mkdir()
    write_folder(path, config, in_blocks(random_parameters(config, seed)), form, context=64, eos=None)
    return WeightsFolder(path)


@pytest.mark.parametrize("t", [0.0, 0.3, 1.0])
def test_slerp_goes_along_the_arc(t: float) -> None:
    one, other = vectors(2)
    a, b = one.astype(np.float64), other.astype(np.float64)
    angle = math.acos(float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)))
    wanted = (math.sin((1 - t) * angle) * a + math.sin(t * angle) * b) / math.sin(angle)
    np.testing.assert_allclose(Slerp(t)([one, other]), wanted, rtol=1e-5, atol=1e-6)


def test_slerp_is_a_straight_line_where_there_is_no_arc() -> None:
    [vector] = vectors(1)
    zero = np.zeros_like(vector)
    for other in (vector, 3 * vector, -vector, zero):
        np.testing.assert_allclose(Slerp(0.25)([vector, other]), 0.75 * vector + 0.25 * other, rtol=1e-6, atol=1e-6)
    assert not Slerp(0.5)([zero, zero]).any()


def plain_ties(base: F32, others: list[F32], weights: tuple[float, ...], density: float, scale: float) -> list[float]:
    """As the paper says it, parameter by parameter."""
    differences = [[float(x) - float(b) for x, b in zip(other, base, strict=True)] for other in others]
    for difference in differences:
        keep = set(sorted(range(len(base)), key=lambda at: -abs(difference[at]))[: round(density * len(base))])
        difference[:] = [value if at in keep else 0.0 for at, value in enumerate(difference)]
    result = []
    for at, start in enumerate(base):
        pairs = [(weight, difference[at]) for weight, difference in zip(weights, differences, strict=True)]
        total = sum(weight * value for weight, value in pairs)
        agreeing = [(weight, value) for weight, value in pairs if value * total > 0]
        mean = sum(w * v for w, v in agreeing) / sum(w for w, _ in agreeing) if agreeing else 0.0
        result.append(float(start) + scale * mean)
    return result


@pytest.mark.parametrize(("density", "scale"), [(1.0, 1.0), (0.2, 1.0), (0.5, 0.7)])
def test_ties_trims_elects_signs_and_averages_what_agrees(density: float, scale: float) -> None:
    weights, (base, *others) = (1.0, 2.0, 0.5), vectors(4)
    got = Ties(weights, density, scale)([base, *others])
    np.testing.assert_allclose(got, plain_ties(base, others, weights, density, scale), rtol=1e-5, atol=1e-5)


def test_ties_of_one_model_is_that_model_and_of_none_that_differ_the_base() -> None:
    base, other = vectors(2)
    np.testing.assert_allclose(Ties((3.0,), density=1.0)([base, other]), other, rtol=1e-5, atol=1e-6)
    assert np.array_equal(Ties((1.0, 1.0))([base, base, base]), base)
    for values, density, kept in (([1, -5, 2], 0.01, [0, -5, 0]), ([2, -2, 1], 0.34, [2, -2, 0])):
        pair = [np.zeros(3, np.float32), np.array(values, np.float32)]
        assert Ties((1.0,), density)(pair).tolist() == kept, "one at least, and equals together"


@pytest.mark.parametrize("rule", [Linear((1, 2, 3)), Ties((1.0, 2.0), 0.3)], ids=["linear", "ties"])
@pytest.mark.parametrize("form", list(ExportFormat))
def test_folders_are_merged_tensor_by_tensor(rule: Rule, form: ExportFormat, tmp_path: Path) -> None:
    folders = [folder(tmp_path / str(seed), seed, form=form if seed else ExportFormat.FP32) for seed in range(3)]
    kept = [random_parameters(CONFIG, seed) for seed in range(3)]
    if form is ExportFormat.BF16:
        kept[1:] = [torch.from_numpy(values).bfloat16().float().numpy() for values in kept[1:]]
    tensors = list(merged(folders, rule))
    for place, tensor in zip(parameter_layout(CONFIG), tensors, strict=True):
        parts = [values[place.offset : place.offset + place.count] for values in kept]
        assert np.array_equal(tensor, rule(parts))


def test_models_of_different_shapes_are_refused(tmp_path: Path) -> None:
    other = ModelConfig.from_mapping(QWEN3 | {"tied": True})
    folders = [folder(tmp_path / "a", 0), folder(tmp_path / "b", 0, other)]
    with pytest.raises(FolderError, match=r"b has kv_heads 4, and .*a has 2; merge only models of the same shape"):
        next(merged(folders, Linear((1, 1))))
    with pytest.raises(FolderError, match="takes 2 models, but 1 are given"):
        next(merged(folders[:1], Slerp(0.5)))


def test_numbers_that_make_no_merge_are_refused() -> None:
    for weights in ((), (0.0, 0.0), (1.0, -1.0), (math.nan,), (math.inf,)):
        with pytest.raises(ValueError, match="the weights of a merge"):
            Linear(weights)
    for t in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="slerp takes a share from 0"):
            Slerp(t)
    for density in (0.0, 1.1, math.nan):
        with pytest.raises(ValueError, match="the density of ties must be"):
            Ties((1.0,), density)
    with pytest.raises(ValueError, match="must be finite"):
        Ties((1.0,), 0.2, math.inf)
