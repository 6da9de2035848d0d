"""Tokenizer of one's own data: a byte-level BPE that is trained on a sample of the inputs.

The sample is the beginnings of up to `MOST_BEGINNINGS` files, spread over the inputs, so that its size is bounded and the
same inputs give the same tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from peer.corpora.documents import DocumentEncoder
from peer.corpora.inputs import BuildInput, survey
from peer.corpora.options import BuildOptions, BuildTally, TokenFormat
from peer.corpora.readers import beginnings
from peer.errors import ExitCode, PeerError
from trainer.data.tokenizer_json import TURN_BEGIN, TURN_END, LibraryError, trained

SAMPLE_BYTES = 32 << 20
"""Approximate size of the sample in bytes: larger samples give almost the same vocabulary, and training takes seconds."""
SIZES = ((10 << 20, 1 << 12), (100 << 20, 1 << 13), (1 << 30, 1 << 14))
"""Numbers of tokens for inputs of fewer bytes; `LARGEST` for all others."""
LARGEST = 1 << 15
SPECIAL = (TURN_END, TURN_BEGIN)
"""Special tokens of the template chatml.  The first one ends a document."""


@dataclass(frozen=True)
class TrainedTokenizer:
    """Tokenizer that was trained.  content: its tokenizer.json.  sample_bytes: size of the texts in the sample, as UTF-8."""

    content: bytes
    sample_bytes: int

    @property
    def tokens(self) -> int:
        """Number of its tokens."""
        return len(json.loads(self.content)["model"]["vocab"])

    def format(self, path: Path, like: TokenFormat, template: str | None) -> TokenFormat:
        """Write the tokenizer to `path`; return the form of the tokens, with kind and rows of `like`."""
        path.write_bytes(self.content)
        return replace(like, tokenizer=path, ends=(SPECIAL.index(TURN_END),), template=template or "chatml")


def train_tokenizer(inputs: Sequence[BuildInput], options: BuildOptions, tokens: int | None = None) -> TrainedTokenizer:
    """Train a tokenizer on a sample of the inputs.

    tokens: size of its vocabulary; None to choose it by the size of the inputs.  options: the options of the build, with
    bytes as tokens.  Raises `PeerError`.
    """
    surveyed = survey(inputs, options)
    encoder, sample_bytes, tally = DocumentEncoder(options), 0, BuildTally()
    refusal: PeerError | None = None

    def texts() -> Iterator[str]:
        nonlocal sample_bytes, refusal
        try:
            for batch in beginnings(inputs, options, surveyed.traits, surveyed.files, SAMPLE_BYTES):
                for text in encoder.texts(batch, tally):
                    sample_bytes += len(text.encode(errors="replace"))
                    yield text
        except PeerError as error:  # the library would replace it by an error of its own
            refusal = error

    size = tokens or tokens_for(surveyed.total_bytes)
    try:
        content = trained(texts(), size, SPECIAL)
    except LibraryError as error:
        if refusal is not None or not sample_bytes:
            raise (refusal or _nothing(tally, options)) from error
        raise PeerError(
            f"no tokenizer can be trained on these inputs: {error}; name one with --tokenizer", ExitCode.INPUT
        ) from error
    if refusal is not None or not sample_bytes:
        raise refusal or _nothing(tally, options)
    return TrainedTokenizer(content, sample_bytes)


def _nothing(tally: BuildTally, options: BuildOptions) -> PeerError:
    """Return the error for inputs without a text, with the reason that a build would give."""
    try:
        tally.check(options, is_end=True)
    except PeerError as error:
        return error
    first = tally.first(True) or tally.first(False)
    reason = f"the first row left out is {first}" if first is not None else "they have no rows"
    return PeerError(
        f"the beginnings of the inputs have no text to train a tokenizer on; {reason}; check the inputs and the options, or "
        "name a tokenizer with --tokenizer",
        ExitCode.INPUT,
    )


def tokens_for(total_bytes: int | None) -> int:
    """Return the number of tokens for inputs of this size; None if it is unknown, as for a streamed data set."""
    if total_bytes is None:
        return LARGEST
    return next((tokens for limit, tokens in SIZES if total_bytes < limit), LARGEST)
