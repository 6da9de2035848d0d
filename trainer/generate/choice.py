"""Choice between the built-in generator and vLLM.

The module imports neither torch nor vLLM, so that the peer process can choose in advance.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec

from trainer.extras import install_command


class GeneratorName(StrEnum):
    """Setting that names a generator; AUTO means the generator that suits this computer."""

    AUTO = "auto"
    BUILTIN = "builtin"
    VLLM = "vllm"


def vllm_is_installed() -> bool:
    """Return True if `import vllm` finds a package."""
    return find_spec("vllm") is not None


def choose_generator(wanted: GeneratorName, has_gpu: bool) -> tuple[GeneratorName, str]:
    """Return the generator to use here, and the reason in a few words.

    Raises ImportError with one sentence if vLLM is wanted but not installed.
    """
    if wanted is GeneratorName.BUILTIN:
        return wanted, "as set"
    installed = vllm_is_installed()
    if wanted is GeneratorName.VLLM:
        if not installed:
            raise ImportError(f"vLLM is not installed; set generator = builtin, or run {install_command('vllm')}")
        return wanted, "as set"
    if not has_gpu:
        return GeneratorName.BUILTIN, "vLLM needs a GPU to be faster"
    if not installed:
        return GeneratorName.BUILTIN, f"vLLM is not installed ({install_command('vllm')})"
    return GeneratorName.VLLM, "vLLM is installed, and the computer has a GPU"
