"""The same numbers as a module of torch, for those who average modules: a GPT without a forward."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from peers.values import BLOCKS, Trainee

BLOCK_TENSORS = 6


class Part(nn.Module):
    """Some tensors in a row: one block, or what is before or behind the blocks."""

    def __init__(self, tensors: Iterator[Tensor], count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(islice(tensors, count))


class Model(nn.Module):
    """Its parameters share the trainee's memory: who writes into one writes into the other."""

    def __init__(self, trainee: Trainee) -> None:
        super().__init__()
        tensors = iter([torch.from_numpy(array) for array in trainee.arrays])
        self.embedding = Part(tensors, 1)
        self.blocks = nn.ModuleList([Part(tensors, BLOCK_TENSORS) for _ in range(BLOCKS)])
        self.head = Part(tensors, 2)
