"""The live page: what it answers, whom it refuses, and the whole of it in a browser.

Tests of: show.explorer, cli.showing.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fastindex as fi
from tests.cases.hangs import HANG_SECONDS
from tests.show.test_page import browser, in_browser  # noqa: F401

REQUIRED = "browser" in os.environ.get("FASTINDEX_REQUIRE", "")
if not REQUIRED:
    for library in ("starlette", "uvicorn", "httpx2"):
        pytest.importorskip(library, reason=f"{library} is not installed; pip install 'fastindex[test-browser]'")

ROOT = Path(__file__).resolve().parents[2]
PORT = 8123
TILED = "bf16[1024,1000]{1,0:T(8,128)(2,1)}"


@pytest.fixture
def client() -> Any:
    from starlette.testclient import TestClient

    from fastindex.show.explorer import application

    return TestClient(application(PORT), base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False)


def test_what_is_said_of_a_shape(client: Any) -> None:
    answer = client.get("/describe", params={"shape": "f32[100000,3]{1,0:T(8,128)}"}).json()
    assert answer["numbers"]["nbytes"] == 51_200_000
    assert answer["change"]["shape"] == "f32[100000,3]{0,1:T(4,128)}"
    assert answer["change"]["saved_nbytes"] == 51_200_000 - 4 * 100_096 * 4
    assert answer["suggestion"] == str(fi.layouts.suggest_tiles("f32[100000,3]"))


@pytest.mark.parametrize(
    ("typed", "field", "position", "message"),
    [
        ({"shape": "f32[3,x]"}, "shape", 6, "expected an integer"),
        ({"shape": ""}, "shape", 0, "expected"),
        ({"shape": "token[]"}, "shape", None, "is a token"),
        ({"shape": "f32[?]"}, "shape", None, "unbounded"),
        ({"shape": "f32[3]", "to": "f32[3"}, "to", 5, "expected"),
        ({"shape": "f32[3]", "to": "f32[4]"}, "to", None, "one array"),
        ({"shape": "f32[" + ",".join("1" * 13) + "]"}, "shape", None, "13 dimensions"),
        ({"shape": "f32[8]{0:T" + "(2)" * 9 + "}"}, "shape", None, "9 tiles"),
        ({"shape": "f" * 2001}, "shape", None, "2001 characters"),
    ],
)
def test_errors_name_their_field_and_column(
    client: Any, typed: dict[str, str], field: str, position: int | None, message: str
) -> None:
    answer = client.get("/describe", params=typed).json()
    assert (answer["field"], answer.get("position")) == (field, position)
    assert message in answer["error"]


def test_the_page_of_a_shape_is_that_of_the_command(client: Any) -> None:
    plan = fi.plan_relayout("f32[4,6]{1,0}", "f32[4,6]{0,1}")
    assert client.get("/page", params={"shape": TILED}).text == fi.draw(TILED).html()
    shapes = {"shape": str(plan.source), "to": str(plan.destination)}
    assert client.get("/page", params=shapes).text == fi.draw(plan).html()
    assert client.get("/page", params={"shape": "f32["}).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": f"localhost:{PORT}"}, 200),
        ({"origin": f"http://127.0.0.1:{PORT}"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": f"evil.example:{PORT}"}, 403),
        ({"host": f"127.0.0.1:{PORT + 1}"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": f"http://127.0.0.1:{PORT + 1}"}, 403),
        ({"origin": "null"}, 403),
    ],
)
def test_others_are_refused(client: Any, headers: dict[str, str], status: int) -> None:
    for path in ("/", "/describe?shape=f32[3]", "/page?shape=f32[3]"):
        assert client.get(path, headers=headers).status_code == status


def test_nothing_of_the_disk_is_served(client: Any) -> None:
    for path in ("/../pyproject.toml", "/etc/passwd", "/server.py", "/%2e%2e/%2e%2e/etc/passwd", "/static/x"):
        assert client.get(path).status_code == 404
    assert client.post("/describe").status_code == 405
    assert client.get("/describe?shape=" + "%20" * 10_000).status_code == 414


def test_responses_load_nothing_from_elsewhere(client: Any) -> None:
    for path in ("/", "/page?shape=f32[3]"):
        policy = client.get(path).headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "frame-ancestors 'self'" in policy


# The command


@pytest.fixture
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "fastindex", "explore", TILED, "--no-browser"]
    # A separate group, with Ctrl-C as a terminal gives it.
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    try:
        yield line
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=HANG_SECONDS)
        assert process.returncode in (0, 130, -signal.SIGINT), errors
        assert "Traceback" not in errors


def test_the_command_serves_and_stops(address: str) -> None:
    assert address.startswith("http://127.0.0.1:")
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with directly.open(address, timeout=HANG_SECONDS) as response:
        assert b"fastindex explore" in response.read()


def test_idle_connections_block_no_user(address: str) -> None:
    port = int(address.partition("//127.0.0.1:")[2].partition("/")[0])
    idle = [socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) for _ in range(40)]
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with directly.open(address, timeout=HANG_SECONDS) as response:
        assert response.status == 200
    # The oldest were closed, and the latest are open.
    assert idle[0].recv(1) == b""
    idle[-1].sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    assert idle[-1].recv(12) == b"HTTP/1.1 200"
    for one in idle:
        one.close()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: 127"])
def test_a_connection_without_a_request_is_closed(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastindex.show import explorer as server

    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.05)
    found: list[str] = []
    announced = threading.Event()

    def announce(address: str) -> None:
        found.append(address)
        announced.set()

    served: list[Any] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: served.append(self) or _run(self, sockets))
    thread = threading.Thread(target=server.serve, args=(0, announce))
    thread.start()
    try:
        assert announced.wait(HANG_SECONDS)
        port = int(found[0].rpartition(":")[2].rstrip("/"))
        with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as one:
            one.sendall(sent)
            assert one.recv(1) == b""
    finally:
        served[0].should_exit = True
        thread.join(HANG_SECONDS)


def _run(server: Any, sockets: Any) -> None:
    import asyncio

    asyncio.run(server.serve(sockets=sockets))


@in_browser
def test_typing_in_a_browser(address: str, browser: Any) -> None:  # noqa: F811
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(address)
    assert page.input_value("#shape") == TILED
    frame = page.frame_locator("#page")
    frame.locator("#element").fill("9, 130")
    frame.locator("#element").press("Enter")
    assert "slot 9,221" in frame.locator("#status").inner_text()
    page.fill("#shape", "f32[100000,3]{1,0:T(8,128)}")
    expect(page).to_have_title(re.compile(r"^f32\[100000,3\]"))
    # The ratio stands once, with its cause; above it a link to the cheapest fix.
    assert "42.7" not in page.inner_text("#told")
    assert "51,200,000 bytes: 42.7 times the bytes of the elements" in frame.locator("#facts").inner_text()
    assert page.inner_text("#told a") == "f32[100000,3]{0,1:T(4,128)}"
    # One scroll bar: that of the frame.
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.fill("#shape", "f32[3,x]")
    expect(page.locator("#shape-wrong")).not_to_be_empty()
    caret, message = page.text_content("#shape-wrong").split("\n")[:2]
    assert caret == " " * 6 + "^"
    assert "expected an integer" in message
    link = f"{address.split('?')[0]}?shape=f32%5B3%2C5%5D"
    page.goto(link)
    expect(page).to_have_title(re.compile(r"^f32\[3,5\]\{1,0\}"))
    page.fill("#shape", "")
    examples = page.locator("#told a")
    expect(examples).to_have_count(4)
    typed = examples.nth(2).inner_text()
    examples.nth(2).click()
    expect(page.locator("#shape")).to_have_value(typed)
    expect(page).to_have_title(re.compile("^" + re.escape(typed)))
    page.close()
    assert wrong == []
