"""The live page in a real browser, before a real control plane: what it shows, and a button."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from syncline_proto.reports import ContributionView, EventIn, RoundReport
from syncline_testing import browser
from syncline_testing.browser import Browser
from syncline_testing.cluster import Cluster

pytestmark = pytest.mark.skipif(browser.found() is None, reason="no Chromium on this machine")

ROUNDS, FRAGMENTS = 6, 2
KINDS = ("train", "held-out", "merged")
STEPS = range(1, 9)


def loss(kind: str, number: int, step: int) -> float:
    """Of a replica; the merged model is the same for all."""
    return (5.0 + (0 if kind == "merged" else number) + KINDS.index(kind) / 4) / step


def fill(cluster: Cluster) -> None:
    """A run as it is after some rounds: one was excluded from the last, one never pushed."""
    # Nobody beats in this test: the leases must outlast it.
    settings = {"token_budget": 100_000, "timeouts": {"profile": "wan", "lease": 300}}
    cluster.post("/runs", {"name": "shown", "settings": settings})
    for number in (0, 1):
        name = f"replica-{number}"
        cluster.post("/runs/shown/replicas", {"replica": name, "host": "here"})
        points: list[dict[str, Any]] = [
            {"kind": kind, "tokens": 1000 * step, "loss": loss(kind, number, step)}
            for kind in KINDS
            for step in STEPS
        ]
        progress = {"phase": "training", "loss": 2.5, "tokens_per_second": 1234.0, "wall_s": 9.0}
        beat = {"incarnation": 1, "progress": progress, "points": points}
        cluster.post(f"/runs/shown/replicas/{name}/heartbeat", beat)
    cluster.post("/runs/shown/replicas", {"replica": "replica-2", "host": "here"})
    rounds = [report(fragment, n) for n in range(1, ROUNDS + 1) for fragment in range(FRAGMENTS)]
    told = EventIn(kind="push.excluded", message="<b>replica-1</b> was excluded.")
    body = {"rounds": [one.model_dump(mode="json") for one in rounds],
            "events": [told.model_dump(mode="json")]}  # fmt: skip
    cluster.http.post("/runs/shown/reports", json=body).raise_for_status()


def report(fragment: int, revision: int) -> RoundReport:
    excluded = revision == ROUNDS
    parts = [
        ContributionView(replica="replica-0", incarnation=1, verdict="accepted",
                         weight=1.0 if excluded else 0.5, norm=1.0, z=0.1, tokens=500),
        ContributionView(replica="replica-1", incarnation=1,
                         verdict="anomalous" if excluded else "accepted",
                         weight=0.0 if excluded else 0.5, norm=None if excluded else 1.0,
                         tokens=500, reason="not finite" if excluded else ""),
    ]  # fmt: skip
    return RoundReport(
        fragment=fragment,
        fragment_name=f"block-{fragment}",
        kind="pseudo-gradient",
        revision=revision,
        committed_at=time.time(),
        seconds=0.5,
        committed_tokens=1000 * revision,
        effective_sample_size=1.0 if excluded else 2.0,
        merged_norm=1.0,
        clip_factor=1.0,
        contributions=parts,
    )


def plotted(page: Browser) -> list[list[float]]:
    """What the chart draws: tokens, then the losses of each line."""
    page.says("import('/page/chart.js').then((m) => (window.data = m.plotted()))")
    page.shows("window.data")
    return page.says("window.data.map((column) => [...column])")


COLOURED = """(() => {
  const canvas = document.querySelector("#plot canvas");
  const pen = document.createElement("canvas").getContext("2d");
  pen.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--series-0").trim();
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b] = pen.getImageData(0, 0, 1, 1).data;
  const all = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let i = 0; i < all.length; i += 4) {
    found += all[i] === r && all[i + 1] === g && all[i + 2] === b && all[i + 3] === 255;
  }
  return found;
})()"""


def text(of: str) -> str:
    return f"(document.querySelector({of!r})?.textContent ?? '')"


def test_the_page_shows_a_run_and_pauses_it(control_alone: Cluster, tmp_path: Path) -> None:
    fill(control_alone)
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/")
        page.shows(f"{text('#name')} === 'shown' && {text('#state')} === 'running'")
        page.shows("document.querySelectorAll('#replicas tr').length === 3")
        page.shows(f"{text('#replicas')}.includes('replica-1')")
        figures = page.says(text("#figures"))
        assert "6.00 kof 100 k" in figures.replace("k of", "kof"), figures
        assert f"Exclusions{FRAGMENTS}" in figures and "Alive3Taking part2" in figures
        assert f"Rounds{ROUNDS}Revision" in figures, "of each fragment, not of all together"
        page.shows(f"document.querySelectorAll('#rounds .cell.excluded').length === {FRAGMENTS}")
        taking = "[...document.querySelectorAll('#replicas tr')].map((r) => r.cells[2].textContent)"
        assert page.says(taking) == ["yes", "yes", "no, joining"]
        page.shows("document.querySelector('#plot canvas')?.width > 0")
        assert plotted(page) == [
            [1000 * step for step in STEPS],
            *([loss(kind, n, step) for step in STEPS] for kind in KINDS[:2] for n in (0, 1)),
            [loss("merged", 0, step) for step in STEPS],
        ]
        assert page.says(COLOURED) > 100, "and in the first replica's colour"
        page.shows(f"{text('#legend')}.includes('merged')")
        mark, key = "'#replicas .mark')).backgroundColor", "'#legend i')).borderTopColor"
        style = "getComputedStyle(document.querySelector("
        page.shows(f"{style}{mark} === {style}{key}")
        # What comes from a run is only ever text.
        page.shows(f"{text('#events')}.includes('<b>replica-1</b>')")
        page.shows(f"{text('#live')} === 'live'")

        # Nobody clicks, and neither a heartbeat nor a round is an event: it asks by itself.
        told = control_alone.get("/events?run=shown")
        progress = {"phase": "training", "loss": 1.5}
        beat = {"incarnation": 1, "progress": progress}
        control_alone.post("/runs/shown/replicas/replica-0/heartbeat", beat)
        another = [report(n, ROUNDS + 1).model_dump(mode="json") for n in range(FRAGMENTS)]
        body = {"rounds": another}
        control_alone.http.post("/runs/shown/reports", json=body).raise_for_status()
        page.shows(f"{text('#figures')}.includes('Loss2.000nats')")
        page.shows(f"{text('#figures')}.includes('Rounds{ROUNDS + 1}Revision')")
        assert control_alone.get("/events?run=shown") == told

        page.says("document.getElementById('pause').click()")
        page.shows("document.getElementById('ask').open")
        page.says("document.getElementById('ask-yes').click()")
        page.shows(f"{text('#state')} === 'paused' && !document.getElementById('resume').hidden")
        assert control_alone.get("/runs/shown")["state"] == "paused"
        page.shows(f"{text('#events li.new')}.includes('paused')")
        page.shows(f"{text('#since')}.startsWith('paused; Resume')")
        # Last of all: when its lease is over there is an event more.
        hello = {"name": "sync-0", "address": "127.0.0.1:50051", "instance": "one"}
        control_alone.http.put("/sync-services/sync-0", json=hello).raise_for_status()
        page.shows(f"{text('#services')}.includes('sync-0')")
        assert page.faults == []


def test_the_page_of_a_run_that_has_only_begun(control_alone: Cluster, tmp_path: Path) -> None:
    settings = {"expected_replicas": 3, "timeouts": {"profile": "wan", "lease": 300}}
    control_alone.post("/runs", {"name": "lonely"})
    control_alone.post("/runs", {"name": "begun", "settings": settings})
    control_alone.post("/runs/begun/replicas", {"replica": "replica-0", "host": "here"})
    control_alone.post("/runs/begun/replicas", {"replica": "refused", "host": "here"})
    control_alone.post("/runs/begun/replicas/refused/kick", {})  # before it had joined
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/")
        page.shows(
            f"{text('#since')}.endsWith('the first round waits for 2 more of expected_replicas 3')"
        )
        page.shows(f"{text('#runs')}.includes('lonelyrunning, waits')")
        page.shows(f"{text('#plot')}.includes('replica.report(loss=…)')")
        page.shows("document.querySelector('.chart').clientHeight <= 240")
        ticks = "[[2, 2.025], [0, 0.25], [1, 1.5], [4, 5], [0, 20], [0.1, 0.3]]"
        page.says(
            "import('/page/chart.js').then((m) => (window.digits = "
            f"{ticks}.map(m.decimals).join()))"
        )
        page.shows("window.digits === '3,2,1,0,0,1'")
        assert page.faults == []


FAILS_ONCE = """
  window.failed = 0;
  window.real = window.fetch;
  window.fetch = (url, ...rest) =>
    url.startsWith("/v1/events?run=second") && !window.failed++
      ? Promise.reject(new TypeError("away"))
      : window.real(url, ...rest);
"""


def test_a_call_that_fails_does_not_leave_a_run_without_its_events(
    control_alone: Cluster, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        control_alone.post("/runs", {"name": name})
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/#first")
        page.shows(f"{text('#events')}.includes('Run first was created')")
        page.says(f"{FAILS_ONCE} location.hash = 'second'")
        page.shows(f"window.failed > 1 && {text('#events')}.includes('Run second was created')")
        control_alone.post("/runs/second/pause")
        page.shows(f"{text('#events li.new')}.includes('paused')")
        assert page.faults == []


def test_replicas_stand_by_their_names(control_alone: Cluster, tmp_path: Path) -> None:
    settings = {"timeouts": {"profile": "wan", "lease": 300}}
    control_alone.post("/runs", {"name": "many", "settings": settings})
    for number in (10, 2, 1):  # in the order in which they join
        control_alone.post("/runs/many/replicas", {"replica": f"replica-{number}"})
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/#many")
        page.shows("document.querySelectorAll('#replicas tr').length === 3")
        rows = "[...document.querySelectorAll('#replicas tr')]"
        names = f"{rows}.map((row) => row.cells[0].innerText.trim()).join(' ')"
        page.shows(f"{names} === 'replica-1 replica-2 replica-10'")
