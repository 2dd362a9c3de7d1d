"""The live page in a real browser, before a real control plane: what it shows, and a button."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from syncline_proto.rest import ContributionView, EventIn, RoundReport
from syncline_testing import browser
from syncline_testing.browser import Browser
from syncline_testing.cluster import Cluster, wait_until

pytestmark = pytest.mark.skipif(browser.found() is None, reason="no Chromium on this machine")

SHOWN_S = 30.0
ROUNDS, FRAGMENTS = 6, 2


def fill(cluster: Cluster) -> None:
    """A run as it is after some rounds; in the last one a replica was excluded."""
    hello = {"name": "sync-0", "address": "127.0.0.1:50051", "instance": "one"}
    cluster.http.put("/sync-services/sync-0", json=hello).raise_for_status()
    # Nobody beats in this test: the leases must outlast it.
    settings = {"token_budget": 100_000, "timeouts": {"profile": "wan", "lease": 300}}
    cluster.post("/runs", {"name": "shown", "settings": settings})
    for number in (0, 1):
        name = f"replica-{number}"
        cluster.post("/runs/shown/replicas", {"replica": name, "host": "here"})
        points: list[dict[str, Any]] = [
            {"kind": kind, "tokens": 1000 * step, "loss": 5.0 / step}
            for kind in ("train", "held-out", "merged")
            for step in range(1, 9)
        ]
        progress = {"phase": "training", "loss": 2.5, "tokens_per_second": 1234.0, "wall_s": 9.0}
        beat = {"incarnation": 1, "progress": progress, "points": points}
        cluster.post(f"/runs/shown/replicas/{name}/heartbeat", beat)
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


def text(of: str) -> str:
    return f"(document.querySelector({of!r})?.textContent ?? '')"


def test_the_page_shows_a_run_and_pauses_it(control_alone: Cluster, tmp_path: Path) -> None:
    fill(control_alone)
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/")

        def shows(expression: str) -> None:
            wait_until(lambda: bool(page.says(expression)), SHOWN_S, f"{expression}; {page.faults}")

        shows(f"{text('#name')} === 'shown' && {text('#state')} === 'running'")
        shows("document.querySelectorAll('#replicas tr').length === 2")
        shows(f"{text('#replicas')}.includes('replica-1')")
        figures = page.says(text("#figures"))
        assert "6.00 kof 100 k" in figures.replace("k of", "kof"), figures
        assert f"Exclusions{FRAGMENTS}" in figures and "Alive2" in figures
        assert f"Rounds{ROUNDS}Revision" in figures, "of each fragment, not of all together"
        shows(f"document.querySelectorAll('#rounds .cell.excluded').length === {FRAGMENTS}")
        shows("document.querySelector('#plot canvas')?.width > 0")
        shows(f"{text('#legend')}.includes('merged')")
        mark, key = "'#replicas .mark')).backgroundColor", "'#legend i')).borderTopColor"
        style = "getComputedStyle(document.querySelector("
        shows(f"{style}{mark} === {style}{key}")
        shows(f"{text('#services')}.includes('sync-0')")
        # What comes from a run is only ever text.
        shows(f"{text('#events')}.includes('<b>replica-1</b>')")
        shows(f"{text('#live')} === 'live'")

        page.says("document.getElementById('pause').click()")
        shows("document.getElementById('ask').open")
        page.says("document.getElementById('ask-yes').click()")
        shows(f"{text('#state')} === 'paused' && !document.getElementById('resume').hidden")
        assert control_alone.get("/runs/shown")["state"] == "paused"
        shows(f"{text('#events li.new')}.includes('paused')")
        shows(f"{text('#since')}.startsWith('paused; Resume')")
        assert page.faults == []


def test_the_page_of_a_run_that_has_only_begun(control_alone: Cluster, tmp_path: Path) -> None:
    settings = {"expected_replicas": 3, "timeouts": {"profile": "wan", "lease": 300}}
    control_alone.post("/runs", {"name": "begun", "settings": settings})
    control_alone.post("/runs/begun/replicas", {"replica": "replica-0", "host": "here"})
    with Browser(tmp_path / "profile") as page:
        page.open(f"{control_alone.control_url}/")

        def shows(expression: str) -> None:
            wait_until(lambda: bool(page.says(expression)), SHOWN_S, f"{expression}; {page.faults}")

        shows(
            f"{text('#since')}.endsWith('the first round waits for 2 more of expected_replicas 3')"
        )
        shows(f"{text('#plot')}.includes('replica.report(loss=…)')")
        shows("document.querySelector('.chart').clientHeight <= 240")
        ticks = "[[2, 2.025], [0, 0.25], [1, 1.5], [4, 5], [0, 20], [0.1, 0.3]]"
        page.says(
            "import('/page/chart.js').then((m) => (window.digits = "
            f"{ticks}.map(m.decimals).join()))"
        )
        shows("window.digits === '3,2,1,0,0,1'")
        assert page.faults == []
