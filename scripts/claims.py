#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measures again what three tables say that things cost: two of the README, one of the guide of doors.

Usage: claims.py [--rounds N] [--write] [--only TEXT] [--from COMPARE.json]
Prints every figure of their tables beside what this machine has now: the median of the rounds and
how far they spread. With --write the tables get the new figures. Needs the release build, sockperf
and redis (scripts/setup.sh programs demo).
With --from nothing is measured: the figures are those of a `farcall compare --json`, such as
build/bench/compare.json of `make bench`; tables of other programs are left alone.
"""

import argparse
import contextlib
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
FARCALL = TOP / "build/release/farcall"
RUN = [str(FARCALL), "run", "--"]
DEFAULT_WAITS = ("adaptive", "block")
CONTROLS = ("cacheline_pingpong", "futex_pingpong")  # have a size and a way of waiting of their own


class Table:
    """A table of a document, found by its first line."""

    def __init__(self, document, header):
        self.path = TOP / document
        self.lines = self.path.read_text(encoding="utf-8").splitlines()
        self.first = next((i for i, line in enumerate(self.lines) if line.startswith(header)), None)
        if self.first is None:
            raise SystemExit(f"claims: {document} has no table that begins with: {header}")

    def rows(self):
        """(line number, cells) of each line below the header."""
        for i in range(self.first + 2, len(self.lines)):
            if not self.lines[i].startswith("|"):
                return
            yield i, [cell.strip() for cell in self.lines[i].strip("|").split("|")]

    def replace(self, line, cells):
        self.lines[line] = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"

    def write(self):
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text("\n".join(self.lines) + "\n", encoding="utf-8")
        beside.replace(self.path)


def microseconds(nanoseconds):
    value = nanoseconds / 1000
    return f"{value:.0f} us" if value >= 100 else f"{value:.3g} us"


def per_second(count):
    return f"{count / 1e6:.3g} M" if count >= 1e5 else f"{count:,.0f}"


def gigabytes(count):
    return f"{count / 1e9:.2g} GB"


def spread(values, show):
    """Of measured values, as text: the median, the range, and what a document is to say: the median,
    or the range where that is more than a fifth of it."""
    values = [value for value in values if value is not None]
    if not values:
        return "-", "", "-"
    median, low, high = statistics.median(values), min(values), max(values)
    wide = f"{show(low)} to {show(high)}"
    number, _, unit = show(low).partition(" ")
    short = f"{number} to {show(high)}" if unit == show(high).partition(" ")[2] else wide
    return show(median), wide, short if high - low > 0.2 * median else show(median)


class Compare:
    """Rounds of farcall compare, measured when they are first asked for, or read from a file."""

    def __init__(self, rows, sizes, rounds, report=None):
        self.arguments = ["--rows", ",".join(rows), "--sizes", sizes]
        self.rounds = rounds
        self.found = None
        if report is not None:
            self.found = [json.loads(pathlib.Path(report).read_text(encoding="utf-8"))["rows"]]

    def measure(self):
        self.found = []
        for _ in range(self.rounds):
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                subprocess.run([FARCALL, "compare", *self.arguments, "--quick", "--json", file.name],
                               stdout=subprocess.DEVNULL, check=True, timeout=1200)
                self.found.append(json.load(file)["rows"])

    def values(self, mechanism, size, placement, pick):
        """Of each round; the default way of waiting where a row has several."""
        if self.found is None:
            self.measure()
        for rows in self.found:
            for row in rows:
                if row["mechanism"] == mechanism and row["placement"] == placement and (
                        mechanism in CONTROLS
                        or (row["message_bytes"] == size and row["wait"] in DEFAULT_WAITS)):
                    yield pick(row)
                    break


def round_trip(row):
    return (row.get("rtt_ns") or {}).get("p50")


def messages(row):
    return (row.get("throughput") or {}).get("messages_per_s")


def volume(row):
    return (row.get("throughput") or {}).get("bytes_per_s")


def costs(rounds, report=None):
    """The README's table of what mechanisms cost."""
    mechanisms = {
        "ring (adaptive, the default)": "ring", "call (adaptive)": "call", "pipe": "pipe",
        "Unix stream socket": "unix_stream", "TCP loopback": "tcp", "POSIX queue": "posix_mq",
        "Boost message queue": "boost_mq", "ZeroMQ ipc": "zeromq", "nng ipc": "nng",
        "*control: one cache line each way*": "cacheline_pingpong",
        "*control: a bare futex*": "futex_pingpong"}
    compare = Compare(mechanisms.values(), "64,64K", rounds, report)

    def measure(label):
        name = mechanisms[label]
        cells = [spread(compare.values(name, 64, placement, round_trip), microseconds)
                 for placement in ("two-cpus", "one-cpu", "free")]
        cells.append(spread(compare.values(name, 64, "two-cpus", messages), per_second))
        cells.append(spread(compare.values(name, 65536, "two-cpus", volume), gigabytes))
        return cells

    return mechanisms.keys(), measure


def door_costs(rounds, report=None):
    """The table of the guide to doors."""
    mechanisms = {"`door_call` (adaptive, the default)": "door_call", "two pipes": "pipe",
                  "a Unix stream socket": "unix_stream",
                  "ONC RPC over a Unix socket": "onc_rpc"}
    compare = Compare(mechanisms.values(), "64,1M", rounds, report)

    def measure(label):
        name = mechanisms[label]
        return [spread(compare.values(name, 64, "two-cpus", round_trip), microseconds),
                spread(compare.values(name, 64, "free", round_trip), microseconds),
                spread(compare.values(name, 1 << 20, "free", round_trip), microseconds)]

    return mechanisms.keys(), measure


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@contextlib.contextmanager
def server(command, port=None):
    """A process that is ended afterwards; waits until its TCP port answers, if one is named."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while port is not None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        if port is None:
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait(10)


def pinned(processor, command):
    return ["taskset", "-c", str(processor), *command]


def sockperf(protocol, processors, prefix):
    """Half a round trip of 64 bytes, in nanoseconds."""
    port = free_port()
    options = ["--tcp"] if protocol == "tcp" else []
    where = ["-i", "127.0.0.1", "-p", str(port), *options]
    with server(pinned(processors[0], [*prefix, "sockperf", "server", *where])):
        said = subprocess.run(
            pinned(processors[1], [*prefix, "sockperf", "ping-pong", *where, "-t", "2", "-m", "64",
                                   "--mps", "1000000"]),
            capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"percentile 50\.000\s*=\s*([0-9.]+)", said)
    return float(found[1]) * 1000 if found else None


def redis(options, prefix):
    """GETs a second."""
    port = free_port()
    with server([*prefix, "redis-server", "--port", str(port), "--save", "", "--appendonly", "no"],
                port):
        said = subprocess.run(
            [*prefix, "redis-benchmark", "-p", str(port), "-t", "get", "-q", "--csv", *options],
            capture_output=True, text=True, timeout=300).stdout
    found = re.search(r'"GET","([0-9.]+)"', said)
    return float(found[1]) if found else None


def program_gains(rounds):
    """The README's table of programs that cannot change."""
    half = [lambda prefix, protocol=protocol, where=where: sockperf(protocol, where, prefix)
            for protocol, where in (("tcp", (0, 1)), ("udp", (0, 1)), ("tcp", (0, 0)))]
    calls = [lambda prefix, options=options: redis(options, prefix)
             for options in (["-c", "1", "-n", "60000"], ["-c", "50", "-n", "300000"],
                             ["-c", "50", "-n", "2000000", "-P", "16"])]
    programs = dict(zip(
        ("sockperf TCP, 64 B, one way, two processors", "sockperf UDP, the same",
         "sockperf TCP, one processor", "redis-benchmark, 1 client", "redis-benchmark, 50 clients",
         "redis-benchmark, 50 clients, 16 commands at a time"), half + calls))

    def measure(label):
        program = programs[label]
        plain, fast = [], []
        for _ in range(rounds):  # in turns
            plain.append(program([]))
            fast.append(program(RUN))
        show = microseconds if program in half else lambda value: per_second(value) + "/s"
        return [spread(plain, show), spread(fast, show)]

    return programs.keys(), measure


# Where a table is, its first line, and what returns the labels of its lines and what measures one.
TABLES = (("README.md", "| Debian's programs", program_gains),
          ("README.md", "| 64 B there and back", costs),
          ("docs/guide/doors.md", "| | 64 B, two processors", door_costs))
OF_COMPARE = (costs, door_costs)


def renew(table, known, measure):
    """Prints a table's figures beside those of now, and puts the latter in."""
    columns = [c.strip() for c in table.lines[table.first].strip("|").split("|")][1:]
    print(f"  {'':<52} {'':<24} {'as written':>22} {'now':>12}  spread")
    for line, (label, *old) in list(table.rows()):
        if label not in known:
            raise SystemExit(f"claims: {table.path}: nothing measures the line of {label}")
        now = measure(label)
        for column, before, (median, wide, _) in zip(columns, old, now):
            if before or median != "-":
                print(f"  {label:<52} {column:<24} {before or '-':>22} {median:>12}  {wide}",
                      flush=True)
        cells = [new if before not in ("", "-") and new != "-" else before
                 for before, (*_, new) in zip(old, now)]
        table.replace(line, [label, *cells])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (3)")
    parser.add_argument("--write", action="store_true", help="put the figures into the documents")
    parser.add_argument("--only", default="", help="tables whose document or header has this text")
    parser.add_argument("--from", dest="report", metavar="COMPARE.json",
                        help="take the figures from this file, measure nothing")
    arguments = parser.parse_args()
    if arguments.report is None and not FARCALL.is_file():
        raise SystemExit("claims: there is no build/release/farcall; make build makes it")
    for document, header, measured in TABLES:
        if arguments.only not in document + header:
            continue
        if arguments.report is None:
            known, measure = measured(arguments.rounds)
        elif measured in OF_COMPARE:
            known, measure = measured(1, arguments.report)
        else:
            continue
        table = Table(document, header)
        print(f"\n{document}: {header.strip('| ')}")
        renew(table, known, measure)
        if arguments.write:
            table.write()


if __name__ == "__main__":
    sys.exit(main())
