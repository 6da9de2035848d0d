"""An evening with friends: a folder of files in many forms becomes a model that all of them have.

The commands and the run file are those of docs/guides/data.md, with smaller numbers.  One friend comes late, one's computer
sleeps, one types Ctrl-C and comes back.  All of them stay to the end of the run, and export what they trained.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from peer.errors import ExitCode
from protocol.events import events as ev
from tests.e2e.own_texts import documents
from tests.e2e.swarm import PATIENCE_S, Peer, Swarm, invitation_in
from tests.e2e.test_invitation import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TOTAL_ROUNDS = 24
SMALLER = {
    "total_rounds = 200": f"total_rounds = {TOTAL_ROUNDS}",
    "dim = 256, layers = 6": "dim = 32, layers = 1",
    'from = "corpus"': 'from = "corpus", sequence_length = 64',
    "inner_steps = 100": "inner_steps = 60",
}
APART_ROUNDS = 2
"""Rounds of the others while one is away."""
FALSE_WORDS = ("Traceback", "unexpected", "Nursery", "never awaited", "None", "nan", "{")
"""Signs of a line that was not written for people."""
HARMLESS = ("went back", "is quiet", "is away", "clock", "busy", "sleep", "was silent")
"""Words of warnings that are right for those who slept, or on a computer as busy as this one."""


def write_folder(folder: Path) -> None:
    """A folder as people have them: texts, tables and records in several forms, a file cut off, a link."""
    texts = list(documents("stories", 700_000))
    parts = [texts[number::6] for number in range(6)]
    folder.mkdir()
    (folder / "letters.txt").write_text("\n\n".join(parts[0]))
    (folder / "notes.md").write_text("# Notes\n\n" + "\n\n".join(parts[1]))
    rows = "".join(json.dumps({"text": text}) + "\n" for text in parts[2])
    (folder / "posts.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    (folder / "posts.json").write_text(json.dumps([{"text": text} for text in parts[3]]))
    quoted = ('"' + text.replace('"', '""') + '"' for text in parts[4])
    (folder / "table.csv").write_text("text\n" + "\n".join(quoted) + "\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": parts[5]}), folder / "pages.parquet")
    (folder / "broken.jsonl.gz").write_bytes(gzip.compress(b'{"text": "cut off"}\n')[:-9])
    (folder / "link.txt").symlink_to(folder / "letters.txt")


def guide() -> tuple[str, list[list[str]]]:
    """The run file and the commands of the guide, with smaller numbers."""
    text = (ROOT / "docs" / "guides" / "data.md").read_text().split("## An evening with friends\n")[1].split("\n## ")[0]
    (run,) = re.findall(r"^```toml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for usual, smaller in SMALLER.items():
        assert usual in run, usual
        run = run.replace(usual, smaller)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return run, [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]


def warnings_of(peer: Peer) -> list[str]:
    """What a peer warned its owner of, in all its lives."""
    told = [json.loads(line) for line in peer.log.splitlines() if line.startswith("{")]
    return [each["text"] for each in told if each.get("level") in ("warning", "error")]


def says_the_end(peer: Peer) -> bool:
    return bool(peer.notices(ev.NoticeCode.RUN_ENDED))


def test_friends_train_a_model_on_a_folder_of_one_of_them(tmp_path: Path) -> None:
    run, (build, show, create, join, export, chat) = guide()
    assert join == ["peer", "join", "run.toml"] and chat == ["peer", "chat", "our-model"]
    with Swarm(tmp_path, f'admission = "invite"\n{run}') as swarm:
        organiser = swarm.peer("organiser", str(swarm.run_file))

        def types(typed: list[str], *more: str) -> str:
            """What a command of the guide prints; its files are below `tmp_path`."""
            named = [str(tmp_path / word) if word in ("corpus", "texts", "run.toml") else word for word in typed[1:]]
            return swarm.command(organiser.folder, *named, *more)

        write_folder(tmp_path / "texts")
        built = types(build)
        for said in (
            "table",
            "JSON array",
            "JSON lines",
            "Parquet",
            "link.txt",
            "broken.jsonl.gz",
            "a tokenizer of 417 tokens",
        ):
            assert said in built, built
        port = free_port()
        where = f"/ip4/127.0.0.1/tcp/{port}"
        assert "24 rounds" in types(show)
        created = types(create, "--address", where)
        invitation = invitation_in(created)
        organiser.start("--port", str(port), "--until-end")
        ann, ben, late = (swarm.peer(name, invitation) for name in ("ann", "ben", "late"))
        for friend in (ann, ben):
            friend.start("--until-end")
        swarm.whole(organiser, ann, ben)

        begun = swarm.newest()
        ann.kill(signal.SIGSTOP)  # its computer sleeps
        ben.kill(signal.SIGINT)
        assert ben.wait() == ExitCode.OK
        late.start("--until-end")
        swarm.until("rounds without two of them", lambda: organiser.committed >= begun + APART_ROUNDS)
        ann.kill(signal.SIGCONT)
        ben.start("--until-end")

        peers = [organiser, ann, ben, late]
        swarm.until("the end of the run", lambda: any(says_the_end(peer) for peer in peers))
        for peer in peers:
            assert peer.wait() == ExitCode.OK, peer.log[-2000:]
        assert len({peer.digests[TOTAL_ROUNDS] for peer in peers if TOTAL_ROUNDS in peer.digests}) == 1
        assert any(len(organiser.members_of(round)) == len(peers) for round in organiser.commits), "all of them at once"
        for peer in peers:
            for warning in warnings_of(peer):
                assert not any(word in warning for word in FALSE_WORDS), warning
                assert any(word in warning for word in HARMLESS), f"{peer.name}: {warning}"

        assert export == ["peer", "export", "our-model"]
        exports = [swarm.command(peer.folder, "export", str(tmp_path / f"{peer.name}.model")) for peer in (organiser, late)]
        assert all("final state of the run" in said for said in exports)
        one, other = (tmp_path / f"{peer.name}.model" for peer in (organiser, late))
        for path in one.iterdir():
            if path.name != "README.md":  # it says who exported
                assert path.read_bytes() == (other / path.name).read_bytes(), path.name
        answer = subprocess.run(
            [sys.executable, "-m", "peer", "chat", str(other), "--json", "--max-tokens", "8", "--temp", "0"],
            env=swarm.environment,
            input="the\n",
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert answer.returncode == 0 and json.loads(answer.stdout)["tokens"] >= 1, answer.stderr
