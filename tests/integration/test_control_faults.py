"""Faults of our own: they end the control plane with one sentence, never in silence."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from syncline_control import command, server
from syncline_control.operations import replicas, runs
from syncline_control.pulse import Pulse
from syncline_control.settings import ControlSettings
from syncline_control.state import State
from syncline_control.transaction import Transaction
from syncline_proto.errors import StoreError, SynclineError
from syncline_proto.rest import Heartbeat, ReplicaRegister, RunCreate


async def serve(folder: Path) -> signal.Signals:
    settings = ControlSettings(port=0, database=str(folder / "c.db"))
    return await asyncio.wait_for(server.serve(settings), 30)


def test_a_server_that_nobody_can_lose_a_lease_at_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_state: State) -> float:
        raise ZeroDivisionError

    monkeypatch.setattr(State, "review_leases", broken)
    with pytest.raises(SynclineError, match="Leases are looked after no more") as caught:
        asyncio.run(serve(tmp_path))
    assert caught.value.exit_code == 1


def test_a_server_that_cannot_start_does_not_end_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: Any, on_fault: Callable[[], None], **_more: Any) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
            raise ZeroDivisionError
            yield

        return FastAPI(lifespan=lifespan)

    monkeypatch.setattr(server, "create_app", broken)
    with pytest.raises(SynclineError, match="could not start") as caught:
        asyncio.run(serve(tmp_path))
    assert caught.value.exit_code == 1


def test_any_other_fault_is_one_sentence_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_flags: dict[str, Any]) -> ControlSettings:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr(command, "resolved", broken)
    monkeypatch.setattr(sys, "argv", ["syncline-control"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said == (
        "syncline-control: A fault of ours (ZeroDivisionError: by nought); please report it."
    )


def test_ctrl_c_before_it_listens_is_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_flags: dict[str, Any]) -> ControlSettings:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "resolved", interrupted)
    monkeypatch.setattr(sys, "argv", ["syncline-control"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert (end.value.code, capsys.readouterr().err) == (130, "Interrupted.\n")


FULL = "CREATE TRIGGER full BEFORE UPDATE ON replicas BEGIN SELECT RAISE(FAIL, 'full'); END"


@pytest.mark.parametrize(
    ("refuse", "take"),
    [("PRAGMA query_only = 1", "PRAGMA query_only = 0"), (FULL, "DROP TRIGGER full")],
    ids=["reviews fail, too", "reviews, which write nothing, go on"],
)
def test_nobody_loses_a_lease_while_the_database_takes_no_writes(
    tmp_path: Path, refuse: str, take: str
) -> None:
    now = [1000.0]

    async def scenario() -> None:
        async with await State.open(str(tmp_path / "c.db"), clock=lambda: now[0]) as state:
            await state.do(runs.create, RunCreate(name="r"))
            await state.do(replicas.register, "r", ReplicaRegister(replica="a"))
            pulse, beat = Pulse(state), Heartbeat(incarnation=1)
            await state.review_leases()
            await state.do(_said, refuse)
            now[0] += 5.0
            with pytest.raises(StoreError):
                await pulse.beat("r", "a", beat)
            assert state.writes_fail
            looks = 0
            for _ in range(9):  # past the lease of 10 s
                now[0] += 1.0
                with contextlib.suppress(StoreError):
                    await state.review_leases()
                    looks += 1
            assert (looks > 0) is (refuse is FULL)
            await state.do(_said, take)
            answer = await pulse.beat("r", "a", beat)
            assert answer.lease_s == 10.0
            assert not state.writes_fail

    asyncio.run(scenario())


def _said(tx: Transaction, words: str) -> None:
    tx.session.execute(text(words))
