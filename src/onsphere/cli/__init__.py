"""The command line: thin commands over the public names.

A failure ends in one sentence on stderr: exit code 2 for what the user can fix, 1 for a fault of ours.
"""

from __future__ import annotations

import io
import sys
from importlib import import_module

try:
    for package in ("rich", "typer"):
        import_module(package)
except ImportError:
    # Only the script `onsphere` imports this package, and it should end in a sentence as well.
    from onsphere._internal.validation import missing_extra_error

    raise SystemExit(str(missing_extra_error("The command line", "typer and rich", "cli"))) from None

from onsphere.cli.console import app, print_interrupt

__all__ = ["app", "main"]


def main() -> None:
    """Run the script `onsphere`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # names may have letters that a terminal cannot show
    try:
        app()
    except KeyboardInterrupt:  # before a command has begun
        sys.exit(print_interrupt())
