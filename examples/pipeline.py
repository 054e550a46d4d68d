"""Pipeline parallel training with torch.distributed.pipelining, compared with a single process.

    torchrun --nproc-per-node 2 examples/pipeline.py
    torchrun --nproc-per-node 4 examples/pipeline.py --schedule GPipe --backend gloo

Every rank holds one part of the model. Activations go forward and gradients backward between
neighbours, several microbatches at a time. The last rank compares the losses with the losses of a
single process.
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

SCHEDULES = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}
WIDTH = 256
BATCH = 64
MICROBATCHES = 8
STEPS = 20


class Stage(nn.Module):
    """The part of the model on one rank: [batch, width] to [batch, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layers, each with a residual connection."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def make_stages(count: int) -> list[Stage]:
    """Build all stages, with the same weights on every rank."""
    torch.manual_seed(0)
    return [Stage() for _ in range(count)]


def make_batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return inputs and targets, float32 [batch, width]; a target is its input in reverse order."""
    inputs = torch.randn(STEPS, BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    return [(x, x.flip(-1)) for x in inputs]


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return plain SGD, which depends on the sum of the microbatches' gradients only."""
    return torch.optim.SGD(model.parameters(), lr=0.5)


def train_alone(stages: int) -> list[float]:
    """Train the whole model in one process; return the loss of every step."""
    model = nn.Sequential(*make_stages(stages))
    optimizer = make_optimizer(model)
    losses = []
    for x, target in make_batches():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_pipeline(stage: PipelineStage, schedule: Schedule1F1B | ScheduleGPipe) -> None:
    """Train the rank's stage; the last rank compares the losses with those of a single process."""
    optimizer = make_optimizer(stage.submod)
    expected = train_alone(stage.num_stages) if stage.is_last else []
    for step, (x, target) in enumerate(make_batches()):
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        # The first rank has the inputs, the last rank the targets; ranks between have neither.
        schedule.step(
            *([x] if stage.is_first else []),
            **({"target": target, "losses": losses} if stage.is_last else {}),
        )
        optimizer.step()
        if stage.is_last:
            loss = torch.stack(losses).mean().item()
            assert abs(loss - expected[step]) < 1e-4, f"{loss}, one process had {expected[step]}"
            if (step + 1) % 5 == 0:
                print(f"step {step + 1:2}: loss {loss:.4f}, as in one process", flush=True)


def main() -> None:
    """Build the rank's stage and train the stage."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="dlslime")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1F1B")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    rank, world = dist.get_rank(), dist.get_world_size()

    stage = PipelineStage(make_stages(world)[rank], rank, world, torch.device("cpu"))
    schedule = SCHEDULES[arguments.schedule](stage, MICROBATCHES, loss_fn=nn.functional.mse_loss)
    started = time.perf_counter()
    train_pipeline(stage, schedule)
    dist.barrier()
    if stage.is_last:
        print(
            f"{arguments.backend}: {arguments.schedule} trained {world} stages on {STEPS} batches "
            f"of {MICROBATCHES} microbatches in {time.perf_counter() - started:.2f} s"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
