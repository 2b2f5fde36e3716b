"""Keep the model that answers in child processes, update it with labels, and replace it when its file changes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.export.deployed import Deployed, DeployedModel, Facts, make_trial_row, open_deployed, read_content
from onsphere.service.answers import RequestError
from onsphere.service.assess import ROWS_PER_CALL, AssessRequest, Outcome, Reply, assess_requests
from onsphere.service.batching import Batcher
from onsphere.service.child import Child, ChildError
from onsphere.service.labels import update_model
from onsphere.service.metrics import log_event
from onsphere.service.rows import JSON
from onsphere.service.settings import Settings

_LABELS_PER_CALL = 1_000  # about as many as one request may bring
_SMALL_BODY = 16 * 2**10  # bytes
_MAX_LARGE = 8  # large requests that wait
_LATE = 5.0  # seconds for a small request


def open_model(path: Path, content: bytes, settings: Settings) -> tuple[Deployed, Facts]:
    """Open a model and try it on one ordinary row."""
    try:
        model = open_deployed(path, content, coverage=settings.coverage, trusted=settings.trusted)
    except OnsphereError:
        raise
    except Exception as error:
        raise _make_file_error(path, error) from error
    try:
        model.assess(make_trial_row(model.facts), coverage=model.facts.coverage)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise InvalidInputError(
            f"Expected a model that answers. Got {path}, which fails on one row: {reason}. Fit or export it again."
        ) from None
    return model, model.facts


def replace_calibration(deployed: DeployedModel, calibration: Any) -> None:
    """Replace the calibration of a model by one that has followed labels."""
    deployed.model.calibration_ = calibration


def _make_file_error(path: Path, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"Expected a model in {path}. Got an error: {type(error).__name__}: {error}.")


class LiveModel:
    """A model in two processes: one for small requests, and one for large ones and labels, for which nobody waits long.

    `last_label` is the number of the last label that the model was updated with, and `skipped` names requests whose
    labels it could not take.
    """

    def __init__(self, path: Path, content: bytes, settings: Settings) -> None:
        self._path, self._settings = path, settings
        limits = {"start_timeout": settings.trial_timeout, "timeout": settings.timeout}
        self.small, self.large = (
            Child(open_model, path, content, settings, **limits, gives_way=each) for each in (False, True)
        )
        too_many = partial(RequestError, 503, f"{_MAX_LARGE} large requests wait already. Try again in a moment.")
        self._small_requests = Batcher(partial(self._assess, self.small), n_most=ROWS_PER_CALL)
        self._large_requests = Batcher(
            partial(self._assess, self.large), n_most=1, max_waiting=_MAX_LARGE, make_error=too_many
        )
        self.restarting = set[asyncio.Task[None]]()  # which end soon after `close`
        self.last_label, self._calibration = 0, None
        self.skipped: deque[str] = deque(maxlen=100)
        self._coverages: set[float] = set()
        self._lock = asyncio.Lock()
        try:
            for child in (self.small, self.large):
                child.start()
            self.facts, _ = self._wait(self.small), self._wait(self.large)
        except BaseException:
            self.close()
            raise

    def _wait(self, child: Child) -> Facts:
        try:
            return child.wait()
        except ChildError as error:
            seconds = self._settings.trial_timeout
            reason = (
                f"it does not answer one row within {seconds:g} s"
                if error.reason == "late"
                else "it crashes the process that tries it on one row"
            )
            raise InvalidInputError(
                f"Expected a model that answers. Got {self._path}: {reason}. Export it again, or fit it again."
            ) from None

    @property
    def trouble(self) -> str | None:
        """Why some requests are not answered at the moment."""
        if self.small.seconds_busy > _LATE:  # large requests may take long
            return f"The model has been working on a small request for {self.small.seconds_busy:.0f} s."
        down = self.small.trouble or self.large.trouble
        return down and f"The model did not come back from a request, and is loaded again: {down}."

    async def assess(self, request: AssessRequest) -> Reply:
        """Return the answer to a request, or raise a RequestError."""
        self._coverages.add(request.coverage)
        is_large = request.media_type != JSON or len(request.body) > _SMALL_BODY
        return await (self._large_requests if is_large else self._small_requests).do(request)

    async def _assess(
        self, child: Child, requests: Sequence[AssessRequest], *, is_again: bool = False
    ) -> list[Outcome]:
        """Return the outcome of each request; one that crashes the process twice fails alone."""
        try:
            return await self._run(child, assess_requests, requests)
        except RequestError as error:
            if is_again or error.status != 422:
                return [error] * len(requests)
            alone = [await self._assess(child, [each], is_again=True) for each in requests]
            return [outcome for (outcome,) in alone]

    async def _run(self, child: Child, task: Callable[..., Any], *arguments: Any) -> Any:
        """Run a task on the model as it is now, or raise a RequestError if its process does not."""
        state = (self.last_label, replace_calibration, self._calibration)
        try:
            return await child.run(task, self._settings, *arguments, state=state)
        except (OnsphereError, OSError) as error:  # the process cannot be started again
            raise RequestError(503, str(error)) from None
        except ChildError as error:
            if error.reason == "closed":
                raise RequestError(503, "The model was replaced, or the service ends. Try again in a moment.") from None
            log_event("child", level=logging.ERROR, reason=error.reason)
            restart = asyncio.create_task(child.restart())  # so that the next request finds it running
            self.restarting.add(restart)
            restart.add_done_callback(self.restarting.discard)
            if error.reason == "late":
                raise make_late_error(self._settings) from None
            raise RequestError(
                422, "Expected rows that can be read and assessed. Got some that crash the model."
            ) from None

    async def update(self, labels: Sequence[Any]) -> None:
        """Update the model with labels of the store: number, request, value and features of each, in their order.

        Requests in flight go on with the model as it was.
        """
        async with self._lock:
            unread = [label for label in labels if label[0] > self.last_label]
            part: list[Any] = []
            for _, group in groupby(unread, key=lambda label: label[1]):
                part += group
                if len(part) >= _LABELS_PER_CALL or part[-1] is unread[-1]:
                    await self._update(part)
                    part = []

    async def _update(self, labels: list[Any]) -> None:
        self._calibration, skipped = await self._run(self.large, update_model, labels, sorted(self._coverages))
        self.last_label = labels[-1][0]
        for request, n_labels, name in skipped:
            log_event("labels", level=logging.ERROR, request=request, skipped=n_labels, type=name)
            self.skipped.append(request)

    def close(self) -> None:
        """End the processes."""
        for child in (self.small, self.large):
            child.close()


def make_late_error(settings: Settings) -> RequestError:
    """Make the error of a request that takes too long."""
    return RequestError(504, f"Expected to answer within {settings.timeout:g} s. Send fewer rows at a time.")


class ServedModel:
    """The model that answers now; a newer one takes its place at once, and requests in flight keep theirs.

    `trouble` says why the file could not be loaded the last time it changed; the model before it still answers.
    """

    def __init__(self, settings: Settings) -> None:
        self._path, self._settings, self._is_loading = Path(settings.model), settings, False
        self._seen = self._read_signature()
        self.live = LiveModel(self._path, read_content(self._path), settings)
        self.loaded_at, self.trouble = time.time(), None

    @property
    def facts(self) -> Facts:
        """The facts about the model that answers now."""
        return self.live.facts

    def has_changed(self) -> bool:
        """Return whether the file is another one than at the last look."""
        return self._read_signature() not in (self._seen, None)

    async def reload(self, prepare: Callable[[LiveModel], Awaitable[object]]) -> LiveModel | None:
        """Load the file again, and return the model that answered before if another one does now.

        After any error the old model answers. `prepare` is called with another model before it answers; the same one
        goes on, with the labels that it was updated with.
        """
        if self._is_loading:  # on a file system that hangs, it may never end
            raise InvalidInputError(f"Expected to load {self._path}, which is being loaded. Try again in a moment.")
        self._is_loading = True
        try:
            self._seen = self._read_signature()
            reading = asyncio.ensure_future(asyncio.to_thread(read_content, self._path))
            if not (await asyncio.wait({reading}, timeout=self._settings.trial_timeout))[0]:
                self.trouble = f"Expected to read {self._path}. Got nothing for {self._settings.trial_timeout:g} s."
            content = await reading
            before, self.trouble = self.live, None
            if hashlib.sha256(content).hexdigest() == self.facts.sha256:
                return None
            live = await asyncio.to_thread(LiveModel, self._path, content, self._settings)
            await prepare(live)
            self.live, self.loaded_at = live, time.time()
            return before
        except OnsphereError as error:
            self.trouble = str(error)
            raise
        except Exception as error:  # whatever a file brings about, the next one is loaded again
            self.trouble = str(found := _make_file_error(self._path, error))
            raise found from error
        finally:
            self._is_loading = False

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # being replaced just now, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
