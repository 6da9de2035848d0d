"""The command line: quick, one sentence for every mistake, and an exit code that says which."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peer.cli import GROUPS, ORDER, SYNONYMS, build_parser, main
from peer.errors import ExitCode
from protocol.formatting import visible
from protocol.run.admission import DEFAULT_USES, read_token, verify_admission
from protocol.run.invitation import read_invitation
from protocol.run.manifest import open_manifest
from protocol.run.run_file import parse_run_file
from protocol.wire.hashes import Hash
from protocol.wire.identity import Identity, PeerId
from protocol.wire.presence import Role

# ------------------------------------------------------------------------------------------------------------------------
# Words that are no command, and the command that was meant.


MEANT = {
    "stop": "peer leave",
    "start": "peer join",
    "jion": "peer join",
    "help": "peer --help",
    "run shwo": "peer run show",
    "tasks lst": "peer tasks list",
}


@pytest.mark.parametrize("words", MEANT)
def test_the_nearest_command_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err == f"peer: there is no command `peer {words}`; did you mean `{MEANT[words]}`?\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("join --no-ui", "`peer join` has no option --no-ui; `peer join --help` explains the command"),
        ("leave now", "`peer leave` does not take the word now; `peer leave --help` explains the command"),
        ("run extend", "one of the arguments --tokens --rounds is required; `peer run extend --help` explains"),
        ("run extend --rounds x", "argument --rounds: x is not a whole number from 1 to 9007199254740992; `peer run"),
        ("run create", "the following arguments are required: RUN.toml; `peer run create --help` explains"),
        ("--frobnicate", "`peer` has no option --frobnicate; `peer --help` explains"),
        ("leave --\x1b[2J", "`peer leave` has no option --?[2J; "),
    ],
)
def test_mistakes_in_words_are_told_in_one_line(words: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split(" "))
    said = capsys.readouterr().err
    assert ended.value.code == ExitCode.USAGE and said.startswith(f"peer: {told}") and said.count("\n") == 1


@pytest.mark.parametrize("words", ["leave", "finish", "pause", "resume", "run extend --rounds 5"])
def test_without_a_peer_a_command_says_what_to_do(words: str, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = failure(capsys, *words.split())
    assert code == ExitCode.NOT_RUNNING
    assert text.endswith("; start one with `peer join`, or name the directory of a running peer with --data-dir\n")


@pytest.mark.slow
def test_every_command_that_is_suggested_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for commands in SYNONYMS.values():
        for command in commands:
            with pytest.raises(SystemExit) as ended:
                build_parser().parse_args([*command.split(), "--help"])
            assert ended.value.code == 0, command
    capsys.readouterr()


# ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PEER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PEER_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "data"


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    text = capsys.readouterr().err
    assert text.startswith("peer: ") and text.count("\n") == 1
    return code, text


def created(capsys: pytest.CaptureFixture[str], path: Path, text: str) -> str:
    path.write_text(text)
    assert main(["run", "create", str(path), "--address", "/ip4/192.0.2.1/tcp/4001"]) == ExitCode.OK
    return capsys.readouterr().out.splitlines()[-1]


def test_help_lists_every_command_in_a_group_and_join_first() -> None:
    parser = build_parser()
    (commands,) = (each for each in parser._actions if each.dest == "==SUPPRESS==" and each.choices)
    assert sorted(ORDER) == sorted(commands.choices or ())
    shown = parser.format_help()
    listed = [
        line.split()[0]
        for line in shown[shown.index("commands:") :].splitlines()
        if line.startswith("    ") and line[4] != " "
    ]
    assert listed == ORDER and listed[0] == "join"
    assert all(f"\n  {heading}:\n" in shown for heading, _ in GROUPS)


def test_an_exported_identity_can_be_imported(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = str(tmp_path / "copy.pem")
    assert main(["id"]) == main(["id", "export", copy]) == ExitCode.OK
    assert main(["id", "import", copy, "--data-dir", str(tmp_path / "other")]) == ExitCode.OK
    assert main(["id", "--data-dir", str(tmp_path / "other")]) == ExitCode.OK
    lines = capsys.readouterr().out.split()
    assert lines[0] == lines[-1]
    assert failure(capsys, "id", "export", copy)[0] == ExitCode.IDENTITY
    assert failure(capsys, "id", "import", copy)[0] == ExitCode.IDENTITY
    assert failure(capsys, "id", "import", str(tmp_path / "none"))[0] == ExitCode.INPUT


def test_a_run_is_created_and_shown(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    invitation = created(capsys, tmp_path / "run.toml", 'name = "mine"\n')
    run = read_invitation(invitation).run.hex()
    for what in ([invitation[:60], invitation[60:]], [run[:8]], [str(tmp_path / "run.toml")]):  # a shell splits a paste
        assert main(["run", "show", *what]) == ExitCode.OK
        page = capsys.readouterr().out
        assert run in page and "name        mine\n" in page and "inner_steps" not in page
        assert len(page.splitlines()) <= 24 and page.endswith("`--all` prints every field, as a run file.\n")
        assert main(["run", "show", *what, "--all"]) == ExitCode.OK
        whole = capsys.readouterr().out
        assert run in whole and 'name = "mine"' in whole and "inner_steps = " in whole
        assert parse_run_file(whole, PeerId(read_invitation(invitation).organiser)).name == "mine"


def test_warnings_about_an_invitation_stand_behind_it(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(OPEN)
    for words in (["run", "create", str(path)], ["run", "invite", "RUN"]):
        words[-1] = next((data / "runs").iterdir()).name if words[-1] == "RUN" else words[-1]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", sys.stdout)
            assert main(words) == ExitCode.OK
        lines = capfd.readouterr().out.splitlines()
        at = next(place for place, line in enumerate(lines) if line.startswith("mh1"))
        warnings = [place for place, line in enumerate(lines) if line.startswith("note: ")]
        assert warnings and min(warnings) > at, lines


GUEST, FRIEND = (Identity.from_seed(bytes([number]) * 32).peer_id for number in (7, 8))
INVITE = 'name = "mine"\nadmission = "invite"\n'
OPEN = 'name = "open to all"\nadmission = "open"\n'


def test_a_new_run_comes_with_one_invitation_for_all_friends(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "mine"\n')
    assert main(["run", "create", str(path), "--address", "/ip4/192.0.2.1/tcp/4001"]) == ExitCode.OK
    *lines, invitation = capsys.readouterr().out.splitlines()
    found = read_invitation(invitation)
    manifest = open_manifest((data / "runs" / found.run.hex() / "manifest").read_bytes()).manifest
    admitted = [verify_admission(manifest, Hash(found.run), peer, found.proof_for(peer), 0) for peer in (GUEST, FRIEND)]
    assert admitted[0] == admitted[1] and admitted[0].until_round is None
    assert admitted[0].uses == DEFAULT_USES and 29 * 86_400 < admitted[0].expires - time.time() <= 30 * 86_400
    said = {line.partition(" ")[0]: line for line in lines}
    until = time.strftime("%Y-%m-%d", time.gmtime(admitted[0].expires))
    assert f"admits up to {DEFAULT_USES} computers until {until}, and members stay" in said["invitation"]
    assert "has one vote, you too, and the run goes on while any of them is away" in said["votes"]


def test_the_organiser_invites_one_peer(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Hash(read_invitation(created(capsys, tmp_path / "run.toml", INVITE)).run)
    for words in ((run.hex()[:12], GUEST), (GUEST,)):
        assert main(["run", "invite", *words, "--expires", "1h", "--until-round", "9"]) == ExitCode.OK
        found = read_invitation(capsys.readouterr().out)
        assert found.token is not None and found.secret is None
        token = read_token(found.token, run, PeerId(found.organiser))
        assert (token.peer, token.until_round, token.uses) == (GUEST, 9, 1)


def test_the_organiser_invites_whoever_holds_the_invitation(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    signed = read_invitation(created(capsys, tmp_path / "run.toml", INVITE)).run.hex()
    assert main(["run", "invite", signed[:8], "--bearer", "--uses", "3", "--role", "seed"]) == ExitCode.OK
    text = capsys.readouterr().out
    found = read_invitation(text)
    assert found.token is not None and found.secret is not None
    manifest = open_manifest((data / "runs" / signed / "manifest").read_bytes()).manifest
    admitted = verify_admission(manifest, Hash(found.run), GUEST, found.proof_for(GUEST), role=Role.SEED)
    assert (admitted.uses, admitted.role) == (3, Role.SEED)
    assert main(["run", "show", text.strip()]) == ExitCode.OK
    assert "up to 3 peers" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "remedy"),
    [
        ([], ExitCode.USAGE, "`peer id`"),
        ([GUEST, "--bearer"], ExitCode.USAGE, "--bearer admits anybody; remove it"),
        ([GUEST, "--uses", "2"], ExitCode.USAGE, "--uses is allowed only with --bearer"),
        ([GUEST[:-1]], ExitCode.INPUT, "`peer id`"),
    ],
)
def test_mistakes_in_inviting_have_their_remedy(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: ExitCode, remedy: str
) -> None:
    created(capsys, tmp_path / "run.toml", INVITE)
    found, text = failure(capsys, "run", "invite", *words)
    assert found == code and remedy in text


def test_a_run_must_be_named_unless_there_is_one_to_invite_to(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no run of yours in " in failure(capsys, "run", "invite", GUEST)[1]
    run = read_invitation(created(capsys, tmp_path / "open.toml", OPEN)).run.hex()
    assert main(["run", "invite", run]) == ExitCode.OK
    told = capsys.readouterr()
    assert read_invitation(told.out).token is None and "everybody" in told.err
    created(capsys, tmp_path / "one.toml", INVITE)
    created(capsys, tmp_path / "two.toml", INVITE.replace("mine", "another"))
    code, text = failure(capsys, "run", "invite", GUEST)
    assert code == ExitCode.USAGE and "(mine)" in text and "(another)" in text and "(open to all)" not in text


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("https://example.org/run.toml", "download it yourself"),
        ("12D3KooWSAcDHkwJMmMvrDgV9h2YrXwjhZCmfsXEJHGAhrgk8sVB", "ask for an invitation"),
    ],
)
def test_words_that_name_no_run_have_their_remedy(
    data: Path, capsys: pytest.CaptureFixture[str], word: str, remedy: str
) -> None:
    for command in (["join", word, "--headless"], ["run", "show", word]):
        code, text = failure(capsys, *command)
        assert code == ExitCode.INPUT and remedy in text and word in text


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">/dev/full", "<&- >&- 2>&-", "2>/dev/full"])
def test_missing_and_full_standard_streams_are_survived(tmp_path: Path, closed: str) -> None:
    """Also: no descriptor of ours becomes somebody's standard output, and the exit code is the command's."""
    program = f"{sys.executable} -m peer --data-dir {tmp_path}"
    made = subprocess.run(f"{program} id {closed}", shell=True, capture_output=True, text=True)
    assert made.returncode == (ExitCode.RESOURCES if closed == ">/dev/full" else ExitCode.OK)
    refused = subprocess.run(f"{program} join nothing {closed}", shell=True, capture_output=True, text=True)
    assert refused.returncode == ExitCode.INPUT
    for done in (made, refused):
        assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr and done.stderr.count("\n") <= 1


def test_a_sentence_about_a_file_of_strangers_cannot_move_the_cursor(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the name of a tensor, or the prompt of a task."""
    name = "a\x1b[2J\x9b\u202e\nb\ud800"
    run = tmp_path / "run.toml"
    run.write_text("[" + json.dumps("\x1b[2J\u202e", ensure_ascii=True) + "]\nx = 1\n")
    code, said = main(["run", "create", str(run)]), capsys.readouterr().err
    assert code == ExitCode.INPUT and "\\x1b[2J" in said and said.replace("\n", "").isprintable()
    assert visible(name) == "a\\x1b[2J\\x9b\\u202e\nb\\ud800"


def test_debug_shows_the_traceback(data: Path) -> None:
    from peer.errors import PeerError

    with pytest.raises(PeerError):
        main(["run", "show", "nothing", "--debug"])
