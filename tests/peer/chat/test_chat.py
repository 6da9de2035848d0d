"""`peer chat` as a person types it: answers, commands, hostile folders."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.chat.model import AnswerCores, ChatSource, form_of_run
from peer.chat.terminal import ChatSession, ChatTerminal, interruptions
from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.joining.run_source import store_manifest
from peer.paths import run_dir
from peer.resources.core_share import CoreShare
from protocol.chain.results import CheckpointName
from protocol.run.manifest import demo_manifest
from protocol.run.sections import TokenizerSection
from protocol.sync.fetchers import file_section
from tests.peer.chat.models import CONFIG, CONTEXT, make_model
from tests.protocol.chains import a_replica, a_run, grow
from tests.protocol.peers import ANN
from tests.trainer.made_tokenizer import ENDS
from tests.trainer.weights.models import in_blocks, random_parameters
from trainer.weights.folder import write_folder
from trainer.weights.safetensors_file import ExportFormat


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("PEER_DATA_DIR", str(tmp_path / "data"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model")


class Pipe(io.TextIOWrapper):
    """Standard input with a text."""

    def __init__(self, text: bytes) -> None:
        super().__init__(io.BytesIO(text))


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes, *words: object) -> int:
    monkeypatch.setattr("sys.stdin", Pipe(text))
    return main(["chat", *map(str, words)])


def session(folder: Path, most: int = 8) -> ChatSession:
    return ChatSession(ChatSource(str(folder), folder.parent / "data"), "cpu", 0.0, most)


def typed(lines: Sequence[str]) -> Callable[[str], str]:
    """Answer of a person to each prompt: the lines, then the end of input."""
    left = iter(lines)

    def ask(prompt: str) -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        return line

    return ask


def talk(folder: Path, lines: Sequence[str], capsys: pytest.CaptureFixture[str], most: int = 8) -> str:
    assert ChatTerminal(session(folder, most), typed(lines)).run() == ExitCode.OK
    return capsys.readouterr().out


def test_the_answer_to_a_pipe_is_that_of_transformers(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="install the extra: pip install -e '.[oracle]'")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="float32").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Who?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    made = theirs.generate(asked, max_new_tokens=20, do_sample=False, pad_token_id=0)[0, asked.shape[1] :].tolist()
    assert piped(monkeypatch, b"Who?\n", model, "--temp", "0", "--max-tokens", "20", "--json") == ExitCode.OK
    found = json.loads(capsys.readouterr().out)
    assert found["answer"] == tokenizer.decode([token for token in made if token not in ENDS])
    assert found["tokens"] == len(made) and found["ended"] == ("end token" if made[-1] in ENDS else "length")
    assert found["first_token_s"] > 0
    assert (found["folder"], found["run"], found["rounds"]) == (str(model), None, None)


def test_a_pipe_gets_the_answer_alone_and_standard_error_says_who_speaks(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(monkeypatch, b"Who?", model, "--max-tokens", "5") == ExitCode.OK
    shown = capsys.readouterr()
    assert shown.err == f"peer: model {model}, on the cpu\n" and shown.out.endswith("\n")
    assert all(character.isprintable() or character in "\n\t" for character in shown.out)


@pytest.mark.parametrize("text, part", [(b"", "nothing"), (b"\xff", "not UTF-8"), (b"x" * CONTEXT, "shorten it")])
def test_a_text_that_cannot_be_asked_is_a_sentence(
    text: bytes, part: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert piped(monkeypatch, text, model) == ExitCode.INPUT
    assert part in capsys.readouterr().err


def test_a_run_speaks_from_its_newest_state_and_takes_the_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signed, data = a_run(ANN), tmp_path / "data"
    data.mkdir()
    store_manifest(signed, data)
    replica = a_replica(signed, run_dir(data, signed.run))
    grow(replica, 2, [ANN], voters=[ANN])
    leaves = replica.state.leaves()
    replica.store.checkpoints.write(CheckpointName(2, replica.history.tip), leaves, replica.state.view)
    chat = ChatSession(ChatSource(None, data), "cpu", 0.0, 8)
    chat.answer("a", lambda piece: None)
    assert "the state after 2 rounds" in chat.opened.sentence and chat.opened.described["rounds"] == 2
    grow(replica, 1, [ANN], voters=[ANN])
    theta = np.frombuffer(replica.state.theta, np.float32).copy()
    replica.state.close()
    ChatTerminal(chat, typed(["/newest"])).run()
    out = capsys.readouterr().out
    assert "it completes texts" in out and "the state after 3 rounds]" in out
    assert np.array_equal(chat.model._engine._batch.model.flat.numpy(), theta)
    assert not list(data.glob(".chat-*")), "the folder of the state is gone"


def test_an_exported_folder_names_its_run_and_its_rounds_and_lies_of_other_folders_are_harmless(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir()
    store_manifest(demo_manifest(), tmp_path / "data")
    assert main(["export", str(tmp_path / "exported")]) == ExitCode.OK
    chat = session(tmp_path / "exported")
    name, run = demo_manifest().manifest.name, demo_manifest().run.hex()
    assert chat.opened.sentence == f"model {tmp_path / 'exported'}, run {name} ({run[:8]}), the state after 0 rounds"
    truth = json.loads((tmp_path / "exported" / "manyhands.json").read_text())
    for lie in ({"rounds": -1}, {"rounds": "1"}, {"run": "ab"}, {"name": "x" * 201}, {"is_final": None}):
        (model / "manyhands.json").write_text(json.dumps(truth | lie))
        assert session(model).opened.state is None
    (model / "manyhands.json").write_text("[" * 100_000)
    assert session(model).opened.state is None
    (model / "manyhands.json").write_text(json.dumps(truth | {"name": "\x1b[2J\u202eevil", "run": "\n" * 64}))
    assert piped(monkeypatch, b"Who?", model, "--max-tokens", "1") == ExitCode.OK
    assert f"peer: model {model}, run [2Jevil (), the state after 0 rounds, on the cpu\n" == capsys.readouterr().err


def test_newest_keeps_the_weights_if_the_folder_is_damaged(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chat = session(model)
    before = chat.model._engine._batch.model.flat.clone()
    values = random_parameters(CONFIG, 1)
    values[-1] = np.nan
    write_folder(model, CONFIG, in_blocks(values), ExportFormat.FP32, context=CONTEXT, eos=list(ENDS))
    ChatTerminal(chat, typed(["/newest"])).run()
    assert "NaN or infinite values" in capsys.readouterr().out and chat.model._engine._batch.model.flat.equal(before)
    write_folder(model, CONFIG, in_blocks(random_parameters(CONFIG, 1)), ExportFormat.FP32, context=64, eos=list(ENDS))
    ChatTerminal(chat, typed(["/newest"])).run()
    assert not chat.model._engine._batch.model.flat.equal(before)


def test_commands_of_the_conversation(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "talk.jsonl"
    lines = ["/save", "Who?", "/save", f"/save {saved}", f"/save {saved}", "/temp", "/temp 11", "/temp nan", "/temp 0.5"]
    lines += [
        "/reset",
        f"/save {saved}",
        "/newest",
        "/help",
        "/no\x1b",
        f"/save {tmp_path / 'absent' / 'x'}",
        "",
        "/quit",
        "no",
    ]
    out = talk(model, lines, capsys)
    (record,) = [json.loads(line) for line in saved.read_text().splitlines()]
    assert [message["role"] for message in record["messages"]] == ["user", "assistant"]
    for said in (
        "[the answer ends after 8 tokens; --max-tokens sets the limit]",
        "[name a file, as in /save talk.jsonl]",
        f"[1 turn saved in {saved}]",
        f"[{saved} exists already; name a new file]",
        "[the temperature is 0; give a number from 0 to 10]",
        "[the temperature is 0.5]",
        "[what was said is forgotten]",
        f"[model {model}]",
        "[there is no command /no\\x1b; /help lists them]",
    ):
        assert said in out
    assert out.count("[nothing was said yet]") == 3
    assert all(name in out for name in ("/reset", "/newest", "/temp X", "/save FILE", "/help", "/quit"))
    assert out.count("the answer ends") == 1, "/quit leaves before the last line"


def test_a_name_that_no_file_can_have_does_not_end_the_conversation(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["~nobody-of-this-name/x", "a\0b", "\ud800", "x" * 5000]
    out = talk(model, ["Who?", *(f"/save {name}" for name in names), f"/save {tmp_path / 'talk'}"], capsys)
    assert out.count("is not a valid file name; name another file]") == 2 and "File name too long" in out
    assert "~nobody-of-this-name/x: No such file" in out and "a\\x00b" in out and "[1 turn saved in " in out


def test_an_interrupt_stops_the_answer_and_keeps_the_turn(model: Path) -> None:
    chat = session(model, 40)
    shown: list[str] = []
    answer = chat.answer("Who?", shown.append, lambda: len(shown) == 3)
    assert answer.ended == "stopped" and answer.tokens == 3
    assert chat.conversation.turns[0].answer == answer.text == "".join(shown)


def test_the_second_interrupt_ends_the_program_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptions() as is_stopped:
        handler = signal.getsignal(signal.SIGINT)  # called here: a raised signal may be handled in a callback that drops it
        assert callable(handler) and not is_stopped()
        handler(signal.SIGINT, None)
        assert is_stopped()
        handler(signal.SIGINT, None)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_share_of_the_cores_is_held_only_while_the_model_answers(model: Path, tmp_path: Path) -> None:
    trainer = CoreShare(tmp_path / "runtime" / "cores", 8)
    assert trainer.take() == (0, 1)
    chat = session(model)
    seen: list[int] = []
    chat.answer("Who?", lambda piece: seen.append(trainer.take()[1]))
    assert set(seen[:-1]) == {2} and trainer.take()[1] == 1 and AnswerCores().others == 1
    trainer.give_back()


def changed(folder: Path, name: str, **fields: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_ends(folder: Path) -> None:
    for name in ("generation_config.json", "tokenizer_config.json"):
        (folder / name).unlink()
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|im_end|>", "<|x|>"))


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "more layers than tensors": (
        lambda folder: changed(folder, "config.json", num_hidden_layers=1 << 60),
        "layers is 1152921504606846976; it must be at most 256",
    ),
    "weights cut off": (cut, "model.safetensors"),
    "a context of nothing": (
        lambda folder: changed(folder, "config.json", max_position_embeddings=2),
        "too few for an answer",
    ),
    "no end token": (without_ends, "which token ends a text"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_with_a_sentence(
    name: str, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, part = HOSTILE[name]
    change(model)
    assert piped(monkeypatch, b"Who?", model) == ExitCode.INPUT
    error = capsys.readouterr().err
    assert error.startswith("peer: ") and part in error and error.count("\n") == 1


@pytest.mark.parametrize(
    "template, format, converses",
    [("chatml", "text", True), ("plain", "chat", True), ("plain", "text", False), ("raw", "preference", False)],
)
def test_a_run_converses_if_its_template_has_marks_or_it_learns_from_chats(
    template: str, format: str, converses: bool, model: Path
) -> None:
    manifest = demo_manifest().manifest
    file = file_section((model / "tokenizer.json").read_bytes())
    section = TokenizerSection.model_validate({"file": file, "template": template, "ends": list(ENDS)})
    fields = {
        "tokenizer": section,
        "model": manifest.model.model_copy(update={"vocab": CONFIG.vocab}),
        "data": manifest.data.model_copy(update={"format": format}),
    }
    form = form_of_run(manifest.model_copy(update=fields), model)
    assert form.converses == converses and form.tokenizer.ends == ENDS
    (model / "tokenizer.json").unlink()
    with pytest.raises(PeerError, match="the run's tokenizer is not on this computer"):
        form_of_run(manifest.model_copy(update=fields), model)


def test_a_template_of_an_unknown_form_is_not_run_and_the_model_completes_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_model(tmp_path / "mistral", "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}")
    out = talk(folder, [], capsys)
    assert "the model's chat template is neither ChatML nor Llama 3's, so the model completes texts" in out
