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
from peer.weights.harness import _tokenizer_for
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
    "a token before each text": (WITH_BOS, {}, ""),
    "the family's class": (byte_level(), {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}}, ""),
    "a token before each text, by its name": (
        WITH_BOS,
        {"tokenizer_config.json": {"bos_token": MARKS[0], "add_bos_token": True}},
        "",
    ),
    "a chat template": (byte_level(), {"tokenizer_config.json": {"chat_template": JINJA}}, ""),
    "a chat template of its own file": (byte_level(), {"chat_template.jinja": JINJA}, ""),
    "settings of sampling": (byte_level(), {"generation_config.json": {"temperature": 0.6, "eos_token_id": 265}}, ""),
    "names of special tokens": (byte_level(), {"special_tokens_map.json": {"pad_token": MARKS[0]}}, ""),
    "another vocabulary": (byte_level(), {"vocab.json": {"a": 0}, "merges.txt": "", "added_tokens.json": {"b": 1}}, ""),
    "the form of an older library": (byte_level(), {"tokenizer.model": "x"}, ""),
    "a tokenizer that the run replaces": (byte_level(), {"tokenizer_config.json": {"eos_token": MARKS[1]}}, "other.json"),
    "a truncated text": (byte_level(truncation={"max_length": 4, "strategy": "LongestFirst", "stride": 0}), {}, ""),
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
    "a text is filled up": QWEN
    | {
        "padding": {
            "strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 264, "pad_type_id": 0,
            "pad_token": MARKS[0],
        }
    },
    "merges are left out by chance": QWEN | {"model": QWEN["model"] | {"dropout": 0.5}},
    "tokens around a text": QWEN | {"post_processor": template(MARKS[1], 265)},
    "no normalizer": QWEN | {"normalizer": None},
    "whole words first": QWEN | {"model": QWEN["model"] | {"ignore_merges": True}},
    "other marks": QWEN | {"added_tokens": [shapes.added(264, "<|im_start|>"), shapes.added(265, "<|im_end|>")]},
    "one more token": QWEN
    | {"added_tokens": [*QWEN["added_tokens"][:2], shapes.added(266, "<extra>"), shapes.added(267, "<|im_end|>")]},
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


@pytest.mark.parametrize(("shape", "is_told"), [(byte_level(), True), (QWEN, False)])
def test_create_and_export_say_how_to_load_a_tokenizer_that_qwen2_replaces(
    shape: Shape, is_told: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes.write(tmp_path / "own.json", shape)
    (tmp_path / "run.toml").write_text(
        'name = "own"\n[model]\nvocab = 300\ndim = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nffn = 16\nqkv_bias = true\n'
        f'[tokenizer]\nfrom = "own.json"\nends = [{end_of(shape)}]\n'
    )
    for words in (["run", "create", str(tmp_path / "run.toml")], ["export", str(tmp_path / "out")]):
        assert main([*words, "--data-dir", str(tmp_path / "data")]) == ExitCode.OK
        assert ("with PreTrainedTokenizerFast.from_pretrained" in capsys.readouterr().out) == is_told


def test_harness_reads_the_tokens_of_the_run_for_a_qwen2_model(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    source, model = shapes.write(tmp_path / "source.json", byte_level()), tmp_path / "model"
    model.mkdir()
    config = ModelConfig.from_mapping(SHAPE | {"tied": True, "context": 128, "qkv_bias": True})
    write_folder(model, config, in_blocks(random_parameters(config)), ExportFormat.FP32, context=64, eos=266)
    write_tokenizer(a_manifest(source, 266, "Qwen2"), source, model)
    known = transformers.AutoTokenizer.from_pretrained(_tokenizer_for(model, tmp_path / "place"), local_files_only=True)
    ours = TokenizerFile(source, (266,))
    assert [known(text)["input_ids"] for text in TEXTS] == [ours.encode(text) for text in TEXTS]


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
    "ChatML with a token before each text": (QWEN | {"post_processor": template(MARKS[0], 264)}, "chatml"),
    "ChatML of GPT-2's splitting": (SHAPES["gpt 2"], "chatml"),
    "ChatML of Llama 3's splitting": (SHAPES["llama 3"], "chatml"),
    "ChatML of DeepSeek's splitting": (SHAPES["deepseek 3"], "chatml"),
    "ChatML of SmolLM's splitting": (SHAPES["smollm"], "chatml"),
    "ChatML of Tekken's splitting": (SHAPES["mistral nemo"], "chatml"),
    "ChatML of o200k's splitting": (SHAPES["o200k"], "chatml"),
    "Llama 3": (with_marks(LLAMA3_MARKS), "llama3"),
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
    "by both": ({GENERATION: {"eos_token_id": 256}, SETTINGS: {"eos_token": "</s>"}}, (256,)),
    "by the fields of a name": ({SETTINGS: {"eos_token": {"content": "</s>", "special": True}}}, (256,)),
    "by several numbers": ({GENERATION: {"eos_token_id": [256, 257]}}, (256, 257)),
    "by both, with two tokens": ({GENERATION: {"eos_token_id": 257}, SETTINGS: {"eos_token": "</s>"}}, (257, 256)),
    "an added token": ({GENERATION: {"eos_token_id": 259}}, (259,)),
    "an added token by name, and a default": ({GENERATION: {"eos_token_id": 2}, SETTINGS: {"eos_token": "<extra>"}}, (259,)),
    "an added token and one that is none": ({GENERATION: {"eos_token_id": [256, 259]}}, (259,)),
    "beside a default in config.json": ({"config.json": {"eos_token_id": 2}, SETTINGS: {"eos_token": "</s>"}}, (256,)),
    "an added token in config.json": ({"config.json": {"eos_token_id": 259}}, (259,)),
    "a default in config.json": ({"config.json": {"eos_token_id": 2}}, ()),
    "an unknown name": ({SETTINGS: {"eos_token": "</end>"}}, ()),
    "an unknown number": ({GENERATION: {"eos_token_id": 999}}, ()),
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
