"""A Lightning module for several outputs, calibrated when training ends. Needs: pip install lightning"""

from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from onsphere import AcceptShare, Assessment, Lift
from onsphere.torch import MLP, CalibratedNetwork, HCMLoss, SphericalOutput, attach, calibrate


class HCMModule(lightning.LightningModule):
    """Any network with a spherical head in the place of its last layer."""

    calibrated: CalibratedNetwork

    def __init__(self, network: torch.nn.Module, y: np.ndarray, *, learning_rate: float = 1e-3) -> None:
        super().__init__()
        self.network = attach(network, y.shape[1], embedding=Lift().fit(y))
        self.loss_function = HCMLoss(self.network)
        self.learning_rate = learning_rate

    def forward(self, x: torch.Tensor) -> SphericalOutput:
        return self.network(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        loss = self.loss_function(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.log("val_loss", self.loss_function(self(x), y))

    def on_fit_end(self) -> None:
        """Learn noise, novelty and intervals from the rows of validation."""
        self.calibrated = calibrate(self.network, self.trainer.val_dataloaders)
        self.calibrated.set_threshold(AcceptShare(0.95))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def make_rows(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make rows whose second output is the noisier, the larger the first feature is."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, 3))
    y = np.stack([40 * x[:, 1], 5 * np.sin(3 * x[:, 2]) + (1.1 + x[:, 0]) * rng.normal(size=n)], axis=1)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)


def main(max_epochs: int = 30) -> Assessment:
    lightning.seed_everything(0, verbose=False)
    x, y = make_rows(1_000, seed=0)
    module = HCMModule(MLP(3, 2, hidden_sizes=(50, 50)), y.numpy(), learning_rate=5e-3)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    trainer = lightning.Trainer(max_epochs=max_epochs, accelerator="cpu", check_val_every_n_epoch=max_epochs, **quiet)
    held = DataLoader(TensorDataset(*make_rows(600, seed=1)), batch_size=200)
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True), held)
    result = module.calibrated.assess(torch.tensor([[-0.9, 0.0, 0.0], [0.6, 0.0, 0.0], [9.0, 9.0, 9.0]]))
    for row, name in enumerate(("a quiet row", "a noisy row", "a row like none before")):
        noise, accepted = round(float(result.noise[row, 1]), 1), bool(result.accepted[row])
        print(f"{name}: noise {noise}, novelty {result.novelty[row]:.2f}, accepted {accepted}")
    return result


if __name__ == "__main__":
    main()
