"""Table 4, Figures 4 and 5: etched holes from their spectra, and which wafers to take out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.base import clone
from skorch.callbacks import LRScheduler

from onsphere import Calibration, HCMRegressor, InvalidInputError, Polar, metrics, plots
from onsphere.baselines import DeepEnsemble, Evidential, MCDropout
from onsphere.torch import TorchRegressor
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.data import WAFER_ANOMALIES, WAFER_KINDS, load_ellipsometry, make_wafer_benchmark, make_wafers
from reproduction.error_tables import (
    METRICS,
    RIVALS,
    STANDARDIZED,
    VARIANTS,
    average,
    check_correlations,
    compute_metrics,
    draw_outline,
    find_rivals,
    format_figures,
    make_metric_rows,
    round_figures,
)
from reproduction.experiment import Claim, Deviation, OnProgress, make_row

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "Industrial regression: etched holes from ellipsometry (Table 4, Figures 4 and 5)"

ABOUT = """
The paper's wafers are proprietary. They are replaced by simulated ones of the same size (`reproduction.data.wafers`):
400 inputs, the radius of the hole at 25 depths in nanometres, 1,375 wafers for training and 4,596 for testing: 3,000
normal ones, 896 that drift and 700 with one of seven anomalies. Each seed simulates its own wafers. So the paper's
figures are those of other data, and only the order of the methods can be compared.

- **Temperature** comes from 500 further wafers with the test's shares of drift and anomalies. The paper does not name
  such rows, but in its Table 4 all four methods cover .679 to .682 at 1σ: closer to each other than chance allows,
  unless the rows that set the temperature are like the tested ones. Until version 0.2 ours were all normal; the
  coverages of that reading are shown too ("T from normal wafers"). Confidence is quantile-normalised over the tested
  wafers: a tenth of them is below .1.
- **HCM** is the paper's: `Polar(standardize=False)`, product decoder, u, and a network whose outputs are direction and
  magnitude themselves, in nanometres (`TorchRegressor(standardize="inputs")`). Until version 0.2 both the radii and
  these columns were standardised; that is "HCM standardised" now, and the two conclusions about the bound were then
  judged by a further variant on raw radii.
- **Rivals.** "EDL", "MC Dropout" and "Ensemble" are trained alike, on radii in nanometres, and the paper's conclusions
  are judged against them. "EDL standardised" and so on learn standardised radii, as one usually would; a conclusion of
  ours has to hold against the rivals of either way.
- **The price**: HCM errs two to three times as much as with standardised columns, and the rivals 1.6 to 1.8 times;
  compare the rows of RMSE.
- **Beyond the paper**: *HCM Lift* (`Lift`, mean decoder, u + a, standardised columns; chosen beforehand), results by
  kind of wafer, AUROC of normal wafers against each other kind, the coverage of conformal boxes (90 %, all 25 radii at
  once) on normal test wafers, and a check on 243 real spectra of three films of amorphous silicon: each sample in turn
  is kept from training, and its score compared with that of held-out spectra of the other two. Targets are seven fitted
  parameters, in standard deviations of the training rows. Samples differ much more than the spectra of one sample, so
  this is an easy check.

`quick` has a few wafers and epochs.
"""

DEVIATIONS = [
    Deviation(
        paper="Spectra and holes of real wafers",
        ours="Simulated ones of the same size",
        why="The paper's data are proprietary",
    ),
    Deviation(
        paper="1,000 epochs, the rate divided by 10 at 150, 300, …, 900; no batch size is named",
        ours="`cpu`: 300 epochs with the steps at the same shares, in batches of 128. `paper`: 1,000, batches of 64",
        why="Two cores; 300 epochs were the preset before HCM was trained like this, not chosen by its results",
    ),
    Deviation(
        paper="No rate of dropout, no number of members, no weight of the evidence penalty",
        ours="10 % and 50 passes; 5 members; .01",
        why="Not in the text",
    ),
    Deviation(
        paper="No rows for calibration are named",
        ours="The temperature from 500 further wafers with the test's shares of drift and anomalies, boxes from 500 "
        "normal ones",
        why="Rows that were neither trained on nor tested are needed, and only rows like the tested ones explain why "
        "all four methods of Table 4 cover .679 to .682 at 1σ",
    ),
]

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"n_seeds": 1, "n_wafers": 120, "n_epochs": 8, "batch_size": 32, "n_members": 2, "n_passes": 5},
    "cpu": {"n_seeds": 5, "n_wafers": None, "n_epochs": 300, "batch_size": 128, "n_members": 5, "n_passes": 50},
    "paper": {"n_seeds": 5, "n_wafers": None, "n_epochs": 1000, "batch_size": 64, "n_members": 5, "n_passes": 50},
}

METHODS = (*RIVALS, "HCM", *STANDARDIZED, "HCM standardised", "HCM Lift")
DRAWN = (*RIVALS, "HCM", "Ensemble standardised", "HCM Lift")
PAPER = {
    "EDL": (0.6822, 0.8813, 0.9453, -0.2508, -0.1837, 2.2615, 4.7909),
    "MC Dropout": (0.6789, 0.8961, 0.9570, -0.0785, -0.0630, 4.0164, 6.5602),
    "Ensemble": (0.6823, 0.8755, 0.9375, 0.3227, 0.1220, 4.1948, 4.6783),
    "HCM": (0.6799, 0.8667, 0.9159, 0.8435, 0.7579, 2.3104, 5.4022),
}
# The same figures with the temperature of normal wafers, which changes coverages and ECE_reg only.
NORMAL_ONLY = "metrics with T from normal wafers"
LOW = 0.1
COVERAGE = 0.9
N_RADII, _FILM_THICKNESS = 25, 800.0
# Wafers in the figures, as points and as profiles.
N_POINTS, N_PROFILES = 400, 60
# Parameters of the real films; the others are places and the error of the fit.
_FILM = ("surface_thickness", "film_thickness", "amplitude", "broadening", "resonance", "gap", "transition")


# What a part takes from simulated wafers.
_FIELDS = ("spectra", "radii", "label")


class _Part(NamedTuple):
    spectra: Floats
    radii: Floats
    kind: NDArray[np.str_]


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Measure every method on one set of wafers."""
    train, held_out, test = _load_wafers(settings["n_wafers"], seed)
    alike = _draw_alike(test.kind, len(held_out.radii), seed)
    found: dict[str, Any] = {what: {} for what in ("metrics", NORMAL_ONLY, "low", "kinds", "coverage")}
    found |= {"points": {}, "profiles": {}}
    models = _make_models(settings, seed, device)
    on_progress(0, len(models) + 1, "real spectra")
    real = checkpoints.compute_once("real", lambda: _measure_real(settings, seed, data, device))
    for number, (name, model) in enumerate(models.items(), start=1):
        on_progress(number, len(models) + 1, name)
        figures = checkpoints.compute_once(name, functools.partial(_measure_model, model, train, held_out, alike, test))
        for what, value in figures.items():
            found[what][name] = value
    return found | {"real": real}


def _measure_model(model: Any, train: _Part, held_out: _Part, alike: _Part, test: _Part) -> dict[str, Any]:
    """Return a method's figures, with the temperature of wafers like the tested ones and boxes from normal wafers."""
    model.fit(train.spectra, train.radii).calibrate(held_out.spectra, held_out.radii)
    answer, known = model.assess(test.spectra, coverage=COVERAGE), model.assess(alike.spectra)
    error, score = metrics.sample_rmse(test.radii, answer.value), answer.uncertainty
    calibration = Calibration(known.uncertainty, metrics.sample_rmse(alike.radii, known.value))
    confidence = normalize_by_rank(score)
    normal = test.kind == "normal"
    points, profiles = (np.linspace(0, len(error) - 1, n).astype(int) for n in (N_POINTS, N_PROFILES))
    kept = {"error": error, "uncertainty": score, "confidence": confidence}
    return {
        "metrics": compute_metrics(calibration, Calibration(score, error)),
        NORMAL_ONLY: compute_metrics(model.calibration_, Calibration(score, error)),
        "low": float(error[np.argsort(-score)[: len(score) // 10]].mean() / error.mean()),
        "kinds": _summarize_kinds(test.kind, error, score, confidence),
        "coverage": float(metrics.interval_coverage(test.radii[normal], answer.lower[normal], answer.upper[normal])),
        "points": {what: round_figures(values[points]) for what, values in kept.items()},
        "profiles": {
            "confidence": round_figures(confidence[profiles]),
            "error": (answer.value - test.radii)[profiles].round(2).tolist(),
        },
    }


def normalize_by_rank(score: Floats) -> Floats:
    """Return the confidence of each tested wafer: the share of them that are at least as uncertain.

    Examples
    --------
    >>> normalize_by_rank(np.array([0.1, 3.0, 0.2, 0.2])).tolist()
    [1.0, 0.25, 0.75, 0.75]
    """
    return rankdata(-score, method="max") / len(score)


def _load_wafers(n: int | None, seed: int) -> list[_Part]:
    """Return the standard set; or n wafers for training, n / 4 for calibration, and n / 9 of each kind for testing."""
    if n is None:
        parts = [[part] for part in make_wafer_benchmark(seed)]
    else:
        random = np.random.RandomState(seed)
        tested = [make_wafers(n // len(WAFER_KINDS), kind=kind, random_state=random) for kind in WAFER_KINDS]
        parts = [[make_wafers(n, random_state=random)], [make_wafers(n // 4, random_state=random)], tested]
    return [_join_wafers(part) for part in parts]


def _draw_alike(tested: NDArray[np.str_], n: int, seed: int) -> _Part:
    """Return about n further wafers with the shares of the kinds among the tested ones, at least one of each."""
    random = np.random.RandomState([seed, n])
    counts = {kind: max(1, round(n * float(np.mean(tested == kind)))) for kind in WAFER_KINDS}
    drawn = [make_wafers(count, kind=kind, random_state=random) for kind, count in counts.items()]
    return _join_wafers(drawn)


def _join_wafers(drawn: Sequence[Any]) -> _Part:
    return _Part(*(np.concatenate([getattr(wafers, name) for wafers in drawn]) for name in _FIELDS))


def _summarize_kinds(
    kind: NDArray[np.str_], error: Floats, score: Floats, confidence: Floats
) -> dict[str, dict[str, float]]:
    return {
        name: {
            "RMSE": float(error[kind == name].mean()),
            "confidence": float(confidence[kind == name].mean()),
            "below .1": float(np.mean(confidence[kind == name] < LOW)),
            "Spearman": metrics.spearman(error[kind == name], score[kind == name]),
            "AUROC": metrics.auroc(score[kind == "normal"], score[kind == name]),
        }
        for name in WAFER_KINDS
    }


def _measure_real(settings: dict[str, Any], seed: int, data: Path, device: str) -> dict[str, Any]:
    """Measure error and score on real spectra, of a sample that was not trained on and of two that were."""
    try:
        spectra = load_ellipsometry(folder=data)
    except InvalidInputError as error:  # the paper has no such check, so a run goes on without it
        return {"skipped": f"The real spectra were left out. {error}"}
    X, y = spectra.ncs.reshape(len(spectra.ncs), -1), np.column_stack([spectra.parameters[name] for name in _FILM])
    found: dict[str, dict[str, list[float]]] = {name: {"seen": [], "unseen": [], "AUROC": []} for name in VARIANTS}
    for sample in np.unique(spectra.sample):
        unseen = np.flatnonzero(spectra.sample == sample)
        others = np.random.default_rng(seed).permutation(np.flatnonzero(spectra.sample != sample))
        seen, train = np.split(others, [len(others) // 5])
        z = (y - y[train].mean(axis=0)) / y[train].std(axis=0)
        models = _make_models({**settings, "batch_size": 16}, seed, device)
        for name, figures in found.items():
            model = models[name].fit(X[train], z[train])
            for what, rows in {"seen": seen, "unseen": unseen}.items():
                figures[what].append(metrics.mean_sample_rmse(z[rows], model.predict(X[rows])))
            scores = [model.predict_uncertainty(X[rows]) for rows in (seen, unseen)]
            figures["AUROC"].append(metrics.auroc(*scores))
    return {name: {what: float(np.mean(values)) for what, values in figures.items()} for name, figures in found.items()}


def _make_models(settings: dict[str, Any], seed: int, device: str) -> dict[str, Any]:
    epochs = settings["n_epochs"]
    steps = [round(share * epochs) for share in (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)]
    policy: Any = torch.optim.lr_scheduler.MultiStepLR
    network = TorchRegressor(
        hidden_sizes=(200, 100, 50),
        learning_rate=0.002,
        weight_decay=1e-4,
        max_epochs=epochs,
        batch_size=settings["batch_size"],
        callbacks=[("steps", LRScheduler(policy, milestones=steps, gamma=0.1))],
        optimizer=functools.partial(torch.optim.Adam, fused=True),  # the same steps in less time
        standardize="inputs",
        device=device,
    )
    scaled: Any = clone(network)
    scaled.set_params(standardize=True)

    def make_rivals(plain: TorchRegressor) -> list[Any]:
        thinned: Any = clone(plain)
        return [
            Evidential(plain, random_state=seed),
            MCDropout(thinned.set_params(dropout=0.1), n_passes=settings["n_passes"], random_state=seed),
            DeepEnsemble(plain, n_members=settings["n_members"], random_state=seed),
        ]

    target_frame = functools.partial(HCMRegressor, frames="target", random_state=seed)
    models = (
        *make_rivals(network),
        target_frame(network, embedding=Polar(standardize=False), decoder="product"),
        *make_rivals(scaled),
        target_frame(scaled, embedding=Polar(), decoder="product"),
        target_frame(scaled, uncertainty_score="anchored"),
    )
    return dict(zip(METHODS, models, strict=True))


# --- tables, claims and figures ---


def tabulate(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of Table 4, then those that the paper does not have."""
    rows = make_metric_rows(runs, PAPER, METHODS)
    for name in METHODS:
        for metric in METRICS[:3]:
            found = [run[NORMAL_ONLY][name][metric] for run in runs]
            rows.append(make_row(None, found, method=name, metric=f"{metric}, T from normal wafers"))
    for name in METHODS:
        for kind in WAFER_KINDS:
            found = [run["kinds"][name][kind] for run in runs]
            low = [each["below .1"] for each in found]
            row = make_row(None, low, method=name, metric=f"{kind}: share with a confidence below .1")
            rows.append(row | {_COLUMNS[what]: float(np.mean([each[what] for each in found])) for what in _COLUMNS})
        covered = [run["coverage"][name] for run in runs]
        rows.append(make_row(None, covered, method=name, metric="coverage of 90 % boxes on normal wafers"))
    for name, figures in _collect_real(runs).items():
        for what, values in figures.items():
            rows.append(make_row(None, values, method=name, metric=f"real spectra: {_REAL[what]}"))
    return [*rows, *({"metric": run["real"]["skipped"]} for run in runs[:1] if "skipped" in run["real"])]


_COLUMNS = {
    "AUROC": "AUROC against normal",
    "confidence": "mean confidence",
    "Spearman": "Spearman within the kind",
    "RMSE": "RMSE",
}
_REAL = {"seen": "RMSE, seen samples", "unseen": "RMSE, unseen sample", "AUROC": "AUROC of seen against unseen"}


def check_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    rmse = {name: average(runs, name, "RMSE") for name in METHODS}
    low = {name: _average(runs, "low", name) for name in METHODS}
    anomalies = {
        name: float(np.mean([_average_auroc(runs, name, kind) for kind in WAFER_ANOMALIES])) for name in METHODS
    }
    held, share = _check_bound(runs)
    covered = _average(runs, "coverage", "HCM Lift")
    found = [
        *check_correlations(runs),
        *(
            Claim(
                f"HCM has a lower {metric} than all rivals",
                all(average(runs, "HCM", metric) < average(runs, rival, metric) for rival in RIVALS),
                format_figures({name: average(runs, name, metric) for name in (*RIVALS, "HCM")}),
            )
            for metric in ("cov@2σ", "cov@3σ")
        ),
        Claim(
            "HCM has a higher RMSE than EDL and the ensemble",
            rmse["HCM"] > max(rmse["EDL"], rmse["Ensemble"]),
            format_figures(rmse),
        ),
        *(
            Claim(
                f"The tenth of the wafers with the least confidence has larger errors with {name} than with the rivals",
                all(low[name] > low[rival] for rival in find_rivals(runs, name)),
                "mean RMSE of that tenth over that of all: "
                + format_figures({each: low[each] for each in (*find_rivals(runs, name), name)}),
                ours=name != "HCM",
            )
            for name in VARIANTS
        ),
        Claim(
            "u is a lower bound of the error for 95 % of the wafers or more",
            held >= 0.95,
            f"HCM: RMSE ≥ u/√25 for {held:.1%} of the wafers drawn",
        ),
        Claim(
            "This bound is nearly tight (at least half of the error, in the median)",
            share >= 0.5,
            f"HCM: u/√25 is {share:.1%} of the RMSE in the median",
        ),
        Claim(
            "HCM Lift tells anomalies from normal wafers better than the rivals do (mean AUROC)",
            all(anomalies["HCM Lift"] > anomalies[rival] for rival in find_rivals(runs, "HCM Lift")),
            format_figures(anomalies),
            ours=True,
        ),
        Claim(
            "90 % boxes of HCM Lift cover 90 % of the normal test wafers, within 3 %",
            abs(covered - COVERAGE) <= 0.03,
            f"{covered:.3f}",
            ours=True,
        ),
    ]
    real = {name: float(np.mean(figures["AUROC"])) for name, figures in _collect_real(runs).items()}
    text = "on real spectra, both are less sure of a sample that they have not seen (AUROC above .9)"
    return [*found, Claim(text, min(real.values()) > 0.9, format_figures(real), ours=True)] if real else found


def _average(runs: Sequence[dict[str, Any]], what: str, method: str) -> float:
    return float(np.mean([run[what][method] for run in runs]))


def _average_auroc(runs: Sequence[dict[str, Any]], method: str, kind: str) -> float:
    return float(np.mean([run["kinds"][method][kind]["AUROC"] for run in runs]))


def _check_bound(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return how often Proposition 1 holds with a perfect magnitude, and its median share of the error."""
    error, bound = _join_points(runs, "HCM", "error"), _join_points(runs, "HCM", "uncertainty") / N_RADII**0.5
    return float(np.mean(error >= bound)), float(np.median(bound / error))


def _join_points(runs: Sequence[dict[str, Any]], method: str, what: str) -> Floats:
    return np.concatenate([run["points"][method][what] for run in runs])


def _collect_real(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the figures of the real spectra, seed by seed; none if they are missing."""
    found = [run["real"] for run in runs if "skipped" not in run["real"]]
    names = VARIANTS if found else ()
    return {name: {what: [run[name][what] for run in found] for what in ("seen", "unseen", "AUROC")} for name in names}


def draw(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"calibration": _draw_calibration(runs), "profiles": _draw_profiles(runs[0])}


def _draw_calibration(runs: Sequence[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4.4), layout="constrained")
    errors = {name: _join_points(runs, name, "error") for name in DRAWN}
    edges = np.geomspace(min(map(np.min, errors.values())), max(map(np.max, errors.values())), 25)
    for name, error in errors.items():
        plots.calibration_curve(error, _join_points(runs, name, "confidence"), n_bins=10, label=name, ax=left)
        draw_outline(middle, error, edges, color=left.lines[-1].get_color(), label=name)
    bound = _join_points(runs, "HCM", "uncertainty") / N_RADII**0.5
    right.scatter(bound, errors["HCM"], s=8, alpha=0.3, linewidths=0, color=plots.PALETTE[DRAWN.index("HCM")])
    right.axline((1, 1), (10, 10), label="RMSE = u / √25", **plots.REFERENCE)
    right.legend(**plots.LEGEND)
    right.spines[["top", "right"]].set_visible(False)
    left.set(title="(a) Error against confidence, wafers drawn", ylabel="Mean RMSE (nm)")
    left.get_legend().remove()  # that of (b) serves both
    middle.set(title="(b) Errors of the methods", xscale="log", xlabel="RMSE (nm)", ylabel="Share of the wafers drawn")
    middle.legend(**plots.LEGEND)
    right.set(title="(c) HCM: the bound of Proposition 1", xlabel="u / √25 (nm)", ylabel="RMSE (nm)", xscale="log")
    right.set_yscale("log")
    return figure


def _draw_profiles(run: dict[str, Any]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 6.4), sharex=True, sharey=True, layout="constrained")
    depths = (np.arange(N_RADII) + 0.5) * _FILM_THICKNESS / N_RADII
    for ax, name in zip(axes.flat, DRAWN, strict=True):
        profiles = run["profiles"][name]
        for error, confidence in sorted(
            zip(profiles["error"], profiles["confidence"], strict=True), key=lambda profile: -profile[1]
        ):
            is_low = confidence < LOW
            ax.plot(error, depths, color=plots.VERMILLION if is_low else plots.GREY, alpha=0.7, linewidth=1)
        n_low = sum(confidence < LOW for confidence in profiles["confidence"])
        ax.set_title(f"{name}: {n_low} of {len(profiles['confidence'])} below .1", fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0, 0].invert_yaxis()
    figure.supxlabel("Predicted minus true radius (nm); coloured where the confidence is below .1", fontsize=10)
    figure.supylabel("Depth in the film (nm)", fontsize=10)
    return figure
