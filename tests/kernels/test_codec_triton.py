"""The GPU's codecs give the CPU's bytes: run in Triton's interpreter, and read as machine code.

Both in processes of their own, since Triton decides when it is imported whether it interprets.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(*arguments: str, interpret: bool) -> str:
    env = {**os.environ, "TRITON_INTERPRET": "1" if interpret else "0"}
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_interpreted_kernels_give_the_bytes_of_the_cpu() -> None:
    report = run("pytest", "-p", "no:cacheprovider", "tests/kernels/interpreted_codec.py", interpret=True)
    assert re.search(r"^47 passed", report, re.MULTILINE), report


@pytest.mark.slow
def test_compiled_kernels_round_every_operation_once() -> None:
    ptx = run("tests.kernels.compiled_for_cuda", interpret=False)
    assert ptx.count("div.rn.f32") >= 4 and "mul.rn.f32" in ptx and "sqrt.rn.f32" in ptx
    for inexact in ("fma.", "mad.f", "div.full", "div.approx", "rcp.", "sqrt.approx", ".ftz"):
        assert inexact not in ptx, f"{inexact} in the compiled kernels"
