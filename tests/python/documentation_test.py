# SPDX-License-Identifier: Apache-2.0
"""What the docstrings, the README and the guide show is what happens."""

import doctest
import importlib
import os
import pathlib
import pkgutil
import re
import subprocess
import sys

import pytest

import farcall

SOURCE = pathlib.Path(os.environ["FARCALL_SOURCE"])
MODULES = [f"farcall.{module.name}" for module in pkgutil.iter_modules(farcall.__path__)
           if module.name != "_farcall"]


@pytest.mark.parametrize("name", ["farcall", *MODULES])
def test_examples_of_docstrings_are_true(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    assert sum(doctest.testmod(importlib.import_module(name)).attempted for name in MODULES) > 10


def test_everything_public_is_documented():
    for name in farcall.__all__:
        thing = getattr(farcall, name)
        assert thing.__doc__, name
        if isinstance(thing, type) and thing.__module__.startswith("farcall") and thing is not farcall.Connection:
            for attribute in vars(thing):
                if not attribute.startswith("_"):
                    assert getattr(thing, attribute).__doc__, f"{name}.{attribute}"


def programs(path):
    """The Python programs of a page."""
    return re.findall(r"^```python\n(.*?)^```", (SOURCE / path).read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", ["README.md", "docs/guide/python.md"])
def test_programs_of_a_page_run(path):
    found = programs(path)
    assert found
    for program in found:
        done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, program + done.stderr
        for line in re.findall(r"# prints (.*)", program):
            assert line in done.stdout.splitlines(), (program, done.stdout)
