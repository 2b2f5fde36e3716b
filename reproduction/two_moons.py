"""Figure 2: two moons, and how uncertain a small network is where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.spatial import KDTree
from sklearn.datasets import make_moons

from onsphere.metrics import spearman
from onsphere.plots import BLUE, GREY, LEGEND, ORANGE, REFERENCE, VERMILLION
from onsphere.sphere.geometry import join, norm, norm_violation
from onsphere.torch import MLP, HCMLoss, attach
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.networks import fork_seed

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "Two moons (Figure 2)"

ABOUT = """
A network with two layers of 16 rectifiers learns scikit-learn's two moons: a direction per class and a magnitude, with
the loss of the paper's script, by Adam with a rate of .001 for 1,000 epochs. The uncertainty is that of the script, u =
| ‖R·d‖ − 1 |, with the predicted magnitude R (until version 0.2 we left R out), and a point is ambiguous where u > .15,
as in the paper. Noise (.2), training points (800) and batch size (32) are those of the script.

The moons are made by a known rule, so the true probability of each class is known everywhere. The band where the
classes meet is where neither is above 90 %; inside a moon, its class is above 99 %. "The true u" is 1 − ‖p‖ of the true
probabilities p, what a perfect model would say. "Off the moons" is the part of the map more than .6 (three standard
deviations of the noise) away from both.
"""

_PAPER: dict[str, Any] = {"n_train": 800, "n_test": 2000, "noise": 0.2, "batch_size": 32, "max_epochs": 1000}
DEVIATIONS = [
    Deviation(
        paper="One hidden layer of 16 in the main text, two in the appendix and the script",
        ours="Two",
        why="The appendix and the script agree",
    ),
    Deviation(
        paper="200 test points (script)",
        ours="2,000 test points, and a map of the plane",
        why="To measure what the paper shows in pictures",
    ),
]

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {"n_seeds": 1, **_PAPER, "n_test": 500, "max_epochs": 60},
    "cpu": {"n_seeds": 5, **_PAPER},
    "paper": {"n_seeds": 5, **_PAPER},
}

# The paper shows pictures; the threshold of ambiguity is the only number it gives.
PAPER = {"ambiguous": 0.15}

# The map: x to the right, y upwards, both at steps of .05.
X_AXIS, Y_AXIS = np.linspace(-2.5, 3.5, 121), np.linspace(-2.0, 2.5, 91)


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    noise = settings["noise"]
    X, label = sample_moons(settings["n_train"], noise=noise, random_state=2 * seed)
    X_test, label_test = sample_moons(settings["n_test"], noise=noise, random_state=2 * seed + 1)
    network = train(X, label, settings, seed, device, on_progress)
    direction, u = predict(network, X_test, device)
    plane = np.stack(np.meshgrid(X_AXIS, Y_AXIS), axis=-1)
    on_map, u_on_map = predict(network, plane.reshape(-1, 2), device)
    on_map, u_on_map = on_map.reshape(*plane.shape), u_on_map.reshape(plane.shape[:2])
    found = compute_figures(X_test, label_test, direction, u, plane, on_map, u_on_map, noise)
    shown = slice(500)
    return {
        "measured": found,
        "points": {
            "x": X_test[shown].round(3).tolist(),
            "direction": direction[shown].round(4).tolist(),
            "u": u[shown].round(4).tolist(),
            "distance": distance_to_boundary(X_test[shown], plane, on_map).round(4).tolist(),
        },
        "map": u_on_map.round(3).tolist(),
        "margin": (on_map[..., 1] - on_map[..., 0]).round(3).tolist(),
    }


def sample_moons(n_samples: int, **options: Any) -> tuple[Floats, Any]:
    X, label = make_moons(n_samples, **options)
    return np.asarray(X, dtype=np.float64), np.asarray(label)


def train(
    X: Floats, label: Any, settings: dict[str, Any], seed: int, device: str, on_progress: OnProgress
) -> torch.nn.Module:
    """Train a network with a branch for the direction and one for the magnitude."""
    with fork_seed(seed):
        network = attach(MLP(2, 2, hidden_sizes=(16, 16), negative_slope=0.0), 2, embedding="onehot").to(device)
        loss = HCMLoss(network, preset="two-moons")
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
        inputs = torch.as_tensor(X, dtype=torch.float32, device=device)
        labels = torch.as_tensor(label, device=device)
        for epoch in range(settings["max_epochs"]):
            if epoch % 50 == 0:
                on_progress(epoch, settings["max_epochs"], f"epoch {epoch}")
            for batch in torch.randperm(len(inputs), device=device).split(settings["batch_size"]):
                optimizer.zero_grad()
                loss(network(inputs[batch]), labels[batch]).backward()
                optimizer.step()
    return network.eval()


def predict(network: torch.nn.Module, X: Floats, device: str) -> tuple[Floats, Floats]:
    """Return the directions (n, 2), and how far R·d is from the unit circle."""
    with torch.no_grad():
        output = network(torch.as_tensor(X, dtype=torch.float32, device=device))
    direction, magnitude = (part.double().cpu().numpy() for part in (output.direction, output.magnitude))
    return direction, norm_violation(join(direction, magnitude))


def compute_figures(
    X: Floats,
    label: Any,
    direction: Floats,
    u: Floats,
    plane: Floats,
    on_map: Floats,
    u_on_map: Floats,
    noise: float,
) -> dict[str, float]:
    """Return the figures of one seed."""
    probability = true_probability(X, noise)
    largest, true_class = probability.max(axis=1), probability.argmax(axis=1)
    band, inside = largest < 0.9, largest > 0.99
    distance = distance_to_boundary(X, plane, on_map)
    ambiguous = u > PAPER["ambiguous"]
    off = np.min([KDTree(moon).query(plane)[0] for moon in trace_moons()], axis=0) > 0.6
    return {
        "accuracy": float((direction.argmax(axis=1) == label).mean()),
        "accuracy of the true probabilities": float((true_class == label).mean()),
        "mean u in the band": float(u[band].mean()),
        "mean u inside the upper moon": float(u[inside & (true_class == 0)].mean()),
        "mean u inside the lower moon": float(u[inside & (true_class == 1)].mean()),
        "share of points in the band": float(band.mean()),
        "share of ambiguous points": float(ambiguous.mean()),
        "share of ambiguous points in the band": float(band[ambiguous].mean()),
        "distance to the boundary, ambiguous": float(distance[ambiguous].mean()),
        "distance to the boundary, others": float(distance[~ambiguous].mean()),
        "Spearman of u with the distance": spearman(distance, u),
        "ambiguous points: |d₁ + d₂ − 1|": float(np.abs(direction[ambiguous].sum(axis=1) - 1).mean()),
        "Spearman of u with the true u": spearman(1 - norm(probability), u),
        "mean u off the moons": float(u_on_map[off].mean()),
    }


def trace_moons() -> tuple[Floats, Floats]:
    """Return points along both moons, without noise."""
    X, label = sample_moons(400, shuffle=False)
    return X[label == 0], X[label == 1]


def true_probability(X: Floats, noise: float) -> Floats:
    """Return the probability of both classes, (n, 2); a moon has the mean of normal densities along it."""
    squares = [((X[:, None] - moon) ** 2).sum(axis=2) for moon in trace_moons()]
    nearest = np.min(squares, axis=(0, 2))[:, None]  # so that no density of the nearer moon underflows
    density = np.stack([np.exp((nearest - each) / (2 * noise**2)).mean(axis=1) for each in squares], axis=1)
    return density / density.sum(axis=1, keepdims=True)


def distance_to_boundary(X: Floats, plane: Floats, on_map: Floats) -> Floats:
    """Return the distance from each point to where, on the map, the class changes between neighbours."""
    is_first = on_map[..., 0] > on_map[..., 1]
    across, along = is_first[:, 1:] != is_first[:, :-1], is_first[1:] != is_first[:-1]
    between = ((plane[:, 1:] + plane[:, :-1]) / 2)[across], ((plane[1:] + plane[:-1]) / 2)[along]
    return KDTree(np.concatenate(between)).query(X)[0]


def tabulate(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    names = runs[0]["measured"]
    return [make_row(None, [run["measured"][name] for run in runs], method="HCM", measure=name) for name in names]


def check_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    mean = {name: float(np.mean([run["measured"][name] for run in runs])) for name in runs[0]["measured"]}
    places = ("in the band", "inside the upper moon", "inside the lower moon")
    band, upper, lower = (mean[f"mean u {place}"] for place in places)
    near, far = (mean[f"distance to the boundary, {which}"] for which in ("ambiguous", "others"))
    share, in_band = mean["share of points in the band"], mean["share of ambiguous points in the band"]
    correlation, off_line = mean["Spearman of u with the distance"], mean["ambiguous points: |d₁ + d₂ − 1|"]
    return [
        Claim(
            "u is high where the classes meet (mean u in the band, at least three times that inside each moon)",
            band > 3 * max(upper, lower),
            f"{band:.3f} in the band, {upper:.3f} and {lower:.3f} inside the moons",
        ),
        Claim(
            "Ambiguous points lie near the decision boundary, where the classes overlap (less than half as far away)",
            near < far / 2,
            f"mean distance {near:.2f} against {far:.2f}; {in_band:.0%} of them lie in the band, which has {share:.0%} "
            "of all points",
        ),
        Claim(
            "u falls with the distance to the decision boundary (Spearman correlation below −.3)",
            correlation < -0.3,
            f"Spearman {correlation:.2f}",
        ),
        Claim(
            "Directions of ambiguous points lie on the line between the classes' (mean |d₁ + d₂ − 1| below .05)",
            off_line < 0.05,
            f"mean |d₁ + d₂ − 1| {off_line:.3f}",
        ),
    ]


def draw(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    from matplotlib.figure import Figure

    run = runs[0]
    X, direction, u, distance = (np.array(run["points"][name]) for name in ("x", "direction", "u", "distance"))
    margin = np.array(run["margin"])
    ambiguous = u > PAPER["ambiguous"]
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    (circle, space), (scatter, plane) = figure.subplots(2, 2)

    def draw_dots(ax: Any, x: Any, y: Any) -> None:
        ax.scatter(x[~ambiguous], y[~ambiguous], s=14, color=BLUE, alpha=0.6, linewidths=0, label="u ≤ .15")
        ax.scatter(x[ambiguous], y[ambiguous], s=18, marker="X", color=VERMILLION, linewidths=0, label="u > .15")

    angle = np.linspace(0, 2 * np.pi, 200)
    circle.plot(np.cos(angle), np.sin(angle), label="unit circle", **REFERENCE)
    draw_dots(circle, *direction.T)
    circle.set(title="(a) predicted directions", xlabel="d₁", ylabel="d₂", aspect="equal")
    circle.set(xlim=(-0.3, 1.3), ylim=(-0.3, 1.3))
    space.contour(X_AXIS, Y_AXIS, margin, [0.0], colors="black", linewidths=1.5)
    draw_dots(space, *X.T)
    space.set(title="(b) input space, with the decision boundary", xlabel="x₁", ylabel="x₂", aspect="equal")
    space.set(xlim=(-1.8, 2.8), ylim=(-1.3, 1.8))
    draw_dots(scatter, distance, u)
    scatter.set(title="(c) against the distance to the boundary", xlabel="distance to the boundary", ylabel="u")
    shades = plane.pcolormesh(X_AXIS, Y_AXIS, run["map"], cmap="cividis", vmin=0, vmax=0.5, rasterized=True)
    plane.contour(X_AXIS, Y_AXIS, margin, [0.0], colors="white", linewidths=1.5)
    for moon, color, name in zip(trace_moons(), (ORANGE, "white"), ("upper moon", "lower moon"), strict=True):
        plane.plot(*moon.T, color=color, linewidth=1.2, linestyle=":", label=name)
    plane.set(title="(d) map of u, with boundary and noiseless moons", xlabel="x₁", ylabel="x₂", aspect="equal")
    figure.colorbar(shades, ax=plane, label="u", extend="max", shrink=0.8)
    for ax in (circle, space, scatter):
        ax.legend(loc="upper right", **LEGEND)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6, color=GREY)
    return {"moons": figure}
