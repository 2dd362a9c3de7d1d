"""The ranks of this replica: who this process is, on which device, and what all must agree on.

torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK) keeps its meaning. For one process on a CPU
there is no process group, unless mixed precision asks for FSDP2; everywhere else there is one.
``syncline.ranks.Ranks`` has the same words and another use: the private line on which the ranks of
a ``Replica`` agree, in anybody's loop, which has neither a device nor a mesh of ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from syncline.background import in_background
from syncline.ranks import ALONE_S, GONE, Ranks, is_gone, wait_for
from syncline_proto.errors import ConfigError, ProcessFailed, Unreachable

MEET_S = 600.0
"""How long ranks wait for one another to start; each loads PyTorch before it comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This process's place in its replica."""

    index: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")
    mesh: DeviceMesh | None = None
    """One dimension over all ranks; None for one process on a CPU that computes in fp32."""

    @property
    def first(self) -> bool:
        """Whether this is rank 0, who decides and who speaks."""
        return self.index == 0

    def sum(self, values: Sequence[float]) -> list[float]:
        """The sums over all ranks, the same on each. Every rank must call it.

        Raises:
            ProcessFailed: another rank is gone.
        """
        if self.count == 1:
            return list(values)
        summed = torch.tensor(values, dtype=torch.float64)
        wait_for(dist.all_reduce(summed, group=dist.group.WORLD, async_op=True))
        return summed.tolist()

    def meet(self) -> None:
        """Wait for all ranks, however long each loads; every rank must call it.

        One that is gone is noticed at once, by its connection; where ranks make another group it
        would be waited for.

        Raises:
            ProcessFailed: another rank is gone, or did not come in time.
        """
        if self.count == 1:
            return
        world = dist.group.WORLD
        assert world is not None
        how = dist.AllreduceOptions()
        how.timeout = timedelta(seconds=ALONE_S)
        wait_for(world.allreduce([torch.zeros(1)], how))

    def word(self, own: str) -> str:
        """Rank 0's word, on each. Every rank must call it, and says its own.

        Raises:
            ProcessFailed: as ``meet``.
        """
        if self.count == 1:
            return own
        self.meet()
        line = Ranks()
        try:
            return line.share(lambda: own)
        finally:
            line.close()


@contextmanager
def joined_ranks(*, mixed_precision: bool) -> Iterator[RankGroup]:
    """Take this process's place among the ranks, and give it up at the end.

    FSDP2 is what computes in mixed precision, so that needs a mesh even for one process.

    Raises:
        ConfigError: the environment names a place that cannot be, or fewer GPUs than ranks.
        Unreachable: not all ranks have come.
        ProcessFailed: another rank is gone, as what is done inside has found.
    """
    rank, world = _number("RANK", 0), _number("WORLD_SIZE", 1)
    if not 0 <= rank < world:
        raise ConfigError(f"RANK={rank} of WORLD_SIZE={world} cannot be; start with torchrun.")
    if world == 1 and not (mixed_precision or torch.cuda.is_available()):
        yield RankGroup()
        return
    device = _device(_number("LOCAL_RANK", 0))
    # Numbers that ranks agree on live on the CPU, so gloo is there beside NCCL.
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    _meet(backend, rank, world)
    try:
        mesh = init_device_mesh(device.type, (world,))
        yield RankGroup(index=rank, count=world, device=device, mesh=mesh)
    except RuntimeError as error:
        if not is_gone(error):
            raise
        raise ProcessFailed(GONE) from error
    finally:
        dist.destroy_process_group()


def _meet(backend: str, rank: int, world: int) -> None:
    """Make the process group of all ranks."""
    if world == 1 and "MASTER_ADDR" not in os.environ:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        return
    wait = timedelta(seconds=MEET_S)
    # In a thread, since Ctrl+C is not heard in there.
    met = in_background(lambda: next(iter(rendezvous("env://", timeout=wait))), "syncline-meet")
    try:
        store = PrefixStore("default_pg", met.future.result()[0])
        dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    except dist.DistError as error:
        at = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        why = str(error).partition("\n")[0].rstrip(".")
        raise Unreachable(
            f"The {world} ranks of this replica have not met at {at} ({why}); see the logs of the "
            "others, then start all of them again."
        ) from error


def _device(local_rank: int) -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no GPU, there are {torch.cuda.device_count()}; start "
            "no more ranks than GPUs, or set CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    if not text:
        return otherwise
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name}={text} is not a number; start with torchrun.") from None
