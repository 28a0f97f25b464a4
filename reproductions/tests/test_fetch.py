# SPDX-License-Identifier: Apache-2.0
"""Fetching, from a server on this machine that lies, stalls and cuts off; and what converters make of files."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from veilwood.errors import FileError, UseError, VeilwoodError
from veilwood_papers import convert, fetch, tables
from veilwood_papers import convert as sources
from veilwood_papers.convert import Origin
from veilwood_testing.errors import rejects

TRUE_ROWS = [[f"{i}.5", "a" if i % 2 else "b"] for i in range(3000)]
BODY = "\n".join(",".join(row) for row in TRUE_ROWS).encode() + b"\n"
FACTS: dict[str, Any] = {
    "name": "toy", "task": "classification", "target": "c", "licence": "CC0",
    "columns": [{"name": "x", "kind": "numeric", "lower": 0, "upper": 9999},
                {"name": "c", "kind": "categorical", "values": ["a", "b"]}],
}  # fmt: skip
FACTS["sha256"] = tables.hash_of_rows(["x", "c"], TRUE_ROWS, FACTS)


class Server(ThreadingHTTPServer):
    """Answers in the way of each address, and notes what was asked."""

    daemon_threads = True
    requests: list[tuple[str, str]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        way, wanted = self.path.strip("/"), self.headers.get("Range", "")
        self.server.requests.append((way, wanted))
        first = sum(name == way for name, _ in self.server.requests) == 1
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and way != "deaf" else 0
        body = BODY.replace(b"7.5,a", b"7.5,b", 1) if way == "lies" else BODY
        if way == "broken":
            self.send_error(500)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if way != "untold":
            self.send_header("Content-Length", str(10**12 if way == "endless" else len(body) - start))
        self.end_headers()
        cut_off = way == "alwayscuts" or (way in ("cuts", "stalls", "deaf") and first)
        self.wfile.write(body[start : start + 5000] if cut_off else body[start:])
        self.wfile.flush()
        if way == "stalls" and first:
            time.sleep(1.5)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.requests = []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def address(server: Server, way: str) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/{way}"


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make one data set known, at an address of choice."""

    def known(where: str) -> None:
        monkeypatch.setattr(fetch, "known_tables", lambda: {"toy": FACTS})
        monkeypatch.setattr(fetch, "SOURCES", {"toy": Origin(convert.as_they_are, "nobody", address=where)})

    return known


@pytest.mark.parametrize("way", ["honest", "cuts", "stalls", "deaf", "untold"])
def test_an_honest_file_comes_whole_whatever_happens_on_the_way(
    way: str, server: Server, toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy(address(server, way))
    monkeypatch.setattr(fetch.download_file, "__kwdefaults__", {"silence": 0.4, "attempts": 4})
    lines: list[str] = []
    path = fetch.fetch_table("toy", tmp_path, lines.append)
    assert tables.hash_of_file(path, FACTS) == FACTS["sha256"]
    assert (tmp_path / "toy.json").exists()
    assert not list(tmp_path.rglob("*.part"))
    assert "CC0" in lines[-1]
    assert "Cite: nobody" in lines[-1]
    assert "address not tried" in lines[0]
    if way in ("cuts", "stalls"):
        assert server.requests[1] == (way, "bytes=5000-"), "it goes on where it was"
    n_requests = len(server.requests)
    fetch.fetch_table("toy", tmp_path)
    assert len(server.requests) == n_requests, "what is here is not fetched again"


def test_a_lie_is_thrown_away(server: Server, toy: Any, tmp_path: Path) -> None:
    toy(address(server, "lies"))
    with rejects(FileError, raised_in="fetch_table"):
        fetch.fetch_table("toy", tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    toy(address(server, "honest"))
    assert fetch.fetch_table("toy", tmp_path).exists()


def test_a_false_file_in_the_cache_is_fetched_again(server: Server, toy: Any, tmp_path: Path) -> None:
    toy(address(server, "honest"))
    (tmp_path / "toy.csv.gz").write_bytes(tables.packed_rows(["x", "c"], TRUE_ROWS[:-1]))
    assert tables.hash_of_file(fetch.fetch_table("toy", tmp_path), FACTS) == FACTS["sha256"]


def test_what_is_cut_off_for_ever_is_an_error_and_kept(server: Server, tmp_path: Path) -> None:
    with rejects(FileError, raised_in="download_file"):
        fetch.download_file(address(server, "alwayscuts"), tmp_path, silence=0.4, attempts=2)
    assert (tmp_path / "alwayscuts.part").stat().st_size == 10_000
    path = fetch.download_file(address(server, "alwayscuts"), tmp_path, silence=0.4, attempts=12)
    assert path.read_bytes() == BODY


@pytest.mark.parametrize(("way", "words"), [("broken", "500"), ("endless", "more than any")])
def test_a_server_that_fails_or_floods_is_an_error(way: str, words: str, server: Server, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=words):
        fetch.download_file(address(server, way), tmp_path, silence=0.4, attempts=2)


def test_only_the_web_is_asked(tmp_path: Path) -> None:
    with rejects(UseError, raised_in="download_file"):
        fetch.download_file("file:///etc/passwd", tmp_path)


def test_names_that_cannot_be_fetched_are_refused() -> None:
    assert fetch.names_to_fetch([]) == list(sources.SOURCES)
    for name, words in (("car", "comes with the library"), ("higgs", "no public origin"), ("nothing", "no such")):
        with pytest.raises(VeilwoodError, match=words):
            fetch.names_to_fetch([name])


# -- converters ---------------------------------------------------------------------------------------------------
