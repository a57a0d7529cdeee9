# SPDX-License-Identifier: Apache-2.0
"""ARCHITECTURE.md has the order in which memory is reclaimed word for word: ranks of extent.h, for whom of reclaim.c."""
import os
import re
import sys

os.chdir(os.path.join(os.path.dirname(__file__), "../.."))
header, source, pages = (open(path, encoding="utf-8").read() for path in
                         ("engine/cache/extent.h", "engine/cache/reclaim.c", "ARCHITECTURE.md"))
macros = dict(re.findall(r"#define ([A-Z_]+) \((.*)\)$", source, re.M))
rows = []
for rank, what in re.findall(r"EFS_RANK_(\w+), +/\* (.*?) \*/", re.sub(r"\n +\* ", " ", header)):
    whom = re.search(rf"\[EFS_RANK_{rank}\] = (.*),", source).group(1)
    for name, value in macros.items():
        whom = re.sub(rf"\b{name}\b", lambda _, value=value: value, whom)
    rows.append(f"    {rank:<15} {' '.join(re.findall(r'[(]([A-Z]+)[)]', whom)).lower():<45} {what}")
if len(sys.argv) > 1:
    print("\n".join(rows))
    sys.exit(0)
if len(rows) < 10 or "\n".join(rows) + "\n" not in pages:
    sys.exit("ARCHITECTURE.md: the order of eviction is not that of reclaim.c; tests/house/test_order.py --print has it")
print(f"{len(rows)} ranks")
