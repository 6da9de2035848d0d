"""The decoder looks only back, and lives in one flat vector."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.trainer import small
from trainer.models.llama.model import Documents


def test_a_token_does_not_change_what_comes_before_it() -> None:
    model = small.model()
    tokens = torch.arange(24).view(2, 12)
    changed = tokens.clone()
    changed[:, 7] = 200
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-6)
    assert (before[:, 7:] - after[:, 7:]).abs().amax(dim=(0, 2)).min() > 1e-4


def test_order_of_the_past_matters() -> None:
    model = small.model()
    with torch.no_grad():
        one = model(torch.tensor([[1, 2, 3, 4]]))[0, -1]
        other = model(torch.tensor([[2, 1, 3, 4]]))[0, -1]
    assert (one - other).abs().max() > 1e-5


def test_parameters_and_gradients_are_views_of_the_flat_vectors() -> None:
    model = small.model()
    model(torch.tensor([[1, 2, 3]])).square().sum().backward()
    for place in model.layout:
        parameter = model.tensors[place.name]
        span = slice(place.offset, place.offset + place.count)
        assert parameter.data_ptr() == model.flat[span].data_ptr()
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == model.gradient[span].data_ptr()
    assert model.gradient.abs().max() > 0


@pytest.mark.parametrize("recomputed", [1, 2, 99])
def test_gradients_are_the_same_bits_if_layers_are_computed_again(recomputed: int) -> None:
    tokens, found = torch.arange(24).view(2, 12), []
    documents = Documents.of(np.arange(24).reshape(2, 12) // 5, small.CPU)
    for count in (0, recomputed):
        model = small.model()
        model.recomputed = count
        model(tokens, documents).square().sum().backward()
        found.append(model.gradient)
    assert torch.equal(*found) and found[0].abs().max() > 0


@pytest.mark.slow
def test_compiled_layers_have_the_same_gradients() -> None:
    """In a process of its own, which loads torch's compiler."""
    code = """
import numpy as np, torch
from tests.trainer import small
from trainer.models.llama.model import Documents
tokens = torch.arange(24).view(2, 12)
for documents in (None, Documents.of(np.arange(24).reshape(2, 12) // 5, small.CPU)):
    for recomputed in (0, 1):
        found = []
        for compiles in (False, True):
            model = small.model()
            model.recomputed = recomputed
            if compiles:
                model.compile_layers()
            model(tokens, documents).square().sum().backward()
            found.append(model.gradient)
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_compiler_a_trainer_says_so_and_trains() -> None:
    code = """
from dataclasses import replace
from tests.trainer import small
from trainer.optim import Place
from trainer.worker import Worker
worker = Worker(replace(small.config(), compiles="on"), small.CPU)
worker.inner.step(worker.batch(range(2)), Place(0, 0.0)).read()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "CXX": "/nowhere/c++"}, capture_output=True, text=True
    )
    assert "the layers are not compiled: torch needs a compiler for C++" in ran.stderr
