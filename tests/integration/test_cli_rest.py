"""The commands against a real control plane: JSON shapes, sentences, exit codes."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from syncline.cli.checks import services
from syncline.launch.client import OperatorClient
from syncline.launch.ports import free_ports, require_free
from syncline.launch.probes import http_ready, wait_ready
from syncline.launch.processes import Command, Crew
from syncline_proto.errors import PortInUse, SynclineError, Unreachable
from syncline_proto.rest import RunCreate
from syncline_testing.shell import Shell
from syncline_testing.warm import warm

TOKEN = "a-secret"
GONE = "The control plane does not answer."


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A control plane that asks for a token; two runs and a replica are in it."""
    folder = tmp_path_factory.mktemp("control")
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "syncline_control", "--host", "127.0.0.1"]
    argv += ["--port", str(port), "--database", str(folder / "control.db")]
    started = Command(
        name="control", argv=argv, folder=folder, env={"SYNCLINE_CONTROL_TOKEN": TOKEN}
    )
    with Crew() as crew:
        process = crew.start(started)
        wait_ready(process, lambda: http_ready(f"{url}/readyz"))
        # Nobody beats for replica-0: its lease must outlast every test.
        for name, timeouts in (("first", {"profile": "wan", "lease": 300}), ("second", {})):
            settings = {"token_budget": 1_000_000, "timeouts": timeouts}
            post(url, "/v1/runs", {"name": name, "settings": settings})
        post(url, "/v1/runs/first/replicas", {"replica": "replica-0"})
        yield url


def post(url: str, path: str, body: dict[str, Any]) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    httpx.post(url + path, json=body, headers=headers, trust_env=False).raise_for_status()


@pytest.fixture
def shell(
    control: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.setenv("SYNCLINE_CONTROL", control)
    monkeypatch.setenv("SYNCLINE_TOKEN", TOKEN)
    return Shell(capsys)


def test_runs_are_listed_and_shown(shell: Shell) -> None:
    listed = shell.json("runs ls")
    assert {"first", "second"} <= {one["name"] for one in listed}
    assert not any("job" in one for one in [*listed, *shell.json("status")["runs"]])
    shown = shell.json("runs show first")
    assert shown["settings"]["token_budget"] == 1_000_000
    assert shown["state"] == "running"
    code, out, _ = shell("runs show first")
    assert code == 0 and "token_budget" in out and "outer.lr" in out
    assert "waits for replicas" not in out
    assert "running, waits for replicas" in shell("runs show second")[1]
    assert (shown["state"], shown["waits_for"]) == ("running", None)
    waiting = shell.json("runs show second")
    assert (waiting["state"], waiting["waits_for"]) == ("running", "replicas")


def test_a_run_pauses_resumes_and_stops(shell: Shell) -> None:
    paused = shell.json("runs pause second")
    assert (paused["state"], paused["waits_for"]) == ("paused", "resume")
    way_on = "paused; `syncline runs resume second` goes on"
    for line in ("runs show second", "runs ls", "status"):
        assert way_on in shell(line)[1]
    assert shell.json("runs resume second")["state"] == "running"
    stopped = shell.json("runs stop second")
    assert (stopped["state"], stopped["waits_for"]) == ("stopped", None)
    code, said = shell.refused("runs resume second")
    assert code == 16 and "stopped" in said


def test_settings_change_live(shell: Shell) -> None:
    before = shell.json("runs show first")["settings_version"]
    changed = shell.json("runs set first outer.lr=0.25 sync_every=32 outer.clip=none")
    assert changed["settings_version"] == before + 1
    outer = changed["settings"]["outer"]
    assert (outer["lr"], outer["momentum"], outer["clip"]) == (0.25, 0.9, None)
    for wrong in ("nonsense=1", "outer.lr=99", "token_budget=5"):
        code, said = shell.refused(f"runs set first {wrong}")
        assert code == 10 and wrong.partition("=")[0] in said
    assert shell.refused("runs set first nonsense")[0] == 10
    said = "From its next round on, first has sync_every 16 (was 32), outer.clip 9.0 (was none).\n"
    assert shell("runs set first sync_every=16 outer.clip=9") == (0, said, "")
    said = "From its next round on, first has penalty.kappa 0.75 (was 0.5).\n"
    assert shell("runs set first penalty.kappa=0.75") == (0, said, "")
    already = "first has these settings already.\n"
    assert shell("runs set first sync_every=16") == (0, already, "")
    assert shell("runs set first run.sync_every=16") == (0, already, ""), "as in a job's file"


def test_who_makes_it_so_is_said_where_there_are_not_as_many_replicas(shell: Shell) -> None:
    said = "first should have 1 replica; 1 is alive.\n"
    assert shell("runs scale first 1") == (0, said, "")
    code, said, _ = shell("runs scale first 4")
    assert code == 0 and said.startswith("first should have 4 replicas; 1 is alive. `syncline up`,")
    assert "`syncline scaler`" in said and "started and ended by hand" in said
    said = "first has as many replicas as come; 1 is alive.\n"
    assert shell("runs scale first --any") == (0, said, "")


def test_a_setting_that_is_not_set_is_shown_as_what_it_comes_to(shell: Shell) -> None:
    shown = shell("runs show second")[1]
    facts = dict(line.strip().split(maxsplit=1) for line in shown.splitlines())
    assert facts["timeouts.lease"] == "10 s (default of lan)"
    assert facts["timeouts.round_deadline"] == "120 s (default of lan)"
    assert facts["expected_replicas"] == "1 (default: min_replicas)"
    assert facts["penalty.norm_max"] == "none"
    assert facts["rounds"] == "0 of each fragment"


def test_replicas_are_listed_drained_and_kicked(shell: Shell) -> None:
    found = shell.json("replicas ls first")["first"]
    assert [one["replica"] for one in found] == ["replica-0"]
    assert found[0]["taking_part"] is False
    assert "first" in shell.json("replicas ls")
    assert "joining" in shell("replicas ls first")[1]
    assert shell.json("replicas drain first replica-0")["state"] == "draining"
    assert shell.json("replicas kick first replica-0")["state"] == "kicked"
    gone = shell("replicas ls first")[1]
    assert "kicked" in gone and "joining" not in gone
    assert shell.refused("replicas kick first nobody")[0] == 17


def test_who_kicks_a_replica_that_has_gone_hears_that_its_name_is_free(
    shell: Shell, control: str
) -> None:
    """An operator is not to believe that its name is out of the run."""
    post(control, "/v1/runs", {"name": "gone"})
    post(control, "/v1/runs/gone/replicas", {"replica": "one"})
    left = f"{control}/v1/runs/gone/replicas/one?incarnation=1"
    headers = {"Authorization": f"Bearer {TOKEN}"}
    httpx.delete(left, headers=headers, trust_env=False).raise_for_status()
    assert shell.json("replicas kick gone one")["state"] == "left", "so nobody was kicked"
    said = " ".join(shell("replicas kick gone one")[1].split())
    assert said.startswith("one held no lease of gone: its name is not barred.")


def test_who_sends_too_many_away_hears_that_the_run_stands_still(
    shell: Shell, control: str
) -> None:
    post(control, "/v1/runs", {"name": "three", "settings": {"min_replicas": 2}})
    for number in range(3):
        post(control, "/v1/runs/three/replicas", {"replica": f"replica-{number}"})
    assert shell.json("replicas kick three replica-0")["lacking"] == 0
    assert shell("replicas kick three replica-0")[1].endswith(" a lease of three.\n")
    said = " ".join(shell("replicas drain three replica-1")[1].split())
    assert said.endswith("and leave three. Then three stands still until another one joins.")
    assert shell.json("replicas kick three replica-2")["lacking"] == 2
    said = " ".join(shell("replicas kick three replica-2")[1].split())
    assert said.endswith("a lease of three. three stands still until 2 more join.")
    shell("runs stop three")
    assert shell.json("replicas kick three replica-2")["lacking"] == 0, "it has ended"


def test_who_was_sent_away_is_even_where_nobody_tells_what_is_left(
    shell: Shell, control: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control plane may go in between."""
    post(control, "/v1/runs", {"name": "four", "settings": {"min_replicas": 1}})
    for number in range(2):
        post(control, "/v1/runs/four/replicas", {"replica": f"replica-{number}"})

    def gone(client: OperatorClient, name: str) -> None:
        raise Unreachable(GONE)

    with monkeypatch.context() as cut:
        cut.setattr(OperatorClient, "run", gone)
        told = shell.json("replicas kick four replica-0")
        assert list(told.values()) == ["four", "replica-0", "kick", "kicked", None]
        said = " ".join(shell("replicas drain four replica-1")[1].split())
    assert said.endswith("and leave four. Nobody could say whether enough replicas stay: " + GONE)
    states = {one["replica"]: one["state"] for one in shell.json("replicas ls four")["four"]}
    assert states == {"replica-0": "kicked", "replica-1": "draining"}


def test_status_holds_everything(shell: Shell, control: str) -> None:
    seen = shell.json("status")
    assert seen["control"] == control
    assert seen["sync_services"] == []
    assert "first" in {one["name"] for one in seen["runs"]}
    assert "first" in seen["replicas"]
    code, out, _ = shell("status")
    assert code == 0 and "first" in out and control in out


def test_status_says_whom_the_first_round_waits_for(shell: Shell, control: str) -> None:
    post(control, "/v1/runs", {"name": "early", "settings": {"expected_replicas": 3}})
    assert "early: " not in shell("status")[1], "nobody is there to wait"
    post(control, "/v1/runs/early/replicas", {"replica": "replica-0"})
    waits = "early: the first round waits for 2 more of expected_replicas 3"
    assert waits in shell("status")[1]
    post(control, "/v1/runs/early/replicas", {"replica": "replica-1"})
    assert waits.replace("2 more", "1 more") in shell("status")[1]
    shell("replicas kick early replica-1")
    assert waits in shell("status")[1], "it had not joined yet, as one that is refused"
    shell("runs pause early")
    assert waits not in shell("status")[1]


def test_a_run_with_too_few_replicas_says_how_many_there_are(shell: Shell, control: str) -> None:
    settings = {"min_replicas": 3, "timeouts": {"profile": "wan", "lease": 300}}
    post(control, "/v1/runs", {"name": "few", "settings": settings})
    for number in range(2):
        post(control, "/v1/runs/few/replicas", {"replica": f"replica-{number}"})
    waits = "running, waits for replicas, 2 of min_replicas 3"
    assert waits in shell("runs show few")[1] and waits in shell("status")[1]
    post(control, "/v1/runs/few/replicas", {"replica": "replica-2"})
    assert waits not in shell("status")[1]


def test_a_damaged_run_is_seen_until_it_goes_on(shell: Shell, control: str) -> None:
    post(control, "/v1/runs", {"name": "hurt"})
    said = "Run hurt is not served: head.json is damaged."
    reports = "/v1/runs/hurt/reports"
    rounds = [
        {"fragment": fragment, "fragment_name": "f", "kind": "pseudo-gradient", "revision": 1,
         "committed_at": time.time() + 600, "seconds": 0.1} for fragment in (0, 1)
    ]  # fmt: skip
    post(control, reports, {"rounds": rounds})  # by a clock that is ahead
    post(control, reports, {"events": [{"kind": "run.damaged", "message": said}]})
    post(control, reports, {"events": [{"kind": "some.thing", "message": "else"}] * 501})
    (event,) = shell.json("status")["damaged"]
    shown = [" ".join(shell(command)[1].split()) for command in ("status", "runs show hurt")]
    assert f": {said} This stands here until" in shown[0] and f"damage {said}" in shown[1]
    checks = {one["what"]: one["verdict"] for one in shell.json("doctor")["checks"]}
    assert checks[said] == "warn"
    since = {"revision": 2, "committed_at": event["time"] - 600}  # and now behind
    for at, left in ((1, [event]), (0, [])):  # what another service owns, then all
        post(control, reports, {"rounds": [{**rounds[at], **since}]})
        assert shell.json("status")["damaged"] == left
    assert said not in shell("doctor")[1]
    shell("runs stop hurt")


def test_events_and_rounds(shell: Shell) -> None:
    kinds = [event["kind"] for event in shell.json("events first")]
    assert "replica.joined" in kinds
    assert shell.json("runs events first") == shell.json("events first")
    assert len(shell.json("events --limit 1")) == 1
    assert shell.json("events --limit 5000"), "as many as may be asked for are given"
    assert shell.json("rounds first") == []
    assert "No round" in shell("rounds first")[1]


def test_events_are_followed_as_they_happen(shell: Shell, control: str) -> None:
    with OperatorClient(control, TOKEN) as client:
        last = client.events("first", None, 1)[-1].id
        client.change_settings("first", {"sync_every": 31})
        following = client.follow("first", last)
        first = next(following)
        assert first.id > last and first.kind == "settings.changed"
        client.change_settings("first", {"sync_every": 30})
        assert next(following).id > first.id
        following.close()


def test_the_doctor_finds_a_healthy_control_plane(shell: Shell) -> None:
    found = shell.json("doctor")
    verdicts = {one["check"]: one["verdict"] for one in found["checks"]}
    assert found["ok"] is True
    assert verdicts["control plane"] == "ok" and verdicts["clocks"] == "ok"
    assert verdicts["sync service"] == "warn"
    assert all(one["advice"] for one in found["checks"] if one["verdict"] != "ok")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("runs show nowhere", 15),
        ("rounds nowhere", 15),
        ("replicas ls nowhere", 15),
        ("runs ls --token wrong", 19),
        ("runs ls --control http://127.0.0.1:1", 30),
        ("events --follow --control http://127.0.0.1:1", 30),
        ("status --watch --control http://127.0.0.1:1", 30),
        ("runs ls --control ftp://127.0.0.1", 10),
        ("runs ls --control http://:8500", 10),
        ("runs create nowhere.toml", 12),
        ("data inspect /nowhere", 13),
        ("data prepare /nowhere --out /nowhere/out", 13),
        ("train nowhere.toml --progress loud", 10),
        ("up nowhere.toml", 12),
    ],
)
def test_wrong_inputs_end_in_a_sentence_and_a_code(shell: Shell, line: str, code: int) -> None:
    assert shell.refused(line)[0] == code


def test_a_run_cannot_be_named_out_of_its_path(shell: Shell) -> None:
    assert shell.refused("runs show ../runs/first")[0] == 10


def test_the_doctor_tells_a_free_port_from_a_taken_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("SYNCLINE_CONTROL", raising=False)
    shell = Shell(capsys)
    free = f"http://127.0.0.1:{free_ports(1)[0]}"
    found = list(services(free, None, is_named=False))
    assert [one.verdict for one in found] == ["warn"] and "is free" in found[0].what

    def finds_nobody(line: str) -> bool:
        code, out, _ = shell(line)
        last = json.loads(out)["checks"][-1]
        return (code, last["verdict"], last["what"]) == (1, "fail", f"nothing answers at {free}")

    assert finds_nobody(f"doctor --json --control {free}")
    with monkeypatch.context() as named:
        named.setenv("SYNCLINE_CONTROL", free)
        assert finds_nobody("doctor --json")
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        serving = threading.Thread(target=stranger.serve_forever)
        serving.start()
        try:
            url = f"http://127.0.0.1:{stranger.server_port}"
            code, out, _ = shell(f"doctor --json --control {url}")
            last = json.loads(out)["checks"][-1]
            assert code == 1 and last["verdict"] == "fail"
            assert "is not a Syncline control plane" in shell.refused(f"runs ls --control {url}")[1]
        finally:
            stranger.shutdown()
            serving.join()


class Stranger(BaseHTTPRequestHandler):
    """Something else that listens."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_taken_port_is_named_with_the_setting_to_change() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match="up.control_port") as caught:
            require_free(port, "up.control_port")
        assert str(port) in caught.value.message and caught.value.exit_code == 11


def test_the_client_closes_what_it_opened(control: str) -> None:
    with pytest.raises(SynclineError), OperatorClient(control, "wrong") as client:
        client.runs()


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (
            ["export", "bare", "--out", "there"],
            30,
            ["Loading PyTorch and transformers ...", "Fetching the newest revision of bare ..."],
        ),
        (["sample", "here"], 10, ["Loading transformers; then the model writes ..."]),
    ],
)
def test_what_takes_long_is_told_to_people(
    control: str, tmp_path: Path, arguments: list[str], code: int, lines: list[str]
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "config.json").write_text('{"model_type": "llama"}')
    arguments = [str(tmp_path / one) if one in ("here", "there") else one for one in arguments]
    with OperatorClient(control, TOKEN) as client:
        client.create_run(RunCreate(name="bare"))
    for more, expected in (((), lines), (("--json",), [])):
        line = ("-m", "syncline.cli", *arguments, *more)
        with warm(*line, SYNCLINE_CONTROL=control, SYNCLINE_TOKEN=TOKEN) as process:
            out, err = process.communicate(timeout=100)
        *told, error = err.splitlines()
        assert (process.returncode, out, told) == (code, "", expected), err
        assert error.startswith("error: ")
