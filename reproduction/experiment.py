"""Run an experiment seed by seed, save each seed when it is done, and write the paper's figures next to ours.

An experiment is a module of this package with the same few names in the same order:

- `TITLE`, `ABOUT`: what the paper did, and what the presets change;
- `DEVIATIONS`: where we differ from the paper, and why;
- `PRESETS`: the settings of "quick", "cpu" and "paper", plain numbers and words, with `n_seeds` in each;
- `measure(settings, seed, *, data, device, checkpoints, on_progress)`: runs one seed and returns a dict that JSON can
  hold; long work is kept in `checkpoints` as it goes;
- `tabulate(runs)`: returns the rows of the table, from the dicts of all seeds;
- `check_claims(runs)`: returns what the paper concludes, and whether it holds here;
- `draw(runs)`: returns figures by name.
"""

from __future__ import annotations

import io
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from onsphere import InvalidInputError
from reproduction.arguments import argument_error, check_count, check_option, import_package
from reproduction.checkpoints import Checkpoints
from reproduction.data.files import resolve_folder, write_file

__all__ = [
    "EXPERIMENTS",
    "PRESETS",
    "Claim",
    "Deviation",
    "OnProgress",
    "Result",
    "format_page",
    "make_row",
    "reproduce",
]

EXPERIMENTS = (
    "toy",
    "two-moons",
    "cifar10",
    "efficiency",
    "depth",
    "industrial",
    "uci",
    "ablation",
    "text",
    "noise-1d",
)
PRESETS = ("quick", "cpu", "paper")

# Called with the work done, the total work and what is being done.
OnProgress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper (or one of `ours`), whether it holds in these runs, and the figures behind it."""

    text: str
    holds: bool
    figures: str
    ours: bool = False


@dataclass(frozen=True)
class Deviation:
    """A point where we differ from the paper: what the paper does, what we do, and why."""

    paper: str
    ours: str
    why: str


@dataclass(frozen=True)
class Result:
    """An experiment that has been run.

    Attributes
    ----------
    name, preset : str
    runs : list of dict
        What each seed measured.
    rows : list of dict
        The table: the paper's figures next to ours.
    claims : list of Claim
    folder : Path
        Where the JSON, the Markdown and the figures are.
    files : list of Path
        What was written there, the Markdown first.
    """

    name: str
    preset: str
    runs: list[dict[str, Any]]
    rows: list[dict[str, Any]]
    claims: list[Claim]
    folder: Path
    files: list[Path] = field(default_factory=list[Path])


def reproduce(
    name: str,
    *,
    preset: str = "quick",
    n_seeds: int | None = None,
    device: str = "auto",
    data: str | Path | None = None,
    out: str | Path = "results",
    encoder: str | Path | None = None,
    on_progress: OnProgress = lambda done, total, what: None,
) -> Result:
    """Run an experiment of the paper, or continue one that was stopped.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    preset : {"quick", "cpu", "paper"}, default "quick"
        "quick" takes seconds, on synthetic or bundled data; "cpu" takes up to an hour on two cores, on real data;
        "paper" has the paper's own settings, for a GPU.
    n_seeds : int, optional
        By default what the preset says.
    device : str, default "auto"
        "auto" is "cuda" where there is one, else "cpu".
    data : path, optional
        The folder of the real data sets; by default `reproduction.data.data_folder()`.
    out : path, default "results"
        The folder for `NAME.md`, `NAME.json` and the figures of the last preset that was run. Each seed is saved in
        `runs/` as soon as it is done and not run again with the same settings; to run it again, remove its file there.
        What a seed has done so far is in `checkpoints/`.
    encoder : path, optional
        For the experiment on text: a folder with the weights and the tokenizer of an encoder such as BERT.
    on_progress : callable, optional
        Called with the work done, the total work and what is being done.

    Returns
    -------
    Result
    """
    check_option("reproduce", "name", name, EXPERIMENTS)
    check_option("reproduce", "preset", preset, PRESETS)
    if n_seeds is not None:
        check_count("reproduce", "n_seeds", n_seeds)
    # Fail now rather than after hours of work.
    experiment = load_experiment(name)
    place = choose_device(device)
    folder = _make_folder(Path(out))
    settings = dict(experiment.PRESETS[preset])
    planned = int(settings.pop("n_seeds"))
    total = planned if n_seeds is None else n_seeds
    if encoder is not None:
        if "encoder" not in settings:
            raise argument_error("reproduce", "encoder", "left out: only the experiment 'text' has one", str(encoder))
        settings["encoder"] = str(encoder)
    runs: list[dict[str, Any]] = []
    for seed in range(total):
        path = folder / _name_run(name, preset, seed)
        run = _read_run(path, settings)
        if run is None:
            checkpoints = Checkpoints.of_seed(folder / "checkpoints" / name / preset, settings, seed)
            run = _run_seed(experiment, settings, seed, total, resolve_folder(data), place, checkpoints, on_progress)
            write_file(path, json.dumps(run, allow_nan=False).encode())
            checkpoints.remove()
        else:
            on_progress(seed + 1, total, f"seed {seed} was run before")
        runs.append(run)
    result = Result(name, preset, runs, experiment.tabulate(runs), experiment.check_claims(runs), folder)
    _write_result(result, experiment, settings, encoder)
    on_progress(total, total, "written")
    return result


def load_experiment(name: str) -> Any:
    """Import the module of an experiment, if everything it needs is installed."""
    for package in ("torch", "skorch", "matplotlib"):
        import_package(package, needed_by=f"The experiment {name!r}")
    return import_module(f"reproduction.{name.replace('-', '_')}")


def choose_device(device: str) -> str:
    """Return the device that torch uses for a name; "auto" is "cuda" if there is one, else "cpu"."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return str(torch.empty(0, device=device).device)
    except (RuntimeError, TypeError, AssertionError):
        raise argument_error("reproduce", "device", "'auto' or a device that torch finds here", device) from None


def make_row(
    paper: float | None, ours: Sequence[float], *, within: float | None = None, **columns: Any
) -> dict[str, Any]:
    """Return a row of a table: the paper's figure, and the mean and standard deviation of ours over seeds.

    They agree if they differ by at most `within`, by default a tenth of the paper's figure. If they differ by more, but
    by at most two of our standard deviations, it is unclear.

    Examples
    --------
    >>> row = make_row(0.5, [0.5, 0.56], method="HCM")
    >>> row["method"], row["paper"], row["ours"], row["agrees?"]
    ('HCM', 0.5, 0.53, 'yes')
    """
    mean, deviation = float(np.mean(ours)), float(np.std(ours))
    agrees = "–"
    if paper is not None:
        gap, allowed = abs(mean - paper), 0.1 * abs(paper) if within is None else within
        agrees = "yes" if gap <= allowed else "unclear" if gap <= 2 * deviation else "no"
    return {**columns, "paper": paper, "ours": mean, "± (seeds)": deviation, "agrees?": agrees}


def _run_seed(
    experiment: Any,
    settings: dict[str, Any],
    seed: int,
    n_seeds: int,
    data: Path,
    device: str,
    checkpoints: Checkpoints,
    on_progress: OnProgress,
) -> dict[str, Any]:
    def on_step(done: float, total: float, what: str) -> None:
        on_progress(seed + done / total, n_seeds, f"seed {seed}: {what}")

    on_step(0, 1, "starts")
    run = experiment.measure(settings, seed, data=data, device=device, checkpoints=checkpoints, on_progress=on_step)
    # As it would be read back, so that the result does not depend on when a seed was run.
    return json.loads(json.dumps({**run, "seed": seed, "settings": settings}, allow_nan=False))


def _name_run(name: str, preset: str, seed: int) -> str:
    return f"runs/{name}/{preset}/seed-{seed}.json"


def _read_run(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return a seed that was run before with the same settings; None if there is none that can be read."""
    try:
        run = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and run.get("settings") == json.loads(json.dumps(settings)) else None


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InvalidInputError(
            f"Expected a folder to write to as 'out'. Got {folder}: {error.strerror or error}. Choose another."
        ) from None
    return folder


def _write_result(result: Result, experiment: Any, settings: Mapping[str, Any], encoder: str | Path | None) -> None:
    figures = [
        write_file(result.folder / f"{result.name}-{name}.png", _render_png(figure))
        for name, figure in experiment.draw(result.runs).items()
    ]
    facts = {
        "name": result.name,
        "title": experiment.TITLE,
        "command": _format_command(result, encoder),
        "preset": result.preset,
        "settings": dict(settings),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {package: version(package) for package in ("onsphere", "numpy", "scikit-learn", "torch")},
        "claims": [asdict(claim) for claim in result.claims],
        "deviations": [asdict(deviation) for deviation in experiment.DEVIATIONS],
        "rows": result.rows,
        "figures": [path.name for path in figures],
        "runs": [_name_run(result.name, result.preset, seed) for seed in range(len(result.runs))],
    }
    texts = {"md": format_page(facts, experiment.ABOUT), "json": json.dumps(facts, indent=1, allow_nan=False) + "\n"}
    pages = [write_file(result.folder / f"{result.name}.{kind}", text.encode()) for kind, text in texts.items()]
    result.files.extend([*pages, *figures])


def _format_command(result: Result, encoder: str | Path | None) -> str:
    command = f"python -m reproduction {result.name} --preset {result.preset} --seeds {len(result.runs)}"
    return command if encoder is None else f"{command} --encoder {encoder}"


def _render_png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)  # pyplot would hold on to it
    return picture.getvalue()


def format_page(facts: Mapping[str, Any], about: str) -> str:
    """Return the Markdown page of a result, from the facts in its JSON file and the experiment's ABOUT."""
    machine, n_seeds = facts["machine"], len(facts["runs"])
    parts = [f"# {facts['title']}", about.strip()]
    parts += [f"![{name}]({name})" for name in facts["figures"]]
    for heading, ours in (("## What the paper concludes", False), ("## Beyond the paper", True)):
        lines = [
            f"- **{'holds' if claim['holds'] else 'does not hold'}**: {claim['text']} ({claim['figures']})"
            for claim in facts["claims"]
            if claim["ours"] is ours
        ]
        parts += [heading, "\n".join(lines)] if lines else []
    if facts.get("deviations"):
        parts += ["## Where we differ from the paper", _format_table(facts["deviations"])]
    parts += ["## The paper's figures and ours", _format_table(facts["rows"])]
    parts.append(
        f"`{facts['command']}`; {n_seeds} seed(s), preset {facts['preset']}; "
        f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, "
        + ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
        + ". Ours agrees if it is within 10 % of the paper's figure, for AUROC and FPR within 3 points; "
        "if it is not, but within two standard deviations over seeds, it is unclear."
    )
    return "\n\n".join(parts) + "\n"


def _format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a Markdown table with a column for every name, and a dash where a row has no value."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([_format_cell(row.get(name)) for name in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace("|", "\\|")
