"""Inputs of a build: files, folders, data sets of Hugging Face and documents in memory.

Folders are read in the order of their names, without hidden files.  Before anything is read, a survey looks at the first
bytes of every file.  It counts the files by their forms, and those that are passed over by the reason, and stops a build
that would pass over too large a share of an input.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from blake3 import blake3

from kernels.outside_files import UnusableFile, named_file, open_outside
from peer.corpora.compressed import compression_of, head_of
from peer.corpora.forms import (
    BINARY_FORMS,
    COUNTED,
    HEAD_BYTES,
    UNMEASURED,
    FolderTraits,
    Form,
    Skipped,
    decided,
    form_of,
    is_about,
    is_card,
)
from peer.corpora.options import MOST_NAMED, BuildOptions, FieldSelection
from peer.errors import ExitCode, PeerError
from protocol.corpora.manifest import CorpusKind
from protocol.formatting import many, size
from trainer.data.rows import Mask, Tokens

UNNUMBERED = frozenset({Skipped.HIDDEN, Skipped.LEFT_OUT})
"""Reasons of paths that the build does not open, and that change nothing about it."""
HUB = "hf:"
"""Beginning of the name of a data set of Hugging Face."""


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


def source_names(inputs: Iterable[BuildInput]) -> list[str]:
    """Return the names of the sources in the order of the inputs."""
    return list(dict.fromkeys(each.source for each in inputs))


class InputFile(NamedTuple):
    """File of an input, or a whole input that is no file.

    number: among the files of all inputs; -1 for one in `UNNUMBERED`, so that a new one changes no number.  place: of its
    input among all.  folder: the one that a person named, in which it lies; None for a file that a person named itself.
    skipped: set for a path in a folder that is hidden, left out or no file.
    """

    number: int
    input: BuildInput
    place: int
    path: Path | None
    name: str
    folder: Path | None = None
    skipped: Skipped | None = None


def files_of(inputs: Iterable[BuildInput], leave_out: Iterable[str] = ()) -> Iterator[InputFile]:
    """Yield the files of all inputs in their order.  Raises `PeerError` for an input that cannot be read.

    leave_out: patterns of names and paths in folders that are left out, such as `*.png`.
    """
    number, patterns = 0, tuple(leave_out)
    for place, each in enumerate(inputs):
        origin = each.origin
        if not isinstance(origin, Path):
            yield InputFile(number, each, place, None, each.name)
            number += 1
            continue
        if not origin.is_dir():
            check_file(origin)
            yield InputFile(number, each, place, named_file(origin), origin.name)
            number += 1
            continue
        for path, skipped in _walk(origin, patterns):
            is_hidden, name = skipped in UNNUMBERED, path.relative_to(origin).as_posix()
            yield InputFile(-1 if is_hidden else number, each, place, path, name, origin, skipped)
            number += not is_hidden


def check_file(path: Path) -> None:
    """Raise `PeerError` unless the path is a file."""
    if not path.exists():
        raise PeerError(f"there is no {path}; give files, folders, or hf:OWNER/NAME", ExitCode.INPUT)
    if not path.is_file():
        raise PeerError(f"{path} is neither a file nor a folder; copy what it gives into a file", ExitCode.INPUT)


def _walk(folder: Path, leave_out: tuple[str, ...]) -> Iterator[tuple[Path, Skipped | None]]:
    left = _entries(folder)  # a list, because folders may be nested more deeply than function calls
    while left:
        entry = left.pop()
        path = Path(entry.path)
        if entry.name.startswith("."):
            yield path, Skipped.HIDDEN
        elif leave_out and _matches(path.relative_to(folder), leave_out):
            yield path, Skipped.LEFT_OUT
        elif entry.is_dir(follow_symlinks=False):
            left += _entries(path)
        elif path.is_file():  # the survey names a link out of the folder
            yield path, None
        else:
            yield path, _obstacle(folder, path)


def _matches(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns for name in (path.name, path.as_posix()))


def _obstacle(folder: Path, path: Path) -> Skipped:
    if path.is_dir():
        return Skipped.INSIDE if is_read_with(folder, path) else Skipped.FOLDER
    return Skipped.MISSING if path.is_symlink() and not path.exists() else Skipped.SPECIAL


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder, the last name first."""
    try:
        with os.scandir(folder) as found:
            entries = [*found]
    except OSError as error:
        raise unreadable(folder, error) from error
    return sorted(entries, key=lambda entry: entry.name, reverse=True)


def unreadable(path: Path | None, error: OSError) -> PeerError:
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


# ------------------------------------------------------------------------------------------------------------------------
# Survey: the forms of all files, and what is passed over.


@dataclass
class SkippedFiles:
    """Files that are passed over for one reason.  names: names of the first files."""

    files: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, other: SkippedFiles) -> None:
        """Add other files."""
        self.files += other.files
        self.bytes += other.bytes
        self.names = [*self.names, *other.names][:MOST_NAMED]


@dataclass
class _Counts:
    """Counts of an input's files, for given traits of its folder."""

    read: dict[Form, int] = field(default_factory=dict)
    skipped: dict[Skipped, SkippedFiles] = field(default_factory=dict)
    bytes: int = 0
    settings: SkippedFiles = field(default_factory=SkippedFiles)

    def note(self, name: str, form: Form | Skipped, file_bytes: int) -> None:
        self.bytes += file_bytes
        if isinstance(form, Skipped):
            self.skipped.setdefault(form, SkippedFiles()).add(SkippedFiles(1, file_bytes, [name]))
        else:
            self.read[form] = self.read.get(form, 0) + 1
            if form is Form.SETTINGS:
                self.settings.add(SkippedFiles(1, file_bytes, [name]))

    def check(self, name: str, options: BuildOptions) -> None:
        """Raise `PeerError` if too large a share is passed over.  Links to what cannot be measured count as the rest.

        If most of an input is JSON without the field of the text, it is data in an unknown form, not settings beside code.
        """
        counted = {reason: files for reason, files in self.skipped.items() if reason in COUNTED}
        if 2 * self.settings.bytes > self.bytes:
            counted[Skipped.NO_RECORD] = self.settings
        unknown = counted.keys() & UNMEASURED
        lost = sum(files.bytes for files in counted.values()) + (max(1, self.bytes) if unknown else 0)
        total = self.bytes + (max(1, self.bytes) if unknown else 0)
        if lost * 100 <= options.bad_percent * total:
            return
        worst = min(unknown) if unknown else max(counted, key=lambda reason: counted[reason].bytes)
        files = sum(files.files for files in counted.values())
        what = f"{size(lost)} of {size(total)}" if not unknown else "an unknown share"
        more = f" ({many(files - 1, 'more file')} would be, too)" if files > 1 else ""
        reason, _, remedy = worst.value.partition("; ")
        remedy = f"{remedy}; or " if remedy else ""
        raise PeerError(
            f"{what} of {name} would be passed over, more than {options.bad_percent:g} %: {counted[worst].names[0]} is "
            f"{reason}{more}; {remedy}{options.fields.words.skipped}",
            ExitCode.INPUT,
        )


@dataclass(frozen=True)
class InputsSurvey:
    """Summary of the inputs.  fingerprint: hash of the files' names, sizes and times.  total_bytes: None if unknown.

    traits: of the inputs, by place.  read: number of files by form.  skipped: files that are passed over, by reason.
    """

    fingerprint: str
    files: int
    total_bytes: int | None
    traits: tuple[FolderTraits, ...]
    read: dict[Form, int]
    skipped: dict[Skipped, SkippedFiles]

    def to_json(self) -> dict[str, Any]:
        """Return what is read and passed over, for JSON."""
        return {
            "read": {form.name.lower(): count for form, count in sorted(self.read.items())},
            "passed_over": {
                reason.name.lower(): {"files": each.files, "bytes": each.bytes, "names": each.names}
                for reason, each in sorted(self.skipped.items())
            },
        }


TRAITS = tuple((records, train) for records in (False, True) for train in (False, True))
"""All values of `has_records` and `has_train` of a folder."""


def survey(inputs: Iterable[BuildInput], options: BuildOptions) -> InputsSurvey:
    """Look at the beginnings of all files.  Raises `PeerError` for an input that cannot be read, or mostly not.

    The traits of a folder are known only after its last file, so its files are counted for all traits.  Only data cards
    are looked for before.
    """
    fields, inputs = options.fields, list(inputs)
    digest, files, is_known = blake3(), 0, True
    traits = tuple(FolderTraits(cards=cards) for cards in _cards(inputs, options))
    counts = [[_Counts() for _ in TRAITS] for _ in inputs]
    for each in files_of(inputs, fields.leave_out or ()):
        if each.skipped is not None and each.skipped in UNNUMBERED:
            for counted in counts[each.place]:
                counted.note(each.name, each.skipped, 0)
            continue
        files += 1
        facts = [each.input.source, each.name]
        if each.path is None:
            is_known = False
        else:
            seen, found = _surveyed(each, each.path, options)
            facts += [str(found.st_size), str(found.st_mtime_ns)] if found is not None else [str(each.skipped)]
            traits[each.place].note(each.name, seen.form, has_field=seen.has_field)
            traits[each.place].size_bytes += found.st_size if found is not None else 0
            for some, counted in zip(TRAITS, counts[each.place], strict=True):
                final = form_read(each, seen, FolderTraits(*some, traits[each.place].cards), options)
                counted.note(each.name, final, found.st_size if found is not None else 0)
        digest.update("\0".join(facts).encode(errors="surrogateescape") + b"\n")
    whole = _Counts()
    for each_input, its_traits, its_counts in zip(inputs, traits, counts, strict=True):
        chosen = its_counts[TRAITS.index((its_traits.has_records, its_traits.has_train))]
        if Skipped.LEFT_OUT in chosen.skipped and not chosen.read and len(chosen.skipped.keys() - UNNUMBERED) == 0:
            raise PeerError(
                f"the patterns that leave files out match all files of {each_input.name}; leave out fewer", ExitCode.INPUT
            )
        chosen.check(each_input.name, options)
        whole.bytes += chosen.bytes
        for form, count in chosen.read.items():
            whole.read[form] = whole.read.get(form, 0) + count
        for reason, skipped in chosen.skipped.items():
            whole.skipped.setdefault(reason, SkippedFiles()).add(skipped)
    total = whole.bytes if is_known else None
    return InputsSurvey(digest.hexdigest(), files, total, traits, whole.read, whole.skipped)


def _cards(inputs: Sequence[BuildInput], options: BuildOptions) -> list[set[str]]:
    """Return the folders of each input that have a data card."""
    found: list[set[str]] = [set() for _ in inputs]
    for each in files_of(inputs, options.fields.leave_out or ()):
        if each.path is not None and each.folder is not None and is_about(each.name):
            seen, _ = _surveyed(each, each.path, options)
            if seen.is_card and not isinstance(seen.form, Skipped):
                found[each.place].add(str(PurePosixPath(each.name).parent))
    return found


class SeenForm(NamedTuple):
    """Form of a file by its content.  has_field, is_card: its beginning has the text's field, or is that of a data card."""

    form: Form | Skipped
    has_field: bool = False
    is_card: bool = False


def _surveyed(each: InputFile, path: Path, options: BuildOptions) -> tuple[SeenForm, os.stat_result | None]:
    """Return the form of a file by its content, and its status."""
    if each.skipped is not None:
        return SeenForm(each.skipped), None
    try:
        found = path.stat()
        with open_outside(path, each.folder) as opened:
            return seen_form(each, opened, options.fields), found
    except UnusableFile:
        return SeenForm(Skipped.LINK), found
    except OSError as error:
        raise unreadable(path, error) from error


def seen_form(each: InputFile, opened: BinaryIO, fields: FieldSelection) -> SeenForm:
    """Return the form that an open file has by its content."""
    is_compressed = bool(compression_of(opened))
    head, is_whole = head_of(opened, HEAD_BYTES)
    name = re.escape(fields.text.partition(".")[0].encode())
    form = form_of(each.name, head, is_whole=is_whole, is_compressed=is_compressed)
    return SeenForm(form, re.search(rb'"' + name + rb'"\s*:', head) is not None, is_card(head))


def form_read(each: InputFile, seen: SeenForm, traits: FolderTraits, options: BuildOptions) -> Form | Skipped:
    """Return the form in which a file is read, or the reason for which it is passed over."""
    kind, chosen, form = options.tokens.kind, options.fields.read_as, seen.form
    if isinstance(form, Skipped):
        return form
    if chosen is not None:
        return form if form in BINARY_FORMS else Form[chosen.upper()]
    if each.folder is None:
        return Form.LINES if kind is not CorpusKind.TEXT and form in (Form.TEXT, Form.PAGE) else form
    return decided(each.name, form, traits, kind, has_field=seen.has_field)
