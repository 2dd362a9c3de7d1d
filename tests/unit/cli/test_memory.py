"""A launch that cannot fit into the machine is refused, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from syncline.cli.app import run
from syncline.launch.memory import check_memory, machine_bytes
from syncline.launch.processes import describe_exit
from syncline_proto.errors import ConfigError

MIB = 1 << 20
JOB = """
[run]
name = "tiny"
token_budget = 1_000_000
[model.config]
model_type = "llama"
num_hidden_layers = 2
[data]
source = ["builtin"]
sequence_length = 64
"""


def machine(root: Path, *, swap: int = 0, cgroup: str = "0::/", **limits: str) -> Path:
    """A file system of a machine with 1024 MiB; ``limits``: files of control groups, __ for /."""
    files = {
        "proc/meminfo": f"MemTotal: {1024 * 1024} kB\nSwapTotal: {swap * 1024} kB\nHuge: 0",
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name.replace('__', '/')}": text for name, text in limits.items()},
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("there", "mib"),
    [
        ({}, 1024),
        ({"swap": 100}, 1124),
        ({"cgroup": "0::/a/b", "a__b__memory.max": "max", "a__memory.max": f"{300 * MIB}"}, 300),
        ({"cgroup": "0::/", "memory.max": f"{200 * MIB}"}, 200),
        ({"cgroup": "0::/", "memory.max": f"{9000 * MIB}"}, 1024),
        (
            {
                "cgroup": "3:cpu:/x\n4:memory:/y\n0::/",
                "memory__y__memory.limit_in_bytes": f"{400 * MIB}",
                "memory__memory.limit_in_bytes": "9223372036854771712",
                "swap": 8,
            },
            408,
        ),
    ],
)
def test_the_lowest_limit_counts(tmp_path: Path, there: dict[str, str], mib: int) -> None:
    assert machine_bytes(machine(tmp_path, **there)) == mib * MIB  # pyright: ignore[reportArgumentType]


def test_a_system_that_does_not_say_refuses_nobody(tmp_path: Path) -> None:
    assert machine_bytes(tmp_path) is None
    check_memory(10**15, 9, on_gpus=False, root=tmp_path)


def test_only_what_cannot_fit_is_refused(tmp_path: Path) -> None:
    """19 bytes a parameter and replica on the CPU, of which 3 stay there beside a GPU."""
    root = machine(tmp_path)
    for replicas, each, on_gpus in ((1, 19, False), (4, 19, False), (2, 3, True)):
        most = 1024 * MIB // (replicas * each)
        check_memory(most, replicas, on_gpus=on_gpus, root=root)
        with pytest.raises(ConfigError, match=f"{each} bytes each"):
            check_memory(most + 1, replicas, on_gpus=on_gpus, root=root)
    with pytest.raises(ConfigError) as raised:
        check_memory(100 * MIB, 2, on_gpus=False, root=root)
    said = raised.value.message
    assert "2 replicas of 104,857,600 parameters need 3.7 GiB" in said
    assert "this machine has 1.0 GiB; make the model smaller" in said


def test_up_refuses_it_with_nothing_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    huge = ["--set", "model.config.hidden_size=1_000_000_000"]
    assert run(["up", str(job), "--out", str(tmp_path), *huge]) == ConfigError.exit_code
    said = capsys.readouterr().err
    assert "error: 2 replicas of " in said and "this machine has" in said
    assert not list(tmp_path.rglob("*.log"))


def test_a_process_that_was_killed_from_elsewhere_may_have_had_no_memory() -> None:
    assert describe_exit(137) == (
        "exit code 137 (killed by SIGKILL: the system may have run out of memory)"
    )
    assert describe_exit(143) == "exit code 143 (killed by SIGTERM)"
