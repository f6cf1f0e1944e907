# SPDX-License-Identifier: Apache-2.0
"""What farcall tells of programs agrees with what they tell themselves: redis, PostgreSQL, nginx."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

from ends import HERE, Skip, expect, need
from servers import await_postgres, redis_server, start_postgres
from web import check_wrk, start_nginx

FEW = 0.02  # of what is counted: the first and the last of a connection


def told(box, *words):
    """The JSON of a command of farcall."""
    return json.loads(box.start([box.farcall, *words]).wait(30))


def expect_near(what, told_by_farcall, own, more=0):
    """`more`: what the program does beside what it counts."""
    expect(f"{what}: farcall says {told_by_farcall}, the program {own}",
           own * (1 - FEW) <= told_by_farcall <= own * (1 + FEW) + more)


def process_closed(box, pid):
    """Sums of what one process has closed."""
    sums = {"ends": 0, "sent": 0, "received": 0}
    for kind in told(box, "stat", pid, "--json", "--interval", "0")["processes"][0]["closed"]:
        sums["ends"] += kind["ends"]
        for way in ("sent", "received"):
            sums[way] += kind[way]["messages"] + kind[way]["kernel_messages"]
    return sums


def closed_by(box, name):
    """Sums of the sockets that processes of that name have closed: ends, messages received, sent."""
    ends = received = sent = 0
    for process in told(box, "top", "--once", "--json", "--interval", "0.05")["closed"]:
        if process["command"] != name:
            continue
        for kind in process["kinds"]:
            ends += kind["ends"]
            received += kind["received"]["messages"] + kind["received"]["kernel_messages"]
            sent += kind["sent"]["messages"] + kind["sent"]["kernel_messages"]
    return ends, received, sent


def figures_redis(box):
    benchmark = need("redis-benchmark")
    server, port = redis_server(box)
    for clients in (1, 10):
        requests = 20_000 * clients
        before = process_closed(box, server.program_pid())
        box.client([benchmark, "-h", "127.0.0.1", "-p", port, "-t", "get", "-n", requests, "-c",
                    clients, "-q"])
        for _ in range(400):  # until the server has noticed
            after = process_closed(box, server.program_pid())
            if after["ends"] - before["ends"] > clients:
                break
            time.sleep(0.05)
        for way in ("sent", "received"):
            expect_near(f"{way} with {clients} clients", after[way] - before[way], requests, more=4)
    server.stop()
    box.expect_accelerated()


def figures_nginx(box):
    wrk = need("wrk")
    server, port = start_nginx(box, workers=1)
    connections = 8
    ends_before, received_before, _ = closed_by(box, "nginx")
    text = check_wrk(box.client([wrk, "-t1", f"-c{connections}", "-d2s",
                                 f"http://127.0.0.1:{port}/small"]), 100)
    for _ in range(100):
        ends, received, _ = closed_by(box, "nginx")
        if ends - ends_before >= connections:
            break
        time.sleep(0.05)
    # wrk does not count what was under way when its time was up.
    expect_near("requests", received - received_before, int(re.search(r"(\d+) requests in", text)[1]),
                more=connections)
    server.stop(number=signal.SIGQUIT)
    box.expect_accelerated()


QUERIES = 20_000
SCRIPT = f"""\\set done :done + 1
select 1;
\\if :done = {QUERIES}
\\sleep 20 s
\\endif
"""


def figures_postgres(box):
    """pgbench stays, so that both ends are there when they are looked at."""
    programs, server, port, at = start_postgres(box)
    await_postgres(box, programs, at)
    script = box.file("script.sql", SCRIPT)
    load = box.start([programs / "pgbench", *at, "-n", "-M", "simple", "-D", "done=0", "-f", script,
                      "-t", QUERIES, "postgres"], box.mix.client, user="postgres", cwd="/")
    deadline = time.monotonic() + 90
    forward = back = 0
    while forward < QUERIES and time.monotonic() < deadline and load.alive():
        flows = told(box, "top", "--once", "--json", "--interval", "0.3")["flows"]
        flows = [flow for flow in flows if flow["name"].endswith(f":{port}") and flow["from"] and
                 flow["from"]["command"] == "pgbench"]
        forward, back = (sum(flow["total"][way]["messages"] + flow["total"][way]["kernel_messages"]
                             for flow in flows) for way in ("forward", "back"))
    # Beside queries and answers: to log in.
    expect_near("queries", forward, QUERIES, more=10)
    expect_near("answers", back, QUERIES, more=10)
    os.killpg(load.process.pid, signal.SIGINT)
    load.wait(20, codes=None)
    server.stop(number=signal.SIGINT, seconds=40)
    box.expect_accelerated()


TRACES = HERE.parents[2] / "examples" / "trace"
PROBED = """
import sys, time
sys.path.insert(0, {python!r})
import farcall
farcall.serve({path!r}, lambda data: data)
door = farcall.open_door({path!r})
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    door.call(b"x" * 200)
    time.sleep(0.001)
"""


def trace(box, pid, script, wanted, deeds=None):
    """Runs a script for bpftrace with a process until it has said something; returns that."""
    if os.geteuid() != 0:
        raise Skip("needs root, for bpftrace")
    bpftrace = need("bpftrace")
    tracer = box.start([bpftrace, "-B", "line", "-p", pid, TRACES / script])
    for _ in range(100):
        if "Attaching" in tracer.text() or not tracer.alive():
            break
        time.sleep(0.1)
    time.sleep(1)
    if not tracer.alive() and tracer.text() and not re.search("usdt|[Nn]o probes|syntax", tracer.text()):
        raise Skip(f"the kernel permits no probes: {tracer.text().splitlines()[-1]}")
    if deeds:
        deeds()
    time.sleep(1)
    # bpftrace forgets one that comes between two of its waits.
    for _ in range(10):
        tracer.signal(signal.SIGINT)
        try:
            tracer.process.wait(3)
            break
        except subprocess.TimeoutExpired:
            pass
    said = tracer.wait(5, codes=None).decode(errors="replace")
    expect(f"{script} says {wanted!r}: {said} {tracer.text()}", re.search(wanted, said))


def probes(box):
    """The scripts for bpftrace say what happens."""
    benchmark = need("redis-benchmark")
    server, port = redis_server(box)

    def load():
        box.client([benchmark, "-h", "127.0.0.1", "-p", port, "-t", "set", "-d", "3000", "-n", "20000",
                    "-c", "3", "-q"])
    pid = server.program_pid()
    trace(box, pid, "sizes.bt", r"@received\[\w+\]:[^@]*\[2K, 4K\)", load)
    trace(box, pid, "acceleration.bt", r"redis-server: accelerated, with process \d+", load)
    server.stop()
    python = pathlib.Path(box.farcall).parent / "python"
    if not python.is_dir():
        raise Skip("there is no python3-dev for Python")
    caller = box.start(["/usr/bin/python3", "-c",
                        PROBED.format(python=str(python), path=str(box.folder / "door"))])
    time.sleep(1)
    trace(box, caller.process.pid, "call_times.bt", r"@ns\[python3\]:\s+\[")
    trace(box, caller.process.pid, "waits.bt", r"@woke\[python3\]: [1-9]")


TESTS = {"figures_redis": figures_redis, "figures_nginx": figures_nginx,
         "figures_postgres": figures_postgres, "probes": probes}
