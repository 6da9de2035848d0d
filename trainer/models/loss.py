"""Loss of a model on windows of tokens, in the precision of its device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.losses import language_model_loss
from trainer.data.rows import Rows
from trainer.models.llama.model import Decoder


def hidden_states(model: Decoder, tokens_bt: Tensor, documents_bt: Tensor | None = None) -> Tensor:
    """Return hidden states (B, T, dim) of tokens on the model's device, in that device's precision of products."""
    device = model.flat.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden: Tensor = model(tokens_bt, documents_bt)
    return hidden.bfloat16() if device.type == "cuda" else hidden  # the output product is bf16, the rest fp32


def loss_of(model: Decoder, rows: Rows, z_loss: float) -> Tensor:
    """Return the mean loss of the rows' counted tokens, nats per token, with `z_loss` times the max-z loss."""
    device = model.flat.device
    tokens = torch.from_numpy(rows.tokens_bt.astype(np.int64)).to(device)
    counts, documents = (None if each is None else torch.from_numpy(each).to(device) for each in rows.beside)
    hidden = hidden_states(model, tokens[:, :-1], documents)
    loss: Tensor = language_model_loss(hidden, model.output_weight, tokens[:, 1:], z_loss, counts)
    return loss
