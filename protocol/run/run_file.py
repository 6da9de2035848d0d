"""Run files: TOML that an organiser writes, and a manifest written back as such a file.

A field that a file leaves out has its default, or follows from other fields (`derived`).  All mistakes are reported at once,
each in one sentence that names the field, the problem and the remedy.  The ranges themselves are
`protocol.run.manifest`'s.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeGuard, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.formats.adapter import AdapterConfig, adapter_parameters
from protocol.formats.model import ModelConfig, ffn_width, head_count, kv_head_count
from protocol.formats.section import Misfit, rule_of, shortened
from protocol.run.manifest import (
    FOUNDERS_FORMS,
    OUTER_FORMS,
    STATE_BYTES_PER_PARAMETER,
    Admission,
    RunManifest,
    checkpoint_chunk_size,
    chunk_size,
)
from protocol.run.sections import BUILTIN, DataSection, LocalSection, RlSection, builtin_source, reads_builtin
from protocol.run.toml_text import MAX_SAID, check_dots, decode_toml, parse_toml
from protocol.wire.hashes import Hash
from protocol.wire.identity import PeerId

# ------------------------------------------------------------------------------------------------------------------------
# Fields that a run file may leave out because they follow from others.
#
# Works on a run file's fields before they become a manifest: the manifest, which is signed and hashed, holds every number,
# so two versions of this software never read one run differently, however they fill in a run file.


DERIVED = {
    "founders": "the organiser",
    "admission": 'founders: invite, or open if they are "anyone"',
    "model.heads": "dim",
    "model.kv_heads": "heads",
    "model.ffn": "dim",
    "model.vocab": "the tokenizer, or 256 for bytes",
    "data.corpora": "[data] from, or the text that comes with the program",
    "data.sources": "[data] from, or the text that comes with the program",
    "chunk_parameters": "the model's size",
    "checkpoint_chunk_bytes": "the model's size",
    "inner.lr": "what is trained",
    "inner.warmup_steps": "the run's length",
    "rl.warmup_steps": "the run's length",
    "rl.row_tokens": "the positions of a folder's model",
    "rl.max_tokens": "rl.row_tokens",
    "rounds.inner_steps": "the run's length, if it follows from the data",
    "total_tokens": "the model's size, or the data",
    "total_rounds": "what is trained",
}
"""Fields that follow from others, each with its source."""

AUTO_CODEC = "int4"
"""Codec of a run file with `codec = "auto"`, or without one; its loss is that of fp32 (`python -m benchmarks.ladder`)."""
TOKENS_A_PARAMETER = 20
"""Tokens that a model reads from scratch (Hoffmann et al. 2022, "Training compute-optimal large language models")."""
FEWEST_ROUNDS = 200
"""Rounds of one member that a run from scratch has at least: small models learn for longer than their size demands."""
TUNING_ROUNDS = 100
"""Rounds of a run that begins with weights."""
EPOCHS = 3
"""Times that a run on chats or preferences, or a run that begins with weights and has a short text, reads its data."""
FEWEST_TUNING_ROUNDS = 10
"""Fewest rounds for one member in a run that reads its data `EPOCHS` times, if the data have as many steps.  With several
members, each round reads more data, so the run has fewer rounds."""
WARM_UP = 20
"""Ratio of a member's steps in a run to its warm-up steps, if the warm-up follows from the run's length."""
ROLLOUT_ROUNDS = 200
"""Rounds that learn from rollouts."""
FACTORS_RATE = 1e-4
"""Peak learning rate of an adapter: ten times `TUNING_RATE`, at which a whole model is tuned."""
FACTORS_STEPS = 20
"""Inner steps of a round of a run with an adapter."""
TUNING_RATE = 1e-5
"""Peak learning rate of a run that begins with weights: the rate of a run from scratch would destroy their knowledge."""


def derived(fields: Mapping[str, Any], *, tunes: bool = False) -> dict[str, Any]:
    """Return `fields` completed with derived ones; a field that depends on a senseless one stays missing.

    tunes: the run begins with weights that were trained before.
    """
    filled = dict(fields)
    inner = filled.get("inner", {})
    has_factors = "adapter" in filled
    if tunes and isinstance(inner, dict):
        filled["inner"] = ({"lr": FACTORS_RATE, "weight_decay": 0.0} if has_factors else {"lr": TUNING_RATE}) | inner
    if has_factors and isinstance(rounds := filled.get("rounds", {}), dict):
        filled["rounds"] = {"inner_steps": FACTORS_STEPS, **rounds}
    if filled.get("codec", "auto") == "auto":
        filled["codec"] = AUTO_CODEC
    if "organiser" in filled:
        filled.setdefault("founders", [filled["organiser"]])
    if filled.get("founders", "anyone") != "anyone":  # where keys are free, founders would have to vote alone for long
        filled.setdefault("admission", Admission.INVITE.value)
    data = filled.setdefault("data", {})
    if "tokenizer" not in filled and reads_builtin(data):
        length = data.get("sequence_length", DataSection.model_fields["sequence_length"].default)
        if _is_size(length, 1 << 17):
            builtin = {"corpora": [BUILTIN.model_dump()], "sources": [builtin_source(length).model_dump()]}
            filled["data"] = {**data, **builtin}
    section = filled.get("model", {})
    if not isinstance(section, dict):
        return filled
    filled["model"] = model = _with_widths(section)
    try:
        parameters = _trained(ModelConfig.model_validate(model), filled.get("adapter"))
    except ValidationError:
        return filled
    fragments = filled.get("fragments", 1)
    exchanged = parameters // fragments if isinstance(fragments, int) and fragments > 0 else parameters
    filled.setdefault("chunk_parameters", chunk_size(exchanged))
    filled |= _with_lengths(filled, model.get("context", 0))
    filled.setdefault("checkpoint_chunk_bytes", checkpoint_chunk_size(STATE_BYTES_PER_PARAMETER * parameters))
    if "total_tokens" not in filled and "total_rounds" not in filled:
        filled |= _by_epochs(filled, tunes=tunes) or _within_epochs(filled, _total(filled, parameters, tunes=tunes))
    return _with_warm_ups(filled)


def _trained(model: ModelConfig, adapter: Any) -> int:
    """Return the number of values that are trained and exchanged.  Raises `ValidationError` for a senseless adapter."""
    return model.parameters if adapter is None else adapter_parameters(model, AdapterConfig.model_validate(adapter))


def _with_lengths(fields: Mapping[str, Any], context: int) -> dict[str, Any]:
    """Return a section on rollouts with lengths that fit the model's positions, half of them for the prompt."""
    rl = fields.get("rl")
    if not isinstance(rl, dict) or not _is_size(context, 1 << 24):
        return {}
    row = rl.get("row_tokens", min(context, RlSection.model_fields["row_tokens"].default))
    if not _is_size(row, 1 << 24):
        return {}
    most = min(max(1, row // 2), RlSection.model_fields["max_tokens"].default)
    return {
        "rl": {
            "row_tokens": max(row, rl["max_tokens"]) if _is_size(rl.get("max_tokens"), 1 << 24) else row,
            "max_tokens": most,
            **rl,
        }
    }


def _by_epochs(fields: Mapping[str, Any], *, tunes: bool) -> dict[str, Any]:
    """Return the total of a run that ends after some epochs of its data, and the steps of its rounds; empty for others.

    The total is in the tokens that the loss counts, so the number of epochs does not depend on the number of members.  A
    source that is weighted more than others ends the run, as with `data.epochs`.
    """
    data, said = fields.get("data"), fields.get("rounds", {})
    if "rl" in fields or not isinstance(data, dict) or not isinstance(said, dict):
        return {}
    run = _run({**fields, "data": {"epochs": EPOCHS, **data}, "total_rounds": 1})
    if run is None or (rows := run.data_rows) is None:
        return {}
    steps = rows // run.data.sequences_per_step
    if run.data.format == "text" and not (tunes and steps < TUNING_ROUNDS * run.rounds.inner_steps):
        return {}
    total = {"total_tokens": max(1, run.tokens_of_rows(rows))}
    if {"inner_steps", "delay"} & set(said) or run.fragments > 1:
        return total
    inner_steps = max(1, min(run.rounds.inner_steps, steps // FEWEST_TUNING_ROUNDS))
    return total | {"rounds": {**said, "inner_steps": inner_steps}}


def _within_epochs(fields: Mapping[str, Any], total: dict[str, int]) -> dict[str, int]:
    """Return the total, or the total of the data if `data.epochs` ends the run earlier; the rate decays by then."""
    run = _run({**fields, **total})
    end = run.ending_data if run is not None else None
    return total if end is None else {"total_tokens": max(1, end.tokens)}


def _with_warm_ups(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with warm-ups that are short in a short run; the warm-ups of a senseless run stay missing."""
    inner, rl, run = fields.get("inner", {}), fields.get("rl"), _run(fields)
    if run is None or (run.rl is not None and run.total_rounds is None):
        return fields
    rounds = run.total_rounds or ceil((run.total_tokens or 1) / run.counted_per_round)
    if run.ending_data is not None:
        rounds = min(rounds, run.ending_data.rounds)
    warm = rounds if run.rl is None else min(rounds, run.rl.warm_rounds)
    filled = fields | {"inner": {"warmup_steps": min(run.inner.warmup_steps, warm * run.round_steps // WARM_UP), **inner}}
    if run.rl is None or not isinstance(rl, dict):
        return filled
    steps = (rounds - warm) * run.rl.optimizer_steps
    return filled | {"rl": {"warmup_steps": min(run.rl.warmup_steps, steps // WARM_UP), **rl}}


def _total(fields: Mapping[str, Any], parameters: int, *, tunes: bool) -> dict[str, int]:
    """Return the total of a run whose file has none: tokens for a model from scratch, rounds for a model with weights."""
    if isinstance(rl := fields.get("rl"), dict):
        warm = rl.get("warm_rounds", 0)
        return {"total_rounds": ROLLOUT_ROUNDS + (warm if _is_size(warm, 1_000_000) else 0)}
    if tunes:
        return {"total_rounds": TUNING_ROUNDS}
    run = _run({**fields, "total_rounds": 1})
    read = run.rounds.inner_steps * run.data.sequences_per_step * run.data.sequence_length if run is not None else 0
    return {"total_tokens": max(TOKENS_A_PARAMETER * parameters, FEWEST_ROUNDS * read)}


def _run(fields: Mapping[str, Any]) -> RunManifest | None:
    """Return the run with these fields; None if they are senseless."""
    with suppress(ValidationError):
        return RunManifest.model_validate(fields)
    return None


def _with_widths(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model section with heads, kv_heads and ffn."""
    model = dict(section)
    dim = model.get("dim", ModelConfig.model_fields["dim"].default)
    if _is_size(dim, 1 << 15):
        model.setdefault("ffn", ffn_width(dim))
        if (count := head_count(dim)) is not None:
            model.setdefault("heads", count)
    if _is_size(heads := model.get("heads"), 512):
        model.setdefault("kv_heads", kv_head_count(heads))
    return model


def _is_size(value: Any, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= limit


# ------------------------------------------------------------------------------------------------------------------------


MAX_RUN_FILE_BYTES = 1 << 20
MAX_NAME_CHARS = 80
MAX_TOLD = 20
"""Most mistakes that are reported at once."""
MAX_NAMES = 4096
"""Names of fields and sections in a file, which are a few hundred in the largest run: each wrong one takes 0.2 ms."""
BROUGHT = {
    "data": (
        "from",
        "text",
        "id",
        "where",
        "least_characters",
        "most_characters",
        "most_rows",
        "read_as",
        "leave_out",
        "held_out_percent",
        "keep_repeated",
        "sources",
        "phases",
    )
}
"""Fields of a section, besides `from`, that name parts that a file brings along."""
BASE_FIELDS = ("format", "mirrors", "share")
"""Fields of the section on the model, besides `from`, that a run with an adapter may have."""
PEERS = ("allowlist", "founders", "organiser")
"""Fields that hold peer IDs."""
OTHER_FORMS = {"founders": " or a list of peer IDs", "outer": " or a section with lr and momentum"}
"""Second forms of fields that are usually a word, as endings of the error messages about them."""


class RunFileError(Exception):
    """A run file that cannot be used; the text is one sentence, or one a line for several mistakes."""


class Start(Protocol):
    """Weights, chats or other parts that a run file brings along, by `from` in its sections."""

    @property
    def facts(self) -> Mapping[str, Any] | None:
        """The manifest's model section, if the run begins with weights that do not follow from its seed; otherwise None."""
        ...

    @property
    def sections(self) -> Mapping[str, Mapping[str, Any]]:
        """Fields of further sections of the manifest."""
        ...

    @property
    def flaws(self) -> Sequence[str]:
        """Mistakes in what the file says about these parts, each in a sentence."""
        ...

    def digest(self, piece_bytes: int) -> Hash:
        """Return the digest of the outer state before the first round, in pieces of this size; only if there are `facts`."""
        ...


def sections_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the sections of a run file as they are written; none if it is not TOML.

    Raises `RunFileError` for a file that cannot be read; `load_run_file` reports other mistakes.
    """
    text = _text(path)
    with suppress(RunFileError):
        return {name: fields for name, fields in _fields(text, path.name).items() if isinstance(fields, dict)}
    return {}


def load_run_file(path: Path, organiser: PeerId, start: Start | None = None) -> RunManifest:
    """Return the manifest that `path` describes, with `organiser` as its organiser; raise `RunFileError` for mistakes.

    A file need not name its organiser; one that does (a manifest written out by `dump`) must name this one.
    start: the parts that the file brings along.
    """
    return parse_run_file(_text(path), organiser, path.name, start)


def parse_run_file(text: str, organiser: PeerId, name: str = "run file", start: Start | None = None) -> RunManifest:
    """Return the manifest as `load_run_file` does, from the text of a file called `name`."""
    return _manifest(_fields(text, name), organiser, name, start)


def sketch_run_file(path: Path, organiser: PeerId) -> RunManifest:
    """Return the run of a file without what it brings along: no corpora, tokenizer or tasks.

    Its model, rows and rounds are those of the file, so its sizes are.  Raises `RunFileError`.
    """
    fields = _fields(_text(path), path.name)
    data = fields.get("data")
    if isinstance(data, dict):
        data = {key: data[key] for key in ("sequence_length", "sequences_per_step") if key in data}
    kept = {key: value for key, value in fields.items() if key not in ("data", "tokenizer", "rl")}
    return _manifest({**kept, "data": {} if data is None else data}, organiser, path.name, None)


def _fields(text: str, name: str) -> dict[str, Any]:
    try:
        check_dots(text)
    except ValueError as error:
        raise RunFileError(f"{name}: {error}") from error
    try:
        fields = parse_toml(text)
    except ValueError as error:
        raise RunFileError(f"{name}: not valid TOML: {_shown(str(error), MAX_SAID)}; correct that place") from error
    if (names := _count_names(fields)) > MAX_NAMES:
        raise RunFileError(f"{name} has {names} fields and sections, far more than a run has; give the path of a run file")
    return fields


def _count_names(fields: Mapping[str, Any]) -> int:
    names, left = 0, list[Any]([fields])
    while left:  # without recursion, because values may be nested more deeply than function calls
        value = left.pop()
        if isinstance(value, dict):
            names += len(value)
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return names


def _manifest(fields: dict[str, Any], organiser: PeerId, name: str, start: Start | None) -> RunManifest:
    if fields.setdefault("organiser", organiser) != organiser:
        raise RunFileError(
            f"{name}: organiser names another peer ({organiser}); join that run with its organiser's "
            "invitation, or remove the line to found a run of your own"
        )
    for name_of_list in ("allowlist", "founders"):  # people list peers in any order; the manifest in one
        peers = fields.get(name_of_list)
        if isinstance(peers, list) and all(isinstance(peer, str) for peer in peers):
            fields[name_of_list] = sorted(set(peers))
    if isinstance(data := fields.get("data"), dict) and data.get("source") == "local":
        fields["data"] = _of_members(data, name)
    fields |= _brought(start, fields, name)
    tunes = start is not None and start.facts is not None
    mistakes = [*(start.flaws if start is not None else ()), *_mistakes(fields, tunes=tunes)]
    if len(mistakes) == 1:
        raise RunFileError(f"{name}: {mistakes[0]}")
    if mistakes:
        more = [f"and {len(mistakes) - MAX_TOLD} more"] if len(mistakes) > MAX_TOLD else []
        told = "\n  ".join([*mistakes[:MAX_TOLD], *more])
        raise RunFileError(f"{name} has {len(mistakes)} mistakes:\n  {told}")
    try:
        manifest = RunManifest.model_validate(derived(fields, tunes=tunes))
        if start is not None and start.facts is not None and manifest.adapter is None:
            manifest = manifest.model_copy(update={"initial_state": start.digest(manifest.checkpoint_chunk_bytes).hex()})
        manifest.encode()
    except (ValueError, OverflowError) as error:
        raise RunFileError(
            f"{name}: a value cannot be written in a manifest ({_shown(str(error), 200)}); correct the value"
        ) from error
    return manifest


def _brought(start: Start | None, fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the sections of a file that has `from` in them, with the parts that it brings along."""
    found: dict[str, Any] = {}
    if start is not None and start.facts is not None:
        if others := sorted(set(fields["model"]) - {"from", *(BASE_FIELDS if "adapter" in fields else ())}):
            raise RunFileError(f"{name}: [model] from defines the whole model; remove {_shown(', '.join(others), MAX_SAID)}")
        if fields.get("initial_state"):
            raise RunFileError(f"{name}: initial_state follows from [model] from; remove initial_state")
        found["model"] = dict(start.facts)
    for section, more in (start.sections if start is not None else {}).items():
        said = fields.get(section, {})
        if not isinstance(said, dict):
            continue  # a mistake, which is reported
        found[section] = {key: value for key, value in said.items() if key not in BROUGHT.get(section, ("from",))} | dict(
            more
        )
    for section, kind in (("model", "folder"), ("data", "file or folder"), ("tokenizer", "tokenizer.json")):
        given = found.get(section, fields.get(section))
        if isinstance(given, dict) and "from" in given:
            raise RunFileError(f"{name}: [{section}] from must be the path of a {kind}, in quotes; correct the path")
    return found


def _of_members(section: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the data section of a run on the members' own data, with the fields about its reading in their place.

    Raises `RunFileError` if it names data of the organiser.
    """
    if "from" in section:
        raise RunFileError(
            f'{name}: [data] source is "local", so each member names its own data (`peer join --data FOLDER`); remove from'
        )
    local = {field: section[field] for field in LocalSection.model_fields if field in section}
    if isinstance(where := local.get("where"), Mapping):
        values = {field: value if isinstance(value, list) else [value] for field, value in where.items()}
        local["where"] = [{"field": field, "values": [*map(str, each)]} for field, each in values.items()]
    rest = {field: value for field, value in section.items() if field not in local}
    said = section.get("local", {})
    return {**rest, "local": {**said, **local} if isinstance(said, Mapping) else said} if local else rest


def _mistakes(fields: dict[str, Any], *, tunes: bool) -> list[str]:
    """Return a sentence for each mistake.

    Numbers are compared with each other only if each of them is allowed.  So wrong fields are taken out and the rest is
    checked again; mistakes that involve the fields taken out are not reported then.
    """
    sentences: dict[str, None] = {}
    wrong: set[str] = set()
    while True:
        try:
            RunManifest.model_validate(derived(fields, tunes=tunes))
            return list(sentences)
        except ValidationError as error:
            found = [mistake for item in error.errors() for mistake in _read(item)]
        before = len(wrong)
        for places, text in found:
            names = [(place, other) for place in places for other in wrong]  # a field, or a field and its section
            if not any(f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.") for one, other in names):
                sentences[text] = None
        wrong.update(place for places, _ in found for place in places)
        fields = _without(fields, wrong)
        if len(wrong) == before:
            return list(sentences)


def _read(item: ErrorDetails) -> list[tuple[list[str], str]]:
    """Return (fields involved, sentence) of each mistake in an error."""
    place = [str(part) for part in item["loc"]]
    misfit = item.get("ctx", {}).get("error")
    if isinstance(misfit, Misfit):
        within, section = "".join(f"{part}." for part in place), f"[{'.'.join(place)}] " if place else ""
        return [([within + field for field in fields.split()], section + text) for fields, text in misfit.problems]
    return [([".".join(place[: 2 if _section(place[:1]) else 1])], _sentence(item))]


def _without(fields: Mapping[str, Any], places: Iterable[str]) -> dict[str, Any]:
    left = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    for place in places:
        section, _, field = place.partition(".")
        if not field:
            left.pop(section, None)
        elif isinstance(within := left.get(section), dict):
            within.pop(field, None)
        if place == "name":
            left[place] = "run"  # stands in for the required field, so that the others can be checked
    return left


def dump(manifest: RunManifest) -> str:
    """Return the manifest as a run file, every field with its description."""
    lines: list[str] = []
    _dump_section(manifest, "", lines)
    return "\n".join(lines).strip() + "\n"


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RUN_FILE_BYTES + 1)
        if len(data) > MAX_RUN_FILE_BYTES:
            raise RunFileError(f"{path.name}: the file has over {MAX_RUN_FILE_BYTES} bytes; give the path of a run file")
        return decode_toml(data)
    except OSError as error:
        raise RunFileError(f"{path}: {error.strerror}; give the path of a run file") from error
    except ValueError as error:
        raise RunFileError(f"{path.name}: not UTF-8 text: {error}") from error


def _sentence(error: ErrorDetails) -> str:
    """Return a sentence with the problem of one field and the remedy."""
    parts = [part for part in error["loc"] if part not in (*OUTER_FORMS, *FOUNDERS_FORMS)]
    place = [part[:MAX_NAME_CHARS] for part in parts if isinstance(part, str)]
    field = _shown(_field(parts), MAX_NAME_CHARS)
    kind = error["type"]
    if kind == "extra_forbidden":
        section = _section(place[:-1])
        near = difflib.get_close_matches(place[-1], section.model_fields if section is not None else (), 1)
        return f"{field} is not a field of a run; " + (f"did you mean {near[0]}?" if near else "remove it")
    if kind == "missing":
        return f"{field} is missing; add it ({_description(place)})"
    about = _description(place)
    rule = f" ({about})" if about else ""
    if place[-1] in PEERS and isinstance(error["input"], str) and kind.startswith("string_"):
        return f"{field} is {shortened(error['input'])}; it must be a peer ID, as `peer id` prints it{rule}"
    if kind == "string_pattern_mismatch":
        return f"{field} is {error['input']!r:.60}, which is not allowed there; change it{rule}"
    text = f"{field} is {shortened(error['input'])}; it must be {rule_of(error)}"
    if kind == "literal_error":
        text += OTHER_FORMS.get(field, "")
    elif kind.startswith("model_"):
        text += f", below a line [{field}]" if len(parts) == len(place) == 1 else " in braces"
    elif kind == "multiple_of":
        step = error["ctx"]["multiple_of"]
        text += f"; {place[-1]} = {max(step, round(error['input'] / step) * step)} would do"
    return text + rule


def _field(parts: Sequence[str | int]) -> str:
    """Return the name of a field: "model.dim", "weight in entry 2 of data.sources", "an entry of founders"."""
    names = [part[:MAX_NAME_CHARS] if isinstance(part, str) else part for part in parts]
    for number, part in enumerate(names):
        if isinstance(part, int):
            before, behind = ".".join(map(str, names[:number])), ".".join(map(str, names[number + 1 :]))
            return f"{behind} in entry {part + 1} of {before}" if behind else f"an entry of {before}"
    return ".".join(map(str, names))


def _shown(text: str, most: int) -> str:
    """Return text of the file as a terminal may show it: cut, and with unprintable characters escaped."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def _section(place: list[str]) -> type[BaseModel] | None:
    section: type[BaseModel] = RunManifest
    for part in place:
        field = section.model_fields.get(part)
        forms = () if field is None else (field.annotation, *get_args(field.annotation))
        bare = (get_args(form)[0] if get_origin(form) is Annotated else form for form in forms)
        sections = [form for form in bare if isinstance(form, type) and issubclass(form, BaseModel)]
        if not sections:
            return None
        section = sections[0]
    return section


def _description(place: list[str]) -> str:
    section = _section(place[:-1])
    field = section.model_fields.get(place[-1]) if section is not None else None
    if field is None:
        return ""
    about = (field.description or "").rstrip(".")
    if source := DERIVED.get(".".join(place)):
        return f"{about}; left out, it follows from {source}"
    simple = isinstance(field.default, (bool, int, float, str)) and not isinstance(field.default, Enum)
    return f"{about}; default {_value(field.default)}" if about and simple else about


def _dump_section(section: BaseModel, prefix: str, lines: list[str]) -> None:
    nested: list[tuple[str, BaseModel]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            nested.append((name, value))
            continue
        if value is None:
            continue  # a section that the run does not have
        lines.extend(f"# {line.strip()}" for line in (field.description or "").splitlines())
        lines.append(f"{name} = {_value(value)}")
    for name, value in nested:
        lines.extend(["", f"[{prefix}{name}]"])
        _dump_section(value, f"{prefix}{name}.", lines)


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return _value(value.value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, BaseModel):
        return "{" + ", ".join(f"{name} = {_value(getattr(value, name))}" for name in type(value).model_fields) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    text = json.dumps(value, ensure_ascii=False)  # strings, integers and booleans are the same in JSON and TOML
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in text)
