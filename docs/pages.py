"""What mkdocs takes from outside docs/, or cannot know before: benchmarks, the changelog, which results there are.

mkdocs calls the functions `on_config` and `on_files` by their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

__all__ = ["on_config", "on_files"]

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks" / "results"
PROJECT = {"contributing.md": ROOT / "CONTRIBUTING.md", "changelog.md": ROOT / "CHANGELOG.md"}


def on_config(config: Any) -> Any:
    """Add every page of results to the navigation, whichever there are."""
    results = next(entry["Results"] for entry in config.nav if "Results" in entry)
    pages = sorted(path.name for path in (ROOT / "docs" / "results").glob("*.md") if path.name != "index.md")
    results += [{name.removesuffix(".md"): f"results/{name}"} for name in pages]
    results.append({"Benchmarks": [{path.stem: f"benchmarks/{path.name}"} for path in _benchmarks()]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the files that lie outside docs/."""
    sources = PROJECT | {f"benchmarks/{path.name}": path for path in [*_benchmarks(), *BENCHMARKS.glob("*.png")]}
    for name, path in sources.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def _benchmarks() -> list[Path]:
    return sorted(BENCHMARKS.glob("*.md"))
