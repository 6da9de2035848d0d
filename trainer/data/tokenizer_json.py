"""Check of a `tokenizer.json`, made before Hugging Face's `tokenizers` reads it.

Such a file is a program: normalizers rewrite the text, expressions search it, and decoders rewrite it again. Every peer of a
run runs this program on texts of strangers. So only known parts are allowed, by name, with bounds on the settings that let
them lengthen, lose or search a text: no part makes a text longer than a small multiple, and only known models' expressions
are allowed. The library itself refuses all other faults of a file. The file also keeps settings of the tool that last used
it (truncation, padding, dropout, tokens around a text). These settings do not belong to the model and are removed.

`read_in_child` makes the check in a process with little memory and time, because the author of a file can make parsing
costly.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import tokenizers

# ------------------------------------------------------------------------------------------------------------------------
# Wrapper of Hugging Face's `tokenizers`; no other code calls the library.
#
# The library is written in Rust and panics for some files and texts. A panic is raised as a special `BaseException`, which
# `except Exception` does not catch. This module turns it into `LibraryError`, and lets all other `BaseException`s pass (an
# interrupt, a cancelled task).


T = TypeVar("T")


class LibraryError(ValueError):
    """Error for a file or a text that the library refuses; the text completes a sentence."""


class LibraryTokenizer:
    """Tokenizer of the library.  Special tokens are never recognised in a text.  Every method raises `LibraryError`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, without special tokens around it."""
        return _called(lambda: list(self._tokenizer.encode(text, add_special_tokens=False).ids))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of several texts, as `encode` does, with as many threads as the library uses."""
        return _called(lambda: [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)])

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, with special tokens as their names."""
        return _called(lambda: str(self._tokenizer.decode(list(tokens), skip_special_tokens=False)))

    def number(self, name: str) -> int | None:
        """Return the number of the token of this name, or None."""
        return _called(lambda: self._tokenizer.token_to_id(name))

    def numbers(self) -> frozenset[int]:
        """Return the numbers of all tokens."""
        return frozenset(self.vocabulary().values())

    def vocabulary(self) -> Mapping[str, int]:
        """Return the numbers of all tokens, by name."""
        return _called(lambda: dict(self._tokenizer.get_vocab()))

    def added(self) -> Mapping[str, int]:
        """Return the numbers of the tokens added to the model's own, by name."""
        return _called(
            lambda: {token.content: number for number, token in self._tokenizer.get_added_tokens_decoder().items()}
        )


def load(data: bytes) -> LibraryTokenizer:
    """Return the tokenizer that a file describes.  Raises `LibraryError`."""
    return LibraryTokenizer(_called(lambda: tokenizers.Tokenizer.from_buffer(data)))


WORD_CHARACTERS = 48
"""Longest text without a space that training does not split: the time of a merge grows with the words that contain it."""
MAX_TRAINED_CHARACTERS = 64
"""Longest token that training makes, in characters that stand for bytes."""
_LONG_RUN = re.compile(rf"\S{{{WORD_CHARACTERS}}}(?=\S)")


def trained(texts: Iterable[str], tokens: int, special: Sequence[str]) -> bytes:
    """Return the tokenizer.json of a byte-level BPE of at most `tokens` tokens, learned from texts.

    The same texts in the same order give the same bytes.  special: names of the first tokens, which no text becomes.  Few
    texts give fewer tokens, because a pair that occurs once is not merged.  Raises `LibraryError`.
    """
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    words = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, words])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=tokens,
        min_frequency=2,
        special_tokens=list(special),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=MAX_TRAINED_CHARACTERS,
        show_progress=False,
    )
    cut = (_LONG_RUN.sub(r"\g<0> ", text) for text in texts)
    _called(lambda: tokenizer.train_from_iterator(cut, trainer))
    return _called(lambda: str(tokenizer.to_str())).encode()


def _called(call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:  # the library raises plain `Exception` for any fault
        raise LibraryError(f"the library cannot read it: {_first_line(error)}") from error
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise LibraryError(f"the library fails on it: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# ------------------------------------------------------------------------------------------------------------------------
# Names of the tokens that templates write between messages.
#
# No text may encode to one of these tokens, with any tokenizer: the author of a task could otherwise forge words of the
# assistant. The list is fixed, so that a `tokenizer.json` can be checked before a template is chosen.


class Mark(str):
    """Name of a special token in a template."""


TEXT_BEGIN = Mark("<|begin_of_text|>")
TURN_BEGIN = Mark("<|im_start|>")
TURN_END = Mark("<|im_end|>")
HEADING_BEGIN = Mark("<|start_header_id|>")
HEADING_END = Mark("<|end_header_id|>")
MESSAGE_END = Mark("<|eot_id|>")
MARKS = (TEXT_BEGIN, TURN_BEGIN, TURN_END, HEADING_BEGIN, HEADING_END, MESSAGE_END)
"""All marks of all templates."""


# ------------------------------------------------------------------------------------------------------------------------
# Expressions with which known models split texts into words.
#
# A stranger's expression can take unlimited time on a short text, so a `Split` may only use one of these.


_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_SHORTENED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_OTHER = r"[^\r\n\p{L}\p{N}]?"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2_GROUPED = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_SHORTENED}|{_OTHER}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
QWEN2 = rf"{_SHORTENED}|{_OTHER}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
QWEN35 = rf"{_SHORTENED}|{_OTHER}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}"
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
TEKKEN = (
    rf"{_OTHER}{_UPPER}*{_LOWER}+|{_OTHER}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)  # fmt: skip
O200K = (
    rf"{_OTHER}{_UPPER}*{_LOWER}+{_SHORTENED}?|{_OTHER}{_UPPER}+{_LOWER}*{_SHORTENED}?|\p{{N}}{{1,3}}|"
    rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
)
DIGITS = r"\p{N}{1,3}"
DEEPSEEK3_LETTERS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
    rf"{_TAIL}"
)
PATTERNS = frozenset(
    {GPT2, GPT2_GROUPED, LLAMA3, QWEN2, QWEN35, CL100K, TEKKEN, O200K, DIGITS, r"\p{N}", DEEPSEEK3_LETTERS, DEEPSEEK3}
)


# ------------------------------------------------------------------------------------------------------------------------


MEMORY_BYTES = 2 << 30
"""Memory of the child process that checks a file. A file of 23 MB, with 262 144 tokens and as many merges, takes 0.4 GiB."""
COMPUTE_S, READ_S = 60, 1800.0
"""Limits of the child process in CPU seconds and in elapsed seconds; a file of 23 MB takes 4 CPU seconds.

The child waits only for the processor and memory, so the second limit is for systems without the first.
"""
MAX_PARTS = 16
"""Maximum number of normalizers, pre-tokenizers or decoders in a row."""
MAX_TOKEN_BYTES = 256  # the longest token of GPT-2 and Llama 3
"""Maximum length of a token's text, which bounds the text of a sequence of tokens."""
REFUSED = 3
"""Exit code of the child process for a file that may not be used; its output is a sentence with the reason."""
SAMPLES = ("", "a", " a  b\n\n", "It's 3 \u00e9\u4e2d\U0001f600 <|im_start|>\t\x00")
"""Texts with which a tokenizer is tested before it is used."""

_ROOT = Path(__file__).resolve().parents[2]

Check = Callable[[Any], bool]


class TokenizerRefused(ValueError):
    """Error for a tokenizer.json that a run may not use; the text completes a sentence and names the part."""


# -- the parts ---------------------------------------------------------------------------------------------------------


def _up_to(most: int) -> Check:
    return lambda value: type(value) is int and 0 <= value <= most


def _text(most: int, least: int = 0) -> Check:
    return lambda value: isinstance(value, str) and least <= len(value) <= most


def _is_known_pattern(value: Any) -> bool:
    """Return True for a short literal text, which a single pass finds, and for the expression of a known model."""
    match value:
        case {"String": str(literal)} if len(value) == 1:
            return 1 <= len(literal) <= 16
        case {"Regex": str(expression)} if len(value) == 1:
            return expression in PATTERNS
    return False


_SLOTS: Mapping[str, Sequence[str]] = {
    "normalizer": [
        "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel", "Strip", "Prepend", "Replace",
        "BertNormalizer",
    ],
    "pre_tokenizer": [
        "ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "BertPreTokenizer", "Whitespace", "WhitespaceSplit",
    ],
    "decoder": ["ByteLevel", "Metaspace", "Replace", "Strip", "WordPiece", "BPEDecoder", "ByteFallback", "Fuse"],
}  # fmt: skip
"""Parts that a run allows, by their names."""
_KEEPS = ("Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_BOUNDS: Mapping[str, Check] = {
    "Metaspace.replacement": _text(1, 1), "Metaspace.str_rep": _text(1, 1), "Prepend.prepend": _text(1, 1),
    "Replace.pattern": _is_known_pattern, "Split.pattern": _is_known_pattern,
    "Punctuation.behavior": lambda value: value in _KEEPS,
    "Strip.content": _text(1, 1), "Strip.start": _up_to(1), "Strip.stop": _up_to(0), "WordPiece.prefix": _text(8),
    "BPEDecoder.suffix": _text(8, 1),
}  # fmt: skip
"""Settings with which a part could search for a long time, or lengthen or lose texts.  The library checks the other
settings."""
LENGTHENING = ("ByteLevel", "Metaspace", "Prepend", "BertNormalizer", "BPEDecoder")
"""Parts that lengthen texts. Their factors multiply, so a slot may have each of them only once."""
_LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}
"""Slots of a file, with the field that lists the parts of a `Sequence`."""
_PREFIX = (
    "puts a space before every text (add_prefix_space is true); set it to false there, or train the tokenizer without it"
)


def _check_slot(slot: str, part: Any) -> None:
    """Raise `TokenizerRefused` unless all parts in a slot are known."""
    parts = list(_parts(slot, part))
    if len(parts) > MAX_PARTS:
        raise TokenizerRefused(f"its {slot} has {len(parts)} parts, more than {MAX_PARTS}; use another tokenizer")
    for each in parts:
        _check_part(slot, each)
    for kind in LENGTHENING:
        if sum(each["type"] == kind for each in parts) > 1:
            raise TokenizerRefused(f"its {slot} has {kind} more than once, which makes texts long; use another tokenizer")


def _parts(slot: str, part: Any, depth: int = 0) -> Iterator[Any]:
    if part is None:
        return
    if isinstance(part, dict) and part.get("type") == "Sequence" and depth < 2:
        if set(part) != {"type", _LISTS[slot]} or not isinstance(part[_LISTS[slot]], list):
            raise TokenizerRefused(f"its {slot} is not a list of parts; the file is damaged, copy it again")
        for each in part[_LISTS[slot]]:
            yield from _parts(slot, each, depth + 1)
    else:
        yield part


def _check_part(slot: str, part: Any) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in _SLOTS[slot]:
        raise TokenizerRefused(
            f"its {slot} is {kind!r:.40}, but a run allows only {', '.join(_SLOTS[slot])}; use another tokenizer"
        )
    if slot == "pre_tokenizer" and kind == "ByteLevel" and part.get("add_prefix_space") is not False:
        raise TokenizerRefused(f"its {slot} {_PREFIX}")
    for name, value in part.items():
        if (is_allowed := _BOUNDS.get(f"{kind}.{name}")) is not None and not is_allowed(value):
            raise TokenizerRefused(
                f"its {slot} {kind} has {name[:40]} {_shown(value)}, which a run does not allow; use another tokenizer"
            )
    if kind == "Replace":
        match part:
            case {"pattern": {"String": str(old)}, "content": str(new)} if len(new) <= len(old):
                pass
            case _:  # it makes texts longer, or searches with an expression
                raise TokenizerRefused(
                    f"its {slot} Replace makes {_shown(part.get('pattern'))} into {_shown(part.get('content'))}; a run "
                    "does not allow replacements that lengthen a text; use another tokenizer"
                )
    if kind == "Split" and part.get("behavior") not in _KEEPS and not (part["behavior"] == "Removed" and part.get("invert")):
        raise TokenizerRefused(f"its {slot} Split removes its matches from the text; use another tokenizer")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."


# -- the model ---------------------------------------------------------------------------------------------------------

_MODELS = ("BPE", "WordPiece", "Unigram")
_MODEL_BOUNDS: Mapping[str, Check] = {
    "unk_token": lambda value: value is None or _text(MAX_TOKEN_BYTES)(value),
    "continuing_subword_prefix": lambda value: value is None or _text(8)(value),
    "end_of_word_suffix": lambda value: value is None or _text(8)(value),
    "max_input_chars_per_word": _up_to(200),
}
_BYTE_TOKENS = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def _check_model(model: Any) -> None:
    """Raise `TokenizerRefused` unless the model is of a known kind, and its settings and tokens keep texts short."""
    if not isinstance(model, dict):
        raise TokenizerRefused("it has no model; copy the file again")
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in _MODELS:
        raise TokenizerRefused(
            f"its model is {kind!r:.40}, but a run allows only {', '.join(_MODELS)}; use another tokenizer"
        )
    for name, is_allowed in _MODEL_BOUNDS.items():
        if name in model and not is_allowed(model[name]):
            raise TokenizerRefused(
                f"its model {kind} has {name} {_shown(model[name])}, which a run does not allow; use another tokenizer"
            )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        tokens = list(vocabulary)
        if len({*map(str, vocabulary.values())}) < len(tokens):
            raise TokenizerRefused("two tokens of its model have the same number; the file is damaged, copy it again")
    else:  # the library refuses anything but a list of pairs
        pairs = vocabulary if isinstance(vocabulary, list) else []
        tokens = [pair[0] for pair in pairs if isinstance(pair, list) and pair and isinstance(pair[0], str)]
    _check_lengths(tokens)
    if kind != "WordPiece" and not model.get("byte_fallback") and _BYTE_TOKENS.issubset(tokens):
        raise TokenizerRefused(
            "its model has tokens for bytes and byte_fallback is off, so most texts would be lost; set byte_fallback to true"
        )


def _check_lengths(tokens: Sequence[str]) -> None:
    for token in tokens:
        if len(token) > MAX_TOKEN_BYTES or len(token.encode(errors="surrogatepass")) > MAX_TOKEN_BYTES:
            raise TokenizerRefused(f"it has a token of more than {MAX_TOKEN_BYTES} bytes; use another tokenizer")


# -- added tokens ------------------------------------------------------------------------------------------------------

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def _added(tokens: Any, reserved: frozenset[int]) -> list[dict[str, Any]]:
    """Return the tokens added to the model's own, and make marks and tokens with `reserved` numbers special.

    A special token is never searched for in a text.  Raises `TokenizerRefused`.
    """
    if not isinstance(tokens, list):
        raise TokenizerRefused("its added_tokens are not a list of tokens; the file is damaged, copy it again")
    numbers: set[int] = set()
    contents: set[str] = set()
    added: list[dict[str, Any]] = []
    for token in tokens:
        match token:
            case {"id": int(number), "content": str(content)} if (
                set(token) == {"id", "content", *_FLAGS} and all(type(token[flag]) is bool for flag in _FLAGS) and content
            ):
                pass
            case _:
                raise TokenizerRefused(
                    f"it has an added token {_shown(token)} that is not a token; the file is damaged, copy it again"
                )
        if number in numbers or content in contents:
            raise TokenizerRefused(
                f"it has the added token {content[:40]!r} twice, or two added tokens with the same number; the file "
                "is damaged, copy it again"
            )
        numbers.add(number)
        contents.add(content)
        special = token["special"] or content in MARKS or number in reserved
        for flag in ("lstrip", "rstrip", "single_word"):
            if token[flag] and not special:
                raise TokenizerRefused(
                    f"its added token {content[:40]!r} has {flag}, which changes the text around it; set {flag} to false"
                )
        added.append({**token, "special": special})
    _check_lengths([*contents])
    return added


# -- the whole file ----------------------------------------------------------------------------------------------------

_TOP = frozenset(
    {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"}
)


def checked(data: bytes, reserved: frozenset[int] = frozenset()) -> bytes:
    """Return the checked file without settings that tools left in it: truncation, padding, dropout, tokens around a text.

    reserved: numbers of tokens that no text may become, besides the marks.  Raises `TokenizerRefused`.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TokenizerRefused("it is not JSON; give a tokenizer.json, or copy the file again if it is damaged") from error
    if not isinstance(said, dict) or "model" not in said:
        raise TokenizerRefused("it has no model; copy it again")
    if strange := sorted(set(said) - _TOP):
        raise TokenizerRefused(f"it has a part {strange[0][:40]!r}, which runs do not support; use another tokenizer")
    for slot in _SLOTS:
        _check_slot(slot, said.get(slot))
    _check_model(said["model"])
    model = dict(said["model"])
    if model.get("type", "BPE") == "BPE":
        model["dropout"] = None
    kept = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(said.get("added_tokens", []), reserved),
        "post_processor": None,
        **{slot: said.get(slot) for slot in _SLOTS},
        "model": model,
    }
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")


def tried(data: bytes, reserved: frozenset[int]) -> bytes:
    """Check the file as `checked` does, then test the result: load it with the library, and encode and decode some texts.

    Raises `TokenizerRefused` and `LibraryError`.
    """
    clean = checked(data, reserved)
    tokenizer = load(clean)
    for token in json.loads(clean)["added_tokens"]:
        if tokenizer.number(token["content"]) != token["id"]:
            raise TokenizerRefused(
                f"its added token {token['content'][:40]!r} is number {token['id']} in the file, but number "
                f"{tokenizer.number(token['content'])} in the library; save the tokenizer again"
            )
    for text in SAMPLES:
        tokenizer.decode(tokenizer.encode(text))
    return clean


# -- the process -------------------------------------------------------------------------------------------------------


VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "GLIBC_TUNABLES")
"""Environment variables of the process besides its own; it may read the file of a stranger, so it gets no keys."""


def read_in_child(data: bytes, reserved: frozenset[int]) -> bytes:
    """Call `tried` in a process with little memory and time, and return its result.  Raises `TokenizerRefused`."""
    command = [sys.executable, "-s", "-P", "-m", __name__, *map(str, sorted(reserved))]
    others = os.environ.get("PYTHONPATH", "")
    environment = {
        **{name: os.environ[name] for name in VARIABLES if name in os.environ},
        "PYTHONPATH": os.pathsep.join([str(_ROOT), *filter(None, [others])]),
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    try:
        done = subprocess.run(command, input=data, capture_output=True, timeout=READ_S, env=environment)
    except subprocess.TimeoutExpired as error:
        raise TokenizerRefused(
            f"it takes more than {READ_S:.0f} s to read here; use another tokenizer, or end other programs on this computer"
        ) from error
    if done.returncode == 0:
        return done.stdout
    if done.returncode == REFUSED:
        raise TokenizerRefused(done.stdout.decode(errors="replace"))
    raise TokenizerRefused(
        f"it cannot be read in {MEMORY_BYTES >> 30} GiB of memory and {COMPUTE_S} s; use another tokenizer"
    )


def main(words: Sequence[str]) -> int:
    """Read a file from standard input and write the checked file, or a sentence with the reason for refusal."""
    with suppress(ImportError, ValueError, OSError):  # without such limits only `READ_S` applies
        import resource

        limits = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_CPU": COMPUTE_S, "RLIMIT_CORE": 0}
        for name, most in limits.items():
            resource.setrlimit(getattr(resource, name), (most, most))
    try:
        sys.stdout.buffer.write(tried(sys.stdin.buffer.read(), frozenset(map(int, words))))
    except (TokenizerRefused, LibraryError) as error:
        sys.stdout.buffer.write(str(error).encode(errors="replace"))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
