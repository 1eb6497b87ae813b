"""Real Chromium, driven over its debugging pipe: no driver, no port, no other package.

`CHROMIUM` names it where it is not on the path; without it these tests are skipped.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Longer than anything here takes on a slow and busy machine; only what never happens takes longer.
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.05
READ_BYTES = 1 << 20
OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# The debugging pipe's numbers: Chromium reads from the first and writes to the second.
THEIRS_IN, THEIRS_OUT = 3, 4


class NoAnswerError(AssertionError):
    """The page could not say: an expression failed, or there is no page at the moment."""


class Browser:
    """One page: a few verbs, and every error that its console heard."""

    def __init__(self, program: str, folder: Path) -> None:
        theirs_in, self._write = os.pipe()
        self._read, theirs_out = os.pipe()
        command = f'exec {THEIRS_IN}<&{theirs_in} {THEIRS_OUT}>&{theirs_out} && exec "$@"'
        words = ["bash", "-c", command, "chromium", program, *OPTIONS, f"--user-data-dir={folder}", "about:blank"]
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            words, pass_fds=(theirs_in, theirs_out), stdin=quiet, stdout=quiet, stderr=quiet
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer, self._number, self._session = b"", 0, None
        self.errors: list[str] = []
        self._session = self.call("Target.attachToTarget", targetId=self._page(), flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def _page(self) -> str:
        """The page that it opens with, which on a busy machine takes a moment."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for target in self.call("Target.getTargets")["targetInfos"]:
                if target["type"] == "page":
                    return str(target["targetId"])
            time.sleep(POLL_SECONDS)
        raise AssertionError("Chromium opened no page")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                if "error" in said:
                    raise NoAnswerError(f"{method}: {said['error']}")
                result: dict[str, Any] = said["result"]
                return result
            self._note(said)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], PATIENCE_SECONDS)
            assert ready, "Chromium says nothing any more"
            self._buffer += os.read(self._read, READ_BYTES)
        message, _, self._buffer = self._buffer.partition(b"\0")
        said: dict[str, Any] = json.loads(message)
        return said

    def _note(self, said: dict[str, Any]) -> None:
        told = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"]))
        elif said.get("method") == "Log.entryAdded" and told["entry"]["level"] == "error":
            self.errors.append(told["entry"]["text"])
        elif said.get("method") == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            self.errors.append(json.dumps(told["args"]))

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """The page at this size, loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        # The page that is left is marked, as it may have the same address.
        self.evaluate("window.left = true")
        self.call("Page.navigate", url=page.as_uri())
        there = f"!window.left && location.href === {json.dumps(page.as_uri())}"
        self.wait_for(f"{there} && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise NoAnswerError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true; gives its value. While one page gives way to the next, it is not."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := self._value_if_any(expression)):
            assert time.monotonic() < deadline, f"waited in vain for {expression}"
            time.sleep(POLL_SECONDS)
        return found

    def _value_if_any(self, expression: str) -> Any:
        try:
            return self.evaluate(expression)
        except NoAnswerError:
            return None

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium is."""
    found = os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is not installed; name it with CHROMIUM")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser with one page."""
    opened = Browser(chromium, tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()
