"""A headless Chromium for tests, driven over the DevTools protocol. Nothing but apt's chromium and the websockets
package is needed."""

import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from websockets.sync.client import connect

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update "
    "--disable-sync --disable-dev-shm-usage --hide-scrollbars --mute-audio --remote-debugging-port=0"
).split()
SECONDS = 60.0


def find_chromium():
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Browser:
    """`with Browser() as browser: browser.open(address)`, then `evaluate`, `wait`, `screenshot`; `requests` has every
    address asked for."""

    def __init__(self, width=1280, height=900):
        self.size = width, height
        self.requests, self.errors, self.sent = [], [], 0

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="chromium-")
        size = f"--window-size={self.size[0]},{self.size[1]}"
        command = [find_chromium(), *FLAGS, size, f"--user-data-dir={self.folder}", "about:blank"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self.attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def attach(self):
        file, deadline = Path(self.folder) / "DevToolsActivePort", time.monotonic() + SECONDS
        while not file.is_file() or not file.read_text().strip():
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError("Chromium did not start.")
            time.sleep(0.05)
        port = file.read_text().split()[0]
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            if pages:
                break
            time.sleep(0.05)
        self.socket = connect(pages[0]["webSocketDebuggerUrl"], max_size=None, open_timeout=SECONDS)
        for domain in ("Page", "Runtime", "Network"):
            self.call(f"{domain}.enable")

    def __exit__(self, *_):
        with contextlib.suppress(AttributeError, OSError):
            self.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def note(self, message):
        if message.get("method") == "Network.requestWillBeSent":
            self.requests.append(message["params"]["request"]["url"])
        elif message.get("method") == "Network.webSocketCreated":
            self.requests.append(message["params"]["url"])
        elif message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])

    def call(self, method, **params):
        self.sent += 1
        self.socket.send(json.dumps({"id": self.sent, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv(timeout=SECONDS))
            if message.get("id") == self.sent:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.note(message)

    def open(self, address):
        self.call("Page.navigate", url=address)

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description") or "the page threw")
        return result["result"].get("value")

    def wait(self, expression, seconds=SECONDS):
        """Until the expression is true → its value"""
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(RuntimeError):  # the page may not be there yet
                value = self.evaluate(expression)
                if value:
                    return value
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Within {seconds:.0f} s this did not become true in the page: {expression}. Errors: {self.errors}"
                )
            time.sleep(0.05)

    def resize(self, width, height, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def screenshot(self, path=None, whole=False):
        """→ PNG bytes"""
        picture = base64.b64decode(
            self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        )
        if path:
            Path(path).write_bytes(picture)
        return picture

    def heap(self):
        """Bytes that the page's JavaScript holds, after a collection"""
        self.call("HeapProfiler.collectGarbage")
        return int(self.call("Runtime.getHeapUsage")["usedSize"])
