"""The parameters of a run of one's own loop go back into its model, as docs/checkpoints.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_model
from torch import nn

from syncline.layout import outline
from syncline.ranks import Ranks
from syncline.train.export import export_state
from syncline.train.exported import Origin, check_free
from syncline.train.plain import write_parameters
from syncline_proto.errors import ConfigError
from syncline_testing.full import files_may_have


class Own(nn.Module):
    """Tied at both ends, of a lower precision, and frozen in between."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(8, 4, dtype=torch.bfloat16)
        self.still = nn.Linear(4, 4).requires_grad_(False)
        self.head = nn.Linear(4, 8, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.words.weight


def test_a_model_takes_its_parameters_back_ties_and_all(tmp_path: Path) -> None:
    one, other = Own(0), Own(1)
    layout = outline(one, Ranks()).cut().layout
    state = one.state_dict()
    tensors = {spec.name: state[spec.name].float() for spec in layout.tensors}
    file = write_parameters(tensors, tmp_path / "out", Origin(run="mine"))
    assert len({path.stat().st_mode for path in file.parent.iterdir()}) == 1, "others read it, too"
    missing, unexpected = load_model(other, file, strict=False)
    assert set(missing) == {"still.weight", "still.bias"} and not unexpected
    assert torch.equal(other.head.weight, one.words.weight)
    assert other.head.weight is other.words.weight and other.head.weight.dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="an export of the run mine already"):
        check_free(tmp_path / "out", "choose another")
    again = write_parameters({"words.weight": torch.zeros(8, 4)}, tmp_path / "out", Origin(run="b"))
    assert load_model(other, again, strict=False) and not other.head.weight.any()
    with pytest.raises(ConfigError, match="cannot export to"):
        write_parameters(tensors, file, Origin(run="mine"))


@pytest.mark.parametrize("size", [0, 4096])
def test_a_full_disk_is_told_and_leaves_no_stub(tmp_path: Path, size: int) -> None:
    out = tmp_path / "out"
    tensors = {"weight": torch.zeros(8192)}
    with files_may_have(size), pytest.raises(ConfigError) as told:
        export_state(tensors, None, out, frozen_sha256="", origin=Origin(run="mine"))
    assert f"cannot export to {out}: " in told.value.message
    assert told.value.message.endswith("; make room on its disk, or choose another folder.")
    assert not out.exists()


def test_a_full_disk_takes_nothing_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "notes").touch()
    with files_may_have(4096), pytest.raises(ConfigError):
        write_parameters({"weight": torch.zeros(8192)}, tmp_path, Origin(run="mine"))
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]
