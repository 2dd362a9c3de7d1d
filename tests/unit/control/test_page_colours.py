"""The replicas' colours on the page: clear on their card, and apart for every kind of eyes."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

APART = 0.07
"""In OKLab, whose black and white are 1 apart."""
CONTRAST = 3.0
"""WCAG 2.2, 1.4.11: graphics against what is next to them."""

SEEN = {
    "all": np.eye(3),
    "protanopia": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
    "tritanopia": np.array(
        [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]
    ),
}
"""Linear RGB as such eyes see it (Machado, Oliveira, Fernandes 2009, severity 1)."""

LMS = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
LAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
"""Linear RGB to OKLab (Ottosson 2020): LAB of the cube roots of LMS."""

LIGHT, DARK = 0, 1


def colours(theme: int, name: str) -> list[np.ndarray]:
    """Linear RGB of all colours whose names match, in the order of their names."""
    css = files("syncline_control").joinpath("page", "page.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[theme]
    found = sorted(re.findall(rf"--({name}): #([0-9a-f]{{6}})", block))
    given = [np.array(list(bytes.fromhex(value))) / 255 for _, value in found]
    return [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in given]


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("eyes", SEEN)
def test_replicas_are_told_apart(theme: int, eyes: str) -> None:
    series = colours(theme, r"series-\d")
    assert len(series) == 8
    labs = [LAB @ np.cbrt(LMS @ np.clip(SEEN[eyes] @ one, 0.0, 1.0)) for one in series]
    for (i, a), (j, b) in combinations(enumerate(labs), 2):
        assert np.linalg.norm(a - b) > APART, f"series {i} and {j}"


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_replicas_are_seen_on_their_card(theme: int) -> None:
    (card,) = colours(theme, "card")
    for one in colours(theme, r"series-\d"):
        low, high = sorted(float(c @ [0.2126, 0.7152, 0.0722]) + 0.05 for c in (one, card))
        assert high / low > CONTRAST
