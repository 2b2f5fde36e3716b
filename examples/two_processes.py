"""Two processes, each with half of every batch, learn what one process learns from the whole batch.

Nothing in HCMLoss speaks to other processes: it is a mean over rows, and DistributedDataParallel averages gradients.
"""

import os
import socket
import tempfile
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from onsphere.torch import MLP, HCMLoss, attach

N_PROCESSES, BATCH_SIZE, N_STEPS = 2, 32, 5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N_STEPS * BATCH_SIZE, 4, generator=generator, dtype=torch.float64)
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(dim=1)], dim=1)


def train(rank: int, n_processes: int) -> dict[str, torch.Tensor]:
    """Return the losses of whole batches and the last gradients, as one of several processes sees them."""
    torch.manual_seed(0)
    network = attach(MLP(4, 2, hidden_sizes=(16,)).double(), 2)
    model: nn.Module = DistributedDataParallel(network) if n_processes > 1 else network
    loss_function = HCMLoss(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, y in zip(*(part.split(BATCH_SIZE) for part in data()), strict=True):
        optimizer.zero_grad()
        loss = loss_function(model(x[rank::n_processes]), y[rank::n_processes])
        loss.backward()
        optimizer.step()
        loss = loss.detach()
        if n_processes > 1:
            distributed.all_reduce(loss)
        losses.append(loss / n_processes)
    gradients = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
    return {"losses": torch.stack(losses), "gradients": gradients}


def run(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=N_PROCESSES)
    torch.save(train(rank, N_PROCESSES), Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def main() -> float:
    """Return the largest difference between two processes and one, in losses and gradients."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (port, folder), nprocs=N_PROCESSES)
        apart = [torch.load(Path(folder) / f"{rank}.pt") for rank in range(N_PROCESSES)]
    alone = train(0, 1)
    difference = max(float((each[name] - alone[name]).abs().max()) for each in apart for name in alone)
    print(f"losses {alone['losses'].numpy().round(4)}; largest difference {difference:.1e}")
    return difference


if __name__ == "__main__":
    main()
