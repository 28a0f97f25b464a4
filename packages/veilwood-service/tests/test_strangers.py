# SPDX-License-Identifier: Apache-2.0
"""What strangers and busy callers cost: nothing is read before it is known who asks, and no request holds up others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")

import uvicorn

from veilwood.errors import ParameterError
from veilwood_service import app, commands, predictions, routes_models
from veilwood_testing.running_service import CAR, Running, listening, serving

MIB = 1 << 20


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, str, str]]:
    """A listening service, its address and a model."""
    with serving(tmp_path_factory.mktemp("strangers")) as running:
        running.add_cars()
        model = running.trained()
        with listening(running) as address:
            yield running, address, model


def send(address: str, text: str) -> tuple[str, float]:
    """Send the start of a request, and return what comes back until the connection ends, and how long that took."""
    host, port = address.removeprefix("http://").split(":")
    start = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(text.encode())
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received.decode(), time.monotonic() - start


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [("/v1/models/x/answers", 8 * MIB, 401), ("/v1/datasets", 100, 401), ("/v1/session", MIB, 413)],
)
def test_no_body_of_a_stranger_is_read(place: tuple[Running, str, str], path: str, length: int, status: int) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    answer, _ = send(place[1], head)  # the body is never sent: whoever waits for it never answers
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "connection: close" in answer.lower()


def test_slow_headers_and_bodies_end(place: tuple[Running, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_HEADER_SECONDS", 0.3)
    monkeypatch.setattr(app, "_BODY_SECONDS", 0.3)
    for sent in ("", "GET /healthz HTTP/1.1\r\nHost: "):
        answer, seconds = send(place[1], sent)
        assert (answer, seconds < 10) == ("", True), sent
    answer, seconds = send(
        place[1], "POST /v1/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n{"
    )
    assert (answer.split()[1], seconds < 10) == ("408", True)


def test_private_answers_that_wait_hold_up_nobody_else(
    place: tuple[Running, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, address, _ = place
    gate, entered = threading.Event(), threading.Semaphore(0)

    def wait(*_: Any) -> Any:
        entered.release()
        gate.wait(60)
        return {"labels": [], "certificate": {}, "answered": ""}

    monkeypatch.setattr(running.service.private_queries, "answer_batch", wait)
    headers = {"Authorization": f"Bearer {running.tokens['analyst']}"}
    with httpx.Client(base_url=address, headers=headers, timeout=60) as client, ThreadPoolExecutor(64) as pool:
        asked = [pool.submit(client.post, "/v1/models/x/answers", json={"rows": [{}]}) for _ in range(64)]
        for _ in range(32):  # every thread of this kind is taken, and as many wait
            assert entered.acquire(timeout=30)
        start = time.monotonic()
        with httpx.Client(base_url=address, headers=headers, timeout=60) as other:
            assert [other.get(path).status_code for path in ("/readyz", "/healthz", "/v1/datasets")] == [200] * 3
        seconds = time.monotonic() - start
        gate.set()
        assert {future.result().status_code for future in asked} == {200}
    assert seconds < 10


def test_long_bodies_are_parsed_outside_the_event_loop(
    place: tuple[Running, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running, address, model = place
    threads, parse = set[str](), routes_models._parse_json_rows

    def recorded(*given: Any) -> Any:
        threads.add(threading.current_thread().name)
        return parse(*given)

    monkeypatch.setattr(routes_models, "_parse_json_rows", recorded)
    headers = {"Authorization": f"Bearer {running.tokens['analyst']}"}
    rows = {"rows": CAR.X.to_dict("records") * 5}
    found = httpx.post(f"{address}/v1/models/{model}/predict", json=rows, headers=headers, timeout=60)
    assert (found.status_code, len(threads), "AnyIO" in threads.pop()) == (200, 1, True)


def test_a_prediction_that_breaks_leaves_nobody_waiting(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError

    model = running.trained()
    monkeypatch.setattr(predictions, "predict_rows", broken)
    rows = {"rows": CAR.X[:1].to_dict("records")}
    assert running.ask("analyst", "POST", f"/v1/models/{model}/predict", json=rows).status_code == 500


@pytest.mark.parametrize("proxy", ["*", "0.0.0.0/0", "::/0", "proxy.example"])
def test_every_client_could_forge_its_address_behind_a_star(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ParameterError) as raised:
        commands.serve(tmp_path / "service", proxy=["127.0.0.1", proxy])
    assert raised.value.name == "proxy"
    assert not (tmp_path / "service").exists()


def test_whom_other_machines_can_reach_without_tls_is_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = list[Any]()
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: configs.append(server.config))
    monkeypatch.setattr(commands, "_check_port", lambda *_: None)
    monkeypatch.setattr("veilwood_service.access.configure_logging", lambda *_: None)
    for host, warned in (("0.0.0.0", True), ("127.0.0.1", False)):
        commands.serve(tmp_path / "service", host=host)
        assert ("Warning" in capsys.readouterr().err) == warned
        assert configs[-1].app.state.service.settings.address == "http://127.0.0.1:8400"
    assert configs[-1].http is app.HeaderTimeoutProtocol
    assert configs[-1].limit_concurrency
