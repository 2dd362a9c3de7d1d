"""``syncline train`` with a model and data of the user's own, named as ``module:function``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from syncline_testing.cluster import Cluster
from syncline_testing.processes import python
from syncline_testing.warm import warm, warm_ranks

WAIT_S = 100.0
BUDGET = 6_144
MINE = """
from types import SimpleNamespace
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)

    def forward(self, h):
        return h + torch.tanh(self.up(h))

class Model(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.embed = nn.Embedding(61, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 61)

    def forward(self, input_ids):
        h = self.embed(input_ids[:, :-1])
        for block in self.blocks:
            h = block(h)
        logits = self.head(h)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)

def model(width, blocks=2):
    return Model(width, blocks)

class Odd(Model):
    def forward(self, **batch):
        return self.odd(super().forward(**batch))

def odd(changed):
    def make(width):
        model = Odd(width, 2)
        model.odd = changed
        return model
    return make

plain = odd(vars)
logits = odd(lambda made: made.logits)
per_token = odd(lambda made: SimpleNamespace(loss=made.logits.mean(-1)))
number_only = odd(lambda made: {"loss": float(made.loss)})
detached = odd(lambda made: {"loss": made.loss.detach()})

class Deaf(Model):
    def forward(self, tokens):
        return super().forward(tokens)

def deaf(width):
    return Deaf(width, 2)

def small(width):
    model = Model(width, 2)
    model.embed = nn.Embedding(30, width)
    return model

class Counting:
    def __init__(self, start, length, count):
        self.start, self.length, self.count = start, length, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return {"input_ids": (torch.arange(self.length) + self.start + 7 * index) % 61}

def data(split, length, count=256):
    return Counting(0 if split == "train" else 3, length, count if split == "train" else 16)

def nothing(*args, **kwargs):
    return None

def empty(*args):
    return []

def short(split, length):
    return Counting(0, length - 1, 64)

def text(*args):
    return ["one", "two"]

class Broken(Counting):
    def __getitem__(self, index):
        return super().__getitem__(index) if index < 8 else {}[index]

def broken(split, length):
    return Broken(0, length, 64)

class Ragged(Counting):
    def __getitem__(self, index):
        return {**super().__getitem__(index), "weight": torch.ones(2 if index else 1)}

def ragged(split, length):
    return Ragged(0, length, 64)

def raises(*args, **kwargs):
    raise RuntimeError("no such table.")

number = 3
"""
JOB = """
[run]
name = "mine"
sync_every = 8
expected_replicas = 2
token_budget = {budget}
[model]
factory = "mine.models:model"
arguments = {{ width = 16 }}
[data]
factory = "mine.models:data"
sequence_length = 16
[train]
micro_batch = 8
threads = 1
[optimizer]
lr = 1e-2
schedule = "constant"
[evaluate]
sequences = 8
"""
IN = "import os, runpy, sys; os.chdir(sys.argv[1]); sys.argv[:] = sys.argv[2:]; "
TRAIN = IN + "runpy.run_module('syncline.train', run_name='__main__', alter_sys=True)"
PLAIN = ("train", "job.toml", "--json", "--progress", "none")
EXPORT = IN + "runpy.run_module('syncline.cli', run_name='__main__', alter_sys=True)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with a job and the package that it names."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "models.py").write_text(MINE)
    (tmp_path / "job.toml").write_text(JOB.format(budget=BUDGET))
    return tmp_path


def train(folder: Path, *arguments: str) -> tuple[int | None, str, str]:
    with warm("-c", TRAIN, str(folder), *PLAIN, *arguments) as program:
        out, errors = program.communicate(WAIT_S)
    return program.returncode, out, errors


@pytest.mark.parametrize("factory", ["model", "plain"])
def test_alone_it_trains_and_writes_the_parameters(folder: Path, factory: str) -> None:
    named = f"model.factory=mine.models:{factory}"
    code, out, errors = train(folder, "--set", "export.folder=out", "--set", named)
    assert code == 0, errors
    ending = json.loads(out)
    assert ending["reason"] == "budget" and ending["inner_step"] == BUDGET // 128
    assert ending["held_out_merged"] < 1.0 and ending["bits_per_byte_merged"] is None
    parameters = load_file(folder / "out" / "parameters.safetensors")
    assert parameters["blocks.1.up.weight"].shape == (16, 16)


def test_two_ranks_train_it_as_one_does(folder: Path) -> None:
    whole, half = folder / "whole", folder / "half"
    exported = "export.folder="
    code, out, errors = train(folder, "--set", exported + str(whole))
    assert code == 0, errors
    both = [*PLAIN, "--set", exported + str(half), "--set", "train.micro_batch=4"]
    with warm_ranks("-c", TRAIN, str(folder), *both) as ranks:
        ends = [rank.communicate(WAIT_S) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], ends
    assert ends[1][0] == "", "rank 0 says it for both"
    alone, pair = json.loads(out), json.loads(ends[0][0])
    for key in ("reason", "inner_step", "tokens"):
        assert pair[key] == alone[key], key
    assert pair["held_out_merged"] == pytest.approx(alone["held_out_merged"], rel=1e-4)
    one, other = (load_file(path / "parameters.safetensors") for path in (whole, half))
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(other[name], value, rtol=0, atol=1e-5), name


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    (tmp_path / "services").mkdir()
    with Cluster(tmp_path / "services") as cluster:
        yield cluster


@pytest.mark.long
def test_two_replicas_of_it_end_as_one_model(folder: Path, cluster: Cluster) -> None:
    url = cluster.control_url
    ends: list[float] = []
    with ExitStack() as started:
        pair = [
            started.enter_context(
                warm("-c", TRAIN, str(folder), *PLAIN, "--replica", name, SYNCLINE_CONTROL=url)
            )
            for name in ("left", "right")
        ]
        for program in pair:
            out, errors = program.communicate(WAIT_S)
            assert program.returncode == 0, errors
            ends.append(json.loads(out)["held_out_merged"])
    assert ends[0] == ends[1] < 1.5
    run = cluster.get("/runs/mine")
    assert run["state"] == "finished" and run["job"]["model"]["factory"] == "mine.models:model"

    # Whoever exports imports nothing that the record names.
    (folder / "mine" / "models.py").unlink()
    argv = ("export", "mine", "--out", "model", "--control", url)
    with warm("-c", EXPORT, str(folder), "syncline", *argv) as program:
        out, errors = program.communicate(WAIT_S)
    assert program.returncode == 0, errors
    assert "mine.models:model makes the model: its parameters alone" in errors
    exported = load_file(folder / "model" / "parameters.safetensors")
    assert all(torch.isfinite(value).all() for value in exported.values()) and len(exported) == 7
    (folder / "mine" / "models.py").write_text(MINE)
    other = ("--set", "model.arguments.width=8")
    with warm("-c", TRAIN, str(folder), *PLAIN, *other, SYNCLINE_CONTROL=url) as program:
        _, errors = program.communicate(WAIT_S)
    assert program.returncode == 18 and "model.factory: the run has" in errors


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("model.factory", "mine.nowhere:model", "mine.nowhere cannot be imported (ModuleNotFound"),
        ("model.factory", "mine.models:modell", "modell of mine.models is not there"),
        ("model.factory", "mine.models:number", "number of mine.models is nothing to call"),
        ("model.factory", "mine.models:nothing", "returned NoneType, not a torch.nn.Module"),
        ("model.factory", "mine.models:raises", "raised RuntimeError: no such table; SYNCLINE_DE"),
        ("model.arguments.depth", "2", "model(width=16, depth=2) cannot be called (got an unexpe"),
        ("model.arguments.width", "abc", "model(width='abc') raised TypeError: empty()"),
        (
            "model.factory",
            "mine.models:deaf",
            "an unexpected keyword argument 'input_ids'; its for",
        ),
        ("model.factory", "mine.models:logits", "returned Tensor without a loss; its forward is"),
        ("model.factory", "mine.models:per_token", "returned a loss of shape [8, 15]; its forward"),
        ("model.factory", "mine.models:number_only", "returned a loss that is float, no tensor;"),
        ("model.factory", "mine.models:detached", "returned a loss without a gradient; its forwar"),
        ("model.factory", "mine.models:small", "raised IndexError: index out of range in self; it"),
        ("model.factory", "mine.models", "write it as module:function"),
        ("data.factory", "mine.models:nothing", "returned NoneType, and not a dataset"),
        ("data.factory", "mine.models:empty", "returned a dataset without a sequence"),
        ("data.factory", "mine.models:text", "has rows that are no dict of tensors"),
        ("data.factory", "mine.models:broken", "'held-out', returned a dataset whose row "),
        ("data.factory", "mine.models:ragged", "has rows of different shapes: {'input_ids': [16],"),
        ("data.factory", "mine.models:short", "input_ids are shape [15]; data.sequence_length"),
        ("data.arguments.count", "4", "the training set of mine.models:data has 4 of 16 tokens"),
        ("train.activation_checkpointing", "true", "let model.factory do it"),
        ("model.attention", "eager", "attention is for models of transformers"),
    ],
)
def test_what_is_wrong_ends_in_one_sentence(folder: Path, key: str, value: str, said: str) -> None:
    code, _, errors = train(folder, "--set", f"{key}={value}")
    assert code == 10 and said in errors, errors
    assert errors.splitlines()[-1].startswith("error: ") and "Traceback" not in errors


def test_data_of_ones_own_goes_with_a_model_of_transformers(folder: Path) -> None:
    config = 'model_type="llama", hidden_size=16, intermediate_size=32, num_hidden_layers=1'
    config = f"{{{config}, num_attention_heads=2}}"
    job = JOB.format(budget=256).replace('factory = "mine.models:model"', f"config = {config}")
    job = job.replace("arguments = { width = 16 }\n", "")
    (folder / "job.toml").write_text(job)
    with python("-m", "syncline.train", str(folder / "job.toml")) as process:
        _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 10 and "give model.config a vocab_size" in errors
    (folder / "job.toml").write_text(job.replace('"llama",', '"llama", vocab_size=61,'))
    labelled = MINE.replace(
        'return {"input_ids": (torch.arange(self.length) + self.start + 7 * index) % 61}',
        'ids = torch.arange(self.length) % 61; return {"input_ids": ids, "labels": ids}',
    )
    (folder / "mine" / "models.py").write_text(labelled)
    code, _, errors = train(folder, "--set", "export.folder=out")
    assert code == 0, errors
    assert (folder / "out" / "config.json").is_file()
    assert not (folder / "out" / "tokenizer.json").exists()


@pytest.mark.long
def test_a_model_without_a_loss_joins_no_run(folder: Path, cluster: Cluster) -> None:
    wrong = ("--set", "model.factory=mine.models:logits")
    with warm("-c", TRAIN, str(folder), *PLAIN, *wrong, SYNCLINE_CONTROL=cluster.control_url) as it:
        _, errors = it.communicate(WAIT_S)
    assert it.returncode == 10 and "returns an object or a dict with a scalar loss" in errors
    assert cluster.get("/runs") == []
