"""Run a model in a child process, which can be killed: to try a file before it goes live, and to read large requests.

A body of many megabytes holds the interpreter up while it is read, and a model or an Arrow body may crash or never come
back. In the child, that costs one request.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from multiprocessing import resource_tracker
from multiprocessing.util import Finalize
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from onsphere._internal.processes import exit_with_parent
from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.service.answers import RequestError
from onsphere.service.engine import Engine, ModelEngine, load_engine, make_trial_row, read_content
from onsphere.service.rows import add_key_column
from onsphere.service.settings import Settings

_MAX_KEYS = 8  # columns that name rows, remembered
_MORE_MEMORY = 2 * 2**30  # bytes that a request may take
_PRELOADED = ("onsphere.service.batching", "onnxruntime", "skops.io", "pandas", "pyarrow.csv")
_processes = multiprocessing.get_context("forkserver")  # which loads the libraries once for all children
_processes.set_forkserver_preload([*_PRELOADED])


class Child:
    """A process that has loaded a model from the bytes of its file."""

    def __init__(self, path: Path, content: bytes, settings: Settings) -> None:
        self._path, self._content, self._settings = path, content, settings
        self._lock, self._is_over = threading.RLock(), False
        self._process: Any = None
        self._connection: Any = None
        self._end: Any = None  # kills the process, at the latest when this one exits
        self._last_label = 0  # that the process knows of

    def start(self) -> None:
        """Start the process, and raise an InvalidInputError if the model cannot be loaded or fails on a trial row."""
        self._connection, theirs = _processes.Pipe()
        arguments = (theirs, self._path, self._content, self._settings)
        self._process = _processes.Process(target=_run_process, args=arguments, name="onsphere-child", daemon=True)
        with _start_apart():
            self._process.start()
        self._end = Finalize(self, _end_process, (self._process, self._connection), exitpriority=10)
        self._last_label = 0
        theirs.close()
        try:
            error = self._receive(self._settings.trial_timeout)
        except TimeoutError:
            error = f"it does not answer one row within {self._settings.trial_timeout:g} s"
        except EOFError:
            error = "it crashes the process that tries it on one row"
        if error is not None:
            self._discard()
            if isinstance(error, Exception):
                raise error
            raise InvalidInputError(
                f"Expected a model that answers. Got {self._path}: {error}. Export it again, or fit it again."
            )

    def assess(self, pending: Any, *, seconds: float) -> Any:
        """Return the reply to a request, or raise why there is none; the process is killed if it takes too long."""
        with self._lock:
            self.start_if_ended()
            engine = pending.live.engine
            calibration = None
            if isinstance(engine, ModelEngine) and engine.last_label != self._last_label:
                self._last_label, calibration = engine.last_label, engine.copy_calibration()
            try:
                self._connection.send((calibration, replace(pending, live=None, future=None)))
                reply = self._receive(seconds)
            except (TimeoutError, EOFError, OSError) as error:
                self._discard()
                if isinstance(error, TimeoutError):
                    raise RequestError(
                        504, f"Expected to answer within {self._settings.timeout:g} s. Send fewer rows at a time."
                    ) from None
                raise RequestError(
                    422, "Expected rows that can be read and assessed. Got some that end the process that tries to."
                ) from None
            if isinstance(reply, Exception):
                raise reply
            return replace(reply, record=replace(reply.record, facts=pending.live.engine.facts))

    def start_if_ended(self) -> None:
        """Start the process again, if it was killed or crashed."""
        with self._lock:
            if self._is_over:
                raise RequestError(503, "The model was replaced, or the service ends. Try again in a moment.")
            if self._process is None or not self._process.is_alive():
                self.start()

    def _receive(self, seconds: float) -> Any:
        if not self._connection.poll(max(seconds, 0.0)):
            raise TimeoutError
        return self._connection.recv()

    def close(self) -> None:
        """Kill the process for good; a request that it works on fails."""
        self._is_over = True
        process = self._process
        with suppress(AttributeError, ValueError):  # there is none, or it is being discarded
            process.kill()
        with self._lock:
            self._discard()

    def _discard(self) -> None:
        if self._process is not None:
            self._end()
            self._process = None


class LiveModel:
    """A model that answers: in this process, and in a child process for large requests."""

    def __init__(self, engine: Engine, child: Any) -> None:
        self.engine, self.child = engine, child
        self.choose_facts = lru_cache(maxsize=_MAX_KEYS)(lambda key: add_key_column(self.engine.facts, key))


class ServedModel:
    """The model that answers now; a newer one takes its place at once, and requests in flight keep theirs.

    `trouble` says why the file could not be loaded the last time it changed; the model before it still answers.
    """

    def __init__(self, settings: Settings) -> None:
        self._path, self._settings, self._lock = Path(settings.model), settings, threading.Lock()
        self._seen = self._read_signature()
        self.live = self._load(read_content(self._path))
        self.loaded_at, self.trouble = time.time(), None

    @property
    def facts(self) -> Any:
        """The facts about the model that answers now."""
        return self.live.engine.facts

    def _load(self, content: bytes) -> LiveModel:
        child = Child(self._path, content, self._settings)
        child.start()
        try:
            engine = load_engine(self._path, content, coverage=self._settings.coverage, trusted=self._settings.trusted)
            return LiveModel(engine, child)
        except BaseException:
            child.close()
            raise

    def has_changed(self) -> bool:
        """Return whether the file is another one than at the last look."""
        return self._read_signature() not in (self._seen, None)

    def reload(self, prepare: Callable[[Engine], object] = lambda engine: None) -> LiveModel | None:
        """Load the file again, and return the model that answered before if another one does now.

        After any error the old model answers. `prepare` is called with another model before it answers; the same one
        goes on, with the labels that it was updated with.
        """
        if not self._lock.acquire(blocking=False):  # on a file system that hangs, it may never be free again
            raise InvalidInputError(f"Expected to load {self._path}, which is being loaded. Try again in a moment.")
        try:
            self._seen = self._read_signature()
            content = read_content(self._path)
            before, self.trouble = self.live, None
            if hashlib.sha256(content).hexdigest() == self.facts.sha256:
                return None
            live = self._load(content)
            prepare(live.engine)
            self.live, self.loaded_at = live, time.time()
            return before
        except OnsphereError as error:
            self.trouble = str(error)
            raise
        except Exception as error:  # whatever a file brings about, the next one is loaded again
            self.trouble = f"Expected a model in {self._path}. Got an error: {type(error).__name__}: {error}."
            raise InvalidInputError(self.trouble) from error
        finally:
            self._lock.release()

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # being replaced just now, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


@contextmanager
def _start_apart() -> Generator[None]:
    """Start a process that neither runs the script of its parent again nor gets the signals that stop the parent.

    Such a signal may be sent to a whole group; the parent ends its processes itself.
    """
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


def run_child(connection: Any, path: Path, content: bytes, settings: Settings) -> None:
    """Load a model, try it on one row, and answer requests until the parent closes the connection."""
    from onsphere.service.batching import assess_together

    try:
        engine = load_engine(path, content, coverage=settings.coverage, trusted=settings.trusted)
        try_model(path, engine)
    except OnsphereError as error:
        connection.send(InvalidInputError(str(error)))
        return
    connection.send(None)
    live = LiveModel(engine, None)
    _limit_memory()
    while True:
        try:
            calibration, request = connection.recv()
        except EOFError:
            return
        if isinstance(engine, ModelEngine) and calibration is not None:  # labels have come since
            engine.model.calibration_ = calibration
        request.live = live
        [(_, outcome)] = assess_together([request], settings)
        if not isinstance(outcome, Exception):
            outcome = replace(outcome, record=replace(outcome.record, facts=cast(Any, None)))  # which the parent knows
        elif not isinstance(outcome, RequestError):
            outcome = RuntimeError(f"{type(outcome).__name__} in the child process: {outcome}")
        connection.send(outcome)
        del request, outcome


def try_model(path: Path, engine: Any) -> None:
    """Raise an InvalidInputError if a model fails on one ordinary row."""
    try:
        engine.assess(make_trial_row(engine.facts), coverage=engine.facts.coverage)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"Expected a model that answers. Got {path}, which fails on one row: {reason}. Fit or export it again."
        ) from None


def _limit_memory() -> None:
    """Let requests take so much more memory than the model, and give way to the requests that others wait for."""
    with suppress(OSError, ValueError):  # where the system does not say how much that is
        os.nice(5)
        used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (used + _MORE_MEMORY, used + _MORE_MEMORY))
