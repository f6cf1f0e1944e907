# SPDX-License-Identifier: Apache-2.0
"""Programs that pass bytes on, and programs that measure how fast: nc, socat, iperf3, sockperf."""

import json
import os
import random
import re
import signal
import threading
import time

from ends import expect, expect_equal, need


def random_bytes(size, seed=1):
    return random.Random(seed).randbytes(size)


def nc(box):
    """Much in both directions at once."""
    program = need("nc.openbsd")
    data = random_bytes(8 << 20)
    port = box.port()
    server = box.server([program, "-l", "-N", "127.0.0.1", port], port,
                        stdin=box.file("back", data[::-1]))
    # An nc that listens ends with its peer's input, even if there is more of its own. So the
    # client's input stays open until everything is there.
    there = box.file("there")
    os.mkfifo(there)
    opened = os.open(there, os.O_RDWR)
    client = box.start([program, "-N", "127.0.0.1", port], box.mix.client, stdin=there)

    def feed():
        with open(opened, "wb") as pipe:
            pipe.write(data)
            while client.alive() and client.out.stat().st_size < len(data):
                time.sleep(0.01)

    threading.Thread(target=feed, daemon=True).start()
    expect_equal("what the client received", client.wait() == data[::-1], True)
    expect_equal("what the server received", server.wait() == data, True)
    box.expect_accelerated()


def socat(box):
    program = need("socat")
    data = random_bytes(3 << 20)
    port = box.port()
    server = box.server([program, f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", "EXEC:cat"],
                        port)
    for _ in range(3):
        # Without -t the answer may come later than socat cares to wait after the end of input.
        out = box.client([program, "-t", "20", "-", f"TCP:127.0.0.1:{port}"],
                         stdin=box.file("in", data))
        expect_equal("what came back", out == data, True)
    server.stop()
    box.expect_accelerated()


def iperf3(box):
    program = need("iperf3")
    seconds = box.seconds or 1
    for options in ([], ["-R"], ["-P", "4"], ["--bidir"], ["-l", "1000"], ["-n", "300M"]):
        port = box.port()
        server = box.server([program, "-s", "-1", "-B", "127.0.0.1", "-p", port], port)
        how_long = [] if "-n" in options else ["-t", seconds]
        out = box.client([program, "-J", "-c", "127.0.0.1", "-p", port, *how_long, *options])
        server.wait()
        report = json.loads(out)
        expect(f"iperf3 {options}: {report.get('error')}", "error" not in report)
        sent = report["end"]["sum_sent"]["bytes"]
        received = report["end"]["sum_received"]["bytes"]
        expect(f"iperf3 {options}: {received} of {sent} bytes arrived", 0 < received <= sent)
    box.expect_accelerated()


def iperf3_udp(box):
    program = need("iperf3")
    for _ in range(5):  # a server without a processor for half of the time loses as much
        port = box.port()
        server = box.server([program, "-s", "-1", "-B", "127.0.0.1", "-p", port], port)
        report = json.loads(box.client(
            [program, "-J", "-u", "-b", "200M", "-l", "1400", "-t", box.seconds or 1,
             "-c", "127.0.0.1", "-p", port]))
        server.wait()
        expect(f"iperf3 -u: {report.get('error')}", "error" not in report)
        total = report["end"]["sum"]
        if total["packets"] > 100 and total["lost_packets"] < total["packets"] / 2:
            break
    expect(f"{total['lost_packets']} of {total['packets']} datagrams lost",
           total["packets"] > 100 and total["lost_packets"] < total["packets"] / 2)


def sockperf(box, protocol, modes):
    program = need("sockperf")
    options = ["--tcp"] if protocol == "tcp" else []
    for mode, more in modes:
        port = box.port()
        server = box.start([program, "server", "-i", "127.0.0.1", "-p", port, *options, *more],
                           box.mix.server)
        if protocol == "tcp":
            box.await_port(server, port)
        else:
            box.await_udp(server, port)
        out = box.client([program, mode, "-i", "127.0.0.1", "-p", port, *options, *more,
                          # Faster than that it runs out of numbers for its messages.
                          *(["--mps", "1000000"] if mode == "ping-pong" else []),
                          "-t", box.seconds or 1, "-m", "64"]).decode()
        if mode == "ping-pong":
            found = re.search(r"\[Valid Duration\] .*ReceivedMessages=(\d+)", out)
            expect(f"no figures: {out[-500:]}", found)
            expect(f"{found[1]} answers only", int(found[1]) > 5)
            dropped = re.search(r"# dropped messages = (\d+); # duplicated messages = (\d+); "
                                r"# out-of-order messages = (\d+)", out)
            expect(f"no count of drops: {out[-500:]}", dropped)
            expect_equal("duplicated and out of order", dropped.groups()[1:], ("0", "0"))
            if protocol == "tcp":
                expect_equal("dropped", dropped[1], "0")
        else:
            expect(f"no figures: {out[-500:]}", "Message Rate" in out)
        server.stop(number=signal.SIGINT)


# Both ends wait for two sockets, in the way that `iomux` names.
def sockperf_many(box, protocol, iomux):
    program = need("sockperf")
    letter = "T" if protocol == "tcp" else "U"
    ports = [box.port(), box.port()]
    feed = box.file(f"feed-{protocol}-{iomux}",
                    "".join(f"{letter}:127.0.0.1:{port}\n" for port in ports).encode())
    server = box.start([program, "server", "-f", feed, "-F", iomux], box.mix.server)
    for port in ports:
        if protocol == "tcp":
            box.await_port(server, port)
        else:
            box.await_udp(server, port)
    out = box.client([program, "ping-pong", "-f", feed, "-F", iomux, "--mps", "1000000",
                      "-t", box.seconds or 1]).decode()
    found = re.search(r"\[Valid Duration\] .*ReceivedMessages=(\d+)", out)
    expect(f"no figures: {out[-500:]}", found)
    expect(f"{found[1]} answers only", int(found[1]) > 5)
    expect(f"drops: {out[-500:]}",
           "# duplicated messages = 0; # out-of-order messages = 0" in out)
    server.stop(number=signal.SIGINT)


def sockperf_tcp(box):
    sockperf(box, "tcp", [("ping-pong", []), ("ping-pong", ["--nonblocked"]), ("throughput", [])])
    box.expect_accelerated()


def sockperf_udp(box):
    sockperf(box, "udp", [("ping-pong", []), ("ping-pong", ["--nonblocked"]), ("throughput", [])])
    box.expect_accelerated("udp")


def sockperf_waits(box):
    for protocol in "tcp", "udp":
        for iomux in "epoll", "poll", "select":
            sockperf_many(box, protocol, iomux)
        box.expect_accelerated(protocol)


TESTS = {"nc": nc, "socat": socat, "iperf3": iperf3, "iperf3_udp": iperf3_udp,
         "sockperf_tcp": sockperf_tcp, "sockperf_udp": sockperf_udp,
         "sockperf_waits": sockperf_waits}
