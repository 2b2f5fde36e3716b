"""Table 8: the cost of a prediction with its score."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import entr, softmax
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from onsphere.baselines import KNN, Detector, Mahalanobis
from onsphere.plots import BLUE, GREY, LEGEND, ORANGE
from onsphere.torch import attach
from reproduction.arguments import Floats
from reproduction.baselines import FDBD, NCI, ViM, odin
from reproduction.checkpoints import Checkpoints
from reproduction.experiment import Claim, Deviation, OnProgress, make_row
from reproduction.networks import ResNet, fork_seed, resnet18

__all__ = ["ABOUT", "DEVIATIONS", "PAPER", "PRESETS", "TITLE", "check_claims", "draw", "measure", "tabulate"]

TITLE = "What a score costs (table 8)"

ABOUT = """
Every method answers the same question for a batch of images: a class, and one number per image that says how far to
trust it. All have the same ResNet-18 for CIFAR-10 and take turns in one run, so that other work of the machine slows
all of them down equally. Only the ratio to MSP is compared with the paper: the paper's times are ranges, measured on a
GPU, and the middle of each range is used here. Its milliseconds per image are about one over its throughput, so they
are compared with ours in batches of 64. This is a measurement of ratios, not a test: weights and images are random,
because they do not change the cost. Scores of features are those of `onsphere.baselines`: they run on the processor,
check their input (about a millisecond per batch, which shows for single images), and were fitted on as many random
features as CIFAR-10 has training images. Scores of logits and HCM are a few operations of torch.

Times are processor times with one thread; on a GPU they are wall-clock times. "MSP again" is MSP a second time: its
distance from 1 is the noise. Ensembles, MC dropout and ODIN take part in fewer turns. MC dropout repeats the whole
network, as needed for dropout between layers; with dropout only before the last layer, only that layer would have to be
repeated. Scoring is the part of the time after the last pass of the network. Multiplications are counted in the
convolutions and linear layers of all passes, forwards and backwards. Preset "quick" has a tiny network.
"""

DEVIATIONS = [
    Deviation(
        "An RTX 4090, 5 seeds",
        'Preset "paper" is for a GPU. "cpu": one thread of a processor, 1 seed, fewer turns',
        "No GPU at hand; only ratios to MSP are compared",
    ),
    Deviation(
        "Peak memory of the GPU",
        "The weights, what a detector stores, and the peak of a batch of 64 above that, counted by CUDA or by torch's "
        "profiler",
        "All methods are in memory at once, so that they can take turns",
    ),
    Deviation(
        "Trained networks and real images",
        "Random weights and images",
        "They cost the same",
    ),
]

# "turns" are those with a single image and with a batch.
PRESETS: dict[str, dict[str, Any]] = {
    "quick": {
        "n_seeds": 1,
        "network": "tiny",
        "n_known": 200,
        "n_passes": 5,
        "batch": 8,
        "turns": [3, 3],
        "few_turns": 2,
    },
    "cpu": {
        "n_seeds": 1,
        "network": "resnet18",
        "n_known": 50000,
        "n_passes": 50,
        "batch": 64,
        "turns": [40, 8],
        "few_turns": 2,
    },
    "paper": {
        "n_seeds": 5,
        "network": "resnet18",
        "n_known": 50000,
        "n_passes": 50,
        "batch": 64,
        "turns": [200, 200],
        "few_turns": 50,
    },
}

# Milliseconds per image, images per second and megabytes; ranges as published.
PAPER: dict[str, dict[str, tuple[float, ...]]] = {
    "MSP": {"time": (0.15, 0.20), "throughput": (6000, 7000), "memory": (227,)},
    "Ensemble": {"time": (0.25, 0.38), "throughput": (2600, 4300), "memory": (577,)},
    "MC Dropout": {"time": (1.6, 1.8), "throughput": (600,), "memory": (227,)},
    "ODIN": {"time": (0.36, 0.66), "throughput": (1500, 2800), "memory": (452,)},
    "Energy": {"time": (0.16, 0.33), "throughput": (3000, 6000), "memory": (227,)},
    "MDS": {"time": (0.20, 0.36), "throughput": (4900, 5900), "memory": (228,)},
    "KNN": {"time": (0.51, 0.66), "throughput": (1500, 2000), "memory": (227,)},
    "ViM": {"time": (0.18, 0.20), "throughput": (5400, 5500), "memory": (227,)},
    "fDBD": {"time": (0.21,), "throughput": (4700, 6300), "memory": (228,)},
    "NCI": {"time": (0.37,), "throughput": (2700, 6500), "memory": (228,)},
    "HCM": {"time": (0.19,), "throughput": (5000, 6800), "memory": (226,)},
}

NETWORKS: dict[str, Callable[[], ResNet]] = {"resnet18": resnet18, "tiny": lambda: ResNet((1, 1), (8, 16))}
N_CLASSES, N_MEMBERS, DROPOUT, SIZE = 10, 5, 0.1, 32
DETECTORS: dict[str, Callable[[], Detector]] = {
    "MDS": Mahalanobis,
    "KNN": KNN,
    "ViM": ViM,
    "fDBD": FDBD,
    "NCI": NCI,
}
MANY_PASSES = ("Ensemble", "MC Dropout", "ODIN")


@dataclass
class Method:
    """The passes of the network, the function that turns their outputs into scores, and everything to keep for that."""

    run: Callable[[Tensor], Any]
    score: Callable[[Any], Any]
    keeps: list[Any]

    def __call__(self, images: Tensor) -> Any:
        return self.score(self.run(images))


def measure(
    settings: dict[str, Any], seed: int, *, data: Path, device: str, checkpoints: Checkpoints, on_progress: OnProgress
) -> dict[str, Any]:
    """Count once, then let the methods take turns."""
    threads = torch.get_num_threads()
    with fork_seed(seed), threadpool_limits(1):
        torch.set_num_threads(1)
        try:
            methods = make_methods(settings, device)
            batch = torch.randn(settings["batch"], 3, SIZE, SIZE, device=device)
            found: dict[str, Any] = {}
            for done, (name, method) in enumerate(methods.items()):
                on_progress(done, 2 * len(methods), f"counts of {name}")
                found[name] = count_costs(method, batch)
            for size, images, turns in zip(("one", "many"), (batch[:1], batch), settings["turns"], strict=True):
                on_progress(len(methods), 2 * len(methods), f"turns, {len(images)} image(s) at once")
                for name, times in take_turns(methods, images, turns, settings["few_turns"]).items():
                    found[name][size] = times
        finally:
            torch.set_num_threads(threads)
    return {"methods": found, "batch": settings["batch"]}


# --- methods ---


def make_methods(settings: dict[str, Any], device: str) -> dict[str, Method]:
    """Return all methods on one network; the ensemble has four more, and HCM a last layer of its own."""
    network = NETWORKS[settings["network"]]().eval().to(device)
    known = torch.rand(settings["n_known"], network.n_features).numpy().astype(np.float64)
    weight, bias = (values.detach().double().cpu().numpy() for values in (network.linear.weight, network.linear.bias))
    labels = np.arange(len(known)) % N_CLASSES

    def features_and_logits(images: Tensor) -> tuple[Floats, Floats]:
        features = network.features(images)
        return features.cpu().numpy(), network.linear(features).cpu().numpy()

    methods = {
        "MSP": Method(network, score_msp, [network]),
        "MSP again": Method(network, score_msp, [network]),
        "Energy": Method(network, score_energy, [network]),
    }
    for name, make in DETECTORS.items():
        # The bias lifts the logits above zero, without which ViM has no scale.
        detector = make().fit(known, known @ weight.T + bias + 10.0, labels)
        methods[name] = Method(features_and_logits, make_scorer(detector), [network, *vars(detector).values()])
        if name == "KNN":
            methods[name].keeps.append(known)
    members = [network, *(copy.deepcopy(network) for _ in range(N_MEMBERS - 1))]
    methods["Ensemble"] = Method(
        lambda images: np.stack([member(images).cpu().numpy() for member in members]), score_draws, members
    )

    def pass_once(images: Tensor) -> Floats:
        return network.linear(nn.functional.dropout(network.features(images), DROPOUT)).cpu().numpy()

    methods["MC Dropout"] = Method(
        lambda images: np.stack([pass_once(images) for _ in range(settings["n_passes"])]), score_draws, [network]
    )

    def pass_view(images: Tensor) -> Tensor:
        return network(images.view_as(images))  # torch counts no gradients of the very tensor a module is called with

    # ODIN runs the network forwards twice and backwards once, and returns the score itself.
    methods["ODIN"] = Method(lambda images: odin(pass_view, images), lambda scores: scores, [network])
    hcm = attach(copy.deepcopy(network), N_CLASSES, embedding="onehot", mean=False)
    methods["HCM"] = Method(
        hcm, lambda output: (hcm.decode(output).cpu().numpy(), hcm.uncertainty(output).cpu().numpy()), [hcm]
    )
    return methods


def score_msp(logits: Tensor) -> Any:
    probability, label = torch.softmax(logits, dim=1).max(dim=1)
    return label.cpu().numpy(), (1 - probability).cpu().numpy()


def score_energy(logits: Tensor) -> Any:
    return logits.argmax(dim=1).cpu().numpy(), -torch.logsumexp(logits, dim=1).cpu().numpy()


def make_scorer(detector: Detector) -> Callable[[Any], Any]:
    def score(features_and_logits: tuple[Floats, Floats]) -> Any:
        return features_and_logits[1].argmax(axis=1), detector.score(*features_and_logits)

    return score


def score_draws(logits: Floats) -> Any:
    """Return the class of the mean probabilities over several passes (m, n, C), and their entropy."""
    mean = softmax(logits, axis=2).mean(axis=0)
    return mean.argmax(axis=1), entr(mean).sum(axis=1)


# --- counts and times ---


def count_costs(method: Method, batch: Tensor) -> dict[str, float]:
    """Count what does not vary: parameters, multiplications per image, and megabytes. Also fills the caches."""
    networks = [each for each in method.keeps if isinstance(each, nn.Module)]
    arrays = [each for each in method.keeps if isinstance(each, np.ndarray)]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        method(batch[:1])
    kept = [each.nbytes for network in networks for each in network.state_dict().values()]
    kept += [each.nbytes for each in arrays]
    return {
        "parameters": float(sum(each.numel() for network in networks for each in network.parameters())),
        "multiplications": counter.get_total_flops() / 2,
        "megabytes": (sum(kept) + measure_peak(method, batch)) / 2**20,
    }


def measure_peak(method: Method, images: Tensor) -> float:
    """Return the peak number of bytes during a prediction, above those that were taken before it."""
    if images.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.no_grad():
            method(images)
        return float(torch.cuda.max_memory_allocated() - before)
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # otherwise the profiler writes to the terminal
    profile: Any = torch.autograd.profiler.profile(profile_memory=True)
    with torch.no_grad(), profile:
        method(images)
    changes = [event for event in profile.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    return float(np.max(np.cumsum([0, *(event.nbytes() for event in changes)])))


def take_turns(methods: dict[str, Method], images: Tensor, turns: int, few_turns: int) -> dict[str, dict[str, Any]]:
    """Return median milliseconds per image, of all and of the score alone, and the ratios to MSP turn by turn."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    for turn in range(turns):
        # Now in one order, now in the other, so that no method always follows a slow one.
        for name in methods if turn % 2 == 0 else reversed(methods):
            if turn < few_turns or name not in MANY_PASSES:
                taken[name].append(time_answer(methods[name], images))
    first = taken["MSP"]
    return {
        name: {
            "milliseconds": 1000 * statistics.median(whole for whole, _ in times) / len(images),
            "scoring": 1000 * statistics.median(score for _, score in times) / len(images),
            # Zip stops after the turns that a method took part in.
            "ratios": [whole / other for (whole, _), (other, _) in zip(times, first, strict=False)],
        }
        for name, times in taken.items()
    }


def time_answer(method: Method, images: Tensor) -> tuple[float, float]:
    """Return the seconds of a prediction, and of the part after the network."""
    now = CLOCKS[images.device.type]
    with torch.no_grad():
        start = now()
        output = method.run(images)
        middle = now()
        method.score(output)
        end = now()
    return end - start, end - middle


def read_gpu_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


# On the processor, the time of one thread does not depend on what else the machine does.
CLOCKS = {"cpu": time.process_time, "cuda": read_gpu_clock}


# --- tables, claims and figures ---


def time_ratio(name: str, size: str, run: dict[str, Any]) -> float:
    """Return the time over that of MSP, the median over turns."""
    return statistics.median(run["methods"][name][size]["ratios"])


def paper_ratio(name: str, key: str) -> float:
    """Return the paper's ratio to MSP, from the middles of its ranges."""
    return float(np.mean(PAPER[name][key]) / np.mean(PAPER["MSP"][key]))


def tabulate(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return ratios to MSP, the paper's and ours, then our own figures."""
    n = runs[0]["batch"]
    # The quantity, the function that computes it, and its name in PAPER.
    quantities: list[tuple[str, Callable[[str, dict[str, Any]], float], str | None]] = [
        (f"time over MSP, {n} at once", lambda name, run: time_ratio(name, "many", run), "time"),
        (f"throughput over MSP, {n} at once", lambda name, run: 1 / time_ratio(name, "many", run), "throughput"),
        ("memory over MSP", lambda name, run: megabytes(name, run) / megabytes("MSP", run), "memory"),
        ("time over MSP, 1 at once", lambda name, run: time_ratio(name, "one", run), None),
        ("latency, 1 at once (ms)", lambda name, run: run["methods"][name]["one"]["milliseconds"], None),
        (f"throughput, {n} at once (images/s)", lambda name, run: 1000 / per_image(name, run), None),
        (f"scoring, {n} at once (µs/image)", lambda name, run: 1000 * run["methods"][name]["many"]["scoring"], None),
        ("multiplications (millions/image)", lambda name, run: run["methods"][name]["multiplications"] / 1e6, None),
        ("parameters (millions)", lambda name, run: run["methods"][name]["parameters"] / 1e6, None),
        ("memory (MB)", megabytes, None),
    ]
    rows: list[dict[str, Any]] = []
    for quantity, find, key in quantities:
        for name in (*PAPER, "MSP again"):
            paper = paper_ratio(name, key) if key and name in PAPER else None
            rows.append(make_row(paper, [find(name, run) for run in runs], quantity=quantity, method=name))
    return rows


def megabytes(name: str, run: dict[str, Any]) -> float:
    return run["methods"][name]["megabytes"]


def per_image(name: str, run: dict[str, Any]) -> float:
    return run["methods"][name]["many"]["milliseconds"]


def check_claims(runs: list[dict[str, Any]]) -> list[Claim]:
    """Check what the paper concludes from its table."""
    found = {name: statistics.mean(time_ratio(name, "many", run) for run in runs) for name in (*PAPER, "MSP again")}
    again = [value for run in runs for value in run["methods"]["MSP again"]["many"]["ratios"]]
    low, high = min(again), max(again)
    fastest = min(PAPER, key=lambda name: found[name])
    paper = {name: paper_ratio(name, "time") for name in PAPER}
    return [
        Claim(
            "HCM costs what MSP costs, but for noise",
            low <= found["HCM"] <= high,
            f"{found['HCM']:.3f} of the time of MSP; MSP a second time took from {low:.3f} to {high:.3f}; paper "
            f"{paper['HCM']:.2f}",
        ),
        Claim(
            "No method is faster than HCM, but for noise",
            found["HCM"] - found[fastest] <= high - low,
            f"HCM {found['HCM']:.3f}, the fastest is {fastest} with {found[fastest]:.3f}; the paper's own table has "
            "MSP before HCM",
        ),
        Claim(
            "An ensemble of 5 costs about five times as much: 4 to 6",
            4 <= found["Ensemble"] <= 6,
            f"{found['Ensemble']:.2f}; the paper's own table has {paper['Ensemble']:.2f}",
        ),
        Claim(
            "50 passes with dropout cost about fifty times as much: 40 to 60",
            40 <= found["MC Dropout"] <= 60,
            f"{found['MC Dropout']:.2f}; the paper's own table has {paper['MC Dropout']:.2f}",
        ),
    ]


def draw(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Draw times over that of MSP, ours and the paper's."""
    import matplotlib.pyplot as plt

    names = list(PAPER)
    figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for size, marker, label in (("many", "o", f"{runs[0]['batch']} at once"), ("one", "D", "1 at once")):
        ours = [statistics.mean(time_ratio(name, size, run) for run in runs) for name in names]
        colour = BLUE if size == "many" else ORANGE
        ax.scatter(ours, range(len(names)), marker=marker, color=colour, s=36, zorder=3, label=f"ours, {label}")
    paper = [paper_ratio(name, "time") for name in names]
    ax.scatter(paper, range(len(names)), marker="|", color=GREY, s=140, zorder=2, label="paper (GPU)")
    ax.axvline(1.0, color=GREY, linestyle="--", linewidth=1)
    ax.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50]
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlabel="time over that of MSP", axisbelow=True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25, linewidth=0.6)
    ax.legend(loc="upper right", **LEGEND)
    return {"time": figure}
