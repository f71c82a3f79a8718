"""The Muon optimiser for the matrices inside the layers: orthogonalised momentum (Jordan et al., 2024).

The step is scaled to the size of an Adam step (Liu et al., 2025), so one learning rate serves both.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


def orthogonalise(matrices: Tensor) -> Tensor:
    """Move all singular values close to 1 by five Newton-Schulz steps: matrices [n, rows, columns]."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Muon with one update for all matrices of a shape, which keeps a small model's step short."""

    def __init__(self, parameters: list[nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        groups: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            groups[parameter.shape].append(parameter)
        self.groups = list(groups.values())
        self.averages = [torch.zeros_like(torch.stack([p.data for p in group])) for group in self.groups]
        self.momentum, self.weight_decay = momentum, weight_decay

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every parameter, then clear its gradient."""
        for group, average in zip(self.groups, self.averages, strict=True):
            gradient = torch.stack([p.grad for p in group])
            average.lerp_(gradient, 1 - self.momentum)
            update = orthogonalise(gradient.lerp(average, self.momentum))
            scale = 0.2 * max(group[0].shape) ** 0.5
            torch._foreach_mul_(group, 1 - lr * self.weight_decay)
            torch._foreach_add_(group, list(update.unbind()), alpha=-lr * scale)
            for p in group:
                p.grad = None
