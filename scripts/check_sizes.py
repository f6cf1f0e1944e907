#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tells of files and functions that are too long to be read at once: of src, of the tests and of the
kernel module."""
import itertools
import pathlib
import re
import sys

FILE_LINES = 500
FUNCTION_LINES = 60

# What may hold braces that are none. Numbers are among it for the marks between their digits.
NO_CODE = re.compile(
    r"""R"(\w*)\(.*?\)\1" | "(?:\\.|[^"\\\n])*" | \b\d[\w'.]* | '(?:\\.|[^'\\\n])+'
        | //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:\\\n|[^\n])*""", re.DOTALL | re.MULTILINE | re.VERBOSE)
ALIGNMENT = re.compile(r"\balignas\([^()]*(?:\([^()]*\))?[^()]*\)")
HOLDS_FUNCTIONS = re.compile(r"^(?:template\b.*|inline|typedef|static|const|\s)*"
                             r"\b(?:namespace|class|struct|union|enum|extern)\b[^()=]*$", re.DOTALL)


def functions(text):
    """The head of each function, with its first and its last line."""
    text = NO_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    holders, depth, begin = 0, 0, 0  # of the depth, as many hold functions
    head = None  # of what is read, from where
    for found in re.finditer(r"[{};]", text):
        at, mark = found.start(), found[0]
        if mark == "{":
            if head is None:
                opened = text[begin:at].strip()
                if HOLDS_FUNCTIONS.match(ALIGNMENT.sub("", opened)):
                    holders += 1
                else:
                    head = begin, opened
            depth += 1
        elif mark == "}":
            depth -= 1
            if head is not None and depth == holders:
                start = text.index(head[1], head[0])
                # What is no function: tables.
                if "(" in head[1] and not re.search(r"[^=!<>]=\s*(\[|$)", head[1]):
                    yield head[1], text.count("\n", 0, start) + 1, text.count("\n", 0, at) + 1
                head = None
            elif head is None:
                holders -= 1
        if head is None:
            begin = at + 1
    if depth != 0:
        raise ValueError("braces do not match")


def main():
    source = [pathlib.Path(folder).rglob(f"*.{end}") for folder in ("src", "tests") for end in ("cpp", "hpp")]
    tests = [pathlib.Path("tests").rglob(f"*.{end}") for end in ("c", "py")]
    module = [pathlib.Path("kernel", folder).glob("*.[ch]") for folder in ("", "doors", "handles")]
    failed = 0
    for file in sorted(itertools.chain(*source, *tests, *module)):
        text = file.read_text()
        if (lines := text.count("\n")) > FILE_LINES:
            print(f"{file}: {lines} lines, more than {FILE_LINES}")
            failed = 1
        if file.suffix == ".py":
            continue
        for head, first, last in functions(text):
            if last - first >= FUNCTION_LINES:
                name = head.split("(")[0].split()[-1]
                print(f"{file}:{first}: {name}() has {last - first + 1} lines, more than {FUNCTION_LINES}")
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
