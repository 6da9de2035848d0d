"""Parts of a build on the disk: documents of some batches, sorted by split and hash, with an index.

A part is two files.  The index has an entry for each document, and the payloads lie in the order of the entries.  As every
part is sorted, the documents of all parts that have hashes in a small range are found without reading the rest: `kept`
goes through these ranges, and so merges any number of parts in bounded memory.

The journal names the parts that are complete, with the batches in them.  A batch that no part has is encoded again.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from peer.corpora.documents import EncodedDocument
from peer.corpora.options import BuildTally

PART_BYTES = 32 << 20
"""Bytes of payloads with which a part is written."""
RANGE_BYTES = 32 << 20
"""Bytes of payloads in a range of hashes, roughly; its index entries are in memory together."""
MOST_RANGES = 1 << 11
"""Number of ranges at most; each of them opens every part."""
ENTRY_BYTES = 1 << 6
"""Least size that a document counts when ranges are chosen, because of its index entry."""
MOST_OPEN = 64
"""Number of parts that are open together."""
HALF_BITS = 64

ENTRY = np.dtype(
    [
        ("group", "<u2"),
        ("high", "<u8"),
        ("low", "<u8"),
        ("file", "<u4"),
        ("row", "<u8"),
        ("offset", "<u8"),
        ("size", "<u4"),
        ("tokens", "<u4"),
        ("text_bytes", "<u4"),
    ]
)
"""Entry of an index.  high and low: halves of the hash.  offset and size: place and size of the payload."""
Entries = npt.NDArray[np.void]


@dataclass(frozen=True)
class PartRecord:
    """Line of the journal.  name: name of the part's files; empty if its batches have no document.

    groups: documents of each split, and the bytes of their payloads and entries.
    """

    name: str
    batches: tuple[int, ...]
    groups: Mapping[int, tuple[int, int]]
    tally: BuildTally

    def to_json(self) -> dict[str, Any]:
        """Return the line's content."""
        groups = {str(group): list(counts) for group, counts in sorted(self.groups.items())}
        return {"part": self.name, "batches": list(self.batches), "groups": groups, "tally": self.tally.to_json()}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> PartRecord:
        """Return the record that `to_json` wrote."""
        groups = {int(group): (counts[0], counts[1]) for group, counts in said["groups"].items()}
        return cls(said["part"], tuple(said["batches"]), groups, BuildTally.from_json(said["tally"]))


class PartWriter:
    """Collector of documents, which writes them as a part when there are enough."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._documents: list[EncodedDocument] = []
        self._batches: list[int] = []
        self._tally = BuildTally()
        self._size = 0

    def add(self, batch: int, documents: Sequence[EncodedDocument], tally: BuildTally) -> PartRecord | None:
        """Take the documents of a batch; return the record of a part if one was written."""
        self._batches.append(batch)
        self._documents += documents
        self._tally.add(tally)
        self._size += sum(len(document.payload) + ENTRY_BYTES for document in documents)
        return self.flush() if self._size >= PART_BYTES else None

    def flush(self) -> PartRecord | None:
        """Write the documents at hand as a part; None if no batch has come since the last one."""
        if not self._batches:
            return None
        name = f"{self._batches[0]:08}" if self._documents else ""
        groups: dict[int, tuple[int, int]] = {}
        if name:
            self._documents.sort(key=lambda each: (each.group, each.key, each.file, each.row))
            entries, offset = np.zeros(len(self._documents), ENTRY), 0
            for place, (group, key, file, row, payload, tokens, text_bytes) in enumerate(self._documents):
                high, low = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:], "big")
                entries[place] = (group, high, low, file, row, offset, len(payload), tokens, text_bytes)
                offset += len(payload)
                count, size = groups.get(group, (0, 0))
                groups[group] = count + 1, size + len(payload) + ENTRY_BYTES
            write_durably(self._folder / f"{name}.data", (each.payload for each in self._documents))
            write_durably(self._folder / f"{name}.index", [entries.tobytes()])
            sync_folder(self._folder)
        record = PartRecord(name, tuple(sorted(self._batches)), groups, self._tally)
        self._documents, self._batches, self._tally, self._size = [], [], BuildTally(), 0
        return record


def write_durably(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file and wait until it is on the disk.  Raises OSError."""
    with path.open("wb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk.  Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class KeptDocument(NamedTuple):
    """Place of a document that is kept, and its counts.  key: first half of its hash."""

    part: int
    key: int
    offset: int
    size: int
    tokens: int
    text_bytes: int


class HashRange(NamedTuple):
    """Documents with hashes in a range, in the order of their hashes.

    repeated: file and row of each repeated document that is left out.
    """

    kept: list[KeptDocument]
    repeated: list[tuple[int, int]]


class Parts:
    """All parts of a build, for reading.  keep_repeated: True to keep all documents with one hash, not only the first."""

    def __init__(self, folder: Path, records: Iterable[PartRecord], *, keep_repeated: bool = False) -> None:
        self._folder, self._keep_repeated = folder, keep_repeated
        self._records = sorted((record for record in records if record.name), key=lambda record: record.name)
        self._files: OrderedDict[int, BinaryIO] = OrderedDict()

    def ranges(self, group: int) -> Iterator[HashRange]:
        """Yield the documents of a split, range after range.  Documents with one hash are in one split."""
        own = [part for part, record in enumerate(self._records) if group in record.groups]
        size = sum(self._records[part].groups[group][1] for part in own)
        steps = min(MOST_RANGES, max(1, -(-size // RANGE_BYTES)))
        for step in range(steps):
            low, high = (step << HALF_BITS) // steps, ((step + 1) << HALF_BITS) // steps - 1
            yield _merged({part: self._between(part, group, low, high) for part in own}, self._keep_repeated)

    def payload(self, document: KeptDocument) -> bytes:
        """Return the payload of a document."""
        file = self._files.pop(document.part, None)
        if file is None:
            file = (self._folder / f"{self._records[document.part].name}.data").open("rb")
            if len(self._files) >= MOST_OPEN:
                self._files.popitem(last=False)[1].close()
        self._files[document.part] = file
        data = os.pread(file.fileno(), document.size, document.offset)
        assert len(data) == document.size, "a part is complete when the journal names it"
        return data

    def close(self) -> None:
        """Close all files."""
        while self._files:
            self._files.popitem()[1].close()

    def _between(self, part: int, group: int, low: int, high: int) -> Entries:
        """Return the entries of a split in a part's index whose hashes begin with `low` to `high`."""
        record = self._records[part]
        before = sum(count for other, (count, _) in record.groups.items() if other < group)
        path = self._folder / f"{record.name}.index"
        index = np.memmap(path, ENTRY, "r", before * ENTRY.itemsize, (record.groups[group][0],))
        first = np.searchsorted(index["high"], np.uint64(low))
        last = np.searchsorted(index["high"], np.uint64(high), side="right")
        return np.array(index[first:last])


def _merged(slices: Mapping[int, Entries], keep_repeated: bool) -> HashRange:
    entries = np.concatenate([*slices.values()]) if slices else np.zeros(0, ENTRY)
    owners = np.concatenate([np.full(len(each), part) for part, each in slices.items()]) if slices else np.zeros(0, int)
    order = np.lexsort((entries["row"], entries["file"], entries["low"], entries["high"]))
    entries, owners = entries[order], owners[order]
    is_first = np.ones(len(entries), np.bool_)
    if not keep_repeated:
        is_first[1:] = (entries["high"][1:] != entries["high"][:-1]) | (entries["low"][1:] != entries["low"][:-1])
    kept = entries[is_first]
    columns = (kept[name].tolist() for name in ("high", "offset", "size", "tokens", "text_bytes"))
    repeated = entries[~is_first]
    return HashRange(
        [KeptDocument(*each) for each in zip(owners[is_first].tolist(), *columns, strict=True)],
        list(zip(repeated["file"].tolist(), repeated["row"].tolist(), strict=True)),
    )


# ------------------------------------------------------------------------------------------------------------------------


class BuildJournal:
    """Journal of a build: a line of JSON for each finished step, written durably.

    The first line identifies the build.  A line that a killed process left unfinished is removed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def read(self) -> list[dict[str, Any]]:
        """Return all finished lines; none if there is no journal."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))
        return [json.loads(line) for line in whole.splitlines()]

    def begin(self, head: Mapping[str, Any]) -> None:
        """Begin anew with a line that identifies the build.  Raises OSError."""
        self.close()
        self._path.unlink(missing_ok=True)
        self.write(head)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, durably once this returns.  Raises OSError."""
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
