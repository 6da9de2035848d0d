"""Samples: short completions of a run's prompts, which show people how a model's texts change from round to round.

The sampling's noise is the same in every evaluation, so that the same parameters give the same text, apart from rounding.
Each token is computed from the whole text again: without keys and values of earlier tokens, samples need no memory, and
ranks that share a model can write them together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from trainer.config import TrainingConfig
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import UnreadableText
from trainer.device import on_device
from trainer.generate.sampling import choose, stream_key
from trainer.models.llama.model import Decoder, through_head

TEMPERATURE = 0.7
"""Temperature of the sampling.  Without noise small models repeat themselves; more noise hides their knowledge."""
MOST_CHARACTERS = 1000
"""Largest number of characters of a text that the peer gets; it shows fewer to people."""


NextTokens = Callable[[Sequence[Sequence[int]], Sequence[int], int], list[int]]
"""Function that chooses tokens as `next_tokens` does, with the writing model."""


class Samples:
    """Completions of a run's prompts, all of which grow by a token at a time.

    tokens: largest number of tokens of each.  A prompt that the tokenizer refuses is not completed.
    """

    def __init__(self, config: TrainingConfig, tokenizer: TemplatedTokenizer) -> None:
        self.tokens = config.samples.tokens if config.samples is not None else 0
        self._tokenizer = tokenizer
        converses = config.data.format != "text" or config.rl is not None
        prompts = config.samples.prompts if config.samples is not None else ()
        self._prompts = [_encoded(prompt, tokenizer, converses=converses) for prompt in prompts]
        self._outputs: list[list[int]] = [[] for _ in self._prompts]
        self._length = min(config.data.sequence_length, max(map(len, self._prompts), default=0) + self.tokens)

    def grow(self, choose: NextTokens) -> None:
        """Add a token to each text that has not ended."""
        going = [
            place
            for place, (prompt, output) in enumerate(zip(self._prompts, self._outputs, strict=True))
            if prompt and len(output) < self.tokens and not (output and output[-1] in self._tokenizer.ends)
        ]
        if not going:
            return
        texts = [self._prompts[place] + self._outputs[place] for place in going]
        for place, token in zip(going, choose(texts, going, self._length), strict=True):
            self._outputs[place].append(token)

    @property
    def texts(self) -> tuple[str, ...]:
        """Text of each completion so far, without its end token."""
        ends = self._tokenizer.ends
        said = ([token for token in output if token not in ends] for output in self._outputs)
        return tuple(self._tokenizer.decode(output)[:MOST_CHARACTERS] for output in said)


def _encoded(prompt: str, tokenizer: TemplatedTokenizer, *, converses: bool) -> list[int]:
    """Return the tokens of a prompt, as a user message if the model learns conversations; none if it cannot be encoded."""
    try:
        return tokenizer.prompt(prompt) if converses else tokenizer.encode(prompt)
    except UnreadableText:
        return []


@torch.no_grad()
def next_tokens(model: Decoder, texts: Sequence[Sequence[int]], streams: Sequence[int], length: int) -> list[int]:
    """Choose the next token of each text; the model reads the text's last `length` tokens.

    streams: number of the noise of each text.  All texts are padded to `length`, so that compiled layers see few shapes.
    """
    read = [list(text[-length:]) for text in texts]
    tokens_bt = on_device(torch.tensor([text + [0] * (length - len(text)) for text in read]).numpy(), model.device)
    lasts_b = torch.tensor([len(text) - 1 for text in read], device=model.device)
    rows_b = torch.arange(len(read), device=model.device)
    logits_bv = through_head(model, tokens_bt, None, lambda hidden, weight: hidden[rows_b, lasts_b] @ weight.to(hidden).T)
    keys_b = torch.tensor([stream_key(b"samples", 0, "", 0, stream, 0) for stream in streams], device=model.device)
    positions_b = torch.tensor([len(text) for text in texts], device=model.device)
    return choose(logits_bv.float(), keys_b, positions_b, TEMPERATURE).tolist()
