"""Tables 2, 6, 7, 9 and 10: CIFAR-10 against other images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from onsphere import FrozenHead, SphericalOutput
from onsphere.baselines import MSP, Detector, Energy, gini
from onsphere.metrics import accuracy, auroc, fpr_at_tpr
from onsphere.plots import GREY, LEGEND, PALETTE
from onsphere.sphere import scores
from reproduction.arguments import Floats
from reproduction.baselines import ODIN
from reproduction.checkpoints import Checkpoints
from reproduction.cifar10_learners import Learner, Tail, draw_epoch, make_learners
from reproduction.cifar10_published import PAPER, PAPER_GROUPS, TABLES
from reproduction.data import load_cifar10, load_image_set, normalize_images
from reproduction.efficiency import DETECTORS as FITTED
from reproduction.efficiency import score_draws
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.networks import fork_seed

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "CIFAR-10 against other images (tables 2, 6, 7, 9, 10)"

ABOUT = """
A classifier of CIFAR-10 says how far to trust its answers, on CIFAR-10's test images and on images of other sets: near
ones (CIFAR-100, Tiny ImageNet) and far ones (MNIST, SVHN, DTD). Places365 is left out, so the means here are over five
sets, and so are the paper's means in tables 6, 7, 9 and 10; those of table 2 are as published, with Places365. A mean
over near and far gives both groups the same weight. Tiny ImageNet, SVHN and DTD are copies at 32×32 pixels, DTD 10 of
its 47 classes. FPR@95 is the share of CIFAR-10 that is rejected when 95 % of the other set is, as in the paper's code.

The paper trains ResNet-18 for 100 epochs with 5 seeds: preset "paper", with random crops and flips, and inputs scaled
by the mean and deviation of ImageNet; the paper mentions neither. HCM has its loss from the reference code, which
offers two ways of mixing. The paper does not say which of its tables used which: here, pairs with uniform shares are
used for tables 9 and 10, and 20 images with Dirichlet shares for "HCM mix" of tables 2, 6 and 7. Every method is shown
with both and without. Every image of a mixed batch is mixed. Ensembles have 5 members; MC dropout drops 10 % before the
last layer and passes 50 times; both are scored by the entropy of the mean. ODIN and NCI keep their defaults, although
their papers tune them on out-of-distribution images.

Preset "cpu" is for one core and 40 minutes, with one seed and 2,000 images of each set, so differences below a point
are noise. It starts from a trained ResNet-20, freezes the stem and two of three stages, and trains the third and a new
last layer by the paper's optimiser for 10 epochs of 5,000 images, the same for all networks; the learning rate falls
after 6 and 9 epochs, which was chosen by the training loss. That is one pass over the training images where the paper
makes 100. Softmax networks benefit from the start, which was one of them. HCM is far from converged: the norms of its
directions still vary on training images, where they should be 1, and the start had never seen mixtures. Members of one
ensemble share their start and their images, and differ only in the last layer and the order of images: they are less
diverse than those of the paper. The loss of HCM skips its two epochs of warm-up. Detectors are fitted on 10,000
training images. Nothing else was tuned. Preset "quick" draws coloured squares in place of all sets.

Beyond the paper: "Gini" is a softmax network trained by the squared error of its probabilities and scored by their
Gini impurity; "HCM signed" scores by 1 − ‖d‖ instead of its absolute value, which orders rows like the Gini impurity of
the direction; "FrozenHead" is fitted on the features of the unchanged softmax network, like KNN.
"""

DEVIATIONS: list[Deviation] = []

FULL: dict[str, Any] = {
    "n_seeds": 5,
    "source": "images",
    "network": "resnet18",
    "weights": None,
    "n_frozen": 0,
    "n_epochs": 100,
    "n_images": 50000,
    "n_known": 50000,
    "n_test": 10000,
    "batch_size": 64,
    "learning_rate": 0.1,
    "decay_at": [30, 60, 90],
    "first_epoch": 0,
    "n_members": 5,
    "n_passes": 50,
}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": FULL
    | {"n_seeds": 1, "source": "squares", "network": "tiny", "n_members": 2, "n_passes": 5, "first_epoch": 2}
    | {"n_epochs": 2, "decay_at": [1], "n_images": 300, "n_known": 200, "n_test": 60, "batch_size": 30}
    | {"learning_rate": 0.05},
    "cpu": FULL
    | {"n_seeds": 1, "network": "resnet20", "weights": "cifar10_resnet20", "n_frozen": 3, "first_epoch": 2}
    | {"n_epochs": 10, "decay_at": [6, 9], "n_images": 5000, "n_known": 10000, "n_test": 2000},
    "paper": FULL,
}

NEAR, FAR = ("CIFAR-100", "Tiny ImageNet"), ("MNIST", "SVHN", "DTD")
OTHERS = (*NEAR, *FAR)
METRICS = ("AUROC", "FPR@95")
MIXINGS = {"none": "no mixing", "pairs": "pairs mixed", "dirichlet": "20 mixed"}
DETECTORS: dict[str, Callable[[], Detector]] = {"MSP": MSP, "Energy": Energy, **FITTED}
METHODS = ("MSP", "Ensemble", "MC Dropout", "ODIN", "Energy", "MDS", "KNN", "ViM", "fDBD", "NCI", "HCM")
BEYOND = ("HCM signed", "Gini", "FrozenHead")

AT_ONCE = 250
NORM_BINS = np.linspace(0.0, 1.5, 61)


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Train all networks without mixing, then with each kind of it, and score all sets."""
    pictures, labels = load_sets(settings, seed, data)
    n_classes = int(labels["train"].max()) + 1
    n_steps = len(MIXINGS) * (settings["n_epochs"] + 1)
    found: dict[str, Any] = {"results": {}, "norms": {}}
    for number, mixing in enumerate(MIXINGS):
        with fork_seed(1000 * seed + number):
            stem, learners = make_learners(settings, n_classes, data, device)
            for epoch in range(settings["n_epochs"]):
                step = number * (settings["n_epochs"] + 1) + epoch
                on_progress(step, n_steps, f"{MIXINGS[mixing]}, epoch {epoch + 1} of {settings['n_epochs']}")
                maps, soft = draw_epoch(settings, mixing, stem, pictures["train"], labels["train"], device)
                for learner in learners.values():
                    learner.loss.epoch = settings["first_epoch"] + epoch  # HCM's loss reads it
                    learner.train(maps, soft, settings["batch_size"])
            on_progress((number + 1) * (settings["n_epochs"] + 1) - 1, n_steps, f"{MIXINGS[mixing]}, scores")
            answers, directions = score_sets(settings, seed, stem, learners, pictures, labels, device)
        found["results"][mixing] = {
            method: compute_rates(said, predicted, labels["test"]) for method, (said, predicted) in answers.items()
        }
        found["norms"][mixing] = {
            "CIFAR-10": count_norms(directions, ["test"]),
            "near": count_norms(directions, NEAR),
            "far": count_norms(directions, FAR),
        }
    return found


# --- images ---


def load_sets(settings: dict[str, Any], seed: int, data: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return images as bytes (n, 3, H, W) and labels, for training, for the detectors and of every set."""
    rng = np.random.default_rng(seed)
    sets = paint_sets(settings, rng) if settings["source"] == "squares" else read_sets(data)
    images, labels = {"train": sets["train"][0]}, {"train": sets["train"][1]}
    for name, (own, classes) in {**sets, "known": sets["train"]}.items():
        if name != "train":
            n = settings["n_known" if name == "known" else "n_test"]
            chosen = rng.permutation(len(own))[:n]
            images[name], labels[name] = own[chosen], classes[chosen]
    return {name: torch.from_numpy(own).permute(0, 3, 1, 2) for name, own in images.items()}, labels


def read_sets(data: Path) -> dict[str, tuple[Any, Any]]:
    """Read the real sets."""
    return {
        "train": load_cifar10("train", folder=data),
        "test": load_image_set("CIFAR-10", folder=data),
        **{name: load_image_set(name, folder=data) for name in OTHERS},
    }


def paint_sets(settings: dict[str, Any], rng: np.random.Generator) -> dict[str, tuple[Any, Any]]:
    """Paint red, green or blue squares on noise; as near sets squares of two colours, as far sets stripes and noise."""
    pure = 255 * np.eye(3)
    n_test = settings["n_test"]
    stripes = np.broadcast_to(rng.integers(0, 256, (n_test, 16, 1, 3)), (n_test, 16, 16, 3))
    noise = rng.integers(0, 256, (n_test, 16, 16, 3))
    return {
        "train": paint_squares(rng, settings["n_images"], pure),
        "test": paint_squares(rng, n_test, pure),
        "CIFAR-100": paint_squares(rng, n_test, 255 - pure),
        "Tiny ImageNet": paint_squares(rng, n_test, np.sqrt(0.5) * (255 - pure)),
        "MNIST": (stripes.astype(np.uint8), np.zeros(n_test, dtype=np.int64)),
        "SVHN": (np.swapaxes(stripes, 1, 2).astype(np.uint8), np.zeros(n_test, dtype=np.int64)),
        "DTD": (noise.astype(np.uint8), np.zeros(n_test, dtype=np.int64)),
    }


def paint_squares(rng: np.random.Generator, n: int, colours: Floats) -> tuple[Any, Any]:
    """Paint squares of half the width, each in the colour of its class."""
    labels = np.arange(n) % len(colours)
    images = rng.integers(0, 120, (n, 16, 16, 3)).astype(np.uint8)
    for image, label, (top, left) in zip(images, labels, rng.integers(0, 9, (n, 2)), strict=True):
        part = image[top : top + 8, left : left + 8]
        part[:] = 0.3 * part + 0.7 * colours[label]
    return images, labels


# --- scores ---


def score_sets(
    settings: dict[str, Any],
    seed: int,
    stem: nn.Module,
    learners: dict[str, Learner],
    pictures: dict[str, Tensor],
    labels: dict[str, Any],
    device: str,
) -> tuple[dict[str, tuple[dict[str, Floats], Any]], dict[str, Floats]]:
    """Return every method's scores of each set and its labels of CIFAR-10, and the directions of HCM."""
    names = ["known", "test", *OTHERS]
    tested = names[1:]
    images = {name: normalize_images(pictures[name]) for name in names}
    maps = {name: apply_in_batches(stem, images[name], device) for name in names}
    networks = {kind: learner.network for kind, learner in learners.items()}
    plain: Tail = networks["softmax 0"]
    features = {name: apply_in_batches(plain.features, maps[name], device) for name in names}
    logits = {name: apply_in_batches(plain.linear, features[name], device).numpy() for name in names}
    known: dict[str, Any] = {name: rows.numpy() for name, rows in features.items()}
    predicted = logits["test"].argmax(axis=1)

    answers: dict[str, tuple[dict[str, Floats], Any]] = {}
    for method, make in DETECTORS.items():
        detector = make().fit(known["known"], logits["known"], labels["known"])
        answers[method] = {name: detector.score(known[name], logits[name]) for name in tested}, predicted
    odin = ODIN(nn.Sequential(stem, plain))
    answers["ODIN"] = {name: odin.score(images[name]) for name in tested}, predicted
    head = FrozenHead(random_state=seed).fit(known["known"], labels["known"])
    own = {name: head.predict_uncertainty(known[name]) for name in tested}
    answers["FrozenHead"] = own, head.predict(known["test"])

    members = [networks[f"softmax {member}"] for member in range(settings["n_members"])]
    draws = {
        name: np.stack([apply_in_batches(each, maps[name], device).numpy() for each in members]) for name in tested
    }
    answers["Ensemble"] = score_sets_of_draws(draws)
    thinned: Tail = networks["dropout"]
    draws = {
        name: draw_passes(thinned, apply_in_batches(thinned.features, maps[name], device), settings, device)
        for name in tested
    }
    answers["MC Dropout"] = score_sets_of_draws(draws)

    brier = {name: apply_in_batches(networks["gini"], maps[name], device).numpy() for name in tested}
    answers["Gini"] = {name: gini(brier[name]) for name in tested}, brier["test"].argmax(axis=1)
    hcm = networks["hcm"]
    directions = {
        name: apply_in_batches(lambda rows: hcm(rows).direction, maps[name], device).numpy() for name in tested
    }
    outputs = {name: SphericalOutput(rows, np.ones(len(rows))) for name, rows in directions.items()}
    predicted = directions["test"].argmax(axis=1)
    answers["HCM"] = {name: scores.violation(output) for name, output in outputs.items()}, predicted
    answers["HCM signed"] = {name: scores.signed(output) for name, output in outputs.items()}, predicted
    return answers, directions


def apply_in_batches(function: Callable[[Tensor], Tensor], rows: Tensor, device: str) -> Tensor:
    """Apply a function to many rows, a batch at a time."""
    with torch.no_grad():
        return torch.cat([function(batch.to(device)).cpu() for batch in rows.split(AT_ONCE)])


def draw_passes(network: Tail, features: Tensor, settings: dict[str, Any], device: str) -> Floats:
    """Return the logits of many passes with dropout; only the part behind the dropout is repeated."""
    network.dropout.train()

    def once(rows: Tensor) -> Tensor:
        return network.linear(network.dropout(rows))

    drawn = np.stack([apply_in_batches(once, features, device).numpy() for _ in range(settings["n_passes"])])
    network.eval()
    return drawn


def score_sets_of_draws(logits: dict[str, Floats]) -> tuple[dict[str, Floats], Any]:
    """Return the entropy of the mean probabilities of each set, and the labels of CIFAR-10."""
    answers = {name: score_draws(draws) for name, draws in logits.items()}
    return {name: scores for name, (_, scores) in answers.items()}, answers["test"][0]


def compute_rates(own: dict[str, Floats], predicted: Any, truth: Any) -> dict[str, Any]:
    """Return figures in percent, of each set in the order of OTHERS."""
    return {
        "accuracy": 100 * accuracy(truth, predicted),
        "AUROC": [100 * auroc(own["test"], own[name]) for name in OTHERS],
        "FPR@95": [100 * fpr_at_tpr(own["test"], own[name], positive="out") for name in OTHERS],
    }


def count_norms(directions: dict[str, Floats], names: Sequence[str]) -> list[float]:
    """Return the share of rows whose norm is in each bin; those beyond are in the last."""
    lengths = [np.linalg.norm(directions[name], axis=1).clip(0, NORM_BINS[-1]) for name in names]
    return np.mean([np.histogram(each, NORM_BINS)[0] / len(each) for each in lengths], axis=0).tolist()


# --- tables, claims and figures ---


def average_groups(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean of the near sets, of the far ones, and of these two means."""
    near, far = float(np.mean(values[: len(NEAR)])), float(np.mean(values[len(NEAR) :]))
    return near, far, (near + far) / 2


def tabulate(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the paper's tables with our figures; methods beyond the paper by their means."""
    rows: list[dict[str, Any]] = []

    def add(table: int | str, mixing: str, method: str, metric: str, where: str, paper: Any, ours: list[float]) -> None:
        what = {"table": str(table), "mixing": MIXINGS[mixing], "method": method, "metric": metric, "set": where}
        rows.append(make_row(paper, ours, within=3.0, **what))

    for mixing in MIXINGS:
        for method in (*METHODS, *BEYOND):
            found = [average_groups(run["results"][mixing][method]["AUROC"]) for run in runs]
            paper = PAPER_GROUPS.get(mixing, {}).get(method)
            for index, where in enumerate(("near", "far", "near and far")):
                table = "–" if paper is None else 2
                add(table, mixing, method, "AUROC", where, paper and paper[index], [each[index] for each in found])
    for mixing in MIXINGS:
        for metric in METRICS:
            for method in (*METHODS, *BEYOND):
                ours = [run["results"][mixing][method][metric] for run in runs]
                paper, table = PAPER[metric][mixing].get(method), TABLES[metric][mixing]
                for index, (name, figure) in enumerate(zip(OTHERS, paper or (), strict=False)):
                    add(table, mixing, method, metric, name, figure, [each[index] for each in ours])
                mean = None if paper is None else float(np.mean(paper))
                means = [float(np.mean(each)) for each in ours]
                add("–" if paper is None else table, mixing, method, metric, "mean of five", mean, means)
    for mixing in MIXINGS:
        for method in ("MSP", "Ensemble", "MC Dropout", "Gini", "HCM", "FrozenHead"):
            ours = [run["results"][mixing][method]["accuracy"] for run in runs]
            add("–", mixing, method, "accuracy", "CIFAR-10", None, ours)
    return rows


def check_claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """Check what the paper concludes from these tables, and what we add."""

    def average(method: str, mixing: str = "none", metric: str = "AUROC") -> float:
        return float(np.mean([average_groups(run["results"][mixing][method][metric])[2] for run in runs]))

    plain, mix, pairs = average("HCM"), average("HCM", "dirichlet"), average("HCM", "pairs")
    fpr, fpr_mix = average("HCM", metric="FPR@95"), average("HCM", "dirichlet", "FPR@95")
    knn, frozen, softmax_only = average("KNN"), average("FrozenHead"), average("MSP")
    gini_mix = average("Gini", "dirichlet")
    gains = {method: average(method, "pairs") - average(method) for method in METHODS}
    others = {method: gain for method, gain in gains.items() if method != "HCM"}
    best = max(others, key=lambda method: others[method])
    losers = ("MSP", "ODIN", "Energy")
    return [
        Claim(
            "Mixing lifts HCM",
            mix > plain,
            f"mean AUROC of near and far {plain:.2f} without, {mix:.2f} with 20 mixed, {pairs:.2f} with pairs; "
            f"FPR@95 {fpr:.2f} and {fpr_mix:.2f} with 20; paper 85.04 and 89.44",
        ),
        Claim(
            "Without mixing, HCM is below MSP",
            plain < softmax_only,
            f"{plain:.2f} and {softmax_only:.2f}; paper 85.04 and 87.85",
        ),
        Claim(
            "HCM mix is competitive with KNN: at most 2 points below",
            mix >= knn - 2,
            f"{mix:.2f} and {knn:.2f}; paper 89.44 and 90.97",
        ),
        Claim(
            "Mixing pairs costs MSP, ODIN and Energy",
            all(gains[method] < 0 for method in losers),
            ", ".join(f"{method} {gains[method]:+.2f}" for method in losers) + "; paper −3.61, −20.95, −15.34",
        ),
        Claim(
            "Of all methods, HCM gains most from mixing pairs",
            gains["HCM"] > others[best],
            f"HCM {gains['HCM']:+.2f}, {best} {others[best]:+.2f}; paper +5.26, KNN +2.54",
        ),
        Claim(
            "FrozenHead on the untouched softmax network is above KNN on the same features",
            frozen > knn,
            f"{frozen:.2f} and {knn:.2f}",
            ours=True,
        ),
        Claim(
            "HCM mix is above a network trained by squared error with the same mixing, scored by Gini",
            mix > gini_mix,
            f"{mix:.2f} and {gini_mix:.2f}",
            ours=True,
        ),
    ]


def draw(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw the AUROC of all methods with and without mixing, and the norms of HCM."""
    import matplotlib.pyplot as plt

    names = (*METHODS, *BEYOND)
    rates_figure, axes = plt.subplots(1, 2, figsize=(10, 6), sharey=True, layout="constrained")
    for group, (ax, title) in enumerate(zip(axes, ("near: " + ", ".join(NEAR), "far: " + ", ".join(FAR)), strict=True)):
        for number, (mixing, marker, colour) in enumerate(zip(MIXINGS, "osD", PALETTE, strict=False)):
            ours = [
                np.mean([average_groups(run["results"][mixing][name]["AUROC"])[group] for run in runs])
                for name in names
            ]
            # Side by side, so that none hides another.
            places = np.arange(len(names)) + 0.22 * (number - 1)
            ax.scatter(ours, places, marker=marker, color=colour, s=30, zorder=3, label=MIXINGS[mixing])
        paper = [PAPER_GROUPS["none"][name][group] for name in METHODS]
        ax.scatter(paper, range(len(METHODS)), marker="|", color=GREY, s=160, zorder=2, label="paper, no mixing")
        ax.set(xlabel="AUROC (%)", title=title, axisbelow=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    rates_figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **LEGEND)

    norms, axes = plt.subplots(1, len(MIXINGS), figsize=(10, 3), sharey=True, layout="constrained")
    middles = (NORM_BINS[1:] + NORM_BINS[:-1]) / 2
    for ax, mixing in zip(axes, MIXINGS, strict=True):
        for name, colour in zip(("CIFAR-10", "near", "far"), PALETTE, strict=False):
            share = np.mean([run["norms"][mixing][name] for run in runs], axis=0)
            ax.fill_between(middles, share, step="mid", color=colour, alpha=0.3, linewidth=0)
            ax.step(middles, share, where="mid", color=colour, label=name)
        ax.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
        ax.set(xlabel="‖d‖ of HCM", title=MIXINGS[mixing], axisbelow=True)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("share of images")
    axes[0].legend(loc="upper left", **LEGEND)
    return {"auroc": rates_figure, "norms": norms}
