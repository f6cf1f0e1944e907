# SPDX-License-Identifier: Apache-2.0
"""Web servers and what stands before them: nginx, haproxy, with curl and wrk."""

import hashlib
import os
import random
import re
import signal
import time

from ends import expect, expect_equal, need

NGINX = """
user root;
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; {events} }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  sendfile {sendfile}; keepalive_requests 100000;
  client_max_body_size 64m; client_body_buffer_size 16k;
  server {{
    listen 127.0.0.1:{port} {listen};
    root {folder}/root;
    location /put {{ proxy_pass http://127.0.0.1:{port}/back; }}
    location /back {{ return 200 "taken\\n"; }}
  }}
}}
"""

HAPROXY = """
global
  nbthread 2
  log stderr local0 warning
defaults
  mode {mode}
  timeout connect 5s
  timeout client 20s
  timeout server 20s
frontend front
  bind 127.0.0.1:{port}
  default_backend back
backend back
  server one 127.0.0.1:{behind}
"""


# wrk counts an answer as an error that takes two seconds, if not told otherwise.
PATIENT = ("--timeout", "60s")


def start_nginx(box, workers=2, sendfile="on", listen="", events=""):
    program = need("nginx")
    port = box.port()
    root = box.folder / "root"
    root.mkdir(exist_ok=True)
    (root / "small").write_bytes(b"small\n")
    (root / "large").write_bytes(random.Random(3).randbytes(8 << 20))
    config = box.file("nginx.conf", NGINX.format(folder=box.folder, port=port, workers=workers,
                                                 sendfile=sendfile, listen=listen, events=events))
    return box.server([program, "-c", config, "-e", "stderr"], port), port


def check_wrk(out, least):
    text = out.decode()
    # wrk counts as a read error also what a server closes between two requests; a reload does.
    expect(f"wrk: {text}", "Non-2xx" not in text)
    requests = re.search(r"(\d+) requests in", text)
    expect(f"wrk: {text}", requests and int(requests[1]) >= least)
    return text


def check_downloads(box, port, times=2):
    curl = need("curl")
    wanted = hashlib.sha256((box.folder / "root" / "large").read_bytes()).hexdigest()
    for _ in range(times):
        # Two transfers over one connection.
        out = box.client([curl, "-sS", "--fail", "--max-time", "30",
                          f"http://127.0.0.1:{port}/large", f"http://127.0.0.1:{port}/large"])
        half = len(out) // 2
        expect_equal("what curl got", [hashlib.sha256(part).hexdigest()
                                       for part in (out[:half], out[half:])], [wanted] * 2)


def nginx(box):
    wrk, curl = need("wrk", "curl")
    for options in ({}, {"sendfile": "off", "listen": "reuseport"},
                    {"events": "accept_mutex on; multi_accept on;"}):
        server, port = start_nginx(box, **options)
        check_downloads(box, port)
        text = check_wrk(box.client([wrk, *PATIENT, "-t2", "-c32", f"-d{box.seconds or 1}s",
                                     f"http://127.0.0.1:{port}/small"]), 100)
        expect(f"wrk saw errors: {text}", "Socket errors" not in text)
        out = box.client([curl, "-sS", "--fail", "--max-time", "30", "-T", box.folder / "root" / "large",
                          f"http://127.0.0.1:{port}/put"])
        expect_equal("the answer to an upload", out, b"taken\n")
        expect_equal("HEAD of many", box.client(
            [curl, "-sS", "--fail", "--max-time", "30", "-o", "/dev/null", "-w", "%{http_code}\n",
             f"http://127.0.0.1:{port}/small?[1-300]"]), b"200\n" * 300)
        server.stop(number=signal.SIGQUIT)
        expect(f"nginx complained: {server.text()}", "alert" not in server.text())
    box.expect_accelerated()


def nginx_reload(box):
    """New workers take over while the old ones finish what they have."""
    wrk = need("wrk")
    server, port = start_nginx(box, workers=3)
    seconds = (box.seconds or 1) + 2
    load = box.start([wrk, *PATIENT, "-t2", "-c32", f"-d{seconds}s", f"http://127.0.0.1:{port}/small"],
                     box.mix.client)
    master = int((box.folder / "nginx.pid").read_text())
    for _ in range(3):
        time.sleep(0.6)
        os.kill(master, signal.SIGHUP)
    check_wrk(load.wait(seconds + 30), 100)
    check_downloads(box, port)
    server.stop(number=signal.SIGQUIT)
    expect(f"nginx complained: {server.text()}", "alert" not in server.text())
    box.expect_accelerated()


def haproxy(box):
    program, wrk = need("haproxy", "wrk")
    behind, behind_port = start_nginx(box)
    for mode in ("http", "tcp"):
        port = box.port()
        config = box.file("haproxy.cfg",
                          HAPROXY.format(mode=mode, port=port, behind=behind_port))
        proxy = box.server([program, "-db", "-f", config], port)
        check_downloads(box, port)
        text = check_wrk(box.client([wrk, *PATIENT, "-t2", "-c32", f"-d{box.seconds or 1}s",
                                     f"http://127.0.0.1:{port}/small"]), 100)
        expect(f"wrk saw errors: {text}", "Socket errors" not in text)
        proxy.stop(number=signal.SIGTERM)
    behind.stop(number=signal.SIGQUIT)
    box.expect_accelerated()


TESTS = {"nginx": nginx, "nginx_reload": nginx_reload, "haproxy": haproxy}
