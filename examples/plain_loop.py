"""A training loop of one's own: two lines of it are HCM."""

import torch
from torch import nn

from onsphere import Lift
from onsphere.torch import HCMLoss, SphericalHead


def noisy_wave(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Make one target whose noise grows from left to right."""
    x = torch.rand(n, 1) * 4 - 2
    return x, 10 * torch.sin(2 * x) + (2 + x) * torch.randn(n, 1)


def main(n: int = 2000, n_epochs: int = 60) -> dict[str, float]:
    torch.manual_seed(0)
    x, y = noisy_wave(n)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64, shuffle=True)

    # A fitted embedding knows the unit of the target, so that nothing needs to be scaled by hand.
    head = SphericalHead(50, 1, embedding=Lift().fit(y.numpy()))
    network = nn.Sequential(nn.Linear(1, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), head)
    loss_function = HCMLoss(head)

    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(n_epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = loss_function(network(inputs), targets)
            loss.backward()
            optimizer.step()

    with torch.no_grad():
        output = network(torch.tensor([[-1.5], [1.5], [6.0]]))  # quiet, noisy, never seen
    value, sigma, uncertainty = head.decode(output)[:, 0], head.sigma(output)[:, 0], head.uncertainty(output)
    for place, *row in zip(("quiet", "noisy", "never seen"), value, sigma, uncertainty, strict=True):
        print(f"{place:>10}: value {row[0]:6.2f}   sigma {row[1]:5.2f}   uncertainty {row[2]:5.2f}")
    return {"loss": float(loss.detach()), "quiet": float(sigma[0]), "noisy": float(sigma[1])}


if __name__ == "__main__":
    main()
