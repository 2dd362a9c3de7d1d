"""When a replica's model is the one that its run's record names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from syncline.train.export import portable
from syncline.train.folder import Vocabulary
from syncline.train.model import build_model
from syncline.train.same import check_same_model
from syncline_proto.errors import LayoutMismatch
from syncline_testing.training import LLAMA, tiny_job

VOCABULARY = Vocabulary(vocab_size=257, eos_id=256)


def see(record: dict[str, Any], **changes: Any) -> None:
    """Compare the tiny model, changed, with a record."""
    job = tiny_job(Path("nowhere"), steps=1, model={"config": {**LLAMA, **changes}})
    kept = portable(job, build_model(job, VOCABULARY))
    check_same_model(kept, VOCABULARY, "one", record)


AS_TYPED = tiny_job(Path("nowhere"), steps=1).to_job()


def test_what_was_typed_and_what_a_replica_keeps_of_it_are_one_model() -> None:
    see(AS_TYPED)
    job = tiny_job(Path("nowhere"), steps=1)
    see(portable(job, build_model(job, VOCABULARY)).to_job())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        # The same tensors: no layout tells these two apart.
        (
            {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8},
            "model.config.head_dim: the run has 16, here 8; "
            "model.config.num_attention_heads: the run has 2, here 4; "
            "model.config.num_key_value_heads: the run has 2, here 4",
        ),
        ({"hidden_act": "gelu"}, "model.config.hidden_act: the run has silu, here gelu"),
        ({"vocab_size": 320}, "model.config.vocab_size: the run has 257, here 320"),
    ],
)
def test_another_model_is_refused_by_what_differs(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(LayoutMismatch) as refused:
        see(AS_TYPED, **changes)
    assert refused.value.message == (
        f"This model is not the one of run one ({said}); train the run's model, or give the run "
        "another name."
    )


def test_a_record_of_nothing_that_is_known_here_says_nothing() -> None:
    see({})  # of somebody's own loop
    see({**AS_TYPED, "model": {"config": {"model_type": "of-a-later-version"}}})
    see({**AS_TYPED, "model": {"path": "/on/another/machine"}})
