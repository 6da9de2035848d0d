"""Options of a build, and the counts of rows that it leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self

from peer.errors import ExitCode, PeerError, told_as
from protocol.corpora.manifest import MAX_BLOCK_BYTES, CorpusKind
from protocol.formatting import size
from trainer.data.templates import TEMPLATES, TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer, TokenizerFile, checked_file, names_in

MAX_DOCUMENT_BYTES = 64 << 20
"""Largest text of a document, in bytes of UTF-8."""
MOST_NAMED = 20
"""Largest number of left-out rows that are named."""
BAD_AFTER_ROWS = 10_000
"""Number of rows from which the share of bad rows is compared with its limit before the end."""


@dataclass(frozen=True)
class TokenFormat:
    """Form of a corpus's tokens.

    tokenizer: a tokenizer.json; None for bytes.  ends: its end tokens; the first ends a document.  template and row_tokens:
    for chats and preferences; a row has `row_tokens` tokens, predicted ones and the first.  is_checked: True if the file is
    the result of `checked_file`.
    """

    kind: CorpusKind = CorpusKind.TEXT
    tokenizer: Path | None = None
    ends: tuple[int, ...] = ()
    template: str = "raw"
    row_tokens: int = 0
    is_checked: bool = False

    def __post_init__(self) -> None:
        if self.template not in TEMPLATES:
            raise PeerError(f"there is no template {self.template}; use one of {', '.join(TEMPLATES)}", ExitCode.INPUT)

    def open(self) -> TemplatedTokenizer:
        """Return the tokenizer.  Raises `PeerError` for a file that cannot be used."""
        if self.tokenizer is None:
            return TemplatedTokenizer(ByteTokenizer(), self.template)
        with told_as(ExitCode.INPUT, ValueError):
            file = TokenizerFile(self.tokenizer, self.ends, is_checked=self.is_checked)
            return TemplatedTokenizer(file, self.template)

    def content(self, reserved: tuple[int, ...] = ()) -> bytes | None:
        """Return the checked tokenizer.json; None for bytes.  Raises `PeerError`."""
        with told_as(ExitCode.INPUT, ValueError):
            return None if self.tokenizer is None else checked_file(self.tokenizer, reserved)


def special_token(path: Path, name: str) -> int:
    """Return the number of a token that is named, or numbered, in a tokenizer.json.  Raises `PeerError`."""
    if name.isascii() and name.isdigit():
        return int(name[:20])
    with told_as(ExitCode.INPUT, ValueError):
        special = names_in(path).special
    if name not in special:
        raise PeerError(
            f"{path} has no special token {name}, but {', '.join(sorted(special))[:200] or 'none'}; name one of them",
            ExitCode.INPUT,
        )
    return special[name]


@dataclass(frozen=True)
class OptionWords:
    """Words for options in remedies: the defaults are those of `peer data build`.

    held_out: name of an option.  text, kind, source, json, skipped, workers: remedies for a text in another field, rows of
    another kind, too many sources, a row that is not JSON, files that are passed over, or processes.  bad: a remedy for bad
    rows of all kinds; empty if there is none.
    """

    text: str = "name one with --text"
    held_out: str = "--held-out"
    source: str = "NAME=INPUT"
    json: str = "correct it, or read each file as one text with --read-as text"
    bad: str = "allow more with --bad"
    skipped: str = "leave files out with --leave-out PATTERN, or allow more with --bad"
    workers: str = "run the command again with fewer --workers"
    kind: str = "build it with --kind {}"


@dataclass(frozen=True)
class FieldSelection:
    """Fields of a row, and the rows that a build takes.

    text, identity: names of fields; `a.b` is field b of field a.  Without `identity`, a document is identified by its text.
    least, most: limits on the characters of a text.  where: allowed values of fields, as texts.  most_rows: rows that are
    read of each input, from its beginning; None for all.  keep_repeated: True to keep documents with the text of another,
    all in one split; None to keep the first.  read_as: name of a `Form` in which every file of text is read; None for the
    form of its content.  leave_out: patterns of files in folders that are left out.  columns: columns that are read of a
    file with columns, instead of the ones that the other fields name; none of them may be nested.  words: words for all
    options of the build in remedies.
    """

    text: str = "text"
    identity: str | None = None
    least: int = 1
    most: int | None = None
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    most_rows: int | None = None
    keep_repeated: bool | None = None
    read_as: str | None = None
    leave_out: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    words: OptionWords = OptionWords()


@dataclass(frozen=True)
class BuildOptions:
    """Options of a build.

    held_out_percent: share of the documents held out.  seed: key of the order and of the held-out share.  block_bytes: most
    bytes of a block.  bad_percent: share of bad rows, or of bytes that are not read, above which a build fails.  workers:
    number of processes; 0 for one per core, or for this process alone if the inputs are small or in memory; 1 for this
    process alone.
    """

    tokens: TokenFormat = TokenFormat()
    fields: FieldSelection = FieldSelection()
    held_out_percent: float = 1.0
    seed: int = 0
    block_bytes: int = MAX_BLOCK_BYTES
    bad_percent: float = 1.0
    workers: int = 0

    def described(self) -> dict[str, Any]:
        """Return the options that decide the bytes of the corpus, for its recipe.

        Options that are None are left out, so that a new one does not change the corpora of builds without it.
        """
        tokens, fields = self.tokens, {name: value for name, value in asdict(self.fields).items() if value is not None}
        del fields["words"]
        fields["where"] = {name: list(values) for name, values in sorted(self.fields.where.items())}
        return {
            "kind": tokens.kind.value,
            "ends": list(tokens.ends),
            "template": tokens.template,
            "row_tokens": tokens.row_tokens,
            "fields": fields,
            "held_out_percent": self.held_out_percent,
            "seed": self.seed,
            "block_bytes": self.block_bytes,
        }


class LeftOut(StrEnum):
    """Reason for which a row is left out; the value follows a count."""

    JSON = "not JSON"
    FIELD = "without the field"
    UTF8 = "not UTF-8"
    LONG = "too long"
    BROKEN = "in a broken file"
    CHAT = "no chat or preference"
    TOKENS = "outside the vocabulary"
    SAME_ID = "with the ID of another"
    EMPTY = "empty"
    BINARY = "binary"
    FILTERED = "filtered out"
    SAME_TEXT = "with the text of another"
    MARKED = "with an end token or a mark"
    NOTHING = "with nothing to learn"

    @property
    def is_bad(self) -> bool:
        """True if the row is bad; the share of bad rows is limited."""
        return self not in HARMLESS


HARMLESS = frozenset({LeftOut.EMPTY, LeftOut.FILTERED, LeftOut.SAME_TEXT, LeftOut.MARKED, LeftOut.NOTHING})


class NamedRow(NamedTuple):
    """Row that is left out.  file: number of its file among the inputs.  flaw: text that completes "FILE, row ROW: "."""

    file: int
    row: int
    name: str
    flaw: str

    def __str__(self) -> str:
        return f"{self.name}, row {self.row}: {self.flaw}"


SUMS = ("rows", "documents", "tokens", "cut", "bytes", "bad_bytes")
"""Numbers of a `BuildTally`."""


@dataclass
class BuildTally:
    """Counts of rows.

    named: the first rows left out, bad ones apart.  cut: number of chats that were cut.  bytes, bad_bytes: sizes of all
    rows, and of bad rows, before they were parsed.
    """

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    cut: int = 0
    left_out: dict[LeftOut, int] = field(default_factory=dict)
    named: dict[bool, list[NamedRow]] = field(default_factory=lambda: {True: [], False: []})
    bytes: int = 0
    bad_bytes: int = 0

    @property
    def bad(self) -> int:
        """Number of bad rows."""
        return sum(count for reason, count in self.left_out.items() if reason.is_bad)

    def leave_out(self, reason: LeftOut, row: NamedRow, row_bytes: int = 0) -> None:
        """Count a row that is left out.  row_bytes: its size."""
        self.bad_bytes += row_bytes if reason.is_bad else 0
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self._name(reason.is_bad, [row])

    def add(self, other: BuildTally) -> None:
        """Add the counts of other rows."""
        for name in SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.left_out.items():
            self.left_out[reason] = self.left_out.get(reason, 0) + count
        for is_bad, rows in other.named.items():
            self._name(is_bad, rows)

    def _name(self, is_bad: bool, rows: Iterable[NamedRow]) -> None:
        named = self.named[is_bad]
        if len(named) < 2 * MOST_NAMED:
            named.extend(rows)
        else:
            self.named[is_bad] = sorted([*named, *rows])[:MOST_NAMED]

    def check(self, options: BuildOptions, *, is_end: bool = False) -> None:
        """Raise `PeerError` if the share of bad rows, or at the end that of their bytes, is above its limit."""
        bad_percent = options.bad_percent
        rows = self.rows if is_end else max(self.rows, BAD_AFTER_ROWS)
        too_many, too_large = self.bad * 100 > bad_percent * rows, self.bad_bytes * 100 > bad_percent * self.bytes
        if too_many or (too_large and is_end):
            share = f"{self.bad} of {self.rows} rows are bad"
            if not too_many:
                share += f", with {size(self.bad_bytes)} of {size(self.bytes)}"
            first, more = self.first(True), options.fields.words.bad
            named = f"{share}, more than {bad_percent:g} %; the first is" if self.rows > 1 else "the only row is bad:"
            remedy = "" if first is not None and "; " in first.flaw else "; correct such rows"
            if first is not None and first.name.endswith((".csv", ".tsv")) and first.flaw.startswith("it has no field"):
                remedy += ", or name the columns in the first line of the table"
            remedy += f", or {more}" if more else ""
            raise PeerError(f"{named} {first}{remedy}", ExitCode.INPUT)

    def first(self, is_bad: bool) -> NamedRow | None:
        """Return the first left-out row; None if no row was left out.

        is_bad: True for bad rows, False for rows that were left out for other reasons.
        """
        return min(self.named[is_bad], default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the counts for JSON; `from_json` reads them again."""
        return {
            **{name: getattr(self, name) for name in SUMS},
            "left_out": {reason.name.lower(): count for reason, count in sorted(self.left_out.items())},
            "bad": sorted(self.named[True])[:MOST_NAMED],
            "skipped": sorted(self.named[False])[:MOST_NAMED],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Return the counts that `to_json` wrote."""
        left_out = {LeftOut[name.upper()]: count for name, count in said["left_out"].items()}
        named = {is_bad: [NamedRow(*row) for row in said[name]] for is_bad, name in ((True, "bad"), (False, "skipped"))}
        return cls(**{name: said[name] for name in SUMS}, left_out=left_out, named=named)
