# SPDX-License-Identifier: Apache-2.0
"""Servers that keep data: redis, memcached, PostgreSQL."""

import os
import pathlib
import random
import shutil
import signal
import time

from ends import HERE, Skip, expect, expect_equal, need

PYTHON = "/usr/bin/python3"


def redis_server(box, *options):
    port = box.port()
    server = box.server([need("redis-server"), "--port", port, "--bind", "127.0.0.1", "--save", "",
                         "--appendonly", "no", "--daemonize", "no", "--dir", box.folder,
                         "--enable-debug-command", "yes", *options], port)
    return server, port


def exercise_redis(box, at):
    """A large value and many requests, by the options that say where the server is."""
    cli, benchmark = need("redis-cli", "redis-benchmark")
    value = random.Random(2).randbytes(4 << 20).hex().encode()
    expect_equal("SET", box.client([cli, *at, "-x", "SET", "large"],
                                   stdin=box.file("value", value)), b"OK\n")
    expect_equal("GET", box.client([cli, *at, "GET", "large"]) == value + b"\n", True)
    for options in (["-c", "50", "-n", "10000"], ["-c", "1", "-n", "1000"],
                    ["-c", "20", "-P", "16", "-n", "50000"], ["-c", "5", "-d", "100000", "-n", "500"]):
        out = box.client([benchmark, *at, "-t", "set,get,lpush,lrange_100", "-r", "1000", "-q",
                          *options]).decode()
        expect(f"redis-benchmark {options}: {out[-500:]}",
               out.count("requests per second") == 5 and "rror" not in out)


def redis(box):
    cli = need("redis-cli")
    server, port = redis_server(box)
    at = ["-h", "127.0.0.1", "-p", port]
    exercise_redis(box, at)
    # A blocking command that times out, and one that another client ends.
    began = time.monotonic()
    expect_equal("BLPOP", box.client([cli, *at, "BLPOP", "nobody", "1"]).strip(), b"")
    expect("BLPOP waits for its second", time.monotonic() - began > 0.9)
    waiting = box.start([cli, *at, "BLPOP", "somebody", "20"], box.mix.client)
    time.sleep(0.2)
    box.client([cli, *at, "RPUSH", "somebody", "here"])
    expect_equal("BLPOP", waiting.wait(25), b"somebody\nhere\n")
    server.stop()
    box.expect_accelerated()


def redis_replica(box):
    """A second server becomes a copy of the first while clients write."""
    cli, benchmark = need("redis-cli", "redis-benchmark")
    server, port = redis_server(box)
    at = ["-h", "127.0.0.1", "-p", port]
    box.client([benchmark, *at, "-t", "set", "-r", "100000", "-n", "50000", "-d", "100", "-q"])
    copy_port = box.port()
    copy = box.start([need("redis-server"), "--port", copy_port, "--bind", "127.0.0.1", "--save", "",
                      "--dir", box.folder, "--enable-debug-command", "yes",
                      "--repl-diskless-load", "swapdb",
                      "--replicaof", "127.0.0.1", port], box.mix.client)
    box.await_port(copy, copy_port)
    box.client([benchmark, *at, "-t", "set,incr,lpush", "-r", "100000", "-n", "20000", "-q"])
    digests = []
    for _ in range(100):
        digests = [box.client([cli, "-h", "127.0.0.1", "-p", p, "DEBUG", "DIGEST"])
                   for p in (port, copy_port)]
        if digests[0] == digests[1]:
            break
        time.sleep(0.1)
    expect_equal("the digest of the copy", digests[1], digests[0])
    copy.stop()
    server.stop()
    box.expect_accelerated()


def exercise_memcached(box, place):
    out = box.client([PYTHON, HERE / "clients" / "memcached_client.py", place, "8", "400"],
                     seconds=90)
    expect_equal("the client's verdict", out, b"3200 values kept\n")


def memcached(box):
    program = need("memcached")
    port = box.port()
    server = box.server([program, "-l", "127.0.0.1", "-p", port, "-U", "0", "-t", "4", "-u", "root",
                         "-I", "4m", "-m", "256"], port)
    exercise_memcached(box, port)
    server.stop()
    box.expect_accelerated()


def postgres_data(box):
    """Where PostgreSQL's programs are, and a new folder of its data."""
    candidates = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not candidates:
        raise Skip("not installed: postgresql (scripts/setup.sh programs)")
    if os.geteuid() != 0:
        raise Skip("PostgreSQL is run as user postgres, which needs root")
    programs = candidates[-1].parent
    data = box.folder / "data"
    box.folder.chmod(0o755)
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")
    stats = [box.file(f"stats-{number}.json") for number in range(20)]
    for file in stats:
        file.touch()
        file.chmod(0o666)
    box.start([programs / "initdb", "-D", data, "--no-sync", "-A", "trust"], user="postgres",
              cwd="/").wait(120)
    return programs, data


def await_postgres(box, programs, at):
    """It lets clients in before the database is ready."""
    for _ in range(100):
        ready = box.start([programs / "pg_isready", *at])
        if ready.wait(20, codes=None) is not None and ready.process.returncode == 0:
            return
        time.sleep(0.1)


def exercise_postgres(box, programs, at):
    """pgbench and many rows, by the options that say where the server is."""
    await_postgres(box, programs, at)
    bench = programs / "pgbench"
    box.client([bench, *at, "-i", "-q", "postgres"], user="postgres", cwd="/", seconds=120)
    out = box.client([bench, *at, "-c", "8", "-j", "2", "-T", box.seconds or 3, "postgres"],
                     user="postgres", cwd="/").decode()
    expect(f"pgbench: {out}", "number of failed transactions: 0 (0.000%)" in out)
    sums = box.client([programs / "psql", *at, "-At", "-c",
                       "select (select sum(abalance) from pgbench_accounts), "
                       "(select sum(bbalance) from pgbench_branches), "
                       "(select sum(tbalance) from pgbench_tellers), "
                       "(select sum(delta) from pgbench_history)", "postgres"],
                      user="postgres", cwd="/").decode().strip().split("|")
    expect_equal("one sum in four tables", len(set(sums)), 1)
    rows = box.client([programs / "psql", *at, "-At", "-c",
                       "select g, repeat(md5(g::text), 40) from generate_series(1, 20000) g",
                       "postgres"], user="postgres", cwd="/")
    expect_equal("rows", rows.count(b"\n"), 20000)


def start_postgres(box):
    """Where its programs are, the server, its port, and the options that say where it is."""
    programs, data = postgres_data(box)
    port = box.port()
    server = box.server([programs / "postgres", "-D", data, "-p", port, "-c", "fsync=off", "-c",
                         "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="], port,
                        user="postgres", cwd="/")
    return programs, server, port, ["-h", "127.0.0.1", "-p", port, "-U", "postgres"]


def postgres(box):
    programs, server, _, at = start_postgres(box)
    exercise_postgres(box, programs, at)
    server.stop(number=signal.SIGINT, seconds=40)
    box.expect_accelerated()


TESTS = {"redis": redis, "redis_replica": redis_replica, "memcached": memcached,
         "postgres": postgres}
