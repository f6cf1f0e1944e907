# SPDX-License-Identifier: Apache-2.0
"""What the tests with foreign programs share: two ends, each accelerated or plain.

A test gets a Sandbox: a temporary folder, processes that end with it, free ports of loopback, and
the mix, which says for the server and for the client whether it runs under `farcall run`.
"""

import collections
import json
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from signal import SIGKILL, SIGTERM

Mix = collections.namedtuple("Mix", "server client")
MIXES = {
    "plain": Mix(False, False),
    "both": Mix(True, True),
    "server": Mix(True, False),  # only the server is accelerated
    "client": Mix(False, True),
}
HERE = pathlib.Path(__file__).resolve().parent
LOG_BYTES = 4000  # of what a failed process said


class Skip(Exception):
    """Something is not there; the text says what."""


class Failed(Exception):
    """A program did something else than it does without the library."""


def need(*programs):
    """The paths of programs; also those that only root has in its PATH."""
    places = os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin"
    found = [shutil.which(name, path=places) for name in programs]
    missing = [name for name, path in zip(programs, found) if path is None]
    if missing:
        raise Skip(f"not installed: {' '.join(missing)} (scripts/setup.sh programs)")
    return found if len(found) > 1 else found[0]


def expect(what, condition):
    if not condition:
        raise Failed(what)


def expect_equal(what, actual, expected):
    def short(value):
        text = repr(value)
        return text if len(text) < 300 else text[:300] + "…"
    if actual != expected:
        raise Failed(f"{what}: {short(actual)} instead of {short(expected)}")


class Process:
    """A started program; what it prints is in `log`, or in `out` and `log`."""

    def __init__(self, sandbox, name, process, log, out):
        self.sandbox, self.name, self.process, self.log, self.out = sandbox, name, process, log, out

    def text(self):
        said = "" if self.out.stat().st_size > LOG_BYTES else self.out.read_text(errors="replace")
        return said + self.log.read_text(errors="replace")[-LOG_BYTES:]

    def wait(self, seconds=60, codes=(0,)):
        """Its standard output, when it has ended well."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} hangs: no end within {seconds} s\n"
                         f"{self.sandbox.picture(self.process.pid)}{self.text()}") from None
        if codes is not None and code not in codes:
            raise Failed(f"{self.name} ended with {code}\n{self.text()}")
        return self.out.read_bytes()

    def signal(self, number):
        self.process.send_signal(number)

    def stop(self, seconds=20, number=SIGTERM):
        """Ends a server as its users do."""
        self.signal(number)
        return self.wait(seconds, codes=None)

    def program_pid(self):
        """`farcall run` stays as the parent of the program, to print the statistics."""
        pid = self.process.pid
        if os.readlink(f"/proc/{pid}/exe") != self.sandbox.farcall:
            return pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        return int(children.read_text().split()[0])

    def alive(self):
        return self.process.poll() is None


class Sandbox:
    def __init__(self, farcall, mix, seconds=None, seed=1):
        self.farcall, self.mix, self.seconds, self.seed = farcall, mix, seconds, seed
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="farcall-programs-"))
        self.started = []
        self.stats_files = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.started):
            # Each is the leader of a session of its own: what it forked ends with it.
            try:
                os.killpg(process.process.pid, SIGKILL)
            except ProcessLookupError:
                pass
            try:
                process.process.wait(10)
            except subprocess.TimeoutExpired:
                pass
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def port(kind=socket.SOCK_STREAM):
        """A port of loopback that nobody uses now."""
        with socket.socket(socket.AF_INET, kind) as free:
            free.bind(("127.0.0.1", 0))
            return free.getsockname()[1]

    def file(self, name, data=None):
        path = self.folder / name
        if data is not None:
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path

    def command(self, words, accelerated, settings=()):
        words = [str(word) for word in words]
        if not accelerated:
            return words
        stats = self.file(f"stats-{len(self.stats_files)}.json")
        self.stats_files.append(stats)
        return [self.farcall, "run", "--stats-json", str(stats), *settings, "--", *words]

    def start(self, words, accelerated=False, stdin=None, env=None, user=None, settings=(), cwd=None):
        number = len(self.started)
        out, log = self.file(f"out-{number}"), self.file(f"log-{number}")
        command = self.command(words, accelerated, settings)
        if user:
            command = [need("setpriv"), "--reuid", user, "--regid", user, "--init-groups", *command]
        with open(out, "wb") as out_file, open(log, "wb") as log_file, \
                open(stdin or os.devnull, "rb") as in_file:
            process = subprocess.Popen(
                command, stdin=in_file, stdout=out_file, stderr=log_file,
                start_new_session=True, cwd=cwd or self.folder, env={**os.environ, **(env or {})})
        started = Process(self, pathlib.Path(str(words[0])).name, process, log, out)
        self.started.append(started)
        return started

    def server(self, words, port=None, **options):
        """Starts the server's end; returns when somebody listens at the port."""
        process = self.start(words, self.mix.server, **options)
        if port is not None:
            self.await_port(process, port)
        return process

    def client(self, words, seconds=60, codes=(0,), **options):
        """Runs the client's end to its end and returns what it printed."""
        return self.start(words, self.mix.client, **options).wait(seconds, codes)

    def await_port(self, process, port, seconds=30):
        """Looks in /proc, for a connection of ours would be one that the server counts."""
        wanted = f":{port:04X} "
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for table in ("/proc/net/tcp", "/proc/net/tcp6"):
                for line in pathlib.Path(table).read_text().splitlines()[1:]:
                    words = line.split()
                    if words[3] == "0A" and words[1].endswith(wanted.strip()):
                        return
            if not process.alive():
                raise Failed(f"{process.name} ended at once\n{process.text()}")
            time.sleep(0.02)
        raise Failed(f"{process.name} does not listen\n{process.text()}")

    def await_udp(self, process, port, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for table in ("/proc/net/udp", "/proc/net/udp6"):
                for line in pathlib.Path(table).read_text().splitlines()[1:]:
                    if line.split()[1].endswith(f":{port:04X}"):
                        return
            if not process.alive():
                raise Failed(f"{process.name} ended at once\n{process.text()}")
            time.sleep(0.02)
        raise Failed(f"{process.name} does not bind its port\n{process.text()}")

    @staticmethod
    def picture(leader):
        """Where the threads of a process and its children are, for the report of a hang."""
        lines = []
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                words = status.read_text().rsplit(")", 1)
                session = int(words[1].split()[3])
                if session != leader:
                    continue
                for task in status.parent.glob("task/*"):
                    lines.append(f"  {task}: {words[0]}) {(task / 'wchan').read_text()} "
                                 f"{(task / 'syscall').read_text().strip()}")
            except (OSError, ValueError, IndexError):
                continue
        return "\n".join(lines) + "\n"

    def stats(self):
        """The statistics of all accelerated ends that have ended, as a list."""
        return [json.loads(path.read_text()) for path in self.stats_files
                if path.exists() and path.stat().st_size > 0]

    def accelerated(self, protocol="tcp"):
        """How many connections (or flows of datagrams) the ends accelerated together."""
        return sum(endpoint["accelerated"] for one in self.stats()
                   for endpoint in one["endpoints"] if endpoint["protocol"] == protocol)

    def expect_accelerated(self, protocol="tcp", least=1):
        """With both ends accelerated the test must have tested the library."""
        if self.mix != MIXES["both"]:
            return
        count = self.accelerated(protocol)
        reasons = [(e["endpoint"], e["reasons"]) for s in self.stats() for e in s["endpoints"]]
        expect(f"{count} accelerated {protocol} connections, at least {least} expected: {reasons}",
               count >= least)
