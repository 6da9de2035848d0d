"""Environment variables of the processes that we start, by kind of process.

A person's environment holds keys of services that most of our processes never call: HF_TOKEN, WANDB_API_KEY, AWS_… So a
process gets only the variables in the list of its kind, and every start of a process in this package and in `tui` calls
`child_environment`. The processes that a trainer starts get the trainer's variables, or fewer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum

from peer.installation import python_path

COMMON = (
    *("PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE", "LC_*", "TZ", "TZDIR"),
    *("PYTHON*", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_*", "GLIBC_TUNABLES", "MALLOC_*"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"),
)
"""Variables of every process.  A name that ends with * stands for all names with that beginning that are not secret."""
FOLDERS = ("PEER_DATA_DIR", "PEER_RUNTIME_DIR", "PEER_CONFIG")
"""Variables of processes that look for a peer's folders."""
COMPUTE = (
    *("OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "BLIS_*", "VECLIB_*", "NUMEXPR_*", "RAYON_*"),
    *("ATEN_*", "DNNL_*", "ONEDNN_*", "CUBLAS_*", "CUDNN_*", "MIOPEN_*"),
    *("CUDA_*", "NVIDIA_*", "NCCL_*", "HIP_*", "HSA_*", "ROCM_*", "ROCR_*", "GLOO_*"),
    *("TORCH*", "PYTORCH_*", "TRITON_*", "VLLM_*", "FLASHINFER_*", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE"),
    *("CC", "CXX", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"),
)
NETWORK = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""Variables of processes that call a service on the internet.  The address of a proxy may hold a password."""
TERMINAL = (
    *("TERM", "TERMINFO", "TERMINFO_DIRS", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "COLORTERM", "COLORFGBG", "VTE_VERSION"),
    *("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR*", "ESCDELAY", "TMUX", "STY", "TEXTUAL*", "WT_SESSION"),
)
DESKTOP = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY")
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)
"""Words that mark a name as secret; a process gets such a variable only if its list has the whole name."""


class ChildKind(Enum):
    """Kind of a process that we start, with the names of the variables that it gets."""

    SAME_PROGRAM = ("*",)
    """The person's own peer, or the interface of `peer join`, which starts it."""
    INTERFACE = (*COMMON, *FOLDERS, *TERMINAL)
    TRAINER = (*COMMON, *COMPUTE)
    MEMBER = (*COMMON, *COMPUTE, *FOLDERS)
    """Peer of a demo, on this computer alone."""
    HELPER = COMMON
    """Process that reads texts or answers of devices with little memory."""
    DESKTOP_QUERY = (*COMMON, *DESKTOP)
    HARNESS = (*COMMON, *COMPUTE, *NETWORK, "HF_*", "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")
    """Evaluation harness, which fetches data sets from the hub."""
    TENSORBOARD = (*COMMON, *FOLDERS)
    WANDB = (*COMMON, *FOLDERS, *NETWORK, "WANDB_*", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "NETRC")
    MLFLOW = (*COMMON, *FOLDERS, *NETWORK, "MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")


TRACKERS = {"tensorboard": ChildKind.TENSORBOARD, "wandb": ChildKind.WANDB, "mlflow": ChildKind.MLFLOW}
"""Process that tracks a run, by the kind of its tracker."""


def child_environment(child: ChildKind, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a process of this kind, given ours.

    With it, Python finds our packages, but no package in the working directory.
    """
    given = environment if child is ChildKind.SAME_PROGRAM else needed(child.value, environment)
    return {**given, "PYTHONPATH": python_path(environment), "PYTHONSAFEPATH": "1"}


def needed(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with these names; a name that ends with * stands for all names with that beginning."""
    exact, beginnings = frozenset(names), tuple(name[:-1] for name in names if name.endswith("*"))
    return {
        name: value
        for name, value in environment.items()
        if name in exact or (name.startswith(beginnings) and not SECRET.search(name))
    }
