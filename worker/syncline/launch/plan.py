"""What to launch: a job's file and a person's flags become one ``Launch``.

Reads the job and chooses names, counts and the folder; starts nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from syncline.train.config import JobConfig
from syncline.train.exported import CHOOSE, Origin, check_free
from syncline_proto.errors import ConfigError, StoreError
from syncline_proto.locks import owned

DEMO_GRACE_S = 5.0
DEMO_RESTARTS = 3
"""As ``up`` by default."""
DEMO_FOLDER = "syncline-demo"
UP_FOLDER = "syncline-runs"
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start."""

    job_file: Path
    job: JobConfig
    overrides: Sequence[str]
    """What made ``job`` of the file; the replicas get the same."""
    folder: Path
    """Everything of the launch lies in it."""
    replicas: int
    ranks: int = 1
    shards: int = 1
    """Sync services that share the fragments."""
    restarts: int = 0
    """How often each process is started again when it dies."""
    control_port: int = 0
    """0: any free one."""
    sync_port: int = 0
    grace_s: float = 15.0
    """For a replica to push what it did and leave, when all is stopped."""
    seconds_limit: float | None = None
    """Stop the run after this long, if it has not ended."""
    goes_on: bool = True
    """Whether the same command finds the same folder again."""

    @property
    def export(self) -> Path:
        """Where the merged model goes."""
        return (self.job.export.folder or self.folder / "export").absolute()

    @property
    def threads(self) -> str:
        """CPU threads of each rank: the job's word, the user's, or an even share of the cores."""
        if self.job.train.threads is not None:
            return str(self.job.train.threads)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        share = max(1, (cores or 1) // (self.replicas * self.ranks))
        return os.environ.get("OMP_NUM_THREADS") or str(share)


def plan_demo(out: str | None, overrides: Sequence[str], seconds_limit: float | None) -> Launch:
    """Return the built-in job in a new folder below ``out``.

    Raises:
        ConfigError: an override is wrong.
    """
    job_file = Path(str(files("syncline.train").joinpath("presets", "demo.toml")))
    folder = _new_folder(Path(out or DEMO_FOLDER).absolute())
    given = [f"data.cache={folder / 'data'}", *overrides]
    job, given = _expecting(job_file, given, None)
    return Launch(
        job_file=job_file,
        job=job,
        overrides=given,
        folder=folder,
        replicas=job.up.replicas,
        ranks=job.up.ranks,
        shards=job.up.shards,
        control_port=job.up.control_port,
        sync_port=job.up.sync_port,
        grace_s=DEMO_GRACE_S,
        seconds_limit=seconds_limit,
        restarts=DEMO_RESTARTS,
        goes_on=False,
    )


def plan_up(
    job_file: str,
    out: str | None,
    overrides: Sequence[str],
    replicas: int | None,
    restarts: int,
    seconds_limit: float | None,
) -> Launch:
    """Return a job of one's own, in the folder that has its run's name, so that it can go on.

    Raises:
        FileMissing: there is no such job.
        ConfigError: it, or an override, is wrong; or its export would replace another model.
    """
    path = Path(job_file).absolute()
    job, given = _expecting(path, overrides, replicas)
    folder = Path(out or UP_FOLDER).absolute() / job.run.name
    if job.checkpoint.folder is None:
        # So that a replica that is started again finds its optimizer.
        job, given = _loaded(path, [*given, f"checkpoint.folder={folder / 'checkpoints'}"])
    launch = Launch(
        job_file=path,
        job=job,
        overrides=given,
        folder=folder,
        replicas=job.up.replicas,
        ranks=job.up.ranks,
        shards=job.up.shards,
        restarts=restarts,
        control_port=job.up.control_port,
        sync_port=job.up.sync_port,
        seconds_limit=seconds_limit,
    )
    if job.starts_from(launch.export):
        raise ConfigError(
            f"The run's model would go to {launch.export}, which is model.path; give the run "
            "another name with --set run.name=NAME, or the export with --set export.folder=DIR."
        )
    if job.export.folder is not None:  # the one in the launch's own folder is this run's
        check_free(launch.export, CHOOSE, mine=Origin(run=job.run.name))
    return launch


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the launch's folder for one launch at a time; none is left where nothing came into it.

    Raises:
        StoreError: it cannot be made or written, as the services inside it would say.
        ConfigError: another launch holds it.
    """
    try:
        made = [one for one in (folder, *folder.parents) if not one.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        lock = owned(folder / LOCK)
    except OSError as error:
        raise StoreError(
            f"The folder {folder} cannot be used ({error.strerror}); choose another with --out."
        ) from None
    if lock is None:
        raise ConfigError(
            f"Another launch is using {folder}; stop that one, or choose another folder with --out."
        )
    with lock:
        try:
            yield
        finally:
            with suppress(OSError):  # others may have come into it, or taken it away
                if made and os.listdir(folder) == [LOCK]:
                    (folder / LOCK).unlink()
                    for one in made:
                        one.rmdir()


def _expecting(
    path: Path, overrides: Sequence[str], replicas: int | None
) -> tuple[JobConfig, list[str]]:
    """Load the job, and let the run expect as many replicas as will be started.

    Raises:
        ConfigError: fewer are started than a round needs, or more than have a place.
    """
    given = [*overrides, *([f"up.replicas={replicas}"] if replicas else [])]
    job, given = _loaded(path, given)
    if job.run.expected_replicas is None or replicas:
        most = job.run.max_replicas
        if most is not None and most < job.up.replicas:
            raise ConfigError(
                f"run.max_replicas is {most} and {job.up.replicas} are started, so not all would "
                "have a place: start fewer (up.replicas), or allow more."
            )
        job, given = _loaded(path, [*given, f"run.expected_replicas={job.up.replicas}"])
    if job.run.min_replicas > job.up.replicas:
        raise ConfigError(
            f"run.min_replicas is {job.run.min_replicas} and {job.up.replicas} are started, so no "
            "round would ever close: start more (up.replicas), or ask for fewer."
        )
    return job, given


def _loaded(path: Path, overrides: list[str]) -> tuple[JobConfig, list[str]]:
    return JobConfig.load(path, overrides), overrides


def _new_folder(parent: Path) -> Path:
    """Return a folder's name that is not taken: the time, and a number where that is not enough."""
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    numbered = (parent / (f"{stamp}-{number}" if number else stamp) for number in range(1000))
    # What cannot even be looked at counts as free here, and is refused where it is made.
    return next(folder for folder in numbered if not os.path.exists(folder))
