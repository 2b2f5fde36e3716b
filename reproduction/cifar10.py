"""Tables 2, 6, 7, 9 and 10: CIFAR-10 against other images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor

from onsphere import FrozenHead, SphericalOutput
from onsphere.baselines import MSP, Detector, Energy, gini
from onsphere.metrics import accuracy, aupr, auroc, fpr_at_tpr
from onsphere.plots import GREY, LEGEND, PALETTE
from onsphere.sphere import scores
from reproduction.arguments import Floats
from reproduction.baselines import ODIN
from reproduction.checkpoints import Checkpoints
from reproduction.cifar10_networks import NETWORKS, load_weights, train_network
from reproduction.cifar10_published import PAPER, PAPER_GROUPS, TABLES
from reproduction.data import load_cifar10, load_image_set, normalize_images
from reproduction.efficiency import DETECTORS as FITTED
from reproduction.efficiency import score_draws
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.networks import ResNet, fork_seed

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "CIFAR-10 against other images (tables 2, 6, 7, 9, 10)"

ABOUT = """
A classifier of CIFAR-10 says how far to trust its answers, on CIFAR-10's test images and on images of other sets: near
ones (CIFAR-100, Tiny ImageNet) and far ones (MNIST, SVHN, DTD, Places365). The paper trains ResNet-18 from scratch;
preset "cpu" starts from a trained ResNet-20 and trains all of its layers a little further, every network alike.

HCM has the loss of the reference code and its score: n − 1 where the norm n of the direction is above 1, and 1/n − 1
where it is below. "HCM violation" is |n − 1| and "HCM signed" 1 − n, on the same network. Mixing adds as many mixed
images to the clean ones. FPR@95 is the share of CIFAR-10 that is rejected when 95 % of the other set is, as in the
reference code; "FPR@95, ID" is the share of the other set that is accepted when 95 % of CIFAR-10 is, as in OpenOOD.
AUPR has the other set as the positive class. The figure of epochs is of the first 500 test images of each set. The
accuracy of the "given network" is that of the weights that preset "cpu" starts from, on the same test images.

The paper's text has other figures for mixing than its tables: +6.38 AUROC and −37.67 FPR@95 for HCM in the text of the
appendix, +5.26 and −27.29 in tables 9 and 10, and the columns of tables 7 and 10 differ by −32.93. The average of HCM
mix is 89.44 in table 2 and 89.51 in table 6. The averages of table 2 are the mean of near and far for MSP (87.85), that
of all six sets for HCM (85.04), and neither for KNN (90.97; the means are 90.33 and 91.08).

In the figure of norms, the last bar holds all norms of 1.5 or more. In that of epochs, an epoch of preset "cpu" is a
fifth of a pass over the images; accuracy, and the AUROC of HCM without mixing and with pairs, still rise at its end.

Beyond the paper: "Gini" is a softmax network trained by the squared error of its probabilities and scored by their
Gini impurity; "FrozenHead" is fitted on the features of the unchanged softmax network, like KNN.
"""

DEVIATIONS = [
    Deviation(
        "ResNet-18 from scratch, 100 epochs in batches of 64, 5 seeds",
        'Preset "paper" does that. "cpu": ResNet-20 from given weights, all layers trained on 50,000 images in five '
        "short epochs and batches of 128, with one cycle of the learning rate up to .1, in bfloat16 where torch "
        "considers it safe; 3 seeds",
        "Two processor cores; the 12,000 epochs of ResNet-18 would take them over a year",
    ),
    Deviation(
        "Mixed images are added to the clean ones",
        '"paper" adds as many. "cpu": half of the 50,000 images are mixed',
        "All networks have the same number of steps",
    ),
    Deviation(
        "Six other sets, with Places365",
        '"paper" has all six. "cpu": five, without Places365, so its means are of five sets; 3,000 images of each',
        "No copy of Places365 was at hand",
    ),
    Deviation(
        "SVHN, Tiny ImageNet and DTD as OpenOOD has them",
        'What the files hold. "cpu": 10,000 images of SVHN, the validation images of Tiny ImageNet, 10 of 47 classes '
        "of DTD, all at 32×32 pixels",
        "The copies at hand",
    ),
    Deviation(
        "Does not say how images are scaled and moved",
        '"paper": mean and deviation of CIFAR-10, random crops and flips. "cpu": mean and deviation of ImageNet',
        "The given weights were trained on images scaled like this",
    ),
    Deviation(
        "HCM's loss is a tenth in the first two epochs",
        '"cpu" skips this',
        "It is for networks that start from scratch",
    ),
    Deviation(
        "Does not say which tables mixed pairs and which 20 images",
        "Pairs for tables 9 and 10, 20 images for HCM mix of tables 2, 6 and 7; both are shown",
        "The reference code has both",
    ),
    Deviation(
        "An ensemble of 5, MC dropout and all detectors, with mixing as well",
        '"cpu" trains fewer networks: an ensemble of 3 and MC dropout without mixing, softmax and HCM with pairs, Gini '
        "and HCM with 20 images",
        "Time",
    ),
    Deviation(
        "ODIN and NCI tuned on out-of-distribution images, as their papers do",
        "Their defaults",
        "No method here sees images of other sets before the test",
    ),
    Deviation(
        "Does not say the rate of MC dropout",
        "10 % before the last layer, 50 passes, scored by the entropy of the mean like the ensemble",
        "A common choice",
    ),
]

FULL: dict[str, Any] = {
    "n_seeds": 5,
    "source": "images",
    "sets": ["CIFAR-100", "Tiny ImageNet", "MNIST", "SVHN", "DTD", "Places365"],
    "network": "resnet18",
    "weights": None,
    "statistics": "CIFAR-10",
    "networks": {
        mixing: ["softmax", "ensemble", "dropout", "gini", "hcm"] for mixing in ("none", "pairs", "dirichlet")
    },
    "n_members": 5,
    "n_passes": 50,
    "n_epochs": 100,
    "n_images": 50000,
    "mixing_adds": True,
    "equal_cost": False,
    "batch_size": 64,
    "learning_rate": 0.1,
    "decay_at": [30, 60, 90],
    "first_epoch": 0,
    "mixed_precision": False,
    "n_known": 50000,
    "n_test": None,
    "n_watched": 500,
}
PRESETS: dict[str, dict[str, Any]] = {
    "quick": FULL
    | {"n_seeds": 1, "source": "squares", "network": "tiny", "n_members": 2, "n_passes": 5, "first_epoch": 2}
    | {"n_epochs": 2, "decay_at": [1], "n_images": 300, "n_known": 200, "n_test": 60, "batch_size": 30}
    | {"learning_rate": 0.05, "sets": FULL["sets"][:5], "n_watched": 20},
    "cpu": FULL
    | {"n_seeds": 3, "sets": FULL["sets"][:5], "network": "resnet20", "weights": "cifar10_resnet20"}
    | {
        "statistics": "ImageNet",
        "first_epoch": 2,
        "n_epochs": 5,
        "n_images": 10000,
        "equal_cost": True,
        "decay_at": None,
    }
    | {"mixed_precision": True, "batch_size": 128, "n_members": 3, "n_known": 10000, "n_test": 3000}
    | {
        "networks": {
            "none": ["softmax", "ensemble", "dropout", "hcm"],
            "pairs": ["softmax", "hcm"],
            "dirichlet": ["gini", "hcm"],
        },
    },
    "paper": FULL,
}

NEAR = ("CIFAR-100", "Tiny ImageNet")
SETS = tuple(FULL["sets"])
METRICS = ("AUROC", "FPR@95", "FPR@95, ID", "AUPR")
MIXINGS = {"none": "no mixing", "pairs": "pairs mixed", "dirichlet": "20 mixed"}
DETECTORS: dict[str, Callable[[], Detector]] = {"MSP": MSP, "Energy": Energy, **FITTED}
METHODS = ("MSP", "Ensemble", "MC Dropout", "ODIN", "Energy", "MDS", "KNN", "ViM", "fDBD", "NCI", "HCM")
BEYOND = ("HCM violation", "HCM signed", "Gini", "FrozenHead")
# Scores of HCM by the names of their methods.
HCM_SCORES = {"HCM": scores.reference, "HCM violation": scores.violation, "HCM signed": scores.signed}

AT_ONCE = 250
NORM_BINS = np.linspace(0.0, 1.5, 61)
NORM_QUANTILES = (0.05, 0.5, 0.95)

Images = dict[str, Tensor]
Answers = dict[str, tuple[dict[str, Floats], Any]]


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Train all networks without mixing, then with each kind of it, and score all sets."""
    pictures, labels = load_sets(settings, seed, data)
    n_networks = sum(len(list_networks(settings, mixing)) for mixing in settings["networks"])
    n_steps = n_networks * settings["n_epochs"] + len(settings["networks"])
    found: dict[str, Any] = {"results": {}, "norms": {}, "epochs": {}}
    done = 0
    for number, mixing in enumerate(settings["networks"]):
        networks: dict[str, Any] = {}
        histories: dict[str, Any] = {}
        for index, (name, kind) in enumerate(list_networks(settings, mixing).items()):

            def on_epoch(epoch: int, before: int = done, name: str = name, mixing: str = mixing) -> None:
                on_progress(before + epoch, n_steps, f"{MIXINGS[mixing]}, {name}, epoch {epoch + 1}")

            networks[name], histories[name] = train_network(
                settings,
                kind,
                mixing,
                pictures["train"],
                labels["train"],
                seed=1000 * seed + 100 * number + index,
                data=data,
                device=device,
                checkpoints=checkpoints,
                name=f"{mixing} {name}",
                on_epoch=on_epoch,
                evaluate=make_watcher(settings, kind, pictures, labels, device),
            )
            done += settings["n_epochs"]
        on_progress(done, n_steps, f"{MIXINGS[mixing]}, scores")
        answers, directions = score_sets(settings, seed, networks, pictures, labels, device)
        done += 1
        found["results"][mixing] = {
            method: compute_rates(settings, said, predicted, labels["test"])
            for method, (said, predicted) in answers.items()
        }
        far = [name for name in settings["sets"] if name not in NEAR]
        found["norms"][mixing] = {
            "CIFAR-10": count_norms(directions, ["test"]),
            "near": count_norms(directions, NEAR),
            "far": count_norms(directions, far),
        }
        found["epochs"][mixing] = histories
    if settings["weights"] is not None:
        found["given"] = measure_given(settings, pictures["test"], labels, data, device)
    return found


def measure_given(settings: dict[str, Any], pixels: Tensor, labels: dict[str, Any], data: Path, device: str) -> float:
    """Return the accuracy, in percent, of the network that all others start from, on the images they are tested on."""
    network = NETWORKS[settings["network"]](len(np.unique(labels["train"])))
    load_weights(network, data / "weights" / f"{settings['weights']}.safetensors")
    logits = compute_outputs(network.eval().to(device), "softmax", normalize(settings, pixels), device)
    return 100 * accuracy(labels["test"], logits.argmax(axis=1))


def list_networks(settings: dict[str, Any], mixing: str) -> dict[str, str]:
    """Return the kinds of the networks to train, by name; those of an ensemble are its members after the first."""
    networks: dict[str, str] = {}
    for kind in settings["networks"][mixing]:
        if kind == "ensemble":
            networks |= {f"softmax {member}": "softmax" for member in range(1, settings["n_members"])}
        else:
            networks[kind] = kind
    return networks


def make_watcher(
    settings: dict[str, Any], kind: str, pictures: Images, labels: dict[str, Any], device: str
) -> Callable[[Any], Any]:
    """Return a function that measures a network on the first images of each set, for the figure of epochs."""
    n = settings["n_watched"]

    def watch(network: Any) -> dict[str, Any]:
        some = {name: normalize(settings, pictures[name][:n]) for name in ("test", *settings["sets"])}
        outputs = {name: compute_outputs(network, kind, images, device) for name, images in some.items()}
        right = accuracy(labels["test"][:n], outputs["test"].argmax(axis=1))
        lengths = {name: np.linalg.norm(output, axis=1) for name, output in outputs.items()}
        score = score_directions if kind == "hcm" else score_logits
        own = {name: score(output) for name, output in outputs.items()}
        foreign = np.concatenate([lengths[name] for name in settings["sets"]])
        return {
            "accuracy": 100 * right,
            "AUROC": 100 * float(np.mean([auroc(own["test"], own[name]) for name in settings["sets"]])),
            "norms": {
                "CIFAR-10": np.quantile(lengths["test"], NORM_QUANTILES).tolist(),
                "others": np.quantile(foreign, NORM_QUANTILES).tolist(),
            },
        }

    return watch


# --- images ---


def load_sets(settings: dict[str, Any], seed: int, data: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return images as bytes (n, 3, H, W) and labels, for training, for the detectors and of every set."""
    rng = np.random.default_rng(seed)
    sets = paint_sets(settings, rng) if settings["source"] == "squares" else read_sets(settings, data)
    images, labels = {"train": sets["train"][0]}, {"train": sets["train"][1]}
    for name, (own, classes) in {**sets, "known": sets["train"]}.items():
        if name != "train":
            n = settings["n_known" if name == "known" else "n_test"]
            chosen = rng.permutation(len(own))[:n]
            images[name], labels[name] = own[chosen], classes[chosen]
    return {name: torch.from_numpy(own).permute(0, 3, 1, 2) for name, own in images.items()}, labels


def read_sets(settings: dict[str, Any], data: Path) -> dict[str, tuple[Any, Any]]:
    """Read the real sets."""
    return {
        "train": load_cifar10("train", folder=data),
        "test": load_image_set("CIFAR-10", folder=data),
        **{name: load_image_set(name, folder=data) for name in settings["sets"]},
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


def normalize(settings: dict[str, Any], pixels: Tensor) -> Tensor:
    """Scale images as those of the training."""
    return normalize_images(pixels, like=settings["statistics"])


# --- scores ---


def score_sets(
    settings: dict[str, Any],
    seed: int,
    networks: dict[str, Any],
    pictures: Images,
    labels: dict[str, Any],
    device: str,
) -> tuple[Answers, dict[str, Floats]]:
    """Return every method's scores of each set and its labels of CIFAR-10, and the directions of HCM."""
    tested = ["test", *settings["sets"]]
    images = {name: normalize(settings, pictures[name]) for name in ("known", *tested)}
    answers: Answers = {}
    if "softmax" in networks:
        answers |= score_softmax(networks["softmax"], seed, images, labels, device)
    members = [network for name, network in networks.items() if name.startswith("softmax")]
    if len(members) > 1:
        draws = {
            name: np.stack([compute_outputs(each, "softmax", images[name], device) for each in members])
            for name in tested
        }
        answers["Ensemble"] = score_sets_of_draws(draws)
    if "dropout" in networks:
        with fork_seed(seed):
            draws = {name: draw_passes(networks["dropout"], images[name], settings, device) for name in tested}
        answers["MC Dropout"] = score_sets_of_draws(draws)
    if "gini" in networks:
        brier = {name: compute_outputs(networks["gini"], "gini", images[name], device) for name in tested}
        answers["Gini"] = {name: gini(brier[name]) for name in tested}, brier["test"].argmax(axis=1)
    directions = {name: compute_outputs(networks["hcm"], "hcm", images[name], device) for name in tested}
    predicted = directions["test"].argmax(axis=1)
    for method, score in HCM_SCORES.items():
        answers[method] = {name: score_directions(rows, score) for name, rows in directions.items()}, predicted
    return answers, directions


def score_softmax(network: ResNet, seed: int, images: Images, labels: dict[str, Any], device: str) -> Answers:
    """Return the scores of all detectors that need one softmax network only."""
    features = {name: apply_in_batches(network.features, rows, device) for name, rows in images.items()}
    logits = {name: apply_in_batches(network.linear, rows, device).numpy() for name, rows in features.items()}
    known: dict[str, Any] = {name: rows.numpy() for name, rows in features.items()}
    tested = [name for name in images if name != "known"]
    predicted = logits["test"].argmax(axis=1)
    answers: Answers = {}
    for method, make in DETECTORS.items():
        detector = make().fit(known["known"], logits["known"], labels["known"])
        answers[method] = {name: detector.score(known[name], logits[name]) for name in tested}, predicted
    odin = ODIN(network)
    answers["ODIN"] = {name: odin.score(images[name]) for name in tested}, predicted
    head = FrozenHead(random_state=seed).fit(known["known"], labels["known"])
    own = {name: head.predict_uncertainty(known[name]) for name in tested}
    answers["FrozenHead"] = own, head.predict(known["test"])
    return answers


def compute_outputs(network: Any, kind: str, images: Tensor, device: str) -> Floats:
    """Return the directions of HCM, or the logits of another network."""

    def run(batch: Tensor) -> Tensor:
        return network(batch).direction if kind == "hcm" else network(batch)

    return apply_in_batches(run, images, device).double().numpy()


def score_directions(directions: Floats, score: Callable[[SphericalOutput], Any] = scores.reference) -> Floats:
    return score(SphericalOutput(directions, np.ones(len(directions))))


def score_logits(logits: Floats) -> Floats:
    """Return 1 minus the highest probability."""
    return 1 - softmax(logits, axis=1).max(axis=1)


def apply_in_batches(function: Callable[[Tensor], Tensor], rows: Tensor, device: str) -> Tensor:
    """Apply a function to many rows, a batch at a time."""
    with torch.no_grad():
        return torch.cat([function(batch.to(device)).cpu() for batch in rows.split(AT_ONCE)])


def draw_passes(network: Any, images: Tensor, settings: dict[str, Any], device: str) -> Floats:
    """Return the logits of many passes with dropout; only the part behind the dropout is repeated."""
    features = apply_in_batches(network.features, images, device)
    network.linear.train()
    passes = [apply_in_batches(network.linear, features, device).numpy() for _ in range(settings["n_passes"])]
    network.eval()
    return np.stack(passes)


def score_sets_of_draws(logits: dict[str, Floats]) -> tuple[dict[str, Floats], Any]:
    """Return the entropy of the mean probabilities of each set, and the labels of CIFAR-10."""
    answers = {name: score_draws(draws) for name, draws in logits.items()}
    return {name: scores for name, (_, scores) in answers.items()}, answers["test"][0]


def compute_rates(settings: dict[str, Any], own: dict[str, Floats], predicted: Any, truth: Any) -> dict[str, Any]:
    """Return figures in percent, by set."""
    rates: dict[str, Callable[[Floats, Floats], float]] = {
        "AUROC": auroc,
        "FPR@95": lambda inside, outside: fpr_at_tpr(inside, outside, positive="out"),
        "FPR@95, ID": lambda inside, outside: fpr_at_tpr(inside, outside, positive="in"),
        "AUPR": aupr,
    }
    return {
        "accuracy": 100 * accuracy(truth, predicted),
        **{
            metric: {name: 100 * compute(own["test"], own[name]) for name in settings["sets"]}
            for metric, compute in rates.items()
        },
    }


def count_norms(directions: dict[str, Floats], names: Sequence[str]) -> list[float]:
    """Return the share of rows whose norm is in each bin; those beyond are in the last."""
    lengths = [np.linalg.norm(directions[name], axis=1).clip(0, NORM_BINS[-1]) for name in names]
    return np.mean([np.histogram(each, NORM_BINS)[0] / len(each) for each in lengths], axis=0).tolist()


# --- tables, claims and figures ---


def average_groups(values: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of the near sets, of the far ones, and of all."""
    far = [value for name, value in values.items() if name not in NEAR]
    near = [values[name] for name in NEAR]
    return {"near": float(np.mean(near)), "far": float(np.mean(far)), "average": float(np.mean([*near, *far]))}


def collect(runs: list[dict[str, Any]], mixing: str, method: str, metric: str) -> list[Any]:
    """Return a figure of every run that has it."""
    found = [run["results"][mixing] for run in runs]
    return [each[method][metric] for each in found if method in each]


def tabulate(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the paper's tables with our figures; methods beyond the paper by their means."""
    rows: list[dict[str, Any]] = []

    def add(table: int | None, mixing: str, method: str, metric: str, where: str, paper: Any, ours: Any) -> None:
        place = "–" if paper is None else str(table)
        what = {"table": place, "mixing": MIXINGS[mixing], "method": method, "metric": metric, "set": where}
        rows.append(make_row(paper, ours, within=3.0, **what))

    cases = [(mixing, method) for mixing in MIXINGS for method in (*METHODS, *BEYOND)]
    for mixing, method in cases:
        if found := [average_groups(each) for each in collect(runs, mixing, method, "AUROC")]:
            paper = PAPER_GROUPS.get(mixing, {}).get(method, (None, None, None))
            for where, figure in zip(("near", "far", "average"), paper, strict=True):
                add(2, mixing, method, "AUROC", where, figure, [each[where] for each in found])
    for metric in METRICS:
        for mixing, method in cases:
            if found := collect(runs, mixing, method, metric):
                table = TABLES.get(metric, {}).get(mixing)
                paper = dict(zip(SETS, PAPER.get(metric, {}).get(mixing, {}).get(method, ()), strict=False))
                for name in found[0] if paper else ():
                    add(table, mixing, method, metric, name, paper[name], [each[name] for each in found])
                mean = float(np.mean([paper[name] for name in found[0]])) if paper else None
                means = [average_groups(each)["average"] for each in found]
                add(table, mixing, method, metric, "all sets", mean, means)
    for mixing, method in cases:
        found = collect(runs, mixing, method, "accuracy")
        if found and method in ("MSP", "Ensemble", "MC Dropout", "Gini", "HCM", "FrozenHead"):
            add(None, mixing, method, "accuracy", "CIFAR-10", None, found)
    if given := [run["given"] for run in runs if "given" in run]:
        add(None, "none", "given network", "accuracy", "CIFAR-10", None, given)
    return rows


def check_claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """Check what the paper concludes from these tables, and what we add."""

    def average(method: str, mixing: str = "none", metric: str = "AUROC") -> float:
        return float(np.mean([average_groups(each)["average"] for each in collect(runs, mixing, method, metric)]))

    plain, mix, pairs = average("HCM"), average("HCM", "dirichlet"), average("HCM", "pairs")
    fpr, fpr_mix = average("HCM", metric="FPR@95"), average("HCM", "dirichlet", "FPR@95")
    knn, frozen, softmax_only = average("KNN"), average("FrozenHead"), average("MSP")
    gini_mix = average("Gini", "dirichlet")
    both = [method for method in METHODS if all(collect(runs, mixing, method, "AUROC") for mixing in ("none", "pairs"))]
    gains = {method: average(method, "pairs") - average(method) for method in both}
    others = {method: gain for method, gain in gains.items() if method != "HCM"}
    best = max(others, key=lambda method: others[method])
    losers = ("MSP", "ODIN", "Energy")
    n_sets = len(runs[0]["settings"]["sets"])
    return [
        Claim(
            "Mixing lifts HCM",
            mix > plain,
            f"mean AUROC of {n_sets} sets {plain:.2f} without, {mix:.2f} with 20 mixed, {pairs:.2f} with pairs; "
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
    """Draw the AUROC of all methods with and without mixing, the norms of HCM, and what happens from epoch to epoch."""
    return {"auroc": draw_rates(runs), "norms": draw_norms(runs), "epochs": draw_epochs(runs)}


def draw_rates(runs: list[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt

    names = (*METHODS, *BEYOND)
    far = [name for name in runs[0]["settings"]["sets"] if name not in NEAR]
    figure, axes = plt.subplots(1, 2, figsize=(10, 6), sharey=True, layout="constrained")
    for group, (ax, where, sets) in enumerate(zip(axes, ("near", "far"), (NEAR, far), strict=True)):
        for number, (mixing, marker, colour) in enumerate(zip(MIXINGS, "osD", PALETTE, strict=False)):
            found = {name: collect(runs, mixing, name, "AUROC") for name in names}
            ours = [np.mean([average_groups(each)[where] for each in found[name]] or [np.nan]) for name in names]
            # Side by side, so that none hides another.
            places = np.arange(len(names)) + 0.22 * (number - 1)
            ax.scatter(ours, places, marker=marker, color=colour, s=30, zorder=3, label=MIXINGS[mixing])
        paper = [PAPER_GROUPS["none"][name][group] for name in METHODS]
        ax.scatter(paper, range(len(METHODS)), marker="|", color=GREY, s=160, zorder=2, label="paper, no mixing")
        ax.set(xlabel="AUROC (%)", title=f"{where}: {', '.join(sets)}", axisbelow=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **LEGEND)
    return figure


def draw_norms(runs: list[dict[str, Any]]) -> Any:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(MIXINGS), figsize=(10, 3), sharey=True, layout="constrained")
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
    return figure


def draw_epochs(runs: list[dict[str, Any]]) -> Any:
    """Draw accuracy, AUROC and norms against epochs, of HCM with every mixing and of the softmax network without."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    lines = [(mixing, "hcm", f"HCM, {text}") for mixing, text in MIXINGS.items()] + [("none", "softmax", "softmax")]
    for (mixing, name, label), colour in zip(lines, PALETTE, strict=False):
        histories = [run["epochs"][mixing][name] for run in runs]
        epochs = np.arange(1, len(histories[0]) + 1)
        for ax, quantity in zip(axes, ("accuracy", "AUROC"), strict=False):
            values = np.mean([[each[quantity] for each in history] for history in histories], axis=0)
            ax.plot(epochs, values, "o-", color=colour, label=label, markersize=4)
        if name == "hcm":
            for group, style in (("CIFAR-10", "-"), ("others", ":")):
                norms = np.mean([[each["norms"][group][1] for each in history] for history in histories], axis=0)
                axes[2].plot(epochs, norms, "o", linestyle=style, color=colour, markersize=4)
    for ax, title in zip(axes, ("accuracy (%)", "mean AUROC (%)", "median ‖d‖: CIFAR-10 –, others ···"), strict=True):
        ax.set(title=title, xlabel="epochs", axisbelow=True)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.25, linewidth=0.6)
    axes[2].axhline(1.0, color=GREY, linestyle="--", linewidth=1)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), **LEGEND)
    return figure
