#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what it costs to be watched, and to be captured.

Usage: observe_cost.py [--rounds N] [--seconds S] [--farcall PATH]
Programs run in turns with nobody beside them, beside `farcall top` once a second, and beside
`farcall capture`. Each line has the median of the ratios to the run with nobody, and their range.
Rates: above 1 is better. Processor time is that of the two programs, for the same number of
messages, below 1 is better. Needs sockperf and redis (scripts/setup.sh programs).
"""

import argparse
import os
import pathlib
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def await_port(port):
    for _ in range(200):
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", int(port))) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("observe_cost: the server does not listen")


def processor_seconds(pid):
    """Of a process, so far."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A program on its own port, under `farcall run`."""

    def __init__(self, farcall, words):
        self.port = free_port()
        self.process = subprocess.Popen([farcall, "run", *(w.format(port=self.port) for w in words)],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        await_port(self.port)

    def end(self):
        self.process.terminate()
        self.process.wait()


def run(farcall, words, server):
    """What the client prints, and the processor time of both."""
    before = processor_seconds(server.process.pid)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([farcall, "run", *(word.format(port=server.port) for word in words)],
                          check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - children.ru_utime - children.ru_stime
    return done.stdout, own + processor_seconds(server.process.pid) - before


def ping_pong(farcall, seconds):
    """Round trips per second as fast as they go, and processor time of a message."""
    server = Server(farcall, ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", "{port}"])
    try:
        text, spent = run(farcall, ["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", "{port}",
                                    "-m", "64", "-t", str(seconds)], server)
    finally:
        server.end()
    sent = int(re.search(r"SentMessages=(\d+)", text)[1])
    return {"sockperf ping-pong, rate": sent / seconds, "its processor time": spent / sent}


def hundred_thousand(farcall, seconds):
    """50,000 messages a second and as many replies: latency, and processor time."""
    server = Server(farcall, ["sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", "{port}"])
    try:
        text, spent = run(farcall, ["sockperf", "under-load", "--tcp", "-i", "127.0.0.1", "-p", "{port}",
                                    "-m", "64", "-t", str(seconds), "--mps", "50000",
                                    "--reply-every", "1"], server)
    finally:
        server.end()
    sent = int(re.search(r"SentMessages=(\d+)", text)[1])
    half = float(re.search(r"percentile 50.000 = *([0-9.]+)", text)[1])
    return {"100,000 messages/s, rate": sent / seconds, "its latency, p50": half,
            "its processor time ": spent / sent}


def redis(farcall, seconds):
    """Requests per second of one client."""
    server = Server(farcall, ["redis-server", "--port", "{port}", "--save", ""])
    try:
        text, _ = run(farcall, ["redis-benchmark", "-p", "{port}", "-t", "get", "-c", "1", "-n",
                                str(20_000 * seconds), "--csv"], server)
    finally:
        server.end()
    return {"redis GET, one client, rate": float(text.splitlines()[-1].split(",")[1].strip('"'))}


class Beside:
    """What runs beside the programs."""

    def __init__(self, farcall, kind, folder):
        words = {"nobody": None, "top": ["top", "--json"],
                 "capture": ["capture", "-w", str(folder / "capture.pcapng")]}[kind]
        self.process = self.spent = None
        if words:
            self.process = subprocess.Popen([farcall, *words], stdout=subprocess.DEVNULL,
                                            stderr=subprocess.PIPE, text=True)
            time.sleep(0.3)

    def end(self):
        """What it says at its end, and its processor time."""
        if self.process is None:
            return "", 0
        spent = processor_seconds(self.process.pid)
        self.process.terminate()
        return self.process.communicate()[1], spent


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--farcall", default=str(TOP / "build/release/farcall"))
    options = parser.parse_args()
    for program in ("sockperf", "redis-server", "redis-benchmark"):
        if shutil.which(program) is None:
            sys.exit(f"observe_cost: {program} is not installed (scripts/setup.sh programs)")
    print(f"load {os.getloadavg()[0]:.2f}, {options.rounds} rounds of {options.seconds} s")
    ratios, absolute, said = {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.rounds):
            for load in (ping_pong, hundred_thousand, redis):
                alone = None
                for kind in ("nobody", "top", "capture"):
                    beside = Beside(options.farcall, kind, pathlib.Path(folder))
                    figures = load(options.farcall, options.seconds)
                    text, spent = beside.end()
                    said[kind, load.__name__] = text.strip().replace("\n", "; ")
                    alone = alone or figures
                    figures = {**figures, f"its own processor time, {load.__name__}":
                               spent / options.seconds}
                    for what, value in figures.items():
                        if what in alone:
                            absolute.setdefault(what, []).append(alone[what])
                            value /= alone[what]
                        ratios.setdefault((kind, what), []).append(value)
    for (kind, what), values in ratios.items():
        if kind == "nobody":
            continue
        print(f"{kind:<8} {what:<42} {statistics.median(values):6.3f} "
              f"({min(values):.3f} to {max(values):.3f})")
    for (kind, load), text in said.items():
        if text:
            print(f"{kind} beside {load} said: {text}")


if __name__ == "__main__":
    main()
