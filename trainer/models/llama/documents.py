"""Rows of several documents: the position of each token in its document, and attention that stays inside it.

A document is a run of equal ids in a row; a new row begins a new document.  Each document is computed by itself, so its
attention costs no more than alone, and needs no mask of a row's length squared.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def document_spans(documents_bt: Tensor) -> tuple[Tensor, list[int]]:
    """Return positions (B, T) that begin at 0 in each document, and the documents' lengths, one row after the other."""
    batch, length = documents_bt.shape
    begins_bt = torch.ones_like(documents_bt, dtype=torch.bool)
    begins_bt[:, 1:] = documents_bt[:, 1:] != documents_bt[:, :-1]
    places_t = torch.arange(length, device=documents_bt.device)
    positions_bt = places_t - torch.where(begins_bt, places_t, 0).cummax(dim=1).values
    starts: list[int] = begins_bt.flatten().nonzero().flatten().tolist()
    ends = [*starts[1:], batch * length]
    return positions_bt, [end - start for start, end in zip(starts, ends, strict=True)]


def causal_attention(query_bhtw: Tensor, key_bhtw: Tensor, value_bhtw: Tensor, lengths: Sequence[int] | None) -> Tensor:
    """Compute causal attention (B, H, T, W) within the documents of these lengths, or within whole rows for None."""
    if lengths is None:
        return F.scaled_dot_product_attention(query_bhtw, key_bhtw, value_bhtw, is_causal=True)
    batch, heads, length, width = query_bhtw.shape
    ends = torch.tensor(lengths).cumsum(0)[:-1].tolist()
    query, key, value = (
        each.transpose(0, 1).reshape(1, heads, batch * length, width).tensor_split(ends, dim=2)
        for each in (query_bhtw, key_bhtw, value_bhtw)
    )
    mixed = [F.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in zip(query, key, value, strict=True)]
    return torch.cat(mixed, dim=2).view(heads, batch, length, width).transpose(0, 1)
