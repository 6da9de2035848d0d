"""Build of a corpus, from its inputs to its folder.

1. The inputs are read as batches of rows, and workers encode them (`peer.corpora.workers`).
2. Workers write parts: documents sorted by split and by the keyed hash that orders them (`peer.corpora.parts`).
3. The parts are merged: of documents with one identity the first is kept, and the tokens of each split are counted.
4. If the hashes do not hold out about the wanted share, the end of a document is held out (`peer.corpora.division`).
5. The counts give the size of the blocks, and the blocks are written (`peer.corpora.folder`).

Everything lies in `OUT.partial`, with a journal of the finished parts and splits.  The finished corpus is renamed to OUT.
An interrupted build goes on where it was if it is started again with the same inputs and options.  The bytes of the corpus
depend on the documents and the options, not on the batches, their order or the number of workers.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal, cast

import numpy as np

from peer.corpora.conversations import Flagged, filled, packed
from peer.corpora.division import Division, SourceDocuments, WrittenDocument, divided, division, documents_of, shortage
from peer.corpora.folder import DIGEST, MANIFEST, TOKENIZER, SplitWriter
from peer.corpora.forms import READING, Skipped
from peer.corpora.inputs import BuildInput, InputsSurvey, files_of, is_read_with, source_names, survey
from peer.corpora.options import MOST_NAMED, BuildOptions, BuildTally, LeftOut, NamedRow
from peer.corpora.parts import BuildJournal, PartRecord, Parts, sync_folder, write_durably
from peer.corpora.readers import batches
from peer.corpora.workers import LocalPool, ProcessPool, WorkerReply
from peer.errors import ExitCode, PeerError
from peer.files import LockHeld, locked
from protocol.corpora.manifest import (
    LEAST_BLOCK_TOKENS,
    MAX_RECIPE_CHARS,
    MAX_SHARD_BLOCKS,
    CorpusKind,
    CorpusManifest,
    CorpusSource,
    Split,
)
from protocol.run.sections import MAX_SOURCES
from protocol.wire.canonical import Malformed
from protocol.wire.hashes import ZERO_HASH, chunk_hash
from trainer.data.templates import TemplatedTokenizer

VERSION = 1
"""Version of the build; another one may give other bytes for the same inputs."""
PARTIAL = ".partial"
LEAST_BLOCKS = 256
"""Number of blocks that the smallest training split has, if it has the tokens."""
MOST_BLOCKS = 1 << 20
"""Number of blocks that a corpus of many sources has at most for the sake of the smallest one."""
SHARD_BYTES = 256 << 20
PROGRESS_S = 0.25
INPUTS_NAMED = 100
SMALL_BYTES = 1 << 20
"""Size up to which inputs are encoded in this process, which is done before workers would have started."""
RESUMABLE = (ExitCode.RESOURCES, ExitCode.UNREACHABLE)
"""Exit codes of errors after which the same command may succeed, so that the partial folder is kept."""


@dataclass(frozen=True)
class BuildProgress:
    """State of a build in progress.

    phase: "read" or "write".  documents and tokens: done in this phase.  done and total: bytes of the inputs, or tokens to
    write; total is None if it is unknown.  left_s: estimate of the seconds to the end of the phase; None if it is unknown.
    """

    phase: str
    documents: int
    tokens: int
    done: int
    total: int | None
    tokens_per_s: float
    left_s: float | None


Tell = Callable[[BuildProgress], None]


class _Meter:
    """Meter of a phase's speed, which reports a few times a second.

    earlier_tokens, earlier: tokens, and bytes or tokens, that an earlier process has done; they do not count for the speed.
    """

    def __init__(self, tell: Tell, phase: str, total: int | None, earlier_tokens: int = 0) -> None:
        self._tell, self._phase, self._total, self._earlier_tokens = tell, phase, total, earlier_tokens
        self._start, self._told, self.earlier = time.monotonic(), 0.0, 0

    def report(self, documents: int, tokens: int, done: int) -> None:
        """Report the state, unless it was reported just before."""
        now = time.monotonic()
        if now - self._told < PROGRESS_S and done != self._total:
            return
        seconds, advance, self._told = max(now - self._start, 1e-9), done - self.earlier, now
        left = (self._total - done) * seconds / advance if self._total is not None and advance > 0 else None
        speed = (tokens - self._earlier_tokens) / seconds
        self._tell(BuildProgress(self._phase, documents, tokens, done, self._total, speed, left))


@dataclass(frozen=True)
class BuildResult:
    """Corpus that was built, the rows that were left out, and the files that were read and passed over.

    cut: sources with a document whose beginning is learned from and whose end is held out.  shortage: sentence for a corpus
    that is too small for a run; otherwise empty.
    """

    manifest: CorpusManifest
    tally: BuildTally
    survey: InputsSurvey
    cut: tuple[str, ...] = ()
    shortage: str = ""


def build(inputs: Sequence[BuildInput], options: BuildOptions, out: Path, tell: Tell = lambda progress: None) -> BuildResult:
    """Build a corpus in the new folder `out`.  Raises `PeerError`, after which `out` does not exist.

    Inputs that share a name are one source.  tell: called with the progress, a few times a second.
    """
    inputs = list(inputs)
    check_build(inputs, options, out)
    partial = out.with_name(out.name + PARTIAL)
    try:
        partial.mkdir(parents=True, exist_ok=True)
        with locked(partial / "lock"):
            try:
                result = _Build(inputs, options, out, tell).run()
            except PeerError as error:
                if error.exit_code not in RESUMABLE:
                    shutil.rmtree(partial)
                raise
        shutil.rmtree(partial)
        return result
    except LockHeld as error:
        raise PeerError(f"another process builds {out}; wait for it, or choose another folder") from error
    except OSError as error:
        remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the path and its permissions"
        raise PeerError(
            f"cannot build {out}: {error.filename or 'its files'}: {error.strerror or error}; {remedy}, and run the command "
            f"again to go on, or remove {partial}",
            ExitCode.RESOURCES,
        ) from error


def check_build(inputs: Sequence[BuildInput], options: BuildOptions, out: Path) -> None:
    """Raise `PeerError` for a build that cannot begin."""
    names, words, fields = source_names(inputs), options.fields.words, options.fields
    folders = [each.origin for each in inputs if isinstance(each.origin, Path) and is_read_with(each.origin, out)]
    flaws = {
        f"{out} exists already; choose a new folder, or remove it": out.exists(),
        f"{out} lies in {', '.join(map(str, folders[:1]))}, so files of the build would be read as documents; choose "
        "a folder outside it": bool(folders),
        f"a corpus has 1 to {MAX_SOURCES} sources, and these inputs have {len(names)}; give several inputs one name: "
        f"{words.source}": not 1 <= len(names) <= MAX_SOURCES,
        f"the held-out share is a percentage from 0 to below 100; change {words.held_out}": not (
            0 <= options.held_out_percent < 100
        ),
        f"no text has at least {fields.least} and at most {fields.most} characters; correct the limits": (
            fields.most is not None and fields.least > fields.most
        ),
        "a corpus of chats or preferences needs a row length, and a corpus of text must have none; correct the row length": (
            (options.tokens.kind is CorpusKind.TEXT) != (options.tokens.row_tokens == 0)
        ),
    }
    for flaw, is_there in flaws.items():
        if is_there:
            raise PeerError(flaw, ExitCode.INPUT)


class _Build:
    """Build of one corpus, in its partial folder."""

    def __init__(self, inputs: list[BuildInput], options: BuildOptions, out: Path, tell: Tell) -> None:
        self._inputs, self._options, self._out, self._tell = inputs, options, out, tell
        self._names = source_names(inputs)
        self._partial = out.with_name(out.name + PARTIAL)
        self._parts_folder, self._corpus = self._partial / "parts", self._partial / "corpus"
        self._journal = BuildJournal(self._partial / "journal")
        self._records: list[PartRecord] = []
        self._splits: dict[int, Split] = {}
        self._divisions: list[Division] = []
        self._tally = BuildTally()
        self._survey: InputsSurvey

    def run(self) -> BuildResult:
        """Do all steps, except the ones that the journal names as done."""
        self._survey = survey(self._inputs, self._options)
        with closing(self._journal):
            self._prepare()
            if not self._splits:  # all rows were read before the first split was written
                self._read()
            return self._write()

    def _prepare(self) -> None:
        """Read the journal, or begin it; use the checked tokenizer in the partial folder."""
        tokens = self._options.tokens
        content, reserved = tokens.content(), tokens.content(tokens.ends)
        head = {
            "version": VERSION,
            "inputs": self._survey.fingerprint,
            "options": self._options.described(),
            "reading": READING,
            "tokenizer": chunk_hash(content).hex() if content is not None else "",
        }
        lines = self._journal.read()
        is_resumable = not any(each.is_in_memory for each in self._inputs)
        if lines and is_resumable and lines[0] != head:
            raise PeerError(
                f"{self._partial} is a build of other inputs or options; remove it, or choose another folder",
                ExitCode.RESOURCES,
            )
        if not lines or not is_resumable:
            for folder in (self._parts_folder, self._corpus):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
            self._journal.begin(head)
        if content is not None and reserved is not None:
            write_durably(self._corpus / TOKENIZER, [content])
            write_durably(checked := self._partial / TOKENIZER, [reserved])
            self._options = replace(self._options, tokens=replace(tokens, tokenizer=checked, is_checked=True))
        for line in lines[1:] if is_resumable else ():
            if "part" in line:
                self._records.append(PartRecord.from_json(line))
                self._tally.add(self._records[-1].tally)
            elif "split" in line:
                shards = [bytes.fromhex(root) for root in line["shards"]]
                counts = {name: line[name] for name in ("tokens", "documents", "text_bytes")}
                self._splits[line["split"]] = Split(**counts, shards=shards)

    # -- reading -------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        options, total = self._options, self._survey.total_bytes
        done = {batch for record in self._records for batch in record.batches}
        meter, counted = _Meter(self._tell, "read", total, self._tally.tokens), BuildTally()
        counted.add(self._tally)
        reached = 0

        def take(reply: WorkerReply) -> None:
            nonlocal reached
            counted.add(reply.tally)
            reached = max(reached, reply.done_bytes)
            if reply.part is not None:
                self._journal.write(reply.part.to_json())
                self._records.append(reply.part)
                self._tally.add(reply.part.tally)
            counted.check(options)
            meter.report(counted.documents, counted.tokens, reached)

        is_small = all(each.is_in_memory for each in self._inputs) or (total is not None and total <= SMALL_BYTES)
        workers = options.workers or (1 if is_small else cores())
        folder = self._parts_folder
        pool = LocalPool(options, folder, take) if workers == 1 else ProcessPool(options, folder, take, workers)
        with closing(pool):
            for batch in batches(self._inputs, options, self._survey.traits):
                if batch.number in done:
                    meter.earlier = batch.done_bytes
                else:
                    pool.put(batch)
            pool.finish()
        self._tally.check(options, is_end=True)

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> BuildResult:
        keep_repeated = bool(self._options.fields.keep_repeated)
        tokenizer = self._options.tokens.open()
        with closing(Parts(self._parts_folder, self._records, keep_repeated=keep_repeated)) as parts:
            hashed = self._count(parts)
            sources = [SourceDocuments(parts, place, hashed[2 * place][1]) for place in range(len(self._names))]
            counts = self._divide(sources, hashed)
            shape = self._shape(tokenizer, [tokens for tokens, _ in counts])
            meter = _Meter(self._tell, "write", sum(tokens for tokens, _ in counts))
            tokens = documents = 0
            for group in range(2 * len(self._names)):
                if group not in self._splits:
                    place, trains = group // 2, not group % 2
                    stream = documents_of(sources[place], self._divisions[place], tokenizer, trains=trains)
                    self._splits[group] = split = self._split(stream, tokenizer, shape, meter, (tokens, documents))
                    line = {"split": group, **split.model_dump(exclude={"shards"})}
                    self._journal.write({**line, "shards": [root.hex() for root in split.shards]})
                tokens, documents = tokens + counts[group][0], documents + counts[group][1]
        cut = tuple(name for name, each in zip(self._names, self._divisions, strict=True) if each.tokens)
        manifest = self._manifest(tokenizer, shape, cut)
        raw = manifest.encode()
        write_durably(self._corpus / DIGEST, [f"{chunk_hash(raw).hex()}\n".encode()])
        write_durably(self._corpus / MANIFEST, [raw])
        sync_folder(self._corpus)
        os.rename(self._corpus, self._out)
        sync_folder(self._out.absolute().parent)
        lacks = shortage(manifest, self._options.held_out_percent, self._options.fields.words)
        return BuildResult(manifest, self._tally, self._survey, cut, lacks)

    def _count(self, parts: Parts) -> list[tuple[int, int]]:
        """Return the tokens and documents of each split by their hashes, and count the repeated documents."""
        counts, repeated, total = list[tuple[int, int]](), list[tuple[int, int]](), 0
        for group in range(2 * len(self._names)):
            tokens = documents = 0
            for some in parts.ranges(group):
                tokens += sum(each.tokens for each in some.kept)
                documents += len(some.kept)
                total += len(some.repeated)
                repeated = sorted([*repeated, *some.repeated])[:MOST_NAMED]
            counts.append((tokens, documents))
        if total:
            reason, what = (LeftOut.SAME_ID, "ID") if self._options.fields.identity else (LeftOut.SAME_TEXT, "text")
            wanted = {file for file, _ in repeated}
            files = files_of(self._inputs, self._options.fields.leave_out or ())
            names = {each.number: each.name for each in files if each.number in wanted}
            flaw = f"it has the {what} of an earlier row"
            named = [NamedRow(file, row, names.get(file, ""), flaw) for file, row in repeated]
            self._tally.add(BuildTally(left_out={reason: total}, named={reason.is_bad: named, not reason.is_bad: []}))
            self._tally.documents -= total
            self._tally.check(self._options, is_end=True)
        return counts

    def _divide(self, sources: Sequence[SourceDocuments], hashed: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Divide each source; return the tokens and documents of each split.  hashed: the counts by their hashes alone."""
        percent, is_text = self._options.held_out_percent, self._options.tokens.kind is CorpusKind.TEXT
        counts: list[tuple[int, int]] = []
        for place, (source, name) in enumerate(zip(sources, self._names, strict=True)):
            train, held_out = hashed[2 * place : 2 * place + 2]
            total, documents = train[0] + held_out[0], train[1] + held_out[1]
            if not total:
                first = self._tally.first(True) or self._tally.first(False)
                reason = f"the first row left out is {first}" if first is not None else "its inputs have no rows"
                raise PeerError(
                    f"the source {name} has no document to learn from; {reason}; check the inputs and the options",
                    ExitCode.INPUT,
                )
            chosen, tokens = divided(train, held_out, percent), train[0]
            if chosen is None:
                chosen = division(source.after(0), total, percent, is_text=is_text)
                tokens = sum(each.tokens for each in islice(source.after(0), chosen.documents)) + chosen.tokens
            self._divisions.append(chosen)
            counts += [(tokens, chosen.documents + bool(chosen.tokens)), (total - tokens, documents - chosen.documents)]
        return counts

    def _shape(self, tokenizer: TemplatedTokenizer, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the tokens of a block and the blocks of a shard.

        tokens: number of tokens of each split.  Blocks are small enough for `LEAST_BLOCKS` in the smallest training split,
        if it has the tokens, and large enough for `MOST_BLOCKS` in the corpus.
        """
        form = self._options.tokens
        per_token = tokenizer.dtype.itemsize + (form.kind is not CorpusKind.TEXT)
        unit = max(1, form.row_tokens) * (2 if form.kind is CorpusKind.PREFERENCE else 1)
        most = max(self._options.block_bytes // per_token, LEAST_BLOCK_TOKENS)
        wanted = max(min(tokens[::2]) // LEAST_BLOCKS, -(-sum(tokens) // MOST_BLOCKS), LEAST_BLOCK_TOKENS)
        block = min(most, 1 << (wanted.bit_length() - 1)) // unit * unit or unit
        if block > most:
            raise PeerError(
                f"a row of {form.row_tokens} tokens does not fit into a block of {self._options.block_bytes} bytes; make "
                "the rows shorter",
                ExitCode.INPUT,
            )
        return block, min(MAX_SHARD_BLOCKS, max(1, SHARD_BYTES // (block * per_token)))

    def _split(
        self,
        documents: Iterable[WrittenDocument],
        tokenizer: TemplatedTokenizer,
        shape: tuple[int, int],
        meter: _Meter,
        before: tuple[int, int],
    ) -> Split:
        """Write the blocks of a split.  before: tokens and documents of the splits before it, for the meter."""
        form = self._options.tokens
        count = tokens = text_bytes = 0

        def payloads() -> Iterator[bytes]:
            nonlocal count, tokens, text_bytes
            for document in documents:
                count, tokens, text_bytes = count + 1, tokens + document.tokens, text_bytes + document.text_bytes
                yield document.payload
                meter.report(before[1] + count, before[0] + tokens, before[0] + tokens)

        has_flags = form.kind is not CorpusKind.TEXT
        with closing(SplitWriter(self._corpus, shape, tokenizer.dtype.itemsize, has_flags=has_flags)) as writer:
            if has_flags:
                dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
                rows: Iterator[Flagged] = (_flagged(payload, dtype) for payload in payloads())
                if form.kind is CorpusKind.CHAT:
                    rows = (filled(chats, form.row_tokens, tokenizer.end) for chats in packed(rows, form.row_tokens))
                for row, flags in rows:
                    writer.add(row.tobytes(), flags.tobytes())
            else:
                for payload in payloads():
                    writer.add(payload)
            shards = writer.finish()
        return Split(tokens=writer.written, documents=count, text_bytes=text_bytes, shards=list(shards))

    def _manifest(self, tokenizer: TemplatedTokenizer, shape: tuple[int, int], cut: Sequence[str]) -> CorpusManifest:
        form, token_bytes = self._options.tokens, tokenizer.dtype.itemsize
        assert token_bytes in (1, 2, 4), "numpy has no other unsigned types for a vocabulary"
        try:
            return CorpusManifest(
                kind=form.kind,
                tokenizer=chunk_hash((self._corpus / TOKENIZER).read_bytes()) if form.tokenizer else ZERO_HASH,
                vocab=tokenizer.vocab,
                end=tokenizer.end,
                token_bytes=cast(Literal[1, 2, 4], token_bytes),
                row_tokens=form.row_tokens,
                block_tokens=shape[0],
                shard_blocks=shape[1],
                recipe=self._recipe(cut),
                sources=[
                    CorpusSource(name=name, train=self._splits[2 * place], held_out=self._splits[2 * place + 1])
                    for place, name in enumerate(self._names)
                ],
            )
        except (ValueError, Malformed) as error:
            raise PeerError(f"these inputs give no corpus: {error}; change the inputs or the options") from error

    def _recipe(self, cut: Sequence[str]) -> str:
        """Return the recipe: inputs, options, and the counts of rows left out or cut.

        Hidden files do not count: equal corpora have equal recipes, wherever a system leaves files of its own.
        """
        counts = {reason.name.lower(): count for reason, count in sorted(self._tally.left_out.items())}
        read = {form.name.lower(): count for form, count in self._survey.read.items()}
        passed_over = {reason.name.lower(): each.files for reason, each in self._survey.skipped.items()}
        passed_over.pop(Skipped.HIDDEN.name.lower(), None)
        named = [{"source": each.source, "input": each.name} for each in self._inputs[:INPUTS_NAMED]]
        while True:
            recipe = {
                "version": VERSION,
                "inputs": named,
                "more_inputs": len(self._inputs) - len(named),
                "options": self._options.described(),
                "rows": self._tally.rows,
                "left_out": counts,
                **({"cut": self._tally.cut} if self._tally.cut else {}),
                **({"forms": read} if read else {}),
                **({"passed_over": passed_over} if passed_over else {}),
                **({"cut_for_held_out": list(cut)} if cut else {}),
            }
            text = json.dumps(recipe, sort_keys=True)
            if len(text) <= MAX_RECIPE_CHARS or not named:
                return text
            named = named[: len(named) // 2]


def _flagged(payload: bytes, dtype: np.dtype[np.unsignedinteger]) -> Flagged:
    count = len(payload) // (dtype.itemsize + 1)
    return np.frombuffer(payload, dtype, count), np.frombuffer(payload, np.uint8, count, count * dtype.itemsize)


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
