# SPDX-License-Identifier: Apache-2.0
"""The types are what mypy --strict thinks they are."""

import os
import pathlib
import subprocess
import sys

import pytest

SOURCE = pathlib.Path(os.environ["FARCALL_SOURCE"]) / "bindings/python/src"

USER = """
import farcall

a, b = farcall.pipe(capacity="1M", wait="spin")
reveal_type(b.recv(timeout=1.5))
reveal_type(a.recv_into(bytearray(1)))
reveal_type(farcall.open_pipe("x"))
async def use() -> None:
    reveal_type(await a.arecv())
    async for m in a:
        reveal_type(m)
for message in b:
    reveal_type(message)
with farcall.Broadcast("x", capacity="1M", policy="block") as w:
    reveal_type(w)
    reveal_type(w.invite().accept())
    reveal_type(farcall.subscribe("x").missed)
q = farcall.Queue(3)
reveal_type(q.qsize())
c, d = farcall.Pipe()
reveal_type(c)
"""
WRONG = """
import farcall
farcall.pipe(wait="never")
farcall.pipe()[0].send("text")
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Of what mypy knows of the library of Python, which takes it long to read."""
    return tmp_path_factory.mktemp("mypy")


def mypy(cache, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), *arguments],
        env={**os.environ, "MYPYPATH": str(SOURCE)}, capture_output=True, text=True, check=False)


def test_the_package_is_strict(cache):
    done = mypy(cache, "-p", "farcall")
    assert done.returncode == 0, done.stdout + done.stderr


def test_users_see_types(tmp_path, cache):
    (tmp_path / "user.py").write_text(USER)
    done = mypy(cache, str(tmp_path / "user.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    revealed = [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed type" in line]
    assert revealed == ["builtins.bytes", "builtins.int", "farcall.pipes.PipeEnd", "builtins.bytes",
                        "builtins.bytes", "builtins.bytes", "farcall.broadcast.Broadcast",
                        "farcall.broadcast.Subscriber", "builtins.int", "builtins.int",
                        "farcall.connection.Connection"]


def test_mistakes_are_found(tmp_path, cache):
    (tmp_path / "wrong.py").write_text(WRONG)
    done = mypy(cache, str(tmp_path / "wrong.py"))
    assert done.stdout.count(": error:") == 2, done.stdout


def test_the_stubs_have_what_the_module_has():
    import ast

    import farcall._farcall as module
    tree = ast.parse((SOURCE / "farcall/_farcall.pyi").read_text())
    classes = {node.name: {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
               for node in tree.body if isinstance(node, ast.ClassDef)}
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name in dir(module):
        thing = getattr(module, name)
        if name.startswith("__"):
            continue
        if isinstance(thing, type) and not issubclass(thing, OSError):
            there = {attribute for attribute in vars(thing) if not attribute.startswith("__")}
            assert there == {item for item in classes[name] if not item.startswith("__")}, name
        elif callable(thing) and not isinstance(thing, type):
            assert name in functions, name
