"""How an experiment is run, kept and told: seed by seed, each saved when it is done, and a table of paper beside ours.

An experiment is a module of this package with the same few names in the same order:

- `TITLE`, `ABOUT`: what the paper did, and what the presets change;
- `PRESETS`: the settings of "quick", "cpu" and "paper", plain numbers and words, with `n_seeds` in each;
- `measure(settings, seed, *, data, device, report)`: one seed, a dict that JSON can hold;
- `tabulate(runs)`: rows of the table, from the dicts of all seeds;
- `claims(runs)`: what the paper concludes, and whether it holds here;
- `draw(runs)`: figures by name.
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
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from onsphere._internal.atomic_files import write_atomically
from onsphere._internal.markdown import format_markdown
from onsphere._internal.validation import check_number, check_option, missing_extra_error
from onsphere.errors import InvalidInputError
from reproduction.data.uci import data_folder

__all__ = ["EXPERIMENTS", "PRESETS", "Claim", "Report", "Result", "compared", "reproduce"]

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

# Called with the work done, the work in all and what is being done.
Report = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Claim:
    """A conclusion of the paper, or of `ours` beyond it: whether it holds in these runs, and the figures for it."""

    text: str
    holds: bool
    figures: str
    ours: bool = False


@dataclass(frozen=True)
class Result:
    """An experiment that has been run.

    Attributes
    ----------
    name, preset : str
    runs : list of dict
        What each seed measured.
    rows : list of dict
        The table: paper beside ours.
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
    report: Report = lambda done, total, what: None,
) -> Result:
    """Run an experiment of the paper, or go on where it was stopped.

    Parameters
    ----------
    name : str
        One of `EXPERIMENTS`.
    preset : {"quick", "cpu", "paper"}, default "quick"
        Seconds, on synthetic or bundled data where the real set is missing; within an hour on two cores, on real data;
        or the paper's own settings, for a GPU.
    n_seeds : int, optional
        By default what the preset says.
    device : str, default "auto"
        "auto" is "cuda" where there is one, else "cpu".
    data : path, optional
        Where the real sets are; by default `reproduction.data.data_folder()`.
    out : path, default "results"
        Gets `NAME.md`, `NAME.json` and the figures, of the last preset that was run. Each seed is kept in `runs/` as
        soon as it is done and not run again with the same settings; to run it again, remove its file there.
    report : callable, optional
        Told of the progress.

    Returns
    -------
    Result
    """
    check_option("reproduce", "name", name, EXPERIMENTS)
    check_option("reproduce", "preset", preset, PRESETS)
    if n_seeds is not None:
        check_number("reproduce", "n_seeds", n_seeds, above=1, closed="left", whole=True)
    # What would stop the work at its end stops it here.
    experiment = load_experiment(name)
    place = chosen_device(device)
    folder = _writable(Path(out))
    settings = dict(experiment.PRESETS[preset])
    planned = int(settings.pop("n_seeds"))
    total = planned if n_seeds is None else n_seeds
    source = Path(data) if data is not None else data_folder()
    runs = [
        _one_seed(experiment, settings, seed, total, folder / _kept_as(name, preset, seed), source, place, report)
        for seed in range(total)
    ]
    result = Result(name, preset, runs, experiment.tabulate(runs), experiment.claims(runs), folder)
    _write(result, experiment, settings)
    report(total, total, "written")
    return result


def load_experiment(name: str) -> Any:
    """The module of an experiment, where all is installed that it needs."""
    for package, extra in (("torch", "torch"), ("skorch", "torch"), ("matplotlib", "report")):
        if find_spec(package) is None:
            raise missing_extra_error("reproduce", package, extra)
    return import_module(f"reproduction.{name.replace('-', '_')}")


def chosen_device(device: str) -> str:
    """The device that a name means here."""
    from onsphere.torch.devices import checked_device

    return str(checked_device("reproduce", device))


def compared(
    paper: float | None, ours: Sequence[float], *, within: float | None = None, **columns: Any
) -> dict[str, Any]:
    """A row of a table: the paper's figure beside ours, mean and standard deviation over seeds.

    They agree where they differ by at most `within`, by default a tenth of the paper's figure. Where they differ by
    more, but by less than two of our standard deviations, it is unclear.

    Examples
    --------
    >>> row = compared(0.5, [0.5, 0.56], method="HCM")
    >>> row["method"], row["paper"], row["ours"], row["agrees?"]
    ('HCM', 0.5, 0.53, 'yes')
    """
    mean, deviation = float(np.mean(ours)), float(np.std(ours))
    agrees = "–"
    if paper is not None:
        gap, allowed = abs(mean - paper), 0.1 * abs(paper) if within is None else within
        agrees = "yes" if gap <= allowed else "unclear" if gap <= 2 * deviation else "no"
    return {**columns, "paper": paper, "ours": mean, "± (seeds)": deviation, "agrees?": agrees}


def _one_seed(
    experiment: Any,
    settings: dict[str, Any],
    seed: int,
    n_seeds: int,
    path: Path,
    data: Path,
    device: str,
    report: Report,
) -> dict[str, Any]:
    kept = _kept(path, settings)
    if kept is not None:
        report(seed + 1, n_seeds, f"seed {seed} is there already")
        return kept

    def within(done: float, total: float, what: str) -> None:
        report(seed + done / total, n_seeds, f"seed {seed}: {what}")

    within(0, 1, "starts")
    found = experiment.measure(settings, seed, data=data, device=device, report=within)
    text = json.dumps({**found, "seed": seed, "settings": settings}, allow_nan=False)
    _write_file(path, text.encode())
    # As it would be read back, so that what is told of a run does not depend on when it was run.
    return json.loads(text)


def _kept_as(name: str, preset: str, seed: int) -> str:
    return f"runs/{name}/{preset}/seed-{seed}.json"


def _kept(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """A seed that was run before with the same settings; a file that cannot be read is run again."""
    try:
        run = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return run if isinstance(run, dict) and run.get("settings") == json.loads(json.dumps(settings)) else None


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InvalidInputError(
            f"Expected a folder to write to as 'out'. Got {folder}: {error.strerror or error}. Choose another."
        ) from None
    return folder


def _write_file(path: Path, content: bytes) -> Path:
    with write_atomically(path, folders=True) as part:
        part.write_bytes(content)
    return path


def _write(result: Result, experiment: Any, settings: Mapping[str, Any]) -> None:
    figures = [
        _write_file(result.folder / f"{result.name}-{name}.png", _png(figure))
        for name, figure in experiment.draw(result.runs).items()
    ]
    facts = {
        "name": result.name,
        "title": experiment.TITLE,
        "command": f"python -m reproduction {result.name} --preset {result.preset} --seeds {len(result.runs)}",
        "preset": result.preset,
        "settings": dict(settings),
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "versions": {package: version(package) for package in ("onsphere", "numpy", "scikit-learn", "torch")},
        "claims": [asdict(claim) for claim in result.claims],
        "rows": result.rows,
        "figures": [path.name for path in figures],
        "runs": [_kept_as(result.name, result.preset, seed) for seed in range(len(result.runs))],
    }
    told = {"md": _markdown(facts, experiment.ABOUT), "json": json.dumps(facts, indent=1, allow_nan=False) + "\n"}
    pages = [_write_file(result.folder / f"{result.name}.{kind}", text.encode()) for kind, text in told.items()]
    result.files.extend([*pages, *figures])


def _png(figure: Any) -> bytes:
    import matplotlib.pyplot as plt

    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
    plt.close(figure)  # pyplot would hold on to it
    return picture.getvalue()


def _markdown(facts: Mapping[str, Any], about: str) -> str:
    machine, versions = facts["machine"], facts["versions"]
    parts = [f"# {facts['title']}", about.strip()]
    parts += [f"![{name}]({name})" for name in facts["figures"]]
    for heading, ours in (("## What the paper concludes", False), ("## Beyond the paper", True)):
        told = [
            f"- **{'holds' if claim['holds'] else 'does not hold'}**: {claim['text']} ({claim['figures']})"
            for claim in facts["claims"]
            if claim["ours"] is ours
        ]
        parts += [heading, "\n".join(told)] if told else []
    parts.append("## Paper beside ours")
    parts.append(format_markdown(facts["rows"], digits=4))
    parts.append(
        f"`{facts['command']}`; {len(facts['runs'])} seed(s), preset {facts['preset']}; {machine['processor']}, "
        f"{machine['cores']} cores, Python {machine['python']}, "
        + ", ".join(f"{name} {number}" for name, number in versions.items())
        + ". Ours agrees where it is within 10 % of the paper's figure, for AUROC and FPR within 3 points; "
        "where it is not, but within two standard deviations over seeds, it is unclear."
    )
    return "\n\n".join(parts) + "\n"
