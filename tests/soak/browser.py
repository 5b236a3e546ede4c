"""A headless Chromium, driven through its debugging pipe: no driver and no library in between."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

__all__ = ["Browser", "Tab", "browser", "find_chromium"]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_PATIENCE_S = 30.0


def find_chromium() -> str:
    """Return the path of a Chromium; raise SystemExit with the way to get one."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise SystemExit("no Chromium found: install one (Debian: apt-get install chromium), or name it with CHROMIUM=")
    return found


class Browser:
    """The connection to a browser: messages end with a zero byte."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._rest = b""
        self._sent = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come meanwhile are kept."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._read_from, 1 << 20)
            if not more:
                raise AssertionError("the browser has ended")
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def open(self, url: str, width: int, height: int, *, dark: bool = False) -> Tab:
        """Open a page in a tab of a size; a narrow tab is a phone."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        phone = width < 600
        tab.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = "dark" if dark else "light"
        tab.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.send("Emulation.setScrollbarsHidden", hidden=True)
        for domain in ("Page", "Runtime", "Log"):
            tab.send(f"{domain}.enable")
        tab.send("Page.navigate", url=url)
        return tab


class Tab:
    """A page of the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.send(method, self._session, **params)

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)["result"]
        return result.get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true, and return its value."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := self.value(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"never true: {expression}")
            time.sleep(0.1)
        return found

    def press(self, key: str, code: int) -> None:
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Return what the browser said of errors: exceptions, blocked loads, refused addresses."""
        self.value("1")  # all earlier events are read with this answer
        found = []
        for event in self._browser.events:
            if event.get("sessionId") != self._session:
                continue
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found


@contextmanager
def browser() -> Iterator[Browser]:
    """Run a browser with an empty profile of its own."""
    to_it, our_end = os.pipe()
    our_read, from_it = os.pipe()

    # the browser reads commands from descriptor 3 and writes answers to descriptor 4
    as_expected = ["bash", "-c", f'exec "$0" "$@" 3<&{to_it} 4>&{from_it}']
    with TemporaryDirectory() as profile:
        options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage")
        command = [
            *as_expected,
            find_chromium(),
            *options,
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(to_it, from_it)
        ) as process:
            os.close(to_it)
            os.close(from_it)
            try:
                yield Browser(our_end, our_read)
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                os.close(our_end)
                os.close(our_read)
                time.sleep(0.5)  # its children still write to the profile
