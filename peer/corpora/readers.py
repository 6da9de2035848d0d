"""Readers of inputs: each turns a file, a data set or documents in memory into raw rows, in batches.

Reading is sequential and cheap: rows are found here, and workers parse them (`peer.corpora.documents`).  Each row has a
place: the number of its file among all files of all inputs, and its number in the file, from 1.  The batches depend on the
inputs alone, so that an interrupted build can skip those that are done.  `READERS` has the reader of each form.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from kernels.outside_files import UnusableFile, open_outside
from peer.corpora.compressed import BrokenFile, CutFile, Note, chunks_of, elements_of, head_of, lines_of
from peer.corpora.forms import HEAD_BYTES, UTF16, UTF32, FolderTraits, Form, Skipped, form_read
from peer.corpora.inputs import HUB, BuildInput, Document, InputFile, files_of, opened_facts, source_names, unreadable
from peer.corpora.options import MAX_DOCUMENT_BYTES, BuildOptions
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import CorpusKind
from protocol.formatting import many
from trainer.extras import install_command

BATCH_BYTES = 512 << 10
BATCH_ROWS = 4096
"""Limits of a batch: bytes, beyond which no row is added, and rows."""
MAX_LINE_BYTES = 2 * MAX_DOCUMENT_BYTES
"""Largest row."""
MOST_BEGINNINGS = 512
"""Largest number of files whose beginnings are read to train a tokenizer."""
MAX_COLUMNS = 1 << 14
"""Most values in a line of a table."""
LONG_ROW = "it has more than {} MiB; split it"
PARQUET_ROWS = 16
"""Rows that are decoded together from a file with columns."""
PARQUET_BUFFER_BYTES = 1 << 20
"""Bytes that are read of a column at a time; by default the library reads whole row groups ahead and keeps them."""
VALUE_BYTES = 8
"""Least memory that a value of a record takes, apart from its text."""


class RowForm(IntEnum):
    """Form of a raw row.  LONG and BROKEN: the row cannot be read, and its content is the flaw.  OBJECT: JSON of a file."""

    FILE = 0
    PAGE = 1
    JSON = 2
    RECORD = 3
    DOCUMENT = 4
    LONG = 5
    BROKEN = 6
    OBJECT = 7


class RawRow(NamedTuple):
    """Row before it is parsed.  content: bytes, a record, a `Document`, or a flaw.  size: its bytes, roughly."""

    file: int
    row: int
    form: RowForm
    content: Any
    size: int


@dataclass
class RawBatch:
    """Rows of one source that a worker takes together.

    names: of the rows' files, by number.  done_bytes: bytes of the inputs read up to its end.
    """

    number: int
    source: int
    names: dict[int, str] = field(default_factory=dict)
    rows: list[RawRow] = field(default_factory=list)
    done_bytes: int = 0


def batches(inputs: Sequence[BuildInput], options: BuildOptions, traits: Sequence[FolderTraits]) -> Iterator[RawBatch]:
    """Yield all rows of the inputs in batches.  traits: of the inputs, from their survey."""
    names, fields = source_names(inputs), options.fields
    batch, size, number, done = RawBatch(0, 0), 0, 0, 0
    current, left = None, fields.most_rows
    read = 0

    def note(bytes_read: int) -> None:
        nonlocal read
        read = bytes_read

    for file in files_of(inputs, fields.leave_out or ()):
        if file.skipped is not None:
            continue
        read, source = 0, names.index(file.input.source)
        if file.input is not current:
            current, left = file.input, fields.most_rows
        if batch.rows and batch.source != source:
            yield batch
            number, size, batch = number + 1, 0, RawBatch(number + 1, source)
        batch.source = source
        for row in islice(_rows(file, options, traits[file.place], note), left):
            left = None if left is None else left - 1
            batch.rows.append(row)
            batch.names[file.number] = file.name
            size += row.size
            if size >= BATCH_BYTES or len(batch.rows) >= BATCH_ROWS:
                batch.done_bytes = done + read
                yield batch
                number, size, batch = number + 1, 0, RawBatch(number + 1, source)
        done += file.path.stat().st_size if file.path is not None else 0
        batch.done_bytes = done
    if batch.rows:
        yield batch


def beginnings(
    inputs: Sequence[BuildInput], options: BuildOptions, traits: Sequence[FolderTraits], files: int, most_bytes: int
) -> Iterator[RawBatch]:
    """Yield the first rows of files that are spread over the inputs, a batch for each file.

    files: number of all files.  most_bytes: approximate limit for the rows of all files together, in equal shares.
    """
    step = -(-files // MOST_BEGINNINGS)
    share = most_bytes // -(-files // step) if files else 0
    for file in files_of(inputs, options.fields.leave_out or ()):
        if file.skipped is not None or file.number % step:
            continue
        batch, size = RawBatch(file.number, file.place, {file.number: file.name}), 0
        for row in _rows(file, options, traits[file.place], lambda read: None):
            if size and size + row.size > share:
                break
            batch.rows.append(row)
            size += row.size
        yield batch


def _rows(file: InputFile, options: BuildOptions, traits: FolderTraits, note: Note) -> Iterator[RawRow]:
    """Yield the rows of a file; if the file breaks off, the last row has the flaw and the size of the unread bytes.

    note: called with the number of bytes that were read, for files of many rows.  Raises `PeerError` for a file that was cut
    short.
    """
    number = read = 0

    def noted(bytes_read: int) -> None:
        nonlocal read
        read = bytes_read
        note(bytes_read)

    try:
        for number, (form, content, size) in enumerate(_contents(file, options, traits, noted), 1):
            yield RawRow(file.number, number, form, content, size)
    except BrokenFile as error:
        size = file.path.stat().st_size if file.path is not None else 0
        # The size of the lost part is unknown; it counts as much as the part that is here.
        if isinstance(error, CutFile) and 100 * size > options.bad_percent * (traits.size_bytes + size):
            raise PeerError(
                f"an unknown share of {file.name} is lost: {error}; or {options.fields.words.skipped}", ExitCode.INPUT
            ) from error
        left = max(0, size - read)
        yield RawRow(file.number, number + 1, RowForm.BROKEN, str(error), left)
    except UnusableFile as error:
        flaw = f"{error.strerror}; put the file itself into the folder"
        yield RawRow(file.number, number + 1, RowForm.BROKEN, flaw, 0)
    except OSError as error:
        raise unreadable(file.path, error) from error


Content = tuple[RowForm, Any, int]


def _contents(file: InputFile, options: BuildOptions, traits: FolderTraits, note: Note) -> Iterator[Content]:
    if file.path is None:
        origin = file.input.origin
        assert not isinstance(origin, Path)
        yield from _from_hub(origin) if isinstance(origin, str) else _from_memory(origin)
        return
    with open_outside(file.path, file.folder) as opened:
        facts = opened_facts(file, opened, traits, options.fields)
        form = form_read(facts, traits, options.tokens.kind, options.fields.read_as)
        if not isinstance(form, Skipped) and _ends_lines_oddly(opened, form):
            flaw = "its lines end with carriage returns alone; save it with line feeds"
            yield RowForm.BROKEN, flaw, os.fstat(opened.fileno()).st_size
        elif not isinstance(form, Skipped):
            yield from READERS[form](OpenedFile(opened, file.path, options, note))


def _ends_lines_oddly(opened: BinaryIO, form: Form) -> bool:
    """Return True for records whose lines no reader would find, because carriage returns alone end them."""
    if form not in (Form.LINES, Form.TABLE, Form.OBJECT):
        return False
    head = head_of(opened, HEAD_BYTES)[0].strip()
    return b"\n" not in head and re.search(rb"[^\r]\r+[^\r]" if form is Form.TABLE else rb"}\s*\r\s*{", head) is not None


@dataclass(frozen=True)
class OpenedFile:
    """File of an input, at its beginning.  note: called with the bytes that were read."""

    file: BinaryIO
    path: Path
    options: BuildOptions
    note: Note

    @property
    def size(self) -> int:
        """Size of the file."""
        return os.fstat(self.file.fileno()).st_size

    def chunks(self) -> Iterator[bytes]:
        """Yield the decompressed content."""
        return chunks_of(self.file, self.note)

    def columns(self, schema: Any) -> list[str] | None:
        """Return the columns that the build reads; [] if the column of the text is missing, and None for all.

        schema: columns of the file, as the library describes them.  Raises `BrokenFile` for a nested column among those that
        the options name.
        """
        names = schema.names
        if (chosen := self.options.fields.columns) is not None:
            arrow: Any = importlib.import_module("pyarrow")
            for name in (found := [name for name in chosen if name in names]):
                if schema.get_field_index(name) < 0 or arrow.types.is_nested(kind := schema.field(name).type):
                    told = "appears twice" if names.count(name) > 1 else f"is nested ({kind})"
                    raise BrokenFile(f"its column {name} {told:.80}; write it as one text or number")
            return found
        if self.options.tokens.kind is not CorpusKind.TEXT:
            return None
        fields = self.options.fields
        wanted = [fields.text, *([fields.identity] if fields.identity else []), *fields.where]
        found = [name if name in names else name.partition(".")[0] for name in wanted]
        return list(dict.fromkeys(name for name in found if name in names)) if found[0] in names else []


Reader = Callable[[OpenedFile], Iterator[Content]]


def _from_memory(documents: Iterable[Document]) -> Iterator[Content]:
    for each in documents:
        yield RowForm.DOCUMENT, each, len(each.text) if each.tokens is None else each.tokens.nbytes


def _rows_of(parts: Iterable[bytes | int]) -> Iterator[Content]:
    """Yield records of JSON; for a record that is too long, only its size is known."""
    for part in parts:
        if isinstance(part, int):
            yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), part
        else:
            yield RowForm.JSON, part, len(part)


def _whole(form: RowForm) -> Reader:
    """Return the reader of files that are one row each."""

    def read(opened: OpenedFile) -> Iterator[Content]:
        parts, size = list[bytes](), 0
        for chunk in opened.chunks():
            size += len(chunk)
            if size > MAX_DOCUMENT_BYTES:
                flaw = f"it has more than {MAX_DOCUMENT_BYTES >> 20} MiB, the limit on a document; split it"
                yield RowForm.LONG, flaw, max(size, opened.size)
                return
            parts.append(chunk)
        yield form, b"".join(parts), size

    return read


# -- tables of text ----------------------------------------------------------------------------------------------------


class _LongRow(Exception):
    """Error for a row of a table that would take too much memory."""


class _TableLines:
    """Lines of a table for the library's reader, which may ask for several for one row.

    size, count: bytes and lines that were given since they were set to 0.
    """

    def __init__(self, lines: Iterator[bytes | int], delimiter: bytes) -> None:
        self._lines, self._delimiter, self.size, self.count = lines, delimiter, 0, 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.count += 1
        self.size += line if isinstance(line, int) else len(line) + 1
        if isinstance(line, int) or self.size > MAX_LINE_BYTES or line.count(self._delimiter) >= MAX_COLUMNS:
            raise _LongRow
        return line.decode(errors="surrogateescape") + "\n"


def _from_table(opened: OpenedFile) -> Iterator[Content]:
    """Yield the rows of a table with a header, with quotes as in RFC 4180.  A row with a fault does not end the reading."""
    head, _ = head_of(opened.file, HEAD_BYTES)
    if head.startswith((*UTF16, *UTF32)):
        called = "UTF-32" if head.startswith(UTF32) else "UTF-16"
        yield RowForm.BROKEN, f"it is {called} text; save it as UTF-8", opened.size
        return
    delimiter = _delimiter(head)
    lines = _TableLines(lines_of(opened.chunks(), MAX_LINE_BYTES), delimiter.encode())
    csv.field_size_limit(MAX_LINE_BYTES)
    rows, names = csv.reader(lines, delimiter=delimiter, strict=True), list[str]()
    while True:
        lines.size = lines.count = 0
        try:
            row = next(rows)
        except StopIteration:
            return
        except _LongRow:
            yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), lines.size
        except csv.Error as error:
            taken = f", after {lines.count} lines" if lines.count > 1 else ""
            yield RowForm.BROKEN, f"it is not a row of a table ({error}{taken}); correct its quotes", lines.size
        else:
            if not row:
                continue
            if not names:
                names = [row[0].removeprefix("\ufeff"), *row[1:]]
                if len(set(names)) < len(names):
                    twice = next(name for name in names if names.count(name) > 1)
                    raise BrokenFile(f"the column {twice!r:.40} appears twice in its header; rename one") from None
            elif len(row) != len(names):
                values = many(len(row), "value")
                yield RowForm.BROKEN, f"it has {values}, and the header {len(names)}; correct its quotes", lines.size
            elif not _is_utf8(row):
                yield RowForm.BROKEN, "it is not UTF-8 text; save the file as UTF-8", lines.size
            else:
                yield RowForm.RECORD, dict(zip(names, row, strict=True)), lines.size


def _is_utf8(row: list[str]) -> bool:
    try:
        return "".join(row).encode() is not None
    except UnicodeEncodeError:
        return False


def _delimiter(head: bytes) -> str:
    """Return the delimiter that appears most often in the header, outside quotes."""
    header = re.sub(rb'"[^"]*"', b"", head.lstrip().partition(b"\n")[0])
    return max(",\t;|", key=lambda each: header.count(each.encode()))


# -- columns -----------------------------------------------------------------------------------------------------------


def _from_parquet(opened: OpenedFile) -> Iterator[Content]:
    parquet, arrow = _library(opened, "pyarrow.parquet"), _library(opened, "pyarrow")
    with _broken(arrow, "it is not a readable Parquet file"):
        file = parquet.ParquetFile(opened.file, pre_buffer=False, buffer_size=PARQUET_BUFFER_BYTES)
    with file:
        columns = opened.columns(file.schema_arrow)
        if columns == []:
            yield from _without_column(opened, file.schema_arrow.names, file.metadata.num_rows)
            return
        with _broken(arrow, "the file breaks off"):
            for group in range(file.num_row_groups):
                options = {"columns": columns, "row_groups": [group], "use_threads": False}
                for some in file.iter_batches(batch_size=PARQUET_ROWS, **options):
                    yield from _records(some)
                opened.note(opened.size * (group + 1) // file.num_row_groups)


def _from_arrow(opened: OpenedFile) -> Iterator[Content]:
    """Yield the records of a file or a stream of Arrow.  A whole batch is in memory."""
    arrow, ipc = _library(opened, "pyarrow"), _library(opened, "pyarrow.ipc")
    is_file = opened.file.read(6) == b"ARROW1"
    opened.file.seek(0)
    with _broken(arrow, "it is not a readable Arrow file"):
        file = ipc.open_file(opened.file) if is_file else ipc.open_stream(opened.file)
    names = file.schema.names
    columns = opened.columns(file.schema)
    with _broken(arrow, "the file breaks off"):
        for number, batch in enumerate(map(file.get_batch, range(file.num_record_batches)) if is_file else file, 1):
            if columns == []:
                yield from _without_column(opened, names, batch.num_rows)
                continue
            chosen = batch if columns is None else batch.select(columns)
            for start in range(0, batch.num_rows, PARQUET_ROWS):
                yield from _records(chosen.slice(start, PARQUET_ROWS))
            opened.note(opened.size * number // file.num_record_batches if is_file else opened.file.tell())


def _library(opened: OpenedFile, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerError(f"{opened.path} needs pyarrow to be read; run {install_command('data')}", ExitCode.INPUT) from error


@contextmanager
def _broken(arrow: Any, what: str) -> Iterator[None]:
    """Raise `CutFile` for errors of the library; an error of the drive stays what it is."""
    try:
        yield
    except (arrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CutFile(f"{what} ({_first_line(error)}); copy it again") from error


def _without_column(opened: OpenedFile, names: list[str], rows: int) -> Iterator[Content]:
    fields = opened.options.fields
    flaw = f"it has no column {fields.text}, but {', '.join(names)[:200]}; {fields.words.text}"
    for _ in range(max(1, rows)):
        yield RowForm.BROKEN, flaw, opened.size // max(1, rows)


def _records(rows: Any) -> Iterator[Content]:
    """Yield the records of some rows of a file with columns; large ones are converted one by one."""
    if _record_bytes(rows) <= MAX_LINE_BYTES:
        size = rows.nbytes // max(1, rows.num_rows)
        for record in rows.to_pylist():
            yield RowForm.RECORD, record, size
        return
    for number in range(rows.num_rows):
        row = rows.slice(number, 1)
        if _record_bytes(row) > MAX_LINE_BYTES:
            yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), row.nbytes
        else:
            yield RowForm.RECORD, row.to_pylist()[0], row.nbytes


def _record_bytes(rows: Any) -> int:
    """Return roughly the memory that some rows of a file with columns take as records.

    It may be a billion times their size in the file, in which entries of a list that repeat a long text, or that are null,
    take almost no space.
    """
    return sum(_value_bytes(column) for column in rows.columns)


def _value_bytes(values: Any) -> int:
    arrow: Any = importlib.import_module("pyarrow")
    kind, count = values.type, len(values)
    if arrow.types.is_dictionary(kind):
        if not (arrow.types.is_string(kind.value_type) or arrow.types.is_binary(kind.value_type)):
            return VALUE_BYTES * count + int(values.dictionary.nbytes)
        compute: Any = importlib.import_module("pyarrow.compute")
        lengths = compute.binary_length(values.dictionary).cast(arrow.int64())
        return VALUE_BYTES * count + (compute.sum(lengths.take(values.indices)).as_py() or 0)
    inner: list[Any] = []
    if arrow.types.is_struct(kind):
        inner = values.flatten()
    elif arrow.types.is_nested(kind):
        inner = [values.flatten()]
    if inner:
        return VALUE_BYTES * count + sum(map(_value_bytes, inner))
    return VALUE_BYTES * count + int(values.nbytes)


def _from_hub(name: str) -> Iterator[Content]:
    """Yield the records of a data set of Hugging Face, streamed."""
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise PeerError(f"{name} needs the library datasets; run {install_command('hf')}", ExitCode.INPUT) from error
    path, _, split = name.removeprefix(HUB).partition("@")
    path, _, config = path.partition(":")
    try:
        for record in library.load_dataset(path, config or None, split=split or "train", streaming=True):
            if (size := _size(record)) > MAX_LINE_BYTES:
                yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), size
            else:
                yield RowForm.RECORD, record, size
    except Exception as error:  # the library raises errors of many other libraries
        raise PeerError(
            f"cannot read {name}: {_first_line(error)}; check the name and the connection, and run the command again",
            ExitCode.UNREACHABLE,
        ) from error


def _size(record: Any) -> int:
    """Return the rough size of a record in bytes."""
    if isinstance(record, dict):
        return sum(_size(value) for value in record.values())
    if isinstance(record, list):
        return sum(_size(value) for value in record)
    return len(record) if isinstance(record, str | bytes) else 8


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


READERS: Mapping[Form, Reader] = {
    Form.LINES: lambda opened: _rows_of(lines_of(opened.chunks(), MAX_LINE_BYTES)),
    Form.ARRAY: lambda opened: _rows_of(elements_of(opened.chunks(), MAX_LINE_BYTES)),
    Form.OBJECT: _whole(RowForm.OBJECT),
    Form.TABLE: _from_table,
    Form.PARQUET: _from_parquet,
    Form.ARROW: _from_arrow,
    Form.PAGE: _whole(RowForm.PAGE),
    Form.SETTINGS: _whole(RowForm.FILE),
    Form.TEXT: _whole(RowForm.FILE),
}
