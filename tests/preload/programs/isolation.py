# SPDX-License-Identifier: Apache-2.0
"""Two users on one machine: what one of them shares with itself the other neither joins, nor
reads, nor disturbs."""

import os
import pathlib

from ends import Skip, expect_equal, need

HERE = pathlib.Path(__file__).parent
CLIENTS = HERE / "clients"
PYTHON = "/usr/bin/python3"
ONE, OTHER = "games", "daemon"


def prepare(box):
    if os.geteuid() != 0:
        raise Skip("to be two users needs root")
    box.folder.chmod(0o755)
    for number in range(4):
        file = box.file(f"stats-{number}.json")
        file.touch()
        file.chmod(0o666)
    as_one = [need("setpriv"), "--reuid", ONE, "--regid", ONE, "--clear-groups"]
    readable = box.start([*as_one, "test", "-r", CLIENTS / "neighbour.py", "-a", "-x", box.farcall])
    if readable.wait(20, codes=None) is not None and readable.process.returncode != 0:
        raise Skip(f"user {ONE} may not read {CLIENTS} or execute {box.farcall}")


def run(box, server_user, client_user, intruder=None):
    port = box.port()
    neighbour = [PYTHON, CLIENTS / "neighbour.py"]
    server = box.server([*neighbour, "server", port], port, user=server_user, cwd="/")
    client = box.start([*neighbour, "client", port, "3"], box.mix.client, user=client_user, cwd="/")
    if intruder:
        out = box.start([PYTHON, CLIENTS / "intruder.py", "2.5", server.process.pid,
                         client.process.pid], user=intruder, cwd="/").wait(60)
        expect_equal("what the intruder says", out, b"got 0 knocked\n")
    expect_equal("what the client says", client.wait(60), b"right\n")
    server.wait(20)


def isolation_same(box):
    """Of one user, with another about."""
    prepare(box)
    run(box, ONE, ONE, OTHER if box.mix.server else None)
    box.expect_accelerated("tcp", 2)
    box.expect_accelerated("udp", 2)


def isolation_apart(box):
    """Of two users: what the kernel carries."""
    prepare(box)
    run(box, ONE, OTHER)
    expect_equal("accelerated", (box.accelerated("tcp"), box.accelerated("udp")), (0, 0))


TESTS = {"isolation_same": isolation_same, "isolation_apart": isolation_apart}
