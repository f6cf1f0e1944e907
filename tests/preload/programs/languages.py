# SPDX-License-Identifier: Apache-2.0
"""Languages with event loops of their own: Python, node, Java NIO, and Go, which goes round libc."""

import os
import shutil
import socket

from ends import HERE, Skip, expect, expect_equal, need
from paths import await_path

CLIENTS = HERE / "clients"
PYTHON = "/usr/bin/python3"
CONNECTIONS, BYTES = "20", "40000"  # the n-th sends n times so many


def words_of(box, language):
    """The command for one end of the echo service in a language."""
    if language == "python":
        return [PYTHON, CLIENTS / "echo_server.py"]
    if language == "node":
        return [need("node"), CLIENTS / "echo.js"]
    if language == "java":
        java, _ = need("java", "javac")
        if not (box.folder / "Echo.class").exists():
            box.start([need("javac"), "-d", box.folder, CLIENTS / "Echo.java"]).wait(120)
        # As few threads as possible beside the two that matter.
        return [java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", box.folder, "Echo"]
    if language == "ruby":
        return [need("ruby"), CLIENTS / "echo.rb"]
    if language == "perl":
        return [need("perl"), CLIENTS / "echo.pl"]
    if language == "erlang":
        return [need("escript"), CLIENTS / "echo.escript"]
    go = shutil.which("go", path=os.environ.get("PATH", "") + ":/usr/local/go/bin")
    if go is None:
        raise Skip("not installed: go")
    program = box.folder / "echo"
    if not program.exists():
        box.start([go, "build", "-o", program, CLIENTS / "echo.go"],
                  env={"GO111MODULE": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0",
                       "GOFLAGS": "-p=1"}).wait(300)
    return [program]


def echo(box, server, client, path=None):
    server_words, client_words = words_of(box, server), words_of(box, client)
    place = path or box.port()
    mode = [] if server == "python" else ["server"]
    # A static program is what `farcall run` refuses: it is the plain end in every mix.
    far = box.start([*server_words, *mode, place], box.mix.server and server != "go")
    if path:
        await_path(far, path)
    else:
        box.await_port(far, place)
    out = box.start([*client_words, "client", place, CONNECTIONS, BYTES],
                    box.mix.client and client != "go").wait(90)
    expect_equal(f"{client} asking {server}", out, f"{CONNECTIONS} echoes\n".encode())
    far.stop()


def across(box, languages):
    """Each asks itself and the next, at a port and at a path."""
    for number, server in enumerate(languages):
        for client in {server, languages[(number + 1) % len(languages)]}:
            echo(box, server, client)
            echo(box, server, client, box.folder / f"{server}-{client}")
    box.expect_accelerated("tcp")
    box.expect_accelerated("unix")


def scripts(box):
    across(box, ["ruby", "perl"])


def erlang(box):
    across(box, ["erlang"])


def java_path(box):
    echo(box, "java", "java", box.folder / "java")
    box.expect_accelerated("unix")


def node(box):
    echo(box, "node", "node")
    port = box.port()
    server = box.server([need("node"), CLIENTS / "web.js", "server", port], port)
    out = box.client([need("node"), CLIENTS / "web.js", "client", port, "400"])
    expect_equal("web.js", out, b"400 answers\n")
    server.stop()
    box.expect_accelerated()


def java(box):
    echo(box, "java", "java")
    echo(box, "python", "java")
    box.expect_accelerated()


def go(box):
    echo(box, "go", "node")
    echo(box, "python", "go")
    echo(box, "node", "go")


def traffic(box):
    """Checksummed random traffic."""
    seconds = box.seconds or 5
    port = box.port()
    server = box.server([PYTHON, CLIENTS / "traffic.py", "server", port, "6"], port)
    out = box.client([PYTHON, CLIENTS / "traffic.py", "client", port, "6", seconds,
                      box.seed], seconds=seconds + 120)
    expect(f"traffic: {out}", b" connections, " in out and b"failed" not in out)
    expect_equal("what the server said", server.out.read_bytes(), b"")
    server.stop()
    box.expect_accelerated()


def datagrams(box):
    port = box.port(socket.SOCK_DGRAM)
    server = box.start([PYTHON, CLIENTS / "datagrams.py", "server", port, box.seed], box.mix.server)
    box.await_udp(server, port)
    box.client([PYTHON, CLIENTS / "datagrams.py", "client", port, box.seed])
    expect_equal("what the server says", server.wait(), b"3 senders, many datagrams\n")
    box.expect_accelerated("udp")


TESTS = {"node": node, "java": java, "java_path": java_path, "scripts": scripts, "erlang": erlang, "go": go, "traffic": traffic, "datagrams": datagrams}
