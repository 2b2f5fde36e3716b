"""Keep the model that answers in child processes, update it with labels, and replace it when its file changes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.export.deployed import Facts, read_content
from onsphere.service.answers import RequestError
from onsphere.service.assess import AssessRequest, Outcome, Reply, assess_requests
from onsphere.service.child import Child
from onsphere.service.labels import update_model
from onsphere.service.metrics import log_event
from onsphere.service.settings import Settings

_LABELS_PER_CALL = 1_000  # about as many as one request may bring


class LiveModel:
    """A model in two processes: one for small requests, and one for large ones and labels, for which nobody waits long.

    `last_label` is the number of the last label that the model was updated with, and `skipped` names requests whose
    labels it could not take.
    """

    def __init__(self, path: Path, content: bytes, settings: Settings) -> None:
        self.small, self.large = (Child(path, content, settings, gives_way=each) for each in (False, True))
        self.last_label, self._calibration = 0, None
        self.skipped: deque[str] = deque(maxlen=100)
        self._coverages: set[float] = set()
        self._lock = asyncio.Lock()
        try:
            for child in (self.small, self.large):
                child.start()
            self.facts, _ = self.small.wait(), self.large.wait()
        except BaseException:
            self.close()
            raise

    @property
    def trouble(self) -> str | None:
        """Why some requests are not answered at the moment."""
        return self.small.trouble or self.large.trouble

    async def assess(
        self, requests: Sequence[AssessRequest], *, is_large: bool, is_again: bool = False
    ) -> list[Outcome]:
        """Return the outcome of each request; one that crashes the process twice fails alone."""
        self._coverages.update(request.coverage for request in requests)
        known = (self.last_label, self._calibration)
        child = self.large if is_large else self.small
        try:
            found = await child.run(assess_requests, requests, calibration=known)
        except RequestError as error:
            if is_again or error.status != 422:
                return [error] * len(requests)
            alone = [await self.assess([each], is_large=is_large, is_again=True) for each in requests]
            return [outcome for (outcome,) in alone]
        except (OnsphereError, OSError) as error:  # the process cannot be started again
            return [RequestError(503, str(error))] * len(requests)
        for outcome in found:
            if isinstance(outcome, Reply):
                outcome.record.facts = self.facts
        return found

    async def restart(self, *, is_large: bool) -> None:
        """Start a process again that was killed or crashed, so that the next request finds it running."""
        await (self.large if is_large else self.small).restart()

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
        known = (self.last_label, self._calibration)
        arguments = (labels, sorted(self._coverages))
        self._calibration, skipped = await self.large.run(update_model, *arguments, calibration=known)
        self.last_label = labels[-1][0]
        for request, n_labels, name in skipped:
            log_event("labels", level=logging.ERROR, request=request, skipped=n_labels, type=name)
            self.skipped.append(request)

    def close(self) -> None:
        """End the processes."""
        for child in (self.small, self.large):
            child.close()


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
            self.trouble = f"Expected a model in {self._path}. Got an error: {type(error).__name__}: {error}."
            raise InvalidInputError(self.trouble) from error
        finally:
            self._is_loading = False

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # being replaced just now, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
