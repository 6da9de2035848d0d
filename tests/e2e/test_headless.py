"""A peer without a terminal, as the programs around it see it: its first and last line, its exit code, its signals.

Mostly seeds, which need no trainer.  Nothing here waits for a time: a test reads lines, the end of a stream or of a process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import IO, Any

import pytest

from peer.control.client import ControlClient, NotRunning
from peer.errors import ExitCode
from protocol.events import events as ev
from protocol.events.events import from_fields
from protocol.events.status import PeerStatus
from tests.e2e.swarm import CONNECT_EVERY_S, PATIENCE_S, TINY_RUN, Swarm

pytestmark = pytest.mark.slow

JSON = ("--log-format", "json")


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swarm]:
    with Swarm.created(
        tmp_path_factory.mktemp("headless"), TINY_RUN.replace("inner_steps = 150", "inner_steps = 20")
    ) as swarm:
        yield swarm


@contextmanager
def seed(swarm: Swarm, *options: str, around: str = "exec {}", **streams: Any) -> Iterator[subprocess.Popen[str]]:
    """A headless seed of its own.  around: the shell line in which its command stands."""
    command = f"{sys.executable} -m peer join {swarm.manifest} --headless --local --role seed"
    command += f" --data-dir {swarm.place('seed')}"
    process = subprocess.Popen(
        ["bash", "-c", around.format(" ".join([command, *options]))],
        text=True,
        env=swarm.environment,
        stdin=subprocess.DEVNULL,
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=streams.get("stderr", subprocess.PIPE),
        restore_signals=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def said(process: subprocess.Popen[str]) -> tuple[int, list[str], str]:
    """Its exit code, the rest of its output, and its standard error, when it has ended."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, (out or "").splitlines(), err or ""


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def event(text: str) -> ev.Event:
    return from_fields({key: value for key, value in json.loads(text).items() if key not in ("at", "mono")})


def test_a_seed_keeps_a_page_about_the_run(swarm: Swarm) -> None:
    kept, once = swarm.place("www"), swarm.place("once")
    with seed(swarm, *JSON, "--name", "kitchen", "--page", str(kept)) as process:
        notice = ev.Notice("info", f"the page {kept / 'index.html'} is kept current")
        while event(line(process.stdout)) != notice:
            pass
        swarm.command(swarm.place("seed"), "page", str(once))
        process.send_signal(signal.SIGTERM)
        assert said(process)[0] == ExitCode.OK
    for folder in (kept, once):
        told, page = json.loads((folder / "run.json").read_text()), (folder / "index.html").read_text()
        assert [(each["name"], each["role"]) for each in told["peers"]] == [("kitchen", "seed")]
        assert told["run"]["id"] in page and "kitchen" in page and f"peer join {told['invitation']}" in page


def test_the_first_line_says_who_and_where_and_the_last_how_it_ended(swarm: Swarm) -> None:
    with seed(swarm, *JSON, "--name", "kitchen") as process:
        first = event(line(process.stdout))
        assert isinstance(first, ev.Started)
        assert (first.name, first.run_name, first.pid, first.data_dir) == (
            "kitchen",
            "tiny",
            process.pid,
            str(swarm.place("seed")),
        )
        assert first.peer in first.addresses[0] and len(first.run) == 64 and first.version
        while not isinstance(event(line(process.stdout)), ev.PhaseChanged):
            continue  # until its node runs, and has somebody to say goodbye
        process.send_signal(signal.SIGTERM)
        code, lines, err = said(process)
    last = event(lines[-1])
    assert isinstance(last, ev.Left) and (last.exit_code, last.problem, last.goodbye) == (0, "", True)
    assert (code, err) == (ExitCode.OK, "") and [json.loads(text)["event"] for text in lines].count("Started") == 0


@pytest.mark.parametrize("style", [(), JSON])
def test_a_peer_ends_with_its_reader(swarm: Swarm, style: tuple[str, ...]) -> None:
    with seed(swarm, *style) as process:
        assert line(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == ExitCode.OUTPUT
        assert process.stderr is not None
        err = process.stderr.read()
        assert err.count("\n") == 1 and "nobody reads standard output any more" in err


def test_a_peer_that_ignores_its_reader_goes_on_until_it_is_told_to_leave(swarm: Swarm) -> None:
    with seed(swarm, "--ignore-closed-output") as process:
        assert line(process.stdout)
        with ControlClient(swarm.place("seed")).events() as stream:
            assert process.stdout is not None
            process.stdout.close()
            texts = (stamped.event.text for stamped in stream if isinstance(stamped.event, ev.Notice))
            assert any("continuing anyway" in text for text in texts)
        swarm.command(swarm.place("seed"), "leave")
        assert process.wait(PATIENCE_S) == ExitCode.OK


def test_the_reader_may_go_together_with_standard_error(swarm: Swarm) -> None:
    with seed(swarm, stderr=subprocess.STDOUT) as process:
        assert line(process.stdout)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == ExitCode.OUTPUT


def test_a_full_disk_behind_standard_output_does_not_end_the_peer(swarm: Swarm) -> None:
    def told(events: Sequence[ev.Event]) -> int:
        return sum(isinstance(each, ev.Notice) and "No space left" in each.text for each in events)

    with seed(swarm, around="exec {} > /dev/full") as process, followed(swarm, process) as stream:
        events, coming = [stamped.event for stamped in stream.recent], iter(stream)
        while not told(events):
            events.append(next(coming).event)
        swarm.command(swarm.place("seed"), "leave")
        events += [stamped.event for stamped in coming]
        assert said(process)[0] == ExitCode.OK
    assert told(events) == 1


def test_a_pipe_that_nobody_empties_holds_nothing_up(swarm: Swarm) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while True:
        try:
            os.write(writer, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(writer, True)
    with seed(swarm, *JSON, stdout=writer) as process, followed(swarm, process):
        assert json.loads(swarm.command(swarm.place("seed"), "status", "--json"))["running"] is True
        swarm.command(swarm.place("seed"), "leave")
        assert process.wait(PATIENCE_S) == ExitCode.OK
    os.close(reader)
    os.close(writer)


@contextmanager
def followed(swarm: Swarm, process: subprocess.Popen[str]) -> Iterator[Any]:
    """The events of a peer whose output tells nothing."""
    while True:
        assert process.poll() is None
        try:
            stream = ControlClient(swarm.place("seed")).events()
            break
        except NotRunning:
            time.sleep(CONNECT_EVERY_S)
    with stream:
        yield stream


def test_closed_descriptors_are_nobodys_output(swarm: Swarm) -> None:
    with seed(swarm, around="exec {} <&- >&- 2>&-") as process, followed(swarm, process):
        targets = {os.readlink(f"/proc/{process.pid}/fd/{descriptor}") for descriptor in range(3)}
        assert targets == {os.devnull}
        swarm.command(swarm.place("seed"), "leave")
        assert process.wait(PATIENCE_S) == ExitCode.OK


@pytest.mark.parametrize("style", [(), JSON])
def test_a_fatal_error_is_told_once(swarm: Swarm, style: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with seed(swarm, *style, "--port", str(port), stderr=subprocess.STDOUT) as process:
            code, lines, _ = said(process)
    assert code == ExitCode.RESOURCES
    assert sum(f"port {port} is in use" in text for text in lines) == 1


def test_under_nohup_a_terminal_that_hangs_up_is_nobodys_business(swarm: Swarm) -> None:
    with seed(swarm, *JSON, around="trap '' HUP; exec {}") as process:
        assert isinstance(event(line(process.stdout)), ev.Started)
        process.send_signal(signal.SIGHUP)
        ControlClient(swarm.place("seed")).request("status")
        process.send_signal(signal.SIGTERM)
        code, lines, _ = said(process)
    assert code == ExitCode.OK and sum("leaving; a second request" in text for text in lines) == 1


def test_a_leaver_and_those_who_stay_tell_the_same_story(swarm: Swarm) -> None:
    """Also: progress comes at most once a second, and status has the keys of its definition, in their order."""
    one, two = swarm.peer("one").start(), swarm.peer("two").start()
    rounds = swarm.whole(one, two)
    swarm.equal(rounds, one, two)
    status = json.loads(swarm.command(one.folder, "status", "--json"))
    assert list(status) == ["running", *(field.name for field in fields(PeerStatus))] and status["tokens_per_s"] > 0
    assert two.leave() == 0
    swarm.until("the news", lambda: any(gone.peer == two.peer_id for gone in one.heard(ev.PeerGone)))
    gone = next(gone for gone in one.heard(ev.PeerGone) if gone.peer == two.peer_id)
    left = event(two.log.splitlines()[-1])
    assert isinstance(left, ev.Left) and (left.goodbye, left.problem) == (True, "")
    assert left.rounds is not None and left.rounds >= rounds
    assert gone.goodbye or left.heard_by == 0, "a peer that confirmed the goodbye does not count the leaver as silent"
    later = one.events[one.events.index(gone) :]
    assert not [suspect for suspect in later if isinstance(suspect, ev.PeerSuspected) and suspect.peer == two.peer_id]
    assert one.leave() == 0
    for peer in (one, two):
        lines = [json.loads(text) for text in peer.log.splitlines()]
        progress, life_s = [text for text in lines if "Progress" in text["event"]], lines[-1]["mono"] - lines[0]["mono"]
        assert progress and len(progress) <= life_s + 2, (progress, life_s)
