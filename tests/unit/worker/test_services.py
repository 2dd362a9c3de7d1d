"""Several sync services are asked one after another: what they say is put together to one state."""

from __future__ import annotations

from threading import Event

import pytest

from syncline.link import Link
from syncline.push import Identity
from syncline.services import Services
from syncline_proto.errors import Unreachable
from syncline_proto.layout import Box, FragmentSpec, Layout, TensorSpec
from syncline_proto.settings import TimeoutSettings
from syncline_proto.v1 import sync_pb2 as pb

LAYOUT = Layout(
    tuple(TensorSpec(name, (1,), "float32") for name in "ab"),
    tuple(FragmentSpec(f"f{tensor}", (Box(tensor, (0,), (1,)),)) for tensor in (0, 1)),
)
ME = Identity(run="run", replica="one", incarnation=1, rank=0, ranks=1)


class Impatient(TimeoutSettings):
    @property
    def give_up_s(self) -> float:
        return 0.3


class Saying(Link):
    """A service that owns one fragment: at this step, and in these phases one after another."""

    def __init__(self, fragment: int, *phases: int, step: int = 0) -> None:
        super().__init__("127.0.0.1:1", TimeoutSettings(), None)
        self._fragment, self._step, self.left = fragment, step, list(phases)

    def status(self, run: str) -> pb.GetRunStatusResponse:
        assert run == ME.run
        phase = self.left.pop(0) if len(self.left) > 1 else self.left[0]
        state = pb.FragmentState(fragment=self._fragment, phase=phase, gradient_step=self._step)
        return pb.GetRunStatusResponse(epoch=1, fragments=[state])


def phases(*links: Saying) -> list[int]:
    epochs = dict.fromkeys(range(len(links)), 1)
    services = Services(ME, LAYOUT, dict(enumerate(links)), epochs, Impatient(), Event())
    try:
        states = services.states()
        return [states[fragment].phase for fragment in range(len(links))]
    finally:
        services.close()


def test_a_phase_begins_where_every_service_is_in_it() -> None:
    assert phases(Saying(0, 1), Saying(1, 0, 0, 1)) == [1, 1]


def test_who_waits_for_the_end_of_a_phase_need_not_know_which() -> None:
    assert phases(Saying(0, 1, step=1), Saying(1, 0)) == [1, 0]


def test_services_that_never_agree_are_told_of() -> None:
    with pytest.raises(Unreachable, match="have not all heard that the synchronous phase"):
        phases(Saying(0, 1), Saying(1, 0))
