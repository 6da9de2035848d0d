"""Sampling with noise that any peer can recompute, which is Gumbel-max with counter-based noise.

The chosen token is the arg-max of logits / temperature + Gumbel noise, which is a draw from the softmax (Gumbel 1954;
Maddison et al. 2014). The noise of a token is a function of a 64-bit key, the token's position and its id. So a validator
with the logits can compute the token that had to be chosen, and `shortfall` measures how far another token falls short of
it.

The integers are the same on every device: a counter passes twice through the finalizer of SplitMix64 (Steele et al. 2014,
with the constants of Stafford's variant 13), in wrapping int64 arithmetic. The uniform number made from the integers is also
the same on every device, because conversion of integers to fp32 rounds correctly everywhere. The two logarithms after that
agree to a few ulps.

Positions count a sequence's tokens, including the prompt: row p of a prefill predicts the token at position p + 1.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
"""Multiplier of counters: 2^64 over the golden ratio, odd."""
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Multipliers of the finalizer."""
UNIT = 2.0**-63
BELOW_ONE = 1.0 - 2.0**-24
"""Largest fp32 number below 1."""


def stream_key(run: bytes, version: int, peer: str, batch: int, problem: int, copy: int) -> int:
    """Return the key of one completion's noise: 64 bits as a signed number, as in int64 tensors.

    run: the run's hash.  version: version of the weights. peer: the generating peer. batch: number of the batch, because a
    problem may be drawn for several batches of one version. copy: number in the problem's group.
    """
    hashed = hashlib.blake2b(digest_size=8, person=b"manyhands gumbel")
    for part in (run, str(version).encode(), peer.encode(), *(str(number).encode() for number in (batch, problem, copy))):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return int.from_bytes(hashed.digest(), "big", signed=True)


def noise_bits(keys_b: Tensor, positions_b: Tensor, vocabulary: int) -> Tensor:
    """Return 64 random bits for every token, int64 (B, vocabulary).  keys_b, positions_b: int64 (B,)."""
    streams_b = _mixed(keys_b + (positions_b + 1) * _signed(GOLDEN))
    counters_v = torch.arange(1, vocabulary + 1, device=keys_b.device) * _signed(GOLDEN)
    return _mixed(streams_b[:, None] + counters_v)


def uniform(bits: Tensor) -> Tensor:
    """Turn int64 bits into fp32 numbers in the open interval (0, 1); small numbers have the full precision of fp32."""
    return _shifted(bits, 1).bitwise_or_(1).float().mul_(UNIT).clamp_(max=BELOW_ONE)


def gumbel(keys_b: Tensor, positions_b: Tensor, vocabulary: int) -> Tensor:
    """Return standard Gumbel noise, finite, fp32 (B, vocabulary).  keys_b, positions_b: int64 (B,).

    The formula is -log(-log(1 - u)). Large noise decides the choice, and comes from a small u, where fp32 is dense.
    """
    uniform_bv = uniform(noise_bits(keys_b, positions_b, vocabulary))
    return uniform_bv.neg_().log1p_().neg_().log_().neg_()


def choose(logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
    """Choose the tokens at `positions_b`, int64 (B,).  temperature: 0 takes the largest logit, without noise."""
    return _perturbed(logits_bv, keys_b, positions_b, temperature).argmax(dim=1)


def shortfall(logits_nv: Tensor, tokens_n: Tensor, keys_n: Tensor, positions_n: Tensor, temperature: float) -> Tensor:
    """Return each token's shortfall from the token that had to be chosen, fp32 (N,); it is 0 for that token itself.

    The unit is logits / temperature (logits at temperature 0). The shortfall is infinite if the logits are NaN. logits_nv:
    logits of the rows that predicted the tokens. keys_n, positions_n: int64 (N,), for each token. Raises ValueError for a
    token outside the vocabulary.
    """
    _check_tokens(tokens_n, logits_nv.shape[1])
    perturbed_nv = _perturbed(logits_nv, keys_n, positions_n, temperature)
    below_n = perturbed_nv.amax(dim=1) - perturbed_nv.gather(1, tokens_n[:, None]).squeeze(1)
    return below_n.nan_to_num_(nan=math.inf, posinf=math.inf)


def probability(logits_nv: Tensor, tokens_n: Tensor, temperature: float) -> Tensor:
    """Return the probability of each token, fp32 (N,).  temperature: 0 counts as 1, because sampling at 0 is not random.

    Raises ValueError for a token outside the vocabulary.
    """
    _check_tokens(tokens_n, logits_nv.shape[1])
    scaled_nv = logits_nv.float() / (temperature or 1.0)
    return (scaled_nv.gather(1, tokens_n[:, None]).squeeze(1) - scaled_nv.logsumexp(dim=1)).exp_()


def near_ties(logits_nv: Tensor, temperature: float) -> Tensor:
    """Return the density of near-ties of each row, 1 - sum p^2, fp32 (N,).

    The density times a small margin is the probability that the two best tokens, noise included, differ by less than the
    margin. The reason is that the perturbed values of two tokens differ by logistic noise, whose density at equality is
    p (1 - p) for each token. NaN logits give 0. temperature: must be above 0.
    """
    p_nv = torch.softmax(logits_nv.float() / temperature, dim=1)
    return (1.0 - p_nv.square_().sum(dim=1)).nan_to_num_(nan=0.0).clamp_(0.0, 1.0)


def _perturbed(logits_bv: Tensor, keys_b: Tensor, positions_b: Tensor, temperature: float) -> Tensor:
    if temperature == 0.0:
        return logits_bv.float()
    return gumbel(keys_b, positions_b, logits_bv.shape[1]).add_(logits_bv.float() / temperature)


def _check_tokens(tokens_n: Tensor, vocabulary: int) -> None:
    if tokens_n.numel() and not (int(tokens_n.min()) >= 0 and int(tokens_n.max()) < vocabulary):
        raise ValueError(f"a token is outside the vocabulary of {vocabulary}")


def _mixed(values: Tensor) -> Tensor:
    """Apply SplitMix64's finalizer, in place: each input bit changes each output bit with probability 1/2."""
    values.bitwise_xor_(_shifted(values, 30)).mul_(_signed(FIRST))
    values.bitwise_xor_(_shifted(values, 27)).mul_(_signed(SECOND))
    return values.bitwise_xor_(_shifted(values, 31))


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift right, filling with zeros; the shift of int64 itself repeats the sign."""
    return (values >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the int64 with the same bits as an unsigned number."""
    return value - (1 << 64) if value >> 63 else value
