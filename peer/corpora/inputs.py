"""Inputs of a build: files, folders, data sets of Hugging Face and documents in memory.

Folders are read in the order of their names, without hidden files.  Before anything is read, a survey looks at the first
bytes of every file.  It counts the files by their forms, and those that are passed over by the reason, and stops a build
that would pass over too large a share of an input.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from blake3 import blake3

from kernels.outside_files import UnusableFile, named_file, open_outside
from peer.corpora.compressed import compression_of, head_of
from peer.corpora.forms import (
    COUNTED,
    HEAD_BYTES,
    UNMEASURED,
    FileFacts,
    FolderTraits,
    Form,
    Skipped,
    facts_of,
    form_read,
    is_about,
)
from peer.corpora.options import MOST_NAMED, BuildOptions, FieldSelection
from peer.errors import ExitCode, PeerError
from protocol.formatting import many, size
from trainer.data.rows import Tokens

UNNUMBERED = frozenset({Skipped.HIDDEN, Skipped.LEFT_OUT})
"""Reasons for paths that the build does not open, and that do not change its result."""
HUB = "hf:"
"""Beginning of the name of a data set of Hugging Face."""


@dataclass(frozen=True)
class Document:
    """Document in memory: text, or tokens that are not encoded again.

    identity: decides the split and the place, and is unique in its source; empty for the text or tokens themselves.
    text_bytes: bytes of UTF-8 that the tokens stand for.
    """

    identity: str = ""
    text: str = ""
    tokens: Tokens | None = None
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
    """File of an input, or a whole input that is not a file.

    number: its number among the files of all inputs; -1 for a reason in `UNNUMBERED`, so that a new one changes no number.
    place: number of its input among all inputs.  folder: named folder in which it lies; None if a person named the file
    itself.  skipped: set for a path in a folder that is hidden, left out or not a file.
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
class FileGroup:
    """Number and size of files of one form or reason.  names: names of the first files."""

    files: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, other: FileGroup) -> None:
        """Add the files of another group."""
        self.files += other.files
        self.bytes += other.bytes
        self.names = [*self.names, *other.names][:MOST_NAMED]


@dataclass(frozen=True)
class InputsSurvey:
    """Summary of the inputs.  fingerprint: hash of the files' names, sizes and times.

    total_bytes: their size; None if unknown.  traits: traits of the inputs, by place.  read: number of files by form.
    skipped: files that are passed over, by reason.
    """

    fingerprint: str
    files: int
    total_bytes: int | None
    traits: tuple[FolderTraits, ...]
    read: dict[Form, int]
    skipped: dict[Skipped, FileGroup]

    def to_json(self) -> dict[str, Any]:
        """Return the files that are read and passed over, for JSON."""
        return {
            "read": {form.name.lower(): count for form, count in sorted(self.read.items())},
            "passed_over": {reason.name.lower(): vars(each) for reason, each in sorted(self.skipped.items())},
        }


def survey(inputs: Iterable[BuildInput], options: BuildOptions) -> InputsSurvey:
    """Look at the beginnings of all files.

    Raises `PeerError` for an input that cannot be read, or of which too much would be passed over.
    The traits of a folder are known only after its last file, so its files are counted by the facts about them.  Only data
    cards are looked for before.
    """
    inputs, leave_out = list(inputs), options.fields.leave_out or ()
    digest, files, is_known = blake3(), 0, True
    traits = tuple(FolderTraits() for _ in inputs)
    for each in files_of(inputs, leave_out):
        if each.folder is not None and is_about(each.name) and _surveyed(each, traits, options)[0].is_card:
            traits[each.place].cards.add(str(PurePosixPath(each.name).parent))
    groups: list[dict[FileFacts, FileGroup]] = [{} for _ in inputs]
    for each in files_of(inputs, leave_out):
        stamp = [each.input.source, each.name]
        if each.path is None:
            is_known = False
        else:
            facts, found = _surveyed(each, traits, options)
            stamp += [str(found.st_size), str(found.st_mtime_ns)] if found is not None else [str(each.skipped)]
            size_bytes = found.st_size if found is not None else 0
            traits[each.place].note(facts, size_bytes)
            groups[each.place].setdefault(facts, FileGroup()).add(FileGroup(1, size_bytes, [each.name]))
        if each.skipped not in UNNUMBERED:
            files += 1
            digest.update("\0".join(stamp).encode(errors="surrogateescape") + b"\n")
    read, skipped, total = dict[Form, int](), dict[Skipped, FileGroup](), 0
    for given, its_traits, its_groups in zip(inputs, traits, groups, strict=True):
        formed: dict[Form | Skipped, FileGroup] = {}
        for facts, group in its_groups.items():
            form = form_read(facts, its_traits, options.tokens.kind, options.fields.read_as)
            merged = formed.setdefault(form, FileGroup())
            names = sorted([*merged.names, *group.names], key=lambda name: name.split("/"))  # the order of the files
            merged.add(group)
            merged.names = names[:MOST_NAMED]
        _check_passed_over(given.name, formed, options)
        for form, group in formed.items():
            total += group.bytes
            if isinstance(form, Skipped):
                skipped.setdefault(form, FileGroup()).add(group)
            else:
                read[form] = read.get(form, 0) + group.files
    return InputsSurvey(digest.hexdigest(), files, total if is_known else None, traits, read, skipped)


def _check_passed_over(name: str, formed: dict[Form | Skipped, FileGroup], options: BuildOptions) -> None:
    """Raise `PeerError` if too large a share of an input is passed over.  formed: its files, by form or by reason.

    Links to what cannot be measured count as much as the rest.  If most of an input is JSON without the field of the text,
    it is data in an unknown form, not settings beside code.
    """
    if formed and formed.keys() <= UNNUMBERED and Skipped.LEFT_OUT in formed:
        raise PeerError(f"the patterns that leave files out match all files of {name}; leave out fewer", ExitCode.INPUT)
    counted = {reason: group for reason, group in formed.items() if isinstance(reason, Skipped) and reason in COUNTED}
    total, settings = sum(group.bytes for group in formed.values()), formed.get(Form.SETTINGS)
    if settings is not None and 2 * settings.bytes > total:
        counted[Skipped.NO_RECORD] = settings
    unknown, lost = counted.keys() & UNMEASURED, sum(group.bytes for group in counted.values())
    what = f"{size(lost)} of {size(total)}"
    if unknown:
        what, lost, total = "an unknown share", lost + max(1, total), total + max(1, total)
    if lost * 100 <= options.bad_percent * total:
        return
    worst = min(unknown) if unknown else max(counted, key=lambda reason: counted[reason].bytes)
    files = sum(group.files for group in counted.values())
    more = f" ({many(files - 1, 'more file')} would also be passed over)" if files > 1 else ""
    reason, _, remedy = worst.value.partition("; ")
    remedy = f"{remedy}; or " if remedy else ""
    raise PeerError(
        f"{what} of {name} would be passed over, more than {options.bad_percent:g} %: {counted[worst].names[0]} is "
        f"{reason}{more}; {remedy}{options.fields.words.skipped}",
        ExitCode.INPUT,
    )


def _surveyed(
    each: InputFile, traits: Sequence[FolderTraits], options: BuildOptions
) -> tuple[FileFacts, os.stat_result | None]:
    """Return the facts about a file, and its status."""
    if each.skipped is not None or each.path is None:
        return FileFacts(each.skipped or Form.TEXT), None
    try:
        found = each.path.stat()
        with open_outside(each.path, each.folder) as opened:
            return opened_facts(each, opened, traits[each.place], options.fields), found
    except UnusableFile:
        return FileFacts(Skipped.LINK), found
    except OSError as error:
        raise unreadable(each.path, error) from error


def opened_facts(each: InputFile, opened: BinaryIO, traits: FolderTraits, fields: FieldSelection) -> FileFacts:
    """Return the facts about an open file."""
    is_compressed = bool(compression_of(opened))
    head, is_whole = head_of(opened, HEAD_BYTES)
    return facts_of(
        each.name,
        head,
        traits.cards,
        fields.text.partition(".")[0],
        is_whole=is_whole,
        is_compressed=is_compressed,
        is_named=each.folder is None,
    )
