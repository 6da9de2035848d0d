"""Encoding of raw rows: each becomes a document of the corpus, or is left out with a reason.

A keyed hash of a document's identity decides its split and its place in the split.  The identity is the value of a field,
else the text.  Texts are encoded in batches by the tokenizer's own library.  A text of more than `PIECE_CHARACTERS`
characters is encoded in pieces, which end at the ends of lines, because an encoding in progress takes several hundred
bytes for each token.

The payload of a document is its tokens with the end token, as in a block; for chats, flags follow (`Payload`).
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
from blake3 import blake3

from peer.corpora.conversations import ConversationEncoder, NothingToLearn
from peer.corpora.forms import UTF16, UTF32
from peer.corpora.inputs import Document
from peer.corpora.options import MAX_DOCUMENT_BYTES, BuildOptions, BuildTally, FieldSelection, LeftOut, NamedRow, OptionWords
from peer.corpora.readers import RawBatch, RawRow, RowForm
from protocol.corpora.manifest import CorpusKind
from trainer.data.rows import Tokens
from trainer.data.strict_json import UndecodableText, parsed
from trainer.data.tokens import UnreadableText

PIECE_CHARACTERS = 1 << 20
GROUP_CHARACTERS = 1 << 20
"""Limits of the texts that are encoded at a time."""
HASH_BYTES = 16
KEY_CONTEXT = "manyhands 1 corpus order"
HELD_OUT_STEPS = 1 << 32
MISSING = object()


class EncodedDocument(NamedTuple):
    """Document of a part.  group: 2 * source, plus 1 if held out.  key: the keyed hash of the identity."""

    group: int
    key: bytes
    file: int
    row: int
    payload: bytes
    tokens: int
    text_bytes: int


class _Text(NamedTuple):
    """Text that waits for its tokens."""

    raw: RawRow
    identity: bytes
    text: str
    text_bytes: int


class _Rejected(Exception):
    """Reason to leave a row out."""

    def __init__(self, reason: LeftOut, flaw: str) -> None:
        super().__init__(flaw)
        self.reason, self.flaw = reason, flaw


@contextmanager
def _rejecting_chats() -> Iterator[None]:
    """Reject a row whose chat or preference has a flaw."""
    try:
        yield
    except NothingToLearn as error:
        raise _Rejected(LeftOut.NOTHING, str(error)) from error
    except ValueError as error:
        raise _Rejected(LeftOut.CHAT, str(error)) from error


Used = TypeVar("Used")


class DocumentEncoder:
    """Encoder of a build's rows."""

    def __init__(self, options: BuildOptions) -> None:
        """Open the tokenizer.  Raises `PeerError`."""
        self._fields, self._is_text = options.fields, options.tokens.kind is CorpusKind.TEXT
        self._tokenizer = options.tokens.open()
        self._key = blake3(options.seed.to_bytes(8, "little", signed=True), derive_key_context=KEY_CONTEXT).digest()
        self._held_out = round(options.held_out_percent * HELD_OUT_STEPS / 100)
        self._dtype = np.dtype(self._tokenizer.dtype).newbyteorder("<")
        self._end = np.array([self._tokenizer.end], self._dtype)
        self._json = self._fields.words.json if self._is_text else "correct it"
        self._conversations = ConversationEncoder(self._tokenizer, options.tokens)

    def encode(self, batch: RawBatch) -> tuple[list[EncodedDocument], BuildTally]:
        """Return the documents of a batch, and the counts of its rows."""
        tally = BuildTally()
        if self._is_text:
            found = [*self._used(batch, tally, lambda raw: self._given(batch.source, raw) or self._text(raw))]
            documents = [each for each in found if isinstance(each, EncodedDocument)]
            documents += self._encoded(batch, [each for each in found if isinstance(each, _Text)], tally)
        else:
            documents = [*self._used(batch, tally, lambda raw: self._chat(batch.source, raw, tally))]
        tally.documents += len(documents)
        tally.tokens += sum(document.tokens for document in documents)
        return documents, tally

    def texts(self, batch: RawBatch, tally: BuildTally) -> Iterator[str]:
        """Yield the texts of a batch that would become documents, for a tokenizer that is trained on them.

        tally: counts the rows, with those that are left out.
        """

        def texts_of(raw: RawRow) -> list[str]:
            if self._is_text:
                return [self._text(raw).text]
            record = _record(raw, self._json)
            self._filter_fields(record)
            with _rejecting_chats():
                return [*self._conversations.contents(record)]

        for found in self._used(batch, tally, texts_of):
            yield from found

    def _used(self, batch: RawBatch, tally: BuildTally, use: Callable[[RawRow], Used]) -> Iterator[Used]:
        """Yield the result of `use` for each row; count all rows, and the rows that are left out."""
        for raw in batch.rows:
            if raw.form in (RowForm.JSON, RowForm.OBJECT) and not raw.content.strip():
                continue
            tally.rows += 1
            tally.bytes += raw.size
            try:
                if raw.form in (RowForm.LONG, RowForm.BROKEN):
                    raise _Rejected(LeftOut.LONG if raw.form is RowForm.LONG else LeftOut.BROKEN, raw.content)
                yield use(raw)
            except _Rejected as error:
                _leave_out(batch, raw, tally, error)

    # -- text ----------------------------------------------------------------------------------------------------------

    def _text(self, raw: RawRow) -> _Text:
        identity: bytes | None = None
        record: Mapping[str, Any] = {}
        if raw.form in (RowForm.FILE, RowForm.PAGE):
            text = _decoded(raw.content)
            text = text_of_page(text) if raw.form is RowForm.PAGE else text
        elif raw.form is RowForm.DOCUMENT:
            text, identity = raw.content.text, raw.content.identity.encode(errors="surrogatepass") or None
        else:
            record = _record(raw, self._json)
            text = _text_of(record, self._fields)
            if raw.form is RowForm.OBJECT:
                _check_alone(record, text)
        self._filter(record, text)
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise _Rejected(LeftOut.UTF8, "it has half of a surrogate pair, which is not a character; remove it") from error
        if len(data) > MAX_DOCUMENT_BYTES:
            raise _Rejected(LeftOut.LONG, f"its text has more than {MAX_DOCUMENT_BYTES >> 20} MiB; split it")
        if identity is None and self._fields.identity and raw.form not in (RowForm.FILE, RowForm.PAGE):
            identity = _identity_of(record, self._fields.identity)
        return _Text(raw, data if identity is None else identity, text, len(data))

    def _filter(self, record: Mapping[str, Any], text: str) -> None:
        fields = self._fields
        if not text.strip():
            raise _Rejected(LeftOut.EMPTY, "it is empty")
        if len(text) < fields.least or (fields.most is not None and len(text) > fields.most):
            raise _Rejected(LeftOut.FILTERED, f"it has {len(text)} characters")
        self._filter_fields(record)

    def _filter_fields(self, record: Mapping[str, Any]) -> None:
        for name, allowed in self._fields.where.items():
            value = field_of(record, name)
            if value is MISSING or plain_text(value) not in allowed:
                shown = "missing" if value is MISSING else repr(value)[:40]
                raise _Rejected(LeftOut.FILTERED, f"its field {name[:40]} is {shown}")

    def _encoded(self, batch: RawBatch, texts: Sequence[_Text], tally: BuildTally) -> Iterator[EncodedDocument]:
        pieces = [(owner, piece) for owner, text in enumerate(texts) for piece in _pieces(text.text)]
        found: list[list[Tokens]] = [[] for _ in texts]
        flaws: dict[int, str] = {}
        for group in _grouped(pieces):
            encoded = self._tokenizer.encode_batch([piece for _, piece in group])
            for (owner, _), tokens in zip(group, encoded, strict=True):
                if isinstance(tokens, UnreadableText):
                    flaws.setdefault(owner, tokens.flaw)
                else:
                    found[owner].append(tokens)
        for owner, text in enumerate(texts):
            if owner in flaws:
                _leave_out(batch, text.raw, tally, _Rejected(LeftOut.MARKED, f"its text {flaws[owner]}"))
                continue
            tokens = np.concatenate([*found[owner], self._end]).astype(self._dtype, copy=False)
            yield self._document(batch.source, text.raw, text.identity, tokens.tobytes(), (len(tokens), text.text_bytes))

    def _given(self, source: int, raw: RawRow) -> EncodedDocument | None:
        """Return a document whose tokens are given; its end token is added if it is missing.

        None for a row of another kind.
        """
        document = raw.content
        if not isinstance(document, Document) or document.tokens is None:
            return None
        tokens = self._checked(document.tokens)
        if tokens[-1] != self._tokenizer.end:
            tokens = np.concatenate([tokens, self._end])
        payload = tokens.tobytes()
        identity = document.identity.encode(errors="surrogatepass") or payload
        return self._document(source, raw, identity, payload, (len(tokens), document.text_bytes))

    def _checked(self, tokens: Tokens) -> Tokens:
        if not len(tokens):
            raise _Rejected(LeftOut.EMPTY, "it is empty")
        if len(tokens) > MAX_DOCUMENT_BYTES // self._dtype.itemsize:
            raise _Rejected(LeftOut.LONG, f"it has {len(tokens)} tokens; split it")
        if int(tokens.min()) < 0 or int(tokens.max()) >= self._tokenizer.vocab:
            raise _Rejected(
                LeftOut.TOKENS,
                f"it has tokens outside the tokenizer's {self._tokenizer.vocab}; name the tokenizer that made them",
            )
        return tokens.astype(self._dtype, copy=False)

    # -- chats ---------------------------------------------------------------------------------------------------------

    def _chat(self, source: int, raw: RawRow, tally: BuildTally) -> EncodedDocument:
        identity: bytes | None = None
        record = _record(raw, self._json)
        self._filter_fields(record)
        with _rejecting_chats():
            payload = self._conversations.encode(record)
        if self._fields.identity:
            identity = _identity_of(record, self._fields.identity)
        tally.cut += payload.is_cut
        return self._document(source, raw, identity or payload.data, payload.data, (payload.tokens, payload.text_bytes))

    def _document(
        self, source: int, raw: RawRow, identity: bytes, payload: bytes, counts: tuple[int, int]
    ) -> EncodedDocument:
        digest = blake3(identity, key=self._key).digest(HASH_BYTES + 4)
        is_held_out = int.from_bytes(digest[HASH_BYTES:], "big") < self._held_out
        return EncodedDocument(2 * source + is_held_out, digest[:HASH_BYTES], raw.file, raw.row, payload, *counts)


def _leave_out(batch: RawBatch, raw: RawRow, tally: BuildTally, error: _Rejected) -> None:
    tally.leave_out(error.reason, NamedRow(raw.file, raw.row, batch.names[raw.file], error.flaw), raw.size)


def field_of(record: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field, `a.b` for field b of field a; `MISSING` if there is none."""
    if name in record:
        return record[name]
    first, dot, rest = name.partition(".")
    inner = record.get(first, MISSING)
    return field_of(inner, rest) if dot and isinstance(inner, Mapping) else MISSING


def plain_text(value: Any) -> str:
    """Return a value in its JSON form, or a text without quotes."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _decoded(data: bytes) -> str:
    if data.startswith(UTF32):
        raise _Rejected(LeftOut.UTF8, "it is UTF-32 text; save it as UTF-8")
    if data.startswith(UTF16):
        raise _Rejected(LeftOut.UTF8, "it is UTF-16 text; save it as UTF-8")
    if b"\0" in data:
        raise _Rejected(LeftOut.BINARY, "it is binary")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Rejected(LeftOut.UTF8, f"it is not UTF-8 text at byte {error.start + 1}; save it as UTF-8") from error


def _record(raw: RawRow, remedy: str) -> Mapping[str, Any]:
    """Return the record of a row.  A field must not appear twice in a record that is read as JSON.

    remedy: remedy for a row that is not JSON.
    """
    record = raw.content
    if isinstance(record, bytes):
        try:
            record = parsed(record)
        except UndecodableText as error:
            raise _Rejected(LeftOut.UTF8, str(error)) from error
        except ValueError as error:
            flaw = str(error)
            raise _Rejected(LeftOut.JSON, f"{flaw}; {remedy}" if flaw.startswith("it is not JSON") else flaw) from error
    if not isinstance(record, Mapping):
        raise _Rejected(LeftOut.JSON, f"it is not a JSON object; {remedy}")
    return record


def _remedy(record: Mapping[str, Any], words: OptionWords) -> str:
    """Return the remedy for a row without the field of a text: it may be a row of another kind."""
    if record.keys() >= {"chosen", "rejected"}:
        return words.kind.format("preference")
    return words.kind.format("chat") if record.keys() & {"messages", "conversations"} else words.text


def _text_of(record: Mapping[str, Any], fields: FieldSelection) -> str:
    name = fields.text
    text = field_of(record, name)
    if text is None:
        raise _Rejected(LeftOut.FIELD, f"its field {name} is null")
    if text is MISSING:
        others = ", ".join(map(str, record))[:80]
        if not others:
            raise _Rejected(LeftOut.FIELD, "it has no field at all")
        raise _Rejected(LeftOut.FIELD, f"it has no field {name}, but {others}; {_remedy(record, fields.words)}")
    if not isinstance(text, str):
        raise _Rejected(LeftOut.FIELD, f"its field {name} is not a text")
    return text


def _check_alone(record: Mapping[str, Any], text: str) -> None:
    """Raise `_Rejected` if the only object of a file has a list of records with more text than its own text."""
    for name, value in record.items():
        records = [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
        if sum(len(each) for one in records for each in one.values() if isinstance(each, str)) > len(text):
            raise _Rejected(
                LeftOut.FIELD,
                f"its field {name[:40]} is a list of records, which would be lost; write each of them on a line of a file",
            )


def _identity_of(record: Mapping[str, Any], name: str) -> bytes:
    value = field_of(record, name)
    if value is MISSING or value is None or value == "":
        raise _Rejected(LeftOut.FIELD, f"it has no field {name}, which identifies it")
    return plain_text(value).encode(errors="surrogatepass")


def _pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces, which end at the ends of lines, or otherwise at a space."""
    start = 0
    while len(text) - start > PIECE_CHARACTERS:
        stop = start + PIECE_CHARACTERS
        cut = max(text.rfind("\n", start, stop), text.rfind(" ", start, stop) if "\n" not in text[start:stop] else -1)
        end = cut + 1 if cut > start else stop
        yield text[start:end]
        start = end
    yield text[start:]


def _grouped(pieces: Sequence[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    group: list[tuple[int, str]] = []
    size = 0
    for owner, piece in pieces:
        if group and size + len(piece) > GROUP_CHARACTERS:
            yield group
            group, size = [], 0
        group.append((owner, piece))
        size += len(piece)
    if group:
        yield group


# ------------------------------------------------------------------------------------------------------------------------
# Text of a web page: what stands between its tags, a line for each block.
#
# The page is split at each <, so the time is linear in its size, whatever is left open in it.  Scripts, styles and comments
# are left out.  Nothing is guessed about navigation or advertisements.


_NAME = re.compile(r"/?([a-zA-Z][a-zA-Z0-9]*)")
_HIDDEN = frozenset("script style template noscript svg".split())
_SPACE = re.compile(r"\s+")
_BLOCKS = frozenset(
    "address article aside blockquote body br caption dd details div dl dt figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hr html li main nav ol option p pre section summary table td th title tr ul".split()
)


def text_of_page(page: str) -> str:
    """Return the text of a page; empty if it has none."""
    first, *pieces = page.split("<")
    parts, ending, is_pre = [_SPACE.sub(" ", first)], "", False
    for piece in pieces:
        if ending:
            if ending == "-->":
                _, closed, text = piece.partition(ending)
            else:
                closed = ">" if piece[: len(ending)].lower() == ending else ""
                text = piece.partition(">")[2]
            if closed:
                parts.append(text)
                ending = ""
            continue
        if piece.startswith("!--"):
            _, closed, text = piece.partition("-->")
            ending = "" if closed else "-->"
            parts.append(text)
            continue
        named = _NAME.match(piece)
        if named is None and not piece.startswith(("!", "?", "/")):
            parts.append("<" + piece)
            continue
        text = _after_tag(piece)
        name = named[1].lower() if named is not None else ""
        if name in _HIDDEN and not piece.startswith("/"):
            ending = "/" + name
            continue
        is_pre = not piece.startswith("/") if name == "pre" else is_pre
        text = text if is_pre else _SPACE.sub(" ", text)
        parts.append("\n" + (text if is_pre else text.lstrip()) if name in _BLOCKS else text)
    lines = (line.rstrip() for line in html.unescape("".join(parts)).split("\n"))
    return "\n".join(line for line in lines if line)


def _after_tag(piece: str) -> str:
    """Return the text after a tag; a > in quotes does not end it."""
    tag, closed, text = piece.partition(">")
    quotes = tag.count('"')
    while quotes % 2 and ">" in text:
        more, closed, text = text.partition(">")
        quotes += more.count('"')
    return text if closed else ""
