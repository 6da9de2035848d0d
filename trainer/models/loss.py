"""The loss of a model on windows of tokens, in the precision of its device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from kernels.losses import language_model_loss
from trainer.models.llama.model import Decoder


def loss_of(model: Decoder, tokens_bt: np.ndarray, z_loss: float) -> Tensor:
    """Mean loss on windows (B, T + 1) of bytes, nats a token, with `z_loss` times the max-z loss."""
    device = model.flat.device
    tokens = torch.from_numpy(tokens_bt.astype(np.int64)).to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
        hidden = model(tokens[:, :-1])
    if device.type == "cuda":
        hidden = hidden.bfloat16()  # the product with the output weights is in this precision, the rest fp32
    loss: Tensor = language_model_loss(hidden, model.output_weight, tokens[:, 1:], z_loss)
    return loss
