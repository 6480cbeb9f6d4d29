"""A small causal transformer with its queries, keys, values and residuals laid open, and its training on fresh data."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_dynamics.attention import Trace, attend, causal_mask
from attention_dynamics.checks import require_count
from attention_dynamics.inference import Task
from attention_dynamics.training import fixed_threads


class Record(NamedTuple):
    """What a forward pass computed: the embedding (B, T, d) that enters the first block, a Trace of (B, heads, T, ...)
    for each block, what attention adds in each block (B, T, d), the last residual (B, T, d) before the final norm,
    and log p (B, T, C)."""

    embedding: Tensor
    traces: list[Trace]
    outputs: list[Tensor]
    residual: Tensor
    log_probabilities: Tensor


class Block(nn.Module):
    """One block of a transformer, with the norms before attention and perceptron."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def project(self, residual: Tensor) -> list[Tensor]:
        """Queries, keys and values, each (B, heads, T, width / heads)."""
        normed = self.norm(residual)
        return [
            layer(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]

    def finish(self, residual: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        """The residual after the block, and what attention added, from the context (B, heads, T, width / heads)."""
        added = self.output(context.transpose(1, 2).flatten(-2))
        residual = residual + added
        return residual + self.mlp(self.norm_mlp(residual)), added


class Transformer(nn.Module):
    """Causal transformer from inputs (B, T, task.width) to log p (B, T, task.n_classes), with learned positions.

    Raises ValueError for a size below one or a width that is no multiple of the number of heads.
    """

    def __init__(self, task: Task, width: int = 32, layers: int = 2, heads: int = 2):
        super().__init__()
        for name, size in (("width", width), ("layers", layers), ("heads", heads)):
            require_count(name, size, 1)
        if width % heads:
            raise ValueError(f"width must be a multiple of the {heads} heads, got {width}")
        self.embed = nn.Linear(task.width, width, bias=False)
        self.positions = nn.Parameter(torch.randn(task.length, width) / width**0.5)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.unembed = nn.LayerNorm(width), nn.Linear(width, task.n_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        residual = self.embed(inputs) + self.positions
        for block in self.blocks:
            context = F.scaled_dot_product_attention(*block.project(residual), is_causal=True)
            residual, _ = block.finish(residual, context)
        return torch.log_softmax(self.unembed(self.norm(residual)), -1)

    @torch.no_grad()
    def record(self, inputs: Tensor) -> Record:
        """The same with everything kept."""
        embedding = residual = self.embed(inputs) + self.positions
        traces, outputs = [], []
        for block in self.blocks:
            trace = attend(*block.project(residual), causal_mask(inputs.shape[-2]))
            residual, added = block.finish(residual, trace.context)
            traces.append(trace)
            outputs.append(added)
        return Record(embedding, traces, outputs, residual, torch.log_softmax(self.unembed(self.norm(residual)), -1))


def train(
    task: Task,
    seed: int,
    steps: int,
    checkpoints: Iterable[int],
    visit: Callable[[int, Transformer], None],
    shuffled: bool = False,
    lr: float = 1e-2,
    size: int = 32,
    threads: int = 1,
) -> Transformer:
    """Train a transformer with Adam, `steps` batches of `size` fresh sequences, and call `visit(step, model)` before each
    step in `checkpoints`, which may hold `steps`, the end.

    The step size grows by a cosine over the first twentieth and falls to nearly zero by another. shuffled: the targets of each
    batch are permuted at random over sequences and positions, so that nothing but their overall frequencies can be learned.
    Raises ValueError for a count below one or checkpoints outside 0..steps.
    """
    for name, value in (("steps", steps), ("size", size), ("threads", threads)):
        require_count(name, value, 1)
    checkpoints = set(checkpoints)
    if not checkpoints <= set(range(steps + 1)):
        raise ValueError(f"checkpoints must lie in 0..{steps}, got {sorted(checkpoints - set(range(steps + 1)))}")
    with fixed_threads(threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(task)
        optimiser = torch.optim.Adam(model.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, lr, total_steps=steps + 1, pct_start=0.05, anneal_strategy="cos", cycle_momentum=False
        )
        generator = torch.Generator().manual_seed(seed)
        for step in range(steps + 1):
            if step in checkpoints:
                visit(step, model)
            if step < steps:
                batch = task.draw(size, generator)
                targets = batch.targets.flatten()
                if shuffled:
                    targets = targets[torch.randperm(len(targets), generator=generator)]
                loss = F.nll_loss(model(batch.inputs).flatten(0, 1), targets)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    return model
