"""No process that we start has the keys of services that it does not call."""

from __future__ import annotations

import ast
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import trio

from peer.corpora.options import BuildOptions
from peer.corpora.workers import start_worker
from peer.demo.cast import DemoPart
from peer.demo.swarm import start_member
from peer.discovery import mdns, upnp
from peer.environment import TRACKERS, ChildKind, child_environment
from peer.installation import ROOT
from peer.rests.sensors import run_program
from peer.tracking.child import _last_words
from peer.trainer_process.process import start_trainer
from peer.weights import harness
from protocol.wire.presence import Role
from trainer.data.tokenizer_json import TokenizerRefused, read_in_child
from tui.own_peer import OwnPeer

# -- every place that starts a process ---------------------------------------------------------------------------------

PRODUCT = ("kernels", "protocol", "trainer", "peer", "tui")
STARTS = {
    *(
        f"subprocess.{name}"
        for name in ("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput")
    ),
    *(f"asyncio.{name}" for name in ("create_subprocess_exec", "create_subprocess_shell")),
    *("trio.run_process", "trio.lowlevel.open_process", "concurrent.futures.ProcessPoolExecutor", "pty.fork", "pty.spawn"),
    *("_posixsubprocess.fork_exec", "os.system", "os.popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp"),
    *(f"os.{verb}{how}" for verb in ("exec", "spawn") for how in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
}
ALLOWED = {
    "trainer/ranks.py": "a rank is the same program as rank 0, and has its environment",
    "trainer/data/tokenizer_json.py": "has a list of its own, because `trainer` does not import `peer`",
    "trainer/environments/sandbox.py": "three variables, and no other",
    "trainer/environments/launcher.py": "forks within the sandbox",
}
"""Files with one start of a process that does not call `child_environment`, with the reason."""


MAY_START = re.compile(r"process|Process|exec|spawn|fork|popen|system|import_module|import [*]")
"""Text of each module that is looked at more closely."""


def faulty_starts(source: str) -> list[int]:
    """Lines of a module that start a process with an environment that does not come from `child_environment`."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                (each.asname or each.name.split(".")[0]): (each.asname and each.name) or each.name.split(".")[0]
                for each in node.names
            }
            found += [node.lineno for each in node.names if each.name.partition(".")[0] in ("multiprocessing", "pexpect")]
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {(each.asname or each.name): f"{node.module}.{each.name}" for each in node.names}
            if node.module.endswith("multiprocessing") or any(each.name == "*" for each in node.names):
                found.append(node.lineno)

    def dotted(node: ast.AST) -> str:
        match node:
            case ast.Name(id=name):
                return names.get(name, name)
            case ast.Attribute(value=value, attr=attribute):
                return f"{dotted(value)}.{attribute}"
        return ""

    definitions: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                definitions.setdefault(name, []).append(node)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                definitions.setdefault(name, []).append(value)

    def is_chosen(node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """True if an expression calls `child_environment`, itself or in what it names in this module."""
        inner = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        return "child_environment" in inner or any(
            is_chosen(each, seen | {name}) for name in inner - seen for each in definitions.get(name, [])
        )

    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    types = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(module)), *_]):
                found += [node.lineno] * (module in ("subprocess", "multiprocessing", "os", "pty"))
        if not isinstance(node, ast.Name | ast.Attribute) or id(node) in types:
            continue
        if dotted(node) in STARTS or dotted(node).endswith((".subprocess_exec", ".subprocess_shell")):
            call = called.get(id(node))
            given = [each.value for each in call.keywords if each.arg == "env"] if call else []
            if call and dotted(node).startswith("os.") and dotted(node).endswith("e"):
                given += call.args[-1:]
            if not any(map(is_chosen, given)):
                found.append(node.lineno)
    return sorted(found)


@pytest.mark.slow
def test_every_start_of_a_process_chooses_its_environment() -> None:
    paths = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
    texts = {path: path.read_text() for path in paths}
    found = {str(path.relative_to(ROOT)): faulty_starts(text) for path, text in texts.items() if MAY_START.search(text)}
    assert {path: len(lines) for path, lines in found.items() if lines} == dict.fromkeys(ALLOWED, 1), found
    assert sum("child_environment(" in text for text in texts.values()) >= 12, "the rule is about something"


@pytest.mark.parametrize(
    ("source", "is_right"),
    [
        ("import subprocess\nsubprocess.run(['x'])", False),
        ("from subprocess import run as go\ngo(['x'])", False),
        ("from functools import partial\nimport subprocess\npartial(subprocess.run, ['x'])()", False),
        ("import os\nos.execve('x', ['x'], os.environ)", False),
        ("import trio\nawait_ = trio.run_process(['x'], env={**os.environ})", False),
        ("import multiprocessing", False),
        ("from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()", False),
        ("from os import *", False),
        ("import subprocess\nsubprocess.run(['x'], env=child_environment(ChildKind.HELPER))", True),
        (
            "import subprocess\nmine = child_environment(HELPER) | {'A': 'b'}\nsubprocess.run(['x'], env=mine)",
            True,
        ),
        ("from multiprocessing.connection import Connection", True),
    ],
)
def test_the_rule_finds_starts_in_any_form(source: str, is_right: bool) -> None:
    assert (faulty_starts(source) == []) == is_right


# -- each kind of process, started for real ----------------------------------------------------------------------------

SECRETS = (
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"),
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OPENAI_API_KEY", "GITHUB_TOKEN", "VLLM_API_KEY"),
    *("PYTHON_KEYRING_PASSWORD", "TORCH_HUB_SECRET", "CUDA_LICENCE_KEY", "LC_AUTH", "HTTPS_PROXY", "http_proxy", "PEER_RUN"),
    *("SSH_AUTH_SOCK", "DATABASE_URL", "WHATEVER_ELSE"),
)
HUB = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
PROXIES = {"HTTPS_PROXY", "http_proxy"}
"""Addresses of proxies, which may hold a password."""
USEFUL = {
    "PATH": None,
    "HOME": None,
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TERM": "dumb",
}
NOTE = """
import os, pathlib
pathlib.Path({folder!r}, str(os.getpid())).write_bytes(pathlib.Path("/proc/self/environ").read_bytes())
"""
"""Runs at the start of every Python process, which keeps the environment with which the kernel began it."""

EMPTY = (sys.executable, "-c", "")


class Began:
    """Environments of the Python processes that began since the last look."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> list[dict[str, str]]:
        """Return and forget them."""
        found = []
        for path in sorted(self._folder.iterdir()):
            lines = path.read_bytes().decode().split("\0")
            found.append(dict(line.split("=", 1) for line in lines if line))
            path.unlink()
        return found


@pytest.fixture
def began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Began]:
    """Every key is set, and each process notes what it was given."""
    (tmp_path / "site").mkdir()
    (tmp_path / "began").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOTE.format(folder=str(tmp_path / "began")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    for name in SECRETS:
        monkeypatch.setenv(name, "secret")
    for name, value in USEFUL.items():
        if value is not None:
            monkeypatch.setenv(name, value)
    yield Began(tmp_path / "began")


def failing(command: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        command()


async def heard_mdns() -> None:
    process = await trio.lowlevel.open_process(
        mdns.COMMAND, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=child_environment(ChildKind.HELPER)
    )
    await process.wait()


async def trainer(folder: Path) -> set[str]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await start_trainer([theirs.fileno()] * 3, folder)
        found = secrets_of(process.pid)
        process.kill()
        await process.wait()
    return found


def worker(folder: Path) -> set[str]:
    _, process = start_worker(BuildOptions(), folder)
    with process:
        found = secrets_of(process.pid)
        process.kill()
    return found


def member(folder: Path) -> set[str]:
    folder.mkdir()
    with start_member(DemoPart("peer-1", Role.TRAINER), folder, folder / "no.manifest", None).process as process:
        found = secrets_of(process.pid)
        process.kill()
    return found


def secrets_of(pid: int) -> set[str]:
    """Names of the secrets of a process that was started."""
    process = psutil.Process(pid)
    while not (environment := process.environ()) and process.status() != psutil.STATUS_ZOMBIE:
        os.sched_yield()  # the kernel has not loaded the program yet: a start returns before that
    return {name for name, value in environment.items() if value == "secret"}


def given(began: Began, start: Callable[[], object], processes: int = 1) -> set[str]:
    """Names of the secrets that the processes got which this starts."""
    start()
    environments = began()
    assert len(environments) == processes
    for environment in environments:
        assert environment["PATH"] == os.environ["PATH"] and environment["LC_ALL"] == "C.UTF-8"
    return {name for environment in environments for name in environment if environment[name] == "secret"}


@pytest.mark.slow
def test_processes_that_call_no_service_get_no_key(began: Began) -> None:
    assert given(began, lambda: failing(lambda: upnp.ask("close", 1, "nowhere"), OSError)) == set()
    assert given(began, lambda: failing(lambda: read_in_child(b"{", frozenset()), TokenizerRefused)) == set()
    assert given(began, lambda: trio.run(heard_mdns)) == set()
    assert given(began, lambda: run_program(EMPTY)) == set()


def test_processes_that_compute_get_no_key(tmp_path: Path, began: Began) -> None:
    assert trio.run(trainer, tmp_path / "layers") == worker(tmp_path / "parts") == member(tmp_path / "member") == set()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert secrets_of(process.pid) == set(SECRETS), "so the look is a look"
        process.communicate(b"\n")


def own_peer() -> None:
    own = OwnPeer(["--version"])
    while own.ending() is None:
        os.sched_yield()
    own.detach()


def test_the_persons_own_peer_gets_every_key(began: Began) -> None:
    assert given(began, own_peer) == set(SECRETS)


@pytest.mark.slow
def test_the_interface_gets_no_key_unless_it_starts_the_persons_own_peer(began: Began) -> None:
    code = "from peer.commands import *; from peer.environment import *; become_interface(ChildKind.{}, '--replay', 'no')"
    for child, wanted in ((ChildKind.INTERFACE, set()), (ChildKind.SAME_PROGRAM, set(SECRETS))):
        subprocess.run([sys.executable, "-c", code.format(child.name)], capture_output=True, check=False)
        (environment,) = began()  # of the interface, which has the number of the process that it replaced
        assert {name for name in environment if environment[name] == "secret"} == wanted


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("tensorboard", set()),
        ("wandb", {"WANDB_API_KEY"} | PROXIES),
        ("mlflow", {"MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD"} | PROXIES),
    ],
)
def test_a_tracker_gets_its_own_key(kind: str, keys: set[str], began: Began) -> None:
    assert given(began, lambda: trio.run(_last_words, EMPTY, TRACKERS[kind])) == keys


def test_the_harness_gets_the_key_of_the_hub_alone(tmp_path: Path, began: Began) -> None:
    assert given(began, lambda: harness._run(EMPTY, tmp_path, lambda text: None)) == HUB | PROXIES


def test_a_trainer_gets_what_its_libraries_are_told_and_no_key_of_theirs() -> None:
    told = {"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "INFO", "TORCH_LOGS": "x", "LC_TIME": "C"}
    kept = child_environment(ChildKind.TRAINER, told | {"VLLM_API_KEY": "s", "CUDA_TOKEN": "s", "HF_TOKEN": "s"})
    assert kept == told | {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"}
