"""A tokenizer.json as models bring it: a byte-level BPE with the marks of ChatML."""

from __future__ import annotations

from pathlib import Path

import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

START, TURN_END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
VOCAB = 260
"""256 letters, a merge, three marks."""
ENDS = (259, 257)
"""Of a turn, and of a text."""


def make_tokenizer(path: Path) -> Path:
    """Write the file."""
    letters = sorted(ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*letters, "ab"])}
    made = tokenizers.Tokenizer(BPE(vocabulary, [("a", "b")]))
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([TEXT_END, START, TURN_END])
    made.save(str(path))
    return path
