"""Nothing heavy is imported where it is not wanted: what a process has really loaded.

The arrows between the rooms are import-linter's contracts in pyproject.toml, which `make lint` checks.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

GPU_IMAGE = {"torch", "triton", "numpy", "tokenizers", "pydantic"}
"""What a trainer needs, besides what these bring along."""


def run(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded_after(statement: str) -> set[str]:
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    return set(run(sys.executable, "-c", code).split())


def modules_of(room: str) -> list[str]:
    return sorted(module.name for module in pkgutil.walk_packages([str(ROOT / room)], f"{room}."))


BLOCK_OTHERS = """
import importlib, importlib.metadata, re, sys
def closure(names):
    found, todo = set(), list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            wanted = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        todo += [re.match(r"[A-Za-z0-9._-]+", line)[0] for line in wanted if "extra ==" not in line]
    return found
allowed = closure({allowed!r})
owners = importlib.metadata.packages_distributions()
class OnlyAllowed:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        dists = {{re.sub(r"[-_.]+", "-", dist).lower() for dist in owners.get(top, [])}}
        is_leaf = name == "protocol" or name.startswith("protocol.formats")
        if top in {{"protocol", "peer", "tui"}} and not is_leaf or dists - {{"manyhands"}} and not dists & allowed:
            raise ModuleNotFoundError(f"{{name}} is not for trainers", name=name)
        return None
sys.meta_path.insert(0, OnlyAllowed())
for module in {modules!r}:
    importlib.import_module(module)
"""


@pytest.mark.slow
def test_kernels_and_trainer_import_with_little_besides_torch() -> None:
    modules = [name for name in modules_of("kernels") + modules_of("trainer") if not name.endswith("__main__")]
    run(sys.executable, "-c", BLOCK_OTHERS.format(allowed=GPU_IMAGE, modules=modules))


def test_the_block_of_the_test_above_blocks() -> None:
    with pytest.raises(AssertionError, match="trio is not for trainers"):
        run(sys.executable, "-c", BLOCK_OTHERS.format(allowed=GPU_IMAGE, modules=["trio"]))


def loaded_by(statement: str) -> set[str]:
    """Top-level modules that `statement` loads, less Python's own, Cython's and what every interpreter here starts with."""
    loaded = loaded_after(statement) - loaded_after("pass") - sys.stdlib_module_names
    return {name for name in loaded if "cython" not in name}


def test_help_loads_nothing_but_the_command_line() -> None:
    assert loaded_by("import peer.cli; peer.cli.build_parser()") == {"peer"}


WORDS = (
    "missing.toml",
    "missing",
    "abc",
    "00000000",
    "https://example.org/run.toml",
    "mh1" + "2" * 100,
    "12D3KooW" + "a" * 44,
)


@pytest.mark.slow
@pytest.mark.parametrize("command", (["run", "show"], ["run", "create"], ["join"], ["simulate"]), ids=" ".join)
def test_a_word_that_names_no_run_is_refused_before_anything_slow_is_loaded(command: list[str]) -> None:
    refused = f"import peer.cli; assert {{peer.cli.main([*{command}, word]) for word in {WORDS}}} == {{3}}"
    assert loaded_by(refused) <= {"peer", "protocol", "msgpack", "base58", "blake3", "platformdirs"}


def test_a_terminal_interface_starts_from_little() -> None:
    needed = "import tui, peer.control.client, protocol.events.events, protocol.events.status, protocol.version"
    assert loaded_by(needed) == {"tui", "peer", "protocol", "msgpack"}


@pytest.mark.slow
def test_protocol_never_imports_torch() -> None:
    imports = "\n".join(f"import {name}" for name in modules_of("protocol"))
    assert not loaded_after(imports) & {"torch", "triton", "peer", "trainer", "tui"}


def test_numbers_the_peer_needs_come_without_torch() -> None:
    assert not loaded_after("import kernels.codecs.ladder, kernels.aggregate, kernels.outer_step") & {"torch", "triton"}
