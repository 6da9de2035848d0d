"""Pushes to a hub: each state once, whoever is killed when, and the token for nobody but the hub."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode
from peer.hubs import repository
from peer.joining.run_source import store_manifest
from peer.paths import run_dir
from protocol.chain.replica import Replica
from protocol.run.manifest import SignedManifest
from tests.peer.hubs.fake_hub import TOKEN, Answer, Commit, FakeHub, Repository, fake_hub
from tests.protocol.chains import a_replica, a_run, grow
from tests.protocol.peers import ANN

NAME = "me/our.model"
PATIENCE_S = 300.0


class Run:
    """A run on this disk that grows at will."""

    def __init__(self, data: Path, signed: SignedManifest | None = None) -> None:
        self.data, self.signed = data, signed or a_run(ANN)
        data.mkdir()
        store_manifest(self.signed, data)
        self._replica: Replica = a_replica(self.signed, run_dir(data, self.signed.run))

    def grow(self, rounds: int) -> None:
        grow(self._replica, rounds, [ANN], voters=[ANN])

    @property
    def left(self) -> list[str]:
        """Exports that are still on disk."""
        return [path.name for path in (run_dir(self.data, self.signed.run) / "push").glob("*/*") if path.name != "lock"]

    def push(self, *words: str) -> int:
        return main(["export", "--push", f"hf:{NAME}", *words, "--data-dir", str(self.data)])

    def started(self, *words: str) -> subprocess.Popen[str]:
        """A process that pushes."""
        command = [sys.executable, "-m", "peer", "--data-dir", str(self.data), "export", "--push", f"hf:{NAME}", *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path / "data")
    run.grow(3)
    return run


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    with fake_hub() as hub:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        yield hub


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Times that pushes wait, which pass at once."""
    found: list[float] = []
    monkeypatch.setattr("peer.hubs.pushing.time.sleep", found.append)
    return found


def test_the_newest_state_is_a_commit_with_a_tag_and_a_card(
    run: Run, hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.push() == ExitCode.OK
    there = hub.repositories[NAME]
    assert set(there.files) == {
        ".gitattributes",
        "README.md",
        "config.json",
        "generation_config.json",
        "manyhands.json",
        "model.safetensors",
    }
    assert json.loads(there.files["manyhands.json"])["run"] == run.signed.run.hex()
    assert there.pushed == [3] and there.tags == {"round-3": there.commits[-1].id}
    assert there.commits[-1].message == "State after 3 rounds"
    assert "pushed the state after 3 rounds to me/our.model" in capsys.readouterr().out
    assert not run.left
    assert run.push() == ExitCode.OK and there.pushed == [3]
    run.grow(1)
    assert run.push() == ExitCode.OK and there.pushed == [3, 4] and set(there.tags) == {"round-3", "round-4"}


def test_states_are_pushed_every_few_rounds_and_at_the_end(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "data", a_run(ANN, total_tokens=7 * 8))
    monkeypatch.setattr("peer.hubs.pushing.time.sleep", lambda seconds: run.grow(1))
    assert run.push("--every", "3") == ExitCode.OK
    there = hub.repositories[NAME]
    assert there.pushed == [3, 6, 7] and json.loads(there.files["manyhands.json"])["is_final"]


def test_a_state_that_is_not_on_this_disk_yet_is_waited_for(
    tmp_path: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path / "data", a_run(ANN, total_tokens=3 * 8))
    run.grow(3)
    folder = run_dir(run.data, run.signed.run) / "results"
    folder.rename(folder.with_name("elsewhere"))
    looks: list[float] = []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            folder.with_name("elsewhere").rename(folder)

    monkeypatch.setattr("peer.hubs.pushing.time.sleep", look)
    assert run.push("--every", "2") == ExitCode.OK
    assert hub.repositories[NAME].pushed == [3] and len(looks) == 3
    out = capsys.readouterr().out
    assert out.count("is not on disk") == 1 and "(the result of round 0 is missing)" in out


TROUBLES = {
    "rate limit": (Answer(429, headers={"Retry-After": "30"}), [30.0]),
    "rate limit of a thousand years": (Answer(429, headers={"Retry-After": "999999999999"}), [repository.MAX_WAIT_S]),
    "error": (Answer(500, b"x" * 100_000), None),
    "away": (Answer(503), None),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "trouble"),
    [("commit", "rate limit"), ("batch", "rate limit of a thousand years"), ("signature", "error"), ("tag", "away")],
)
def test_a_hub_that_is_busy_is_asked_again_later(
    run: Run, hub: FakeHub, waits: list[float], path: str, trouble: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, expected = TROUBLES[trouble]
    hub.troubles[path] = [answer, answer]
    assert run.push() == ExitCode.OK
    there = hub.repositories[NAME]
    assert there.pushed == [3] and set(there.tags) == {"round-3"}
    assert len(waits) == 2 and (expected is None or waits == 2 * expected), waits
    assert capsys.readouterr().out.count("is tried again") == 1


@pytest.mark.parametrize("path", ["signature", "commit", "tag"])
def test_what_a_hub_did_before_it_failed_is_not_done_again(run: Run, hub: FakeHub, waits: list[float], path: str) -> None:
    hub.instead[path] = Answer(500)
    assert run.push() == ExitCode.OK
    there = hub.repositories[NAME]
    assert there.pushed == [3] and there.tags == {"round-3": there.commits[-1].id}
    assert len(waits) == 1 and sum(count for asked, count in hub.asked.items() if asked.startswith("PUT")) <= 1


def test_nothing_is_committed_on_what_somebody_else_changed_meanwhile(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = hub.repositories[NAME] = Repository()
    hub.troubles["/commit/"] = [Answer(412)]

    def change(seconds: float) -> None:
        there.commits.append(Commit("3" * 40, "by hand", {**there.files, "LICENSE": b"mine"}))

    monkeypatch.setattr("peer.hubs.pushing.time.sleep", change)
    assert run.push() == ExitCode.OK
    assert there.files["LICENSE"] == b"mine" and "manyhands.json" in there.files and len(there.commits) == 3
    assert "was changed by somebody else meanwhile (412)" in capsys.readouterr().out


def test_a_hub_that_stays_busy_ends_a_single_push_with_the_remedy(
    run: Run, hub: FakeHub, waits: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    hub.troubles["commit"] = [Answer(503)] * 100
    assert run.push() == ExitCode.FAILED
    assert "is busy (503); run the command again later; it continues where it stopped" in capsys.readouterr().err
    assert len(waits) == 4 and run.left == ["bf16"], "the next attempt needs no other export"
    hub.troubles.clear()
    run.grow(1)
    assert run.push() == ExitCode.OK
    assert hub.repositories[NAME].pushed == [3, 4], "the state that was begun is pushed"


REFUSALS = {
    "401": (
        Answer(401, headers={"X-Error-Message": f"Invalid credentials {TOKEN}"}),
        ExitCode.INPUT,
        "put a token with write",
    ),
    "html": (Answer(200, f"<html>{TOKEN}".encode()), ExitCode.FAILED, "does not answer as a hub"),
    "long once decoded": (
        Answer(200, gzip.compress(b" " * (repository.MAX_ANSWER + 1)), headers={"Content-Encoding": "gzip"}),
        ExitCode.FAILED,
        "its answer is too long",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("path", "refusal"), [*(("/commit/", each) for each in REFUSALS), ("preupload", "html")])
def test_what_a_hub_refuses_is_a_sentence_without_the_token(
    run: Run, hub: FakeHub, waits: list[float], path: str, refusal: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer, code, part = REFUSALS[refusal]
    hub.repositories[NAME] = Repository()
    hub.troubles[path] = [answer]
    assert run.push() == code
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1 and err.startswith("peer: ") and err[:-1].isprintable()
    assert TOKEN not in out + err and not waits
    assert hub.repositories[NAME].pushed == []


def test_an_answer_that_takes_too_long_is_given_up(
    run: Run, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def later(seconds: float) -> None:
        monkeypatch.setattr(repository, "ANSWER_S", 300.0)

    monkeypatch.setattr(repository, "ANSWER_S", -1.0)
    monkeypatch.setattr("peer.hubs.pushing.time.sleep", later)
    assert run.push() == ExitCode.OK
    assert "takes longer than" in capsys.readouterr().out


def test_only_the_hub_gets_the_token(run: Run, hub: FakeHub) -> None:
    with fake_hub() as other:
        hub.troubles["/api/models/me/our.model/commit"] = [Answer(307, headers={"Location": f"{other.address}/elsewhere"})]
        assert run.push() == ExitCode.INPUT
        assert hub.keys == {"hub": {f"Bearer {TOKEN}"}, "storage": {None}}
        assert other.keys["hub"] == {None}


def places(run: Run) -> list[bytes]:
    return [path.read_bytes() for path in run.data.rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["commit", "half", "tag"])
def test_a_state_whose_push_was_killed_is_pushed_once(run: Run, hub: FakeHub, moment: str) -> None:
    if moment == "half":
        hub.takes_half = True
    else:
        hub.instead[moment] = Answer(hold=True)
    process = run.started()
    assert hub.holding.wait(PATIENCE_S)
    process.kill()
    out, _ = process.communicate()
    assert TOKEN not in out
    assert run.left == ["bf16"] and not any(TOKEN.encode() in content for content in places(run))
    there = hub.repositories[NAME]
    assert there.pushed == ([3] if moment in ("commit", "tag") else [])
    if moment == "tag":
        assert run.push() == ExitCode.OK and not run.left, "nothing is left to do"
    run.grow(1)
    again = run.started()
    out, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, out
    assert there.pushed == [3, 4] and not run.left, "the state that was begun, and the newest"
    assert set(there.tags) == {"round-3", "round-4"}
    assert all(
        there.tags[f"round-{rounds}"] == each.id for rounds, each in zip(there.pushed, there.commits[1:], strict=True)
    )


def in_repository(hub: FakeHub, **files: bytes) -> Repository:
    hub.repositories[NAME] = there = Repository()
    there.commits.append(Commit("1" * 40, "by hand", {name.replace("_", "."): content for name, content in files.items()}))
    return there


STRANGE = {
    "another model": ({"config_json": b"{}"}, "that no run pushed"),
    "another run": ({"manyhands_json": b'{"run": "cd", "rounds": 1, "is_final": false}'}, "the model of another run"),
    "no state": ({"manyhands_json": b"[" * 100_000}, "the model of another run"),
}


@pytest.mark.parametrize("kind", STRANGE)
def test_a_repository_of_something_else_stays_as_it_is(
    run: Run, hub: FakeHub, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files, part = STRANGE[kind]
    there = in_repository(
        hub, **{name: content.replace(b"RUN", run.signed.run.hex().encode()) for name, content in files.items()}
    )
    assert run.push() == ExitCode.INPUT and len(there.commits) == 2
    assert part in capsys.readouterr().err


def test_a_card_of_somebody_stays_and_ours_is_kept_current(run: Run, hub: FakeHub) -> None:
    there = in_repository(hub, README_md=b"# By hand", LICENSE=b"mine")
    assert run.push() == ExitCode.OK
    assert there.files["README.md"] == b"# By hand" and there.files["LICENSE"] == b"mine" and there.files["config.json"]
    hub.repositories[NAME] = Repository()
    assert run.push() == ExitCode.OK
    run.grow(1)
    assert run.push() == ExitCode.OK
    assert b"round-4" in hub.repositories[NAME].files["README.md"]


def test_weights_of_another_division_into_files_are_removed(run: Run, hub: FakeHub) -> None:
    assert run.push() == ExitCode.OK
    there = hub.repositories[NAME]
    names = ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "mine/model.safetensors"]
    there.commits.append(Commit("2" * 40, "as a larger one", {**there.files, **dict.fromkeys(names, b"x")}))
    run.grow(1)
    assert run.push() == ExitCode.OK
    assert [name for name in there.files if "safetensors" in name] == ["model.safetensors", "mine/model.safetensors"]


@pytest.mark.slow
def test_a_run_is_pushed_to_a_repository_by_one_process(run: Run, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    hub.instead["batch"] = Answer(hold=True)
    process = run.started()
    assert hub.holding.wait(PATIENCE_S)
    assert run.push() == ExitCode.ALREADY_RUNNING
    assert "another process pushes this run" in capsys.readouterr().err
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("HF_TOKEN", "", "HF_TOKEN is not set"),
        ("HF_TOKEN", "hf_a\nb", "HF_TOKEN does not contain a token"),
        ("HF_ENDPOINT", "http://hub.example", "in the clear"),
    ],
)
def test_an_environment_that_does_not_do_is_told_without_the_token(
    run: Run,
    hub: FakeHub,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    part: str,
) -> None:
    monkeypatch.setenv(name, value)
    assert run.push() == ExitCode.INPUT
    err = capsys.readouterr().err
    assert part in err and not (value and value in err) and TOKEN not in err
    assert not hub.asked


@pytest.mark.parametrize("target", ["me/model", "hf:me/../x", "hf:a/b/c", "\x1b:a/b"])
def test_what_is_no_repository_is_refused(run: Run, hub: FakeHub, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "--push", target, "--data-dir", str(run.data)]) == ExitCode.INPUT
    assert "write hf:OWNER/NAME" in capsys.readouterr().err


def test_a_run_without_rounds_is_pushed_later(tmp_path: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(tmp_path / "data")
    assert run.push() == ExitCode.INPUT
    assert "no round of the run is on this disk yet" in capsys.readouterr().err
    assert main(["export", "--every", "3", "x", "--data-dir", str(run.data)]) == ExitCode.USAGE
    assert main(["export", "--data-dir", str(run.data)]) == ExitCode.USAGE
    assert run.push("--checkpoint", "3") == ExitCode.USAGE
