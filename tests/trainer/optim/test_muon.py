"""Muon: hidden matrices by orthogonalised momentum, everything else by AdamW."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.trainer import small
from trainer.models.llama.model import Decoder
from trainer.optim import AdamW, MomentsFile, Muon
from trainer.parameters import WholeParameters

INNER = small.config().inner.changed(clip_norm=1e6, weight_decay=0.5, optimizer="muon")


def gradients(model: Decoder, step: int) -> None:
    values = np.random.default_rng(step).normal(size=len(model.flat)).astype(np.float32)
    model.gradient.copy_(torch.from_numpy(values))


def is_hidden_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and ".layers." in name


def test_hidden_matrices_are_updated_as_by_torchs_muon() -> None:
    ours, theirs = small.model(), small.model()
    optimiser = Muon(WholeParameters(ours), INNER)
    matrices = [p for name, p in theirs.tensors.items() if is_hidden_matrix(name, p)]
    oracle = torch.optim.Muon(matrices, lr=0.01, weight_decay=0.5, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(3):
        for model in (ours, theirs):
            gradients(model, step)
        optimiser.step(0.01)
        oracle.step()
    for name, parameter in theirs.tensors.items():
        if is_hidden_matrix(name, parameter):  # torch's iterates in bf16
            torch.testing.assert_close(ours.tensors[name], parameter, rtol=0, atol=2e-3)
            assert (ours.tensors[name] - small.model().tensors[name]).abs().mean() > 2e-3


def test_other_parameters_are_updated_as_by_adamw() -> None:
    muon, adamw = small.model(), small.model()
    one, other = Muon(WholeParameters(muon), INNER), AdamW(WholeParameters(adamw), INNER)
    for step in range(3):
        for model, optimiser in ((muon, one), (adamw, other)):
            gradients(model, step)
            optimiser.step(0.01)
    same = {name: torch.equal(muon.tensors[name], adamw.tensors[name]) for name in muon.tensors}
    assert same == {name: not is_hidden_matrix(name, p) for name, p in muon.tensors.items()}
    assert len(one.square) == sum(p.numel() for name, p in muon.tensors.items() if not is_hidden_matrix(name, p))


def test_moments_survive_in_their_file(tmp_path: Path) -> None:
    stopped, steady = small.model(), small.model()
    first, whole, file = (
        Muon(WholeParameters(stopped), INNER),
        Muon(WholeParameters(steady), INNER),
        MomentsFile(tmp_path / "moments.safetensors"),
    )
    for optimiser, model in ((first, stopped), (whole, steady)):
        gradients(model, 0)
        optimiser.step(0.01)
    file.store(first)
    second = Muon(WholeParameters(stopped), INNER)
    assert MomentsFile(file.path).restore(second) and second.steps == 1
    for optimiser, model in ((second, stopped), (whole, steady)):
        gradients(model, 1)
        optimiser.step(0.01)
    assert torch.equal(stopped.flat, steady.flat)
    assert not MomentsFile(file.path).restore(AdamW(WholeParameters(small.model()), INNER)), "AdamW has more moments"
