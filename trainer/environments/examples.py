"""An environment's own examples as a text to train on, for a warm start."""

from __future__ import annotations

import hashlib

import numpy as np

from trainer.data.corpus import SEPARATOR, Corpus
from trainer.environments.environment import Environment

MOST_EXAMPLES = 1 << 14


def corpus_of(environment: Environment, held_out_percent: int) -> Corpus:
    """The examples of problems spread over the environment, each ended by a zero byte; every so many are held out.

    Raises ValueError where the environment knows no solutions.
    """
    count = min(environment.size, MOST_EXAMPLES)
    splits: dict[bool, list[bytes]] = {False: [], True: []}
    for number in range(count):
        prompt, answer = environment.example(number * environment.size // count)
        splits[number * held_out_percent % 100 < held_out_percent].append((prompt + answer).encode() + SEPARATOR)
    train, held_out = (b"".join(splits[held]) for held in (False, True))
    digest = hashlib.blake2b(train + SEPARATOR * 2 + held_out, digest_size=16).hexdigest()
    return Corpus(np.frombuffer(train, dtype=np.uint8), np.frombuffer(held_out, dtype=np.uint8), digest)
