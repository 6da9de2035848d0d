"""The processes of a demo: ordinary `peer join` in folders of their own, that end with the demo, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peer.demo.cast import Part
from peer.demo.member import Member
from peer.errors import ExitCode, PeerError
from peer.installation import child_environment
from peer.settings.preferences import without_settings

LEAVE_DEADLINE_S = 15.0
LOG_TAIL_LINES = 8
LOG = "output.log"


def start_member(part: Part, folder: Path, manifest: Path, stop_after: int | None) -> Member:
    """Start the peer of a part in its `folder`, which is there."""
    command = [sys.executable, "-m", *part.program, "join", str(manifest)]
    command += ["--headless", "--log-format", "json", "--local", "--data-dir", str(folder), "--port", "0"]
    command += ["--name", part.name, "--role", part.role.value, "--until-eof", "--on-battery", "yes"]
    if stop_after is not None:
        command += ["--rounds", str(stop_after)]
    with (folder / LOG).open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=without_settings(child_environment(os.environ)),
            start_new_session=True,
        )  # Ctrl-C is ours to pass on
    return Member(part, folder, process)


def wait_for_all(members: Sequence[Member]) -> None:
    """Until those that were asked to leave have; raises PeerError when one does not end well."""
    deadline = time.monotonic() + LEAVE_DEADLINE_S
    for member in members:
        try:
            code = member.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise failure(member, "did not stop when asked to") from error
        if code != 0:
            raise failure(member, f"ended with exit code {code}")


def end_all(members: Sequence[Member]) -> None:
    """End every process that still runs, reap them all."""
    for member in members:
        if member.process.poll() is None:
            member.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + LEAVE_DEADLINE_S
    for member in members:
        try:
            member.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            member.process.kill()
            member.process.wait()


def failure(member: Member, what: str) -> PeerError:
    """What went wrong with a peer, with the end of its log."""
    output = (member.folder / LOG).read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    tail = "".join(f"\n    {line[:300]}" for line in output)
    return PeerError(f"{member.name} {what}; the end of its log:{tail}", ExitCode.FAILED)
