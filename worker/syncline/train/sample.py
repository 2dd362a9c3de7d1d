"""Loading an exported folder with ``transformers`` alone, and generating from a prompt.

It uses nothing of a job or a run: what this can load, anybody can.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from syncline.train.exported import check_loadable
from syncline_proto.errors import ConfigError, SynclineError

PROMPT = "def "

SAID_MAX = 160
"""Letters of what a library says; the longest list every class there is."""


def sample(
    folder: str | Path,
    prompt: str = PROMPT,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.8,
    top_k: int = 50,
    seed: int = 0,
) -> str:
    """The prompt and what the model makes of it; temperature 0 takes the likeliest token always.

    Raises:
        FileMissing: the folder holds no exported model.
        ConfigError: transformers cannot load what it holds, or the prompt is empty.
    """
    folder = Path(folder)
    check_loadable(folder)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from syncline.train.model import without_bars

    tokenizer: Any = _loaded("tokenizer", AutoTokenizer, folder)
    with without_bars():
        model: Any = _loaded("model", AutoModelForCausalLM, folder)
    inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise ConfigError("the prompt is empty; give at least one character.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generated = model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            pad_token_id=tokenizer.eos_token_id,
            do_sample=temperature > 0,
            **({"temperature": temperature, "top_k": top_k} if temperature > 0 else {}),
        )
    return tokenizer.decode(generated[0], skip_special_tokens=True)


def _loaded(what: str, kind: Any, folder: Path) -> Any:
    try:
        return kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers, tokenizers and safetensors each raise their own
        said = " ".join(str(error).split())[:SAID_MAX].rstrip(" .:") or type(error).__name__
        raise ConfigError(
            f"the {what} in {folder} cannot be loaded ({said}); "
            f"write the folder anew with: syncline export RUN --out {folder} --overwrite."
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a sample; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m syncline.train.sample", description="Sample from an exported model."
    )
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--top-k", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    try:
        sys.stdout.write(sample(given.pop("folder"), given.pop("prompt"), **given) + "\n")
    except SynclineError as error:
        sys.stderr.write(f"{error.message}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
