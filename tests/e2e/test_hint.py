# SPDX-License-Identifier: Apache-2.0
"""Predictions: the lines written to .expertfs/hint are read ahead and are no requests; refused lines; the contents of
.expertfs/predict, with prefetch off and on; predictions from requests."""
from e2e import *

need_fuse()
model, store = shared(MANY)
mount = Mount(store, "budget=128M,policy=lru")
HINT = mount / ".expertfs/hint"


def write(path, text):
    file = os.open(path, os.O_WRONLY)
    try:
        return os.write(file, text.encode())
    finally:
        os.close(file)


def predict():
    lines = mount.control("predict").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("distance "))
    head = lines[at].split()
    told = dict(line.split(": ", 1) for line in lines[:at])
    return told, {row.split()[0]: dict(zip(head, row.split())) for row in lines[at + 1:]}


def rows():
    return mount.table("experts")


def quiet():
    return wait_until(lambda: mount.count("inflight") == 0)


print("-- off")
check("its mode", os.stat(HINT).st_mode & 0o777 == 0o644)
check("a hint is taken", write(HINT, "1: 3?0.9\n") == 9)
check("and nothing is read", quiet() and mount.count("guessed_extents") == 0 and rows()["L01/E003"]["state"] == "M")
check("it says that it is off", predict()[0]["state"] == "off" and predict()[0]["memory_bytes"] == "0", predict()[0])

print("-- hints")
os.setxattr(mount.path, "user.expertfs.prefetch", b"on")
fixed = mount.count("fixed_bytes")
check("its memory is told", int(predict()[0]["memory_bytes"]) > 1 << 20, predict()[0])
mount.check_budget()
before = rows()
write(HINT, "1: 3?0.9 4?0.8\n")
check("what is hinted is read", wait_until(lambda: all(rows()[name]["state"] == "C"
                                                       for name in ("L01/E003", "L01/E004"))), rows())
after = rows()
check("and is no use", all(after[name][column] == before[name][column]
                           for name in after if name != "name" for column in ("touches", "count", "rank", "kept")))
write(mount / ".expertfs/want", "1: 3\n")
quiet()
told, table = predict()
check("what was right is told", table["hints"]["read"] == "2" and table["hints"]["covered"] == "1", table["hints"])
check("what came in vain, too", table["hints"]["wasted"] == "1" and int(table["hints"]["wasted_bytes"]) > 0, table["hints"])

print("-- refused")
for text in ("1: 16?0.5\n", "3: 1\n", "1: 1?1.5\n", "1: 1 1\n", "x\n", "1: 1*2\n"):
    check(f"{text!r}", error_of(write, HINT, text) == "EINVAL" and os.getxattr(mount.path, "user.expertfs.answer") != b"ok")
counts = mount.fields("hint")
check("they are counted, and why the last was", counts.pop("refused_last").startswith('"1: 1*2": a hint is LAYER: ') and
      counts == {"taken": "2", "refused": "6"}, counts)

print("-- predicted")
turns = 0


def guessed():
    """Four more turns. The thread that predicts leaves out layers while 32 of them wait for it."""
    global turns
    for turn in range(4):
        for layer in range(3):
            write(mount / ".expertfs/want", f"{layer}: {turn * 4 + layer} {turn * 4 + 1 - layer % 2}\n")
            quiet()
    turns += 4
    table = predict()[1]
    return int(table["1"]["layers"]) > 50 and float(table["1"]["recall_2k"]) > 0.5


check("layers are guessed", wait_until(guessed), predict())
told = predict()[0]
check("each one is observed", int(told["observed"]) == 3 * turns + 1 and told["sequences"] == "1" and told["chosen"] == "2", (told, turns))
os.setxattr(mount.path, "user.expertfs.prefetch", b"off")
check("off again: its memory comes back", mount.count("fixed_bytes") < fixed and predict()[0]["state"] == "off")
mount.unmount()
done()
