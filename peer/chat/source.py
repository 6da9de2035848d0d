"""Source of a model to talk with: a folder, or the newest state of a run on this computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from peer.chat.model import ChatForm, form_of_folder, form_of_run
from peer.errors import ExitCode, PeerError
from peer.formatting import clean, many
from peer.joining.run_source import chosen_run
from peer.paths import make_private
from peer.weights.folders import export
from protocol.run.manifest import SignedManifest
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import FolderError


@dataclass(frozen=True)
class OpenedModel:
    """Model on disk.  name: of the run, or the folder's path.  rounds: rounds learned from; None for a folder.

    run: the run's ID; empty for a folder.
    """

    weights: WeightsFolder
    form: ChatForm
    name: str
    rounds: int | None = None
    run: str = ""
    is_final: bool = False

    @property
    def sentence(self) -> str:
        """Sentence that names the model and the state that it speaks from."""
        if self.rounds is None:
            return f"model {clean(self.name, 500)}"
        state = "the final state of the run" if self.is_final else f"the state after {many(self.rounds, 'round')}"
        return f"run {clean(self.name)} ({self.run[:8]}), {state}"

    @property
    def described(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {"model": self.run or self.name, "rounds": self.rounds}


class ChatSource:
    """Source that a word names: a folder, or a run ID or its beginning; the running run, or the latest, without a word."""

    def __init__(self, word: str | None, data: Path, on_progress: Callable[[float], None] = lambda share: None) -> None:
        self._folder = Path(word).absolute() if word is not None and Path(word).is_dir() else None
        self._signed: SignedManifest | None = chosen_run(word, data) if self._folder is None else None
        self._data, self._on_progress = data, on_progress

    @contextmanager
    def opened(self) -> Iterator[OpenedModel]:
        """Give the model as it is now; a run's newest state is written to a folder that does not stay.

        Raises `PeerError`.
        """
        try:
            if self._signed is None:
                assert self._folder is not None
                weights = WeightsFolder(self._folder)
                yield OpenedModel(weights, form_of_folder(weights), str(self._folder))
                return
            with TemporaryDirectory(prefix=".chat-", dir=make_private(self._data)) as place:
                folder, manifest = Path(place) / "model", self._signed.manifest
                done = export(self._signed, self._data, folder, "fp32", None, self._on_progress)
                form, run = form_of_run(manifest, folder), self._signed.run.hex()
                yield OpenedModel(WeightsFolder(folder), form, manifest.name, done.rounds, run, done.is_final)
        except FolderError as error:
            raise PeerError(str(error), ExitCode.INPUT) from error
