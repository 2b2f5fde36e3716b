"""`python -m reproduction NAME`: run an experiment of the paper, or go on where it was stopped."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from onsphere import OnsphereError
from reproduction.experiment import EXPERIMENTS, PRESETS, Result, load_experiment, reproduce

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.list or options.name is None:
            _print_experiments(as_json=options.json)
            return 0
        result = reproduce(
            options.name,
            preset=options.preset,
            n_seeds=options.seeds,
            device=options.device,
            data=options.data,
            out=options.out,
            report=_print_nothing if options.quiet or options.json else _print_progress,
        )
    except OnsphereError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Finished seeds are kept, and the same command goes on from there.", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(_summary(result), indent=1))
    elif not options.quiet:
        _print_result(result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description="Run an experiment of the paper.")
    parser.add_argument("name", nargs="?", help=f"one of {', '.join(EXPERIMENTS)}")
    parser.add_argument("--preset", default="quick", help=f"one of {', '.join(PRESETS)}: seconds, an hour, or a GPU")
    parser.add_argument("--seeds", type=int, help="how many seeds; by default what the preset says")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--data", type=Path, help="where the real data sets are; by default $ONSPHERE_DATA")
    parser.add_argument("--out", type=Path, default=Path("results"), help="where to write; finished seeds are kept")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON, and nothing else")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    return parser


def _print_nothing(done: float, total: float, what: str) -> None:
    pass


def _print_progress(done: float, total: float, what: str) -> None:
    """Show one line on stderr, rewritten in a terminal."""
    end = "\r\033[K" if sys.stderr.isatty() else "\n"
    print(f"{done / total:4.0%} {what}", file=sys.stderr, end=end, flush=True)


def _print_experiments(*, as_json: bool) -> None:
    titles = {name: load_experiment(name).TITLE for name in EXPERIMENTS}
    print(json.dumps(titles, indent=1) if as_json else "\n".join(f"{name:10} {titles[name]}" for name in titles))


def _print_result(result: Result) -> None:
    print(f"{result.name}, preset {result.preset}")
    for claim in result.claims:
        print(f"  {'holds' if claim.holds else 'does not hold'}: {claim.text} ({claim.figures})")
    for path in result.files:
        print(path)


def _summary(result: Result) -> dict[str, object]:
    return {
        "name": result.name,
        "preset": result.preset,
        "seeds": len(result.runs),
        "claims": [asdict(claim) for claim in result.claims],
        "rows": result.rows,
        "files": [str(path) for path in result.files],
    }


if __name__ == "__main__":
    sys.exit(main())
