"""Why the directions of HCM on CIFAR-10's own images are not of length 1, and what brings them closer.

`python benchmarks/cifar10_norms.py [FOLDER [VARIANT ...]]`. Every network is kept after each epoch in the folder, by
default `results/cifar10-norms`, so that a stopped run continues. Where variants are named, only these are trained, and
the rows of the others stay as they were recorded. The last variant starts from scratch and is the longest by far.
"""

import copy
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from _record import RESULTS, record

from onsphere import SphericalOutput
from onsphere.metrics import accuracy, auroc
from onsphere.plots import BLUE, GREY, LEGEND, ORANGE
from onsphere.sphere import scores
from reproduction import cifar10
from reproduction.checkpoints import Checkpoints
from reproduction.cifar10_networks import train_network
from reproduction.data import data_folder

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "results/cifar10-norms")
N_WATCHED, N_STATISTICS = 1000, 5000
N_PASSES = 25
SETTINGS = {key: value for key, value in cifar10.PRESETS["cpu"].items() if key != "n_seeds"} | {"n_test": N_WATCHED}
# Not every processor computes in bfloat16 without a detour.
SINGLE = {"mixed_precision": False}
# The images that are watched, and no others, again and again.
FEW = SINGLE | {"n_images": N_PASSES * N_WATCHED, "n_epochs": 1}
SCRATCH = {"weights": None, "statistics": "CIFAR-10", "first_epoch": 0, "n_images": 50000, "n_epochs": 2}


class SquaredLoss(torch.nn.Module):
    """The loss of the paper's text, without the power of the script."""

    def forward(self, output, soft):
        return (output.direction - soft).square().sum(dim=1).mean() + (output.magnitude - 1).square().mean()


# What differs from the preset "cpu": settings, the mixing, and arguments of train_network.
VARIANTS = {
    "as preset cpu": ({}, "none", {}),
    "pairs mixed": ({}, "pairs", {}),
    "learning rate .01": ({"learning_rate": 0.01}, "none", {}),
    "squared loss": ({}, "none", {"loss": SquaredLoss()}),
    "weight decay 5e-4": ({}, "none", {"weight_decay": 5e-4}),
    "batches of 32, single precision": (SINGLE | {"batch_size": 32}, "none", {}),
    "1,000 images 25 times, single precision": (FEW, "none", {}),
    "from scratch": (SCRATCH, "none", {}),
}

torch.set_num_threads(1)


def make_evaluator(settings, pictures, labels):
    """Return a function that measures a network, as it is and with batch statistics of clean images."""
    images = {name: cifar10.normalize(settings, own[:N_WATCHED]) for name, own in pictures.items()}
    clean = cifar10.normalize(settings, pictures["known"][:N_STATISTICS])

    def evaluate(network):
        renewed = copy.deepcopy(network)
        for module in renewed.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None  # the mean of all batches
        renewed.train()
        with torch.no_grad():
            for batch in clean.split(250):
                renewed(batch)
        return {"network": measure(network), "statistics of clean images": measure(renewed.eval())}

    def measure(network):
        rows = {name: cifar10.compute_outputs(network, "hcm", own, "cpu") for name, own in images.items()}
        outputs = {name: SphericalOutput(own, np.ones(len(own))) for name, own in rows.items()}
        lengths = {name: np.linalg.norm(own, axis=1) for name, own in rows.items()}
        lengths["others"] = np.concatenate([lengths[name] for name in settings["sets"]])
        found = {"accuracy": 100 * accuracy(labels["test"][:N_WATCHED], rows["test"].argmax(axis=1))}
        for name, score in (("script", scores.reference), ("violation", scores.violation), ("signed", scores.signed)):
            own = {name: score(output) for name, output in outputs.items()}
            found[name] = 100 * float(np.mean([auroc(own["test"], own[other]) for other in settings["sets"]]))
        for name in ("train", "test", "others"):
            found[f"norms, {name}"] = np.quantile(lengths[name], [0.05, 0.5, 0.95]).tolist()
        return found

    return evaluate


def train_variant(name):
    """Return what was measured after each epoch from scratch, else after the last; None after the others."""
    changes, mixing, arguments = VARIANTS[name]
    settings = SETTINGS | changes
    begun = []
    pictures, labels = cifar10.load_sets(settings, 0, data_folder())
    pixels, classes = pictures["train"], labels["train"]
    evaluate = make_evaluator(settings, pictures, labels)

    def on_epoch(epoch):
        begun.append(epoch)
        print(f"{name}: epoch {epoch + 1} of {settings['n_epochs']}", flush=True)

    def is_shown(epoch):
        return settings["weights"] is None or epoch + 1 == settings["n_epochs"]

    if changes.items() >= FEW.items():
        pixels, classes = pixels[:N_WATCHED].repeat(N_PASSES, 1, 1, 1), np.tile(classes[:N_WATCHED], N_PASSES)
    return train_network(
        settings,
        "hcm",
        mixing,
        pixels,
        classes,
        seed=0,
        data=data_folder(),
        device="cpu",
        checkpoints=Checkpoints(FOLDER),
        name=name,
        on_epoch=on_epoch,
        evaluate=lambda network: evaluate(network) if is_shown(begun[-1]) else None,
        **arguments,
    )[1]


def draw_scratch(history):
    """Draw accuracy, AUROC and norms of the run from scratch against epochs."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    epochs = np.arange(1, len(history) + 1)
    own = [each["network"] for each in history]
    axes[0].plot(epochs, [each["accuracy"] for each in own], "o-", color=BLUE, markersize=4)
    for score, colour in (("script", BLUE), ("violation", ORANGE), ("signed", GREY)):
        axes[1].plot(epochs, [each[score] for each in own], "o-", color=colour, markersize=4, label=score)
    axes[1].legend(**LEGEND)
    for name, colour in (("train", BLUE), ("test", ORANGE), ("others", GREY)):
        low, middle, high = np.transpose([each[f"norms, {name}"] for each in own])
        axes[2].plot(epochs, middle, color=colour, label=name)
        axes[2].fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes[2].axhline(1.0, color="black", linestyle="--", linewidth=1)
    axes[2].legend(**LEGEND)
    for ax, title in zip(axes, ("accuracy (%)", "mean AUROC (%)", "‖d‖, 5 % to 95 %"), strict=True):
        ax.set(title=title, xlabel="epochs")
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(RESULTS / "cifar10_norms.png", dpi=110, bbox_inches="tight")


def make_row(name, found):
    def format_range(which):
        return " – ".join(f"{value:.2f}" for value in found[f"norms, {which}"])

    return {
        "variant": name,
        **{key: found[key] for key in ("accuracy", "script", "violation", "signed")},
        **{f"‖d‖ {which}": format_range(which) for which in ("train", "test", "others")},
    }


def main():
    chosen = sys.argv[2:] or list(VARIANTS)
    recorded = json.loads((RESULTS / "cifar10_norms.json").read_text()) if sys.argv[2:] else {"rows": []}
    kept = {row["variant"]: row for row in recorded["rows"]}
    n_scratch = recorded.get("epochs_from_scratch")
    for name in chosen:
        history = train_variant(name)
        kept[name] = make_row(name, history[-1]["network"])
        if name == "as preset cpu":
            renewed = f"{name}, statistics of clean images"
            kept[renewed] = make_row(renewed, history[-1]["statistics of clean images"])
        if name == "from scratch":
            n_scratch = len(history)
            draw_scratch(history)
    order = [row for name in VARIANTS for row in kept if row == name or row.startswith(f"{name}, statistics")]
    record(
        "cifar10_norms",
        about="One network of HCM each, ResNet-20, one seed: accuracy on CIFAR-10, mean AUROC against five other sets "
        "by three scores, and the 5 %, 50 % and 95 % quantiles of the length of the direction, for "
        f"{N_WATCHED} images of each set. A conditional mean is never longer than 1, so lengths above 1 on training "
        "images are what the network has not learned yet. Variants start from the given weights and see 50,000 "
        f"images in bfloat16, unless they say something else; that of 1,000 images sees the watched training images "
        f"{N_PASSES} times and no others. Nothing was chosen by this table.",
        rows=[kept[name] for name in order],
        epochs_from_scratch=n_scratch,
        picture="cifar10_norms.png",
    )


if __name__ == "__main__":
    main()
