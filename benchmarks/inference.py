"""What the score costs: forward pass plus uncertainty against the plain softmax network, side by side in one run.

Every method answers the same question for a batch: a prediction and one number per row that says how far to trust it.
The methods take turns, so that whatever else the machine does falls on all of them alike.
"""

import copy
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from _record import record
from torch import nn

from onsphere.torch import MLP, attach
from reproduction.networks import resnet18

N_CLASSES = 10
N_MEMBERS, N_PASSES = 5, 50
SECONDS_CLOSE, SECONDS_FAR = 15.0, 3.0  # to tell 1.03 from 1 takes more turns than to tell 5 from 50
GOALS = {"ResNet-18": 1.03, "MLP of 400 inputs": 1.15, "MLP of 100 inputs": 1.15}
INPUTS = {"ResNet-18": (3, 32, 32), "MLP of 400 inputs": (400,), "MLP of 100 inputs": (100,)}


class Softmax(nn.Module):
    """Class and maximum softmax probability, turned round: the plain network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        probability, label = torch.softmax(self.network(x), dim=-1).max(dim=-1)
        return label, 1 - probability


class HCM(nn.Module):
    """Class and uncertainty of the same network with a spherical head."""

    def __init__(self, network):
        super().__init__()
        self.network = attach(network, N_CLASSES, embedding="onehot")

    def forward(self, x):
        output = self.network(x)
        return self.network.decode(output), self.network.uncertainty(output)


class Ensemble(nn.Module):
    """Class and entropy of the mean of five softmax networks."""

    def __init__(self, network):
        super().__init__()
        self.members = nn.ModuleList([network, *(copy.deepcopy(network) for _ in range(N_MEMBERS - 1))])

    def forward(self, x):
        return label_and_entropy(torch.stack([torch.softmax(member(x), dim=-1) for member in self.members]))


class Dropout(nn.Module):
    """Class and entropy of the mean of fifty passes with other features dropped before the last layer each time.

    Every pass runs the whole network, as it does where dropout lies between its layers.
    """

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        passes = []
        for _ in range(N_PASSES):
            features = nn.functional.dropout(self.network.features(x), 0.1)
            passes.append(torch.softmax(self.network.linear(features), dim=-1))
        return label_and_entropy(torch.stack(passes))


def label_and_entropy(probabilities):
    mean = probabilities.mean(dim=0)
    return mean.argmax(dim=-1), torch.special.entr(mean).sum(dim=-1)


METHODS = {"softmax": Softmax, "HCM": HCM, "ensemble of 5": Ensemble, "MC dropout, 50 passes": Dropout}


def network_of(name):
    torch.manual_seed(0)
    return (resnet18(N_CLASSES) if name == "ResNet-18" else MLP(*INPUTS[name], N_CLASSES)).eval()


def batch_of(name, size):
    return torch.randn(size, *INPUTS[name], generator=torch.Generator().manual_seed(1))


def seconds(model, x, n):
    """Return the processor time of a call, which does not depend on what else the machine does."""
    start = time.process_time()
    for _ in range(n):
        model(x)
    return (time.process_time() - start) / n


@torch.inference_mode()
def alternate(models, x, *, at_least):
    """Return the median time of each model, and the median over turns of its ratio to the first."""
    times = {name: [] for name in models}
    for model in models.values():
        model(x)  # compiles, and fills the caches
    # One measurement is long enough for the clock and short enough to take turns often.
    n = {name: max(1, round(0.02 / max(seconds(model, x, 1), 1e-5))) for name, model in models.items()}
    start, turn = time.perf_counter(), 0
    while time.perf_counter() - start < at_least or turn < 2:
        for name in models if turn % 2 == 0 else reversed(models):
            times[name].append(seconds(models[name], x, n[name]))
        turn += 1
    first = times[next(iter(models))]
    ratios = {
        name: statistics.median(own / other for own, other in zip(times[name], first, strict=True)) for name in models
    }
    return {name: statistics.median(values) for name, values in times.items()}, ratios


def measure(name, size, *, compiled):
    x = batch_of(name, size)
    close = ("softmax", "HCM")
    models = {
        method: make(network_of(name)).eval() for method, make in METHODS.items() if method in close or not compiled
    }
    if compiled:
        models = {method: torch.compile(model) for method, model in models.items()}
    # The two that are close take turns by themselves, so that the slow ones do not empty the caches between them.
    medians, ratios = alternate({method: models[method] for method in close}, x, at_least=SECONDS_CLOSE)
    for method in [method for method in models if method not in close]:
        pair = {"softmax": models["softmax"], method: models[method]}
        slow_medians, slow_ratios = alternate(pair, x, at_least=SECONDS_FAR)
        medians[method], ratios[method] = slow_medians[method], slow_ratios[method]
    return [
        {
            "network": name,
            "batch": size,
            "mode": "compiled" if compiled else "eager",
            "method": method,
            "ms": 1000 * medians[method],
            "ratio to softmax": ratios[method],
            "peak MB above import": "" if compiled else peak_memory(name, size, method),
        }
        for method in models
    ]


def peak_memory(name, size, method):
    """Return the peak memory of a fresh process that makes the model and answers once, above what imports take."""
    run = subprocess.run([sys.executable, __file__, "peak", name, str(size), method], capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return float(run.stdout)


def memory(field):
    """Read VmHWM, the peak, or VmRSS, the present size, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def main():
    torch.set_num_threads(1)
    rows = []
    for compiled in (False, True):
        for name in INPUTS:
            for size in (1, 64):
                rows += measure(name, size, compiled=compiled)
                print(*rows[-4:], sep="\n", flush=True)
    at_64 = {
        (row["network"], row["mode"]): row["ratio to softmax"]
        for row in rows
        if row["batch"] == 64 and row["method"] == "HCM"
    }
    record(
        "inference",
        about="Time and memory of a prediction with its score: the plain network with the maximum softmax probability, "
        "the same network with a spherical head and | ‖d‖ − 1 |, an ensemble of 5 and 50 passes of MC dropout, both "
        "with the entropy of the mean. ResNet-18 for 32×32 images; MLP with hidden layers of 200, 100 and 50, for 400 "
        "inputs as in the paper's industrial experiment, and for 100, where the same few operations weigh more; 10 "
        "classes. One thread, time of the processor; methods take turns in one run and the ratio is the median over "
        "turns. Memory is the peak of a fresh process. The goals at batch 64 are at most 1.03 for ResNet-18 and 1.15 "
        "for the MLP.",
        rows=rows,
        torch_version=torch.__version__,
        **{
            f"goal met for {name}, {mode}": f"{'yes' if ratio <= GOALS[name] else 'NO'} ({ratio:.3f})"
            for (name, mode), ratio in at_64.items()
        },
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["peak"]:
        torch.set_num_threads(1)
        Path("/proc/self/clear_refs").write_text("5")  # what imports took at their peak does not count
        before = memory("VmRSS")
        model = METHODS[sys.argv[4]](network_of(sys.argv[2])).eval()
        with torch.inference_mode():
            model(batch_of(sys.argv[2], int(sys.argv[3])))
        print(memory("VmHWM") - before)
    else:
        main()
