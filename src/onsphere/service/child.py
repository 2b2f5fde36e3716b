"""Run tasks in a process of their own, which can be killed: a task that hangs or crashes it costs that task alone."""

from __future__ import annotations

import asyncio
import gc
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
from multiprocessing import get_context, resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Any

from onsphere._internal.processes import exit_with_parent
from onsphere.errors import OnsphereError
from onsphere.service.answers import FaultError, ServiceError, find_place

_LENGTH = struct.Struct("!i")  # before each message, as a connection of multiprocessing writes it
_BUFFER = 2**20  # bytes that are read ahead
_MORE_MEMORY = 2 * 2**30  # bytes that a task may take
_PRELOADED = ("onsphere.service.recorder", "onnxruntime", "skops.io", "pandas", "pyarrow.csv")
_processes = get_context("forkserver")  # which loads the libraries once for all children
_processes.set_forkserver_preload([*_PRELOADED])
_starting = threading.Lock()  # one process at a time


class ChildError(Exception):
    """A process did not do its task: it was "late" and was killed, or "crashed", or it is "closed" for good."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Child:
    """A process that has opened something and runs one task on it at a time; one that ends is started again.

    `open_it` is called in the process with the arguments; it returns what tasks work on, and what `wait` returns. The
    timeouts are those of opening it and of a task.
    """

    def __init__(
        self,
        open_it: Callable[..., tuple[Any, Any]],
        *arguments: Any,
        start_timeout: float,
        timeout: float,
        gives_way: bool = False,
    ) -> None:
        self._opening, self._start_timeout, self._timeout = (open_it, arguments, gives_way), start_timeout, timeout
        self._lock, self._is_over = asyncio.Lock(), False
        self._process: Any = None
        self._connection: Any = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._end: Any = None  # kills the process, at the latest when this one exits
        self._version = 0  # of the state that the process has
        self._since: float | None = None  # when a task began
        self.trouble: str | None = None  # why the process does not run

    @property
    def seconds_busy(self) -> float:
        """The seconds that the process has been working on its task."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def start(self) -> None:
        """Start the process, without waiting for it."""
        self._connection, theirs = _processes.Pipe()
        arguments = (theirs, *self._opening)
        process = _processes.Process(target=_run_process, args=arguments, name="onsphere-child", daemon=True)
        with _start_apart():
            process.start()
        self._process = process
        self._end = Finalize(self, _end_process, (self._process, self._connection), exitpriority=10)
        self._version = 0
        theirs.close()

    def wait(self) -> Any:
        """Return what the process says once it is open, or raise its error, or a ChildError."""
        try:
            is_ready = self._connection.poll(self._start_timeout)
            found = self._connection.recv() if is_ready else ChildError("late")
        except (EOFError, OSError):
            found = ChildError("crashed")
        if isinstance(found, Exception):
            self._discard()
            self.trouble = str(found)
            raise found
        self.trouble = None
        return found

    async def run(
        self, task: Callable[..., Any], *arguments: Any, state: tuple[int, Any, Any] = (0, None, None)
    ) -> Any:
        """Return what `task(opened, *arguments)` returns there, or raise its error, or a ChildError.

        The state is its version, a task that brings the process up to it, and an argument of this task, which comes
        first if the process has another version.
        """
        async with self._lock:
            reader, writer = await self._open_streams()
            version, *change = state
            content = pickle.dumps((None if version == self._version else change, task, arguments))
            self._since = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    writer.writelines([_LENGTH.pack(len(content)), content])
                    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                    found = pickle.loads(await reader.readexactly(length))
            except BaseException as error:
                self._discard()  # also where nobody waits for the answer any more, which would be taken for the next
                if not isinstance(error, TimeoutError | EOFError | OSError):
                    raise
                is_late = isinstance(error, TimeoutError)
                raise ChildError("closed" if self._is_over else "late" if is_late else "crashed") from None
            finally:
                self._since = None
            self._version = version
        if isinstance(found, Exception):
            raise found
        return found

    async def _open_streams(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the streams to and from the process; start it again if it was killed or crashed."""
        if self._streams is not None and self._streams[0].at_eof():
            self._discard()
        if self._process is None and not self._is_over:
            self.trouble = "the process is being started again"
            await asyncio.to_thread(lambda: (self.start(), self.wait()))
        if self._streams is None and not self._is_over:
            wire = socket.socket(fileno=os.dup(self._connection.fileno()))
            self._streams = await asyncio.open_connection(sock=wire, limit=_BUFFER)
        if self._is_over or self._streams is None:  # closed, perhaps meanwhile
            self._discard()
            raise ChildError("closed")
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


def run_child(connection: Any, open_it: Callable[..., tuple[Any, Any]], arguments: Any, gives_way: bool) -> None:
    """Open what tasks work on, and run them until the parent closes the connection."""
    opened, about = None, None
    try:
        opened, about = open_it(*arguments)
    except Exception as error:
        about = _make_sendable(error)
    connection.send(about)
    if opened is None:
        return
    _limit(gives_way)
    gc.collect()  # all that the libraries and the model hold would be looked through again and again, which
    gc.freeze()  # takes a tenth of a second in which nobody is answered
    while True:
        try:
            change, task, arguments = connection.recv()
        except EOFError:
            return
        try:
            if change is not None:
                change[0](opened, change[1])
            found = task(opened, *arguments)
        except Exception as error:
            found = _make_sendable(error)
        connection.send(found)
        del arguments, found


def _make_sendable(error: Exception) -> Exception:
    """Return an error that is known, or else one that says which it was: others may not survive the way."""
    if isinstance(error, OnsphereError | ServiceError):
        return error
    return FaultError(type(error).__name__, find_place(error), str(error))


def _limit(gives_way: bool) -> None:
    """Let tasks take so much more memory than what was opened, and give way to other processes."""
    if gives_way:
        os.nice(5)
    with suppress(OSError, ValueError):  # where the system does not say how much that is
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + _MORE_MEMORY, used + _MORE_MEMORY))
