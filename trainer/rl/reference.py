"""The parameters that the KL term compares with: a file of their bf16 values, little endian, as the peer process keeps it.

They are needed only before a version's first step, in one pass without gradients, so they are read anew for each version and
take no memory while the trainer learns.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

BLOCK = 1 << 20


def read_reference(path: Path, count: int, device: torch.device) -> Tensor:
    """The `count` parameters in `path`, in the precision of the device's products: bf16 on a GPU, fp32 elsewhere.

    Raises ValueError where the file has another size, and OSError.
    """
    values = np.memmap(path, dtype=np.dtype("<i2"), mode="r")
    if values.shape != (count,):
        raise ValueError(f"the reference weights have {values.size} parameters, and the model has {count}")
    weights = torch.empty(count, dtype=torch.bfloat16 if device.type == "cuda" else torch.float32, device=device)
    for start in range(0, count, BLOCK):
        block = torch.from_numpy(values[start : start + BLOCK].astype(np.int16))
        weights[start : start + BLOCK] = block.view(torch.bfloat16)
    return weights
