"""The decoder looks only back, and lives in one flat vector."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from peer.trainer_process.process import environment
from tests.trainer import small
from trainer.models.llama.model import Documents, RMSNorm


def test_a_token_does_not_change_what_comes_before_it() -> None:
    model = small.model()
    tokens = torch.arange(24).view(2, 12)
    changed = tokens.clone()
    changed[:, 7] = 200
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0, atol=1e-6)
    assert (before[:, 7:] - after[:, 7:]).abs().amax(dim=(0, 2)).min() > 1e-4
    with torch.no_grad():
        one, other = (model(torch.tensor([tokens]))[0, -1] for tokens in ([1, 2, 3, 4], [2, 1, 3, 4]))
    assert (one - other).abs().max() > 1e-5, "the order of the past matters"


@pytest.mark.parametrize("recomputed", [1, 99])
def test_gradients_are_the_same_bits_if_layers_are_computed_again(recomputed: int) -> None:
    tokens, found = torch.arange(24).view(2, 12), []
    documents = Documents.of(np.arange(24).reshape(2, 12) // 5, small.CPU)
    for count in (0, recomputed):
        model = small.model()
        model.recomputed = count
        model(tokens, documents).square().sum().backward()
        found.append(model.gradient)
    assert torch.equal(*found) and found[0].abs().max() > 0


def test_the_gradient_of_a_norm_is_in_fp32_where_products_are_in_bf16() -> None:
    """The backward pass of compiled layers runs under the autocast of their forward pass."""
    found = []
    for lower in (False, True):
        norm, hidden = RMSNorm(16, 1e-5), torch.arange(64.0).sin().view(4, 16).requires_grad_()
        norm.weight.data = torch.arange(16.0).cos()
        output = norm(hidden).square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            output.backward()
        found.append((norm.weight.grad, hidden.grad))
    for exact, other in zip(*found, strict=True):
        torch.testing.assert_close(exact, other, rtol=0, atol=0)


@pytest.mark.slow
def test_compiled_layers_have_the_same_gradients_and_nothing_of_them_is_where_others_can_write(tmp_path: Path) -> None:
    """In a process of its own, which loads torch's compiler."""
    code = """
import numpy as np, torch
from tests.trainer import small
from trainer.models.llama.model import Documents
tokens = torch.arange(24).view(2, 12)
for recomputed, documents in ((0, None), (1, Documents.of(np.arange(24).reshape(2, 12) // 5, small.CPU))):
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
    temp, folder = tmp_path / "temp", tmp_path / "compiled"
    temp.mkdir()
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR_")}  # of other tests
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(ours | {"TMPDIR": str(temp)}, folder))
    assert [*folder.rglob("*.so")] and not [*temp.iterdir()]


BROKEN = """#!/bin/sh
case "$*" in *version*) echo 13 ;; *) echo Python.h: No such file or directory >&2; exit 1 ;; esac
"""
"""A compiler that is here, but without Python's headers."""


@pytest.mark.slow
@pytest.mark.parametrize("program", [BROKEN, None], ids=["broken", "missing"])
def test_without_a_compiler_that_works_a_trainer_says_so_and_trains(tmp_path: Path, program: str | None) -> None:
    compiler = tmp_path / "c++"
    if program is not None:
        compiler.write_text(program)
        compiler.chmod(0o700)
    code = """
from dataclasses import replace
from tests.trainer import small
from kernels.schedule import Place
from trainer.worker import Worker
worker = Worker(replace(small.config(), compiles="on"), small.CPU)
worker.inner.step(worker.batch(range(2)), Place(0, 0.0)).read()
"""
    variables = environment(os.environ | {"CXX": str(compiler)}, tmp_path / "compiled")
    ran = subprocess.run([sys.executable, "-c", code], check=True, env=variables, capture_output=True, text=True)
    assert "the layers are not compiled: torch needs a C++ compiler" in ran.stderr
