# SPDX-License-Identifier: Apache-2.0
"""Programs that meet at a path: servers with unix sockets, and pairs of processes."""

import hashlib
import pathlib
import random
import shutil
import signal
import time

from ends import HERE, Failed, expect, expect_equal, need
from servers import exercise_memcached, exercise_postgres, exercise_redis, postgres_data

PYTHON = "/usr/bin/python3"
CLIENTS = HERE / "clients"


def listens(path):
    """Between bind and listen there is a name, but nobody can connect to it. Some programs bind a
    longer name, which the kernel goes on to list, and rename it when they listen."""
    accepts = 0x10000
    for line in pathlib.Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        words = line.split(maxsplit=7)
        if words[-1].startswith(str(path)) and int(words[3], 16) & accepts:
            return path.is_socket()
    return False


def await_path(process, path, seconds=30):
    deadline = time.monotonic() + seconds
    while not listens(path):
        if not process.alive():
            raise Failed(f"{process.name} ended at once\n{process.text()}")
        if time.monotonic() > deadline:
            raise Failed(f"{process.name} does not listen\n{process.text()}")
        time.sleep(0.02)


def server_at(box, path, words, **options):
    server = box.start(words, box.mix.server, **options)
    await_path(server, path)
    return server


def redis_path(box):
    path = box.folder / "redis"
    server = server_at(box, path, [need("redis-server"), "--port", "0", "--unixsocket", path,
                                   "--save", "", "--appendonly", "no", "--dir", box.folder])
    exercise_redis(box, ["-s", path])
    server.stop()
    box.expect_accelerated("unix")


def memcached_path(box):
    path = box.folder / "memcached"
    server = server_at(box, path, [need("memcached"), "-s", path, "-t", "4", "-u", "root",
                                   "-I", "4m", "-m", "256"])
    exercise_memcached(box, path)
    server.stop()
    box.expect_accelerated("unix")


def postgres_path(box):
    programs, data = postgres_data(box)
    place = box.folder / "place"
    place.mkdir()
    shutil.chown(place, "postgres", "postgres")
    server = server_at(box, place / ".s.PGSQL.5432",
                       [programs / "postgres", "-D", data, "-c", "fsync=off", "-c",
                        "listen_addresses=", "-c", f"unix_socket_directories={place}"],
                       user="postgres", cwd="/")
    exercise_postgres(box, programs, ["-h", place, "-U", "postgres"])
    server.stop(number=signal.SIGINT, seconds=40)
    box.expect_accelerated("unix")


NGINX = """
user root;
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_max_body_size 64m;
  upstream back {{ server unix:{folder}/back; keepalive 4; }}
  server {{
    listen unix:{folder}/front;
    root {folder}/root;
    location /through/ {{
      proxy_pass http://back/; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
  server {{ listen unix:{folder}/back; root {folder}/root; }}
}}
"""


def nginx_path(box):
    """What curl gets at a path, from a server and through a proxy to another path."""
    curl = need("curl")
    root = box.folder / "root"
    root.mkdir()
    (root / "small").write_bytes(b"small\n")
    large = random.Random(3).randbytes(8 << 20)
    (root / "large").write_bytes(large)
    config = box.file("nginx.conf", NGINX.format(folder=box.folder))
    server = server_at(box, box.folder / "front", [need("nginx"), "-c", config, "-e", "stderr"])
    ask = [curl, "-sS", "--fail", "--max-time", "30", "--unix-socket", box.folder / "front"]
    for place in ("", "through/"):
        out = box.client([*ask, f"http://here/{place}large", f"http://here/{place}large"])
        expect_equal("what curl got", [hashlib.sha256(out[:len(large)]).digest(),
                                       hashlib.sha256(out[len(large):]).digest()],
                     [hashlib.sha256(large).digest()] * 2)
        expect_equal("many small ones", box.client([*ask, f"http://here/{place}small?[1-300]"]),
                     b"small\n" * 300)
    server.stop(number=signal.SIGQUIT)
    expect(f"nginx complained: {server.text()}", "alert" not in server.text())
    box.expect_accelerated("unix")


def node_path(box):
    path = box.folder / "echo"
    server = server_at(box, path, [need("node"), CLIENTS / "echo.js", "server", path])
    out = box.client([need("node"), CLIENTS / "echo.js", "client", path, "20", "40000"], seconds=90)
    expect_equal("echoes at a path", out, b"20 echoes\n")
    server.stop()
    box.expect_accelerated("unix")


def pairs(box):
    """Processes that a program makes, and talks to over pairs of sockets."""
    out = box.client([PYTHON, CLIENTS / "pairs.py", box.seed], seconds=120)
    expect_equal("what the parent says", out, b"all answers are right\n")
    box.expect_accelerated("unix")


def packets(box):
    """Clients of a server of packets, in Python and in Perl."""
    path = box.folder / "packets"
    server = server_at(box, path, [PYTHON, CLIENTS / "packets.py", "server", path])
    for words in ([PYTHON, CLIENTS / "packets.py", "client", path, box.seed],
                  [need("perl"), CLIENTS / "packets.pl", path]):
        out = box.client(words, seconds=90)
        expect_equal("what a client says", out, b"all packets came back\n")
    server.stop()
    box.expect_accelerated("unix")


def dbus(box):
    """Calls and signals over the bus, whose daemon and clients ask for credentials."""
    send = need("dbus-send")
    path = box.folder / "bus"
    config = box.file("bus.conf", f"""<busconfig><type>session</type>
<listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="true"/>
<allow eavesdrop="true"/><allow own="*"/>
<allow user="*"/></policy></busconfig>""")
    server = server_at(box, path, [need("dbus-daemon"), f"--config-file={config}", "--nofork"])
    at = f"unix:path={path}"
    for _ in range(20):
        out = box.client([send, f"--bus={at}", "--print-reply", "--dest=org.freedesktop.DBus",
                          "/org/freedesktop/DBus", "org.freedesktop.DBus.ListNames"])
        expect(f"the answer of the bus: {out}", b"org.freedesktop.DBus" in out)
    server.stop()


TESTS = {"redis_path": redis_path, "memcached_path": memcached_path,
         "postgres_path": postgres_path, "nginx_path": nginx_path, "node_path": node_path,
         "pairs": pairs, "packets": packets, "dbus": dbus}
