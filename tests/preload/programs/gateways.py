# SPDX-License-Identifier: Apache-2.0
"""Applications behind a web server that reaches them at a path: uwsgi, gunicorn, PHP."""

import hashlib
import os
import pathlib
import random
import signal
import subprocess
import time

from ends import HERE, Skip, expect, expect_equal, need
from paths import await_path, server_at
from web import PATIENT, check_wrk

CLIENTS = HERE / "clients"
PYTHON = "/usr/bin/python3"

NGINX = """
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
  upstream back {{ server unix:{folder}/back; {keepalive} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ {pass_on} }}
  }}
}}
"""


def start_front(box, pass_on, keepalive=""):
    port = box.port()
    config = box.file("nginx.conf", NGINX.format(
        folder=box.folder, port=port, pass_on=pass_on, keepalive=keepalive))
    box.client_side = box.start([need("nginx"), "-c", config, "-e", "stderr"], box.mix.client)
    box.await_port(box.client_side, port)
    return box.client_side, port


def curl(box, port, path, *options):
    """curl itself is plain: what is tested is behind the web server."""
    return box.start([need("curl"), "-sS", "--fail", "--max-time", "30", *options,
                      f"http://127.0.0.1:{port}/{path}"]).wait(60)


def exercise(box, port):
    """Small answers, large ones, large requests, and many at once."""
    data = random.Random(5).randbytes(6 << 20)
    wanted = f"{len(data)} {hashlib.sha256(data).hexdigest()}\n".encode()
    posted = box.file("posted", data)
    for _ in range(3):
        expect_equal("the digest of an upload", curl(
            box, port, "digest", "-H", "Expect:",
            "-H", "Content-Type: application/octet-stream", "--data-binary", f"@{posted}"), wanted)
    block = bytes(range(256)) * 256
    for size in (0, 1, 70000, 8 << 20):
        expect_equal(f"{size} bytes", curl(box, port, size) == (block * (size // len(block) + 1))[:size],
                     True)
    text = check_wrk(box.start([need("wrk"), *PATIENT, "-t2", "-c16", f"-d{box.seconds or 1}s",
                                f"http://127.0.0.1:{port}/1000"]).wait(60), 50)
    expect(f"wrk saw errors: {text}", "Socket errors" not in text)


def workers_die_and_return(box, port, master, reload):
    """Workers are killed, and replaced by a reload, while requests come."""
    load = box.start([need("wrk"), *PATIENT, "-t2", "-c8", "-d3s", f"http://127.0.0.1:{port}/1000"])
    for _ in range(3):
        time.sleep(0.3)
        victim = int(curl(box, port, "pid", "--retry", "20", "--retry-all-errors"))
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was the last one before a reload
        time.sleep(0.3)
        os.kill(master, reload)
    load.wait(60)
    deadline = time.monotonic() + 20
    good = 0
    while good < 30:
        expect(f"only {good} answers in a row after the reloads", time.monotonic() < deadline)
        try:
            curl(box, port, "pid")
            good += 1
        except Exception:  # pylint: disable=broad-except
            good = 0
            time.sleep(0.1)


def uwsgi(box):
    program = need("uwsgi")
    plugins = "/usr/lib/uwsgi/plugins/python3_plugin.so"
    if not pathlib.Path(plugins).exists():
        raise Skip("not installed: uwsgi-plugin-python3 (scripts/setup.sh programs)")
    server = server_at(box, box.folder / "back", [
        program, "--plugin", plugins, "--socket", box.folder / "back", "--master", "--processes", "3",
        "--listen", "100", "--wsgi-file", CLIENTS / "wsgi_app.py", "--disable-logging",
        "--die-on-term", "--buffer-size", "16384"])
    front, port = start_front(box, "include /etc/nginx/uwsgi_params; uwsgi_pass back;")
    exercise(box, port)
    workers_die_and_return(box, port, server.program_pid(), signal.SIGHUP)
    finish(box, server, front)


def gunicorn(box):
    need("gunicorn")
    server = server_at(box, box.folder / "back", [
        PYTHON, "-m", "gunicorn", "--bind", f"unix:{box.folder}/back", "--workers", "3",
        "--chdir", CLIENTS, "--threads", "2", "--worker-class", "gthread", "--keep-alive", "5", "wsgi_app"])
    front, port = start_front(box, "proxy_pass http://back; proxy_http_version 1.1; "
                              'proxy_set_header Connection "";', "keepalive 4;")
    exercise(box, port)
    workers_die_and_return(box, port, server.program_pid(), signal.SIGHUP)
    finish(box, server, front)


PHP = """
[global]
daemonize = no
error_log = /dev/stderr
pid = {folder}/php.pid
[www]
listen = {folder}/back
listen.backlog = 100
user = root
pm = dynamic
pm.max_children = 6
pm.start_servers = 2
pm.min_spare_servers = 1
pm.max_spare_servers = 3
pm.max_requests = 500
php_admin_value[post_max_size] = 64M
"""


def php(box):
    programs = sorted(pathlib.Path("/usr/sbin").glob("php-fpm*"))
    if not programs:
        raise Skip("not installed: php-fpm (scripts/setup.sh programs)")
    config = box.file("php.conf", PHP.format(folder=box.folder))
    server = server_at(box, box.folder / "back", [programs[-1], "-R", "-n", "-y", config])
    front, port = start_front(box, "include /etc/nginx/fastcgi_params; fastcgi_keep_conn on; "
                              f"fastcgi_param SCRIPT_FILENAME {CLIENTS}/app.php; fastcgi_pass back;",
                              "keepalive 4;")
    exercise(box, port)
    workers_die_and_return(box, port, server.program_pid(), signal.SIGUSR2)
    finish(box, server, front)


def finish(box, server, front):
    await_path(server, box.folder / "back")
    server.stop()
    front.stop(number=signal.SIGQUIT)
    expect(f"nginx complained: {front.text()}", "alert" not in front.text())
    box.expect_accelerated("unix")


TESTS = {"uwsgi": uwsgi, "gunicorn": gunicorn, "php": php}
