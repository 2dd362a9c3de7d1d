"""Flower's averaging: FedAvg on the server, and clients that send what they have trained.

Flower gives every message a new process, so a client meets each round as a stranger: what arrives
is the average of the last round, which it looks at and writes into its model before it trains the
next. A round lasts from the client's answer until that model holds the average.
"""

from __future__ import annotations

import time

import numpy as np
from flwr.app import (  # pyright: ignore[reportMissingImports]
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp import Grid, ServerApp  # pyright: ignore[reportMissingImports]
from flwr.serverapp.strategy import FedAvg  # pyright: ignore[reportMissingImports]

from peers.gate import Gate, me
from peers.values import Trainee

ROUNDS_MAX = 100_000

client = ClientApp()
server = ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Take the last round's average, make inner steps, wait for the turn, and answer."""
    (average,) = message.content["arrays"].to_numpy_ndarrays()
    model = np.array(average)
    ended = time.monotonic()
    participant, participants, parameters = me()
    number = int(message.content["config"]["server-round"])
    trainee = Trainee(parameters, participant, participants)
    trainee.before_last(number - 1)
    np.copyto(trainee.flat, model)
    off = trainee.off() if number > 1 else None
    gate = Gate()
    trainee.train()
    gate.ready(ended if number > 1 else None, off)  # what follows is timed
    metrics = MetricRecord({"num-examples": 1})
    reply = RecordDict({"arrays": ArrayRecord([trainee.flat]), "metrics": metrics})
    return Message(content=reply, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Average round after round, until the benchmark ends the process."""
    config = context.run_config
    participants = int(config["participants"])
    start = Trainee(int(config["parameters"]), 0, participants)
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=participants,
        min_available_nodes=participants,
    )
    strategy.start(grid=grid, initial_arrays=ArrayRecord([start.flat]), num_rounds=ROUNDS_MAX)
