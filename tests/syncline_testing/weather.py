"""A simulated network: each link has its weather, which a test makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from syncline_proto.settings import RunSettings
from syncline_testing.simulated import Place

Link = tuple[str, str]
"""From whom to whom."""


@dataclass(frozen=True, slots=True)
class Weather:
    """What becomes of a message; one of several copies takes longer."""

    delay_s: float = 0.01
    copies: int = 1


class Weathered(Place):
    """A place whose messages are lost, late, doubled and out of order, as it is told."""

    def __init__(self, settings: RunSettings) -> None:
        super().__init__(0, settings=settings)
        self._weather: dict[Link, Weather] = {}

    def weather(self, link: Link, weather: Weather) -> None:
        self._weather[link] = weather

    def cut(self, link: Link, seconds: float) -> None:
        """Nothing comes over it for a while."""
        self.weather(link, Weather(copies=0))
        self.after(seconds, lambda: self.weather(link, Weather()))

    def clear_up(self) -> None:
        """Nothing is lost or late from now on."""
        self._weather.clear()

    def over(self, link: Link, act: Callable[[], object]) -> None:
        """Send a message, which does ``act`` where it arrives."""
        weather = self._weather.get(link, Weather())
        for copy in range(weather.copies):
            self.after(weather.delay_s * (1 + copy), act)

    def send(self, act: Callable[[], None]) -> None:
        act()  # what a replica hands over is the network's from then on: see ``push`` of the swarm
