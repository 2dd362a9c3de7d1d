"""``syncline train``, ``export`` and ``sample``: one replica, and what comes out of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from syncline.cli import output
from syncline.cli.options import (
    DEFAULT_CONTROL,
    Control,
    JobFile,
    Json,
    ModelFolder,
    Overrides,
    Overwrite,
    RunName,
    Token,
    TokenizerData,
    connect,
)
from syncline.uncollected import uncollected

if TYPE_CHECKING:
    from syncline.train.export import Exported


def train(
    job: JobFile,
    run: Annotated[
        str | None, typer.Option("--run", metavar="NAME", help="The run instead of the file's.")
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option("--replica", "--name", metavar="NAME", help="This replica's name in the run."),
    ] = None,
    ranks: Annotated[
        int,
        typer.Option(
            "--ranks", metavar="N", min=1, max=1024, help="Processes that share this replica."
        ),
    ] = 1,
    overrides: Overrides = None,
    progress: Annotated[
        str,
        typer.Option(
            "--progress", metavar="KIND", help="bar, json (one event a line, as it goes) or none."
        ),
    ] = "bar",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from this replica's own checkpoint.")
    ] = False,
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="URL",
            envvar="SYNCLINE_CONTROL",
            help="The control plane to join a run of; without it the replica trains alone.",
        ),
    ] = None,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Train one replica of a job, in a run or alone.

    It takes part in a run if there is a control plane, and trains alone otherwise. With --json
    standard output is how it ended, as one object; progress goes to standard error.

    \b
    Examples:
      syncline train job.toml
      syncline train job.toml --control http://10.0.0.5:8500 --replica gpu-box-3 --ranks 8
      syncline train job.toml --set optimizer.lr=1e-3 --resume
      syncline train job.toml --json > ending.json
    """
    from syncline.launch.commands import trainer
    from syncline_proto.errors import ConfigError

    if progress not in ("bar", "json", "none"):
        raise ConfigError(f"--progress {progress} is not one of bar, json, none.")
    argv = trainer(
        job,
        run=run,
        replica=replica,
        ranks=ranks,
        overrides=overrides or [],
        progress=progress,
        resume=resume,
        as_json=as_json,
    )
    given = {"SYNCLINE_CONTROL": control, "SYNCLINE_TOKEN": token}
    # The trainer takes this process's place, so signals and the terminal are its own.
    os.execve(argv[0], argv, os.environ | {key: value for key, value in given.items() if value})


def export(
    run: RunName,
    out: ModelFolder,
    data: TokenizerData = None,
    overwrite: Overwrite = False,
    control: Control = DEFAULT_CONTROL,
    token: Token = None,
    as_json: Json = False,
) -> None:
    """Write a run's merged model for transformers.

    Taking it changes nothing in the run and may be done while it goes on. Of a run of your own
    training loop, whose model nobody else knows, it writes the parameters for torch.

    \b
    Examples:
      syncline export my-run --out model
      syncline export my-run --out model --control http://10.0.0.5:8500 --json
    """
    from syncline_proto.addresses import control_url

    # All that can be seen before what takes seconds to load.
    control = control_url(control)
    check_out(out, overwrite=overwrite)
    with connect(control, token) as client:
        client.run(run)
    keep_quiet()
    say = teller(as_json)
    say("Loading PyTorch and transformers ...")
    with uncollected():
        from syncline.train.export import export_run

    made = export_run(run, control, out, token=token, data=data, overwrite=overwrite, say=say)
    show_exported(made, as_json)


def check_out(out: str, *, overwrite: bool) -> None:
    """Refuse a folder to export to that cannot be written, or where others keep what is to stay.

    Raises:
        ConfigError: it is one.
    """
    from syncline.train.exported import check_free
    from syncline.train.writable import check_not_stored, check_writable
    from syncline_proto.errors import ConfigError
    from syncline_proto.manifest import MANIFEST

    if not out:  # ``Path`` makes it the folder one is in
        raise ConfigError("--out is empty; name a folder.")
    folder = Path(out)
    check_not_stored(folder)
    check_writable(folder)
    if (folder / MANIFEST).exists():  # who removes the model later would take it along
        raise ConfigError(f"The folder {folder} is a checkpoint; choose another folder.")
    if not overwrite:
        check_free(folder, "choose another, or --overwrite")


def show_exported(made: Exported, as_json: bool) -> None:
    """Print what was exported, and where to."""
    model = os.path.abspath(made.model)
    done = {
        "run": made.run,
        "folder": os.path.abspath(made.folder),
        "model": model,
        "revision": made.revision,
        "committed_tokens": made.committed_tokens,
        "parameters": made.parameters,
    }
    output.show(
        done,
        as_json,
        lambda: (
            f"Revision {made.revision} of {made.run}, {output.count(made.parameters)} parameters "
            f"after {output.count(made.committed_tokens)} tokens, is in {model}."
        ),
    )


def sample(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder that export wrote.")],
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="What the text begins with.")
    ] = "def ",
    tokens: Annotated[
        int,
        typer.Option("--tokens", metavar="N", min=1, max=100_000, help="How many tokens to add."),
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature", metavar="T", min=0, max=10, help="0 takes the likeliest token."
        ),
    ] = 0.8,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="The same seed, the same text.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Load an exported model with transformers and let it write.

    \b
    Examples:
      syncline sample model --prompt "import "
      syncline sample model --prompt "def main" --temperature 0 --json
    """
    from syncline.train.exported import check_loadable

    check_loadable(Path(folder))  # before it is said that anything is loaded
    keep_quiet()
    teller(as_json)("Loading transformers; then the model writes ...")
    with uncollected():
        from syncline.train.sample import sample as write

    text = write(folder, prompt, max_new_tokens=tokens, temperature=temperature, seed=seed)
    done = {"folder": folder, "prompt": prompt, "text": text}
    if as_json:
        output.show(done, True, lambda: "")
    else:
        sys.stdout.write(text + "\n")


def teller(as_json: bool) -> Callable[[str], None]:
    """Return who tells a person what takes long; a program waits without a word."""
    return (lambda _: None) if as_json else output.note


def keep_quiet() -> None:
    """Keep what is not the result off standard output; a user's own setting wins."""
    from syncline.train.logs import configure_logs

    configure_logs()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
