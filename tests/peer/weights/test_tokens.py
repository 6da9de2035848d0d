"""Tokens of exports: the same folder from every peer, and the run's tokens in transformers, for every family of models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peer.chat.model import form_of_folder
from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import create_run
from peer.paths import run_dir
from peer.weights.tokenizer_files import LOADING, folder_tokenizer, loading_remark, write_tokenizer
from protocol.formats.model import ModelConfig
from protocol.run.manifest import RunManifest, demo_manifest
from protocol.run.sections import TokenizerSection
from protocol.sync.fetchers import file_section
from tests.trainer import tokenizer_shapes as shapes
from tests.trainer.made_tokenizer import ENDS, make_tokenizer
from tests.trainer.tokenizer_shapes import MARKS, SHAPES, Shape, byte_level, end_of, template
from tests.trainer.weights.models import SHAPE, in_blocks, random_parameters
from trainer.data.templates import Message, TemplatedTokenizer
from trainer.data.tokenizer_json import QWEN2
from trainer.data.tokens import TokenizerFile
from trainer.models.llama.huggingface import config_json
from trainer.weights.folder import WeightsFolder, write_folder
from trainer.weights.safetensors_file import ExportFormat

# ------------------------------------------------------------------------------------------------------------------------
# The same state gives the same folder, whoever exports.


CONFIG = ModelConfig.from_mapping(SHAPE | {"tied": True, "context": 128})
JINJA = "{% for message in messages %}<|im_start|>{{ message.content }}<|im_end|>{% endfor %}"
WITH_BOS = byte_level(post_processor=template(MARKS[0], 264))
BESIDE: dict[str, tuple[Shape, dict[str, Any], str]] = {
    "nothing": (byte_level(), {}, ""),
    "a token before each text, by its name": (
        WITH_BOS,
        {"tokenizer_config.json": {"bos_token": MARKS[0], "add_bos_token": True}},
        "",
    ),
    "a chat template": (byte_level(), {"tokenizer_config.json": {"chat_template": JINJA}}, ""),
    "a tokenizer that the run replaces": (byte_level(), {"tokenizer_config.json": {"eos_token": MARKS[1]}}, "other.json"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", BESIDE)
def test_guest_exports_the_folder_of_the_organiser_to_the_byte(case: str, tmp_path: Path) -> None:
    shape, beside, other = BESIDE[case]
    base, data, guest = tmp_path / "base", tmp_path / "data", tmp_path / "guest"
    base.mkdir()
    write_folder(base, CONFIG, in_blocks(random_parameters(CONFIG)), ExportFormat.FP32, context=64, eos=None)
    shapes.write(base / "tokenizer.json", shape)
    for name, said in beside.items():
        (base / name).write_text(said if isinstance(said, str) else json.dumps(said))
    named = 'from = "other.json"\n' if other else ""
    make_tokenizer(tmp_path / "other.json")
    (tmp_path / "run.toml").write_text(
        f'name = "begun"\n[model]\nfrom = "base"\n[tokenizer]\n{named}ends = [{ENDS[1] if other else end_of(shape)}]\n'
    )
    signed = create_run(tmp_path / "run.toml", data)
    fetched = {"manifest.msgpack", "files", "checkpoints"}
    shutil.copytree(data, guest)
    for path in run_dir(guest, signed.run).iterdir():
        if path.is_dir() and path.name not in fetched:
            shutil.rmtree(path)
    found = []
    for place in (data, guest):
        assert main(["export", str(tmp_path / f"{place.name}-out"), "--data-dir", str(place)]) == ExitCode.OK
        found.append({path.name: path.read_bytes() for path in sorted((tmp_path / f"{place.name}-out").iterdir())})
    assert found[0] == found[1]
    assert sorted(found[0]) == [
        "config.json",
        "generation_config.json",
        "manyhands.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert json.loads(found[0]["tokenizer_config.json"])["eos_token"] == (MARKS[0] if other else MARKS[2])


# ------------------------------------------------------------------------------------------------------------------------
# transformers makes the run's tokens of a text.


FAMILIES: dict[str, dict[str, Any]] = {"Llama": {}, "Qwen2": {"qkv_bias": True}, "Qwen3": {"qk_norm": True}}
TEXTS = (
    "It's 3 the and in 1234.",
    "  two  spaces\n\nThe end\t",
    "a b c the 12",
    "12+34=46 thand the",
    "\u00e9\u4e2d\U0001f600 I'LL l\u00e0-bas",
    "",
)
QWEN = byte_level(normalizer={"type": "NFC"}, pre_tokenizer=shapes.split_by(QWEN2))
VARIANTS: dict[str, Shape] = {
    **SHAPES,
    "a text is cut": QWEN | {"truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}},
    "tokens around a text": QWEN | {"post_processor": template(MARKS[1], 265)},
    "no normalizer": QWEN | {"normalizer": None},
    "an end that is not special": QWEN
    | {"added_tokens": [*QWEN["added_tokens"][:2], shapes.added(266, "<|im_end|>", special=False)]},
}  # fmt: skip
KEPT_BY_QWEN2 = {
    "qwen 2",
    "a text is cut",
    "a text is filled up",
    "merges are left out by chance",
    "tokens around a text",
    "one more token",
    "an end that is not special",
}


def a_manifest(source: Path, end: int, family: str = "Llama", **section: Any) -> RunManifest:
    model = ModelConfig(vocab=600, dim=16, layers=1, heads=2, kv_heads=1, ffn=16, **FAMILIES[family])
    tokenizer = TokenizerSection(file=file_section(source.read_bytes()), ends=[end], **section)
    return demo_manifest().manifest.model_copy(update={"model": model, "tokenizer": tokenizer})


@pytest.mark.slow
@pytest.mark.parametrize("case", VARIANTS)
def test_transformers_makes_the_tokens_of_the_run(case: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    source, end = shapes.write(tmp_path / "source.json", VARIANTS[case]), end_of(VARIANTS[case])
    ours = TokenizerFile(source, (end,))
    wanted = [ours.encode(text) for text in TEXTS]
    for family in FAMILIES:
        manifest, folder = a_manifest(source, end, family), tmp_path / family
        folder.mkdir()
        remark = write_tokenizer(manifest, source, folder)
        config = ModelConfig.from_mapping(manifest.model.model_dump())
        (folder / "config.json").write_text(json.dumps(config_json(config, "float32", context=64, eos=end)))
        plain = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
        assert [plain(text)["input_ids"] for text in TEXTS] == wanted and plain.eos_token_id == end
        auto = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        is_kept = [auto(text)["input_ids"] for text in TEXTS] == wanted and len(auto) == len(plain)
        assert remark == loading_remark(manifest, source)
        assert remark == ("" if family != "Qwen2" or case in KEPT_BY_QWEN2 else LOADING)
        assert is_kept or remark


# ------------------------------------------------------------------------------------------------------------------------
# Chat templates of exports write a conversation in the run's tokens.


TALK = [
    Message("system", "Be kind."),
    Message("user", "12 and the \u4e2d?"),
    Message("assistant", 'It\'s {{ 3 }} and\n the "end".'),
    Message("user", "again"),
]
LLAMA3_MARKS = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")


def with_marks(marks: tuple[str, ...], **parts: Any) -> Shape:
    return shapes.file(QWEN["model"], marks, **{name: QWEN[name] for name in ("pre_tokenizer", "decoder")} | parts)


ODD = "<|\"}}{% end \\n'|>"
CONVERSATIONS: dict[str, tuple[Shape, str]] = {
    "ChatML of Qwen": (QWEN, "chatml"),
    "ChatML of Tekken's splitting": (SHAPES["mistral nemo"], "chatml"),
    "Llama 3 with its token before each text": (
        with_marks(LLAMA3_MARKS, post_processor=template("<|begin_of_text|>", 264)),
        "llama3",
    ),
    "headings as text": (QWEN, "plain"),
    "an end with a name that looks like a program": (with_marks((*MARKS, ODD)), "plain"),
}


@pytest.mark.parametrize("case", CONVERSATIONS)
def test_chat_template_of_an_export_writes_the_tokens_of_the_run(case: str, tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    shape, name = CONVERSATIONS[case]
    source, end = shapes.write(tmp_path / "source.json", shape), end_of(shape)
    manifest = a_manifest(source, end, template=name)
    manifest = manifest.model_copy(update={"data": manifest.data.model_copy(update={"format": "chat"})})
    folder = tmp_path / "out"
    folder.mkdir()
    write_tokenizer(manifest, source, folder)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    ours = TemplatedTokenizer(TokenizerFile(source, (end,)), name)
    said = [{"role": each.role, "content": each.content} for each in TALK]
    asked = theirs.apply_chat_template(said, add_generation_prompt=True)["input_ids"]
    assert asked == ours.opening(TALK)
    whole = theirs.apply_chat_template(said[:3])["input_ids"]
    assert whole == ours.chat(TALK[:3]).tokens


@pytest.mark.parametrize(("format", "converses"), [("chat", True), ("text", False)])
def test_export_with_headings_as_text_converses_if_its_run_learned_to(format: str, converses: bool, tmp_path: Path) -> None:
    source = shapes.write(tmp_path / "source.json", QWEN)
    manifest = a_manifest(source, 266, template="plain")
    manifest = manifest.model_copy(update={"data": manifest.data.model_copy(update={"format": format})})
    write_folder(tmp_path, CONFIG, in_blocks(random_parameters(CONFIG)), ExportFormat.FP32, context=64, eos=266)
    write_tokenizer(manifest, source, tmp_path)
    form = form_of_folder(WeightsFolder(tmp_path))
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert ("chat_template" in settings) == converses and not form.remark
    if converses:
        assert form.converses and form.tokenizer.prompt("Hi") == form.tokenizer.encode("user:\nHi\nassistant:\n")


# ------------------------------------------------------------------------------------------------------------------------
# Files that name the token that ends a text.


SPELT = shapes.file(
    shapes.bpe([*shapes.LETTERS, "</s>", "<unk>", "th"], [["t", "h"]]),
    ("<extra>",),
    pre_tokenizer=shapes.BYTE_LEVEL,
    decoder=shapes.BYTE_LEVEL,
)
"""A tokenizer whose end token, 256, is in the vocabulary of its model and no added token, which is 259."""
GENERATION, SETTINGS = "generation_config.json", "tokenizer_config.json"
ENDINGS: dict[str, tuple[dict[str, dict[str, Any]], tuple[int, ...]]] = {
    "by number": ({GENERATION: {"eos_token_id": 256}}, (256,)),
    "by name": ({SETTINGS: {"eos_token": "</s>"}}, (256,)),
    "by both, with two tokens": ({GENERATION: {"eos_token_id": 257}, SETTINGS: {"eos_token": "</s>"}}, (257, 256)),
    "an added token by name, and a default": ({GENERATION: {"eos_token_id": 2}, SETTINGS: {"eos_token": "<extra>"}}, (259,)),
    "a default in config.json": ({"config.json": {"eos_token_id": 2}}, ()),
    "nothing": ({}, ()),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_folder_names_its_end_token_by_number_or_name(case: str, tmp_path: Path) -> None:
    files, wanted = ENDINGS[case]
    shapes.write(tmp_path / "tokenizer.json", SPELT)
    for name, said in files.items():
        (tmp_path / name).write_text(json.dumps(said))
    if not wanted:
        with pytest.raises(PeerError, match="says which token ends a text"):
            folder_tokenizer(tmp_path, 600)
        return
    found = folder_tokenizer(tmp_path, 600)
    assert found is not None and found.file.ends == wanted
