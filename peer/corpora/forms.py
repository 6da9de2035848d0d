"""Forms of input files, told by their first bytes and, where these leave it open, by their names.

This module alone decides in what form a file is read, and which files of a folder are passed over.  Nothing is passed over
silently: each such file has a reason, and the reasons in `COUNTED` limit the share of an input that they may take
(`peer.corpora.inputs`).  `peer.corpora.readers` has a reader for each form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import NamedTuple

from peer.corpora.compressed import ENDINGS
from protocol.corpora.manifest import CorpusKind
from trainer.git_lfs import is_pointer

READING = 3
"""Version of the reading of inputs: another one may find other documents in the same files, or hold out others."""
HEAD_BYTES = 1 << 16
"""Bytes of a file, after decompression, that tell its form."""
BOM = b"\xef\xbb\xbf"
UTF16, UTF32 = (b"\xff\xfe", b"\xfe\xff"), (b"\xff\xfe\0\0", b"\0\0\xfe\xff")


class Form(StrEnum):
    """Form in which a file is read; the value is its name for people."""

    LINES = "JSON lines"
    ARRAY = "JSON array"
    OBJECT = "JSON object"
    TABLE = "table"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    PAGE = "web page"
    SETTINGS = "JSON taken as text"
    TEXT = "text"


class Skipped(StrEnum):
    """Reason for which a file is passed over; the value completes "it is"."""

    ARCHIVE = "an archive or an office document; unpack it, or export its text"
    PDF = "a PDF; convert it to text"
    TOKENS = "an array of numbers; `peer data import OUT FILE --tokenizer FOLDER` reads tokens"
    BINARY = "binary, in no form that is read"
    POINTER = "a pointer of Git LFS; fetch the file with `git lfs pull`"
    NO_RECORD = "no record with the field of the text"
    NO_RECORDS = "no file of records"
    LINK = "a link that leads out of the folder; put the file itself there"
    FOLDER = "a link to a folder elsewhere; name that folder as an input"
    MISSING = "a link to nothing; fetch what it stands for"
    SPECIAL = "no regular file"
    ONLY_TEST = "data for tests by its name, and no file is named for training; name the files to read"
    OTHER_SPLIT = "of another split than train"
    ABOUT = "about the data"
    INSIDE = "a link to a folder that is read where it is"
    HIDDEN = "hidden"
    LEFT_OUT = "left out by a pattern"


COUNTED = frozenset(Skipped) - {Skipped.OTHER_SPLIT, Skipped.ABOUT, Skipped.INSIDE, Skipped.HIDDEN, Skipped.LEFT_OUT}
"""Reasons of files that may be data, so that their share of an input is limited."""
UNMEASURED = frozenset({Skipped.FOLDER, Skipped.MISSING})
"""Reasons of links whose size is unknown, so that they count as much as all the rest of their input."""
RECORDS = frozenset({Form.LINES, Form.ARRAY, Form.TABLE, Form.PARQUET, Form.ARROW})
"""Forms of files with many records."""
BINARY_FORMS = frozenset({Form.PARQUET, Form.ARROW})
READ_AS = tuple(form.name.lower() for form in Form if form not in {*BINARY_FORMS, Form.SETTINGS})
"""Names of the forms in which a person may have all text files read."""

_BEGINNINGS: tuple[tuple[bytes, Form | Skipped], ...] = (
    (b"PAR1", Form.PARQUET),
    (b"ARROW1", Form.ARROW),
    (b"%PDF-", Skipped.PDF),
    (b"PK\x03\x04", Skipped.ARCHIVE),
    (b"7z\xbc\xaf\x27\x1c", Skipped.ARCHIVE),
    (b"Rar!\x1a\x07", Skipped.ARCHIVE),
    (b"{\\rtf", Skipped.ARCHIVE),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", Skipped.ARCHIVE),
    (b"\x93NUMPY", Skipped.TOKENS),
)
_LINES = (".jsonl", ".ndjson", ".jsonlines")
_TABLES = (".csv", ".tsv", ".tab")
_ARROWS = (".arrow", ".ipc", ".feather")
_PAGES = (".html", ".htm", ".xhtml")
_ARRAY_START = re.compile(rb'\[\s*\{\s*["}]')
_OBJECT_START = re.compile(rb'\{\s*"(?:[^"\\\n]|\\.)*"\s*:')
_PLAIN = ("", ".txt", ".text", ".tokens", ".raw", ".tok")
_SPLIT = re.compile(
    r"(?:^|[-._/0-9])(?:(train|training)|tests?|testing|val|valid|validation|dev|eval|evaluation|h[eo]ld[-_ ]?out)"
    r"(?:set|data|split)?(?=$|[-._/0-9])"
)
_ABOUT = re.compile(
    r"(readme|licen[cs]e|copying)([-_.].*)?|(notice|citation|changelog|changes|authors|contributing)(\.[a-z]+)?"
    r"|(dataset_infos?|dataset_dict|state|croissant)\.json"
)
_CARD = re.compile(
    rb"---\r?\n(?:(?!---).*\n)*?(?:license|language|configs|dataset_info|task_categories|size_categories|pretty_name):"
)


def bare_name(name: str) -> str:
    """Return a name in lower case without the endings of compressions."""
    name = name.lower()
    while name.endswith(ENDINGS):
        name = name.rpartition(".")[0]
    return name


def form_of(name: str, head: bytes, *, is_whole: bool, is_compressed: bool = False) -> Form | Skipped:
    """Return the form of a file.  head: its first `HEAD_BYTES`, decompressed.  is_whole: they are the whole file."""
    ending = PurePosixPath(bare_name(name)).suffix
    if is_whole and is_pointer(head):
        return Skipped.POINTER
    for beginning, found in _BEGINNINGS:
        if head.startswith(beginning):
            return Skipped.ARCHIVE if is_compressed and found in BINARY_FORMS else found
    if head[257:262] == b"ustar":
        return Skipped.ARCHIVE
    if ending == ".parquet" or ending in _ARROWS:
        return Skipped.ARCHIVE if is_compressed else Form.PARQUET if ending == ".parquet" else Form.ARROW
    if (found_json := _json_form(ending, head.removeprefix(BOM).lstrip(), is_whole=is_whole)) is not None:
        return found_json
    if ending in _TABLES:
        return Form.TABLE
    if b"\0" in head and not head.startswith((*UTF16, *UTF32)):
        return Skipped.BINARY
    return Form.PAGE if _is_page(ending, head.removeprefix(BOM).lstrip()) else Form.TEXT


def _json_form(ending: str, text: bytes, *, is_whole: bool) -> Form | None:
    if _ARRAY_START.match(text) or (ending == ".json" and text.startswith(b"[")):
        return Form.ARRAY
    if ending in _LINES:
        return Form.LINES
    first, newline, rest = text.partition(b"\n")
    if text.startswith(b"{"):
        if _is_object(first):
            return Form.OBJECT if is_whole and not rest.strip() else Form.LINES
        if ending == ".json" or _OBJECT_START.match(text):
            return Form.OBJECT if newline or is_whole else Form.LINES
        return None
    is_json = ending == ".json" and text and not text.startswith((b"//", b"/*"))
    return Form.LINES if is_json else None


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_page(ending: str, text: bytes) -> bool:
    while text.startswith((b"<?", b"<!--")):
        end = b"?>" if text.startswith(b"<?") else b"-->"
        text = text.partition(end)[2].lstrip()
    start = text[:15].lower()
    return start.startswith((b"<!doctype html", b"<html")) or (ending in _PAGES and start.startswith(b"<"))


# ------------------------------------------------------------------------------------------------------------------------
# Files of a folder that are not training data.


class FileFacts(NamedTuple):
    """Facts about a file that decide in what form it is read.

    form: form that the content shows.  has_field: True if its beginning has the field of the text.  is_named: True if a
    person named the file itself.  is_about: True if its name says that it describes the data or their licence.  is_card:
    True if it begins as a data card.  split: "train" or "other" if its path names a split of a data set; else "".
    """

    form: Form | Skipped
    has_field: bool = False
    is_named: bool = False
    is_about: bool = False
    is_card: bool = False
    split: str = ""


@dataclass
class FolderTraits:
    """Traits of an input folder that decide about single files in it.

    has_records: True if it has a data card, or a file of records that is not about the data.  has_train: True if a file of
    records, or a text beside a data card, is named for training.  cards: paths of the folders in it that have a data card.
    size_bytes: total size of its files.
    """

    has_records: bool = False
    has_train: bool = False
    cards: set[str] = field(default_factory=set)
    size_bytes: int = 0

    def note(self, facts: FileFacts, size_bytes: int) -> None:
        """Take a file of the folder into account.  The cards must be known."""
        self.size_bytes += size_bytes
        if isinstance(facts.form, Skipped):
            return
        if facts.is_about:
            self.has_records |= bool(self.cards)
            return
        self.has_records |= facts.form in RECORDS or (facts.form is Form.OBJECT and facts.has_field)
        self.has_train |= facts.split == "train"


def form_read(facts: FileFacts, traits: FolderTraits, kind: CorpusKind, read_as: str | None) -> Form | Skipped:
    """Return the form in which a file is read, or the reason for which it is passed over.

    read_as: name of the form in which a person wants all text files to be read.
    """
    form = facts.form
    if isinstance(form, Skipped):
        return form
    if read_as is not None:
        return form if form in BINARY_FORMS else Form[read_as.upper()]
    is_text = form in (Form.TEXT, Form.PAGE)
    if facts.is_named:
        return Form.LINES if is_text and kind is not CorpusKind.TEXT else form
    if facts.is_about and (traits.has_records or traits.has_train or (is_text and kind is not CorpusKind.TEXT)):
        return Skipped.ABOUT
    if facts.split == "other" and (traits.has_train or form in RECORDS):
        return Skipped.OTHER_SPLIT if traits.has_train else Skipped.ONLY_TEST
    if kind is not CorpusKind.TEXT:
        return Skipped.NO_RECORDS if is_text else form
    if form is Form.OBJECT and not facts.has_field:
        return Skipped.NO_RECORD if traits.has_records else Form.SETTINGS  # in a folder of code
    return form


def is_about(name: str) -> bool:
    """Return True for the name of a file that describes the data or their licence."""
    return _ABOUT.fullmatch(bare_name(name).rpartition("/")[2]) is not None


def facts_of(
    name: str, head: bytes, cards: Set[str], text_field: str, *, is_whole: bool, is_compressed: bool, is_named: bool
) -> FileFacts:
    """Return the facts about a file.  head, is_whole, is_compressed: as in `form_of`.  cards: of its folder's traits."""
    form = form_of(name, head, is_whole=is_whole, is_compressed=is_compressed)
    if isinstance(form, Skipped):
        return FileFacts(form)
    has_field = re.search(rb'"' + re.escape(text_field.encode()) + rb'"\s*:', head) is not None
    is_carded = any(str(folder) in cards for folder in PurePosixPath(name).parents)  # elsewhere words in names mean nothing
    split = _split_of(name, form) if form in RECORDS or is_carded else ""
    is_card = _CARD.match(head.removeprefix(BOM)) is not None
    return FileFacts(form, has_field, is_named, is_about(name), is_card, split)


def _split_of(name: str, form: Form) -> str:
    """Return the split that a path names.  The last word of the path decides."""
    name = bare_name(name)
    if form not in RECORDS and (form is not Form.TEXT or PurePosixPath(name).suffix not in _PLAIN):
        return ""
    words = [*_SPLIT.finditer(name)]
    return "" if not words else "train" if words[-1][1] else "other"
