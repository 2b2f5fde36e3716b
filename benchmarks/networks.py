"""Networks after training: noise, probabilities, rejection, and one ONNX file.

Called as `python benchmarks/networks.py [FOLDER]`, where FOLDER keeps the features of the ResNet (see `_features.py`).
The ratio of times is meant for an idle machine.
"""

import tempfile
import time
import warnings

import numpy as np
import torch
from _features import load_features, load_images, load_logits, load_network, normalize_pictures
from _record import record
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import spearmanr
from sklearn.datasets import load_digits
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from torch import nn

from onsphere import AcceptShare, FrozenHead, HCMRegressor, Lift, Novelty, OneHot, export_onnx
from onsphere.baselines import GaussianNLL
from onsphere.export.graph_builder import open_session
from onsphere.metrics import brier_score, expected_calibration_error, log_loss
from onsphere.torch import MLP, DenseHead, HCMLoss, SphericalHead, TorchRegressor, calibrate, features, to_torch
from reproduction.data import data_folder

torch.set_num_threads(1)
warnings.simplefilter("ignore")
rows = []


def add(part, method, setting, figure, value, goal=None):
    rows.append(
        {"part": part, "method": method, "setting": setting, "figure": figure, "value": float(value), "goal": goal}
    )
    print(rows[-1], flush=True)


def train(network, loss, x, y, n_epochs, *, lr=3e-3, batch=128, seed=0):
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, n_epochs)
    for _ in range(n_epochs):
        for chosen in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss(network(x[chosen]), y[chosen]).backward()
            optimizer.step()
        schedule.step()
    return network.eval()


# --- noise: .25 and 1.65 by the sign of a column ---


def draw(n, seed):
    """Four columns, of which two matter; the first also says how large the noise is."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    sigma = np.where(X[:, 0] > 0, 1.65, 0.25)
    return X, X[:, 0] + np.sin(2 * X[:, 1]) + sigma * rng.normal(size=n), sigma


def as_pictures(values):
    """Rows as the pixels of pictures of 5 × 5."""
    return torch.tensor(values, dtype=torch.float32).reshape(-1, 25, *values.shape[1:]).unflatten(1, (5, 5))


def measure_noise(method, n, result, noise, y, sigma):
    error = np.abs(np.asarray(result.value).ravel() - y)
    covered = (result.lower.ravel() <= y) & (y <= result.upper.ravel())
    for side, truth in (("quiet", 0.25), ("noisy", 1.65)):
        here = sigma == truth
        add(
            "noise",
            method,
            f"{n} rows",
            f"mean noise over the truth, {side} side",
            noise[here].mean() / truth,
            ".8 to 1.2",
        )
        add("noise", method, f"{n} rows", f"median noise over the truth, {side} side", np.median(noise[here]) / truth)
        add(
            "noise", method, f"{n} rows", f"coverage of 90 % intervals, {side} side", covered[here].mean(), ".87 to .93"
        )
    add(
        "noise",
        method,
        f"{n} rows",
        "Spearman of uncertainty and error",
        spearmanr(result.uncertainty.ravel(), error)[0],
    )


for n in (2_000, 10_000):
    X, y, _ = draw(n, 0)
    X_held, y_held, _ = draw(n // 2, 1)
    X_test, y_test, sigma = draw(5_000, 2)
    n_epochs = 60 if n < 5_000 else 20
    options = {
        "hidden_sizes": (50, 50),
        "max_epochs": n_epochs,
        "batch_size": 128,
        "schedule": "cosine",
        "random_state": 0,
    }
    single = [torch.tensor(part, dtype=torch.float32) for part in (X, y, X_held, y_held, X_test)]
    x, target, x_held, target_held, x_test = single

    likelihood = GaussianNLL(TorchRegressor(**options)).fit(X, y).calibrate(X_held, y_held)
    result = likelihood.assess(X_test)
    measure_noise("Gaussian NLL", n, result, result.sigma, y_test, sigma)

    forest = HCMRegressor(random_state=0).fit(X, y).calibrate(X_held, y_held)
    result = forest.assess(X_test)
    measure_noise("forest", n, result, result.noise, y_test, sigma)

    if n < 5_000:  # five refits
        network = HCMRegressor(TorchRegressor(**options)).fit(X, y).calibrate(X_held, y_held)
        result = network.assess(X_test)
        measure_noise("HCMRegressor(TorchRegressor())", n, result, result.noise, y_test, sigma)

    torch.manual_seed(0)
    head = SphericalHead(50, 1, embedding=Lift().fit(y[:, None]))
    network = nn.Sequential(nn.Linear(4, 50), nn.LeakyReLU(), nn.Linear(50, 50), nn.LeakyReLU(), head)
    model = calibrate(train(network, HCMLoss(head), x, target, n_epochs), [(x_held, target_held)])
    result = model.assess(x_test)
    measure_noise("own loop, SphericalHead, calibrate", n, result, result.noise, y_test, sigma)

    torch.manual_seed(0)
    plain = train(MLP(4, 1, hidden_sizes=(50, 50)), nn.MSELoss(), x, target[:, None], n_epochs)
    read = [features(plain, [part])[0] for part in (x, x_held, x_test)]
    frozen = FrozenHead(random_state=0).fit(read[0], y).calibrate(read[1], y_held)
    result = frozen.assess(read[2])
    measure_noise("FrozenHead", n, result, result.noise, y_test, sigma)

    torch.manual_seed(0)
    head = DenseHead(50, embedding=Lift().fit(y[:, None]))
    network = nn.Sequential(nn.Conv2d(4, 50, 1), nn.LeakyReLU(), nn.Conv2d(50, 50, 1), nn.LeakyReLU(), head)
    maps = [as_pictures(part).permute(0, 3, 1, 2) for part in (X, X_held, X_test)]
    depth = [as_pictures(part)[:, None] for part in (y, y_held)]
    train(network, HCMLoss(head), maps[0], depth[0], n_epochs, batch=6)
    result = calibrate(network, [(maps[1], depth[1])]).assess(maps[2])
    measure_noise("DenseHead, calibrate", n, result, result.noise.ravel(), y_test, sigma)


# --- probabilities ---


def scale_softmax(logits, labels):
    """Return the temperature that makes the labels most likely."""

    def loss(power):
        return -log_softmax(np.exp(power) * logits, axis=1)[np.arange(len(labels)), labels].mean()

    return float(np.exp(minimize_scalar(loss, bounds=(-5, 5), method="bounded").x))


def measure_probabilities(name, method, probabilities, labels, goal=None):
    is_right = probabilities.argmax(axis=1) == labels
    error = expected_calibration_error(is_right, probabilities.max(axis=1))
    add("probabilities", method, name, "ECE", error, goal)
    add("probabilities", method, name, "NLL", log_loss(labels, probabilities))
    add("probabilities", method, name, "Brier score", brier_score(labels, probabilities))
    add("probabilities", method, name, "accuracy", is_right.mean())
    return error


def compare_probabilities(name, train_rows, held, test, logits):
    """Compare heads on features with a softmax on the same ones; logits are those of held-out and test rows."""
    (X, y), (X_held, y_held), (X_test, y_test) = train_rows, held, test
    temperature = scale_softmax(logits[0], y_held)
    error = measure_probabilities(name, "softmax with temperature", softmax(temperature * logits[1], axis=1), y_test)
    goal = f"at most {1.2 * error:.4f}"
    frozen = FrozenHead(random_state=0).fit(X, y).calibrate(X_held, y_held)
    measure_probabilities(name, "FrozenHead", frozen.predict_proba(X_test), y_test, goal)
    torch.manual_seed(0)
    head = SphericalHead(X.shape[1], int(y.max()) + 1, embedding="onehot")
    center, scale = X.mean(axis=0), X.std(axis=0) + 1e-6
    network = nn.Sequential(head)
    scaled = [torch.tensor((part - center) / scale, dtype=torch.float32) for part in (X, X_held, X_test)]
    train(network, HCMLoss(head), scaled[0], torch.tensor(y), 5 if len(X) > 5_000 else 60)
    model = calibrate(network, [(scaled[1], torch.tensor(y_held))])
    measure_probabilities(name, "SphericalHead", model.predict_proba(scaled[2]), y_test, goal)


rng = np.random.default_rng(0)
labels, test_labels = load_images("train")[1], load_images("test")[1]
halves = np.split(rng.permutation(10_000), 2)
images = load_features("ResNet-20", "test")
compare_probabilities(
    "CIFAR-10",
    (load_features("ResNet-20", "train"), labels),
    *((images[half], test_labels[half]) for half in halves),
    [load_logits("ResNet-20", "test")[half] for half in halves],
)


def compare_with_network(name, X, y, sizes):
    """Train a small network on some rows, and compare heads on its features with its own softmax."""
    order = np.random.default_rng(0).permutation(len(X))
    parts = np.split(order, np.cumsum(sizes))[:3]
    torch.manual_seed(0)
    network = MLP(X.shape[1], int(y.max()) + 1, hidden_sizes=(64,))
    x = [torch.tensor(X[part], dtype=torch.float32) for part in parts]
    train(network, nn.CrossEntropyLoss(), x[0], torch.tensor(y[parts[0]]), 30)
    read = [features(network, [each])[0].astype(float) for each in x]
    with torch.no_grad():
        logits = [network(each).double().numpy() for each in x[1:]]
    compare_probabilities(name, *((rows, y[part]) for rows, part in zip(read, parts, strict=True)), logits)


pixels, digits = load_digits(return_X_y=True)
compare_with_network("digits", pixels / 16, digits, (600, 600, 597))

import pandas as pd  # noqa: E402  # only the texts need it

news = pd.read_parquet(data_folder() / "text" / "ag_news_train_subset.parquet")
column = next(name for name in news.columns if news[name].dtype == object or str(news[name].dtype).startswith("str"))
target = next(name for name in news.columns if name != column)
some = news.sample(min(len(news), 9_000), random_state=0)
vectors = TruncatedSVD(64, random_state=0).fit_transform(
    TfidfVectorizer(max_features=20_000).fit_transform(some[column])
)
compare_with_network("AG News, TF-IDF vectors", vectors * 8, some[target].to_numpy().astype(int), (3_000, 3_000, 3_000))


# --- rejection: a small network for digits, by image ---

pictures = torch.tensor(pixels.reshape(-1, 1, 8, 8) / 8 - 1, dtype=torch.float32)
accepted = {"upside down": [], "noise": [], "ordinary": []}
for seed in range(3):
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(seed))
    learn, held, test = order.split([800, 500, 497])
    torch.manual_seed(seed)
    head = SphericalHead(64, 10, embedding=OneHot().fit(digits))
    network = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), head,
    )  # fmt: skip
    train(network, HCMLoss(head), pictures[learn], torch.tensor(digits)[learn], 25, lr=2e-3, seed=seed)
    model = calibrate(network, [(pictures[held], torch.tensor(digits)[held])], layer=["5"])
    model.set_threshold(AcceptShare(0.975), novelty=Novelty(false_alarm=0.025))
    for name, given in {
        "ordinary": pictures[test],
        "upside down": pictures[test].flip(2),
        "noise": torch.randn(500, 1, 8, 8, generator=torch.Generator().manual_seed(seed)),
    }.items():
        accepted[name].append(model.assess(given).accepted.mean())
for name, goal in (("ordinary", "about .95"), ("upside down", "at most .35"), ("noise", "at most .02")):
    add("rejection", "digits CNN, calibrate", "3 seeds", f"accepted, {name}", np.mean(accepted[name]), goal)


# --- one file ---

network = load_network("ResNet-20").eval()
stages = ["layer1", "layer2", "layer3"]
stacked = {
    name: np.hstack([load_features("ResNet-20", name, stage) for stage in ("layer1", "layer2", "last")])
    for name in ("train", "test")
}
head = FrozenHead(layers=(16, 32, 64), random_state=0).fit(stacked["train"], labels)
head.calibrate(stacked["test"][halves[0]], test_labels[halves[0]])
head.set_threshold(AcceptShare(0.95), novelty=Novelty(false_alarm=0.02))
given = normalize_pictures(load_images("test")[0][halves[1][:500]])
folder = tempfile.mkdtemp()
parity = export_onnx(to_torch(head, network, layer=stages), f"{folder}/head.onnx", X=given)
add(
    "one file",
    "ResNet-20, head, novelty, threshold",
    "500 images",
    "largest relative difference from Python",
    max(parity.relative.values()),
    "at most 1e-4",
)
program = torch.onnx.export(
    network, (given[:2],), dynamo=True, dynamic_shapes=({0: torch.export.Dim("rows")},), verbose=False
)
program.save(f"{folder}/plain.onnx")
times = {"plain": [], "head": []}
sessions = {name: open_session(f"{folder}/{name}.onnx") for name in times}
batch = given[:64].numpy()
for _ in range(15):  # in turn, so that both see the same machine
    for name, session in sessions.items():
        start = time.perf_counter()
        session.run(None, {session.get_inputs()[0].name: batch})
        times[name].append(time.perf_counter() - start)
ratio = np.median(times["head"]) / np.median(times["plain"])
add(
    "one file",
    "ResNet-20, head, novelty, threshold",
    "batches of 64",
    "time over that of the network alone",
    ratio,
    "at most 1.15",
)

record(
    "networks",
    about="What follows training. Noise: four columns, noise of .25 and 1.65 by the sign of the first; noise, "
    "coverage and ranking on 5,000 new rows, calibrated on half as many rows as were trained on; DenseHead "
    "sees the rows as pixels. Probabilities: heads against the network's own softmax with a temperature, all "
    "scaled on the same held-out rows; the form of the scaling was settled with CIFAR-10 and digits in view, "
    "not with the texts. Rejection: digits at 5 % false alarms, half of them by uncertainty and half by "
    "novelty. One file: ResNet-20 in one ONNX graph.",
    rows=rows,
)
