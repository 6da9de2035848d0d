"""`peer eval --harness`: what the harness is called with, what is read of its results, and tokenizers that it can read.

lm-evaluation-harness itself is not among the packages of the tests: a stand-in takes its command line, and writes a file of
results that version 0.4.13 wrote.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.weights.harness import _tokenizer_for, results_in
from tests.trainer.made_tokenizer import ENDS, TEXT_END, TURN_END, make_tokenizer
from tests.trainer.weights.models import CONFIGS, in_blocks
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat

RESULTS: dict[str, Any] = {
    "results": {
        "capitals": {
            "name": "capitals",
            "alias": "capitals",
            "sample_len": 5,
            "acc,none": 0.4,
            "acc_stderr,none": 0.24494897427831783,
            "acc_norm,none": 0.4,
            "acc_norm_stderr,none": 0.24494897427831783,
        },
    },
    "group_subtasks": {},
    "versions": {"capitals": 1.0},
    "n-shot": {"capitals": 0},
    "higher_is_better": {"capitals": {"acc": True, "acc_norm": True}},
    "n-samples": {"capitals": {"original": 5, "effective": 5}},
    "transformers_version": "5.23.0",
    "lm_eval_version": "0.4.13",
}
"""As version 0.4.13 writes them, without what is not read."""

STAND_IN = """
import json, os, pathlib, sys
assert os.getcwd() not in sys.path and "" not in sys.path
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
print("Running loglikelihood requests", file=sys.stderr)
if "broken" in words[words.index("--tasks") + 1]:
    raise ValueError("Tasks not found: \\x1b[31mbroken")
folder = pathlib.Path(words[words.index("--output_path") + 1]) / "some__model"
folder.mkdir(parents=True)
(folder / "results_2026-11-27T23-18-27.json").write_text((here / "results.json").read_text())
(here / "words.json").write_text(json.dumps(words))
"""


def model_of(folder: Path, vocab: int = 256, ends: tuple[int, ...] = (0,)) -> Path:
    folder.mkdir()
    config = CONFIGS["llama3"].changed(vocab=vocab)
    values = np.zeros(config.parameters, np.float32)
    write_folder(folder, config, in_blocks(values), ExportFormat.BF16, context=64, eos=ends)
    return folder


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the stand-in writes the words that it was called with."""
    for name in ("lm_eval", "accelerate", "transformers"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").touch()
    (tmp_path / "packages" / "lm_eval" / "__main__.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    (tmp_path / "packages" / "lm_eval" / "results.json").write_text(json.dumps(RESULTS))
    return tmp_path / "packages" / "lm_eval" / "words.json"


def test_scores_of_a_folder_are_printed(harness: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of(tmp_path / 'a "model", of=ours')
    assert main(["eval", str(model), "--harness", "capitals,arc_easy", "--limit", "7", "--device", "cpu"]) == ExitCode.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["TASK", "METRIC", "VALUE", "ERROR", "SHOTS", "QUESTIONS"]
    assert lines[1].split() == ["capitals", "acc", "0.4000", "0.2449", "0", "5"] and len(lines) == 3
    words = json.loads(harness.read_text())
    named = dict(zip(words[1::2], words[2::2], strict=True))
    arguments = json.loads(named["--model_args"])
    assert words[0] == "run" and named["--model"] == "hf" and named["--tasks"] == "capitals,arc_easy"
    assert named["--limit"] == "7" and named["--device"] == "cpu"
    assert arguments["pretrained"] == str(model) and arguments["trust_remote_code"] is False
    assert not any("remote" in word or "unsafe" in word for word in words if word.startswith("--"))
    assert main(["eval", str(model), "--harness", "capitals", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert told["harness"] == "0.4.13" and told["model"] == str(model)
    assert told["scores"][0] == {
        "task": "capitals",
        "metric": "acc",
        "value": 0.4,
        "error": pytest.approx(0.2449, abs=1e-4),
        "shots": 0,
        "samples": 5,
    }


def test_what_goes_wrong_is_a_sentence(
    harness: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(model_of(tmp_path / "model"))
    cases = {
        ("--harness", "broken"): (ExitCode.FAILED, "the harness failed: ValueError: Tasks not found: [31mbroken"),
        ("--harness", "a task"): (ExitCode.INPUT, "is not a task of the harness"),
        ("--harness", "--help"): (ExitCode.INPUT, "is not a task of the harness"),
        ("--harness", "a,,b"): (ExitCode.INPUT, "is not a task of the harness"),
        ("--harness", "not-here.yaml"): (ExitCode.INPUT, "is not a task of the harness"),
        ("--corpus", "x", "--limit", "3"): (ExitCode.USAGE, "--limit is allowed only with --harness"),
    }
    for (option, value, *more), (code, part) in cases.items():
        assert main(["eval", model, f"{option}={value}", *more]) == code
        assert part in (said := capsys.readouterr().err) and said.count("\n") == 1
    (harness.parent / "results.json").write_text('{"results": []}')
    assert main(["eval", model, "--harness", "capitals"]) == ExitCode.FAILED
    assert "of an unknown form" in capsys.readouterr().err


def test_without_the_harness_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("peer.weights.harness.find_spec", lambda name: None)
    assert main(["eval", str(model_of(tmp_path / "model")), "--harness", "arc_easy"]) == ExitCode.INPUT
    assert "install 'lm-eval[hf]>=" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, json.dumps({**RESULTS, "results": {"x": [1]}})])
def test_results_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(PeerError, match="of an unknown form"):
        results_in(text)


def test_models_that_read_bytes_get_a_tokenizer_of_bytes(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    place = _tokenizer_for(model_of(tmp_path / "model"), tmp_path / "tokenizer")
    known = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    text = "".join(map(chr, range(1, 0x900))) + "  a\n\n b \U0001f600"
    assert known(text)["input_ids"] == [*text.encode()] and known.decode([*text.encode()]) == text
    assert known.eos_token_id == 0 and len(known) == 256


def test_a_tokenizer_without_settings_gets_the_models_end_of_text(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    turn_end, text_end = ENDS
    model = model_of(tmp_path / "model", 260, (text_end, turn_end))
    make_tokenizer(model / "tokenizer.json")
    place = _tokenizer_for(model, tmp_path / "tokenizer")
    known = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
    assert known.eos_token == TEXT_END and known.eos_token_id == text_end
    assert known(f"ab{TURN_END}")["input_ids"][-1] == turn_end
    (model / "tokenizer_config.json").write_text("{}")
    names = sorted(path.name for path in _tokenizer_for(model, tmp_path / "copied").iterdir())
    assert names == ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
