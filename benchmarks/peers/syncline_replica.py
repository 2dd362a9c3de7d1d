"""One replica of ours: DiLoCo through the sync service, in a run of ``sync_every = 1``.

The inner optimizer has no gradients and moves nothing, the trainee has trained: its step only
tells the replica that an inner step is done, which pushes; ``finish`` merges what comes back.
"""

from __future__ import annotations

import json

import torch

from peers.gate import me, place, take_turns, wait_for
from peers.model import Model
from peers.values import DILOCO, Trainee
from syncline import Replica


def main() -> None:
    participant, participants, parameters = me()
    where = place()
    wait_for(where["control"])
    trainee = Trainee(parameters, participant, participants, DILOCO)
    model = Model(trainee)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    replica = Replica(
        model,
        optimizer,
        run=where["run"],
        name=f"replica-{participant}",
        settings=json.loads(where["settings"]),
        control=f"http://{where['control']}",
    )
    replica.start()

    def exchange() -> None:
        replica.count_tokens(1)
        optimizer.step()
        replica.finish()

    take_turns(trainee, exchange)


if __name__ == "__main__":
    main()
