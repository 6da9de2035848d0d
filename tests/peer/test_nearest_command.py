"""Words that are no command, and the command that was meant."""

from __future__ import annotations

import pytest

from peer.cli import SYNONYMS, build_parser, main
from peer.errors import ExitCode

MEANT = {
    "stop": "peer leave",
    "quit": "peer leave",
    "start": "peer join",
    "strt": "peer join",
    "jion": "peer join",
    "statsu": "peer status",
    "logs": "peer watch",
    "Stop": "peer leave",
    "unpause": "peer resume",
    "settings": "peer config",
    "list": "peer runs",
    "create": "peer run create",
    "help": "peer --help",
    "run shwo": "peer run show",
    "run new": "peer run create",
    "run join": "peer join",
    "tasks lst": "peer tasks list",
}


@pytest.mark.parametrize("words", MEANT)
def test_the_nearest_command_is_named(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err == f"peer: there is no command `peer {words}`; did you mean `{MEANT[words]}`?\n"


def test_what_is_like_nothing_is_told_where_the_commands_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["\x1b[2Jzzz"])
    assert capsys.readouterr().err == "peer: there is no command `peer ?[2Jzzz`; `peer --help` lists them\n"


def test_every_command_that_is_suggested_exists(capsys: pytest.CaptureFixture[str]) -> None:
    for commands in SYNONYMS.values():
        for command in commands:
            with pytest.raises(SystemExit) as ended:
                build_parser().parse_args([*command.split(), "--help"])
            assert ended.value.code == 0, command
    capsys.readouterr()
