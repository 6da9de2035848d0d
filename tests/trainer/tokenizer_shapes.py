"""Files in the structure that known models' tokenizer.json have, with small vocabularies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from trainer.data import tokenizer_json as patterns

Shape = dict[str, Any]

LETTERS = sorted(ByteLevel.alphabet())
MERGES = [["t", "h"], ["th", "e"], ["\u0120", "the"], ["i", "n"], ["a", "n"], ["an", "d"], ["\u0120", "and"], ["1", "2"]]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def added(number: int, content: str, **flags: bool) -> Shape:
    """An added token, special unless `flags` say otherwise."""
    known = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content} | known | flags


def bpe(vocab: list[str], merges: list[list[str]], **options: Any) -> Shape:
    known = {
        "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
        "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    numbers = {token: number for number, token in enumerate(vocab)}
    return {"type": "BPE"} | known | options | {"vocab": numbers, "merges": merges}


def file(model: Shape, marks: tuple[str, ...] = MARKS, **parts: Any) -> Shape:
    """A whole file.  marks: added after the model's own tokens, or those of them that are none yet."""
    vocab = model["vocab"]
    own = vocab if isinstance(vocab, dict) else {pair[0]: number for number, pair in enumerate(vocab)}
    fresh = iter(range(len(own), len(own) + len(marks)))
    tokens = [added(own[mark] if mark in own else next(fresh), mark) for mark in marks]
    known = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": None,
        "pre_tokenizer": None, "post_processor": None, "decoder": None,
    }  # fmt: skip
    return known | parts | {"model": model}


def byte_level(**parts: Any) -> Shape:
    """A byte-level BPE."""
    model = bpe([*LETTERS, *(one + other for one, other in MERGES)], MERGES, **parts.pop("model", {}))
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return file(model, **{"pre_tokenizer": BYTE_LEVEL, "decoder": decoder} | parts)


def split_by(*expressions: str) -> Shape:
    splits = [{"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False} for each in expressions]
    return {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]}


def template(before: str, number: int) -> Shape:
    """A post-processor that puts a token before each text."""
    first = {"SpecialToken": {"id": before, "type_id": 0}}
    said = {"id": before, "ids": [number], "tokens": [before]}
    text, pair = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, pair],
        "special_tokens": {before: said},
    }


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["\u2581", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?", "th", "the", "\u2581the"]
SPM = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
SPM_MERGES = [["t", "h"], ["th", "e"], ["\u2581", "the"]]
TO_SPACES = [
    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
METASPACE = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
WORDS = ["[UNK]", "[CLS]", "[SEP]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), "the"]

SHAPES: dict[str, Shape] = {
    "llama 2": file(
        bpe(SPM, SPM_MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        ("<unk>", "<s>", "</s>"),
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        post_processor=template("<s>", 1),
        decoder={"type": "Sequence", "decoders": [*TO_SPACES, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    ),
    "mistral": file(
        bpe(SPM, SPM_MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        ("<unk>", "<s>", "</s>"), pre_tokenizer=METASPACE, post_processor=template("<s>", 1), decoder=METASPACE,
    ),
    "gemma": file(
        bpe(SPM, SPM_MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        ("<unk>", "<s>", "</s>"),
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        decoder={"type": "Sequence", "decoders": TO_SPACES},
    ),
    "llama 3": byte_level(
        pre_tokenizer=split_by(patterns.LLAMA3), model={"ignore_merges": True},
        post_processor={"type": "Sequence", "processors": [BYTE_LEVEL, template("<|endoftext|>", 264)]},
    ),
    "qwen 2": byte_level(normalizer={"type": "NFC"}, pre_tokenizer=split_by(patterns.QWEN2), post_processor=BYTE_LEVEL),
    "qwen 3.5": byte_level(normalizer={"type": "NFC"}, pre_tokenizer=split_by(patterns.QWEN35)),
    "mistral nemo": byte_level(pre_tokenizer=split_by(patterns.TEKKEN), model={"ignore_merges": True}),
    "o200k": byte_level(pre_tokenizer=split_by(patterns.O200K)),
    "deepseek 3": byte_level(
        normalizer={"type": "Sequence", "normalizers": []},
        pre_tokenizer=split_by(patterns.DIGITS, patterns.DEEPSEEK3_LETTERS, patterns.DEEPSEEK3),
    ),
    "gpt 2": byte_level(pre_tokenizer=BYTE_LEVEL | {"use_regex": True}, post_processor=BYTE_LEVEL | {"trim_offsets": False}),
    "smollm": byte_level(
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, BYTE_LEVEL | {"use_regex": True}]},
    ),
    "bert": file(
        {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
         "vocab": {token: number for number, token in enumerate(WORDS)}},
        ("[UNK]", "[CLS]", "[SEP]"),
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                    "lowercase": True},
        pre_tokenizer={"type": "BertPreTokenizer"}, post_processor=template("[CLS]", 1),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    ),
    "unigram": file(
        {"type": "Unigram", "unk_id": 0, "byte_fallback": True, "vocab": [[piece, -1.0 * n] for n, piece in enumerate(SPM)]},
        ("<unk>", "<s>", "</s>"), pre_tokenizer=METASPACE, decoder=METASPACE,
    ),
}  # fmt: skip


def end_of(shape: Shape) -> int:
    """The number of the last added token."""
    return int(shape["added_tokens"][-1]["id"])


def write(path: Path, shape: Shape) -> Path:
    path.write_text(json.dumps(shape))
    return path
