"""A document in a packed row has the logits and gradients that it has alone, in every family."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protocol.formats.model import ModelConfig
from tests.trainer.weights.models import CONFIGS, random_parameters
from trainer.models.llama.model import Decoder, Documents, causal_attention

ROWS = [[30, 1, 17], [48], [5, 43]]
"""Lengths of the documents in each row."""


def model_of(config: ModelConfig) -> Decoder:
    model = Decoder(config, torch.device("cpu"))
    model.flat.copy_(torch.from_numpy(random_parameters(config)))
    return model


def packed(vocab: int) -> tuple[Tensor, Documents]:
    """Tokens (3, 48) and documents; ids begin at 0 in each row."""
    tokens = torch.randint(vocab, (3, 48), generator=torch.Generator().manual_seed(0))
    ids = [torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in ROWS]
    return tokens, Documents.of(torch.stack(ids).numpy(), torch.device("cpu"))


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_each_document_alone(name: str) -> None:
    model = model_of(CONFIGS[name])
    tokens, documents = packed(model.config.vocab)
    with torch.no_grad():
        together = model(tokens, documents) @ model.output_weight.T
        without = model(tokens) @ model.output_weight.T
        for row, lengths in enumerate(ROWS):
            start = 0
            for length in lengths:
                span = slice(start, start + length)
                alone = model(tokens[row : row + 1, span]) @ model.output_weight.T
                torch.testing.assert_close(together[row, span], alone[0], rtol=1e-4, atol=1e-4)
                start += length
    assert (together[0, 31:] - without[0, 31:]).abs().amax(dim=1).min() > 1e-2


@pytest.mark.parametrize("name", ["llama3, tied", "qwen2", "qwen3"])
def test_gradients_are_the_sum_of_those_of_each_document(name: str) -> None:
    model = model_of(CONFIGS[name])
    tokens, documents = packed(model.config.vocab)
    target = torch.randn(3, 48, model.config.dim, generator=torch.Generator().manual_seed(1))
    (model(tokens, documents) * target).sum().backward()
    together = model.gradient.clone()
    model.gradient.zero_()
    for row, lengths in enumerate(ROWS):
        for span in torch.arange(48).split(lengths):
            (model(tokens[row : row + 1, span])[0] * target[row, span]).sum().backward()
    assert together.abs().max() > 1
    torch.testing.assert_close(together, model.gradient, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("heads", [2, 6])
def test_attention_within_documents_is_that_with_a_mask_of_all_pairs(heads: int) -> None:
    """The mask has the square of a row's length, so only this test computes with it."""
    ids = np.repeat(np.arange(3), [20, 1, 27])[None].repeat(2, 0)
    query, key, value = (
        torch.randn(2, 48, count, 8, generator=torch.Generator().manual_seed(number)).transpose(1, 2)
        for number, count in enumerate((heads, 2, 2))
    )
    mask = torch.from_numpy(ids[:, :, None] == ids[:, None, :]).tril()[:, None]
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    found = causal_attention(query, key, value, Documents.of(ids, torch.device("cpu")))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("differentiates", "precision"), [(True, torch.float32), (False, torch.bfloat16)])
def test_training_attends_to_short_documents_in_fp32_on_a_cpu(differentiates: bool, precision: torch.dtype) -> None:
    """Where a model computes in bf16, by autocast; without a gradient bf16 is faster."""
    heads = torch.randn(3, 1, 2, 24, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    query, key, value = (each.requires_grad_(differentiates) for each in heads)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = causal_attention(query, key, value, Documents.of(np.zeros((1, 24), np.int64), torch.device("cpu")))
    queries, keys, values = heads.to(precision)
    expected = F.scaled_dot_product_attention(queries, keys, values, is_causal=True).bfloat16()
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
