"""Inputs of a build: files, folders, data sets of Hugging Face and documents in memory, read as batches of raw rows.

Reading is sequential and cheap: rows are found here, and workers parse them (`peer.corpora.documents`).  Each row has a
place: the number of its file among all files of all inputs, and its number in the file, from 1.  Folders are read in the
order of their names, without hidden files.  The batches depend on the inputs alone, so that an interrupted build can skip
those that are done.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from blake3 import blake3

from kernels.outside_files import UnusableFile, named_file, open_outside
from peer.corpora.compressed import BrokenFile, Note, lines_of
from peer.corpora.options import MAX_DOCUMENT_BYTES, FieldSelection
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import CorpusKind
from trainer.data.chat import parsed
from trainer.data.rows import Mask, Tokens
from trainer.extras import install_command

BATCH_BYTES = 512 << 10
BATCH_ROWS = 4096
"""Limits of a batch: bytes, beyond which no row is added, and rows."""
MAX_LINE_BYTES = 2 * MAX_DOCUMENT_BYTES
"""Largest row."""
HUB = "hf:"
LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".ndjson.gz", ".ndjson.zst")
LONG_ROW = "it has more than {} MiB; split it"
PARQUET_ROWS = 16
"""Rows that are decoded together from a parquet file."""
PARQUET_BUFFER_BYTES = 1 << 20
"""Bytes that are read of a column at a time; by default the library reads whole row groups ahead and keeps them."""
VALUE_BYTES = 8
"""Least memory that a value of a record takes, apart from its text."""


@dataclass(frozen=True)
class Document:
    """Document in memory: text, or tokens that are not encoded again.

    identity: decides the split and the place, and is unique in its source; empty for the text or tokens themselves.
    counts: for tokens of a chat, true for those that count in the loss.  text_bytes: bytes of UTF-8 that the tokens stand
    for.
    """

    identity: str = ""
    text: str = ""
    tokens: Tokens | None = None
    counts: Mask | None = None
    text_bytes: int = 0


@dataclass(frozen=True)
class BuildInput:
    """Input of a build.  source: name under which its documents are mixed.

    origin: a file, a folder, the name of a data set (`hf:owner/name[:config][@split]`), or documents in memory.  label: name
    of documents in memory.
    """

    source: str
    origin: Path | str | Iterable[Document]
    label: str = "documents"

    @property
    def name(self) -> str:
        """Name for people and for the recipe, without the folders in which a file lies."""
        if isinstance(self.origin, Path):
            return self.origin.absolute().name
        return self.origin if isinstance(self.origin, str) else self.label

    @property
    def is_in_memory(self) -> bool:
        """True for documents in memory."""
        return not isinstance(self.origin, Path | str)


class RowForm(IntEnum):
    """Form of a raw row.  LONG and BROKEN: the row cannot be read, and its content is the flaw."""

    FILE = 0
    JSON = 1
    RECORD = 2
    DOCUMENT = 3
    LONG = 4
    BROKEN = 5


class RawRow(NamedTuple):
    """Row before it is parsed.  content: bytes, a record, a `Document`, or a flaw."""

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


def source_names(inputs: Iterable[BuildInput]) -> list[str]:
    """Return the names of the sources in the order of the inputs."""
    return list(dict.fromkeys(each.source for each in inputs))


class InputFile(NamedTuple):
    """File of an input, or a whole input that is no file.  number: among the files of all inputs."""

    number: int
    input: BuildInput
    path: Path | None
    name: str


def files_of(inputs: Iterable[BuildInput]) -> Iterator[InputFile]:
    """Yield the files of all inputs in their order.  Raises `PeerError` for an input that cannot be read."""
    number = 0
    for each in inputs:
        if not isinstance(each.origin, Path):
            yield InputFile(number, each, None, each.name)
            number += 1
            continue
        if not each.origin.is_dir():
            check_file(each.origin)
            yield InputFile(number, each, named_file(each.origin), each.origin.name)
            number += 1
            continue
        for path in _walk(each.origin):
            yield InputFile(number, each, path, path.relative_to(each.origin).as_posix())
            number += 1


def check_file(path: Path) -> None:
    """Raise `PeerError` unless the path is a file."""
    if not path.exists():
        raise PeerError(f"there is no {path}; give files, folders, or hf:OWNER/NAME", ExitCode.INPUT)
    if not path.is_file():
        raise PeerError(f"{path} is neither a file nor a folder; copy what it gives into a file", ExitCode.INPUT)


def _walk(folder: Path) -> Iterator[Path]:
    left = _entries(folder)  # a list, because folders may be nested more deeply than function calls
    while left:
        entry = left.pop()
        if entry.is_dir(follow_symlinks=False):
            left += _entries(Path(entry.path))
        elif Path(entry.path).is_file():  # a link out of the folder is left out when it is opened, with its name
            yield Path(entry.path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder, the last name first, without what is hidden."""
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry in found if not entry.name.startswith(".")]
    except OSError as error:
        raise _unreadable(folder, error) from error
    return sorted(entries, key=lambda entry: entry.name, reverse=True)


def _unreadable(path: Path | None, error: OSError) -> PeerError:
    """Return the error for an input whose drive may be back later, so that the parts that are done are kept."""
    return PeerError(
        f"cannot read {path}: {error.strerror or error}; check its permissions and its drive, and run the command again",
        ExitCode.RESOURCES,
    )


def is_read_with(folder: Path, path: Path) -> bool:
    """Return True if the documents of an input folder include files at or below `path`, which need not exist."""
    whole, part = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if not whole.is_dir() or not part.is_relative_to(whole):
        return False
    return not any(name.startswith(".") for name in part.relative_to(whole).parts)


@dataclass(frozen=True)
class InputsSummary:
    """Summary of the inputs.  fingerprint: hash of the files' names, sizes and times.  total_bytes: None if unknown."""

    fingerprint: str
    files: int
    total_bytes: int | None


def summarize(inputs: Iterable[BuildInput]) -> InputsSummary:
    """Look at all files, without reading them.  Raises `PeerError` for an input that cannot be read."""
    digest, files, total, is_known = blake3(), 0, 0, True
    for each in files_of(inputs):
        files += 1
        facts = [each.input.source, each.name]
        if each.path is None:
            is_known = False
        else:
            found = each.path.stat()
            total += found.st_size
            facts += [str(found.st_size), str(found.st_mtime_ns)]
        digest.update("\0".join(facts).encode(errors="surrogateescape") + b"\n")
    return InputsSummary(digest.hexdigest(), files, total if is_known else None)


def batches(inputs: list[BuildInput], fields: FieldSelection, kind: CorpusKind) -> Iterator[RawBatch]:
    """Yield all rows of the inputs in batches."""
    names = source_names(inputs)
    batch, size, number, done = RawBatch(0, 0), 0, 0, 0
    current, left = None, fields.most_rows
    read = 0

    def note(bytes_read: int) -> None:
        nonlocal read
        read = bytes_read

    for file in files_of(inputs):
        read, source = 0, names.index(file.input.source)
        if file.input is not current:
            current, left = file.input, fields.most_rows
        if batch.rows and batch.source != source:
            yield batch
            number, size, batch = number + 1, 0, RawBatch(number + 1, source)
        batch.source = source
        for row in islice(_rows(file, fields, kind, note), left):
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


def _rows(file: InputFile, fields: FieldSelection, kind: CorpusKind, note: Note) -> Iterator[RawRow]:
    """Yield the rows of a file; the last row has the flaw if the file breaks off.

    note: called with the bytes of the file that were read, of files of many rows.
    """
    number = 0
    try:
        for number, (form, content, size) in enumerate(_contents(file, fields, kind, note), 1):
            yield RawRow(file.number, number, form, content, size)
    except BrokenFile as error:
        yield RawRow(file.number, number + 1, RowForm.BROKEN, str(error), 0)
    except UnusableFile as error:
        flaw = f"{error.strerror}; put the file itself into the folder"
        yield RawRow(file.number, number + 1, RowForm.BROKEN, flaw, 0)
    except OSError as error:
        raise _unreadable(file.path, error) from error


Content = tuple[RowForm, Any, int]


def _contents(file: InputFile, fields: FieldSelection, kind: CorpusKind, note: Note) -> Iterator[Content]:
    path = file.path
    if path is None:
        origin = file.input.origin
        if isinstance(origin, str):
            return _from_hub(origin)
        assert not isinstance(origin, Path)
        return _from_memory(origin)
    return _from_file(file, path, fields, kind, note)


def _from_file(file: InputFile, path: Path, fields: FieldSelection, kind: CorpusKind, note: Note) -> Iterator[Content]:
    name, origin = file.name.lower(), file.input.origin
    folder = origin if isinstance(origin, Path) and origin.is_dir() else None
    if kind is not CorpusKind.TEXT and folder is not None and not name.endswith((*LINES, ".json", ".parquet")):
        return  # a folder of chats may hold other files
    with open_outside(path, folder) as opened:
        if name.endswith(".parquet"):
            yield from _from_parquet(opened, path, fields, kind, note)
        elif kind is CorpusKind.TEXT:
            yield from _from_lines(name, opened, note) if name.endswith(LINES) else _whole(opened)
        else:
            yield from _from_array(opened) if _is_array(opened) else _from_lines(name, opened, note)


def _from_memory(documents: Iterable[Document]) -> Iterator[Content]:
    for each in documents:
        yield RowForm.DOCUMENT, each, len(each.text) if each.tokens is None else each.tokens.nbytes


def _whole(file: BinaryIO) -> Iterator[Content]:
    data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        yield RowForm.LONG, f"it has more than {MAX_DOCUMENT_BYTES >> 20} MiB, the limit on a document; split it", 0
    else:
        yield RowForm.FILE, data, len(data)


def _from_lines(name: str, file: BinaryIO, note: Note) -> Iterator[Content]:
    for line in lines_of(name, file, MAX_LINE_BYTES, note):
        if line is None:
            yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), 0
        else:
            yield RowForm.JSON, line, len(line)


def _is_array(file: BinaryIO) -> bool:
    """Return True if a file, read from its beginning, is one JSON array of records."""
    head = file.read(64)
    file.seek(0)
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _from_array(file: BinaryIO) -> Iterator[Content]:
    data = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        limit = f"{MAX_DOCUMENT_BYTES >> 20} MiB"
        raise BrokenFile(f"a file that is one JSON array has at most {limit}; write each record on a line of its own")
    try:
        records = parsed(data)
    except ValueError as error:
        raise BrokenFile(f"as it begins with [, it is one JSON array of records, and {error}") from error
    for record in records:
        yield RowForm.RECORD, record, _size(record)


def _from_parquet(opened: BinaryIO, path: Path, fields: FieldSelection, kind: CorpusKind, note: Note) -> Iterator[Content]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise PeerError(f"{path} needs pyarrow to be read; run {install_command('data')}", ExitCode.INPUT) from error
    broken = (arrow.ArrowException, OSError, ValueError)
    try:
        file = parquet.ParquetFile(opened, pre_buffer=False, buffer_size=PARQUET_BUFFER_BYTES)
    except broken as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BrokenFile(f"it is no parquet file that can be read ({_first_line(error)}); copy it again") from error
    with file:
        columns = _columns(file.schema_arrow.names, fields) if kind is CorpusKind.TEXT else None
        if columns == []:
            names = ", ".join(file.schema_arrow.names)[:200]
            flaw = f"it has no column {fields.text}, but {names}; name one with {fields.words.text}"
            for _ in range(max(1, file.metadata.num_rows)):
                yield RowForm.BROKEN, flaw, 0
            return
        try:
            for group in range(file.num_row_groups):
                options = {"columns": columns, "row_groups": [group], "use_threads": False}
                for some in file.iter_batches(batch_size=PARQUET_ROWS, **options):
                    yield from _records(some)
                note(os.fstat(opened.fileno()).st_size * (group + 1) // file.num_row_groups)
        except broken as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the drive failed, not the file
            raise BrokenFile(f"the file breaks off ({_first_line(error)}); copy it again") from error


def _records(rows: Any) -> Iterator[Content]:
    """Yield the records of some rows of a parquet file; large ones are converted one by one."""
    if _record_bytes(rows) <= MAX_LINE_BYTES:
        size = rows.nbytes // max(1, rows.num_rows)
        for record in rows.to_pylist():
            yield RowForm.RECORD, record, size
        return
    for number in range(rows.num_rows):
        row = rows.slice(number, 1)
        if _record_bytes(row) > MAX_LINE_BYTES:
            yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), 0
        else:
            yield RowForm.RECORD, row.to_pylist()[0], row.nbytes


def _record_bytes(rows: Any) -> int:
    """Return roughly the memory that some rows of a parquet file take as records.

    It may be a billion times their own: entries of a list that repeat a long text, or that are null, take next to none.
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


def _columns(names: list[str], fields: FieldSelection) -> list[str]:
    """Return the columns that a build reads; none if the text's is missing."""
    wanted = [fields.text, *([fields.identity] if fields.identity else []), *fields.where]
    found = [name if name in names else name.partition(".")[0] for name in wanted]
    return list(dict.fromkeys(name for name in found if name in names)) if found[0] in names else []


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
                yield RowForm.LONG, LONG_ROW.format(MAX_LINE_BYTES >> 20), 0
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
