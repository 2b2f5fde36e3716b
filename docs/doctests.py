"""Examples in the docstrings of modules stand outside of any section: fenced here, so that they are shown as code."""

from __future__ import annotations

from typing import Any

import griffe

__all__ = ["FencedExamples"]


class FencedExamples(griffe.Extension):
    """Put a fence around every paragraph of a module's docstring that is a doctest."""

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        if mod.docstring is not None:
            paragraphs = mod.docstring.value.split("\n\n")
            mod.docstring.value = "\n\n".join(
                f"```pycon\n{text.strip()}\n```" if text.lstrip().startswith(">>>") else text for text in paragraphs
            )
