"""Kernels compiled: by a child process while other work goes on, kept in a cache, loaded from it.

Numba takes half a second to import and seconds to compile, so nothing imports it before compiled code is asked for, and a child
process does the compiling: work that needs no compiled code goes on (`compile_ahead`, `at_hand`), and a signal need not wait until
LLVM returns.

What the child has compiled stays in the cache, one file for each kernel: under `NUMBA_CACHE_DIR` if that is set, else under
`XDG_CACHE_HOME` or `~/.cache`, in `schedc`. Its name has the versions, the processor and the sources in it. It is written whole or
not at all, so that several processes may write it at once, and it is read only if its checksum is right. A directory that cannot
be written costs one line in the log; a temporary one takes its place. The child ends with its parent, so no process outlives
the command; what it has finished by then stays, so the next run has less to compile.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import io
import json
import logging
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from schedc.compiled.kernel import KERNELS, renamed
from schedc.errors import InvalidInput
from schedc.io.outputs import check_target, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    P = ParamSpec("P")
    R = TypeVar("R")

LOG = logging.getLogger("schedc")
OPTIONS = {"nogil": True}
"""How every kernel is compiled: climbs run beside each other in threads."""
CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from schedc.compiled.compiler import fill; fill(*sys.argv[2:])"

LOOK_S = 0.05
"""How often a wait looks whether a kernel has been written."""

_parts: dict[tuple[Any, tuple[str, ...], bool], Any] = {}
"""Kernels in numba's form, for those that call them: by function, what their caller does without, and whether it is lean."""
_loaded: dict[Any, Any] = {}
"""Kernels compiled, or loaded from the cache."""
_children: dict[Any, subprocess.Popen[bytes]] = {}
"""The child process that compiles, or compiled, each kernel."""
_scratches: list[TemporaryDirectory[str]] = []
"""Removed at the end of this process, after its children."""
_own: list[Path] = []
"""The cache of this process alone, where the usual one cannot be written."""
_lock = threading.RLock()


def at_hand(function: Callable[..., Any]) -> bool:
    """Whether `compiled` has nothing left to compile: the code is loaded, or in the cache."""
    return function in _loaded or _found(function) is not None


def compile_ahead(*functions: Callable[..., Any]) -> None:
    """Have these compiled by a child process, in this order, where they are not at hand; returns at once."""
    with _lock:
        wanted = [function for function in functions if not at_hand(function) and function not in _children]
        scratch = _scratch() if wanted and sys.executable and _directory() is not None else None
        if scratch is None:
            return
        names = [f"{function.__module__}:{function.__qualname__}" for function in wanted]
        command = [sys.executable, "-P", "-c", CHILD, json.dumps(sys.path), str(_directory()), scratch, *names]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _children.update(dict.fromkeys(wanted, child))


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The kernel compiled, for arguments of the types of its example; any others are a `TypeError`.

    Where it is not at hand this waits for the child process that compiles it. If that fails, it is compiled here.
    """
    if function not in _loaded:
        compile_ahead(function)
        _apart(_numba)  # loads while the child compiles
        child = _children.get(function)
        if child is not None:
            _wait_for(child, function)
        _apart(_load_once, function)
    form: Callable[P, R] = _loaded[function]
    return form


def fill(directory: str, scratch: str, *names: str) -> None:
    """Compile kernels into the cache: what the child process does, until its standard input ends.

    `scratch` is for files in between, removed at the end; if the child cannot, its parent removes it. Names are `module:function`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent, too, which decides
    gc.disable()  # compiling makes much and leaves little
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    for number, name in enumerate(names):
        module, _, attribute = name.partition(":")
        function = getattr(import_module(module), attribute)
        target, own = Path(directory) / _file_name(function), Path(scratch) / str(number)
        if not target.exists():
            _compile(function, str(own))
            write_atomically(target, _packed(own))
    shutil.rmtree(scratch, ignore_errors=True)  # now, as the parent may be killed


def _end_with_parent(scratch: str) -> None:
    """Wait for the end of standard input, which comes when the parent ends, however it ends."""
    while os.read(0, 1):
        pass
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


def _clean_up() -> None:
    """End the children, then remove what they worked on."""
    for child in set(_children.values()):
        child.kill()
        child.communicate()
    for scratch in _scratches:
        scratch.cleanup()


def _scratch() -> str | None:
    """A temporary directory that is removed at the end of this process; None: none can be made."""
    try:
        scratch = TemporaryDirectory(prefix="schedc-")
    except OSError:
        return None
    if not _scratches:
        atexit.register(_clean_up)
    _scratches.append(scratch)
    return scratch.name


def _wait_for(child: subprocess.Popen[bytes], function: Callable[..., Any]) -> None:
    """Wait until the function is in the cache, or the child has ended; what a signal's handler raises ends the wait."""
    while _found(function) is None:
        try:
            child.wait(timeout=LOOK_S)
        except subprocess.TimeoutExpired:
            continue
        if child.returncode:
            LOG.info("the process that compiles %s ended with status %d; compiling here", function.__qualname__, child.returncode)
        return


def _apart(work: Callable[..., Any], *arguments: Any) -> None:
    """Do this in a thread of its own: what a signal's handler raises ends the wait, and not numba's work.

    Of work that has ended halfway, numba keeps half, with which it can neither load nor compile anything in this process.
    """
    executor = ThreadPoolExecutor(1)
    doing = executor.submit(work, *arguments)
    executor.shutdown(wait=False)
    while wait([doing], timeout=LOOK_S).not_done:
        pass  # a signal that the system gave to another thread does not wake this one
    doing.result()


def _load_once(function: Callable[..., Any]) -> None:
    """Load it, unless another thread has."""
    with _lock:
        if function not in _loaded:
            _loaded[function] = function if _numba().config.DISABLE_JIT else _load(function)


def _load(function: Callable[..., Any]) -> Any:
    """The function compiled from what the cache has, else here."""
    scratch = _scratch()
    path = _found(function) if scratch else None
    packed = b""
    try:
        if path is not None:
            packed = _checked(path.read_bytes())
    except (OSError, zipfile.BadZipFile) as error:
        LOG.warning("schedc: note: compiled code in %s cannot be read (%s); compiling again", path, error)
    try:
        if packed:
            with zipfile.ZipFile(io.BytesIO(packed)) as files:
                files.extractall(scratch)
        form = _compile(function, scratch)
    except OSError as error:  # as where the disk is full
        LOG.warning("schedc: note: nothing can be written in %s (%s); compiling for this run alone", scratch, error)
        scratch, form = None, _compile(function, None)
    directory = _directory() if scratch and form.stats.cache_misses else None
    if scratch and directory:
        _keep(directory / _file_name(function), Path(scratch))
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)  # now, as this process may be killed
    return form


def _keep(target: Path, compiled_in: Path) -> None:
    """Put what was compiled here into the cache."""
    try:
        write_atomically(target, _packed(compiled_in))
    except InvalidInput as error:
        LOG.warning("schedc: note: compiled code is not kept: %s", error)


def _compile(function: Callable[..., Any], directory: str | None) -> Any:
    """The function in numba's form, compiled for its example's types, or loaded if the directory has it; no others are compiled."""
    numba = _numba()
    how = KERNELS[function]
    if how.example is None:
        raise ValueError(f"{function.__qualname__} has no example, so it is called by other kernels alone")
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, directory or ""
    try:
        whole = _with_parts(function, how.without, how.lean)
        form = numba.njit(whole, cache=directory is not None, _nrt=not how.lean, no_cfunc_wrapper=True, **OPTIONS)
        form.compile(tuple(numba.typeof(argument) for argument in how.example()))
    finally:
        numba.config.CACHE_DIR = before
    form.disable_compile()
    return form


def _with_parts(function: Callable[..., Any], without: tuple[str, ...], lean: bool) -> Any:
    """A copy of the function without these features that calls the kernels that it names in numba's form."""
    names = {name: value for name, value in function.__globals__.items() if name in function.__code__.co_names}
    names |= dict.fromkeys(names.keys() & set(without), False)
    for name, value in names.items():
        if isinstance(value, FunctionType) and value in KERNELS:
            key = value, without, lean
            if key not in _parts:
                # Python calls no part, so it needs none of numba's wrappers.
                wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
                copied = _with_parts(value, without, lean)
                _parts[key] = _numba().njit(copied, forceinline=KERNELS[value].inline, _nrt=not lean, **wrappers, **OPTIONS)
            names[name] = _parts[key]
    # Numba's names of compiled functions are unique in one process only. Of two loaded from the cache with one name, the first
    # would serve for both, so the name has all that may differ.
    name = "_".join((function.__name__, "without", *sorted(without), "lean" if lean else ""))
    return renamed(function, {**names, "__name__": function.__module__}, name)


def _numba() -> Any:
    import numba

    return numba


def _packed(directory: Path) -> bytes:
    """All files below the directory as a zip file, after its checksum."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as packed:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                packed.write(path, path.relative_to(directory))
    return hashlib.sha256(content.getvalue()).digest() + content.getvalue()


def _checked(packed: bytes) -> bytes:
    """The zip file of what `_packed` made; `zipfile` alone fails in many ways on a damaged one."""
    size = hashlib.sha256().digest_size
    if hashlib.sha256(packed[size:]).digest() != packed[:size]:
        raise zipfile.BadZipFile("its checksum is wrong")
    return packed[size:]


def _found(function: Callable[..., Any]) -> Path | None:
    """The function's file in the usual directory, even if nothing can be written there, or in this process's own."""
    name = _file_name(function)
    paths = (place / name for place in (_usual_directory(), *_own) if place)
    return next((path for path in paths if os.path.exists(path)), None)  # also False where the directory cannot be searched


@cache
def _file_name(function: Callable[..., Any]) -> str:
    """A name that is another wherever the compiled code could be another."""
    digest = hashlib.sha256(repr((_machine(), sorted({_stamp(__file__), *_sources(function)}))).encode())
    return f"{function.__module__}.{function.__qualname__}-{digest.hexdigest()[:32]}.kernel"


def _sources(function: Any) -> Iterator[tuple[str, int, int]]:
    """File, size and time of change of the sources of the function and of all kernels that it calls."""
    yield _stamp(function.__code__.co_filename)
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if isinstance(called, FunctionType) and called in KERNELS and called is not function:
            yield from _sources(called)


def _stamp(path: str) -> tuple[str, int, int]:
    status = os.stat(path)
    return path, status.st_size, status.st_mtime_ns


@cache
def _machine() -> tuple[object, ...]:
    """What compiled code depends on besides its source."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            processor = [line for line in iter(file.readline, "\n") if line.startswith(("flags", "Features", "model name"))]
    except OSError:
        processor = [platform.processor()]
    from importlib.metadata import version  # takes as long to import as all else here

    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_") and item[0] != "NUMBA_CACHE_DIR")
    versions = [version(name) for name in ("numba", "llvmlite", "numpy")]
    return sys.implementation.cache_tag, platform.machine(), processor, settings, versions


def _usual_directory() -> Path | None:
    """Where the cache is by the user's settings; None: the user has no home. XDG ignores relative paths."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    homes = (os.environ.get("XDG_CACHE_HOME", ""), os.path.join(os.path.expanduser("~"), ".cache"))
    found = chosen or next(filter(os.path.isabs, homes), None)
    return Path(found) / "schedc" if found else None


@cache
def _directory() -> Path | None:
    """Where compiled code is written: the usual directory, else a temporary one of this process; None: nowhere."""
    usual = _usual_directory()
    try:
        if usual is None:
            raise InvalidInput("the user has no home")
        usual.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_target(usual / "any.kernel")
    except (OSError, InvalidInput) as error:
        LOG.warning("schedc: note: compiled code cannot be kept, so each run compiles it anew; set NUMBA_CACHE_DIR: %s", error)
    else:
        return usual
    own = _scratch()
    if own is None:
        return None
    _own.append(Path(own))
    return _own[-1]
