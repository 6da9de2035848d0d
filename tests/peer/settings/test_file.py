"""Where the value of a setting comes from, and what is said of a file that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.cli import main
from peer.errors import ExitCode, PeerError
from peer.settings.file import (
    CHANGED,
    FILE_NAME,
    KEPT,
    config_file,
    gather,
    keep_name,
    read_config,
    with_kept_name,
)
from peer.settings.preferences import without_settings

# ------------------------------------------------------------------------------------------------------------------------
# The name that a peer was once given.


NONE = {"PEER_CONFIG": ""}


def test_a_name_from_the_command_line_is_kept_for_later_starts(tmp_path: Path) -> None:
    keep_name(gather({"name": "attic"}, NONE), tmp_path)
    later = with_kept_name(gather({}, NONE), tmp_path)
    assert (later.now.name, later.settings["name"].source) == ("attic", KEPT)
    keep_name(later, tmp_path)
    assert with_kept_name(gather({}, NONE), tmp_path).now.name == "attic"


def test_whatever_else_says_a_name_goes_before_the_kept_one(tmp_path: Path) -> None:
    keep_name(gather({"name": "attic"}, NONE), tmp_path)
    assert with_kept_name(gather({"name": "cellar"}, NONE), tmp_path).now.name == "cellar"
    assert with_kept_name(gather({}, {**NONE, "PEER_NAME": "roof"}), tmp_path).now.name == "roof"


@pytest.mark.parametrize("kept", [b"\xff", b"a\x1b[2J", b"x" * 50, b""])
def test_a_damaged_file_keeps_no_name(tmp_path: Path, kept: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(kept)
    assert with_kept_name(gather({}, NONE), tmp_path).now.name == ""


# ------------------------------------------------------------------------------------------------------------------------
# Settings that change while a peer runs.


ENVIRONMENT = {"PEER_CONFIG": "", "PEER_SCHEDULE": "mon"}


def test_what_was_given_at_the_start_stays_until_it_is_changed(tmp_path: Path) -> None:
    live, heard = gather({"max_up": 5e6}, ENVIRONMENT), list[float | None]()
    live.listeners.append(lambda: heard.append(live.now.max_up))
    sources = {name: each.source for name, each in live.settings.items()}
    assert (sources["max_up"], sources["schedule"], sources["max_down"]) == ("--max-up", "PEER_SCHEDULE", "default")
    live.change("max_up", "20Mbit")
    live.change("max_up", None)
    live.change("schedule", "tue 08:00-09:00")
    found = live.settings
    assert heard == [2.5e6, None, None] and found["max_up"].source == "default"
    assert live.now.schedule is not None and live.now.schedule.text == "tue 08:00-09:00"
    assert found["schedule"].source == CHANGED


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("max_up", "much", "max_up: much is not a rate"),
        ("port", "4002", "takes effect at the next start"),
        ("colour", "red", "colour cannot change while the peer runs"),
    ],
)
def test_what_is_wrong_changes_nothing(name: str, text: str, said: str) -> None:
    live, heard = gather({}, ENVIRONMENT), list[None]()
    live.listeners.append(lambda: heard.append(None))
    before = dict(live.settings)
    with pytest.raises(PeerError, match=said):
        live.change(name, text)
    assert live.settings == before and heard == []


# ------------------------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str) -> dict[str, str]:
    (folder / "peer.toml").write_text(text)
    return {"PEER_CONFIG": str(folder / "peer.toml")}


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    environment = write(tmp_path, 'max_up = 4\nmax_down = "1MB"\nname = "attic"\n') | {"PEER_MAX_UP": "8", "PEER_NAME": ""}
    gathered = gather({"max_up": 3e6, "role": None}, environment)
    found = {name: (each.value, each.source) for name, each in gathered.settings.items()}
    assert found["max_up"] == (3e6, "--max-up")
    assert found["max_down"] == (1e6, str(tmp_path / "peer.toml"))
    assert found["name"] == ("attic", str(tmp_path / "peer.toml")), "an empty variable says nothing"
    assert found["role"] == ("auto", "default")
    assert gather({}, environment).settings["max_up"].source == "PEER_MAX_UP"
    assert gathered.now.max_down == 1e6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_upp = 3", "there is no setting max_upp; did you mean max_up?"),
        ('max_up = "much"', "max_up: much is not a rate"),
        ("max_up = ", "is not TOML"),
        ("threads = " + "9" * 5000, "is not TOML"),
        ("max_up = 3\nmax-up = 4", "max_up appears twice"),
        ("#" * (1 << 20) + "\nthreads = 3", "is larger than"),
    ],
)
def test_what_is_wrong_in_the_file_is_said_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PeerError, match="peer.toml") as caught:
        gather({}, write(tmp_path, text))
    assert said in caught.value.text and caught.value.exit_code is ExitCode.USAGE


def test_what_is_wrong_in_the_environment_is_said_with_the_variable() -> None:
    with pytest.raises(PeerError, match="PEER_MAX_UP: much is not a rate"):
        gather({}, {"PEER_CONFIG": "", "PEER_MAX_UP": "much"})


def test_the_file_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert config_file({"PEER_CONFIG": ""}) is None
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert config_file({}) == tmp_path / "manyhands" / "peer.toml"
    assert read_config(tmp_path / "not there") == {}
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(PeerError, match="is not TOML"):
        read_config(tmp_path / "binary")


def test_the_command_writes_one_key_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "peer.toml"
    monkeypatch.setenv("PEER_CONFIG", str(path))
    assert main(["config", "max-up", "20Mbit"]) == ExitCode.OK
    path.write_text("# mine\n" + path.read_text() + "threads = 2  # of four\n")
    assert main(["config", "threads", "3"]) == ExitCode.OK
    assert path.read_text() == '# mine\nmax_up = "20Mbit"\nthreads = 3  # of four\n'
    capsys.readouterr()
    assert main(["config", "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    (up,) = [each for each in told["settings"] if each["name"] == "max_up"]
    assert told["file"] == str(path) and (up["value"], up["shown"], up["source"]) == (2.5e6, "20Mbit", str(path))
    assert main(["config", "max_up", "--unset"]) == ExitCode.OK
    assert "max_up" not in path.read_text()
    assert capsys.readouterr().out.splitlines()[1:] == [
        "SETTING  VALUE     DEFAULT   FROM",
        "max_up   no limit  no limit  default",
    ]
    assert main(["config", "relay", "off"]) == ExitCode.OK
    assert capsys.readouterr().out.splitlines()[2].split() == ["relay", "off", "10Mbit", "peer.toml"]


def test_a_key_is_found_however_it_is_written_and_values_keep_their_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, link = tmp_path / "real.toml", tmp_path / "peer.toml"
    real.write_text("max-up = 4\n")
    link.symlink_to(real)
    monkeypatch.setenv("PEER_CONFIG", str(link))
    for words in (["max_up", "20"], ["name", "007"], ["on_battery", "yes"], ["schedule", "mon 18:00-22:00"]):
        assert main(["config", *words]) == ExitCode.OK
    written = 'max-up = "20"\nname = "007"\non_battery = "yes"\nschedule = "mon 18:00-22:00"\n'
    assert real.read_text() == written and link.is_symlink()
    assert main(["config", "max_up", "--unset"]) == ExitCode.OK and "max-up" not in real.read_text()
    capsys.readouterr()
    assert main(["config", "--json"]) == ExitCode.OK, "all kinds of values have a form in JSON"
    told = {each["name"]: each["value"] for each in json.loads(capsys.readouterr().out)["settings"]}
    assert (told["schedule"], told["name"], told["on_battery"]) == ("mon 18:00-22:00", "007", True)


def test_what_a_person_set_for_their_own_peer_is_not_for_a_demo() -> None:
    given = {"PEER_SCHEDULE": "mon", "PEER_RUN": "x", "PEER_SENSORS": "y", "PEER_DATA_DIR": "/d", "HOME": "/h"}
    assert without_settings(given) == {"PEER_DATA_DIR": "/d", "HOME": "/h", "PEER_CONFIG": ""}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["max_upp"], "did you mean max_up?"),
        (["--unset"], "--unset takes a setting"),
        (["max_up", "3"], "PEER_CONFIG is empty"),
    ],
)
def test_the_command_says_what_is_wrong(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *words]) == ExitCode.USAGE
    assert said in capsys.readouterr().err
