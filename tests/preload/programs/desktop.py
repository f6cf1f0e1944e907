# SPDX-License-Identifier: Apache-2.0
"""Sessions of users at paths: an X server with its clients, OpenSSH, ZeroMQ, MariaDB."""

import hashlib
import os
import pathlib
import random
import re
import shutil
import signal
import time

from ends import HERE, Failed, Skip, expect, expect_equal, need
from paths import await_path, server_at

CLIENTS = HERE / "clients"
PYTHON = "/usr/bin/python3"


def x_server(box):
    """Clients ask much, draw, and are killed; the server lives on."""
    xvfb, info, draw, term = need("Xvfb", "xdpyinfo", "x11perf", "xterm")
    number = next(n for n in range(90, 200) if not pathlib.Path(f"/tmp/.X11-unix/X{n}").exists()
                  and not pathlib.Path(f"/tmp/.X{n}-lock").exists())
    display = {"DISPLAY": f":{number}"}
    server = server_at(box, pathlib.Path(f"/tmp/.X11-unix/X{number}"),
                       [xvfb, f":{number}", "-screen", "0", "1024x768x24", "-nolisten", "tcp"])
    for _ in range(5):
        out = box.client([info], env=display)
        expect(f"xdpyinfo: {out[-300:]}", b"dimensions:    1024x768" in out)
    for test, reps in (("-noop", 1000000), ("-prop", 3000), ("-putimage100", 3000),
                       ("-getimage100", 2000), ("-shmput100", 3000), ("-create", 1000)):
        out = box.client([draw, "-repeat", "1", "-reps", reps, test], env=display)
        expect(f"x11perf {test}: {out[-300:]}", re.search(rb"reps @ .*/sec", out))
    # A terminal tells what its program says, and is killed while it draws.
    said = box.file("said")
    box.client([term, "-e", "sh", "-c", f"seq 5000; echo done > {said}"], env=display)
    expect_equal("what the terminal ran", said.read_text(), "done\n")
    busy = box.start([term, "-e", "yes"], box.mix.client, env=display)
    time.sleep(0.7)
    os.killpg(busy.process.pid, signal.SIGKILL)
    box.client([info], env=display)
    server.stop()
    box.expect_accelerated("unix")


def zeromq(box):
    try:
        __import__("subprocess").run([PYTHON, "-c", "import zmq"], check=True, capture_output=True)
    except Exception:  # pylint: disable=broad-except
        raise Skip("not installed: python3-zmq (scripts/setup.sh programs)") from None
    for prefix, kind in ((f"ipc://{box.folder}/queue", "unix"), (f"tcp://127.0.0.1:{three_ports(box)}", "tcp")):
        server = box.start([PYTHON, CLIENTS / "queues.py", "server", prefix], box.mix.server)
        deadline = time.monotonic() + 20
        while server.out.read_bytes() != b"ready\n":
            expect(f"no server\n{server.text()}", server.alive() and time.monotonic() < deadline)
            time.sleep(0.02)
        out = box.client([PYTHON, CLIENTS / "queues.py", "client", prefix], seconds=90)
        expect_equal("the client's verdict", out, b"all messages are right\n")
        server.wait(20)
        box.expect_accelerated(kind)


def three_ports(box):
    return next(port for port in iter(box.port, None) if port < 60000)


def mariadb_data(box):
    programs = need("mariadbd", "mariadb", "mysqlslap")
    if os.geteuid() != 0:
        raise Skip("MariaDB is run as root")
    data = box.folder / "data"
    data.mkdir()
    box.start([need("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--user=root",
               "--auth-root-authentication-method=normal", "--skip-test-db"]).wait(120)
    return programs, data


def exercise_mariadb(box, programs, at):
    _server, client, slap = programs
    box.client([client, *at, "-e", "create database d; create table d.t "
                "(n int primary key, s longblob)"])
    rows = "".join(f"insert into t values ({n}, repeat(md5({n}), {n * 40}));\n" for n in range(200))
    box.client([client, *at, "d"], stdin=box.file("rows.sql", rows))
    out = box.client([client, *at, "-N", "-B", "d", "-e", "select n, s from t order by n"])
    wanted = b"".join(b"%d\t%s\n" % (n, hashlib.md5(b"%d" % n).hexdigest().encode() * (n * 40))
                      for n in range(200))
    expect_equal("rows", out == wanted, True)
    large = random.Random(1).randbytes(3 << 20).hex()
    box.client([client, *at, "--max-allowed-packet=32M", "d"],
               stdin=box.file("large.sql", f"insert into t values (1000, '{large}');\n"))
    out = box.client([client, *at, "-N", "-B", "d", "-e", "select md5(s) from t where n = 1000"])
    expect_equal("a large row", out.decode().strip(), hashlib.md5(large.encode()).hexdigest())
    out = box.client([slap, *at, "--auto-generate-sql", "--concurrency=16", "--iterations=3",
                      "--number-of-queries=1500", "--auto-generate-sql-load-type=mixed"])
    expect(f"mysqlslap: {out}", b"Average number of seconds" in out)
    # A client that is killed in the middle of its answer.
    busy = box.start([client, *at, "-N", "-B", "d", "-e", "select a.s from t a join t b"], box.mix.client)
    time.sleep(0.4)
    os.killpg(busy.process.pid, signal.SIGKILL)
    out = box.client([client, *at, "-N", "-B", "d", "-e", "select count(*) from t"])
    expect_equal("rows after all", out, b"201\n")


def mariadb(box):
    programs, data = mariadb_data(box)
    path, port = box.folder / "sql", box.port()
    server = server_at(box, path, [
        programs[0], "--no-defaults", f"--datadir={data}", f"--socket={path}", f"--port={port}",
        "--bind-address=127.0.0.1", "--user=root", "--max-allowed-packet=32M", "--innodb-flush-log-at-trx-commit=0",
        "--innodb-use-native-aio=0"])  # a process that uses io_uring is not accelerated
    box.await_port(server, port)
    for at in (["--no-defaults", f"--socket={path}", "-uroot"],
               ["--no-defaults", "-h", "127.0.0.1", f"-P{port}", "-uroot", "--protocol=tcp"]):
        exercise_mariadb(box, programs, at)
        box.client([programs[1], *at, "-e", "drop database d"])
    server.stop()
    box.expect_accelerated("unix")
    box.expect_accelerated("tcp")


SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
StrictModes no
PermitRootLogin yes
UsePAM no
PasswordAuthentication no
AllowStreamLocalForwarding yes
Subsystem sftp internal-sftp
"""


def ssh(box):
    """Copies, forwarded ports and paths, an agent, and one connection for many sessions."""
    daemon, client, copy, files, keygen, agent, add = need(
        "sshd", "ssh", "scp", "sftp", "ssh-keygen", "ssh-agent", "ssh-add")
    if os.geteuid() != 0:
        raise Skip("sshd is run as root")
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "key"):
        box.start([keygen, "-q", "-t", "ed25519", "-N", "", "-f", box.folder / name]).wait()
    port = box.port()
    server = box.server([daemon, "-D", "-e", "-f", box.file("sshd.conf", SSHD.format(
        folder=box.folder, port=port))], port)
    socket_path = box.folder / "agent"
    bearer = box.start([agent, "-D", "-a", socket_path])  # setgid: never accelerated
    await_path(bearer, socket_path)
    env = {"SSH_AUTH_SOCK": str(socket_path)}
    box.client([add, "-q", box.folder / "key"], env=env)
    where = "root@127.0.0.1"
    options = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={box.folder}/known",
               "-o", "LogLevel=ERROR"]
    data = random.Random(8).randbytes(20 << 20)
    source = box.file("source", data)

    def exchange(more):
        options_now = [*options, *more]
        out = box.client([client, *options_now, "-p", port, where, "cat"], stdin=source, env=env)
        expect_equal("what cat sent back", out == data, True)
        box.client([copy, "-q", *options_now, "-P", port, source, f"{where}:{box.folder}/there"], env=env)
        expect_equal("what scp sent", (box.folder / "there").read_bytes() == data, True)
        box.client([files, "-q", *options_now, "-P", port, "-b", box.file(
            "batch", f"get {source} {box.folder}/back\nls -l {box.folder}\n"), where], env=env)
        expect_equal("what sftp fetched", (box.folder / "back").read_bytes() == data, True)
        out = box.client([client, *options_now, "-A", "-p", port, where, f"{add} -l; exit 7"], env=env, codes=(7,))
        expect(f"the agent there: {out}", b"ED25519" in out)

    exchange([])
    control = box.folder / "control"
    master = box.start([client, *options, "-A", "-M", "-S", control, "-N", "-p", port, where], box.mix.client, env=env)
    await_path(master, control)
    for _ in range(2):
        exchange(["-o", f"ControlPath={control}"])
    forward(box, [client, *options, "-o", f"ControlPath={control}", "-p", port], where, env, data)
    box.client([client, *options, "-S", control, "-O", "exit", "-p", port, where], env=env)
    master.wait(20, codes=(0, 255))
    server.stop()
    bearer.stop()
    box.expect_accelerated("tcp")
    box.expect_accelerated("unix")


def forward(box, ssh_command, where, env, data):
    """A port and a path here lead to an echo at a path there."""
    socat = need("socat")
    echo, here, port = box.folder / "echo", box.folder / "here", box.port()
    server_at(box, echo, [socat, f"UNIX-LISTEN:{echo},fork", "EXEC:cat"])
    for place in (f"127.0.0.1:{port}:{echo}", f"{here}:{echo}"):
        box.client([*ssh_command, "-O", "forward", "-L", place, where], env=env)
    source = box.folder / "source"
    for _ in range(3):
        for at in (f"TCP:127.0.0.1:{port}", f"UNIX-CONNECT:{here}"):
            out = box.client([socat, "-t", "20", "-", at], stdin=source)
            expect_equal(f"what came back from {at}", out == data, True)


TESTS = {"x_server": x_server, "zeromq": zeromq, "mariadb": mariadb, "ssh": ssh}
