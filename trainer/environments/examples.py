"""Corpus of an environment's own examples, for a warm start."""

from __future__ import annotations

import hashlib

import numpy as np

from trainer.data.corpus import SEPARATOR, Corpus
from trainer.data.tokens import ByteTokenizer, Tokenizer
from trainer.environments.conversation import example_tokens
from trainer.environments.environment import Environment

MOST_EXAMPLES = 1 << 14


def corpus_of(environment: Environment, held_out_percent: int, tokenizer: Tokenizer | None = None) -> Corpus:
    """Return examples of problems spread over the environment, laid out as rollouts; a fixed share is held out.

    tokenizer: defaults to bytes.  Raises ValueError if the environment knows no solutions.
    """
    tokenizer = tokenizer or ByteTokenizer()
    count = min(environment.size, MOST_EXAMPLES)
    splits: dict[bool, list[int]] = {False: [], True: []}
    for number in range(count):
        example = example_tokens(environment, number * environment.size // count, tokenizer)
        splits[number * held_out_percent % 100 < held_out_percent] += [*example.prompt, *example.output]
    train, held_out = (np.array(splits[held], np.min_scalar_type(tokenizer.vocab - 1)) for held in (False, True))
    digest = hashlib.blake2b(train.tobytes() + SEPARATOR * 2 + held_out.tobytes(), digest_size=16).hexdigest()
    return Corpus(train, held_out, digest)
