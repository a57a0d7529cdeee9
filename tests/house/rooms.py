#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rooms.py [--write | --check]: the picture of the rooms in ARCHITECTURE.md, made from the #include lines of the tree.

A room's level is one more than the highest level of a room that it includes. Without an option it prints the picture;
--write puts it into ARCHITECTURE.md. --check compares
the two, for test_house.sh."""
import glob
import os
import re
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
TREES = ("kernels", "sched", "engine", "expertfs")
BEGIN, END = "<!-- rooms: made by tests/house/rooms.py --write -->\n", "<!-- rooms end -->\n"


def rooms():
    """{room: [files]}; files directly in a tree's folder belong to the room TREE/ itself."""
    found = {}
    for tree in TREES:
        for path in sorted(glob.glob(f"{ROOT}/{tree}/**/*.[ch]", recursive=True) + glob.glob(f"{ROOT}/{tree}/**/*.cu", recursive=True)):
            folder = os.path.relpath(os.path.dirname(path), ROOT)
            found.setdefault("kernels" if folder.startswith("kernels") else folder, []).append(path)
    return found


def includes(path):
    return re.findall(r'^#include "([^"]+)"', open(path, encoding="utf-8").read(), re.M)


def uses(found):
    """{room: rooms that its files include}."""
    by_name = {}
    for room, files in found.items():
        for path in files:
            by_name.setdefault(os.path.basename(path), []).append(room)
    out = {}
    for room, files in found.items():
        out[room] = set()
        for path in files:
            for name in includes(path):
                owners = by_name.get(os.path.basename(name), [])
                if room in owners or not owners:
                    continue
                tree = room.split("/")[0]
                same = [o for o in owners if o.split("/")[0] == tree]
                out[room].add((same or owners)[0])
    return out


def levels(edges):
    level = {}

    def of(room, path=()):
        if room in path:
            sys.exit(f"rooms include each other: {' -> '.join((*path[path.index(room):], room))}")
        if room not in level:
            level[room] = 1 + max((of(r, (*path, room)) for r in edges[room]), default=0)
        return level[room]
    for room in edges:
        of(room)
    return level


def picture():
    found = rooms()
    edges = uses(found)
    public = {"engine", "expertfs"} & set(edges)  # headers that every room of the tree includes
    for room in edges:
        edges[room] -= {room.split("/")[0]} & public
    for room in public:
        edges[room] = set()
    level = levels(edges)
    lines = ["level  room               includes headers of", ""]
    low = {n: sorted(r for r in edges if r not in public and level[r] == n) for n in (2, 1)}
    for room in sorted((r for r in edges if r not in public and level[r] > 2), key=lambda r: (-level[r], r)):
        tree = room.split("/")[0]
        names = sorted(edges[room], key=lambda r: (-level[r], r))
        shown = " ".join(n.split("/")[1] if n.startswith(tree + "/") else n for n in names)
        lines.append(f"{level[room]:5}  {room:18} {shown}".rstrip())
    lines += [f"{n:5}  {' '.join(low[n])}" for n in low]
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def main():
    made = picture()
    if not {"--write", "--check"} & set(sys.argv):
        print(made, end="")
        return
    path = f"{ROOT}/ARCHITECTURE.md"
    text = open(path, encoding="utf-8").read()
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    if "--check" in sys.argv:
        sys.exit(old != f"\n{made}\n" and "ARCHITECTURE.md: its picture of the rooms is old: tests/house/rooms.py --write")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{before}{BEGIN}\n{made}\n{END}{after}")


if __name__ == "__main__":
    main()
