"""Run a model in a child process, which can be killed: a request that hangs or crashes it costs that request alone."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Any

from onsphere._internal.processes import exit_with_parent
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.export.deployed import DeployedModel, Facts, make_trial_row, open_deployed
from onsphere.service.answers import RequestError
from onsphere.service.metrics import log_event
from onsphere.service.settings import Settings

_LENGTH = struct.Struct("!i")  # before each message, as a connection of multiprocessing writes it
_BUFFER = 2**20  # bytes that are read ahead
_LATE = 5.0  # seconds for a small task
_MORE_MEMORY = 2 * 2**30  # bytes that a request may take
_PRELOADED = ("onsphere.service.assess", "onnxruntime", "skops.io", "pandas", "pyarrow.csv")
_processes = multiprocessing.get_context("forkserver")  # which loads the libraries once for all children
_processes.set_forkserver_preload([*_PRELOADED])
_starting = threading.Lock()  # one process at a time


class Child:
    """A process that has opened a model from the bytes of its file, and runs one task on it at a time.

    It is started again after a task that ends it. One for large requests gives way to others.
    """

    def __init__(self, path: Path, content: bytes, settings: Settings, *, gives_way: bool = False) -> None:
        self._arguments, self._settings = (path, content, settings, gives_way), settings
        self._lock, self._is_over = asyncio.Lock(), False
        self._process: Any = None
        self._connection: Any = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._end: Any = None  # kills the process, at the latest when this one exits
        self._version = 0  # of the calibration that the process has
        self._trouble: str | None = None
        self._since = math.inf  # when a task began

    @property
    def trouble(self) -> str | None:
        """Why the process does not answer at the moment; large requests may take long."""
        seconds = time.monotonic() - self._since
        if seconds > _LATE and not self._arguments[3]:
            return f"The model has been working on a small request for {seconds:.0f} s."
        return self._trouble

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._connection, theirs = _processes.Pipe()
        arguments = (theirs, *self._arguments)
        process = _processes.Process(target=_run_process, args=arguments, name="onsphere-child", daemon=True)
        with _start_apart():
            process.start()
        self._process = process
        self._end = Finalize(self, _end_process, (self._process, self._connection), exitpriority=10)
        self._version = 0
        theirs.close()

    def wait(self) -> Facts:
        """Return the facts about the model, or raise an InvalidInputError if it cannot be opened or fails on a row."""
        seconds, found = self._settings.trial_timeout, None
        try:
            is_late = not self._connection.poll(seconds)
            found = f"it does not answer one row within {seconds:g} s" if is_late else self._connection.recv()
        except (EOFError, OSError):
            found = "it crashes the process that tries it on one row"
        if isinstance(found, Facts):
            self._trouble = None
            return found
        self._discard()
        if isinstance(found, str):
            found = InvalidInputError(
                f"Expected a model that answers. Got {self._arguments[0]}: {found}. Export it again, or fit it again."
            )
        self._trouble = str(found)
        raise found

    async def run(self, task: Callable[..., Any], *arguments: Any, calibration: tuple[int, Any] = (0, None)) -> Any:
        """Return what `task(model, settings, *arguments)` returns there, or raise a RequestError if there is no answer.

        The calibration of the model is replaced first if the process has one of another version.
        """
        async with self._lock:
            reader, writer = await self._open_streams()
            self._since, (version, changed) = time.monotonic(), calibration
            content = pickle.dumps((None if version == self._version else changed, task, arguments))
            try:
                async with asyncio.timeout(self._settings.timeout):
                    writer.writelines([_LENGTH.pack(len(content)), content])
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    found = pickle.loads(await reader.readexactly(length))
            except BaseException as error:
                self._discard()  # also where nobody waits for the answer any more, which would be taken for the next
                if not isinstance(error, TimeoutError | EOFError | OSError):
                    raise
                if self._is_over:
                    raise _make_over_error() from None
                log_event("child", level=logging.ERROR, reason="late" if isinstance(error, TimeoutError) else "crashed")
                if isinstance(error, TimeoutError):
                    raise RequestError(
                        504, f"Expected to answer within {self._settings.timeout:g} s. Send fewer rows at a time."
                    ) from None
                raise RequestError(
                    422, "Expected rows that can be read and assessed. Got some that crash the model."
                ) from None
            finally:
                self._since = math.inf
            self._version = version
            return found

    async def _open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams to and from the process; start it again if it was killed or crashed."""
        if self._is_over:
            raise _make_over_error()
        if self._streams is not None and self._streams[0].at_eof():
            self._discard()
        if self._process is None:
            self._trouble = "The model did not come back from a request, and is loaded again."
            await asyncio.to_thread(lambda: (self.start(), self.wait()))
            if self._is_over:  # closed meanwhile
                self._discard()
                raise _make_over_error()
        if self._streams is None:
            wire = socket.socket(fileno=os.dup(self._connection.fileno()))
            self._streams = await asyncio.open_connection(sock=wire, limit=_BUFFER)
        return self._streams

    async def restart(self) -> None:
        """Start the process again, if it was killed or crashed."""
        with suppress(Exception):  # the next task says so
            async with self._lock:
                await self._open_streams()

    def close(self) -> None:
        """Kill the process for good; a task that it works on fails."""
        self._is_over = True
        self._discard()

    def _discard(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None
        if self._process is not None:
            self._end()
            self._process = None


def _make_over_error() -> RequestError:
    return RequestError(503, "The model was replaced, or the service ends. Try again in a moment.")


@contextmanager
def _start_apart() -> Generator[None]:
    """Start a process that neither runs the script of its parent again nor gets the signals that stop the parent.

    Such a signal may be sent to a whole group; the parent ends its processes itself.
    """
    with _starting:
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        resource_tracker.ensure_running()  # which would unblock the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            sys.modules["__main__"] = main


def _end_process(process: Any, connection: Any) -> None:
    process.kill()
    process.join()
    process.close()
    connection.close()


def _run_process(*arguments: Any) -> None:
    exit_with_parent()
    run_child(*arguments)


def run_child(connection: Any, path: Path, content: bytes, settings: Settings, gives_way: bool) -> None:
    """Open a model, try it on one row, and run tasks until the parent closes the connection."""
    try:
        model = open_deployed(path, content, coverage=settings.coverage, trusted=settings.trusted)
        try_model(path, model)
    except Exception as error:
        unknown = f"Expected a model in {path}. Got an error: {type(error).__name__}: {error}."
        connection.send(InvalidInputError(str(error) if isinstance(error, OnsphereError) else unknown))
        return
    connection.send(model.facts)
    _limit(gives_way)
    gc.collect()  # all that the libraries and the model hold would be looked through again and again, which
    gc.freeze()  # takes a tenth of a second in which nobody is answered
    while True:
        try:
            calibration, task, arguments = connection.recv()
        except EOFError:
            return
        if isinstance(model, DeployedModel) and calibration is not None:  # labels have come since
            model.model.calibration_ = calibration
        connection.send(task(model, settings, *arguments))
        del arguments


def try_model(path: Path, model: Any) -> None:
    """Raise an InvalidInputError if a model fails on one ordinary row."""
    try:
        model.assess(make_trial_row(model.facts), coverage=model.facts.coverage)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"Expected a model that answers. Got {path}, which fails on one row: {reason}. Fit or export it again."
        ) from None


def _limit(gives_way: bool) -> None:
    """Let requests take so much more memory than the model, and give way to other processes."""
    if gives_way:
        os.nice(5)
    with suppress(OSError, ValueError):  # where the system does not say how much that is
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + _MORE_MEMORY, used + _MORE_MEMORY))
