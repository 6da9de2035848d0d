"""The script completes what a person has begun to type, in a real shell."""

from __future__ import annotations

import subprocess

import pytest

from peer.cli import main
from peer.commands.config import SHELLS


@pytest.mark.parametrize(
    ("typed", "completed"),
    [(["jo"], ["join"]), (["join", "--max-u"], ["--max-up"]), (["run", "inv"], ["invite"]), (["completion", "b"], ["bash"])],
)
def test_bash_completes_commands_options_and_choices(
    typed: list[str], completed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    words = " ".join(["peer", *typed])
    ask = f'COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _shtab_peer 2>/dev/null; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == completed, done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "peer" in capsys.readouterr().out
