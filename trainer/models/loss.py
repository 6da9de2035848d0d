"""The loss of a model on windows of tokens, in the precision of its device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.losses import language_model_loss
from trainer.models.llama.model import Decoder


def hidden_states(model: Decoder, tokens_bt: Tensor, documents_bt: Tensor | None = None) -> Tensor:
    """Hidden states (B, T, dim) of tokens on the model's device, in the precision that its products have there."""
    device = model.flat.device
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden: Tensor = model(tokens_bt, documents_bt)
    return hidden.bfloat16() if device.type == "cuda" else hidden  # so is the product with the output weights, the rest fp32


def loss_of(model: Decoder, tokens_bt: np.ndarray, z_loss: float) -> Tensor:
    """Mean loss on windows (B, T + 1) of bytes, nats a token, with `z_loss` times the max-z loss."""
    tokens = torch.from_numpy(tokens_bt.astype(np.int64)).to(model.flat.device)
    hidden = hidden_states(model, tokens[:, :-1])
    loss: Tensor = language_model_loss(hidden, model.output_weight, tokens[:, 1:], z_loss)
    return loss
