# SPDX-License-Identifier: Apache-2.0
"""The command line that the plotting scripts share."""

import argparse
import contextlib


def run(description, results, read, plot, summarise):
    """Reads the results named on the command line, and draws or sums up what is asked for.

    results: keywords for the argument of that name; read() takes its value and returns what
    plot(..., path) and summarise(...) take. With neither --plot nor --summary: sums up on
    standard output.
    """
    parser = argparse.ArgumentParser(description=description.split("\n\n", maxsplit=1)[0])
    parser.add_argument("results", **results)
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--summary", metavar="FILE.md")
    arguments = parser.parse_args()
    data = read(arguments.results)
    if arguments.plot:
        plot(*data, arguments.plot)
    if arguments.summary:
        with open(arguments.summary, "w", encoding="utf-8") as file:
            with contextlib.redirect_stdout(file):
                summarise(*data)
    elif not arguments.plot:
        summarise(*data)
