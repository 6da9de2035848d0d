"""Corpora that a run file names in its data section, built in the organiser's data directory if they are not built yet.

`[data] from` names a corpus that `peer data build` made, or a file, a folder or a data set from which one is built here, or
documents of our own: the solved examples of the run's environment.  `[[data.sources]]` names several, each with a weight.  A
corpus that is built here keeps its folder: the next run file with the same inputs and options uses it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from peer.corpora.build import Tell, build
from peer.corpora.folder import MANIFEST, FinishedCorpus
from peer.corpora.forms import READ_AS, READING, Form, Skipped
from peer.corpora.inputs import HUB, BuildInput, Document, files_of
from peer.corpora.options import BuildOptions, BuildTally, FieldSelection, LeftOut, OptionWords, TokenFormat
from peer.errors import ExitCode, PeerError
from peer.paths import CORPORA as LINKS
from peer.paths import make_private
from peer.trainer_process.process import TrainerPlaces
from protocol.corpora.manifest import COUNTS, SHARDS, CorpusKind, CorpusManifest, corpora_flaw
from protocol.formats.section import shortened
from protocol.formatting import amount, many
from protocol.run.manifest import RunManifest
from protocol.run.sections import BUILTIN, CORPORA, EXAMPLES, MAX_WEIGHT, SOURCE_NAME, TOKENIZER, DataSection, builtin_source
from protocol.sync.fetchers import file_section
from protocol.wire.hashes import ZERO_HASH, chunk_hash
from trainer.data.templates import TemplatedTokenizer
from trainer.environments.environment import Environment, example_tokens

WORDS = OptionWords(
    "name one with text in [data]",
    "held_out_percent in [data]",
    "name in [[data.sources]]",
    "correct it, or read each file as one text with read_as in [data]",
    "",
    "leave files out with leave_out in [data], or name the files to read",
    "close other programs, and run the command again",
    'set format = "{}" in [data]',
)
MEMBERS_WORDS = replace(
    WORDS,
    text="the run reads no other, so rename the field",
    kind="the run reads no rows of another kind, so give texts",
    json="correct it",
    skipped="move such files elsewhere, or name other data with --data",
)
"""Words for the data of a member, who cannot change the run file."""
HELD_OUT_PERCENT, MOST_HELD_OUT = 5, 50
"""Percentage of the documents that is held out if a run file does not set it, and the largest one."""
NOUNS = {CorpusKind.TEXT: "documents", CorpusKind.CHAT: "chats", CorpusKind.PREFERENCE: "preferences"}


@dataclass(frozen=True)
class OwnDocuments:
    """Documents that are not in files.  key: changes whenever they do.  make: returns them; may raise `PeerError`."""

    key: str
    make: Callable[[], Sequence[Document]]


NO_DOCUMENTS: Mapping[str, OwnDocuments] = {}


@dataclass(frozen=True)
class NamedInput:
    """Input that a run file names.  name, weight: None if the file gives none.  own: documents that `origin` stands for."""

    name: str | None
    origin: Path | str
    weight: int | None
    own: OwnDocuments | None = None

    @property
    def folder(self) -> Path | None:
        """Folder of the input if it is a corpus; None for data from which a corpus must be built."""
        is_corpus = isinstance(self.origin, Path) and (self.origin / MANIFEST).is_file()
        return self.origin if is_corpus and isinstance(self.origin, Path) else None

    @property
    def source(self) -> str:
        """Name of the source that is built from it."""
        if self.name is not None:
            return self.name
        name = self.origin.absolute().name.split(".")[0] if isinstance(self.origin, Path) else self.origin.removeprefix(HUB)
        cleaned = "".join(each if each.isascii() and (each.isalnum() or each in "_.-") else "-" for each in name)
        return cleaned.lstrip(".-")[:64] or "text"


@dataclass(frozen=True)
class RunData:
    """Corpora of a run, in the order of `data.corpora`.

    section: fields of the data section.  remarks: subject and text of facts for a person, about corpora built here.
    flaws: mistakes in the data section, each in a sentence; empty unless a corpus is a stand-in.
    """

    folders: tuple[Path, ...]
    section: Mapping[str, Any]
    remarks: Sequence[tuple[str, str]] = ()
    flaws: Sequence[str] = ()

    @property
    def files(self) -> dict[str, bytes]:
        """Manifests of the corpora, by their names among the files of the run."""
        return {f"{CORPORA}{number}": FinishedCorpus(folder).raw for number, folder in enumerate(self.folders)}

    @property
    def places(self) -> TrainerPlaces:
        """Places of the corpora for a trainer that reads them in their folders."""
        files = {f"{CORPORA}{number}": folder / MANIFEST for number, folder in enumerate(self.folders)}
        return TrainerPlaces(files, [folder / SHARDS for folder in self.folders])

    def check(self, run: RunManifest, tokenizer: Path | None) -> None:
        """Check that the corpora fit the run.  Raises ValueError with one sentence.

        tokenizer: the tokenizer.json of the run; None for bytes.
        """
        manifests = [FinishedCorpus(folder).manifest for folder in self.folders]
        length = run.data.sequence_length
        flaw = corpora_flaw(run, manifests) or tokenizer_flaw(manifests, tokenizer)
        if flaw:
            raise ValueError(f"[data] {flaw}; build the corpus for this run")
        if not any(each.rows(source.held_out, length) for each in manifests for source in each.sources):
            raise ValueError(
                f"nothing that is held out fills a row of data.sequence_length ({length}), so no loss could be measured; "
                "give more data, make held_out_percent larger (a corpus that is built already has to be built again with "
                "--held-out), or make data.sequence_length smaller"
            )

    def link(self, run_folder: Path) -> None:
        """Make the corpora known to the organiser's peer, which serves their blocks from their folders."""
        for number, folder in enumerate(self.folders):
            link_corpus(run_folder, number, folder)


def tokenizer_flaw(manifests: Sequence[CorpusManifest], tokenizer: Path | None) -> str:
    """Return a reason if one of the corpora has another tokenizer than the run; else "".  tokenizer: None for bytes."""
    content = TokenFormat(tokenizer=tokenizer).content()
    digest = ZERO_HASH if content is None else chunk_hash(content)
    is_other = any(each.tokenizer != digest for each in manifests)
    return "a corpus was built with another tokenizer than the run's" if is_other else ""


def link_corpus(run_folder: Path, number: int, folder: Path) -> None:
    """Make a corpus known to the peer of a run.  number: its place in the run's `data.corpora`."""
    point(make_private(run_folder / LINKS) / str(number), folder)


def point(link: Path, folder: Path) -> None:
    """Let a link lead to a folder, atomically: a process that is killed meanwhile leaves the link as it was."""
    unfinished = link.with_name(f".{link.name}.new")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(folder.absolute(), target_is_directory=True)
    unfinished.rename(link)


def names_corpora(section: Any) -> bool:
    """Return True if a data section names data for corpora, other than the manifests of finished ones."""
    if not isinstance(section, Mapping) or "corpora" in section or section.get("source") == "local":
        return False
    return isinstance(section.get("from"), str) or isinstance(section.get("sources"), list)


def tokenizer_in(section: Any, beside: Path) -> tuple[Path, list[int]] | None:
    """Return the tokenizer of the corpora that a data section names, and its end token; None if there is none."""
    named: Sequence[NamedInput] = ()
    with suppress(PeerError):  # reported with the other mistakes of the section
        named = _inputs(section, beside) if names_corpora(section) else []
    for folder in (each.folder for each in named if each.folder is not None):
        if (folder / TOKENIZER).is_file():
            return folder / TOKENIZER, [FinishedCorpus(folder).manifest.end]
    return None


def token_format(section: Mapping[str, Any], tokenizer: Path | None, facts: Mapping[str, Any]) -> TokenFormat:
    """Return the form of the tokens in a run's corpora.  tokenizer: None for bytes.

    facts: fields of the tokenizer section.
    """
    kind = CorpusKind.TEXT
    with suppress(ValueError):  # a wrong format, which the run file's check reports
        kind = CorpusKind(section.get("format", "text"))
    ends = tuple(facts.get("ends", ()))
    if kind is CorpusKind.TEXT:
        return TokenFormat(kind, tokenizer, ends)
    return TokenFormat(kind, tokenizer, ends, facts.get("template", "plain"), _length(section) + 1)


def run_data(
    section: Mapping[str, Any],
    beside: Path,
    tokens: TokenFormat,
    built: Path,
    tell: Tell = lambda progress: None,
    own: Mapping[str, OwnDocuments] = NO_DOCUMENTS,
) -> RunData:
    """Open or build the corpora of a data section.  Raises `PeerError`.

    beside: folder of the run file.  tokens: form of the tokens of corpora that are built.  built: folder below which they
    are built.  tell: called about the progress of a build.  own: documents that are not in files, by the names that stand
    for them.
    """
    inputs = _inputs(section, beside, own)
    corpora, remarks = [FinishedCorpus(folder) for folder in _folders(inputs)], list[tuple[str, str]]()
    if raw := [each for each in inputs if each.folder is None]:
        folder, tally = _built(raw, _options(section, tokens), built, tell)
        corpora.append(FinishedCorpus(folder))
        remarks.append(_remark(corpora[-1].manifest, tally))
    fields = _fields(section, inputs, corpora, counts=section.get("source") != "local")
    return RunData(tuple(each.path for each in corpora), fields, remarks)


SKETCHED_ROWS = 1 << 20
"""Assumed number of rows of a source that is not built yet."""


def sketched_data(
    section: Mapping[str, Any], beside: Path, tokens: TokenFormat, own: Mapping[str, OwnDocuments] = NO_DOCUMENTS
) -> RunData:
    """Return the corpora of a data section with stand-ins for those that `run_data` would build.  Raises `PeerError`.

    Mistakes in the section are reported before a corpus is built, which may take hours.
    """
    flaws = list(_option_flaws(section))
    try:
        inputs = _inputs(section, beside, own)
        fields = _fields(section, inputs, [FinishedCorpus(folder) for folder in _folders(inputs)], counts=False)
        return RunData((), fields, flaws=flaws)
    except PeerError as error:
        stand_in = {"corpora": [BUILTIN.model_dump()], "sources": [builtin_source(_length(section)).model_dump()]}
        return RunData((), stand_in, flaws=[*error.text.splitlines(), *flaws])


def _folders(inputs: Sequence[NamedInput]) -> list[Path]:
    """Return the folders of the corpora among the inputs, each once."""
    return list(dict.fromkeys(each.folder for each in inputs if each.folder is not None))


def _fields(
    section: Mapping[str, Any], inputs: Sequence[NamedInput], corpora: Sequence[FinishedCorpus], *, counts: bool
) -> dict[str, Any]:
    """Return the fields of the data section in a run's manifest.

    corpora: corpora in `_folders`, then the corpus that is built here, if any; a stand-in replaces a corpus that is not
    built yet.  counts: True to count the tokens to learn from in chats and preferences, whose flags are read for that.
    """
    folders, files = _folders(inputs), [file_section(each.raw).model_dump() for each in corpora]
    sources: dict[str, dict[str, Any]] = {}
    for given in inputs:
        number = folders.index(given.folder) if given.folder is not None else len(folders)
        if number == len(files):
            files.append(BUILTIN.model_dump())
        corpus = corpora[number] if number < len(corpora) else None
        named = [(given.source, SKETCHED_ROWS)] if corpus is None else _rows(given, corpus.manifest, section)
        for name, rows in named:
            if name in sources:
                raise PeerError(
                    f"two of [[data.sources]] are called {name}; give each a name of its own, or build its corpus with "
                    "`peer data build OUT NAME=INPUT`",
                    ExitCode.INPUT,
                )
            said = {} if given.weight is None else {"weight": given.weight}
            if counts and corpus is not None and corpus.manifest.kind is not CorpusKind.TEXT:
                said["counted"] = counted_tokens(corpus, name)
            sources[name] = {"name": name, "corpus": number, "rows": rows, **said}
    phases = _phases(section.get("phases", []), [*sources])
    fields = {"corpora": files, "sources": _weighted([*sources.values()]), "phases": phases}
    return {name: value for name, value in fields.items() if value}


def built_name(section: Mapping[str, Any], beside: Path, tokens: TokenFormat) -> str:
    """Return the name of the folder in which `run_data` builds a corpus; empty if it builds none.  Raises `PeerError`."""
    raw = [each for each in _inputs(section, beside) if each.folder is None]
    return _key(raw, _options(section, tokens)) if raw else ""


def _inputs(section: Mapping[str, Any], beside: Path, own: Mapping[str, OwnDocuments] | None = None) -> list[NamedInput]:
    """Return the inputs that a data section names, in its order.  Raises `PeerError`.

    own: documents that are not in files; None if they do not matter.
    """
    listed = section.get("sources", [{"from": section.get("from")}])
    found, flaws = list[NamedInput](), list[str]()
    for number, each in enumerate(listed, 1):
        try:
            found.append(_input(each, f" in entry {number} of data.sources" if "sources" in section else "", beside, own))
        except PeerError as error:
            flaws.append(error.text)
    if flaws:
        raise PeerError("\n".join(flaws), ExitCode.INPUT)
    if not found or len({each.weight is None for each in found}) > 1:
        raise PeerError(
            "some of [[data.sources]] have a weight and some have none; give a weight to all of them, or to none",
            ExitCode.INPUT,
        )
    return found


def _input(said: Any, place: str, beside: Path, own: Mapping[str, OwnDocuments] | None) -> NamedInput:
    if not isinstance(said, Mapping) or not isinstance(said.get("from"), str) or set(said) - {"name", "from", "weight"}:
        raise PeerError(
            "each of [[data.sources]] needs from, may have name and weight, and has no other field; write "
            'from = "FOLDER-OR-FILE"',
            ExitCode.INPUT,
        )
    name, weight, named = said.get("name"), said.get("weight"), said["from"]
    if name is not None and (not isinstance(name, str) or re.fullmatch(SOURCE_NAME, name) is None):
        raise PeerError(
            f"name{place} is {shortened(name)}; it must be 1 to 64 letters, digits, _, . and - in quotes, and begin with a "
            "letter, a digit or _",
            ExitCode.INPUT,
        )
    if weight is not None and not _is_weight(weight):
        raise PeerError(
            f"weight{place} is {shortened(weight)}; it must be a whole number from 0 to {MAX_WEIGHT}", ExitCode.INPUT
        )
    if named == EXAMPLES or (own is not None and named in own):
        if own is not None and named not in own:
            raise PeerError(
                f'"{EXAMPLES}" in [data] are the solved problems of an environment, and no section [rl] names one; add it, '
                f'or write "./{EXAMPLES}" for a folder of that name',
                ExitCode.INPUT,
            )
        return NamedInput(name, named, weight, own[named] if own is not None else None)
    origin = named if named.startswith(HUB) else beside / Path(os.path.expanduser(named))
    if isinstance(origin, Path) and not origin.exists():
        raise PeerError(f"[data] from{place} is {origin}, which does not exist; correct the path", ExitCode.INPUT)
    return NamedInput(name, origin, weight)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_weight(value: Any) -> bool:
    return _is_count(value) and value <= MAX_WEIGHT


def _length(section: Mapping[str, Any]) -> int:
    """Return the predicted tokens of a row; 8, the least, for a wrong value, which the run file's check reports."""
    said = section.get("sequence_length", DataSection.model_fields["sequence_length"].default)
    return said if isinstance(said, int) and said >= 1 else 8


OPTIONS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "keep_repeated": (lambda value: isinstance(value, bool), "true or false"),
    **dict.fromkeys(("text", "id"), (lambda value: isinstance(value, str), "the name of a field, in quotes")),
    "where": (lambda value: isinstance(value, Mapping), 'fields with values, such as { language = "en" }'),
    **dict.fromkeys(("least_characters", "most_characters", "most_rows"), (_is_count, "a whole number, at least 0")),
    "read_as": (lambda value: isinstance(value, str) and value in READ_AS, f"one of {', '.join(READ_AS)}"),
    "leave_out": (
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
        'a list of patterns, such as ["*.png"]',
    ),
    "held_out_percent": (
        lambda value: _is_count(value) and 1 <= value <= MOST_HELD_OUT,
        f"a whole number from 1 to {MOST_HELD_OUT} (the share of the documents that is held out)",
    ),
}
"""Options of a data section that choose documents: the test of a value, and the rule that follows "it must be"."""


def _option_flaws(section: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each mistake in the options of a data section."""
    for name, (is_right, rule) in OPTIONS.items():
        if name in section and not is_right(section[name]):
            yield f"[data] {name} is {shortened(section[name])}; it must be {rule}"
    if section.get("keep_repeated") is True and section.get("id"):
        yield "[data] id says which documents are the same, so keep_repeated is not allowed; remove id or keep_repeated"


def _options(section: Mapping[str, Any], tokens: TokenFormat) -> BuildOptions:
    if flaws := list(_option_flaws(section)):
        raise PeerError("\n".join(flaws), ExitCode.INPUT)
    where: Mapping[str, Any] = section.get("where", {})
    fields = FieldSelection(
        text=section.get("text") or "text",
        identity=section.get("id"),
        least=max(1, section.get("least_characters", 1)),
        most=section.get("most_characters"),
        most_rows=section.get("most_rows"),
        keep_repeated=section.get("keep_repeated") or None,
        read_as=section.get("read_as"),
        leave_out=tuple(section.get("leave_out", ())) or None,
        words=MEMBERS_WORDS if section.get("source") == "local" else WORDS,
        where={name: tuple(map(str, value if isinstance(value, list) else [value])) for name, value in where.items()},
    )
    return BuildOptions(tokens, fields, held_out_percent=section.get("held_out_percent", HELD_OUT_PERCENT))


def _built(inputs: Sequence[NamedInput], options: BuildOptions, built: Path, tell: Tell) -> tuple[Path, BuildTally | None]:
    """Build the corpus of these inputs, unless it is built; return its folder, and the counts of its rows if it was not."""
    folder = built / _key(inputs, options)
    if (folder / MANIFEST).is_file():
        return folder, None
    built.mkdir(mode=0o700, parents=True, exist_ok=True)
    chosen = [
        BuildInput(each.source, each.origin if each.own is None else each.own.make(), str(each.origin)) for each in inputs
    ]
    return folder, build(chosen, options, folder, tell).tally


def _remark(manifest: CorpusManifest, tally: BuildTally | None) -> tuple[str, str]:
    """Return the subject and the numbers of a corpus that was built here, and of the rows that it leaves out."""
    train, held_out = ([each.train for each in manifest.sources], [each.held_out for each in manifest.sources])
    noun, documents = NOUNS[manifest.kind], sum(split.documents for split in train)
    size = f"{amount(sum(split.tokens for split in train)).strip()} tokens"
    if manifest.row_tokens:
        size = f"{sum(manifest.rows(split, manifest.row_tokens - 1) for split in train)} windows"
    learned, kept = many(documents, noun.removesuffix("s")), sum(split.documents for split in held_out)
    told = f"{learned} in {size} to learn from, {kept} held out"
    recipe = json.loads(manifest.recipe)
    told += ", the end of one of them" if recipe.get("cut_for_held_out") else ""
    if recipe.get("cut"):
        told += f"; {recipe['cut']} longer than a window are cut"
    for heading, kind, name in (("read", Form, "forms"), ("passed over", Skipped, "passed_over")):
        files = [
            f"{many(count, 'file')} ({kind[each.upper()].value.partition(';')[0]})"
            for each, count in recipe.get(name, {}).items()
        ]
        told += f"; {heading}: {', '.join(files)}" if files else ""
    switches = {LeftOut.SAME_TEXT: " (keep_repeated = true in [data] keeps them)"}
    reasons = {LeftOut[name.upper()]: count for name, count in recipe["left_out"].items()}
    left = ", ".join(f"{count} {reason.value}{switches.get(reason, '')}" for reason, count in reasons.items())
    first = tally.first(True) if tally is not None else None
    return noun, told + (f"; left out: {left}" if left else "") + (f"; the first bad row is {first}" if first else "")


def counted_tokens(corpus: FinishedCorpus, name: str) -> int:
    """Return the tokens to learn from in a source of chats or preferences: those whose predictions the loss counts.

    Reads the whole source.  Raises `PeerError` for damage.
    """
    split = next(source.train for source in corpus.manifest.sources if source.name == name)
    flags = (corpus.tokens_and_flags(block)[1] for block in corpus.blocks(split))
    return sum(int(np.count_nonzero(each & COUNTS)) for each in flags)


def _key(inputs: Sequence[NamedInput], options: BuildOptions) -> str:
    """Return a name for the corpus of these inputs, which changes if a file of theirs or the way of reading changes."""
    described = {**options.described(), "reading": READING}
    digest = hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16)
    digest.update(options.tokens.content() or b"bytes")
    own = {str(each.origin): each.own.key for each in inputs if each.own is not None}
    digest.update(json.dumps([[[each.source, str(each.origin)] for each in inputs], own]).encode())
    for file in files_of(BuildInput(each.source, each.origin) for each in inputs if isinstance(each.origin, Path)):
        assert file.path is not None, "only data in memory has no path"
        if file.skipped is not None:
            continue
        stat = file.path.stat()
        digest.update(f"{file.path}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _rows(given: NamedInput, manifest: CorpusManifest, section: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the sources of an input with their rows: the source that it names, or all sources of a corpus."""
    length, is_local = _length(section), section.get("source") == "local"
    remedy = "give a larger folder with --data" if is_local else "make data.sequence_length smaller, or give more data"
    name = given.name if given.folder is not None else given.source
    chosen = [each for each in manifest.sources if name is None or each.name == name]
    if not chosen:
        names = ", ".join(each.name for each in manifest.sources)
        raise PeerError(f"{given.origin} has no source {name}; it has {names}", ExitCode.INPUT)
    for each in chosen:
        if not manifest.rows(each.train, length):
            raise PeerError(
                f"source {each.name} has {each.train.tokens} tokens to learn from, and a row needs {length + 1}; {remedy}",
                ExitCode.INPUT,
            )
    return [(each.name, manifest.rows(each.train, length)) for each in chosen]


def _weighted(sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return sources with weights: the given ones, or otherwise weights in proportion to their rows."""
    most = max(source["rows"] for source in sources)
    scale = 1 if len(sources) == 1 else MAX_WEIGHT
    return [{"weight": max(1, source["rows"] * scale // most), **source} for source in sources]


def _phases(said: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the phases with their weights in the order of the sources."""
    phases = []
    for number, phase in enumerate(said if isinstance(said, list) else [{}], 1):
        weights = phase.get("weights") if isinstance(phase, dict) else None
        place = f"in entry {number} of data.phases"
        flaw = ""
        if not isinstance(weights, Mapping):
            flaw = f"weights {place} must be {{ SOURCE = WEIGHT }}, and the sources are {', '.join(names)}; correct them"
        elif unknown := sorted(set(weights) - set(names)):
            flaw = f"weights {place} names {unknown[0]!r:.60}, and the sources are {', '.join(names)}; correct the name"
        elif wrong := [name for name, weight in weights.items() if not _is_weight(weight)]:
            flaw = (
                f"the weight of {wrong[0]} {place} is {shortened(weights[wrong[0]])}; it must be a whole number from 0 to "
                f"{MAX_WEIGHT}"
            )
        if flaw or not isinstance(weights, Mapping):
            raise PeerError(flaw, ExitCode.INPUT)
        phases.append({**phase, "weights": [weights.get(name, 0) for name in names]})
    return phases


# ------------------------------------------------------------------------------------------------------------------------
# Documents of an environment's solved examples, for a warm start.


MOST_EXAMPLES = 1 << 14


def solved_examples(environment: Environment, tokenizer: TemplatedTokenizer) -> list[Document]:
    """Return examples of problems spread over the environment, in the layout of rollouts.

    Raises ValueError if the environment knows no solutions.
    """
    count, found = min(environment.size, MOST_EXAMPLES), list[Document]()
    for number in range(count):
        example = example_tokens(environment, number * environment.size // count, tokenizer)
        tokens = [*example.prompt, *example.output]
        text = tokenizer.decode([token for token in tokens if token not in tokenizer.ends])
        found.append(Document(tokens=np.array(tokens, tokenizer.dtype), text_bytes=len(text.encode())))
    return found
