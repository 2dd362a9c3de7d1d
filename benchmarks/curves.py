"""Curves as one HTML file that needs nothing else, drawn by the uPlot of the control plane."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

POINTS = 400
"""Of each curve, on the grid that all of a chart share."""
COLOURS = ("#2a6f97", "#c8553d", "#588157", "#7b5ea7", "#b08900")

Curve = tuple[Sequence[float], Sequence[float]]
"""x and y; x ascends."""

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>{title}</title>
<style>{style} body {{ font: 14px system-ui; margin: 2rem; }}</style>
<h1>{title}</h1>
<script>{library}</script>
<script>
for (const {{ title, data, series }} of {charts}) {{
  const options = {{ title, width: 900, height: 360, scales: {{ x: {{ time: false }} }}, series }};
  new uPlot(options, data, document.body);
}}
</script>
"""


def write(path: Path, title: str, charts: Mapping[str, Mapping[str, Curve]]) -> None:
    """Write a page of charts: by title, by name of a curve."""
    page = files("syncline_control") / "page" / "uplot"
    style = (page / "uPlot.min.css").read_text()
    library = (page / "uPlot.iife.min.js").read_text()
    drawn = [_chart(name, curves) for name, curves in charts.items()]
    text = PAGE.format(title=escape(title), style=style, library=library, charts=json.dumps(drawn))
    path.write_text(text)


def _chart(title: str, curves: Mapping[str, Curve]) -> dict[str, object]:
    """uPlot's data, on one grid; a curve is null where it has not begun, or has ended."""
    ends = [x for xs, _ in curves.values() for x in (xs[0], xs[-1])]
    grid = np.linspace(min(ends), max(ends), POINTS)
    data = [grid.tolist()]
    for xs, ys in curves.values():
        values = np.interp(grid, xs, ys)
        inside = (grid >= xs[0]) & (grid <= xs[-1])
        data.append([float(v) if here else None for v, here in zip(values, inside, strict=True)])
    series: list[dict[str, object]] = [{}]
    for number, name in enumerate(curves):
        series.append({"label": name, "stroke": COLOURS[number % len(COLOURS)], "width": 2})
    return {"title": title, "data": data, "series": series}
