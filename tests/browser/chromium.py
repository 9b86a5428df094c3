"""A headless Chromium by the WebDriver protocol: plain HTTP and JSON to Debian's chromium-driver.

Selenium would bring five packages for the dozen calls that these tests make.
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

DRIVER, BROWSER = shutil.which("chromedriver"), shutil.which("chromium")
MISSING = "needs the Debian packages chromium and chromium-driver"
_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
KEYS = {"Escape": "\ue00c", "Enter": "\ue007", "Right": "\ue014", "Left": "\ue012", "Tab": "\ue004"}


class Browser:
    """One window of one session."""

    def __init__(self, session: str) -> None:
        self._session = session

    def open(self, page: Path, fragment: str = "") -> None:
        """Opens a file and waits until it says that it is drawn; what was logged before is forgotten."""
        self._ask("POST", "/url", {"url": "about:blank"})
        self.requests()
        self.complaints()
        self._ask("POST", "/url", {"url": f"{page.resolve().as_uri()}{fragment}"})
        self.until("return document.body.dataset.ready === '1'")

    def run(self, script: str, *arguments: Any) -> Any:
        """Returns what `script` returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """Returns what `script` returns as soon as that is true; fails after `seconds`."""
        deadline = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            assert time.monotonic() < deadline, f"still not: {script}"
            time.sleep(0.02)
        return found

    def press(self, *keys: str) -> None:
        """Types keys as a keyboard does, to whatever has the focus."""
        typed = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": typed}]})

    def click(self, selector: str) -> None:
        """Clicks the first element that matches, where it is."""
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        self._ask("POST", f"/element/{next(iter(element.values()))}/click", {})

    def point_at(self, selector: str) -> None:
        """Moves the pointer to the middle of the first element that matches."""
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": element}
        self._ask("POST", "/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def resize(self, width: int, height: int) -> None:
        """Sets the size of the window, pixels."""
        self._ask("POST", "/window/rect", {"width": width, "height": height})

    def scheme(self, name: str) -> None:
        """Asks pages for the colour scheme "light" or "dark"."""
        media = {"features": [{"name": "prefers-color-scheme", "value": name}]}
        command = {"cmd": "Emulation.setEmulatedMedia", "params": media}
        self._ask("POST", "/goog/cdp/execute", command)

    def picture(self, path: Path) -> None:
        """Writes what the window shows, as PNG."""
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def complaints(self) -> list[str]:
        """Returns what came to the console since it was asked last."""
        return [row["message"] for row in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Returns the addresses that were asked for since it was asked last."""
        rows = self._ask("POST", "/se/log", {"type": "performance"})
        told = [json.loads(row["message"])["message"] for row in rows]
        return [it["params"]["request"]["url"] for it in told if it["method"] == "Network.requestWillBeSent"]

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return _http(method, self._session + path, body)


def _http(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        with error:
            raise AssertionError(json.load(error)["value"]["message"]) from None


@contextmanager
def chromium(profile: Path) -> Generator[Browser]:
    """Yields a browser with a fresh profile; it ends with the block."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [DRIVER, f"--port={port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            base = f"http://127.0.0.1:{port}"
            _patiently(lambda: _http("GET", f"{base}/status"))
            options = {"args": [*_FLAGS, f"--user-data-dir={profile}"], "binary": BROWSER}
            wanted = {
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = _http("POST", f"{base}/session", {"capabilities": {"alwaysMatch": wanted}})
            session = f"{base}/session/{made['sessionId']}"
            try:
                yield Browser(session)
            finally:
                _http("DELETE", session)
        finally:
            driver.terminate()


def _patiently(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + 30
    while True:
        try:
            return ask()
        except OSError:
            assert time.monotonic() < deadline, "chromedriver does not answer"
            time.sleep(0.05)
