# SPDX-License-Identifier: Apache-2.0
"""Each room has one header (or main file) whose top comment begins, after the file's name, with three sentences about
the room: what it does; who calls it; what it never does. The paragraph begins with the room's name: `cache/ keeps ...`."""
import glob
import os
import re
import sys

ROOMS = ("kernels", "sched/*", "engine/*", "expertfs/*", "tools/moe-replay/*", "tools/ggml", "tools/runmoe",
         "tools/mkexpertfs", "tools/expertctl", "tools/common")


def paragraphs(path):
    """The paragraphs of a file's top comment, the one after the licence."""
    with open(path, encoding="utf-8") as file:
        comment = re.match(r"/\* SPDX[^\n]*\n/\*(.*?)\*/", file.read(), re.DOTALL)
    text = re.sub(r"^ \* ?", "", comment[1], flags=re.MULTILINE) if comment else ""
    return [" ".join(part.split()) for part in text.split("\n\n")]


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    bad = []
    for room in sorted(path for pattern in ROOMS for path in glob.glob(pattern) if glob.glob(f"{path}/*.c")):
        start = os.path.basename(room) + "/ "
        found = [(path, parts[1]) for path in sorted(glob.glob(f"{room}/*.[ch]"))
                 for parts in [paragraphs(path)] if len(parts) > 1 and parts[1].startswith(start)]
        if len(found) != 1:
            bad.append(f"{room}: {len(found)} top comments begin with `{start}`, not 1 {[path for path, _ in found]}")
        bad += [f"{path}: not three sentences about {room}, or none with `never`" for path, text in found
                if len(re.findall(r"\.(?= [A-Za-z]|$)", text)) < 3 or " never " not in text]
    sys.exit("\n".join(bad) or 0)


if __name__ == "__main__":
    main()
