"""Train a text encoder with a softmax, then replace its last layer and train with HCM's loss, as the paper does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from onsphere.torch import Attached, HCMLoss, attach
from reproduction.arguments import Floats
from reproduction.checkpoints import Checkpoints
from reproduction.experiment import OnProgress
from reproduction.fine_tuning import make_encoder, read_vectors, train

__all__ = ["Answers", "Texts", "fine_tune"]

# The settings on which the softmax network depends, which seeds may share.
OF_SOFTMAX = (
    "encoder",
    "n_train",
    "n_validation",
    "n_tokens",
    "precision",
    "batch_size",
    "softmax_epochs",
    "softmax_rate",
)


class Texts(NamedTuple):
    """Texts, and their classes where they are news."""

    texts: list[str]
    labels: Any = None

    def pick(self, rows: Any) -> Texts:
        """Return some of them, in the order of the rows."""
        return Texts([self.texts[row] for row in rows], None if self.labels is None else self.labels[rows])


class Answers(NamedTuple):
    """What the softmax network says of some texts."""

    features: Floats
    logits: Floats


def fine_tune(
    settings: dict[str, Any],
    seed: int,
    pools: dict[str, Texts],
    rows: dict[str, Any],
    *,
    data: Path,
    device: str,
    checkpoints: Checkpoints,
    on_progress: OnProgress,
) -> tuple[dict[str, Answers], dict[str, Floats]]:
    """Return what the softmax network says of every pool, and HCM's directions of the rows that were drawn."""
    first_seed, shared = seed, checkpoints
    if settings["share_softmax"]:
        of_softmax = {name: settings[name] for name in OF_SOFTMAX}
        first_seed, shared = 0, Checkpoints.of_seed(checkpoints.folder.parent / "softmax", of_softmax, 0)
    texts, labels = pools["train"]
    n_classes = int(labels.max()) + 1
    torch.manual_seed(first_seed)
    encoder = make_encoder(settings["encoder"], data, settings["n_tokens"], precision=settings["precision"]).to(device)
    layer = nn.Linear(encoder.n_features, n_classes).to(device)
    network = nn.Sequential(encoder, layer)
    tokens = encoder.tokenize(texts)
    train(
        network,
        nn.CrossEntropyLoss(),
        tokens,
        labels,
        parameters=[{"params": network.parameters(), "lr": settings["softmax_rate"]}],
        batch_size=settings["batch_size"],
        n_epochs=settings["softmax_epochs"],
        seed=first_seed,
        checkpoints=shared,
        name="softmax",
        on_step=lambda done, total: on_progress(0.05 + 0.35 * done / total, 1, f"softmax, step {done} of {total}"),
    )
    softmax = {name: read_softmax(encoder, layer, name, pool.texts, shared) for name, pool in pools.items()}
    # With the seed of the softmax network, the new layer would start as that one did, and features have adapted to it.
    torch.manual_seed(first_seed + seed + 1)
    hcm = attach(network, n_classes, embedding="onehot")
    head: Any = hcm.get_submodule(f"model.{hcm.layer}")
    train(
        hcm,
        HCMLoss(hcm),
        tokens,
        labels,
        parameters=[
            {"params": encoder.parameters(), "lr": settings["rate"]},
            {"params": head.parameters(), "lr": settings["head_rate"]},
        ],
        batch_size=settings["batch_size"],
        n_epochs=settings["hcm_epochs"],
        seed=seed,
        checkpoints=checkpoints,
        name="hcm",
        on_step=lambda done, total: on_progress(0.5 + 0.35 * done / total, 1, f"HCM, step {done} of {total}"),
    )
    return softmax, {
        name: read_directions(hcm, encoder, head, pools[name].pick(drawn).texts) for name, drawn in rows.items()
    }


@torch.inference_mode()
def read_softmax(encoder: Any, layer: nn.Linear, name: str, texts: Sequence[str], checkpoints: Checkpoints) -> Answers:
    """Return what the softmax network says of a pool; its features are kept on disk."""
    kept_as = f"features-{name}-{len(texts)}"
    features = checkpoints.load(kept_as)
    if features is None:
        features = read_vectors(encoder, texts)
        checkpoints.save(kept_as, features)
    logits = layer(features.to(layer.weight.device)).cpu()
    return Answers(features.double().numpy(), logits.double().numpy())


@torch.inference_mode()
def read_directions(network: Attached, encoder: Any, head: nn.Linear, texts: Sequence[str]) -> Floats:
    """Return the direction that HCM gives each text."""
    vectors = read_vectors(encoder, texts).to(head.weight.device)
    return network.read(head(vectors)).direction.cpu().double().numpy()
