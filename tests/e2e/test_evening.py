"""An evening with friends: a folder of files in many forms becomes a model that all of them have.

Nothing is told to the program but the folder, a run file of six lines and an invitation.  One friend comes late, one's
computer sleeps, one types Ctrl-C and comes back.  All of them stay to the end of the run, and export what they trained.
"""

from __future__ import annotations

import gzip
import json
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

TOTAL_ROUNDS = 24
RUN = f"""
name = "an evening"
total_rounds = {TOTAL_ROUNDS}
model = {{ dim = 32, layers = 1 }}
data = {{ from = "corpus", sequence_length = 64 }}
rounds = {{ inner_steps = 60, min_members = 2 }}
"""
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


def warnings_of(peer: Peer) -> list[str]:
    """What a peer warned its owner of, in all its lives."""
    told = [json.loads(line) for line in peer.log.splitlines() if line.startswith("{")]
    return [each["text"] for each in told if each.get("level") in ("warning", "error")]


def says_the_end(peer: Peer) -> bool:
    return bool(peer.heard(ev.RunEnded))


def test_friends_train_a_model_on_a_folder_of_one_of_them(tmp_path: Path) -> None:
    with Swarm(tmp_path, f'admission = "invite"\n{RUN}') as swarm:
        organiser = swarm.peer("organiser", str(swarm.run_file))
        write_folder(tmp_path / "texts")
        built = swarm.command(organiser.folder, "data", "build", str(tmp_path / "corpus"), str(tmp_path / "texts"))
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
        created = swarm.command(organiser.folder, "run", "create", str(swarm.run_file), "--address", where)
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
