"""`python -m reproduction NAME`: run an experiment of the paper, or continue one that was stopped."""

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
    """Run the command and return its exit code: 0, 1 for a fault, 2 for a mistake of the user, 130 if stopped."""
    options = _make_parser().parse_args(arguments)
    try:
        if options.list or options.name is None:
            _print_experiments(as_json=options.json)
        else:
            _run(options)
    except OnsphereError as error:
        return _fail(str(error), 2)
    except KeyboardInterrupt:
        return _fail("Stopped. What is done is saved, and the same command continues from there.", 130)
    except Exception as error:
        fault = f"A fault of the experiment, please report it: {type(error).__name__}: {error}."
        return _fail(f"{fault} Call reproduction.reproduce({options.name!r}) in Python for the traceback.", 1)
    return 0


def _run(options: argparse.Namespace) -> None:
    is_silent = options.quiet or options.json
    result = reproduce(
        options.name,
        preset=options.preset,
        n_seeds=options.seeds,
        device=options.device,
        data=options.data,
        out=options.out,
        encoder=options.encoder,
        on_progress=_print_nothing if is_silent else _print_progress,
    )
    if options.json:
        print(json.dumps(_summarize(result), indent=1))
    elif not options.quiet:
        _print_result(result)


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reproduction", description="Run an experiment of the paper.")
    parser.add_argument("name", nargs="?", help=f"one of {', '.join(EXPERIMENTS)}; without a name, list them")
    parser.add_argument("--preset", default="quick", help=f"one of {', '.join(PRESETS)}: seconds, an hour, or a GPU")
    parser.add_argument("--seeds", type=int, help="number of seeds; by default that of the preset")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--data", type=Path, help="folder of the real data sets; by default $ONSPHERE_DATA")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results; finished seeds are kept")
    parser.add_argument("--encoder", type=Path, help="folder of a text encoder such as BERT, for 'text'")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    parser.add_argument("--json", action="store_true", help="print a summary as JSON, and nothing else")
    parser.add_argument("--list", action="store_true", help="list the experiments")
    return parser


def _fail(message: str, code: int) -> int:
    """Print one line on stderr and return the exit code."""
    clear = "\r\033[K" if sys.stderr.isatty() else ""
    print(clear + " ".join(message.split()), file=sys.stderr)
    return code


def _print_nothing(done: float, total: float, what: str) -> None:
    pass


def _print_progress(done: float, total: float, what: str) -> None:
    """Print one line on stderr, rewritten in place in a terminal."""
    start, end = ("\r\033[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{done / total:4.0%} {what}", file=sys.stderr, end=end, flush=True)


def _print_experiments(*, as_json: bool) -> None:
    titles = {name: load_experiment(name).TITLE for name in EXPERIMENTS}
    print(json.dumps(titles, indent=1) if as_json else "\n".join(f"{name:10} {titles[name]}" for name in titles))


def _print_result(result: Result) -> None:
    if sys.stderr.isatty():
        print(file=sys.stderr)
    print(f"{result.name}, preset {result.preset}")
    for claim in result.claims:
        print(f"  {'holds' if claim.holds else 'does not hold'}: {claim.text} ({claim.figures})")
    for path in result.files:
        print(path)


def _summarize(result: Result) -> dict[str, object]:
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
