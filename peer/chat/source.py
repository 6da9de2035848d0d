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
from peer.joining.run_source import chosen_run
from peer.paths import make_private
from peer.weights.folders import ExportedState, export
from protocol.formatting import clean, many
from protocol.run.manifest import SignedManifest
from trainer.weights.folder import WeightsFolder
from trainer.weights.safetensors_file import FolderError


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
        """The same as JSON values."""
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
        """Give the model as it is now; a run's newest state is written to a folder that does not stay.

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
                done = export(self._signed, self._data, folder, "fp32", None, self._on_progress)
                yield OpenedModel(WeightsFolder(folder), form_of_run(manifest, folder), "", done.state)
        except FolderError as error:
            raise PeerError(str(error), ExitCode.INPUT) from error
