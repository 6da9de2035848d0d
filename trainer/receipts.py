"""Receipts of rows: small evidence that a member has computed the gradient of a row it was given.

A receipt is a row's loss and, for each quarter of the row, random projections of the gradient of the loss with respect to
the embedding's output there.  Nobody gets these without a forward and a backward pass on that very row with about the right
weights, and to a training step they are a by-product.  An auditor computes the receipts of some rows again, at weights that
are public, and compares them by cosine: honest receipts are alike because the weights are, and other receipts are not.  The
gradients of the weights are not needed for a receipt, so an audited row costs less than a trained row, and a member that
skips them is not found.

`ReceiptKeeper` keeps receipts in a step, `receipts_at` computes them for an audit, and `cosines` compares both; the peer
decides (`protocol.audit.receipts`).  `python -m benchmarks.receipts` measures how well that tells honest members from cheats
(docs/results/receipts.md).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protocol.formats.training import RECEIPT_BYTES
from trainer.device import on_device
from trainer.models.llama.model import Decoder
from trainer.objective import F64, Objective, StepRows

PARTS, WIDTH = 4, 32
"""Parts of a row, and projections of each."""
LARGEST = 127
"""Absolute value of a part's largest projection."""
RECEIPT = np.dtype([("loss", "<f2"), ("projections", "i1", (PARTS, WIDTH))])
"""Form of a receipt, 130 bytes: the loss in nats per counted token, and the projections, scaled in each part so that the
largest is `LARGEST`; zeros for a part that no counted token follows."""
assert RECEIPT.itemsize == RECEIPT_BYTES
Receipts = npt.NDArray[Any]
"""Receipts of rows: (B,), of the type `RECEIPT`."""


# ------------------------------------------------------------------------------------------------------------------------
# Random projections.


def _signs(purpose: str, seed: int, count: int) -> npt.NDArray[np.float32]:
    """Return random signs, (count, WIDTH); more of them begin with the same ones.  Equal on all computers."""
    drawn = hashlib.shake_256(f"receipts {purpose} {seed}".encode()).digest(count * WIDTH // 8)
    bits = np.unpackbits(np.frombuffer(drawn, np.uint8)).reshape(count, WIDTH)
    return 1 - 2 * bits.astype(np.float32)


class GradientProjection:
    """Random projections of the gradients of rows, the same for all peers of a run.

    Projection w of a part is the sum over its tokens t and over the width d of a[t, w] * b[d, w] * gradient[t, d], with
    random signs a and b: products need T + dim signs for each projection instead of T * dim.  Each is an unbiased estimate
    of the inner product of two gradients, so the cosine of projections estimates the cosine of gradients.
    """

    def __init__(self, seed: int, dim: int) -> None:
        """Draw the signs.  seed: of the run.  dim: the model's width."""
        self._seed = seed
        self._of_width = torch.from_numpy(_signs("width", seed, dim))
        self._of_tokens = torch.empty(0, WIDTH)

    def __call__(self, gradient_btd: Tensor) -> Tensor:
        """Return the projections (B, PARTS, WIDTH), fp32, of gradients (B, T, dim) on any device."""
        length, device = gradient_btd.shape[1], gradient_btd.device
        if len(self._of_tokens) < length or self._of_tokens.device != device:
            self._of_tokens = torch.from_numpy(_signs("tokens", self._seed, length)).to(device)
            self._of_width = self._of_width.to(device)
        mixed_btw = (gradient_btd.float() @ self._of_width).mul_(self._of_tokens[:length])
        ends = [length * part // PARTS for part in range(PARTS + 1)]
        sizes = [end - start for start, end in pairwise(ends)]
        return torch.stack([part.sum(dim=1) for part in torch.split(mixed_btw, sizes, dim=1)], dim=1)


def receipts_of(losses_b: Tensor, projections_bpw: Tensor) -> Receipts:
    """Return the receipts of rows with these losses (B,) and projections (B, PARTS, WIDTH); wait for their device."""
    receipts = np.zeros(len(losses_b), RECEIPT)
    receipts["loss"] = losses_b.detach().float().cpu().numpy()
    values = projections_bpw.detach().float().cpu().nan_to_num(0.0, 0.0, 0.0)
    largest = values.abs().amax(dim=-1, keepdim=True)
    receipts["projections"] = (torch.where(largest > 0, values / largest, 0.0) * LARGEST).round().to(torch.int8).numpy()
    return receipts


# ------------------------------------------------------------------------------------------------------------------------
# Receipts of a training step, and of an audit.


class ReceiptKeeper:
    """Keeper of the receipts of the rows of one step, in their order; with several ranks, of this rank's rows.

    A step computes its micro-batches within `step`, and calls `add` after the backward pass of each.  Nothing waits for a
    GPU before `take`.
    """

    def __init__(self, model: Decoder, seed: int) -> None:
        """Make a keeper of a model's receipts.  seed: of the run."""
        self._embedding = model.model.embed_tokens
        self._projection = GradientProjection(seed, model.config.dim)
        self._latest: Tensor | None = None
        """Projections of the last backward pass."""
        self._found: list[tuple[int, Tensor, Tensor]] = []
        """First row, losses (B,) and projections of each micro-batch."""

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch the gradient of the embedding's output; receipts kept before are forgotten."""
        self._latest, self._found = None, []
        handle = self._embedding.register_forward_hook(self._watch)
        try:
            yield
        finally:
            handle.remove()

    def _watch(self, module: torch.nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        if not output.requires_grad:  # of a frozen embedding
            output = output.detach().requires_grad_()
        output.register_hook(self._project)  # type: ignore[no-untyped-call]
        return output

    @torch.no_grad()
    def _project(self, gradient_btd: Tensor) -> None:
        self._latest = self._projection(gradient_btd)

    def add(self, first: int, units_u: Tensor, weights_u: F64) -> None:
        """Keep the receipts of the rows whose backward pass was the last, of which `first` is the first row's number.

        units_u, weights_u: losses and weights of the rows' units (`trainer.objective`).  All rows of a unit get its loss.
        """
        assert self._latest is not None, "no backward pass within a step"
        losses_u = units_u.detach() / on_device(np.maximum(weights_u, 1.0).astype(np.float32), units_u.device)
        self._found.append((first, losses_u.repeat_interleave(len(self._latest) // len(losses_u)), self._latest))
        self._latest = None

    def take(self) -> tuple[int, Receipts]:
        """Return the receipts of the last step's rows here, and the number of the first row; wait for the device."""
        if not self._found:
            return 0, np.zeros(0, RECEIPT)
        firsts, losses, projections = zip(*self._found, strict=True)
        return firsts[0], receipts_of(torch.cat(losses), torch.cat(projections))


def receipts_at(model: Decoder, objective: Objective[Any], rows: StepRows, z_loss: float, seed: int, most: int) -> Receipts:
    """Return the receipts of rows at the weights of a model without gradients (`Decoder.over`).

    The backward pass computes no gradients of weights.  seed: of the run.  most: largest number of units at once.
    """
    keeper, unit = ReceiptKeeper(model, seed), objective.unit_rows
    with keeper.step():
        for start in range(0, len(rows), most * unit):
            some = rows[start : start + most * unit]
            loss = objective.loss(model, some, z_loss)
            loss.mean.backward()  # type: ignore[no-untyped-call]
            keeper.add(start, loss.units_u, objective.weights_u(some))
    return keeper.take()[1]


# ------------------------------------------------------------------------------------------------------------------------
# Comparison.


def part_cosines(claimed: Receipts, audited: Receipts) -> F64:
    """Return the cosine of each part, (B, PARTS): nan if neither has a gradient there, 0 if one of them has none."""
    mine, other = (each["projections"].astype(np.float64) for each in (claimed, audited))
    norms = np.linalg.norm(mine, axis=-1) * np.linalg.norm(other, axis=-1)
    empty = ~mine.any(axis=-1) & ~other.any(axis=-1)
    found: F64 = np.where(empty, np.nan, (mine * other).sum(axis=-1) / np.maximum(norms, 1.0))
    return found


def mean_of_parts(parts: F64) -> F64:
    """Return the mean of the cosines of parts, (..., PARTS), that are not nan; nan if all are."""
    known = ~np.isnan(parts)
    counts = known.sum(axis=-1)
    found: F64 = np.where(counts > 0, np.where(known, parts, 0.0).sum(axis=-1) / np.maximum(counts, 1), np.nan)
    return found


def cosines(claimed: Receipts, audited: Receipts) -> F64:
    """Return the mean cosine of the parts of each row, (B,); nan for a row without a gradient, which says nothing."""
    return mean_of_parts(part_cosines(claimed, audited))
