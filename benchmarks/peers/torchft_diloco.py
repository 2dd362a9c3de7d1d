"""One participant of torchft's DiLoCo: a replica group of one rank over ProcessGroupGloo.

As its documentation has it: SGD with Nesterov momentum outside, a synchronous quorum before each
exchange, a vote on the commit after it. ``sync_every=1`` makes every step of the inner optimizer
end in an exchange; that optimizer has no gradients and moves nothing, the trainee has trained.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import torch
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torchft import Manager, ProcessGroupGloo  # pyright: ignore[reportMissingImports]
from torchft.local_sgd import DiLoCo  # pyright: ignore[reportMissingImports]

from peers.gate import me, place, take_turns, wait_for
from peers.model import Model
from peers.values import DILOCO, Trainee

LIMIT = timedelta(minutes=10)


def main() -> None:
    participant, participants, parameters = me()
    where = place()
    logging.getLogger().setLevel(logging.WARNING)
    wait_for(where["lighthouse"])
    trainee = Trainee(parameters, participant, participants, DILOCO)
    model = Model(trainee)
    own = where[f"host_{participant}"]
    store = TCPStore(own, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=LIMIT),
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=participants,
        use_async_quorum=False,
        timeout=LIMIT,
        quorum_timeout=LIMIT,
        rank=0,
        world_size=1,
        store_addr=own,
        store_port=store.port,
        lighthouse_addr=f"http://{where['lighthouse']}",
        replica_id=f"replica-{participant}",
        hostname=own,
        init_sync=False,
    )
    inner = torch.optim.SGD(model.parameters(), lr=0.0)
    outer = torch.optim.SGD(
        model.parameters(), lr=DILOCO.lr, momentum=DILOCO.momentum, nesterov=True
    )
    with DiLoCo(manager, [model], inner, outer, sync_every=1):
        take_turns(trainee, inner.step)


if __name__ == "__main__":
    main()
