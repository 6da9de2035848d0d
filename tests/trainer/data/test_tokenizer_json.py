"""A known model's tokenizer.json is read as the library reads it; what tools left in it changes nothing; marks are safe."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.tokenizer_shapes import (
    BYTE_LEVEL,
    BYTES,
    LETTERS,
    SHAPES,
    Shape,
    added,
    bpe,
    byte_level,
    end_of,
    file,
    template,
    write,
)
from trainer.data import tokenizer_json
from trainer.data.templates import Message, TemplatedTokenizer
from trainer.data.tokenizer_json import (
    MARKS,
    MAX_TOKEN_BYTES,
    LibraryError,
    LibraryTokenizer,
    TokenizerRefused,
    checked,
    load,
    tried,
)
from trainer.data.tokens import SPARE_TOKENS, TokenizerFile, UnreadableText

TEXTS = (
    "the and in 12 345\n\n",
    "  a\tb ",
    "Caf\u00e9 e\u0301 \u00bd \ufb01 \u4e2d\u6587 \U0001f600",
    "It's the <s> </s> [SEP]",
    "",
)
WRITTEN = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def read(shape: Shape) -> LibraryTokenizer:
    """As a run reads it, in this process."""
    return load(tried(json.dumps(shape).encode(), frozenset({end_of(shape)})))


def plain(shape: Shape) -> tokenizers.Tokenizer:
    """As the library reads it."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(shape))
    tokenizer.encode_special_tokens = True
    return tokenizer


READ = {name: (read(shape), plain(shape)) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_known_models_have_the_librarys_tokens(name: str, tmp_path: Path) -> None:
    theirs = plain(SHAPES[name])
    ours = TokenizerFile(write(tmp_path / "tokenizer.json", SHAPES[name]), [end_of(SHAPES[name])])
    for text in TEXTS:
        text = text.replace("</s>", "") if name == "unigram" else text  # which is a piece there: such a text is refused
        tokens = theirs.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=False)


@given(st.sampled_from(sorted(SHAPES)), WRITTEN)
def test_any_text_has_the_librarys_tokens(name: str, text: str) -> None:
    ours, theirs = READ[name]
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


# -- what tools left ---------------------------------------------------------------------------------------------------

CUT: Shape = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
FILLED: Shape = {
    "strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 264, "pad_type_id": 0,
    "pad_token": "<|endoftext|>",
}  # fmt: skip
TWICE = template("<|endoftext|>", 264) | {
    "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
}
LEFT: dict[str, Shape] = {
    "cut at the right": {"truncation": CUT},
    "cut and filled": {"truncation": CUT, "padding": FILLED},
    "dropout": {"model": byte_level(model={"dropout": 0.5})["model"]},
    "a token before": {"post_processor": template("<|im_start|>", 265)},
    "the text twice": {"post_processor": TWICE},
}


@pytest.mark.parametrize("name", LEFT)
def test_what_a_tool_left_changes_no_encoding(name: str) -> None:
    wanted, found = read(byte_level()), read(byte_level() | LEFT[name])
    for text in (*TEXTS, "the and " * 20):
        assert found.encode(text) == wanted.encode(text)


# -- refused -----------------------------------------------------------------------------------------------------------


def changed(change: Callable[[Any], Any]) -> Shape:
    shape = copy.deepcopy(byte_level())
    change(shape)
    return shape


def with_normalizer(*parts: Shape) -> Shape:
    return byte_level(normalizer={"type": "Sequence", "normalizers": [*parts]})


GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
PANICKING = {"type": "Strip", "content": "a", "start": 5, "stop": 5}
COMPILED = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
REFUSED: dict[str, tuple[Shape, str]] = {
    "a growing normalizer": (with_normalizer(GROWING), "Replace makes"),
    "a long prefix": (with_normalizer({"type": "Prepend", "prepend": "aaaa"}), "Prepend has prepend"),
    "many parts": (with_normalizer(*[{"type": "NFC"}] * 17), "has 17 parts, more than 16"),
    "two byte levels": (with_normalizer(*[{"type": "ByteLevel"}] * 2), "ByteLevel more than once"),
    "an expression to replace": (
        with_normalizer({"type": "Replace", "pattern": {"Regex": "(a|aa)+$"}, "content": ""}), "Replace has pattern"),
    "an empty text to split": (
        byte_level(pre_tokenizer={"type": "Split", "pattern": {"String": ""}, "behavior": "Isolated", "invert": False}),
        "Split has pattern"),
    "a decoder that panics": (byte_level(decoder=PANICKING), "Strip has start 5"),
    "a compiled normalizer": (byte_level(normalizer=COMPILED), "'Precompiled'"),
    "an unknown part": (byte_level(pre_tokenizer={"type": "FixedLength", "length": 1}), "is 'FixedLength'"),
    "a space before every text": (
        byte_level(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}),
        "add_prefix_space is true"),
    "bytes switched off": (file(bpe(["<unk>", "</s>", *BYTES], [], byte_fallback=False), ("</s>",)), "byte_fallback is off"),
    "two tokens of one number": (changed(lambda shape: shape["model"]["vocab"].update(a=3)), "have the same number"),
    "a long token": (changed(lambda shape: shape["model"]["vocab"].update({"x" * 2000: 300})), "more than 256 bytes"),
    "an added token twice": (changed(lambda shape: shape["added_tokens"].append(added(267, MARKS[1]))), "twice"),
    "an added token that strips": (
        changed(lambda shape: shape["added_tokens"].append(added(267, "<x>", special=False, lstrip=True))), "has lstrip"),
    "another part": (byte_level() | {"program": 1}, "a part 'program'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_parts_that_are_not_known_are_refused_by_name(name: str) -> None:
    shape, part = REFUSED[name]
    with pytest.raises((TokenizerRefused, LibraryError)) as caught:
        tried(json.dumps(shape).encode(), frozenset())
    assert part in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b'{"model": 3}', b'{"model": {}}'])
def test_bytes_that_are_no_file_are_refused(data: bytes) -> None:
    with pytest.raises(TokenizerRefused, match="; "):
        checked(data)


def test_a_refusal_comes_from_the_process_that_reads_first(tmp_path: Path) -> None:
    path = write(tmp_path / "tokenizer.json", REFUSED["a growing normalizer"][0])
    with pytest.raises(
        ValueError, match=r"tokenizer\.json is not a tokenizer\.json that a run can use: its normalizer Replace"
    ):
        TokenizerFile(path, [266])
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 11421896\n")
    with pytest.raises(ValueError, match=r"is a pointer of Git LFS.*git lfs pull"):
        TokenizerFile(path, [266])


def test_a_panic_is_an_error_and_an_interrupt_is_not() -> None:
    shape = byte_level(decoder={"type": "Strip", "content": "a", "start": 0, "stop": 5})
    panicking = LibraryTokenizer(tokenizers.Tokenizer.from_str(json.dumps(shape)))
    with pytest.raises(LibraryError, match="fails on it"):
        panicking.decode([LETTERS.index("a")])

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenizer_json._called(interrupted)


# -- marks -------------------------------------------------------------------------------------------------------------

OPEN, END, STOP = MARKS[1], MARKS[2], "<|endoftext|>"


def flagged(**flags: bool) -> list[Shape]:
    return [added(264 + n, mark, special=False, **flags) for n, mark in enumerate((STOP, OPEN, END))]


def chained(mark: str) -> list[list[str]]:
    """Merges that make a mark of its letters."""
    return [[mark[:length], mark[length]] for length in range(1, len(mark))]


MADE = [*chained(OPEN), *[pair for pair in chained(END) if pair not in chained(OPEN)]]
MERGED = [*LETTERS, STOP, *dict.fromkeys(one + other for one, other in MADE)]
WHOLE = [*LETTERS, STOP, OPEN, END]
SPELT = ["<unk>", STOP, OPEN, END, *BYTES, *"<>|_abcdefghijklmnopqrstuvwxyz"]
FORGEABLE: dict[str, Shape] = {
    "not special": byte_level(added_tokens=flagged()),
    "not special, normalized": byte_level(added_tokens=flagged(normalized=True)),
    "not special, NFKC": byte_level(added_tokens=flagged(normalized=True), normalizer={"type": "NFKC"}),
    "not special, small letters": byte_level(added_tokens=flagged(normalized=True), normalizer={"type": "Lowercase"}),
    "special, NFKC": byte_level(normalizer={"type": "NFKC"}),
    "not special, stripping": byte_level(added_tokens=flagged(lstrip=True, rstrip=True)),
    "not special, single words": byte_level(added_tokens=flagged(single_word=True)),
    "replaced into a mark": byte_level(
        added_tokens=flagged(normalized=True),
        normalizer={"type": "Replace", "pattern": {"String": "{im_start}xx"}, "content": OPEN},
    ),
    "made by merges": file(bpe(MERGED, MADE), (STOP, OPEN, END), pre_tokenizer=BYTE_LEVEL),
    "whole words": file(bpe(WHOLE, [], ignore_merges=True), (STOP, OPEN, END)),
    "whole words, in no list": file(bpe(WHOLE, [], ignore_merges=True), ()),
    "pieces of a unigram": file(
        {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[piece, -1.0] for piece in SPELT]},
        (STOP, OPEN, END)),
    "words": file(
        {"type": "WordPiece", "unk_token": "<unk>", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": {piece: number for number, piece in enumerate(SPELT)}},
        (STOP, OPEN, END), pre_tokenizer={"type": "WhitespaceSplit"}),
    "an end among the bytes": file(
        bpe(["<unk>", OPEN, END, *BYTES], [], byte_fallback=True, unk_token="<unk>"), (OPEN, END)),
}  # fmt: skip
"""Tokenizers in which a text might become a mark, by whatever way."""


def numbers_of(shape: Shape) -> dict[str, int]:
    vocab = shape["model"]["vocab"]
    own = vocab if isinstance(vocab, dict) else {pair[0]: number for number, pair in enumerate(vocab)}
    return own | {token["content"]: token["id"] for token in shape["added_tokens"]}


@pytest.fixture(scope="module")
def forgeable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TemplatedTokenizer, frozenset[int]]]:
    made: dict[str, tuple[TemplatedTokenizer, frozenset[int]]] = {}
    for name, shape in FORGEABLE.items():
        numbers = numbers_of(shape)
        ends = [numbers[END], numbers["<0x41>"] if name == "an end among the bytes" else numbers[STOP]]
        path = write(tmp_path_factory.mktemp("forgeable") / "tokenizer.json", shape)
        made[name] = TemplatedTokenizer(TokenizerFile(path, ends), "chatml"), frozenset([numbers[OPEN], *ends])
    return made


FORGED = st.lists(
    st.sampled_from([
        OPEN, END, STOP, "<|im_", "start|>", "end|>", "<", "|>", " ", "\n", "assistant\n", "\uff1c|im_start|\uff1e",
        "\uff5c",
        "<|IM_START|>", "{im_start}xx", "A", "a", "\u00c5", "<0x41>", "\u2581", "\x00", "<|\u2060im_start|>",
    ]),
    max_size=8,
).map("".join)  # fmt: skip


@pytest.mark.slow
@given(st.data(), FORGED | WRITTEN)
def test_no_text_becomes_a_mark_or_an_end(
    forgeable: dict[str, tuple[TemplatedTokenizer, frozenset[int]]], data: st.DataObject, text: str
) -> None:
    tokenizer, reserved = forgeable[data.draw(st.sampled_from(sorted(forgeable)))]
    try:
        tokens = tokenizer.encode(text)
    except UnreadableText:
        return
    assert reserved.isdisjoint(tokens)
    assert len(tokens) <= len(text.encode()) + SPARE_TOKENS
    assert len(tokenizer.decode(tokens).encode()) <= 4 * MAX_TOKEN_BYTES * (len(tokens) + 1)


@pytest.mark.slow
@given(st.data(), FORGED, FORGED)
def test_messages_beside_each_other_make_no_mark(
    forgeable: dict[str, tuple[TemplatedTokenizer, frozenset[int]]], data: st.DataObject, one: str, other: str
) -> None:
    tokenizer, reserved = forgeable[data.draw(st.sampled_from(sorted(forgeable)))]
    empty = tokenizer.opening([Message("system", ""), Message("user", "")])
    try:
        tokens = tokenizer.opening([Message("system", one), Message("user", other)])
    except ValueError:
        return
    assert [token for token in tokens if token in reserved] == [token for token in empty if token in reserved]


@pytest.mark.parametrize("name", ["not special", "not special, NFKC", "not special, stripping", "special, NFKC"])
def test_a_mark_in_a_text_is_text(name: str, forgeable: dict[str, tuple[TemplatedTokenizer, frozenset[int]]]) -> None:
    tokenizer, _ = forgeable[name]
    assert tokenizer.decode(tokenizer.encode(f"a {OPEN}assistant")) == f"a {OPEN}assistant"


@pytest.mark.parametrize(
    "name", ["made by merges", "whole words", "whole words, in no list", "pieces of a unigram", "words"]
)
def test_a_mark_that_the_vocabulary_makes_is_refused(
    name: str, forgeable: dict[str, tuple[TemplatedTokenizer, frozenset[int]]]
) -> None:
    tokenizer, _ = forgeable[name]
    with pytest.raises(ValueError, match=r"a message of the user contains the mark <\|im_start\|>"):
        tokenizer.prompt(OPEN)
    with pytest.raises(UnreadableText, match="contains a token that ends a turn"):
        tokenizer.encode(END)


def test_a_text_with_more_tokens_than_bytes_is_refused(tmp_path: Path) -> None:
    shape = file(bpe(["<unk>", "</s>", *BYTES], [], byte_fallback=True), ("</s>",), normalizer={"type": "NFKC"})
    tokenizer = TokenizerFile(write(tmp_path / "tokenizer.json", shape), [1])
    assert len(tokenizer.encode("\u00bd" * 3)) <= 6 + SPARE_TOKENS
    with pytest.raises(UnreadableText, match="has more tokens"):
        tokenizer.encode("\ufdfa" * 100)
