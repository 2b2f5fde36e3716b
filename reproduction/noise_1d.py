"""Figure 7: four kinds of noise around one curve each, as HCM, a mixture and Bayesian networks see them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onsphere.baselines import MixtureDensity
from onsphere.metrics import pearson
from onsphere.plots import GREY, LEGEND, PALETTE
from reproduction.arguments import Floats
from reproduction.baselines import BayesianNetwork
from reproduction.checkpoints import Checkpoints
from reproduction.data.synthetic import NOISE_DOMAINS, NOISE_KINDS, make_noise_1d, noise_1d_sigma
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.toy import make_hcm, make_network, round_values

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "Four kinds of noise in one dimension (Figure 7)"

ABOUT = """
A network with three layers of 100 rectifiers learns one output of one input under four kinds of noise, made as in the
paper's published script:

- "gaussian": y = x³ on [−4, 4], with noise on [−2, 2] only, whose sigma rises from 0 to 5;
- "laplace": the same with Laplace's distribution;
- "bimodal": the same with two peaks three sigma above and below the curve, each as wide as sigma;
- "multivalued": y = ±√x on [0, 4], both branches equally likely, with Gaussian noise that rises from .2 to .5.

"HCM" is the paper's (the target written twice; the network's outputs are direction and magnitude themselves), "HCM
Lift" ours, with standardised columns. The others are a mixture density network with five components, which learns the
target as it is, and two Bayesian networks, whose uncertainty is the spread of 50 drawn networks alone ("BNN
epistemic"), or that and one learned level of noise, the same for all inputs ("BNN aleatoric").

σ̂ is each method's standard deviation, which the script plots; until version 0.2 we judged by u instead, with leaky
rectifiers, and went off the domain of the multi-valued set too, which the script does not. We say that σ̂ follows the
noise if its correlation with the true sigma, over the domain, is above .7; and that it notices inputs off the domain if
its mean over two units on either side is above that within the domain.

The training of `cpu` was changed after a first run of one seed, with 2,400 steps, in which 3 of the paper's 7
conclusions held: σ̂ of HCM was too rough where there is no noise. We then compared nine short trainings on the first
seed of the Gaussian set and took the one with the lowest loss on new points; we saw the correlations with sigma too.
"""

DEVIATIONS = [
    Deviation(
        paper="1,000 epochs of Adam at .001 with steps, batches of 64 (script): 62,500 steps",
        ours="`cpu`: 800 epochs from .003 along a cosine, batches of 512: 6,400 steps. `paper`: as the script",
        why="Two cores; of nine short trainings, this has the lowest loss of HCM on new points (Gaussian, one seed)",
    ),
    Deviation(
        paper="Bayesian networks are trained as long as the others",
        ours="`cpu`: 300 epochs. `paper`: 1,000",
        why="Two cores; a step takes three times as long as one of the others",
    ),
    Deviation(
        paper="Points at equal steps, inputs as they are (script)",
        ours="Points drawn at random, inputs standardised",
        why="So that seeds differ in their points; x lies within ±4 anyway",
    ),
    Deviation(
        paper="Bayesian networks by structured variational inference",
        ours="Mean-field inference on a standardised target, with a tenth of the divergence from the prior",
        why="The prior is for outputs of unit spread; with the whole divergence they learn little more than the mean",
    ),
]

_SHORT: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "cosine"}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "n_seeds": 1,
        "n_samples": 150,
        "batch_size": 75,
        "max_epochs": 5,
        "bayesian_epochs": 5,
        "training": _SHORT,
    },
    "cpu": {
        "n_seeds": 5,
        "n_samples": 4000,
        "batch_size": 512,
        "max_epochs": 800,
        "bayesian_epochs": 300,
        "training": _SHORT,
    },
    "paper": {
        "n_seeds": 5,
        "n_samples": 4000,
        "batch_size": 64,
        "max_epochs": 1000,
        "bayesian_epochs": 1000,
        "training": {},
    },
}

# The paper shows pictures and gives no numbers; these are the words of its text, as what it says each method notices.
PAPER = {
    "HCM": {"noise": True, "off the domain": True},
    "MDN": {"noise": True, "off the domain": False},
    "BNN epistemic": {"noise": False, "off the domain": False},
    "BNN aleatoric": {"noise": False, "off the domain": False},
}

METHODS = ("HCM", "HCM Lift", "MDN", "BNN epistemic", "BNN aleatoric")
BEYOND = 2
FOLLOWS, ERROR, RATIO = "correlation of σ̂ with sigma", "mean |σ̂ − sigma| / mean sigma", "mean σ̂ / mean sigma"
LEFT, RIGHT, FIT = "σ̂ left of the domain / in it", "σ̂ right of the domain / in it", "RMSE on new points"
# The kinds for which the script goes off the domain.
PROBED = tuple(kind for kind in NOISE_KINDS if kind != "multivalued")


def make_methods(settings: dict[str, Any], seed: int, device: str) -> dict[str, Any]:
    training = settings["training"]
    unscaled = make_network(settings, device, standardize="inputs", **training)
    bayesian = make_network({**settings, "max_epochs": settings["bayesian_epochs"]}, device, **training)
    return {
        **make_hcm(make_network(settings, device, **training), seed),
        "MDN": MixtureDensity(unscaled, random_state=seed),
        "BNN epistemic": BayesianNetwork(bayesian, noise=0.1, negative_slope=0.0, random_state=seed),
        "BNN aleatoric": BayesianNetwork(bayesian, negative_slope=0.0, random_state=seed),
    }


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    run: dict[str, Any] = {}
    for place, kind in enumerate(NOISE_KINDS):
        X, y, _ = make_noise_1d(kind, settings["n_samples"], random_state=2 * seed)
        X_new, y_new, _ = make_noise_1d(kind, 2000, random_state=2 * seed + 1)
        low, high = NOISE_DOMAINS[kind]
        margin = BEYOND if kind in PROBED else 0
        x = np.linspace(low - margin, high + margin, 161)
        found: dict[str, Any] = {
            "x": round_values(x),
            "points": [round_values(X[:300, 0]), round_values(y[:300])],
            "curves": {},
        }

        def measure_curve(model: Any, X: Floats = X, y: Floats = y, x: Floats = x) -> dict[str, Any]:
            result = model.fit(X, y).assess(x[:, None])
            return {"value": round_values(result.value), "sigma": round_values(result.sigma)}

        for step, (name, model) in enumerate(make_methods(settings, seed, device).items()):
            on_progress(place + step / len(METHODS), len(NOISE_KINDS), f"{kind}, {name}")
            curve = checkpoints.compute_once(f"{kind}, {name}", partial(measure_curve, model))
            error = y_new - np.interp(X_new[:, 0], x, curve["value"])
            found["curves"][name] = curve | {"rmse": float(np.sqrt(np.mean(error**2)))}
        run[kind] = found
    return {"kinds": run}


def compute_figures(found: dict[str, Any], kind: str, method: str) -> dict[str, float]:
    """Return the figures of one method under one kind of noise."""
    x, curve = np.array(found["x"]), found["curves"][method]
    truth, sigma = noise_1d_sigma(kind, x), np.array(curve["sigma"])
    low, high = NOISE_DOMAINS[kind]
    within = (x >= low) & (x <= high)
    noisy = within & (truth > 0)
    figures = {
        FOLLOWS: pearson(truth[within], sigma[within]),
        ERROR: float(np.abs(sigma - truth)[noisy].mean() / truth[noisy].mean()),
        RATIO: float(sigma[noisy].mean() / truth[noisy].mean()),
        FIT: curve["rmse"],
    }
    if kind in PROBED:
        sides = {LEFT: x < low, RIGHT: x > high}
        figures |= {name: float(sigma[side].mean() / sigma[within].mean()) for name, side in sides.items()}
    return figures


def _collect_figures(runs: Sequence[dict[str, Any]], kind: str, method: str) -> dict[str, list[float]]:
    found = [compute_figures(run["kinds"][kind], kind, method) for run in runs]
    return {name: [each[name] for each in found] for name in found[0]}


def tabulate(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        make_row(None, ours, noise=kind, method=method, measure=name)
        for kind in NOISE_KINDS
        for method in METHODS
        for name, ours in _collect_figures(runs, kind, method).items()
    ]


def check_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    mean = {
        (method, kind): {name: float(np.mean(ours)) for name, ours in _collect_figures(runs, kind, method).items()}
        for method in METHODS
        for kind in NOISE_KINDS
    }

    def format_means(method: str, name: str, kinds: Sequence[str] = NOISE_KINDS) -> str:
        return ", ".join(f"{kind} {mean[method, kind][name]:.2f}" for kind in kinds)

    def is_following(method: str, kinds: Sequence[str] = NOISE_KINDS) -> bool:
        return all(mean[method, kind][FOLLOWS] > 0.7 for kind in kinds)

    def is_noticing(method: str, kind: str) -> bool:
        return min(mean[method, kind][LEFT], mean[method, kind][RIGHT]) > 1

    def format_sides(method: str) -> str:
        return ", ".join(
            f"{kind} {mean[method, kind][LEFT]:.2f} and {mean[method, kind][RIGHT]:.2f}" for kind in PROBED
        )

    def off_domain_ratio(method: str) -> float:
        """Return the geometric mean of all ratios."""
        ratios = [mean[method, kind][side] for kind in PROBED for side in (LEFT, RIGHT)]
        return float(np.exp(np.mean(np.log(ratios))))

    sensitive = [name for name in METHODS if is_following(name) and all(is_noticing(name, kind) for kind in PROBED)]
    # One number per seed: the mean over the four kinds.
    errors = {
        name: np.mean([_collect_figures(runs, kind, name)[ERROR] for kind in NOISE_KINDS], axis=0) for name in METHODS
    }
    nearer = errors["HCM Lift"] < errors["HCM"]
    smooth, apart = NOISE_KINDS[:2], NOISE_KINDS[2:]
    return [
        Claim(
            "HCM: σ̂ (before: u) grows with Gaussian and Laplace noise",
            is_following("HCM", smooth),
            format_means("HCM", FOLLOWS, smooth),
        ),
        Claim(
            "HCM: σ̂ (before: u) grows as two peaks or branches move apart",
            is_following("HCM", apart),
            format_means("HCM", FOLLOWS, apart),
        ),
        Claim(
            "HCM: σ̂ (before: u) is higher off the domain, on both sides, under every noise probed there by the script",
            all(is_noticing("HCM", kind) for kind in PROBED),
            f"off the domain / in it, left and right: {format_sides('HCM')}; Lift: {format_sides('HCM Lift')}",
        ),
        Claim("MDN follows the noise", is_following("MDN"), format_means("MDN", FOLLOWS)),
        Claim(
            "MDN does not express epistemic uncertainty: under no noise is σ̂ higher on both sides",
            not any(is_noticing("MDN", kind) for kind in PROBED),
            f"left and right: {format_sides('MDN')}",
        ),
        Claim(
            "BNNs are less sensitive off the domain than HCM (geometric mean of off the domain / in it)",
            max(off_domain_ratio("BNN epistemic"), off_domain_ratio("BNN aleatoric")) < off_domain_ratio("HCM"),
            ", ".join(f"{name} {off_domain_ratio(name):.2f}" for name in METHODS),
        ),
        Claim(
            "Of the paper's methods HCM alone follows every noise and notices every side off the domain",
            [name for name in sensitive if name in PAPER] == ["HCM"],
            f"those that do, ours included: {', '.join(sensitive) or 'none'}",
        ),
        Claim(
            "σ̂ of Lift is nearer to the true sigma than that of the paper's embedding, in every seed",
            bool(nearer.all()),
            "mean error over the four: "
            + ", ".join(f"{name} {error.mean():.0%}" for name, error in errors.items())
            + f"; that of Lift is smaller in {nearer.sum()} of {len(runs)} seed(s)",
            ours=True,
        ),
    ]


def draw(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"bands": _draw_bands(runs[0]), "sigma": _draw_sigmas(runs)}


def _draw_bands(run: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10), layout="constrained")
    axes: Any = figure.subplots(len(NOISE_KINDS), len(METHODS), sharex="row", sharey="row")
    for row, kind in zip(axes, NOISE_KINDS, strict=True):
        found = run["kinds"][kind]
        x, y = np.array(found["x"]), np.array(found["points"][1])
        room = 0.6 * np.ptp(y)
        for ax, method, color in zip(row, METHODS, PALETTE, strict=False):
            value, sigma = (np.array(found["curves"][method][name]) for name in ("value", "sigma"))
            for k in (3, 2, 1):
                ax.fill_between(x, value - k * sigma, value + k * sigma, color=color, alpha=0.2, linewidth=0)
            ax.scatter(*found["points"], s=3, color=GREY, alpha=0.6, linewidths=0)
            ax.plot(x, value, color=color, linewidth=1.5)
            ax.set(ylim=(y.min() - room, y.max() + room), xlim=(x[0], x[-1]))
            _shade(ax, kind, x)
        row[0].set(ylabel=f"{kind}: y")
    for ax, method in zip(axes[0], METHODS, strict=True):
        ax.set(title=method)
    for ax in axes[-1]:
        ax.set(xlabel="x")
    figure.suptitle("Prediction ± 1, 2, 3 σ̂; grey: beyond the training domain; dots: training points")
    return figure


def _draw_sigmas(runs: Sequence[dict[str, Any]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 4), layout="constrained")
    axes: Any = figure.subplots(1, len(NOISE_KINDS))
    for ax, kind in zip(axes, NOISE_KINDS, strict=True):
        found = runs[0]["kinds"][kind]
        x = np.array(found["x"])
        truth = noise_1d_sigma(kind, x)
        low, high = NOISE_DOMAINS[kind]
        within = (x >= low) & (x <= high)
        for method, color in zip(METHODS, PALETTE, strict=False):
            sigma = np.mean([run["kinds"][kind]["curves"][method]["sigma"] for run in runs], axis=0)
            ax.plot(x, sigma, color=color, linewidth=1.8, label=method)
        ax.plot(x[within], truth[within], color="black", linewidth=1.5, linestyle="--", label="true sigma")
        ax.set(title=kind, xlabel="x", xlim=(x[0], x[-1]), ylim=(0, 2.5 * truth.max()))
        _shade(ax, kind, x)
    axes[0].set(ylabel="σ̂, mean over seeds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, **LEGEND)
    return figure


def _shade(ax: Any, kind: str, x: Floats) -> None:
    """Shade the axes beyond the training domain."""
    low, high = NOISE_DOMAINS[kind]
    for ends in ((x[0], low), (high, x[-1])):
        ax.axvspan(*ends, color=GREY, alpha=0.12, linewidth=0)
    ax.spines[["top", "right"]].set_visible(False)
