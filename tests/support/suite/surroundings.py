"""What a process inherits from whoever starts it, made the same for the whole suite, and for the processes that tests start.

A job in the background ignores SIGINT, and so would all that it starts; a terminal, a build server, torchrun or a user's own
settings have variables that libraries read.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

VARIABLES = {
    # What is printed: widths, colours, languages, time zones. Typer takes a build server for a terminal with colours.
    **dict.fromkeys(("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS")),
    **dict.fromkeys(("TTY_COMPATIBLE", "TTY_INTERACTIVE", "LC_ALL", "LC_CTYPE", "LC_NUMERIC", "LC_TIME", "LANGUAGE")),
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "TZ": "UTC",
    # How Python runs. Where no compiled modules were kept, each process that a test starts would compile them again.
    **dict.fromkeys(("PYTHONDONTWRITEBYTECODE", "PYTHONIOENCODING", "PYTHONOPTIMIZE", "PYTHONUNBUFFERED", "PYTHONUTF8")),
    **dict.fromkeys(("PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONVERBOSE", "PYTHONDEVMODE", "PYTHONTRACEMALLOC")),
    # Stages in tests are tiny: a second thread of torch only waits, several times as long where other processes want the cores.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("NUMBA_DISABLE_JIT", "NUMBA_NUM_THREADS", "NUMBA_DEBUG")),
    # Compiled kernels are this checkout's own, whatever else the machine has compiled, and kept from one run to the next.
    "NUMBA_CACHE_DIR": str(Path(__file__).parents[3] / "build" / "kernels"),
    # What torchrun and a cluster say of a job that this is not.
    **dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")),
    **dict.fromkeys(("TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE", "GLOO_SOCKET_IFNAME", "TORCH_LOGS")),
    **dict.fromkeys(("TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_DISTRIBUTED_DEBUG")),
    # A user's own settings of figures.
    "MPLBACKEND": None,
    "MATPLOTLIBRC": os.devnull,
}
"""What these variables of the environment are; None: not set."""


def settle() -> None:
    """Make them so, with the umask that most users have, and signals that end what they reach."""
    for name, value in VARIABLES.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.umask(0o022)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGALRM})
