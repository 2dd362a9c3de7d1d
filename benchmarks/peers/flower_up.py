"""Submit Flower's app to the SuperLink once that listens, and show its log; its end is a fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from peers.gate import me, place, wait_for

APP = Path(__file__).parent / "flower_app"


def main() -> None:
    _, participants, parameters = me()
    where = place()
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "round"\n\n'
        f'[superlink.round]\naddress = "{where["superlink"]}"\ninsecure = true\n'
    )
    wait_for(where["superlink"])
    config = f"parameters={parameters} participants={participants}"
    flwr = str(Path(sys.executable).with_name("flwr"))
    subprocess.run([flwr, "run", str(APP), "round", "--run-config", config, "--stream"], check=True)
    raise SystemExit("Flower's run has ended by itself.")


if __name__ == "__main__":
    main()
