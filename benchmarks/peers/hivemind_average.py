"""One participant of hivemind's DecentralizedAverager: butterfly all-reduce of the parameters.

Compressed to 16 bits, as its documentation advises. Groups are formed ahead of the round, as its
Optimizer does while training goes on (``require_trigger``), so the seconds of matchmaking are not
counted. The model is written into the averager's shared tensors, and read back.
"""

from __future__ import annotations

import time
from pathlib import Path

import hivemind  # pyright: ignore[reportMissingImports]
import torch
from hivemind.compression import Float16Compression  # pyright: ignore[reportMissingImports]

from peers.gate import me, place, take_turns
from peers.values import Trainee

MATCHMAKING_S = 2.0
LIMIT_S = 600.0


def joined(where: dict[str, str], participant: int) -> hivemind.DHT:
    """The first participant's DHT, or one that has found it by the address it left in a file."""
    told = Path(where["told"])
    address = [f"/ip4/{where[f'host_{participant}']}/tcp/0"]
    if participant == 0:
        dht = hivemind.DHT(host_maddrs=address, start=True, use_relay=False, use_auto_relay=False)
        told.with_suffix(".new").write_text("\n".join(map(str, dht.get_visible_maddrs())))
        told.with_suffix(".new").rename(told)
        return dht
    end = time.monotonic() + LIMIT_S
    while not told.exists():
        if time.monotonic() > end:
            raise SystemExit(f"The first participant has not told its address within {LIMIT_S} s.")
        time.sleep(0.1)
    return hivemind.DHT(
        host_maddrs=address,
        initial_peers=told.read_text().split(),
        start=True,
        use_relay=False,
        use_auto_relay=False,
    )


def main() -> None:
    participant, participants, parameters = me()
    trainee = Trainee(parameters, participant, participants)
    model = [torch.from_numpy(array) for array in trainee.arrays]
    averager = hivemind.DecentralizedAverager(
        [tensor.clone() for tensor in model],
        joined(place(), participant),
        prefix="round",
        start=True,
        target_group_size=participants,
        min_group_size=participants,
        min_matchmaking_time=MATCHMAKING_S,
        compression=Float16Compression(),
    )
    control = None

    def prepare() -> None:
        nonlocal control
        control = averager.step(wait=False, require_trigger=True, timeout=LIMIT_S)

    def exchange() -> None:
        assert control is not None
        with averager.get_tensors() as shared:
            for theirs, own in zip(shared, model, strict=True):
                theirs.copy_(own)
        control.allow_allreduce()
        control.result()
        with averager.get_tensors() as shared:
            for theirs, own in zip(shared, model, strict=True):
                own.copy_(theirs)

    take_turns(trainee, exchange, prepare)


if __name__ == "__main__":
    main()
