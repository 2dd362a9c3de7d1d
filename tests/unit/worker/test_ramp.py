"""How a joiner's learning rate grows over its first steps."""

from __future__ import annotations

from syncline.core.ramp import Ramp


def test_it_grows_in_a_line_and_stays() -> None:
    ramp = Ramp(4)
    assert ramp.share(0) == 1.0, "nobody has joined anything"
    ramp.begin(10, sync_every=64)
    assert [ramp.share(step) for step in range(10, 15)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_tenth_of_the_interval_is_the_default_and_none_may_be_wished() -> None:
    ramp = Ramp(None)
    ramp.begin(0, sync_every=50)
    assert [ramp.share(step) for step in range(6)] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    for short in (Ramp(0), Ramp(1)):
        short.begin(0, sync_every=50)
        assert short.share(0) == 1.0
