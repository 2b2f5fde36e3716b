"""Tables 13 and 14: news articles of four kinds, and whether other texts can be told apart from them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onsphere import FrozenHead, OnsphereWarning, SphericalOutput
from onsphere.baselines import KNN, MSP, Detector, Gini
from onsphere.metrics import accuracy, auroc, fpr_at_tpr
from onsphere.plots import PALETTE
from onsphere.sphere import scores
from reproduction.arguments import Floats
from reproduction.baselines import HUQ, NUQ, RAU
from reproduction.checkpoints import Checkpoints
from reproduction.data import load_text
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.text_networks import Answers, Texts, fine_tune

TITLE = "Text classification (Tables 13 and 14)"

ABOUT = """
In distribution: AG News, four kinds of news. Outside: Yelp, IMDB, Emotion and DBPedia. As in the paper, an encoder is
fine-tuned with a softmax, then its last layer is replaced by a direction and a magnitude on the CLS vector, and the
network is trained for one more epoch with HCM's loss. All other methods judge the softmax network. (An earlier version
of this page had linear layers on the mean of the tokens of an encoder that was not fine-tuned.)

"HCM" scores by the paper's | ‖d‖ − 1 |. On the same network, "HCM reference" is the score of the paper's CIFAR script
and "HCM signed" is 1 − ‖d‖. These two, Gini, KNN and FrozenHead (which scores the softmax network's features in closed
form) are not in the paper.

"FPR@95" is the share of foreign texts that are accepted when 95 % of the news are, with the news as the positive class.
"FPR@95, foreign positive" is the share of news that is rejected when 95 % of the foreign texts are, as in the paper's
CIFAR script. The paper does not say which it has for text, so its figures stand next to both: those of MSP and NUQ are
nearer to ours with the foreign texts as positive, those of HCM to ours with the news as positive.

HUQ is tuned as its authors do, on mistakes among held-out news, and so gave all weight to MSP (α = 1) in preset "cpu".
With the default numbers of its released code its AUROC there would be .951, .934, .943 and .930 (seed 0), above HCM's
mean. We chose before we saw that, and the claim below is judged by the tuned one.

The paper's text says that HCM outperforms MSP on all sets; its Table 13 has HCM below MSP on Emotion (.9716 and .9720).
"""

DEVIATIONS = [
    Deviation(
        paper="bert-base-uncased (12 layers, 768 numbers), 128 tokens",
        ours="cpu: all-MiniLM-L6-v2 (6 layers, 384 numbers), 64 tokens, products in bfloat16",
        why="We had no BERT and two cores. Any folder with BERT's weights is taken as encoder.",
    ),
    Deviation(
        paper="the training set of AG News, 120,000 texts",
        ours="cpu: 17,869 texts of a subset of 18,869",
        why="We had this subset only.",
    ),
    Deviation(
        paper="no validation set is mentioned",
        ours="1,000 training texts are held out",
        why="HUQ's paper tunes it on such texts, and we chose the rate of HCM's head on them.",
    ),
    Deviation(
        paper="says nothing of how the encoder is fine-tuned first",
        ours="one epoch with AdamW, at a rate that falls from 5e-5 (cpu) or 2e-5 (paper) to 0; not searched",
        why="Usual values for the two encoders.",
    ),
    Deviation(
        paper="HCM's epoch at a rate of 2e-6 for the encoder and the new head (7,500 steps on the whole set)",
        ours="cpu: 1,117 steps, the encoder at 2e-6, the new head at 1e-2",
        why="With the encoder as it is, 1,117 steps at 2e-6 leave a new head at an accuracy of .47 on the held-out "
        "news. 1e-2 had the smallest loss there of seven rates, tried on a head that started as the softmax layer had.",
    ),
    Deviation(
        paper="five seeds",
        ours="cpu: fewer, which share one softmax network and differ in HCM's training and in the texts drawn",
        why="Time.",
    ),
    Deviation(
        paper="does not say how many texts are tested",
        ours="cpu: 2,000 of AG News and 1,500 of each other set, drawn for each seed from a quarter more",
        why="Time.",
    ),
    Deviation(
        paper="HUQ ranks texts among those to be judged",
        ours="HUQ ranks them among the held-out texts",
        why="A text's score must not depend on the other texts.",
    ),
    Deviation(
        paper="NUQ chooses its bandwidth by cross-validation and may use a network with spectral normalisation",
        ours="NUQ chooses it leaving out one text at a time, on the same network as the others",
        why="The paper does not mention another network.",
    ),
    Deviation(
        paper="RAU trains a whole network",
        ours="RAU trains a linear head on the softmax network's features",
        why="It would take one more network for each seed.",
    ),
    Deviation(
        paper="real texts",
        ours="quick: made-up words, and a mean of vectors of words in place of the encoder",
        why="It runs in the tests.",
    ),
]

PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "n_seeds": 1,
        "encoder": "words",
        "n_train": 500,
        "n_validation": 100,
        "n_test": 200,
        "n_out": 100,
        "n_tokens": 20,
        "precision": "float32",
        "batch_size": 16,
        "softmax_epochs": 5,
        "softmax_rate": 1e-2,
        "share_softmax": False,
        "hcm_epochs": 5,
        "rate": 1e-3,
        "head_rate": 1e-2,
    },
    "cpu": {
        "n_seeds": 3,
        "encoder": "minilm",
        "n_train": None,
        "n_validation": 1000,
        "n_test": 2000,
        "n_out": 1500,
        "n_tokens": 64,
        "precision": "bfloat16",
        "batch_size": 16,
        "softmax_epochs": 1,
        "softmax_rate": 5e-5,
        "share_softmax": True,
        "hcm_epochs": 1,
        "rate": 2e-6,
        "head_rate": 1e-2,
    },
    "paper": {
        "n_seeds": 5,
        "encoder": "bert-base-uncased",
        "n_train": None,
        "n_validation": 1000,
        "n_test": None,
        "n_out": None,
        "n_tokens": 128,
        "precision": "float32",
        "batch_size": 16,
        "softmax_epochs": 1,
        "softmax_rate": 2e-5,
        "share_softmax": False,
        "hcm_epochs": 1,
        "rate": 2e-6,
        "head_rate": 2e-6,
        "whole": True,
    },
}

OUTSIDE = ("yelp", "imdb", "emotion", "dbpedia")
METHODS = ("HCM", "MSP", "HUQ", "NUQ", "RAU")
BEYOND = ("HCM reference", "HCM signed", "Gini", "KNN", "FrozenHead")
N_CLASSES = 4
METRICS = {
    "AUROC": auroc,
    "FPR@95": partial(fpr_at_tpr, positive="in"),
    "FPR@95, foreign positive": partial(fpr_at_tpr, positive="out"),
}

# AUROC and FPR at 95 % TPR by method, for the sets of OUTSIDE in order.
PAPER = {
    "AUROC": {
        "HCM": (0.9229, 0.9339, 0.9716, 0.9184),
        "MSP": (0.9019, 0.8748, 0.9720, 0.8813),
        "HUQ": (0.9343, 0.9235, 0.9833, 0.9353),
        "NUQ": (0.9695, 0.9720, 0.9708, 0.9686),
        "RAU": (0.9029, 0.8786, 0.9453, 0.8229),
    },
    "FPR@95": {
        "HCM": (0.3388, 0.3129, 0.1297, 0.3309),
        "MSP": (0.3262, 0.3460, 0.1369, 0.4374),
        "HUQ": (0.1683, 0.1636, 0.0839, 0.1620),
        "NUQ": (0.0598, 0.0523, 0.0532, 0.0540),
        "RAU": (0.3297, 0.3532, 0.2588, 0.6309),
    },
}


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    pools = make_pools(settings, seed) if settings["encoder"] == "words" else load_pools(settings, data)
    rows = draw_rows(settings, seed, pools)
    on_progress(0.05, 1, "trains the networks")
    places: dict[str, Any] = {"data": data, "device": device, "checkpoints": checkpoints, "on_progress": on_progress}
    softmax, directions = fine_tune(settings, seed, pools, rows, **places)
    on_progress(0.9, 1, "fits the detectors")
    outputs = {name: SphericalOutput(each, np.ones(len(each))) for name, each in directions.items()}
    drawn = {name: Answers(*(part[rows[name]] for part in softmax[name])) for name in rows}

    def judge_method(method: str) -> dict[str, list[float]]:
        by_set = score_sets(method, seed, pools, softmax, drawn, outputs)
        return {
            metric: [float(compute(by_set["test"], by_set[name])) for name in OUTSIDE]
            for metric, compute in METRICS.items()
        }

    found = {method: checkpoints.compute_once(method, partial(judge_method, method)) for method in (*METHODS, *BEYOND)}
    labels = pools["test"].labels[rows["test"]]
    return {metric: {method: values[metric] for method, values in found.items()} for metric in METRICS} | {
        "accuracy": {
            "softmax": accuracy(labels, drawn["test"].logits.argmax(axis=1)),
            "HCM": accuracy(labels, directions["test"].argmax(axis=1)),
        }
    }


def score_sets(
    method: str,
    seed: int,
    pools: dict[str, Texts],
    softmax: dict[str, Answers],
    drawn: dict[str, Answers],
    outputs: dict[str, SphericalOutput],
) -> dict[str, Floats]:
    """Return the uncertainty by one method of the texts that were drawn from each set; HCM's comes from its outputs."""
    of_hcm = {"HCM": scores.violation, "HCM reference": scores.reference, "HCM signed": scores.signed}
    if method in of_hcm:
        return {name: np.asarray(of_hcm[method](outputs[name])) for name in drawn}
    labels = pools["train"].labels
    if method == "FrozenHead":
        frozen = FrozenHead(random_state=seed).fit(softmax["train"].features, labels)
        return {name: frozen.predict_uncertainty(answers.features) for name, answers in drawn.items()}
    detectors: dict[str, Detector] = {
        "MSP": MSP(),
        "HUQ": HUQ(),
        "NUQ": NUQ(kind="epistemic"),
        "RAU": RAU(random_state=seed),
        "Gini": Gini(),
        "KNN": KNN(),
    }
    detector = detectors[method]
    with warnings.catch_warnings():
        # Words that never occur make HUQ's covariance singular.
        warnings.simplefilter("ignore", OnsphereWarning)
        detector.fit(*softmax["train"], labels)
    if isinstance(detector, HUQ):
        detector.tune(*softmax["validation"], pools["validation"].labels)
    return {name: detector.score(*answers) for name, answers in drawn.items()}


# --- texts ---


def load_pools(settings: dict[str, Any], data: Path) -> dict[str, Texts]:
    """Load the texts that seeds draw from; they are the same for all seeds, so that each is encoded once."""

    def load_pool(name: str, split: str, n: int | None) -> Texts:
        pool = Texts(*load_text(name, split, folder=data, whole=settings.get("whole", False)))
        return pool.pick(np.random.default_rng(0).permutation(len(pool.texts))[:n])

    news = load_pool("ag_news", "train", settings["n_train"])
    rows = np.arange(len(news.texts))
    # A quarter more than a seed draws, so that seeds differ.
    n_test, n_out = (None if n is None else n + n // 4 for n in (settings["n_test"], settings["n_out"]))
    return {
        "train": news.pick(rows[settings["n_validation"] :]),
        "validation": news.pick(rows[: settings["n_validation"]]),
        "test": load_pool("ag_news", "test", n_test),
        **{name: load_pool(name, "test", n_out) for name in OUTSIDE},
    }


def draw_rows(settings: dict[str, Any], seed: int, pools: dict[str, Texts]) -> dict[str, Any]:
    """Draw the rows of the test set and of each foreign set that a seed is judged on."""
    generator = np.random.default_rng(seed)
    sizes = {"test": settings["n_test"], **dict.fromkeys(OUTSIDE, settings["n_out"])}
    return {name: generator.permutation(len(pools[name].texts))[:n] for name, n in sizes.items()}


def make_pools(settings: dict[str, Any], seed: int) -> dict[str, Texts]:
    """Make news of four topics, and foreign texts of one further topic for each set."""
    generator = np.random.default_rng(seed)
    sizes = {"train": settings["n_train"], "validation": settings["n_validation"], "test": settings["n_test"]}
    news = {name: make_texts(range(N_CLASSES), n, generator) for name, n in sizes.items()}
    foreign = {
        name: Texts(make_texts([N_CLASSES + k], settings["n_out"], generator).texts) for k, name in enumerate(OUTSIDE)
    }
    return news | foreign


def make_texts(topics: Sequence[int], n: int, generator: np.random.Generator) -> Texts:
    """Make texts of twenty words, ten from the topic's own thirty and ten from a hundred that all topics share."""
    labels = np.asarray(topics)[generator.integers(len(topics), size=n)].astype(np.int64)
    own, shared = generator.integers(30, size=(n, 10)), generator.integers(100, size=(n, 10))
    rows = zip(labels, own, shared, strict=True)
    texts = [
        " ".join([*(f"topic{label}word{word}" for word in some), *(f"common{word}" for word in others)])
        for label, some, others in rows
    ]
    return Texts(texts, labels)


# --- tables, claims and figures ---


def tabulate(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = [
        make_row(
            PAPER[metric.split(",")[0]][method][place] if method in METHODS else None,
            [run[metric][method][place] for run in runs],
            within=0.03,
            metric=metric,
            set=name,
            method=method,
        )
        for metric in METRICS
        for place, name in enumerate(OUTSIDE)
        for method in (*METHODS, *BEYOND)
    ]
    accuracies = [
        make_row(None, [run["accuracy"][method] for run in runs], metric="accuracy", set="ag_news", method=method)
        for method in runs[0]["accuracy"]
    ]
    return [*rows, *accuracies]


def average_seeds(runs: list[dict[str, Any]], metric: str) -> dict[str, list[float]]:
    """Return the mean over seeds for each method and set."""
    return {method: np.mean([run[metric][method] for run in runs], axis=0).tolist() for method in (*METHODS, *BEYOND)}


def check_claims(runs: list[dict[str, Any]]) -> list[Claim]:
    found = average_seeds(runs, "AUROC")

    def format_pair(first: str, second: str) -> str:
        pairs = zip(OUTSIDE, found[first], found[second], strict=True)
        return ", ".join(f"{name} {one:.3f} against {other:.3f}" for name, one, other in pairs)

    def count_ahead(first: str, second: str) -> int:
        return sum(one > other for one, other in zip(found[first], found[second], strict=True))

    average = {method: float(np.mean(values)) for method, values in found.items()}
    return [
        Claim("HCM is above MSP (mean AUROC)", average["HCM"] > average["MSP"], format_pair("HCM", "MSP")),
        # In the paper's own table MSP is ahead on Emotion, by .0004.
        Claim("HCM is above MSP on every set", count_ahead("HCM", "MSP") == len(OUTSIDE), format_pair("HCM", "MSP")),
        Claim("HCM is above RAU on every set", count_ahead("HCM", "RAU") == len(OUTSIDE), format_pair("HCM", "RAU")),
        Claim(
            "NUQ and HUQ, which look at the neighbourhood, are above HCM (mean AUROC)",
            min(average["NUQ"], average["HUQ"]) > average["HCM"],
            f"NUQ {average['NUQ']:.3f}, HUQ {average['HUQ']:.3f}, HCM {average['HCM']:.3f}",
        ),
        Claim(
            "FrozenHead on the softmax network's features is above MSP (mean AUROC)",
            average["FrozenHead"] > average["MSP"],
            format_pair("FrozenHead", "MSP"),
            ours=True,
        ),
    ]


def draw(runs: list[dict[str, Any]]) -> dict[str, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(METRICS), figsize=(15, 4.5), layout="constrained")
    methods = (*METHODS, *BEYOND)
    colours = dict(zip(OUTSIDE, PALETTE, strict=False))
    for ax, metric in zip(axes, METRICS, strict=True):
        ours = average_seeds(runs, metric)
        for place, name in enumerate(OUTSIDE):
            height = np.arange(len(methods)) + 0.18 * (place - 1.5)
            ax.plot([ours[method][place] for method in methods], height, "o", color=colours[name], label=name)
            published = [PAPER[metric.split(",")[0]][method][place] for method in METHODS]
            ax.plot(published, height[: len(METHODS)], "x", color=colours[name])
        ax.set_yticks(range(len(methods)), methods)
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
        ax.set_xlabel(metric)
    axes[0].legend(title="dots: ours, crosses: paper", frameon=False, fontsize="small", title_fontsize="small")
    plt.close(figure)
    return {"ood": figure}
