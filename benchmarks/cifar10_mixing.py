"""HCM with 20 mixed images on CIFAR-10 as the paper has it: mixed images beside all clean ones, not in their place.

`python benchmarks/cifar10_mixing.py [EPOCHS] [FOLDER]`. Preset "cpu" of the reproduction gives all networks the same
number of steps, so its mixing networks see half of the clean images; this shows what that costs, after as many short
epochs as the preset has or as asked for. Every network is kept after each epoch in the folder, by default
`results/cifar10-mixing`, so that a stopped run continues.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from _record import RESULTS, record

from reproduction import cifar10
from reproduction.checkpoints import Checkpoints
from reproduction.data import data_folder

N_EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else cifar10.PRESETS["cpu"]["n_epochs"]
FOLDER = Path(sys.argv[2] if len(sys.argv) > 2 else "results/cifar10-mixing") / f"{N_EPOCHS}-epochs"
MIXING = "dirichlet"
N_SEEDS = cifar10.PRESETS["cpu"]["n_seeds"]
SETTINGS = {key: value for key, value in cifar10.PRESETS["cpu"].items() if key != "n_seeds"} | {
    "n_epochs": N_EPOCHS,
    "equal_cost": False,
    "mixed_precision": False,  # not every processor computes in bfloat16 without a detour
}
RUNS = Path(__file__).parent.parent / "docs" / "results" / "runs" / "cifar10" / "cpu"

torch.set_num_threads(1)


def measure_seed(seed):
    """Train the network of a seed as the reproduction does, and return its accuracy and rates."""
    pictures, labels = cifar10.load_sets(SETTINGS, seed, data_folder())
    place = list(SETTINGS["networks"]).index(MIXING)
    index = list(cifar10.list_networks(SETTINGS, MIXING)).index("hcm")
    network, _ = cifar10.train_network(
        SETTINGS,
        "hcm",
        MIXING,
        pictures["train"],
        labels["train"],
        seed=1000 * seed + 100 * place + index,
        data=data_folder(),
        device="cpu",
        checkpoints=Checkpoints(FOLDER / f"seed-{seed}"),
        name=f"{MIXING} hcm",
        on_epoch=lambda epoch: print(f"seed {seed}: epoch {epoch + 1} of {SETTINGS['n_epochs']}", flush=True),
        evaluate=cifar10.make_watcher(SETTINGS, "hcm", pictures, labels, "cpu"),
    )
    answers, _ = cifar10.score_sets(SETTINGS, seed, {"hcm": network}, pictures, labels, "cpu")
    said, predicted = answers["HCM"]
    rates = cifar10.compute_rates(SETTINGS, said, predicted, labels["test"])
    given = cifar10.measure_given(SETTINGS, pictures["test"], labels, data_folder(), "cpu")
    return rates | {"given": given}


def make_row(name, found):
    """Summarise seeds: the mean and the standard deviation of accuracy and mean rates."""
    row = {"networks": name}
    for figure, values in (
        ("accuracy", [each["accuracy"] for each in found]),
        ("AUROC", [np.mean(list(each["AUROC"].values())) for each in found]),
        ("FPR@95", [np.mean(list(each["FPR@95"].values())) for each in found]),
    ):
        row[figure] = float(np.mean(values))
        row[f"± {figure}"] = float(np.std(values, ddof=1))
    return row


found = [measure_seed(seed) for seed in range(N_SEEDS)]
former = [json.loads((RUNS / f"seed-{seed}.json").read_text())["results"][MIXING]["HCM"] for seed in range(N_SEEDS)]
given = float(np.mean([each["given"] for each in found]))
row = make_row(f"all clean images plus as many mixed, {N_EPOCHS} short epochs", found)
path = RESULTS / "cifar10_mixing.json"
earlier = json.loads(path.read_text())["rows"][1:] if path.is_file() else []
rows = [*(each for each in earlier if each["networks"] != row["networks"]), row]
record(
    "cifar10_mixing",
    about="HCM with 20 mixed images, ResNet-20 from the given weights, the script's score, means and standard "
    f"deviations of {N_SEEDS} seeds: all clean images plus as many mixed ones, in single precision, beside preset "
    '"cpu" of the reproduction, where half of the images are mixed and steps are in bfloat16. A short epoch has 10,000 '
    "clean images. The goal is an accuracy within 1 point of the given network's, and an AUROC of at least 85.",
    rows=[make_row("half of the images mixed, 5 short epochs", former), *rows],
    accuracy_of_the_given_network=given,
    goal_met_by=[each["networks"] for each in rows if each["accuracy"] >= given - 1 and each["AUROC"] >= 85],
)
