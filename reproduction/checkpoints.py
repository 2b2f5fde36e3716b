"""Keep unfinished work on disk, so that a run that was stopped continues where it was."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from reproduction.data.files import write_file

__all__ = ["Checkpoints"]


class Checkpoints:
    """The unfinished work of one seed: networks after each epoch, and the figures of methods that are done.

    Parameters
    ----------
    folder : Path
        Made when the first checkpoint is saved.

    Examples
    --------
    >>> import tempfile
    >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp()))
    >>> checkpoints.compute_once("HCM", lambda: {"AUROC": 0.9})
    {'AUROC': 0.9}
    >>> checkpoints.compute_once("HCM", lambda: {"AUROC": 0.5})
    {'AUROC': 0.9}
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_seed(cls, folder: Path, settings: Mapping[str, Any], seed: int) -> Checkpoints:
        """Return the checkpoints of a seed; other settings have others."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        return cls(folder / f"seed-{seed}-{digest}")

    def save(self, name: str, state: Any) -> None:
        """Keep tensors, numbers and words under a name, in place of what was kept under it before."""
        import torch

        content = io.BytesIO()
        torch.save(state, content)
        write_file(self.folder / f"{name}.pt", content.getvalue())

    def load(self, name: str) -> Any:
        """Return what was kept under a name, on the processor; None if there is nothing that can be read."""
        import torch

        try:
            return torch.load(self.folder / f"{name}.pt", map_location="cpu", weights_only=True)
        except (OSError, EOFError, IndexError, RuntimeError, UnpicklingError):
            return None

    def compute_once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was computed under a name before, or compute it and keep it; JSON must be able to hold it."""
        path = self.folder / f"{name}.json"
        try:
            return json.loads(path.read_bytes())
        except (OSError, ValueError):
            found = json.dumps(compute(), allow_nan=False)
        write_file(path, found.encode())
        return json.loads(found)

    def remove(self) -> None:
        """Remove everything: the seed is done."""
        shutil.rmtree(self.folder, ignore_errors=True)
