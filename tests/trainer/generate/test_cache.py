"""A forward pass in pieces over the cache gives what one over everything gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from protocol.formats.model import ModelConfig
from tests.trainer.generate.naive import CPU, FAMILIES, parameters
from trainer.models.llama.cache import Cache
from trainer.models.llama.model import Decoder

LENGTH = 100
every_family = pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)


def model_of(config: ModelConfig) -> Decoder:
    return Decoder(config, CPU, parameters(config))


def some_tokens(config: ModelConfig, rows: int, length: int = LENGTH) -> Tensor:
    return torch.randint(0, config.vocab, (rows, length), generator=torch.Generator().manual_seed(5))


def by_pieces(model: Decoder, cache: Cache, slots: Tensor | int, tokens: Tensor, cuts: list[int]) -> Tensor:
    """Hidden states of tokens (B, T), computed from cut to cut."""
    hidden = []
    for first, stop in pairwise(cuts):
        positions = torch.arange(first, stop).expand(len(tokens), -1)
        hidden.append(model(tokens[:, first:stop], past=cache.look_back(slots, positions, stop)))
    return torch.cat(hidden, dim=1)


@every_family
@torch.no_grad()
def test_pieces_of_any_size_give_the_hidden_states_of_the_whole(config: ModelConfig) -> None:
    model, tokens = model_of(config), some_tokens(config, 3)
    whole = model(tokens)
    for cuts in ([0, LENGTH], [0, 1, 2, 60, 70, 99, LENGTH], list(range(LENGTH + 1))):
        for slots in (3, torch.tensor([2, 0, 1])):
            cache = Cache(config, 3, LENGTH, torch.float32, CPU)
            torch.testing.assert_close(by_pieces(model, cache, slots, tokens, cuts), whole, rtol=1e-4, atol=1e-4)


@every_family
@torch.no_grad()
def test_neither_other_slots_nor_earlier_sequences_nor_spare_rows_are_looked_at(config: ModelConfig) -> None:
    model, tokens = model_of(config), some_tokens(config, 2)
    cache = Cache(config, 4, LENGTH, torch.float32, CPU)
    fresh = by_pieces(model, cache, torch.tensor([1, 2]), tokens, [0, 50, LENGTH])
    for part in (cache.keys, cache.values):
        part.fill_(1e3)
    again = by_pieces(model, cache, torch.tensor([1, 2]), tokens, [0, 50, LENGTH])
    torch.testing.assert_close(again, fresh, rtol=0, atol=0)


@torch.no_grad()
def test_tokens_that_do_not_count_leave_the_cache_of_the_others_alone() -> None:
    config = FAMILIES["llama3"]
    model, tokens = model_of(config), some_tokens(config, 2, 40)
    cache = Cache(config, 2, LENGTH, torch.float32, CPU)
    positions = torch.arange(40).repeat(2, 1)
    positions[1, 25:] = cache.spare
    padded = model(tokens, past=cache.look_back(2, positions, 40))
    assert padded.isfinite().all()
    assert cache.keys[:, 1, 25:LENGTH].abs().max() == 0
    torch.testing.assert_close(padded[0], model(tokens)[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(padded[1, :25], model(tokens)[1, :25], rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_a_moved_sequence_goes_on_in_its_new_slot() -> None:
    config = FAMILIES["qwen3"]
    model, tokens = model_of(config), some_tokens(config, 1)
    cache = Cache(config, 3, LENGTH, torch.float32, CPU)
    by_pieces(model, cache, torch.tensor([2]), tokens, [0, 80])
    cache.move(2, 0, 80)
    cache.keys[:, 2], cache.values[:, 2] = 1e3, 1e3
    past = cache.look_back(1, torch.arange(80, LENGTH)[None], LENGTH)
    torch.testing.assert_close(model(tokens[:, 80:], past=past), model(tokens)[:, 80:], rtol=1e-4, atol=1e-4)


@every_family
@torch.no_grad()
def test_products_in_bf16_keep_sums_and_norms_in_fp32(config: ModelConfig) -> None:
    exact, tokens = model_of(config), some_tokens(config, 2)
    rounded = Decoder(config, CPU, exact.flat.bfloat16())
    over_rounded = Decoder(config, CPU, rounded.flat.float())
    hidden = rounded(tokens)
    assert hidden.dtype == torch.float32
    errors = (hidden - over_rounded(tokens)).norm(dim=-1) / hidden.norm(dim=-1)
    assert errors.mean() < 0.05
    cached = by_pieces(rounded, Cache(config, 2, LENGTH, torch.bfloat16, CPU), 2, tokens, [0, 33, LENGTH])
    errors = (hidden - cached).norm(dim=-1) / hidden.norm(dim=-1)
    assert errors.mean() < 0.05
