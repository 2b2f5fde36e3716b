"""CIFAR-10 against other images: the quick run, the published figures, the claims, and files and networks behind it."""

import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat

from onsphere import InvalidInputError
from reproduction import cifar10, cifar10_networks, reproduce
from reproduction.checkpoints import Checkpoints

QUICK = {key: value for key, value in cifar10.PRESETS["quick"].items() if key != "n_seeds"}


def quiet(done, total, what):
    assert 0 <= done < total


# --- the quick run ---


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return reproduce("cifar10", out=tmp_path_factory.mktemp("cifar10"))


def test_quick_scores_every_method_with_every_mixing(result):
    results = result.runs[0]["results"]
    assert set(results) == {"none", "pairs", "dirichlet"}
    for methods in results.values():
        assert set(methods) == {*cifar10.METHODS, *cifar10.BEYOND}
        for figures in methods.values():
            assert 0 <= figures["accuracy"] <= 100
            for metric in cifar10.METRICS:
                assert list(figures[metric]) == QUICK["sets"]
                assert all(0 <= value <= 100 for value in figures[metric].values())


def test_quick_learns_squares_and_knows_noise_from_them(result):
    plain = result.runs[0]["results"]["none"]
    assert plain["MSP"]["accuracy"] > 90
    assert plain["HCM"]["accuracy"] > 90
    assert min(plain["KNN"]["AUROC"].values()) > 90


def test_norms_are_shares_of_images(result):
    for mixing in cifar10.MIXINGS:
        for shares in result.runs[0]["norms"][mixing].values():
            assert len(shares) == len(cifar10.NORM_BINS) - 1
            assert sum(shares) == pytest.approx(1)


def test_what_is_written(result):
    facts = json.loads((result.folder / "cifar10.json").read_text())
    assert facts["figures"] == ["cifar10-auroc.png", "cifar10-norms.png", "cifar10-epochs.png"]
    assert all((result.folder / name).stat().st_size > 10_000 for name in facts["figures"])
    text = (result.folder / "cifar10.md").read_text()
    assert "five, without Places365" in text
    assert text.count("hold**") + text.count("holds**") == len(result.claims)


def measure_hcm(checkpoints, **changes):
    settings = QUICK | {"networks": {"none": ["dropout", "hcm"]}} | changes
    return cifar10.measure(settings, 0, data=None, device="cpu", checkpoints=checkpoints, on_progress=quiet)


def test_a_stopped_network_continues_from_its_last_epoch_to_the_same_figures(tmp_path, monkeypatch):
    whole = measure_hcm(Checkpoints(tmp_path / "whole"))
    checkpoints = Checkpoints(tmp_path / "stopped")

    def stop(name, state):
        Checkpoints.save(checkpoints, name, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        measure_hcm(checkpoints)
    monkeypatch.undo()
    assert len(checkpoints.load("none dropout")["history"]) == 1
    assert measure_hcm(checkpoints) == whole
    assert len(whole["epochs"]["none"]["hcm"]) == QUICK["n_epochs"]


def test_only_the_networks_of_the_settings_are_trained_and_shown(result, tmp_path):
    run = measure_hcm(Checkpoints(tmp_path))
    assert set(run["results"]["none"]) == {"MC Dropout", "HCM", "HCM violation", "HCM signed"}
    shorter = {**result.runs[0], "results": {**result.runs[0]["results"], **run["results"]}}
    named = {row["method"] for row in cifar10.tabulate([shorter]) if row["mixing"] == "no mixing"}
    assert named == set(run["results"]["none"])


# --- the table ---


def test_every_published_figure_is_a_row(result):
    rows = [row for row in result.rows if row["paper"] is not None]
    assert {row["table"] for row in rows} == {"2", "6", "7", "9", "10"}
    # Table 2: 12 methods by 3 means. 6 and 7: 12 by 5 sets and their mean. 9 and 10: 11 by the same.
    assert len(rows) == 12 * 3 + 2 * 12 * 6 + 2 * 11 * 6
    assert not {row["method"] for row in rows} & set(cifar10.BEYOND)
    for row in result.rows:
        assert (row["table"] == "–") == (row["paper"] is None)


@pytest.mark.parametrize(
    ("metric", "mixing", "method", "where", "paper"),
    [
        ("AUROC", "no mixing", "KNN", "SVHN", 93.48),
        ("AUROC", "pairs mixed", "ODIN", "SVHN", 39.11),
        ("AUROC", "pairs mixed", "fDBD", "MNIST", 5.72),
        ("AUROC", "20 mixed", "HCM", "DTD", 90.83),
        ("AUROC", "20 mixed", "HCM", "average", 89.44),
        ("FPR@95", "no mixing", "ViM", "Tiny ImageNet", 59.63),
        ("FPR@95", "pairs mixed", "NCI", "DTD", 75.01),
        ("FPR@95", "20 mixed", "HCM", "MNIST", 42.19),
        ("FPR@95", "no mixing", "ODIN", "all sets", (54.22 + 58.00 + 4.04 + 53.15 + 51.63) / 5),
    ],
)
def test_published_figures(result, metric, mixing, method, where, paper):
    wanted = {"metric": metric, "mixing": mixing, "method": method, "set": where}
    found = [row["paper"] for row in result.rows if wanted.items() <= row.items()]
    assert found == [pytest.approx(paper)]


def test_near_of_table_2_is_the_mean_of_table_6():
    for mixing, methods in cifar10.PAPER_GROUPS.items():
        for method, (near, _, _) in methods.items():
            assert np.mean(cifar10.PAPER["AUROC"][mixing][method][:2]) == pytest.approx(near, abs=0.011)


def test_ours_is_the_mean_over_seeds():
    runs = [make_run(), make_run(HCM=70.0)]
    wanted = {"mixing": "no mixing", "method": "HCM", "set": "average"}
    (row,) = [row for row in cifar10.tabulate(runs) if wanted.items() <= row.items()]
    assert row["ours"] == 75.0
    assert row["± (seeds)"] == 5.0


# --- claims ---


def make_run(*, pairs=None, dirichlet=None, **plain):
    """A run in which every method has an AUROC of 80 but for those given."""

    def methods(changes):
        auroc = dict.fromkeys((*cifar10.METHODS, *cifar10.BEYOND), 80.0) | changes
        sets = QUICK["sets"]
        return {
            name: {"accuracy": 90.0, **{metric: dict.fromkeys(sets, value) for metric in cifar10.METRICS}}
            for name, value in auroc.items()
        }

    results = {"none": methods(plain), "pairs": methods(pairs or {}), "dirichlet": methods(dirichlet or {})}
    return {"results": results, "settings": QUICK}


def test_claims_hold_where_the_figures_say_so():
    mixed = {"MSP": 70.0, "ODIN": 60.0, "Energy": 60.0, "HCM": 88.0}
    run = make_run(HCM=75.0, KNN=86.0, FrozenHead=87.0, pairs=mixed | {"KNN": 87.0}, dirichlet={"HCM": 85.0})
    found = cifar10.check_claims([run])
    assert [claim.holds for claim in found] == [True] * 7
    assert "75.00 without, 85.00 with 20 mixed, 88.00 with pairs" in found[0].figures
    assert "MSP -10.00, ODIN -20.00, Energy -20.00" in found[3].figures
    assert "HCM +13.00, KNN +1.00" in found[4].figures


def test_claims_fail_where_the_figures_say_so():
    mixed = {"MSP": 70.0, "ODIN": 60.0, "Energy": 81.0, "KNN": 90.0}
    run = make_run(HCM=82.0, KNN=85.0, FrozenHead=84.0, pairs=mixed, dirichlet={"HCM": 79.0, "Gini": 81.0})
    assert [claim.holds for claim in cifar10.check_claims([run])] == [False] * 7


def test_the_average_is_that_of_all_sets():
    values = dict(zip(QUICK["sets"], [60, 80, 90, 90, 90], strict=True))
    assert cifar10.average_groups(values) == {"near": 70, "far": 90, "average": 82}


# --- images ---


def test_crops_are_windows_of_the_padded_image_and_half_of_them_mirrored():
    torch.manual_seed(0)
    pixels = torch.arange(1, 193, dtype=torch.uint8).view(1, 3, 8, 8).repeat(200, 1, 1, 1)
    padded = torch.nn.functional.pad(pixels[0], (4, 4, 4, 4))
    windows = {}
    for top in range(9):
        for left in range(9):
            window = padded[:, top : top + 8, left : left + 8]
            windows[window.numpy().tobytes()] = False
            windows[window.flip(2).numpy().tobytes()] = True
    drawn = [windows[image.numpy().tobytes()] for image in cifar10_networks.crop_and_flip(pixels)]
    assert 60 < sum(drawn) < 140  # 100 ± 5.7 standard deviations
    assert len({image.numpy().tobytes() for image in cifar10_networks.crop_and_flip(pixels)}) > 50


def test_mixing_adds_as_many_mixed_images_or_replaces_the_clean_ones():
    pixels, labels = cifar10.load_sets(QUICK, 0, None)
    one_hot = torch.nn.functional.one_hot(torch.from_numpy(labels["train"][:30])).float()
    n_classes = {}
    for mixing in cifar10.MIXINGS:
        for adds in (True, False):
            images, soft = cifar10_networks.draw_batch(
                QUICK | {"mixing_adds": adds}, mixing, pixels["train"][:30], one_hot
            )
            assert len(images) == len(soft) == (60 if adds and mixing != "none" else 30)
            torch.testing.assert_close(soft.sum(dim=1), torch.ones(len(soft)))
            n_classes[mixing, adds] = (soft > 0).sum(dim=1).tolist()
    assert n_classes["none", True] == n_classes["none", False] == [1] * 30
    assert n_classes["pairs", True][:30] == n_classes["dirichlet", True][:30] == [1] * 30
    assert max(n_classes["pairs", True][30:]) == max(n_classes["pairs", False]) == 2
    assert n_classes["dirichlet", True][30:] == n_classes["dirichlet", False] == [3] * 30


@pytest.mark.parametrize(("equal_cost", "n_seen"), [(False, 120), (True, 60)])
def test_networks_with_mixed_images_can_cost_what_the_others_cost(equal_cost, n_seen, monkeypatch, tmp_path):
    seen = []
    draw = cifar10_networks.draw_batch

    def count(*arguments):
        images, soft = draw(*arguments)
        seen.append(len(images))
        return images, soft

    monkeypatch.setattr(cifar10_networks, "draw_batch", count)
    settings = {"n_images": 60, "n_epochs": 1, "decay_at": None, "equal_cost": equal_cost}
    measure_hcm(Checkpoints(tmp_path), networks={"pairs": ["hcm"]}, **settings)
    assert (len(seen), sum(seen)) == (2, n_seen)


# --- networks ---


@pytest.fixture
def files(tmp_path):
    """All sets in the formats they are published in, and weights, all small."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    labels = [index % 10 for index in range(40)]
    flat = pictures.transpose(0, 3, 1, 2).reshape(40, -1)
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in ("test_batch", *(f"data_batch_{number}" for number in range(1, 6))):
        (tmp_path / "cifar-10-batches-py" / name).write_bytes(
            pickle.dumps({b"data": flat, b"labels": labels}, protocol=2)
        )
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python" / "test").write_bytes(
        pickle.dumps({b"data": flat, b"fine_labels": labels}, protocol=2)
    )
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (40, 28, 28))
    (raw / "t10k-images-idx3-ubyte").write_bytes(header + pictures[:, :28, :28, 0].tobytes())
    (raw / "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 40, *labels]))
    (tmp_path / "svhn").mkdir()
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": pictures.transpose(1, 2, 3, 0), "y": np.array(labels)[:, None]})
    for place in ("tiny-imagenet-200/val/n01", "dtd/images/dotted", "places365/val_256"):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        for index, picture in enumerate(pictures):
            Image.fromarray(picture).save(folder / f"{index}.png")
    (tmp_path / "weights").mkdir()
    torch.manual_seed(5)
    save_file(cifar10_networks.NETWORKS["tiny"](10).state_dict(), tmp_path / "weights" / "tiny.safetensors")
    return tmp_path


REAL = QUICK | {"source": "images", "sets": list(cifar10.SETS), "weights": "tiny", "n_images": 40, "n_passes": 2}
REAL |= {"n_known": 150, "n_test": 30, "networks": {"none": QUICK["networks"]["none"]}}


def test_published_files_are_measured(files, tmp_path):
    found = cifar10.measure(REAL, 0, data=files, device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=quiet)
    assert set(found["results"]["none"]) == {*cifar10.METHODS, *cifar10.BEYOND}
    # All sets hold the same pictures but MNIST, which has no colours: nothing can tell them apart.
    assert 20 < found["results"]["none"]["MSP"]["AUROC"]["CIFAR-100"] < 80
    assert 0 <= found["given"] <= 100


def test_the_given_network_is_measured_as_it_is_on_the_tested_images(files):
    pictures, labels = cifar10.load_sets(REAL, 0, files)
    torch.manual_seed(5)
    network = cifar10_networks.NETWORKS["tiny"](10).eval()
    with torch.no_grad():
        predicted = network(cifar10.normalize(REAL, pictures["test"])).argmax(dim=1).numpy()
    # Two labels right in three: a network with another last layer is not as often right by chance.
    labels["test"] = np.where(np.arange(30) % 3 == 0, (predicted + 1) % 10, predicted)
    given = cifar10.measure_given(REAL, pictures["test"], labels, files, "cpu")
    assert given == pytest.approx(200 / 3)
    rows = cifar10.tabulate([make_run() | {"given": given}])
    assert [row["ours"] for row in rows if row["method"] == "given network"] == [given]


def test_each_set_is_cut_to_the_size_set(files):
    pictures, labels = cifar10.load_sets(REAL, 0, files)
    assert {name: len(own) for name, own in pictures.items()} == {
        "train": 200,
        "known": 150,
        "test": 30,
        **dict.fromkeys(cifar10.SETS, 30),
    }
    assert all(own.shape[1:] == (3, 32, 32) and len(labels[name]) == len(own) for name, own in pictures.items())


def test_all_comes_from_the_file_but_the_last_layer(files):
    torch.manual_seed(5)
    given = cifar10_networks.NETWORKS["tiny"](10).state_dict()
    for kind in ("softmax", "dropout", "gini", "hcm"):
        network = cifar10_networks.make_network(REAL, kind, 10, files)
        own = network.state_dict()
        prefix = next(name for name in own if name.endswith("conv1.weight")).removesuffix("conv1.weight")
        for name, value in given.items():
            if not name.startswith("linear"):
                torch.testing.assert_close(own[prefix + name], value, rtol=0, atol=0)
        assert not any(torch.equal(value, given["linear.weight"]) for value in own.values())


def test_all_layers_are_trained(files, tmp_path):
    pictures, labels = cifar10.load_sets(REAL, 0, files)
    torch.manual_seed(5)
    before = cifar10_networks.NETWORKS["tiny"](10).state_dict()
    network, _ = cifar10_networks.train_network(
        REAL | {"mixed_precision": True},
        "softmax",
        "none",
        pictures["train"],
        labels["train"],
        seed=0,
        data=files,
        device="cpu",
        checkpoints=Checkpoints(tmp_path),
        name="softmax",
        on_epoch=lambda epoch: None,
        evaluate=lambda network: None,
    )
    assert not network.training
    for name, value in network.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_missing_sets_and_weights_are_named(tmp_path, files):
    with pytest.raises(InvalidInputError, match=r"cifar-10-batches-py.data_batch_1. Got no such file"):
        cifar10.measure(
            REAL, 0, data=tmp_path / "nowhere", device="cpu", checkpoints=Checkpoints(tmp_path), on_progress=quiet
        )
    with pytest.raises(InvalidInputError, match=r"weights.none\.safetensors.*layer1.*Put them there"):
        cifar10.measure(
            REAL | {"weights": "none"},
            0,
            data=files,
            device="cpu",
            checkpoints=Checkpoints(tmp_path),
            on_progress=quiet,
        )


def test_cut_and_foreign_weights_are_named(files):
    path = files / "weights" / "tiny.safetensors"
    whole = path.read_bytes()
    for length in (0, 5, 200, len(whole) - 9):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidInputError, match=rf"Expected {path} as the weights.*Got SafetensorError"):
            cifar10_networks.make_network(REAL, "softmax", 10, files)
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(
        InvalidInputError, match=rf"Expected {path} as the weights.*Got tensors of other names"
    ) as found:
        cifar10_networks.make_network(REAL, "softmax", 10, files)
    assert "\n" not in str(found.value)


def test_squared_error_of_a_perfect_softmax_is_zero_and_of_an_even_one_known():
    loss = cifar10_networks.SquaredError()
    assert float(loss(torch.tensor([[100.0, 0.0]]), torch.tensor([[1.0, 0.0]]))) == pytest.approx(0, abs=1e-12)
    assert float(loss(torch.zeros(1, 4), torch.eye(4)[:1])) == pytest.approx(0.75**2 + 3 * 0.25**2)


def test_paper_preset_is_the_papers_protocol():
    paper = cifar10.PRESETS["paper"]
    assert (paper["network"], paper["n_epochs"], paper["batch_size"], paper["n_seeds"]) == ("resnet18", 100, 64, 5)
    assert (paper["learning_rate"], paper["decay_at"], paper["n_images"]) == (0.1, [30, 60, 90], 50000)
    assert (paper["sets"], paper["n_test"], paper["mixing_adds"]) == (list(cifar10.SETS), None, True)
    assert (paper["weights"], paper["statistics"], paper["first_epoch"]) == (None, "CIFAR-10", 0)
    assert cifar10_networks.make_loss("hcm", cifar10_networks.make_network(QUICK, "hcm", 10, None)).preset == "cifar10"
    for preset in cifar10.PRESETS.values():
        assert preset.keys() == paper.keys()


def test_the_papers_network_learns_for_a_few_epochs(tmp_path):
    """The preset `paper` as it is, but for the number of images and epochs."""
    small = {"source": "squares", "n_images": 16, "n_known": 16, "n_test": 4, "n_epochs": 2, "decay_at": [1]}
    settings = cifar10.PRESETS["paper"] | small | {"batch_size": 8}
    pictures, labels = cifar10.load_sets(settings, 0, tmp_path)
    epochs, images = [], cifar10.normalize(settings, pictures["train"])

    def evaluate(network):
        lengths = np.linalg.norm(cifar10.compute_outputs(network, "hcm", images, "cpu"), axis=1)
        assert np.isfinite(lengths).all()
        return float(lengths.mean())

    checkpoints = Checkpoints(tmp_path)
    network, history = cifar10_networks.train_network(
        settings,
        "hcm",
        "pairs",
        pictures["train"],
        labels["train"],
        seed=0,
        data=tmp_path,
        device="cpu",
        checkpoints=checkpoints,
        name="hcm",
        on_epoch=epochs.append,
        evaluate=evaluate,
    )
    # Besides the 11.17 million, HCM has a magnitude.
    assert sum(each.numel() for each in network.parameters()) == pytest.approx(11.17e6, rel=1e-3)
    assert (epochs, len(history)) == ([0, 1], 2)
    _, optimizer, _ = checkpoints.load("hcm")["states"]
    assert optimizer["param_groups"][0]["lr"] == pytest.approx(0.01)
