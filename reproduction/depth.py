"""Table 3 and Figure 3: the depth of every pixel of a picture, and how far to trust the map."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onsphere import Calibration, metrics, plots
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.data import load_nyu
from reproduction.depth_methods import METHODS, Answer, Loss, Scenes, add_noise, train_network
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
from reproduction.experiment import Claim, Deviation, OnProgress, make_row

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "Depth estimation on NYU-v2 (Table 3, Figure 3)"

ABOUT = """
A U-Net learns the depth of 64×64 pictures. Test pictures get noise x + a·ε with a ~ U(0, .5) each, and the question is
whether the uncertainty of a map follows its error, the root mean square over pixels.

- **Data.** The 795 pairs of NYU-v2's official training split, divided at random into 80 % training, 10 % validation and
  10 % test (so frames of one scene may be in two parts). Depth is in units of 10 m, which the paper's RMSE of .12
  suggests. Temperatures come from clean validation pictures; confidences are stretched to [0, 1] over the test
  pictures. The rows "new scenes" repeat the correlations on the 654 pairs of the official test split.
- **Methods.** *HCM* is the paper's: a direction map and a magnitude map. A pixel's depth is written twice, so its
  direction has two entries and R is √2 times the depth; the network returns d and R as they are. *HCM whole map* is the
  other reading: the map over its length, with one R per picture; earlier results judged the claims by it. *HCM Lift* is
  ours, chosen beforehand: every pixel on its own sphere (`Lift`, mean decoder), scored by the mean of u + a over
  pixels. The ensemble has 5 members; MC dropout drops channels (10 %) after each block; EDL has a normal-inverse-gamma
  distribution per pixel. All share network, optimiser, epochs and batches.
- **Beyond the paper.** *HCM, trained with noise* sees the noise of the test in training. *HCM, error frame* keeps the
  maps of HCM and replaces its score: trees learn HCM's errors, lifted on a sphere, on the validation pictures with four
  draws of noise each, from depth and u of the pixel and from brightness, contrast, roughness, depth and u of the
  picture.
- **Error and noise.** No score can rank what is not there. The rows "Spearman of error and noise" show that the errors
  hardly follow the noise (below .25 for every method; .12 to .28 in an earlier run with fewer channels), so a score
  that follows it ("Spearman of uncertainty and noise") gains little.
"""

DEVIATIONS = [
    Deviation(
        paper="Pairs from the official training splits; the number is not given",
        ours="The 795 labelled pairs (all presets): 636 for training, 80 for validation, 79 for test",
        why="The 120,000 unlabelled frames of the same scenes were not at hand. With them, test frames would be close "
        "to training frames, and noise would decide the error",
    ),
    Deviation(
        paper="A direction map and a magnitude map; the direction of a single depth is not defined",
        ours="Depth written twice, as the paper does for scalar targets (all presets)",
        why="It is the paper's own rule for one output. The direction is then (1, 1)/√2 everywhere",
    ),
    Deviation(
        paper="Does not say how u of the pixels becomes one score",
        ours="Root mean square over pixels, for HCM and its three rivals (all presets)",
        why="The error is the root mean square too",
    ),
    Deviation(
        paper="Does not say whether validation pictures have noise",
        ours="Temperature on clean validation pictures (all presets)",
        why="The noise is described as that of the test",
    ),
    Deviation(
        paper="Selective prediction metrics, not named",
        ours="AURC, E-AURC, and RMSE of the surest half (all presets)",
        why="The first two are the usual ones",
    ),
    Deviation(
        paper="Outputs of the baselines: scale not given",
        ours="They learn standardised depth (all presets)",
        why="It is how one would train them. On the first seed, the Pearson correlation with depth as it is, and "
        "standardised, is .39 and .34 for EDL, .28 and .22 for MC dropout, .14 and .28 for the ensemble (HCM .32)",
    ),
    Deviation(
        paper="U-Net of unknown width, Adam at 2e-4 for 200 epochs, divided by 10 at 50, 100 and 150",
        ours="`paper`: the same with 64 channels. `cpu`: 16 channels, 6 epochs from 2e-3, divided by 10 "
        "at 3 and 5, batches of 8",
        why="Time: three seeds of eleven networks on one core. In a pilot of ten epochs, the error of a plain U-Net on "
        "clean validation pictures hardly changed after the sixth",
    ),
    Deviation(
        paper="32 bits",
        ours="`cpu`: convolutions in bfloat16, last layer and loss in 32 bits",
        why="Half the time on this processor",
    ),
    Deviation(
        paper="Number of dropout passes not given for depth",
        ours="`paper`: 50; `cpu`: 20",
        why="Time",
    ),
]

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "n_seeds": 1,
        "scenes": "made up",
        "n_scenes": 60,
        "width": 4,
        "precision": "float32",
        "n_epochs": 3,
        "decay_at": [2],
        "learning_rate": 1e-2,
        "batch_size": 4,
        "n_members": 2,
        "n_passes": 3,
    },
    "cpu": {
        "n_seeds": 3,
        "scenes": "nyu",
        "n_scenes": 795,
        "width": 16,
        "precision": "bfloat16",
        "n_epochs": 6,
        "decay_at": [3, 5],
        "learning_rate": 2e-3,
        "batch_size": 8,
        "n_members": 5,
        "n_passes": 20,
    },
    "paper": {
        "n_seeds": 1,
        "scenes": "nyu",
        "n_scenes": 795,
        "width": 64,
        "precision": "float32",
        "n_epochs": 200,
        "decay_at": [50, 100, 150],
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
# The methods of the paper's table, and all of them.
_OF_PAPER = (*RIVALS, "HCM")
_ALL = tuple(METHODS)


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Train each method once, and measure its maps of noised pictures."""
    rng = np.random.default_rng(seed)
    (pictures, depth), (new_pictures, new_depth) = _load_scenes(settings, seed, data)
    train, held, test = np.split(rng.permutation(len(depth)), [round(s * len(depth)) for s in (0.8, 0.9)])
    scenes = Scenes(pictures[train], depth[train], pictures[held], depth[held])
    noised, noise = add_noise(pictures[test], rng)
    new_noised, new_noise = add_noise(new_pictures, rng)
    x, y = scenes.pictures.to(device), scenes.depth.to(device)
    # The error frame has the network of HCM.
    n_fits, n_done = len(METHODS) - 2 + settings["n_members"], 0

    def fit(network: nn.Module, loss: Loss, *, name: str, number: int = 0, with_noise: bool = False) -> None:
        nonlocal n_done
        on_progress(min(n_done, n_fits - 1), n_fits, f"training {name}")
        n_done += 1
        train_network(
            network.to(device),
            loss,
            x,
            y,
            settings,
            seed=1000 * seed + number,
            with_noise=with_noise,
            checkpoints=checkpoints,
            name=f"{name} {number}",
        )

    def measure_method(name: str) -> dict[str, Any]:
        answer = METHODS[name](fit, scenes, settings)
        held_out = _judge_maps(answer, scenes.held_pictures, scenes.held_depth)[0]
        tested, maps = _judge_maps(answer, noised, depth[test])
        new = _judge_maps(answer, new_noised, new_depth)[0]
        uncertainty = held_out.temperature * tested.uncertainty
        confidence = _stretch(np.exp(-uncertainty))
        order = np.argsort(uncertainty)
        return {
            "metrics": compute_metrics(held_out, tested),
            "new scenes": {
                "Pearson": metrics.pearson(new.error, new.uncertainty),
                "Spearman": metrics.spearman(new.error, new.uncertainty),
                "RMSE": float(new.error.mean()),
                "Spearman of error and noise": metrics.spearman(new.error, new_noise),
            },
            "rows": {
                "error": round_figures(tested.error),
                "uncertainty": round_figures(uncertainty),
                "confidence": round_figures(confidence),
            },
            "examples": [
                _pack_example(noised[row].numpy(), maps[row], depth[test][row, 0].numpy(), float(confidence[row]))
                for row in order[[0, 1, -2, -1]].tolist()
            ],
        }

    found = {name: checkpoints.compute_once(name, partial(measure_method, name)) for name in METHODS}
    parts = {part: {name: found[name][part] for name in METHODS} for part in ("metrics", "new scenes", "rows")}
    examples = {name: found[name]["examples"] for name in VARIANTS}
    return {**parts, "examples": examples, "noise": round_figures(noise)}


def _judge_maps(answer: Answer, pictures: Tensor, depth: Tensor) -> tuple[Calibration, Floats]:
    """Return uncertainty and error of each picture, and its map."""
    maps, uncertainty = answer(pictures)
    return Calibration(uncertainty, metrics.sample_rmse(depth.flatten(1).numpy(), maps)), maps


def _stretch(values: Floats) -> Floats:
    """Stretch values to [0, 1], as the paper does with the confidences of the tested rows."""
    width = np.ptp(values)
    return (values - values.min()) / width if width > 0 else np.ones_like(values)


# --- data ---


def _load_scenes(settings: dict[str, Any], seed: int, data: Path) -> list[tuple[Tensor, Tensor]]:
    """Return pictures (n, 3, H, W) in [0, 1] and depth (n, 1, H, W) in units of 10 m: to divide, and of new scenes."""
    n = settings["n_scenes"]
    if settings["scenes"] == "made up":
        rng = np.random.default_rng(1000 + seed)
        parts = [_make_rooms(n, rng), _make_rooms(n // 4, rng)]
    else:
        read = [load_nyu(split, folder=data) for split in ("train", "test")]
        parts = [(pictures[:n].transpose(0, 3, 1, 2) / 255.0, depth[:n] / _UNIT) for pictures, depth in read]
    return [(_to_tensor(pictures), _to_tensor(depth[:, None])) for pictures, depth in parts]


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


def _to_tensor(values: NDArray[Any]) -> Tensor:
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
    further = [
        make_row(None, values, method=method, metric=metric)
        for method in _ALL
        for metric, values in _measure_further(runs, method).items()
    ]
    return [*make_metric_rows(runs, PAPER, _ALL), *further]


def _measure_further(runs: Sequence[dict[str, Any]], method: str) -> dict[str, list[float]]:
    """Return selective metrics, what the noise does, and figures of new scenes, of each run."""
    found: dict[str, list[float]] = {}
    for run in runs:
        error, uncertainty = (np.array(run["rows"][method][name]) for name in ("error", "uncertainty"))
        surest = np.argsort(uncertainty, kind="stable")[: max(len(error) // 2, 1)]
        figures = {
            "AURC": metrics.aurc(error, uncertainty),
            "E-AURC": metrics.excess_aurc(error, uncertainty),
            "RMSE of the surest half": float(error[surest].mean()),
            "Spearman of error and noise": metrics.spearman(error, run["noise"]),
            "Spearman of uncertainty and noise": metrics.spearman(uncertainty, run["noise"]),
            **{f"new scenes: {name}": value for name, value in run["new scenes"][method].items()},
        }
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    return found


def check_claims(runs: Sequence[dict[str, Any]]) -> list[Claim]:
    gap = {method: coverage_gap(runs, method) for method in _ALL}
    ece, rmse = ({method: average(runs, method, metric) for method in gap} for metric in ("ECE_reg", "RMSE"))
    spread = {method: float(np.mean([np.std(run["rows"][method]["confidence"]) for run in runs])) for method in gap}
    spearman = {method: average(runs, method, "Spearman") for method in gap}
    noisy, frame = "HCM, trained with noise", "HCM, error frame"
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
        Claim(
            "Training with noise lowers the error of HCM on pictures with noise",
            rmse[noisy] < rmse["HCM"],
            format_figures({name: rmse[name] for name in ("HCM", noisy)}),
            ours=True,
        ),
        Claim(
            "The error frame ranks the errors of HCM better than its u (Spearman)",
            spearman[frame] > spearman["HCM"],
            format_figures({name: spearman[name] for name in ("HCM", frame)}),
            ours=True,
        ),
    ]


def _average_tails(runs: Sequence[dict[str, Any]], method: str) -> list[tuple[float, float]]:
    """Return mean noise and error of the tenth with the highest confidence, and of that with the lowest."""
    confidence, error = _join_rows(runs, method, "confidence", "error")
    noise, order = np.concatenate([run["noise"] for run in runs]), np.argsort(-confidence, kind="stable")
    tenth = max(len(order) // 10, 1)
    return [(float(noise[part].mean()), float(error[part].mean())) for part in (order[:tenth], order[-tenth:])]


def draw(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    examples = {f"examples-{name.lower().replace(' ', '-')}": _draw_examples(runs[0], name) for name in VARIANTS}
    return {
        "calibration": _draw_calibration(runs),
        "scatter": _draw_scatter(runs),
        "boxes": _draw_boxes(runs),
        "selective": _draw_selective(runs),
        "noise": _draw_noise(runs),
        **examples,
    }


def _join_rows(runs: Sequence[dict[str, Any]], method: str, *names: str) -> list[Floats]:
    """Return columns of the test pictures of all runs."""
    return [np.concatenate([run["rows"][method][name] for run in runs]) for name in names]


def _draw_calibration(runs: Sequence[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for method in (*RIVALS, *VARIANTS):
        error, confidence = _join_rows(runs, method, "error", "confidence")
        plots.calibration_curve(error, confidence, n_bins=10, label=method, ax=left)
        draw_outline(right, confidence, np.linspace(0, 1, 11), color=left.lines[-1].get_color(), label=method)
    left.set(title="(a) Error against confidence", ylabel="Mean RMSE (10 m)")
    right.set(title="(b) Where the confidences lie", xlabel="Confidence", ylabel="Share of the test pictures")
    right.legend(**plots.LEGEND)
    return figure


def _draw_scatter(runs: Sequence[dict[str, Any]]) -> Any:
    """Draw the error of each picture against its uncertainty, coloured by its noise."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(12, 5.8), layout="constrained", sharey=True)
    noise = np.concatenate([run["noise"] for run in runs])
    dots: Any = None
    for ax, method in zip(axes.flat, _ALL, strict=True):
        error, uncertainty = _join_rows(runs, method, "error", "uncertainty")
        dots = ax.scatter(uncertainty, error, c=noise, s=9, cmap="viridis", vmin=0, vmax=0.5)
        end = min(float(uncertainty.max()), float(error.max()))
        ax.plot([0, end], [0, end], **plots.REFERENCE)
        ax.set_title(f"{method} ({average(runs, method, 'Spearman'):.2f})", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Error against uncertainty of each test picture (in brackets: Spearman)", fontsize=10)
    figure.supxlabel("Uncertainty, scaled on clean validation pictures (10 m)", fontsize=10)
    figure.supylabel("RMSE (10 m)", fontsize=10)
    figure.colorbar(dots, ax=axes, label="Noise a", shrink=0.8)
    return figure


def _draw_boxes(runs: Sequence[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 4, figsize=(12, 5.8), layout="constrained", sharey=True)
    for ax, method in zip(axes.flat, _ALL, strict=True):
        error, confidence = _join_rows(runs, method, "error", "confidence")
        plots.error_by_confidence(error, confidence, n_bins=10, ax=ax)
        ax.set(xlabel="", ylabel="")
        ax.get_legend().remove()
        ax.set_title(method, fontsize=9)
    figure.supxlabel("Confidence (the wider a box, the more pictures)", fontsize=10)
    figure.supylabel("RMSE (10 m)", fontsize=10)
    return figure


def _draw_selective(runs: Sequence[dict[str, Any]]) -> Any:
    """Draw the mean error of the accepted pictures, of the paper's methods and of the variants of HCM."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    groups = {"The paper's methods": _OF_PAPER, "HCM and its variants": ("HCM", *_ALL[len(_OF_PAPER) :])}
    for ax, (title, group) in zip(axes, groups.items(), strict=True):
        for method in group:
            error, uncertainty = _join_rows(runs, method, "error", "uncertainty")
            coverage, risk = metrics.risk_coverage_curve(error, uncertainty)
            # The mean of a few pictures says little.
            shown = coverage >= 0.05
            ax.plot(coverage[shown], risk[shown], linewidth=2, color=_choose_color(method), label=method)
        ax.set(title=title, xlabel="Coverage: share of pictures accepted", ylabel="")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(**plots.LEGEND)
    axes[0].set_ylabel("Mean RMSE of the accepted (10 m)")
    return figure


def _draw_noise(runs: Sequence[dict[str, Any]]) -> Any:
    """Draw error and uncertainty against the noise, in five bins."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12.5, 4.2), layout="constrained")
    noise, edges = np.concatenate([run["noise"] for run in runs]), np.linspace(0, 0.5, 6)
    bins = np.clip(np.digitize(noise, edges) - 1, 0, 4)
    filled = np.unique(bins)
    for method in _ALL:
        for ax, values in zip(axes, _join_rows(runs, method, "error", "uncertainty"), strict=True):
            means = [values[bins == each].mean() for each in filled]
            ax.plot(edges[filled] + 0.05, means, marker=".", color=_choose_color(method), label=method)
    axes[0].set(title="Error against noise", ylabel="Mean RMSE (10 m)")
    axes[1].set(title="Uncertainty against noise", ylabel="Mean uncertainty (10 m)")
    for ax in axes:
        ax.set(xlabel="Noise a")
        ax.spines[["top", "right"]].set_visible(False)
    # The error frame has the maps of HCM, so its line hides that of HCM in the first panel.
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside right center", **plots.LEGEND)
    return figure


def _choose_color(method: str) -> str:
    """Return the colour of a method, the same in both panels of a figure."""
    return f"C{_ALL.index(method)}"


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
