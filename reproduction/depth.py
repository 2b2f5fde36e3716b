"""Table 3 and Figure 3: the depth of every pixel of a picture, and how far to trust the map."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onsphere import Calibration, metrics, plots
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.data import load_nyu
from reproduction.depth_methods import METHODS, Loss, train_network
from reproduction.error_tables import (
    RIVALS,
    VARIANTS,
    average,
    check_correlations,
    compute_metrics,
    coverage_gap,
    draw_outline,
    format_figures,
    make_metric_rows,
    round_figures,
)
from reproduction.experiment import Claim, Deviation, OnProgress
from reproduction.networks import fork_seed

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "Depth estimation on NYU-v2 (Table 3, Figure 3)"

ABOUT = """
A U-Net learns the depth of 64×64 pictures. Test pictures get noise x + a·ε with a ~ U(0, .5) each, and the question is
whether the uncertainty of a map follows its error, the root mean square over pixels.

- **Data.** All 1,449 labelled pairs of NYU-v2, split at random into 80 % training, 10 % validation and 10 % test as in
  the paper (so frames of one scene may be in two parts). Depth is in units of 10 m, which the paper's RMSE of .12
  suggests. Temperature and confidence are calibrated on the validation pictures, noised like those of the test.
- **Methods.** *HCM* is the paper's: the direction is the whole map over its length, with one magnitude per picture (the
  paper does not say), value R·d, score u. *HCM Lift* is ours, chosen beforehand: every pixel has its own sphere
  (`Lift`, mean decoder), and the score is the mean of u + a over the pixels. The ensemble has 5 members; MC dropout
  drops channels (10 %) after each block; EDL has a normal-inverse-gamma distribution per pixel. The score of these
  three is the root mean square over pixels. All share network, optimiser, number of epochs and batches.
- **Presets.** `paper`: 64 channels, 200 epochs of Adam at 2e-4, divided by 10 at 50, 100 and 150. `cpu`: 8 channels, 40
  epochs at 1e-3 (the best of 1e-3, 2e-3, 5e-3 and 1e-2 for a plain U-Net after 5, on clean validation pictures),
  divided by 10 after a quarter, a half and three quarters; 20 passes of MC dropout instead of 50; one seed. It takes
  about an hour of one core. `quick`: synthetic rooms of 32×32 pixels.
"""

DEVIATIONS: list[Deviation] = []

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "n_seeds": 1,
        "scenes": "made up",
        "n_scenes": 60,
        "width": 4,
        "n_epochs": 2,
        "learning_rate": 1e-2,
        "batch_size": 16,
        "n_members": 2,
        "n_passes": 5,
    },
    "cpu": {
        "n_seeds": 1,
        "scenes": "nyu",
        "n_scenes": 1449,
        "width": 8,
        "n_epochs": 40,
        "learning_rate": 1e-3,
        "batch_size": 16,
        "n_members": 5,
        "n_passes": 20,
    },
    "paper": {
        "n_seeds": 1,
        "scenes": "nyu",
        "n_scenes": 1449,
        "width": 64,
        "n_epochs": 200,
        "learning_rate": 2e-4,
        "batch_size": 16,
        "n_members": 5,
        "n_passes": 50,
    },
}

PAPER = {
    "EDL": (0.6906, 0.9252, 0.9884, 0.1084, 0.1370, 0.0609, 0.1241),
    "MC Dropout": (0.7019, 0.9033, 0.9645, 0.1932, 0.2580, 0.0645, 0.1189),
    "Ensemble": (0.6957, 0.9280, 0.9759, 0.2381, 0.4684, 0.1838, 0.1234),
    "HCM": (0.7433, 0.8798, 0.9167, 0.4919, 0.5425, 0.2160, 0.1485),
}

# In metres; the farthest depth that the camera measures.
_UNIT = 10.0


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Train each method once, and measure its maps of noised pictures."""
    rng = np.random.default_rng(seed)
    pictures, depth = _load_scenes(settings, seed, data)
    train, held, test = np.split(rng.permutation(len(depth)), [round(s * len(depth)) for s in (0.8, 0.9)])
    noise = rng.uniform(0, 0.5, size=len(depth))
    noised = pictures + noise[:, None, None, None] * rng.normal(size=pictures.shape)
    x, y = _to_tensor(pictures[train]), _to_tensor(depth[train, None])
    n_fits, n_done = len(METHODS) - 1 + settings["n_members"], 0

    def fit(network: nn.Module, loss: Loss, number: int) -> None:
        nonlocal n_done
        on_progress(n_done, n_fits, f"training {n_done + 1} of {n_fits}")
        n_done += 1
        with fork_seed(1000 * seed + number):
            train_network(network.to(device), loss, x.to(device), y.to(device), settings)

    found: dict[str, Any] = {"metrics": {}, "rows": {}, "examples": {}, "noise": round_figures(noise[test])}
    for name, method in METHODS.items():
        answer = method(fit, y, settings)
        judged: list[Calibration] = []
        maps = np.empty(0)
        for part in (held, test):
            maps, uncertainty = answer(_to_tensor(noised[part]).to(device))
            judged.append(Calibration(uncertainty, metrics.sample_rmse(depth[part].reshape(len(part), -1), maps)))
        found["metrics"][name] = compute_metrics(*judged)
        confidence = judged[0].confidence(judged[1].uncertainty, normalization="min-max")
        found["rows"][name] = {"error": round_figures(judged[1].error), "confidence": round_figures(confidence)}
        if name in VARIANTS:
            order = np.argsort(judged[1].uncertainty)
            rows = [order[0], order[1], order[-2], order[-1]]
            found["examples"][name] = [
                _pack_example(noised[test[row]], maps[row], depth[test[row]], float(confidence[row])) for row in rows
            ]
    return found


# --- data ---


def _load_scenes(settings: dict[str, Any], seed: int, data: Path) -> tuple[Floats, Floats]:
    """Return pictures (n, 3, H, W) in [0, 1] and depth (n, H, W) in units of 10 m."""
    if settings["scenes"] == "made up":
        return _make_rooms(settings["n_scenes"], np.random.default_rng(1000 + seed))
    parts = [load_nyu(split, folder=data) for split in ("train", "test")]
    pictures, depth = (np.concatenate(each)[: settings["n_scenes"]] for each in zip(*parts, strict=True))
    return pictures.transpose(0, 3, 1, 2) / 255.0, depth / _UNIT


def _make_rooms(n: int, rng: np.random.Generator, size: int = 32) -> tuple[Floats, Floats]:
    """Draw a wall, a floor that comes nearer and a box in front of them, darker the farther they are."""
    down, right = np.mgrid[:size, :size] / size
    wall, near = rng.uniform(0.4, 0.95, size=(n, 1, 1)), rng.uniform(0.15, 0.35, size=(n, 1, 1))
    depth = np.minimum(wall, wall + (near - wall) * (2 * down - 1))
    top, left, edge = rng.uniform(0.1, 0.6, size=(3, n, 1, 1))
    is_box = (np.abs(down - top - edge / 2) < edge / 2) & (np.abs(right - left - edge / 2) < edge / 2)
    depth = np.where(is_box, np.minimum(depth, near * 1.2), depth)
    colour = rng.uniform(0.6, 1.0, size=(n, 3, 1, 1))
    return colour * np.exp(-1.5 * depth)[:, None] + rng.normal(scale=0.01, size=(n, 3, size, size)), depth


def _to_tensor(values: Floats) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32).contiguous(memory_format=torch.channels_last)


def _pack_example(picture: Floats, prediction: Floats, truth: Floats, confidence: float) -> dict[str, Any]:
    """Pack the maps as bytes in text, a tenth of the space that numbers take."""
    maps = {"picture": picture.transpose(1, 2, 0), "prediction": prediction.reshape(truth.shape), "truth": truth}
    packed = {
        name: base64.b64encode((np.clip(each, 0, 1) * 255).astype(np.uint8).tobytes()).decode()
        for name, each in maps.items()
    }
    return {"size": truth.shape[0], "confidence": float(confidence), **packed}


def _unpack(example: dict[str, Any], name: str) -> Floats:
    size = example["size"]
    values = np.frombuffer(base64.b64decode(example[name]), dtype=np.uint8) / 255
    return values.reshape((size, size, 3) if name == "picture" else (size, size))


# --- tables, claims and figures ---


def tabulate(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return make_metric_rows(runs, PAPER, (*RIVALS, *VARIANTS))


def check_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    gap = {method: coverage_gap(runs, method) for method in (*RIVALS, *VARIANTS)}
    ece, rmse = ({method: average(runs, method, metric) for method in gap} for metric in ("ECE_reg", "RMSE"))
    spread = {method: float(np.mean([np.std(run["rows"][method]["confidence"]) for run in runs])) for method in gap}
    most, least = _average_tails(runs, "HCM")
    return [
        *check_correlations(runs),
        Claim(
            "HCM is behind all baselines in coverage (mean distance from .68, .95 and .997)",
            all(gap["HCM"] > gap[other] for other in RIVALS),
            format_figures(gap),
        ),
        Claim(
            "HCM has a higher ECE_reg than all baselines", all(ece["HCM"] > ece[b] for b in RIVALS), format_figures(ece)
        ),
        Claim(
            "HCM has a higher RMSE than all baselines", all(rmse["HCM"] > rmse[b] for b in RIVALS), format_figures(rmse)
        ),
        Claim(
            "HCM spreads its confidences wider than all baselines (standard deviation)",
            all(spread["HCM"] > spread[other] for other in RIVALS),
            format_figures(spread),
        ),
        Claim(
            "Pictures of which HCM is least sure are noisier and have larger errors than those of which it is surest",
            all(worse > better for worse, better in zip(least, most, strict=True)),
            f"surest tenth: noise {most[0]:.3f}, RMSE {most[1]:.3f}; "
            f"least sure tenth: noise {least[0]:.3f}, RMSE {least[1]:.3f}",
        ),
    ]


def _average_tails(runs: Sequence[dict[str, Any]], method: str) -> list[tuple[float, float]]:
    """Return mean noise and error of the tenth with the highest confidence, and of that with the lowest."""
    confidence, error = (
        np.concatenate([run["rows"][method][name] for run in runs]) for name in ("confidence", "error")
    )
    noise, order = np.concatenate([run["noise"] for run in runs]), np.argsort(-confidence, kind="stable")
    tenth = max(len(order) // 10, 1)
    return [(float(noise[part].mean()), float(error[part].mean())) for part in (order[:tenth], order[-tenth:])]


def draw(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for method in (*RIVALS, *VARIANTS):
        error, confidence = (
            np.concatenate([run["rows"][method][name] for run in runs]) for name in ("error", "confidence")
        )
        plots.calibration_curve(error, confidence, n_bins=10, label=method, ax=left)
        draw_outline(right, confidence, np.linspace(0, 1, 11), color=left.lines[-1].get_color(), label=method)
    left.set(title="(a) Error against confidence", ylabel="Mean RMSE (10 m)")
    right.set(title="(b) Where the confidences lie", xlabel="Confidence", ylabel="Share of the test pictures")
    right.legend(**plots.LEGEND)
    examples = {f"examples-{name.lower().replace(' ', '-')}": _draw_examples(runs[0], name) for name in VARIANTS}
    return {"calibration": figure, **examples}


def _draw_examples(run: dict[str, Any], method: str) -> Any:
    import matplotlib.pyplot as plt

    examples = run["examples"][method]
    figure, axes = plt.subplots(len(examples), 4, figsize=(7.6, 1.9 * len(examples)), layout="constrained")
    figure.suptitle(f"{method}: the two maps it trusts most, and the two it trusts least", fontsize=10)
    depth: Any = None
    error: Any = None
    for row, example in zip(axes, examples, strict=True):
        prediction, truth = (_unpack(example, name) * _UNIT for name in ("prediction", "truth"))
        row[0].imshow(_unpack(example, "picture"))
        for ax, values in zip(row[1:3], (prediction, truth), strict=True):
            depth = ax.imshow(values, vmin=0, vmax=_UNIT, cmap="viridis")
        error = row[3].imshow(np.abs(prediction - truth), vmin=0, vmax=4, cmap="magma")
        row[0].set_ylabel(f"confidence {example['confidence']:.2f}", fontsize=8)
        for ax in row:
            ax.set(xticks=[], yticks=[])
    for ax, title in zip(axes[0], ("Input", "Prediction", "Truth", "Error"), strict=True):
        ax.set_title(title, fontsize=9)
    figure.colorbar(depth, ax=axes[:, 1:3], location="bottom", shrink=0.8, pad=0.02, label="Depth (m)")
    figure.colorbar(error, ax=axes[:, 3], location="bottom", pad=0.02, label="Error (m)")
    return figure
