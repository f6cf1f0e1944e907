# SPDX-License-Identifier: Apache-2.0
"""Proxies that reach a web server at a path: haproxy, lighttpd, varnish, nginx's streams."""

import hashlib
import os
import random
import re
import signal
import time

from ends import expect, expect_equal, need
from paths import server_at
from web import PATIENT, check_wrk

BACK = """
user root;
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  client_max_body_size 64m; client_body_buffer_size 16k;
  server {{
    listen unix:{folder}/back;
    root {folder}/root;
    location /put {{ proxy_pass http://unix:{folder}/back:/taken; }}
    location /taken {{ return 200 "taken\\n"; }}
  }}
}}
"""

HAPROXY = """
global
  nbthread 2
  log stderr local0 warning
  stats socket {folder}/admin level admin
defaults
  mode {mode}
  timeout connect 5s
  timeout client 20s
  timeout server 20s
frontend front
  bind 127.0.0.1:{port}
  bind unix@{folder}/front
  default_backend back
backend back
  server one unix@{folder}/back {options}
"""

LIGHTTPD = """
server.modules = ( "mod_proxy" )
server.document-root = "{folder}/root"
server.bind = "{folder}/front"
server.errorlog = "/dev/stderr"
server.upload-dirs = ( "{folder}" )
proxy.server = ( "" => (( "host" => "{folder}/back" )) )
"""

VARNISH = """
vcl 4.1;
backend back {{ .path = "{folder}/back"; }}
sub vcl_recv {{ return (pass); }}
"""


def start_back(box):
    root = box.folder / "root"
    root.mkdir(exist_ok=True)
    (root / "small").write_bytes(b"small\n")
    (root / "large").write_bytes(random.Random(3).randbytes(8 << 20))
    config = box.file("back.conf", BACK.format(folder=box.folder))
    return server_at(box, box.folder / "back", [need("nginx"), "-c", config, "-e", "stderr"])


def exercise(box, wrk_port=None):
    """By way of the path `front`: downloads, uploads, many small ones."""
    ask = [need("curl"), "-sS", "--fail", "--max-time", "30", "--unix-socket", box.folder / "front"]
    large = box.folder / "root" / "large"
    wanted = hashlib.sha256(large.read_bytes()).digest()
    out = box.client([*ask, "http://here/large", "http://here/large"])
    half = len(out) // 2
    expect_equal("what curl got", [hashlib.sha256(part).digest() for part in (out[:half], out[half:])],
                 [wanted] * 2)
    for _ in range(2):
        expect_equal("the answer to an upload", box.client(
            [*ask, "-H", "Expect:", "-T", large, "http://here/put"]), b"taken\n")
    expect_equal("many small ones", box.client([*ask, "http://here/small?[1-300]"]), b"small\n" * 300)
    if wrk_port:
        text = check_wrk(box.client([need("wrk"), *PATIENT, "-t2", "-c16", "-d1s",
                                     f"http://127.0.0.1:{wrk_port}/small"]), 50)
        expect(f"wrk saw errors: {text}", "Socket errors" not in text)


def front_at(box, words, mix=None):
    return server_at(box, box.folder / "front", words)


def haproxy_path(box):
    program, socat = need("haproxy", "socat")
    back = start_back(box)
    for mode, options in (("http", ""), ("tcp", ""), ("http", "check inter 50ms")):
        port = box.port()
        config = box.file("haproxy.cfg", HAPROXY.format(folder=box.folder, mode=mode, port=port,
                                                        options=options))
        front = front_at(box, [program, "-db", "-f", config])
        exercise(box, port)
        # The administrator's path, while requests go through.
        for _ in range(10):
            out = box.client([socat, "-t", "5", "-", f"UNIX-CONNECT:{box.folder}/admin"],
                             stdin=box.file("ask", "show stat\n"))
            expect(f"show stat: {out[:200]}", b"back,one," in out)
        front.stop(number=signal.SIGTERM)
        (box.folder / "front").unlink(missing_ok=True)
    back.stop(number=signal.SIGQUIT)
    box.expect_accelerated("unix")


def haproxy_reload(box):
    """A master takes up new configurations while requests come: listeners are passed on by path."""
    program = need("haproxy")
    back, port = start_back(box), box.port()
    config = box.file("haproxy.cfg", HAPROXY.format(folder=box.folder, mode="http", port=port, options=""))
    config.write_text(config.read_text().replace("level admin", "level admin expose-fd listeners"))
    front = front_at(box, [program, "-W", "-db", "-f", config])
    load = box.start([need("wrk"), *PATIENT, "-t2", "-c16", "-d3s", f"http://127.0.0.1:{port}/small"], box.mix.client)
    master = front.program_pid()
    for _ in range(4):
        time.sleep(0.5)
        os.kill(master, signal.SIGUSR2)
    text = check_wrk(load.wait(60), 50)
    expect(f"wrk: {text}", re.search("timeout 0", text) or "Socket errors" not in text)
    exercise(box)
    front.stop()
    back.stop(number=signal.SIGQUIT)
    box.expect_accelerated("unix")


def lighttpd(box):
    program = need("lighttpd")
    back = start_back(box)
    front = front_at(box, [program, "-D", "-f", box.file("l.conf", LIGHTTPD.format(folder=box.folder))])
    exercise(box)
    front.stop()
    back.stop(number=signal.SIGQUIT)
    box.expect_accelerated("unix")


def varnish(box):
    program, admin = need("varnishd", "varnishadm")
    back = start_back(box)
    port = box.port()
    front = front_at(box, [
        program, "-F", "-j", "none", "-n", box.folder / "varnish", "-f", box.file("v.vcl", VARNISH.format(folder=box.folder)),
        "-a", f"127.0.0.1:{port}", "-a", f"{box.folder}/front,mode=777", "-s", "malloc,64m"])
    box.await_port(front, port)
    exercise(box, port)
    for _ in range(3):
        out = box.client([admin, "-n", box.folder / "varnish", "backend.list"])
        expect(f"backend.list: {out}", b"back" in out)
    front.stop()
    back.stop(number=signal.SIGQUIT)
    box.expect_accelerated("unix")


SUPERVISOR = """
[unix_http_server]
file={folder}/front
[supervisord]
nodaemon=true
user=root
logfile={folder}/supervisor.log
pidfile={folder}/supervisor.pid
childlogdir={folder}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/front
[program:one]
command=/bin/sh -c "seq 40000; exec sleep 1000"
[program:two]
command=/bin/cat
"""


def supervisor(box):
    daemon, control = need("supervisord", "supervisorctl")
    config = box.file("supervisor.conf", SUPERVISOR.format(folder=box.folder))
    front = front_at(box, [daemon, "-c", config])
    ask = [control, "-c", config]
    deadline = time.monotonic() + 20
    while box.client([*ask, "status"], codes=(0, 3)).count(b"RUNNING") != 2:
        expect("both programs run", time.monotonic() < deadline)
        time.sleep(0.2)
    for _ in range(2):
        box.client([*ask, "restart", "all"])
    out = box.client([*ask, "tail", "-100000", "one"])
    expect_equal("the end of the log", out.split()[-1], b"40000")
    box.client([*ask, "signal", "KILL", "one"])
    box.client([*ask, "stop", "all"])
    box.client([*ask, "shutdown"])
    front.wait(20)


TESTS = {"haproxy_path": haproxy_path, "haproxy_reload": haproxy_reload, "lighttpd": lighttpd,
         "varnish": varnish, "supervisor": supervisor}
