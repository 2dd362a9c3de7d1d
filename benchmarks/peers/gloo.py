"""One participant of the plainest averaging: gloo's all-reduce over the whole model in fp32.

The model lies in one buffer that is reduced where it is and divided: nothing is copied.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from peers.gate import me, place, take_turns
from peers.values import Trainee


def main() -> None:
    participant, participants, parameters = me()
    dist.init_process_group(
        "gloo", init_method=f"tcp://{place()['store']}", rank=participant, world_size=participants
    )
    trainee = Trainee(parameters, participant, participants)
    flat = torch.from_numpy(trainee.flat)

    def exchange() -> None:
        dist.all_reduce(flat)
        flat.div_(participants)

    take_turns(trainee, exchange)


if __name__ == "__main__":
    main()
