"""A real Chromium without a window, driven over its own pipe: no driver, no port, no package.

``Browser`` is a context manager that leaves no process. What a page throws or logs as an error is
kept in ``faults``.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from syncline_testing.waiting import wait_until

ANSWER_S = SHOWN_S = 30.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--remote-debugging-pipe", "--window-size=1280,900"),
)


def found() -> str | None:
    """The browser's program; None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


class Browser:
    """One page of a new browser, with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        program = found()
        assert program is not None
        self.faults: list[str] = []
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        argv = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        # Chromium reads file 3 and writes file 4.
        plumbing = f'exec "$@" 3<&{their_in} 4>&{their_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", plumbing, "bash", *argv],
            pass_fds=(their_in, their_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(their_in)
        os.close(their_out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str) -> None:
        """Show a page; nothing of it is waited for."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self._call("Runtime.enable")
        self._call("Page.enable")
        self._call("Page.navigate", url=url)

    def says(self, expression: str) -> Any:
        """What a JavaScript expression comes to in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def shows(self, expression: str) -> None:
        """Wait until a JavaScript expression holds in the page."""
        wait_until(lambda: bool(self.says(expression)), SHOWN_S, expression, lambda: self.faults)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        asked: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        end = time.monotonic() + ANSWER_S
        while (left := end - time.monotonic()) > 0:
            while b"\0" in self._rest:
                line, _, self._rest = self._rest.partition(b"\0")
                told = json.loads(line)
                if told.get("id") == self._count:
                    assert "error" not in told, told
                    return told["result"]
                self._hear(told)
            if select.select([self._in], [], [], left)[0]:
                self._rest += os.read(self._in, 1 << 16)
        raise AssertionError(f"the browser did not answer {method} within {ANSWER_S:g} s")

    def _hear(self, told: dict[str, Any]) -> None:
        given = told.get("params", {})
        if told.get("method") == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        elif told.get("method") == "Runtime.consoleAPICalled" and given["type"] == "error":
            self.faults.append(json.dumps(given["args"]))
