#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tells of includes from a room that is not used: what farcall_room() in a CMakeLists.txt says."""
import pathlib
import re
import sys

ROOM = re.compile(r"^farcall_room\((\w+)([^)]*)\)", re.MULTILINE)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def words(text, name):
    """What follows a keyword of farcall_room()."""
    found = re.search(rf"\b{name}\b((?:\s+(?!USES|HEADERS|SOURCES)\S+)*)", text)
    return found.group(1).split() if found else []


def main():
    rooms, owner, place = {}, {}, {}
    for file in [*sorted(pathlib.Path("src").glob("*/CMakeLists.txt")),
                 pathlib.Path("bindings/c/CMakeLists.txt")]:
        for room, rest in ROOM.findall(file.read_text()):
            rooms[room] = words(rest, "USES")
            place[room] = file.parent
            for header in words(rest, "HEADERS"):
                owner["farcall/" + header] = room

    def reach(room):
        return {room}.union(*(reach(used) for used in rooms[room]))

    failed = 0
    for room in rooms:
        public = [name for name, of in owner.items() if of == room]
        files = [*place[room].glob("*.[ch]pp")]
        files += [pathlib.Path("include", name) for name in public]
        for file in files:
            if not file.is_file():
                continue
            for name in INCLUDE.findall(file.read_text()):
                first = name.split("/")[0]
                of = owner.get(name) or owner.get("/".join(name.split("/")[:2])) or first
                beside = (file.parent / name).is_file()
                if "../" in name or not (beside or of in reach(room)):
                    print(f"{file}: {room} does not use the room of {name}")
                    failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
