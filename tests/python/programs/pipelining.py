"""torch.distributed.pipelining schedules train to the losses and weights of one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from models import WIDTH

BATCH = 16
MICROBATCHES = 8
STEPS = 3
LEARNING_RATE = 0.05
CPU = torch.device("cpu")


class Layer(nn.Module):
    """A stage's part of the model: [batch, width] to [batch, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the layer with a residual connection."""
        return x + torch.tanh(self.linear(self.norm(x)))


def make_model(stages: int) -> nn.Sequential:
    """Return ``stages`` layers, with equal weights in every call."""
    torch.manual_seed(3)
    return nn.Sequential(*(Layer() for _ in range(stages)))


def make_data() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return a pair of input and target, each [batch, width], for every step."""
    generator = torch.Generator().manual_seed(5)
    return [
        (
            torch.randn(BATCH, WIDTH, generator=generator),
            torch.randn(BATCH, WIDTH, generator=generator),
        )
        for _ in range(STEPS)
    ]


def train_alone(model: nn.Sequential) -> list[float]:
    """Train in one process, without microbatches; return the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for x, target in make_data():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_pipeline(
    schedule: schedules._PipelineSchedule, stages: list[PipelineStage]
) -> list[float]:
    """Train the rank's stages; return the loss of each step at the rank of the last stage."""
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9)
    has_first = any(stage.is_first for stage in stages)
    has_last = any(stage.is_last for stage in stages)
    means = []
    for x, target in make_data():
        optimizer.zero_grad()
        losses: list[torch.Tensor] = []
        schedule.step(
            *([x] if has_first else []),
            **({"target": target, "losses": losses} if has_last else {}),
        )
        optimizer.step()
        if has_last:
            means.append(torch.stack(losses).mean().item())
    return means


def check_schedule(make: Callable, stages_of: Callable[[int, int], list[int]]) -> None:
    """Train with a schedule and compare losses and weights with a single process.

    Args:
        make: builds the schedule from the rank's stages (a list, or a single stage).
        stages_of: (rank, world size) to the indices of the stages of the rank.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = stages_of(rank, world)
    total = len(mine) * world
    model = make_model(total)
    stages = [PipelineStage(model[i], i, total, CPU) for i in mine]
    losses = train_pipeline(make(stages if len(stages) > 1 else stages[0]), stages)

    reference = make_model(total)
    expected = train_alone(reference)
    if losses:
        torch.testing.assert_close(losses, expected, rtol=1e-4, atol=1e-5)
    for i in mine:
        torch.testing.assert_close(
            model[i].state_dict(), reference[i].state_dict(), rtol=1e-4, atol=1e-5
        )


def one_each(rank: int, _world: int) -> list[int]:
    """Return one stage for each rank."""
    return [rank]


def looped(rank: int, world: int) -> list[int]:
    """Return two stages for each rank, the second lap after the first."""
    return [rank, rank + world]


def folded(rank: int, world: int) -> list[int]:
    """Return two stages for each rank in the shape of a V: rank 0 has the first and the last."""
    return [rank, 2 * world - 1 - rank]


def _with(schedule: type) -> Callable:
    return lambda stages: schedule(stages, MICROBATCHES, loss_fn=nn.functional.mse_loss)


def gpipe() -> None:
    """All forwards, then all backwards."""
    check_schedule(_with(schedules.ScheduleGPipe), one_each)


def one_f_one_b() -> None:
    """One forward, one backward: sends and receives mixed in one batch."""
    check_schedule(_with(schedules.Schedule1F1B), one_each)


def looped_bfs() -> None:
    """Breadth first over two stages a rank."""
    check_schedule(_with(schedules.ScheduleLoopedBFS), looped)


def interleaved_1f1b() -> None:
    """1F1B over two stages a rank."""
    check_schedule(_with(schedules.ScheduleInterleaved1F1B), looped)


def interleaved_zero_bubble() -> None:
    """Backward split in two, so that the weights' half fills the bubble."""
    check_schedule(_with(schedules.ScheduleInterleavedZeroBubble), looped)


def zbv_zero_bubble() -> None:
    """Zero bubble on folded stages: neighbours on the last rank exchange nothing."""
    check_schedule(_with(schedules.ScheduleZBVZeroBubble), folded)


def dual_pipe_v() -> None:
    """DeepSeek's overlap of a microbatch's forward with another's backward."""
    check_schedule(_with(schedules.ScheduleDualPipeV), folded)
