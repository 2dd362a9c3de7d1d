"""Every command explains itself, and quickly."""

from __future__ import annotations

import subprocess
import sys

import pytest

from syncline.cli.app import run

COMMANDS = (
    "demo",
    "up",
    "train",
    "export",
    "sample",
    "status",
    "events",
    "rounds",
    "scaler",
    "runs ls",
    "runs show",
    "runs create",
    "runs pause",
    "runs resume",
    "runs stop",
    "runs scale",
    "runs set",
    "runs events",
    "replicas ls",
    "replicas drain",
    "replicas kick",
    "data prepare",
    "data inspect",
    "data status",
    "checkpoints save",
    "checkpoints ls",
    "checkpoints restore",
    "checkpoints export",
    "doctor",
    "version",
    "exit-codes",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"      syncline {command}" in shown or f"    syncline {command}" in shown
    assert "Example" in shown
    assert "--json" in shown
    assert " range>" not in shown.partition("Options:\n")[2], "an option's value has a name"
    assert "[[" not in shown and "...}" not in shown, "brackets and dots are written once"
    assert "Exit codes: " in shown and shown.endswith("syncline exit-codes\n")


@pytest.mark.parametrize("group", ["", "runs", "replicas", "data", "checkpoints"])
def test_groups_have_examples_too(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*group.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert f"    syncline {group}".rstrip() in shown
    listed = shown.partition("Commands:\n")[2]
    assert listed and "..." not in listed, "a sentence that does not fit is cut"


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    first = capsys.readouterr().out.splitlines()[0].split()
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split() == first
    assert first[0] == "syncline"
    assert run(["--help"]) == 0
    assert "--version" in capsys.readouterr().out


def test_a_pause_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "pause", "--help"]) == 0
    assert "finish their inner step and wait" in capsys.readouterr().out


def test_what_the_package_offers_is_listed_before_it_is_loaded() -> None:
    script = (
        "import sys\n"
        "import syncline\n"
        "assert set(syncline.__all__) <= set(dir(syncline))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_list_above_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {"runs", "replicas", "data", "checkpoints"}
    found: set[str] = set()
    for group in ("", *groups):
        assert run([*group.split(), "--help"]) == 0
        listed = capsys.readouterr().out.partition("Commands:\n")[2]
        names = {line.split()[0] for line in listed.splitlines() if line.strip()}
        found |= {f"{group} {name}".strip() for name in names - groups}
    assert found == set(COMMANDS)


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["runs", "nonsense"], ["status", "--nonsense"], ["runs", "show"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_wrong_address_is_told_before_anything_heavy_is_loaded() -> None:
    script = (
        "import sys\n"
        "from syncline.cli.app import run\n"
        "code = run(['export', 'r', '--out', 'nowhere', '--control', 'ftp://foo'])\n"
        "sys.exit(99 if sys.modules.keys() & {'torch', 'transformers'} else code)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 10, ended.stderr
    assert "ftp://foo" in ended.stderr and ended.stderr.count("\n") == 1


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from syncline.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'torch', 'transformers', 'httpx', 'grpc', 'numpy', 'rich'}\n"
        "sys.exit(repr(heavy & sys.modules.keys()) if heavy & sys.modules.keys() else 0)\n"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("option", ["--replica", "--name"])
def test_a_replica_is_named_either_way(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []
    monkeypatch.setattr("os.execve", lambda path, argv, env: became.append(argv))
    assert run(["train", "job.toml", option, "left"]) == 0
    assert became[0][-2:] == ["--replica", "left"]
