"""Text becomes tokens and text again; what looks like a special token is text; a file that is none is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.made_tokenizer import VOCAB, make_tokenizer
from trainer.data.tokens import MAX_TOKENIZER_BYTES, ByteTokenizer, TokenizerFile, UnreadableText

END, ENDS = "<|endoftext|>", (257,)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with every byte, one merge and three added tokens."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_bytes_come_back_as_the_same_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("token", [VOCAB, 2**70])
def test_what_a_model_writes_and_its_tokenizer_has_not_is_no_text(token: int, file: Path) -> None:
    for tokenizer in (ByteTokenizer(), TokenizerFile(file, ENDS)):
        a, b = tokenizer.encode("a") + tokenizer.encode("b")
        assert tokenizer.decode([a, token, token, b]) == "a\ufffd\ufffdb"
        with pytest.raises(ValueError, match="token IDs start at 0"):
            tokenizer.decode([-1])
        with pytest.raises(UnreadableText, match="half of a surrogate pair"):
            tokenizer.encode("\ud800")
    with pytest.raises(UnreadableText, match="contains a token that ends a turn"):
        ByteTokenizer().encode("a\0b")


BATCH = st.lists(st.text(max_size=20) | st.sampled_from(["", "abab", "a\0b", "\ud800", f"a {END} b"]), max_size=6)


@given(texts=BATCH)
def test_batch_has_the_tokens_or_the_error_of_each_text(texts: list[str], file: Path) -> None:
    for tokenizer in (ByteTokenizer(), TokenizerFile(file, ENDS, is_checked=True)):
        for text, found in zip(texts, tokenizer.encode_batch(texts), strict=True):
            try:
                tokens = tokenizer.encode(text)
            except UnreadableText as error:
                assert isinstance(found, UnreadableText) and found.flaw == error.flaw
            else:
                assert not isinstance(found, UnreadableText)
                assert found.dtype == tokenizer.dtype and found.tolist() == tokens


def test_batch_refuses_text_that_a_vocabulary_turns_into_an_end_token(file: Path) -> None:
    ordinary = TokenizerFile(file, ENDS).encode("ab")
    tokenizer = TokenizerFile(file, ordinary)
    first, second, third = tokenizer.encode_batch(["a", "abb", "b"])
    assert isinstance(second, UnreadableText) and second.flaw == "contains a token that ends a turn"
    assert not isinstance(first, UnreadableText) and not isinstance(third, UnreadableText)


def test_nobody_writes_an_end_token_into_a_text(file: Path) -> None:
    tokenizer = TokenizerFile(file, ENDS)
    tokens = tokenizer.encode(f"a{END}b")
    assert tokenizer.end not in tokens and len(tokenizer.encode("a cab\n")) == 5 and tokenizer.vocab == VOCAB
    assert tokenizer.decode(tokens) == f"a{END}b"
    assert tokenizer.decode([tokenizer.end]) == END


def test_file_that_is_none_is_refused_with_a_sentence(file: Path, tmp_path: Path) -> None:
    broken, large = tmp_path / "broken.json", tmp_path / "large.json"
    broken.write_text("{}")
    with large.open("wb") as out:
        out.truncate(MAX_TOKENIZER_BYTES + 1)
    with pytest.raises(ValueError, match="is not a tokenizer.json"):
        TokenizerFile(broken, ENDS)
    with pytest.raises(ValueError, match="larger than"):
        TokenizerFile(large, ENDS)
    with pytest.raises(ValueError, match="cannot read"):
        TokenizerFile(tmp_path / "missing.json", ENDS)
    for ends in ((), (VOCAB,), (257, 1 << 40)):
        with pytest.raises(ValueError, match="has no token"):
            TokenizerFile(file, ends)
    with pytest.raises(ValueError, match="has no token '<eos>'"):
        TokenizerFile(file, ENDS).special("<eos>")
    with pytest.raises(ValueError, match="a byte-level model has no token"):
        ByteTokenizer().special(END)
