"""Model that answers: opened from a folder, checked against the free memory, and asked for one token after the other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from kernels.outside_files import read_outside
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import chosen_run
from peer.paths import make_private, runtime_dir
from peer.resources.computer import available_memory, free_gpu_memory, usable_cores
from peer.resources.core_share import CoreShare, chosen_threads, share_of
from peer.weights.folders import ExportedState, export
from peer.weights.tokenizer_files import converses, folder_tokenizer, tokenizer_file
from protocol.formatting import clean, many, size
from protocol.run.manifest import RunManifest, SignedManifest
from trainer.data.templates import TemplatedTokenizer, chat_template
from trainer.data.tokens import ByteTokenizer, Tokenizer
from trainer.device import default_dtype, is_gpu, pick_device
from trainer.generate.engine import Engine
from trainer.generate.generator import MOST_END_TOKENS, Completion, Request, Slots
from trainer.memory import generator_memory
from trainer.weights.folder import WeightsFolder, json_in
from trainer.weights.safetensors_file import FolderError

# ------------------------------------------------------------------------------------------------------------------------
# Form of the conversations that a model can read.
#
# A model has learned to converse if its tokenizer has the marks of a template and its folder has no other template, or if
# its run learns from conversations.  Any other model completes texts.


TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja")
MAX_TEMPLATE_BYTES = 1 << 20


@dataclass(frozen=True)
class ChatForm:
    """Form in which a model reads a text.  converses: False if it completes texts.  remark: a sentence, or empty."""

    tokenizer: TemplatedTokenizer
    converses: bool
    remark: str = ""


def form_of_run(manifest: RunManifest, folder: Path) -> ChatForm:
    """Return the form of the conversations of a run.  folder: an export of its model.  Raises `PeerError`."""
    said = manifest.tokenizer
    if said is None:
        template = "plain" if manifest.data.format == "chat" else "raw"
        return ChatForm(TemplatedTokenizer(_bytes(manifest.model.vocab), template), template == "plain")
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise PeerError("the run's tokenizer is not on this computer; fetch it with `peer join`", ExitCode.INPUT)
    tokenizer = TemplatedTokenizer(tokenizer_file(path, said.ends, manifest.model.vocab), said.template)
    return ChatForm(tokenizer, converses(manifest))


def form_of_folder(weights: WeightsFolder) -> ChatForm:
    """Return the form of the conversations of a folder's model.  Raises `PeerError`."""
    found = folder_tokenizer(weights.folder, weights.config.vocab)
    if found is None:
        return ChatForm(TemplatedTokenizer(_bytes(weights.config.vocab), "raw"), False)
    file, template, asked = found.file, found.template, _own_template(weights.folder)
    names = {number: name for name, number in found.special.items()}
    if any(end in names and asked == chat_template("plain", names[end]) for end in file.ends):
        return ChatForm(TemplatedTokenizer(file, "plain"), True)  # `peer export` wrote it
    mark = {"chatml": "<|im_start|>", "llama3": "<|start_header_id|>"}.get(template, "")
    if asked and (not mark or mark not in asked):
        remark = "the model's chat template is neither ChatML nor Llama 3's, so the model completes texts"
        return ChatForm(TemplatedTokenizer(file, "raw"), False, remark)
    return ChatForm(TemplatedTokenizer(file, template if mark else "raw"), bool(mark))


def _own_template(folder: Path) -> str:
    """Return the text of the folder's chat template, which is never executed; empty if it has none."""
    config, own = (folder / name for name in TEMPLATE_FILES)
    found = ""
    with suppress(FolderError):
        found = str(json_in(config, "copy it again").get("chat_template") or "")
    try:
        return found + read_outside(own, MAX_TEMPLATE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return found
    except OSError as error:
        raise PeerError(f"{own}: {error.strerror}; put the file into the folder, or remove it", ExitCode.INPUT) from error


def _bytes(vocab: int) -> Tokenizer:
    if vocab != ByteTokenizer.vocab:
        raise PeerError(
            f"the model has {vocab} tokens and no tokenizer.json; copy this file from the original model",
            ExitCode.INPUT,
        )
    return ByteTokenizer()


# ------------------------------------------------------------------------------------------------------------------------
# Source of a model to talk with: a folder, or the newest state of a run on this computer.


@dataclass(frozen=True)
class OpenedModel:
    """Model on disk.  folder: the named folder; empty for a run.  state: state of a run; None if the folder names none."""

    weights: WeightsFolder
    form: ChatForm
    folder: str
    state: ExportedState | None

    @property
    def sentence(self) -> str:
        """Clause that names the model and the state that it speaks from."""
        parts = [f"model {clean(self.folder, 500)}"] if self.folder else []
        if self.state is not None:
            which = "the final state of the run" if self.state.is_final else "the state"
            parts += [
                f"run {clean(self.state.name)} ({clean(self.state.run, 8)})",
                f"{which} after {many(self.state.rounds, 'round')}",
            ]
        return ", ".join(parts)

    @property
    def described(self) -> dict[str, Any]:
        """Folder, run and rounds of the model as JSON values."""
        state = self.state
        return {
            "folder": self.folder or None,
            "run": state.run if state else None,
            "rounds": state.rounds if state else None,
        }


class ChatSource:
    """Source that a word names: a folder, or a run ID or its beginning; the running run, or the latest, without a word."""

    def __init__(self, word: str | None, data: Path, on_progress: Callable[[float], None] = lambda share: None) -> None:
        self._folder = Path(word).absolute() if word is not None and Path(word).is_dir() else None
        self._signed: SignedManifest | None = chosen_run(word, data, or_folder=True) if self._folder is None else None
        self._data, self._on_progress = data, on_progress

    @contextmanager
    def opened(self) -> Iterator[OpenedModel]:
        """Yield the present model; a run's newest state is exported to a temporary folder.

        Raises `PeerError`.
        """
        try:
            if self._signed is None:
                assert self._folder is not None
                weights = WeightsFolder(self._folder)
                state = ExportedState.of_folder(self._folder)
                yield OpenedModel(weights, form_of_folder(weights), str(self._folder), state)
                return
            with TemporaryDirectory(prefix=".chat-", dir=make_private(self._data)) as place:
                folder, manifest = Path(place) / "model", self._signed.manifest
                done = export(self._signed, self._data, folder, "fp32", None, self._on_progress, merged=True)
                yield OpenedModel(WeightsFolder(folder), form_of_run(manifest, folder), "", done.state)
        except FolderError as error:
            raise PeerError(str(error), ExitCode.INPUT) from error


# ------------------------------------------------------------------------------------------------------------------------
# Cores for an answer: a share beside the peers that train on this computer, held only while a model answers.


PARAMETERS_PER_THREAD = 1 << 23
"""Number of parameters for each thread of an answer; a small model is fastest with one thread."""


class AnswerCores:
    """Share of the cores for answers."""

    def __init__(self) -> None:
        self._share = CoreShare(runtime_dir() / "cores", usable_cores())

    @property
    def others(self) -> int:
        """Number of peers of this user that train on this computer now."""
        try:
            return self._share.take()[1] - 1
        except OSError:
            return 0
        finally:
            self._share.give_back()

    @contextmanager
    def held(self, parameters: int) -> Iterator[None]:
        """Hold a share, and compute with as many threads, or fewer for a model of few parameters."""
        try:
            place, peers = self._share.take()
            useful = 1 + parameters // PARAMETERS_PER_THREAD
            torch.set_num_threads(chosen_threads(0) or min(useful, share_of(self._share.cores, place, peers)))
            yield
        finally:
            self._share.give_back()


# ------------------------------------------------------------------------------------------------------------------------


MOST_CONTEXT, LEAST_CONTEXT, USUAL_CONTEXT = 4096, 4, 2048
"""Tokens in a conversation: largest and least number, and the number for a model that does not state its own."""


class ChatModel:
    """Model in memory that answers one prompt at a time.  Raises `PeerError` if the folder or memory is not sufficient."""

    def __init__(self, weights: WeightsFolder, device: str, cores: AnswerCores, dtype: torch.dtype | None = None) -> None:
        """Load the weights of a folder.  device: a name that torch knows, or "auto".  dtype: None for the device's own."""
        self.config = weights.config
        self.length = min(self.config.context or USUAL_CONTEXT, MOST_CONTEXT)
        self._cores = cores
        if self.length < LEAST_CONTEXT:
            raise PeerError(
                f"the model reads {self.length} tokens at a time, too few for an answer; use a model with a longer context",
                ExitCode.INPUT,
            )
        place = self._place(device)
        self.device = place.type
        dtype = dtype or default_dtype(place)
        self._engine = Engine(self.config, place, Slots(1, self.length), dtype=dtype)
        self._last_id = 0
        self.load(weights)

    def load(self, weights: WeightsFolder) -> None:
        """Answer with the weights of another folder from now on.  Raises `PeerError`, also for another model."""
        if weights.config != self.config:
            raise PeerError("the model has another shape now; start `peer chat` again", ExitCode.INPUT)
        try:
            self._engine.fill(torch.from_numpy(block) for block in weights.values())
        except FolderError as error:
            raise PeerError(str(error), ExitCode.INPUT) from error

    def answer(
        self, prompt: list[int], most: int, temperature: float, ends: tuple[int, ...]
    ) -> Generator[tuple[int, ...], None, None]:
        """Yield the tokens of an answer as they are chosen, and none after each block of a long prompt.

        Closing the iterator ends the answer.

        most: number of tokens of the answer.  temperature: 0 takes the most probable token.
        """
        self._last_id += 1
        key = secrets.randbits(63)
        self._engine.temperature = temperature
        self._engine.submit(Request(self._last_id, tuple(prompt), key, most, ends[:MOST_END_TOKENS]))
        given, done = 0, list[Completion]()
        with self._cores.held(self.config.parameters):
            try:
                while not done:
                    done = self._engine.advance()
                    output = done[0].output if done else self._engine.output_of(self._last_id)
                    yield output[given:]
                    given = len(output)
            finally:
                self._engine.stop(self._last_id)

    def _place(self, name: str) -> torch.device:
        """Return the device to compute on; a GPU on which a peer may train is used only if it is named."""
        if name == "auto" and self._cores.others:
            name = "cpu"
        try:
            place = pick_device(name)
            torch.empty(1, device=place)
        except RuntimeError as error:  # an unknown device
            reason = str(error).strip().splitlines()[0][:200]
            raise PeerError(
                f"the device {name!r} cannot be used: {reason}; name another --device", ExitCode.USAGE
            ) from error
        need = generator_memory(self.config, self.length, place.type)
        self._check(need.host, available_memory(), "memory")
        if is_gpu(place) and (free := free_gpu_memory()) is not None:
            self._check(need.device, free, "the GPU's memory")
        return place

    def _check(self, need: int, free: int, what: str) -> None:
        if need > free:
            beside = ", or let the peer that trains here rest (`peer pause`)" if self._cores.others else ""
            raise PeerError(
                f"to answer, the model needs about {size(need)} of {what}, and {size(free)} are free here; close other "
                f"programs{beside}",
                ExitCode.RESOURCES,
            )
