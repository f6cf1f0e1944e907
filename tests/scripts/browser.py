# SPDX-License-Identifier: Apache-2.0
"""A browser without a window, told what to do through a pipe."""

import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium-headless-shell", "chromium")
# It may reach nobody: a page that tries fails, and is seen to have tried.
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
           "--no-first-run", "--disable-background-networking", "--disable-component-update",
           "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe")


def find():
    """The path of a browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of one browser. Everything that it tells is kept in events."""

    def __init__(self, path, seconds=150):
        self.deadline = time.monotonic() + seconds
        self.events = []
        self.buffer = b""
        self.count = 0
        self.session = None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.to = os.pipe()
        self.answers, answers = os.pipe()
        # A browser reads commands from 3 and answers on 4; only a shell gives it just these.
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", path, *OPTIONS,
             f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError):
            os.close(self.to)  # it ends when nobody can tell it anything
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        self.profile.cleanup()

    def _receive(self):
        while b"\0" not in self.buffer:
            left = self.deadline - time.monotonic()
            if left <= 0 or not select.select([self.answers], [], [], left)[0]:
                raise TimeoutError("the browser is too slow")
            got = os.read(self.answers, 1 << 16)
            if not got:
                raise RuntimeError("the browser has ended")
            self.buffer += got
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def tell(self, method, **parameters):
        """The result of a command of the DevTools protocol."""
        self.count += 1
        command = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.to, json.dumps(command).encode() + b"\0")
        while (message := self._receive()).get("id") != self.count:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def value(self, script):
        """What an expression of JavaScript is."""
        done = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait_for(self, script):
        while not self.value(script):
            time.sleep(0.1)
            if time.monotonic() > self.deadline:
                raise TimeoutError(f"never true: {script}")

    def look_as(self, width, scheme="light"):
        self.tell("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=800,
                  deviceScaleFactor=1, mobile=False)

    def errors(self):
        """What has gone wrong in the page, as it told."""
        return [event["params"] for event in self.events
                if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")
                or (event["method"] == "Runtime.consoleAPICalled"
                    and event["params"]["type"] in ("error", "warning"))]

    def requests(self):
        """The addresses that the page has asked for."""
        return [event["params"]["request"]["url"] for event in self.events
                if event["method"] == "Network.requestWillBeSent"]
