"""The control plane of a swarm: leases, and what it tells the service of those who hold one.

It decides as it does in the product; it may stop at any instant, and what it says may be lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from syncline_control.core import leases
from syncline_control.core.leases import Lease
from syncline_proto.errors import LeaseLost
from syncline_proto.settings import RunSettings
from syncline_testing.weather import Weathered

if TYPE_CHECKING:
    from syncline_testing.lives import Living

LEASE_S = 2.0
BEAT_S, REVIEW_S = LEASE_S / 4, 0.25
SERVICE, CONTROL = "the service", "the control plane"


class Ruled(Weathered):
    """A place with a control plane and a service that hears from it."""

    serves: bool
    """Whether the service is there."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(settings)
        self.controls, self.running = True, True
        self._leases: dict[str, Lease] = {}
        self._reviewed_s, self._version, self._told = 0.0, 0, 0
        self._said: tuple[dict[str, int], bool, int] = ({}, True, 0)
        """The members, whether the run goes on, and as of which version the control plane asks who
        has settled: as the service has heard last."""

    def pause(self, running: bool) -> None:
        self.running = running
        self._version += 1
        self.tell()

    def stop_control(self) -> None:
        self.controls = False

    def start_control(self) -> None:
        self.controls = True

    def _see_lives(self) -> None:
        """Who holds a lease may have changed."""

    def _asks(self) -> int:
        """As of which version the control plane asks who has settled; 0: it does not."""
        return 0

    def _members(self) -> dict[str, int]:
        return {name: lease.incarnation for name, lease in self._leases.items() if lease.held}

    def _change(self, name: str, lease: Lease) -> None:
        before, self._leases[name] = self._members(), lease
        if self._members() != before:
            self._version += 1
            self.tell()
            self._see_lives()

    def _review(self) -> None:
        if self.controls:
            for name, lease in list(self._leases.items()):
                self._change(name, leases.review(lease, self.now_s, self._late_s))
            self._reviewed_s = self.now_s
            self._see_lives()
            self.tell()
        self.after(REVIEW_S, self._review)

    @property
    def _late_s(self) -> float:
        return max(0.0, self.now_s - self._reviewed_s - REVIEW_S)

    def beat(self, replica: Living) -> None:
        """A heartbeat, of a life that goes on."""
        if replica.alive:
            self.over((replica.name, CONTROL), lambda: self._renew(replica))
            self.after(BEAT_S, lambda: self.beat(replica))

    def _renew(self, replica: Living) -> bool:
        """Whether it holds its lease; who does not is told so."""
        if not self.controls:
            return False
        try:
            lease = leases.renew(self._leases[replica.name], replica.life, self.now_s, self._late_s)
        except LeaseLost:
            self.over((CONTROL, replica.name), replica.stop)
            return False
        self._leases[replica.name] = lease
        return True

    def release(self, replica: Living) -> None:
        """A replica gives its lease back; where that is not heard, it runs out."""

        def released() -> None:
            if self.controls:
                lease = self._leases[replica.name]
                self._change(replica.name, leases.release(lease, replica.life, self.now_s))

        self.over((replica.name, CONTROL), released)

    def tell(self) -> None:
        """Say who takes part, unless the service has it already."""
        version, said = self._version, (self._members(), self.running, self._asks())

        def heard() -> None:
            if self.serves and version > self._told:
                self._told, self._said = version, said
                self.adopt()

        if self.controls and version > self._told:
            self.over((CONTROL, SERVICE), heard)
