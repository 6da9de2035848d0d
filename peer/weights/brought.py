"""Data that comes with a run file: a folder of weights, a tokenizer, corpora, the tasks of its environment.

The manifest names each piece by its hash.  The organiser's data directory stores the data; other peers fetch it from there
and from each other.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernels.outside_files import read_outside
from peer.corpora.builtin import builtin_documents
from peer.corpora.inputs import Document
from peer.corpora.options import TokenFormat
from peer.corpora.run_data import (
    OwnDocuments,
    RunData,
    names_corpora,
    run_data,
    sketched_data,
    solved_examples,
    token_format,
    tokenizer_in,
)
from peer.errors import ExitCode, PeerError, told_as
from peer.paths import FILES, make_private, run_dir
from peer.weights.base_files import describe_file, folder_name, link_file
from peer.weights.tokenizer_files import check_readable, loading_remark, tokenizer_facts
from protocol.blobs.store import BlobStore, leaves_of
from protocol.chain.outer_state import genesis_state
from protocol.chain.records import genesis_tip
from protocol.chain.results import CheckpointName, Checkpoints
from protocol.disk import Disk, StoreFailed
from protocol.formats.adapter import adapter_parameters
from protocol.formats.section import shortened
from protocol.formatting import clean, plain
from protocol.run.manifest import STATE_BYTES_PER_PARAMETER, RunManifest, SignedManifest
from protocol.run.run_file import BASE_FIELDS, RunFileError, sections_of
from protocol.run.sections import (
    EXAMPLES,
    FILE_CHUNK_BYTES,
    MAX_FILE_BYTES,
    SOURCE,
    TASKS,
    TOKENIZER,
    BaseSection,
    RlSection,
    reads_builtin,
)
from protocol.sync.fetchers import file_section, keep_file
from protocol.wire.hashes import Hash, chunk_hash, tree_root
from trainer.config import TrainingConfig
from trainer.data.templates import TemplatedTokenizer
from trainer.data.tokens import ByteTokenizer
from trainer.environments.packages import PackageMissing
from trainer.environments.records import CodeTests, SolveRates, read_tasks, told
from trainer.environments.registry import check_named, corpora_of, files_of, open_named, problems_of, with_digests
from trainer.environments.sandbox import SandboxUnavailable
from trainer.environments.task_file import digest_of, read_file
from trainer.environments.tools import read_corpus
from trainer.git_lfs import POINTER_FLAW, is_pointer, is_pointer_file
from trainer.reading import environment_of, tokenizer_of
from trainer.rl.groups import prompt_flaw
from trainer.weights.folder import WeightsFolder
from trainer.weights.peft_folder import PeftFolder
from trainer.weights.safetensors_file import F32, FolderError

# ------------------------------------------------------------------------------------------------------------------------
# Run that begins with the weights of a Hugging Face folder, or with the factors of a PEFT folder beside such weights: its
# state after 0 rounds is hashed and kept on disk.
#
# The manifest has the digest of that state.  The organiser's data directory keeps it as the checkpoint after 0 rounds.
# The organiser's peer begins from it, and other peers fetch it like any checkpoint.


class FolderStart:
    """A `protocol.run.run_file.Start` made from a folder.  Raises `PeerError` for a folder from which no run can begin.

    adapter: folder of PEFT with whose factors the run goes on; None if it has none, or if the factors follow from its seed.
    """

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        self.folder = folder
        self._leaves: dict[int, list[Hash]] = {}
        self._base: list[dict[str, Any]] | None = None
        with told_as(ExitCode.INPUT, FolderError):
            self._weights = WeightsFolder(folder)
            self.adapter = PeftFolder(adapter, self._weights.config) if adapter is not None else None

    @property
    def facts(self) -> Mapping[str, Any]:
        """Model section of a run that begins with the folder."""
        return self._weights.facts

    def flaws(self, fields: Mapping[str, Any]) -> list[str]:
        """Return a sentence for each field of the file's section on the adapter that differs from the adapter's folder."""
        if self.adapter is None:
            return []
        found = self.adapter.adapter.model_dump().items()
        return [
            f"adapter.{name} is {shortened(fields[name])}, but the adapter in {self.adapter.folder} has {shortened(value)}; "
            f"remove {name}, because [adapter] from decides it"
            for name, value in found
            if name in fields and fields[name] != value
        ]

    @property
    def remark(self) -> str:
        """Remark if the adapter's folder names another base than the run's; empty otherwise."""
        if self.adapter is None or not (named := plain(self.adapter.base_name, 100)):
            return ""
        ours = folder_name(self.folder)
        if Path(named).name.lower() == Path(ours).name.lower():
            return ""
        return f"its folder says that it was trained on {named}, and the run's model is {ours}; an adapter fits its own base"

    def digest(self, piece_bytes: int) -> Hash:
        """Return the digest of the state before the first round: the weights, and zero momentum.  Caches the result."""
        if piece_bytes not in self._leaves:
            with told_as(ExitCode.INPUT, FolderError):
                self._leaves[piece_bytes] = [chunk_hash(piece) for piece in self._pieces(piece_bytes)]
        return tree_root(self._leaves[piece_bytes])

    def base(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the section on the frozen model of a run with an adapter.  fields: the file's section on the model."""
        if self._base is None:
            with told_as(ExitCode.INPUT, FolderError, OSError):
                self._base = [describe_file(path) for path in self._weights.paths]
        named = {"name": folder_name(self.folder), "files": self._base}
        return named | {key: fields[key] for key in BASE_FIELDS if key in fields}

    def keep_base(self, base: BaseSection, files: BlobStore) -> None:
        """Use the folder's files as those of the run on this computer; they stay where they are.

        Raises `PeerError`, also if a file has changed since its hash was taken.
        """
        paths = {path.name: path for path in self._weights.paths}
        for file in base.files:
            with told_as(ExitCode.RESOURCES, StoreFailed), told_as(ExitCode.INPUT, OSError):
                if not files.is_right(file.name, file.size, FILE_CHUNK_BYTES) and not link_file(
                    files, file, paths[file.path]
                ):
                    raise PeerError(f"{paths[file.path]} has changed; start the command again", ExitCode.INPUT)

    def keep(self, signed: SignedManifest, data: Path) -> None:
        """Write the state before the first round as the run's checkpoint, unless the run has a checkpoint already.

        Raises `PeerError`, also if the folder has changed since its digest was taken.
        """
        state, folder = genesis_state(signed.manifest), run_dir(data, signed.run)
        assert state is not None, "a run that begins with a folder names its state"
        checkpoints = Checkpoints(Disk(), make_private(make_private(folder) / "checkpoints"))
        checkpoints.load()
        if checkpoints.sizes():
            return
        source = self.folder if self.adapter is None else self.adapter.folder
        changed = PeerError(f"{source} has changed while it was read; start the command again", ExitCode.INPUT)
        if self.digest(state.piece_bytes) != state.digest:
            raise changed
        leaves = self._leaves[state.piece_bytes]
        with told_as(ExitCode.RESOURCES, StoreFailed), told_as(ExitCode.INPUT, FolderError):
            part = checkpoints.begin(CheckpointName(0, genesis_tip(signed.run)), state.size_bytes)
            at = 0
            for block in self._values():
                raw = block.astype("<f4", copy=False).tobytes()
                part.view[at : at + len(raw)] = raw
                at += len(raw)
            if leaves_of(part.view, state.piece_bytes) != leaves:
                raise changed
            checkpoints.publish(part, leaves)

    def _values(self) -> Iterator[F32]:
        return self._weights.values() if self.adapter is None else self.adapter.values()

    def _pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """Yield the state's bytes, piece after piece."""
        held = bytearray()
        for block in self._values():
            held += np.ascontiguousarray(block, "<f4").tobytes()
            while len(held) >= piece_bytes:
                yield bytes(held[:piece_bytes])
                del held[:piece_bytes]
        config = self._weights.config
        count = config.parameters if self.adapter is None else adapter_parameters(config, self.adapter.adapter)
        momentum = (STATE_BYTES_PER_PARAMETER // 2) * count
        zeros = bytes(piece_bytes)
        while momentum or held:
            added = min(momentum, piece_bytes - len(held))
            momentum -= added
            yield bytes(held) + zeros[:added]
            held.clear()


# ------------------------------------------------------------------------------------------------------------------------


SAMPLE = 64
"""Number of an environment's problems whose prompts are checked before a run begins."""

ASKS_FOR_FORM = re.compile(r"(?i)answer\s*:|boxed|only|nothing else|just the")
"""Pattern of a prompt that asks for an answer in a form that can be judged."""

Tell = Callable[[str, str], None]
"""Function called with the subject and the text of one fact for a person."""


@dataclass(frozen=True)
class Tasks:
    """Files of tasks beside a run file, by their names in its environment.

    said: fields of the manifest that follow from the files: the environment with their digests, and the number of problems
    if the run file does not give it.
    """

    paths: dict[str, Path]
    said: dict[str, Any]


@dataclass(frozen=True)
class _Named:
    """Pieces of data that a run file names, without its corpora.

    facts: fields of the tokenizer's section.  vocab: tokens of the tokenizer, if the model's number follows from it.
    """

    path: Path
    sections: Mapping[str, Any]
    start: FolderStart | None
    tokenizer: Path | None
    facts: Mapping[str, Any]
    vocab: int | None
    tasks: Tasks

    def data(self) -> tuple[Mapping[str, Any], dict[str, OwnDocuments]] | None:
        """Return the data section, and our own documents by name; None if no data is named and the run reads bytes."""
        section, rl = self.sections.get("data", {}), self.sections.get("rl")
        own: dict[str, OwnDocuments] = {}
        if self.tokenizer is not None and reads_builtin(section):
            section = {**section, "from": SOURCE}
            own[SOURCE] = builtin_documents()
        if not names_corpora(section):
            return None
        if isinstance(rl, Mapping):
            form = replace(self.format(section), template=self.facts.get("template", "raw"))
            own[EXAMPLES] = _examples(self.path, rl, self.tasks, form)
        return section, own

    def format(self, section: Mapping[str, Any]) -> TokenFormat:
        """Return the format of the tokens in the run's corpora."""
        return token_format(section, self.tokenizer, self.facts)

    def with_corpora(self, corpora: RunData | None) -> Brought | None:
        """Return all data that the run file names; None if it names none."""
        if self.start is None and self.tokenizer is None and corpora is None and "rl" not in self.sections:
            return None
        return Brought(self, corpora)


class Brought:
    """A `protocol.run.run_file.Start` made from a run file's data.  Raises `PeerError` for data that no run can use."""

    def __init__(self, named: _Named, corpora: RunData | None) -> None:
        """Read the files.  corpora: None if they are not built here."""
        self._folder, self.corpora = named.start, corpora
        tokenizer, tasks = named.tokenizer, named.tasks
        self._paths = {TOKENIZER: tokenizer} if tokenizer is not None else {}
        self._paths |= {TASKS + name: path for name, path in tasks.paths.items()}
        self._data = {name: _content(path) for name, path in self._paths.items()}
        self._adapter_flaws = named.start.flaws(named.sections["adapter"]) if named.start and named.start.adapter else []
        self.sections: dict[str, dict[str, Any]] = {}
        if named.start is not None and "adapter" in named.sections:
            self.sections["base"] = named.start.base(named.sections["model"])
            if named.start.adapter is not None:
                self.sections["adapter"] = named.start.adapter.adapter.model_dump()
        if self.corpora is not None:
            self.sections["data"] = dict(self.corpora.section)
            self._data |= self.corpora.files
        if named.vocab is not None:
            self.sections["model"] = {"vocab": named.vocab}
        if tokenizer is not None:
            self.sections["tokenizer"] = {**named.facts, "file": file_section(self._data[TOKENIZER]).model_dump()}
        if tasks.paths:
            files = [{"path": name, **file_section(self._data[TASKS + name]).model_dump()} for name in sorted(tasks.paths)]
            self.sections["rl"] = {**tasks.said, "files": files}

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """Facts, as in `Start.facts`."""
        return self._folder.facts if self._folder is not None else None

    @property
    def flaws(self) -> Sequence[str]:
        """Mistakes, as in `Start.flaws`."""
        return [*self._adapter_flaws, *(self.corpora.flaws if self.corpora is not None else ())]

    def digest(self, piece_bytes: int) -> Hash:
        """Return the digest as `Start.digest` describes."""
        assert self._folder is not None, "asked only if there are facts"
        return self._folder.digest(piece_bytes)

    def check(self, manifest: RunManifest, tell: Tell = lambda what, about: None) -> None:
        """Check the data by reading it as a trainer will.

        tell: called with facts about corpora and tasks.  Raises `PeerError` with file and line.
        """
        paths = {name: str(path) for name, path in self._paths.items()}
        config = TrainingConfig.from_sections(manifest.trainer_sections() | {"files": paths})
        with told_as(ExitCode.INPUT, ValueError):
            tokenizer = tokenizer_of(config)
            if self.corpora is not None:
                self.corpora.check(manifest, self._paths.get(TOKENIZER))
            if manifest.rl is not None:
                self._check_tasks(manifest.rl, tokenizer, tell)
                _check_environment(config, manifest.rl, tokenizer, tell)
        if TOKENIZER in self._paths and (said := loading_remark(manifest, self._paths[TOKENIZER])):
            tell("tokenizer", f"in exports, {said}")
        if self._folder is not None and self._folder.remark:
            tell("adapter", self._folder.remark)
        for remark in self.corpora.remarks if self.corpora is not None else ():
            tell(*remark)

    def _check_tasks(self, rl: RlSection, tokenizer: TemplatedTokenizer, tell: Tell) -> None:
        """Raise ValueError, with the file's name, for unusable lines or prompts, or if too few tasks are left."""
        rates = SolveRates(rl.min_solve_rate, rl.max_solve_rate)
        left: dict[str, int] = {}
        remarks: list[str] = []
        corpora = {TASKS + name for name in corpora_of(rl.environment)}
        for name in (name for name in self._data if name.startswith(TASKS)):
            try:
                if name in corpora:
                    read_corpus(self._data[name])
                    continue
                tasks = read_tasks(io.BytesIO(self._data[name]))
                stay = rates.left(tasks)
                for task in stay:
                    if flaw := prompt_flaw(task.prompt, tokenizer, rl.row_tokens, rl.max_tokens, rl.length_targets):
                        raise ValueError(
                            f"the prompt of {task.problem_id!r:.80} {flaw}; change the prompt, or leave the task out"
                        )
                count = left[name.removeprefix(TASKS)] = len(stay)
            except ValueError as error:
                raise ValueError(f"{self._paths[name]}: {error}") from error
            about = f"{name.removeprefix(TASKS)}: {told(count, len(tasks), rates)}"
            tell("tasks", about)
            texts = [task.prompt for task in stay if not isinstance(task.verification, CodeTests)]
            if texts and not any(map(ASKS_FOR_FORM.search, texts)):
                tell(
                    "answers",
                    "no prompt says in which form to answer, and a model that writes a sentence then gets 0; add to the "
                    'prompts, for example, "End with Answer: and the number.", and try them with '
                    "`peer tasks rate FILE --model FOLDER`",
                )
            if count < len(tasks):
                remarks.append(about)
        try:
            check_named(rl.environment, rl.problems, left)
        except ValueError as error:
            raise ValueError("; ".join([str(error), *remarks])) from error

    def keep(self, signed: SignedManifest, data: Path) -> None:
        """Store the data in the organiser's data directory.  Raises `PeerError`, also if the folder has changed."""
        files = BlobStore(Disk(), make_private(make_private(run_dir(data, signed.run)) / FILES))
        if self._folder is not None and signed.manifest.genesis is not None:
            self._folder.keep(signed, data)
        if self._folder is not None and signed.manifest.base is not None:
            files.load()
            self._folder.keep_base(signed.manifest.base, files)
        for name, file in signed.manifest.files.items():
            if name in self._data:
                with told_as(ExitCode.RESOURCES, StoreFailed):
                    keep_file(files, file, self._data[name])
        if self.corpora is not None:
            self.corpora.link(run_dir(data, signed.run))


def _check_environment(config: TrainingConfig, rl: RlSection, tokenizer: TemplatedTokenizer, tell: Tell) -> None:
    """Raise ValueError if this computer can tell that the model cannot read the environment's prompts.

    tell: called with the first problem and a right answer.
    """
    with suppress(PackageMissing, SandboxUnavailable):
        environment = environment_of(config)
        first = environment.problem(0)
        prompt, right = (clean(" ".join(text.split()), 200) for text in (first.prompt, environment.expected(first)))
        tell("a task", f"»{prompt}«" + (f", right: {right}" if right else ""))
        for index in range(0, environment.size, max(1, environment.size // SAMPLE)):
            prompt = environment.problem(index).prompt
            if flaw := prompt_flaw(prompt, tokenizer, rl.row_tokens, rl.max_tokens, rl.length_targets):
                raise ValueError(f"the prompt of problem {index} of {rl.environment} {flaw}; change [tokenizer] or [rl]")


def brought_by(path: Path, built: Path, check: Callable[[Brought], object] = lambda sketch: None) -> Brought | None:
    """Return the data of a run file; None if it names neither data nor an environment nor a tokenizer.

    Raises `PeerError` or `RunFileError`.  The tokenizer.json in a model's folder is used if it exists and the run file does
    not name another one.  built: folder below which corpora are built.  check: called before they are built, with stand-ins
    for corpora.
    """
    named = _named_by(path)
    data = named.data()
    if data is None:
        return named.with_corpora(None)
    section, own = data
    if (sketch := named.with_corpora(sketched_data(section, path.parent, named.format(section), own))) is not None:
        check(sketch)
    return named.with_corpora(run_data(section, path.parent, named.format(section), built, own=own))


def sketched(path: Path) -> Brought | None:
    """Return the data of a run file as `brought_by` does, with stand-ins for corpora: nothing is built."""
    named = _named_by(path)
    data = named.data()
    return named.with_corpora(
        sketched_data(data[0], path.parent, named.format(data[0]), data[1]) if data is not None else None
    )


def _named_by(path: Path) -> _Named:
    sections = sections_of(path)
    model, adapter, tokenizer = (_named(path, sections.get(name)) for name in ("model", "adapter", "tokenizer"))
    said = sections.get("tokenizer", {})
    if tokenizer is not None and tokenizer.is_dir():
        check_readable(tokenizer)
        tokenizer = tokenizer / TOKENIZER
    if tokenizer is None and model is not None and "file" not in said and os.path.lexists(model / TOKENIZER):
        tokenizer = model / TOKENIZER
    if tokenizer is None and model is not None and "file" not in said:
        check_readable(model)
    if tokenizer is None and "tokenizer" in sections and isinstance(said, Mapping) and not {"file", "from"} & set(said):
        raise RunFileError(f'{path.name}: [tokenizer] names no file; add from = "tokenizer.json", or remove the section')
    tasks = _tasks(path, sections.get("rl"))
    if adapter is not None and model is None:
        raise RunFileError(
            f"{path.name}: [adapter] from names an adapter, which needs the weights of its base; add [model] from with the "
            "base's folder"
        )
    start = FolderStart(model, adapter) if model is not None else None
    section = sections.get("data", {})
    if tokenizer is None and "tokenizer" not in sections and (found := tokenizer_in(section, path.parent)) is not None:
        tokenizer, said = found[0], {"ends": found[1]}
    facts = tokenizer_facts(tokenizer, said) if tokenizer is not None else {}
    vocab = None
    if tokenizer is not None and model is None and "vocab" not in sections.get("model", {}):
        vocab = TokenFormat(tokenizer=tokenizer, ends=tuple(facts["ends"])).open().vocab
    return _Named(path, sections, start, tokenizer, facts, vocab, tasks)


def _examples(path: Path, rl: Mapping[str, Any], tasks: Tasks, tokens: TokenFormat) -> OwnDocuments:
    """Return the solved examples of a run file's environment."""
    environment = str(tasks.said.get("environment", rl.get("environment")))
    rates = [rl.get(name, RlSection.model_fields[name].default) for name in ("min_solve_rate", "max_solve_rate")]

    def make() -> list[Document]:
        try:
            corpora = corpora_of(environment)
            for name, file in ((name, file) for name, file in tasks.paths.items() if name not in corpora):
                _check_solutions(file, _read_beside(path, name))
            files = {TASKS + name: str(file) for name, file in tasks.paths.items()}
            opened = open_named(environment, files, SolveRates(*rates))
            return solved_examples(opened, tokens.open())
        except (TypeError, ValueError, SandboxUnavailable) as error:
            raise PeerError(f'{path.name}: from = "{EXAMPLES}" in [data]: {error}', ExitCode.INPUT) from error

    return OwnDocuments(repr((environment, rates, tokens.template)), make)


def _check_solutions(path: Path, data: bytes) -> None:
    """Raise ValueError if a task is not a solved example."""
    for task in read_tasks(io.BytesIO(data)):
        if task.solution is None:
            raise ValueError(
                f"{path}: the task {task.problem_id!r:.80} does not have a solution, so it is not an example; add "
                "gold_standard_solution to it, or leave from out"
            )


def tell_of_mismatches(manifest: RunManifest, tell: Tell) -> None:
    """Report a mismatch of the model with the run's rows or tokens that does not make the run impossible."""
    model = manifest.model
    if manifest.tokenizer is None and model.vocab != ByteTokenizer.vocab:
        tell(
            "tokenizer",
            f"none: the run reads bytes, which are {ByteTokenizer.vocab} tokens, and the model has {model.vocab}; name its "
            "tokenizer in [tokenizer] if it was trained with one",
        )
    rows = {"data.sequence_length": manifest.data.sequence_length}
    rows |= {"rl.row_tokens": manifest.rl.row_tokens} if manifest.rl is not None else {}
    for name, tokens in rows.items():
        if 0 < model.context < tokens:
            tell(
                "context",
                f"{name} is {tokens}, and the model was made for {model.context} (max_position_embeddings): it learns "
                f"on positions that it has not seen, and exports still say {model.context}",
            )


def _tasks(path: Path, section: Any) -> Tasks:
    """Return the task files that the run file's environment names; none for an invalid one, which a later check reports."""
    beside = Tasks({}, {})
    if not isinstance(section, Mapping):
        return beside
    try:
        environment = with_digests(section["environment"], lambda name: digest_of(_read_beside(path, name)))
        files = files_of(environment)
    except (KeyError, TypeError, ValueError):
        return beside
    beside.said["environment"] = environment
    left: dict[str, int] = {}
    for name, digest in files:
        beside.paths[name] = path.parent / name
        data = _read_beside(path, name, digest)
        with suppress(KeyError, TypeError, ValueError):  # reported with the line when the tasks are checked
            low, high = (
                section.get(name, RlSection.model_fields[name].default) for name in ("min_solve_rate", "max_solve_rate")
            )
            left[name] = len(SolveRates(low, high).left(read_tasks(io.BytesIO(data))))
    problems = problems_of(environment, left) if files else None
    if problems is not None and "problems" not in section:
        beside.said["problems"] = problems
    return beside


def _read_beside(path: Path, name: str, digest: str | None = None) -> bytes:
    if is_pointer_file(path.parent / name):
        raise RunFileError(f"{path.name}: [rl] environment: {name} {POINTER_FLAW}")
    try:
        return read_file(str(path.parent / name), digest)
    except ValueError as error:
        raise RunFileError(f"{path.name}: [rl] environment: {error}") from error


def _named(path: Path, section: Any) -> Path | None:
    """Return the path after `from` in a section, relative to the run file."""
    named = section.get("from") if isinstance(section, Mapping) else None
    return path.parent / Path(os.path.expanduser(named)) if isinstance(named, str) and named else None


def _content(path: Path) -> bytes:
    try:
        data = read_outside(path, MAX_FILE_BYTES)
    except OSError as error:
        raise PeerError(f"{path}: {error.strerror}; give the path of a file", ExitCode.INPUT) from error
    if is_pointer(data):
        raise PeerError(f"{path} {POINTER_FLAW}", ExitCode.INPUT)
    if not data:
        raise PeerError(f"{path} is empty; give a file with data", ExitCode.INPUT)
    return data
