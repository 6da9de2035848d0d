"""`peer eval`: losses of exported folders on corpora, equal to those of transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peer.cli import main
from peer.corpora.build import build
from peer.corpora.builtin import builtin_corpus
from peer.corpora.inputs import BuildInput, Document
from peer.corpora.options import BuildOptions, TokenFormat
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import store_manifest
from peer.weights.held_out import HeldOutOptions, measure
from protocol.corpora import manifest
from protocol.corpora.manifest import CorpusKind
from protocol.run.manifest import demo_manifest
from tests.trainer.data.corpora import Shape, Stream, preferences, texts, write_corpus
from tests.trainer.made_tokenizer import ENDS, make_tokenizer
from tests.trainer.tokenizer_shapes import added, byte_level, split_by, write
from tests.trainer.weights.models import CONFIGS, in_blocks, random_parameters
from trainer.data.tokenizer_json import LLAMA3, QWEN2
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

pytestmark = pytest.mark.usefixtures("tiny_blocks")

VOCAB = 300
FORM = Shape(vocab=VOCAB, token_bytes=2)
LENGTH = 40


def exported(folder: Path, name: str = "llama3", scale: float = 1.0) -> Path:
    folder.mkdir()
    config = CONFIGS[name]
    values = random_parameters(config) * np.float32(scale)
    write_folder(folder, config, in_blocks(values), ExportFormat.FP32, context=256, eos=None)
    return folder


def corpus(folder: Path) -> tuple[Path, dict[str, Any]]:
    streams = {"web": texts(1, 900, 700, VOCAB), "code": texts(2, 500, 321, VOCAB)}
    return write_corpus(folder, FORM, streams), streams


def command(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["eval", *map(str, words), "--json"]) == ExitCode.OK
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_losses_are_those_of_transformers(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    folder, streams = corpus(tmp_path / "corpus")
    model = exported(tmp_path / "model", name, 0.3)
    found = command(capsys, model, "--corpus", folder, "--length", LENGTH, "--documents", "joined")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto", local_files_only=True).eval()
    for each in found["sources"]:
        tokens = torch.from_numpy(streams[each["source"]][1].tokens)
        rows = -(-(len(tokens) - 1) // LENGTH)
        starts = [min(row * LENGTH, len(tokens) - LENGTH - 1) for row in range(rows)]
        batch = torch.stack([tokens[start : start + LENGTH + 1] for start in starts])
        with torch.no_grad():
            wanted = float(theirs(batch, labels=batch).loss)
        assert each["tokens"] == rows * LENGTH
        assert each["loss"] == pytest.approx(wanted, rel=1e-3)
        assert each["perplexity"] == pytest.approx(math.exp(wanted), rel=1e-3)


def test_masked_documents_have_the_losses_that_they_have_alone(tmp_path: Path) -> None:
    lengths = [7, 12, 4, 18]
    rng = np.random.default_rng(0)
    pieces = [np.append(rng.integers(1, VOCAB, length - 1), 0) for length in lengths]
    stream = np.append(np.concatenate(pieces), 5)
    folder = write_corpus(tmp_path / "corpus", FORM, {"web": (Stream(stream), Stream(stream))})
    model = exported(tmp_path / "model", scale=0.3)
    [whole] = measure(model, folder, HeldOutOptions(length=len(stream) - 1))
    alone = 0.0
    for number, piece in enumerate(pieces):
        after = pieces[number + 1][0] if number + 1 < len(pieces) else 5  # what the end token predicts
        single = np.append(piece, after)
        one = write_corpus(tmp_path / f"corpus{number}", FORM, {"web": (Stream(single), Stream(single))})
        [found] = measure(model, one, HeldOutOptions(length=len(piece), documents="joined"))
        alone += found.loss * len(piece)
    assert whole.loss == pytest.approx(alone / sum(lengths), rel=1e-4)
    [joined] = measure(model, folder, HeldOutOptions(length=len(stream) - 1, documents="joined"))
    assert abs(joined.loss - whole.loss) > 1e-3


def test_a_model_that_knows_nothing_has_the_loss_of_its_vocabulary(tmp_path: Path) -> None:
    folder, streams = corpus(tmp_path / "corpus")
    losses = measure(exported(tmp_path / "model", scale=0.0), folder, HeldOutOptions(length=LENGTH))
    assert [each.source for each in losses] == ["web", "code"]
    for each in losses:
        held_out = streams[each.source][1].tokens
        text_bytes = len(held_out) - int((held_out == 0).sum())
        assert each.loss == pytest.approx(math.log(VOCAB), rel=1e-5) and each.perplexity == pytest.approx(VOCAB, rel=1e-4)
        assert each.bits_per_byte == pytest.approx(math.log2(VOCAB) * len(held_out) / text_bytes, rel=1e-5)


def test_of_preferences_the_chosen_text_counts(tmp_path: Path) -> None:
    form = Shape(CorpusKind.PREFERENCE, row_tokens=17, block_tokens=34)
    folder = write_corpus(tmp_path / "corpus", form, {"a": (preferences(1, 4, 17), preferences(2, 3, 17))})
    [found] = measure(exported(tmp_path / "model"), folder, HeldOutOptions())
    assert found.tokens == 3 * 9 and found.bits_per_byte is None and math.isfinite(found.loss)


def test_it_prints_a_table_and_refuses_a_tokenizer_beside_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, _ = corpus(tmp_path / "corpus")
    model = exported(tmp_path / "model")
    words = ["eval", str(model), "--corpus", str(folder), "--length", "40"]
    assert main(words) == ExitCode.OK
    out, warned = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["SOURCE", "web", "code"] and not warned
    make_tokenizer(model / "tokenizer.json")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": ENDS[0]}))
    assert main(words) == ExitCode.INPUT
    assert "built with another tokenizer" in capsys.readouterr().err


TOKENIZER = byte_level(normalizer={"type": "NFC"}, pre_tokenizer=split_by(QWEN2))
MODEL = TOKENIZER["model"]
SAME: dict[str, dict[str, Any]] = {
    "the same file": {},
    "tokens in another order": {"model": MODEL | {"vocab": dict(reversed(MODEL["vocab"].items()))}},
    "no normalizer, and texts that need none": {"normalizer": None},
    "one more token": {"added_tokens": [*TOKENIZER["added_tokens"], added(267, "<extra>")]},
}
SWAPPED = {"a": MODEL["vocab"]["b"], "b": MODEL["vocab"]["a"]}
OTHER: dict[str, dict[str, Any]] = {
    "another splitting": {"pre_tokenizer": split_by(LLAMA3)},
    "another normalizer": {"normalizer": {"type": "Lowercase"}},
    "swapped numbers": {"model": MODEL | {"vocab": MODEL["vocab"] | SWAPPED}},
    "another end": {"added_tokens": [*TOKENIZER["added_tokens"][:2], added(266, "<|end|>")]},
}


@pytest.fixture(scope="module")
def number_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of a tokenizer of its own, with texts that other splittings and merges cut elsewhere; nobody changes it."""
    folder = tmp_path_factory.mktemp("numbers")
    tokens = TokenFormat(tokenizer=write(folder / "tokenizer.json", TOKENIZER), ends=(266,))
    said = "{0} is a number,and the\n\n  number in {0}12 is another\u00e9 ONE. I'M the and thin\t\n  band!\n"
    documents = [Document(str(number), said.format(number) * 3) for number in range(40)]
    options = BuildOptions(tokens, held_out_percent=30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest, "LEAST_BLOCK_TOKENS", 1)
        build([BuildInput("web", documents)], options, folder / "corpus")
    return folder / "corpus"


@pytest.mark.slow
@pytest.mark.parametrize("case", [*SAME, *OTHER])
def test_model_is_measured_on_a_corpus_of_the_same_tokens_alone(
    case: str, tmp_path: Path, number_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = exported(tmp_path / "model")
    write(model / "tokenizer.json", TOKENIZER | SAME.get(case, {}) | OTHER.get(case, {}))
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 266}))
    options = HeldOutOptions(tokens=64, length=LENGTH)
    if case in SAME:
        assert measure(model, number_corpus, options)
    else:
        with pytest.raises(PeerError, match="was built with another tokenizer than"):
            measure(model, number_corpus, options)
    assert not capsys.readouterr().err


def test_model_without_its_tokenizer_is_measured_with_a_warning(
    tmp_path: Path, number_corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(exported(tmp_path / "model"), number_corpus, HeldOutOptions(tokens=64, length=LENGTH))
    assert "has no tokenizer, so it is unknown whether" in capsys.readouterr().err


def _small(folder: Path) -> Path:
    return write_corpus(folder, Shape(vocab=VOCAB + 1, token_bytes=2), {"web": texts(1, 900, 700, VOCAB)})


def test_rows_that_the_corpus_does_not_have_are_refused(tmp_path: Path) -> None:
    folder = write_corpus(tmp_path / "corpus", FORM, {"web": texts(1, 300, 700, VOCAB)})
    with pytest.raises(PeerError, match="no source of .* has a held-out row of 5000 tokens; make --length smaller"):
        measure(exported(tmp_path / "model"), folder, HeldOutOptions(length=5000))


def test_what_cannot_be_measured_is_refused_with_a_sentence(tmp_path: Path) -> None:
    model, (folder, _) = exported(tmp_path / "model"), corpus(tmp_path / "corpus")

    def refused(model: Path, corpus: Path, options: HeldOutOptions | None = None) -> str:
        with pytest.raises(PeerError) as caught:
            measure(model, corpus, options or HeldOutOptions(length=LENGTH))
        assert caught.value.exit_code == ExitCode.INPUT
        return str(caught.value)

    assert "is not a corpus: cannot read corpus.msgpack" in refused(model, tmp_path)
    assert "give a folder in which transformers has saved" in refused(tmp_path / "nothing", folder)
    assert "more than the model (300)" in refused(model, _small(tmp_path / "other"))
    nowhere = HeldOutOptions(length=LENGTH, device="abacus")
    assert "cannot be put on the device 'abacus'" in refused(model, folder, nowhere)
    _remove(sorted((folder / "shards").iterdir()))
    assert "lacks a block" in refused(model, folder)
    (folder / "corpus.msgpack").write_bytes(b"nonsense")
    assert "is damaged" in refused(model, folder)


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        path.unlink()


def test_the_newest_state_of_a_run_is_measured_as_the_run_measures_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo, data = demo_manifest(), tmp_path / "data"
    data.mkdir()
    store_manifest(demo, data)
    (folder,) = builtin_corpus(tmp_path / "built").folders
    few = ("--corpus", folder, "--tokens", 2048, "--data-dir", data)
    found = command(capsys, demo.run.hex()[:12], *few)
    assert found["model"] == demo.run.hex()
    main(["export", demo.run.hex(), str(tmp_path / "model"), "--dtype", "fp32", "--data-dir", str(data)])
    capsys.readouterr()
    asked = ("--length", demo.manifest.data.sequence_length, "--documents", demo.manifest.data.documents)
    assert command(capsys, tmp_path / "model", *few, *asked)["sources"] == found["sources"]
    assert not [path for path in data.iterdir() if path.name.startswith(".eval")]
