"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing import parent_process

__all__ = ["exit_with_parent"]


def exit_with_parent() -> None:
    """End this process as soon as the one that started it is gone, whatever it is doing."""
    parent, starter = os.getppid(), parent_process()

    def watch() -> None:
        # The number alone does not tell: if the parent was killed while this process started, it is another's already.
        while os.getppid() == parent and (starter is None or starter.is_alive()):
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="onsphere-parent", daemon=True).start()
