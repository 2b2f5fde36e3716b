"""A Lightning module for several outputs. Needs: pip install lightning"""

from typing import Any

import lightning
import numpy as np
import torch
from sklearn.datasets import load_linnerud
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

from onsphere import Lift
from onsphere.torch import MLP, HCMLoss, SphericalOutput, attach


class HCMModule(lightning.LightningModule):
    """Any network with a spherical head in the place of its last layer."""

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

    def predict_step(self, batch: Any, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        output = self(batch[0])
        return self.network.decode(output), self.network.uncertainty(output)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main(max_epochs: int = 50) -> tuple[torch.Tensor, torch.Tensor]:
    lightning.seed_everything(0, verbose=False)
    X, y = load_linnerud(return_X_y=True)  # 20 people, 3 exercises, 3 measures of the body
    data = TensorDataset(torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32), torch.tensor(y))
    module = HCMModule(MLP(3, 3, hidden_sizes=(20, 20)), y)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "logger": False,
        "enable_checkpointing": False,
    }
    trainer = lightning.Trainer(max_epochs=max_epochs, accelerator="cpu", **quiet)
    trainer.fit(module, DataLoader(data, batch_size=10, shuffle=True))
    parts = trainer.predict(module, DataLoader(data, batch_size=10))
    value, uncertainty = (torch.cat(part) for part in zip(*parts, strict=True))
    print(
        "weight, waist and pulse:", value[0].round(decimals=1).tolist(), "uncertainty:", round(float(uncertainty[0]), 2)
    )
    return value, uncertainty


if __name__ == "__main__":
    main()
