# SPDX-License-Identifier: Apache-2.0
"""moe-replay counts: the file that a mount plans from, for traces whose layers and experts are mapped to those of the
store; a refused trace leaves the previous file. Networks from traces with hidden states, which a mount uses that is told
such states."""
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

os.environ["EXPERTFS_STATE"] = scratch("state")
LAYERS, EXPERTS = 5, 4
store = make_store(make_model("m", "--family", "qwen3-moe", "--layers", "5", "--experts", "4", "--hidden", "64", "--intermediate", "64",
                              "--vocab", "320"))


def counts(*arguments):
    return run(program("moe-replay"), "counts", *arguments)


def route(name, sequences, ids):
    """Three layers, two of six experts a token."""
    with open(scratch(name), "wb") as f:
        f.write(b"MOETRACE" + struct.pack("<6IQ", 1, 3, 6, 2, 0, 0, len(sequences)))
        for sequence, token in zip(sequences, ids):
            f.write(struct.pack("<I6H", sequence, *token))
    return scratch(name)


def saved():
    names = [name for name in os.listdir(os.environ["EXPERTFS_STATE"]) if name.startswith("counts")]
    check("one file of counts", len(names) == 1 and re.fullmatch("counts-[0-9a-f]{16}.bin", names[0]), names)
    with open(os.path.join(os.environ["EXPERTFS_STATE"], names[0]), "rb") as f:
        data = f.read()
    head = struct.unpack_from("<8sIIQIIQ", data)
    passes = struct.unpack_from(f"<{LAYERS}Q", data, 48)
    at = 48 + 16 * LAYERS
    table = struct.unpack_from(f"<{LAYERS * EXPERTS}I", data, at)
    ranks = struct.unpack_from(f"<{LAYERS * EXPERTS}I", data, at + 4 * LAYERS * EXPERTS)
    check("its sizes", head[0] == b"EFSCOUNT" and head[4:6] == (LAYERS, EXPERTS), head)
    return head[6], passes, [table[i:i + EXPERTS] for i in range(0, len(table), EXPERTS)], sum(table) == sum(ranks)


first = route("first.route", (4, 4, 9, 4), ((0, 4, 1, 2, 3, 5),  # 0 and 4 are the same expert of the store
                                            (0, 1, 1, 5, 3, 2),  # 1 and 5 are the same
                                            (2, 3, 0, 1, 4, 5), (0, 1, 0, 1, 0, 1)))
second = route("second.route", (1,), ((0, 1, 0, 1, 0, 1),))
result = counts(store, first)
check("counted", result.returncode == 0, result.stderr)
expected = [(3, 2, 1, 1), (2, 4, 1, 0), (2, 3, 1, 2)]
got = saved()
check("layers and experts modulo, each expert once", got == (3, (4,) * 5, [expected[layer % 3] for layer in range(LAYERS)], True), got)
result = counts(store, first, second)
got = saved()
check("traces add up, in place of the file of before", result.returncode == 0 and
      got == (4, (5,) * 5, [(a + 1, b + 1, c, d) for a, b, c, d in (expected[layer % 3] for layer in range(LAYERS))], True), got)

print("-- refused")
cut = scratch("cut.route")
with open(first, "rb") as whole, open(cut, "wb") as part:
    part.write(whole.read()[:60])
for arguments, status, says in (((store, second, cut), 1, "cut.route: the trace says"), ((cut, first), 1, "cut.route"),
                                ((store, scratch("none.route")), 1, "none.route"), ((store,), 2, "")):
    result = counts(*arguments)
    check(f"exit {status}: {says}", result.returncode == status and says in result.stderr, result.stderr)
check("the counts of before are kept", saved() == got)

if os.path.exists("/dev/fuse"):
    print("-- a mount plans from it")
    mount = Mount(store, "budget=96M")
    plan = lambda: dict(line.split(": ", 1) for line in mount.control("plan").splitlines())
    check("its plan names it", wait_until(lambda: plan().get("history") == "saved counts" and plan()["history_passes"] != "0"), plan())
    mount.unmount()
done()
