"""Token-weighted mean of encoded contributions, encoded again.

For each value: sum over members, in the order given, of code * (scale * w), w = tokens / all tokens, everything fp32;
then one quantisation.  The order is the canonical order of members, so every peer that averages gets the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernels.codec import BLOCK, PIECE, blocks_of, encode_piece, is_sane, parts


def weighted_mean(contributions: Sequence[Any], weights: Sequence[int], count: int, out: Any) -> None:
    """Average `contributions` (codec bytes of `count` values each) with positive integer `weights` into `out`.

    The caller has dropped contributions that are not sane; this is asserted.  `out` must not overlap any contribution.
    """
    assert len(contributions) == len(weights) > 0 and all(weight > 0 for weight in weights)
    assert all(is_sane(contribution, count) for contribution in contributions)
    shares = shares_of(weights)
    members = [parts(contribution, count) for contribution in contributions]
    out_scales, out_codes = parts(out, count)
    longest = min(PIECE, count)
    mean, term = np.empty(longest, np.float32), np.empty(longest, np.float32)
    for start in range(0, count, PIECE):
        size = min(PIECE, count - start)
        first, rows = start // BLOCK, blocks_of(size)
        for index, (scales, codes) in enumerate(members):
            target = mean if index == 0 else term
            _scaled(codes[start : start + size], scales[first : first + rows] * shares[index], target[:size])
            if index:
                np.add(mean[:size], term[:size], out=mean[:size])
        encode_piece(mean[:size], term, out_scales[first : first + rows], out_codes[start : start + size])


def shares_of(weights: Sequence[int]) -> list[np.float32]:
    """Return each weight over their sum, in fp64 and then fp32: the division is the same everywhere."""
    total = sum(weights)
    return [np.float32(weight / total) for weight in weights]


def _scaled(codes: Any, scales: Any, out: Any) -> None:
    whole = codes.size - codes.size % BLOCK
    np.multiply(codes[:whole].reshape(-1, BLOCK), scales[: whole // BLOCK, None], out=out[:whole].reshape(-1, BLOCK))
    if whole < codes.size:
        np.multiply(codes[whole:], scales[-1], out=out[whole:])
