"""Replace the model that answers by a newer one, once a child process has tried it on a row."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from onsphere.errors import InvalidInputError, OnsphereError
from onsphere.service.child import Child
from onsphere.service.engine import Engine, Facts, load_engine, read_content
from onsphere.service.rows import add_key_column
from onsphere.service.schemas import build_body_model
from onsphere.service.settings import Settings

__all__ = ["LiveModel", "ServedModel"]

_MAX_SCHEMAS = 8  # of requests that name rows by different columns


class LiveModel:
    """A model that answers: in this process, and in a child process for large requests."""

    def __init__(self, engine: Engine, child: Any, *, max_rows: int) -> None:
        self.engine, self.child, self._max_rows = engine, child, max_rows
        self.choose_schema = lru_cache(maxsize=_MAX_SCHEMAS)(self._build_schema)

    def _build_schema(self, key: str | None) -> tuple[Facts, Any]:
        """Return the facts about the columns, and the schema of rows, if a column of this name identifies each row."""
        facts = self.engine.facts if key is None else add_key_column(self.engine.facts, key)
        return facts, build_body_model(facts, self._max_rows)


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
            return LiveModel(engine, child, max_rows=self._settings.max_rows)
        except BaseException:
            child.close()
            raise

    def has_changed(self) -> bool:
        """Return whether the file is another one than at the last look."""
        return self._read_signature() not in (self._seen, None)

    def reload(self, prepare: Callable[[Engine], None] = lambda engine: None) -> LiveModel | None:
        """Load the file again, and return the model that answered before if another one does now.

        After any error the old model answers. `prepare` is called with another model before it answers; the same one
        goes on, with the labels that it was updated with.
        """
        with self._lock:
            self._seen = self._read_signature()
            try:
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

    def _read_signature(self) -> tuple[int, int, int] | None:
        try:
            found = self._path.stat()
        except OSError:  # being replaced just now, or gone
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
