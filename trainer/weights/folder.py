"""Reader of a Hugging Face folder from which a run begins: its shape, and its weights as the flat fp32 vector."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.outside_files import read_outside
from protocol.formats.model import ModelConfig, ParameterPlace, parameter_layout
from trainer.git_lfs import POINTER_FLAW, is_pointer
from trainer.models.llama.huggingface import Ends, UnknownModel, config_json, ends_in, facts_of, generation_json
from trainer.weights.safetensors_file import (
    F32,
    MAX_HEADER_BYTES,
    WIDTHS,
    ExportFormat,
    FolderError,
    StoredTensor,
    ValueStream,
    finite_values,
    tensors_in,
    write_tensors,
)

# ------------------------------------------------------------------------------------------------------------------------
# Writer of a Hugging Face folder with a run's parameters, which come as a stream of the flat vector.
#
# The tensors fill the files in the order of the flat vector, so the vector itself is written, and cut at the end of each
# file. One block is in memory at a time. The caller makes the folder and gives it its final name.


SHARD_BYTES = 5_000_000_000
"""Maximum bytes of tensors in one file, unless a single tensor is larger."""


def write_folder(
    folder: Path,
    config: ModelConfig,
    values: Iterable[F32],
    form: ExportFormat,
    *,
    context: int,
    eos: Ends,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write config.json, generation_config.json and the weights into an empty folder, and sync every file to disk.

    values: the flat vector in order, in blocks of any size. context: number of tokens that the model was trained to read,
    used if `config` has no context. eos: end tokens of a text. generation: contents of the model's own
    generation_config.json.
    """
    write_json(folder / "config.json", config_json(config, form.torch_name, context=context, eos=eos))
    write_json(folder / "generation_config.json", generation_json(eos, generation))
    shards = _shards(parameter_layout(config), form, SHARD_BYTES)
    names = [SINGLE]
    if len(shards) > 1:
        names = [f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    stream = ValueStream(values)
    for name, places in zip(names, shards, strict=True):
        write_tensors(folder / name, places, form, stream)
    stream.check_end()
    if len(shards) > 1:
        index = {place.name: name for name, places in zip(names, shards, strict=True) for place in places}
        size = config.parameters * form.width
        described = {"total_parameters": config.parameters, "total_size": size}
        write_json(folder / "model.safetensors.index.json", {"metadata": described, "weight_map": index})


def _shards(layout: Sequence[ParameterPlace], form: ExportFormat, most: int) -> list[list[ParameterPlace]]:
    """Return the tensors of each file."""
    shards: list[list[ParameterPlace]] = [[]]
    size = 0
    for place in layout:
        added = place.count * form.width
        if shards[-1] and size + added > most:
            shards.append([])
            size = 0
        shards[-1].append(place)
        size += added
    return shards


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object in the form of these folders, and sync it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())


# ------------------------------------------------------------------------------------------------------------------------


MAX_JSON_BYTES = 2 << 20
"""Largest JSON file that is read. The index of the largest models that we train has a few hundred kilobytes; parsing needs
up to 30 bytes of memory for each byte."""
FROZEN = "the run's frozen model"
BEYOND_BF16 = 2.0**128 - 2.0**119
"""Least magnitude of a number that bf16 rounds to infinity."""
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
BUFFERS = ("rotary_emb.inv_freq",)
"""Suffixes of tensors that old files hold besides parameters; config.json determines their values."""


class WeightsFolder:
    """Folder written by transformers or by `peer export`.

    facts: the model section of a run that begins with the folder. generation: the contents of generation_config.json, empty
    if it is missing. ends: the tokens that end a text, first from generation_config.json, then from config.json. Raises
    `FolderError` for a model that no run supports, and unless the tensors have the sizes given in config.json, so that no
    larger memory is allocated.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path] | None = None) -> None:
        """Read what the folder describes. files: paths of its files by name, if they lie elsewhere."""
        self.folder, self._files = folder, files
        self._called = str(folder) if files is None else FROZEN
        self._again = "copy the folder again" if files is None else "ask the organiser"
        described = json_in(self._at("config.json"), "give a folder in which transformers has saved a model")
        self.facts: dict[str, Any] = _facts(described, self._shown("config.json"))
        self.config = ModelConfig.from_mapping(self.facts)
        generation = self._at("generation_config.json")
        self.generation = json_in(generation, "copy it again, or remove it") if os.path.lexists(generation) else {}
        self.ends = tuple(dict.fromkeys([*ends_in(self.generation), *ends_in(described)]))
        self._stored = self._tensors()

    @property
    def paths(self) -> list[Path]:
        """Paths of the files that define the model: config.json, and the weights with their index."""
        indexed = [] if os.path.lexists(self._at(SINGLE)) else [self._at(INDEX)]
        return [self._at("config.json"), *indexed, *sorted({tensor.path for tensor in self._stored.values()})]

    def _at(self, name: str) -> Path:
        """Return the path of a file of the folder."""
        return self.folder / name if self._files is None else self._files.get(name, Path(os.devnull) / name)

    def _shown(self, name: str) -> str:
        """Return a file of the folder as messages call it."""
        return f"{self.folder / name}" if self._files is None else f"{name} of {FROZEN} ({self._at(name)})"

    def values(self) -> Iterator[F32]:
        """Yield the flat vector in order, in blocks. Raises `FolderError` between two blocks."""
        for place in parameter_layout(self.config):
            yield from self.blocks(place.name)

    def tensors(self) -> Iterator[F32]:
        """Yield the flat vector in order, one flat tensor at a time. Raises `FolderError` between two tensors."""
        for place in parameter_layout(self.config):
            yield np.concatenate(list(self.blocks(place.name)))

    def tensor(self, place: ParameterPlace) -> F32:
        """Return a tensor as it was published, in its shape and in fp32.

        Raises `FolderError`, also for values that are too large for bf16.
        """
        values = np.concatenate([*WeightsFolder.blocks(self, place.name)])
        if max(values.max(), -values.min()) >= BEYOND_BF16:
            path = self._stored[place.name].path
            raise FolderError(f"{path}: {place.name} contains values that are too large for bf16; use another model")
        return values.reshape(place.shape)

    def blocks(self, name: str) -> Iterator[F32]:
        """Yield the tensor of this name as `parameter_layout` names it, in flat blocks. Raises `FolderError` between two."""
        return finite_values(name, self._stored[name], "use another model")

    def _tensors(self) -> Mapping[str, StoredTensor]:
        """Return the model's tensors, each checked against the shape in config.json."""
        found = self._found()
        layout = parameter_layout(self.config)
        if self.config.tied and (head := found.pop("lm_head.weight", None)) is not None:
            check_repeated(self._called, found.get("model.embed_tokens.weight"), head)
        for place in layout:
            if place.name not in found:
                because = ", as tie_word_embeddings is false" if place.name == "lm_head.weight" else ""
                raise FolderError(
                    f"{self._called} has no tensor {place.name}, which its config.json requires{because}; {self._again}"
                )
            if found[place.name].shape != place.shape:
                remedy = "copy both files from one place" if self._files is None else self._again
                raise FolderError(
                    f"{self._called}: {place.name} has the shape {list(found[place.name].shape)}, but config.json gives "
                    f"{list(place.shape)}; {remedy}"
                )
        strange = sorted(
            name for name in set(found).difference(place.name for place in layout) if not name.endswith(BUFFERS)
        )
        if strange:
            raise FolderError(
                f"{self._called} has a tensor {strange[0][:80]}, which a run's model does not have; use a model of the "
                "Llama, Qwen2 or Qwen3 family for text generation, without adapters"
            )
        return found

    def _found(self) -> dict[str, StoredTensor]:
        """Return all tensors of the folder's single file, or of its shards, which must match the index."""
        single = self._at(SINGLE)
        try:
            if os.path.lexists(single):
                return tensors_in(single)
            names = self._index()
            missing = [name for name in sorted(set(names.values())) if not os.path.lexists(self._at(name))]
            if missing:
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise FolderError(
                    f"{self._called} has no file {missing[0][:80]}{more}, although its index names it; {self._again}"
                )
            files = {name: self._indexed(name, names) for name in sorted(set(names.values()))}
        except OSError as error:
            raise FolderError(f"{error.filename}: {error.strerror}; {self._again}") from error
        for tensor, name in names.items():
            if tensor not in files[name]:
                raise FolderError(
                    f"{self._shown(name)} has no tensor {tensor[:80]}, which the index lists; copy the file again"
                )
        return {tensor: files[name][tensor] for tensor, name in names.items()}

    def _indexed(self, name: str, names: Mapping[str, str]) -> dict[str, StoredTensor]:
        """Return the tensors of a file; the index must list all of them, so that no memory holds others of many files."""
        tensors = tensors_in(self._at(name))
        if strange := sorted(tensor for tensor in tensors if names.get(tensor) != name):
            raise FolderError(
                f"{self._shown(name)} has a tensor {strange[0][:80]}, which the index does not list; {self._again}"
            )
        return tensors

    def _index(self) -> dict[str, str]:
        """Return the file name of each tensor in the index. Raises `FolderError`, also if the folder has no index."""
        if not os.path.lexists(self._at(INDEX)) and self._files is None:
            for pattern, flaw in _OTHER_WEIGHTS:
                if found := sorted(self.folder.glob(pattern)):
                    raise FolderError(f"{self.folder} {flaw.format(found[0].name[:80])}")
        return _files_of_tensors(self._at(INDEX), self._shown(INDEX))


def _facts(described: dict[str, Any], shown: str) -> dict[str, Any]:
    """Return the model section that a config.json describes.  shown: name of the file.  Raises `FolderError`."""
    try:
        facts = facts_of(described)
        ModelConfig.from_mapping(facts)
    except UnknownModel as error:
        raise FolderError(f"{shown}: {error}") from error
    except ValueError as error:
        flaw = str(error).removeprefix(f"{ModelConfig.__name__}: ")
        raise FolderError(f"{shown}: {flaw}; use another model, or copy it again") from error
    return facts


def _files_of_tensors(path: Path, shown: str) -> dict[str, str]:
    """Return the file name of each tensor in an index.  shown: name of the index.  Raises `FolderError`."""
    names = json_in(path, "save the model as safetensors (save_pretrained does)").get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name for name in names.values()
    ):
        raise FolderError(f"{shown} does not say which file holds which tensor; copy it again")
    return names


def check_description(model: ModelConfig, sizes: Mapping[str, int], files: Mapping[str, Path]) -> None:
    """Check the small files of a run's frozen model before its weights are fetched.

    sizes: bytes of all its files, by name.  files: paths of the small ones, which are here.  Raises `FolderError` if no
    trainer of a run with this model could read the weights.
    """
    if "config.json" not in files:
        raise FolderError(f"config.json of {FROZEN} is too large; ask the organiser")
    facts = _facts(json_in(files["config.json"], "ask the organiser"), f"config.json of {FROZEN}")
    if ModelConfig.from_mapping(facts).model_copy(update={"context": model.context}) != model:
        raise FolderError(f"config.json of {FROZEN} describes another model than the run; ask the organiser")
    held = {SINGLE: ""} if SINGLE in sizes else {}
    if not held:
        if INDEX not in files:
            raise FolderError(f"{FROZEN} has neither {SINGLE} nor a small {INDEX}; ask the organiser")
        names = _files_of_tensors(files[INDEX], f"{INDEX} of {FROZEN}")
        lacking = [place.name for place in parameter_layout(model) if place.name not in names]
        if lacking:
            raise FolderError(f"{INDEX} of {FROZEN} does not list {lacking[0]}; ask the organiser")
        held = dict.fromkeys(names.values(), "")
        if missing := sorted(held.keys() - sizes.keys()):
            raise FolderError(f"{FROZEN} lacks the file {missing[0][:80]}, which its index names; ask the organiser")
    if needless := sorted(sizes.keys() - held.keys() - {"config.json", INDEX}):
        raise FolderError(f"{FROZEN} has a file {needless[0][:80]}, which no trainer reads; ask the organiser")
    size, least = sum(sizes[name] for name in held), min(WIDTHS.values()) * model.parameters
    most = max(WIDTHS.values()) * (model.parameters + model.vocab * model.dim) + len(held) * MAX_HEADER_BYTES
    if not least <= size <= most:
        raise FolderError(f"the weights of {FROZEN} have {size} bytes, not between {least} and {most}; ask the organiser")


def check_repeated(source: Path | str, embedding: StoredTensor | None, head: StoredTensor) -> None:
    """Raise `FolderError` unless the output layer that some tools write for a tied model equals the model's embedding."""
    if embedding is None or (embedding.shape, embedding.form) != (head.shape, head.form):
        same = False
    else:
        pairs = zip(embedding.values(), head.values(), strict=True)
        same = all(np.array_equal(one, other, equal_nan=True) for one, other in pairs)
    if not same:
        raise FolderError(
            f"{source} has a tensor lm_head.weight that is not the embedding, although the model is tied; set "
            "tie_word_embeddings to false in config.json if the model was trained untied, or remove the tensor"
        )


_OTHER_WEIGHTS = (
    ("adapter_model.*", "has {0}, an adapter without its model; merge both first (PEFT: merge_and_unload)"),
    ("model-*-of-*.safetensors", f"has {{0}} and no {INDEX}; copy the whole folder"),
    ("*.safetensors", f"has {{0}} and no {SINGLE}; rename the file if it holds the whole model"),
    ("*.bin", "has its weights in {0}; save the model as safetensors (save_pretrained does)"),
    ("*.pth", "has its weights in {0}; save the model as safetensors (save_pretrained does)"),
    ("*.gguf", "has its weights in {0}; use the safetensors version of the model"),
)


def json_in(path: Path, remedy: str, parse: Callable[[bytes], Any] = json.loads) -> dict[str, Any]:
    """Return the JSON object in a file.  remedy: phrase that ends the error's sentence.  Raises `FolderError`.

    parse: reader of the file's text; raises ValueError or RecursionError.
    """
    try:
        raw = read_outside(path, MAX_JSON_BYTES)
    except OSError as error:
        raise FolderError(f"{path}: {error.strerror}; {remedy}") from error
    if is_pointer(raw):
        raise FolderError(f"{path} {POINTER_FLAW}")
    try:
        value = parse(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise FolderError(f"{path} is not readable as JSON; {remedy}")
    return value
