# SPDX-License-Identifier: Apache-2.0
"""OBSERVE, HINT and COUNT packets by hand: as a client's first packet, in any order, of any length, with any values, in
floods, from clients that are killed while sending. Malformed packets disconnect the client, wrong values are refused
and counted, no packet is answered, and the mount continues to serve."""
from e2e import *
from socket_packets import ANY, ASK, COUNT, COUNTED, DROP, HINT, OBSERVE, WITH_LAYOUT, Client, routing

need_fuse()
LAYERS, EXPERTS, SEQUENCES = 3, 16, 16
SEED = int(os.environ.get("SEED", "1"))
model, store = shared(MANY)
mount = Mount(store, "budget=128M,policy=lru,prefetch=on")


def predict_fields():
    return mount.fields("predict")


def counts():
    """(accepted, refused)"""
    lines = mount.fields("hint")
    return int(lines["taken"]), int(lines["refused"])


def state(name):
    return mount.table("experts")[name]["state"]


def sent(*packets):
    """Sends packets from a client that sends nothing else. Returns whether it is disconnected."""
    client = Client(mount)
    try:
        for data in packets:
            client.socket.send(data)
        client.send(ASK, [(99, 1, 7)])  # is answered after all of them
        cut = client.answer() is None
    except (ConnectionError, BrokenPipeError):
        cut = True
    client.close()
    return cut


print("-- as they should be")
one = Client(mount)
one.socket.send(routing(HINT, [(3, 0.9), (4, 0.8)], layer=1))  # the client's first packet
check("a hint is taken, and read", wait_until(lambda: state("L01/E003") == state("L01/E004") == "C"), mount.control("predict"))
observed = int(predict_fields()["observed"])
for turn in range(10):
    for layer in range(LAYERS):
        one.socket.send(routing(OBSERVE, [(turn % EXPERTS, 3.5), ((turn + 5) % EXPERTS, 1.0)], layer=layer, sequence=7))
check("what layers chose is taken", wait_until(lambda: int(predict_fields()["observed"]) == observed + 10 * LAYERS), predict_fields())
one.socket.send(routing(OBSERVE, [], sequence=7))
check("a sequence that is over is gone", wait_until(lambda: counts() == (2 + 10 * LAYERS, 0)) and predict_fields()["sequences"] in "01", predict_fields())
one.socket.send(routing(OBSERVE, [(n, 1.0) for n in range(EXPERTS)], weighed=0, layer=2, sequence=0xFFFFFFFF))
one.socket.send(routing(HINT, [(n, float("nan")) for n in range(EXPERTS)], weighed=0, layer=0))  # no weights
check("all of a layer", wait_until(lambda: counts() == (4 + 10 * LAYERS, 0)), counts())
one.socket.settimeout(0.2)
try:
    said = one.socket.recv(4096)
except TimeoutError:
    said = None
check("nothing is answered", said is None, said)
one.socket.settimeout(PATIENCE)

print("-- counted")


def chosen():
    """Of each pass of the trace, expertfs-route(5), the experts of each layer."""
    with open(mount / ".expertfs/trace", "rb") as file:
        data = file.read()
    layers, _, used, _, name = struct.unpack_from("<5I", data, 12) if data else (0,) * 5
    record = 8 + 2 * layers * used
    return [[set(struct.unpack_from(f"<{used}H", data, at + 8 + 2 * used * layer)) for layer in range(layers)]
            for at in range(48 + name, len(data) - record + 1, record)]


for layer in range(LAYERS):
    one.socket.send(routing(COUNT, [(layer + 1, 1.0), (9, 7.0)], layer=layer))
    one.send(ASK, [(9, 7, 2 | WITH_LAYOUT)], layer=layer, form=ANY | COUNTED)
    check("an expert that is counted", one.coded()[:2] == (2, 0))
    one.send(DROP, [(0, 0, 2)])
one.socket.send(routing(COUNT, [], layer=0))
one.send(ASK, [(10, 1, 2 | WITH_LAYOUT)], form=ANY)
check("one that is not", one.coded()[:2] == (2, 0))
one.send(DROP, [(0, 0, 2)])
check("the choices are in the trace, once", wait_until(lambda: chosen() == [[{1, 9}, {2, 9}, {3, 9}]]), chosen())

print("-- refused, and not cut off")
taken, refused = counts()
wrong = {"no such layer": routing(OBSERVE, [(0, 1.0)], layer=LAYERS),
         "the last number of a layer": routing(HINT, [(0, 1.0)], layer=0xFFFFFFFF),
         "no such expert": routing(HINT, [(EXPERTS, 0.5)]),
         "the last number of an expert": routing(OBSERVE, [(0xFFFFFFFF, 0.5)]),
         "an expert twice": routing(OBSERVE, [(1, 0.5), (2, 0.5), (1, 0.5)]),
         "no such stack": routing(HINT, [(1, 0.5)], stack=b"decoder"),
         "a path for a stack": routing(OBSERVE, [(1, 0.5)], stack=b"../../x"),
         "a stack of 31 letters": routing(OBSERVE, [(1, 0.5)], stack=b"s" * 31),
         "more than certain": routing(HINT, [(1, 1.0000001)]),
         "less than nothing": routing(HINT, [(1, -0.0001)]),
         "a score too large": routing(OBSERVE, [(1, 2e6)]),
         "a count of no such expert": routing(COUNT, [(EXPERTS, 1.0)]),
         "512 of an expert": routing(OBSERVE, [(1, 0.5)] * 512)}
for kind in (OBSERVE, HINT):
    for value in ("nan", "inf", "-inf", "-1"):
        wrong[f"{value} by {'hint' if kind == HINT else 'observe'}"] = routing(kind, [(0, 0.5), (1, float(value))])
for what, data in wrong.items():
    one.socket.send(data)
    refused += 1
    check(what, wait_until(lambda: counts() == (taken, refused)), (counts(), taken, refused))
one.send(ASK, [(5, 1, 1 | WITH_LAYOUT)], form=ANY)
check("the client is served on", one.coded()[:2] == (1, 0))
one.send(DROP, [(0, 0, 1)])

print("-- cut off")
good = routing(HINT, [(1, 0.5), (2, 0.5)])
for kind, name in ((OBSERVE, "observe"), (HINT, "hint"), (COUNT, "count")):
    whole = routing(kind, [(1, 0.5), (2, 0.5)])
    wrong = []
    for length in sorted({*range(1, len(whole)), len(whole) + 1, len(whole) + 8}):
        data = (whole + bytes(8))[:length]
        if not sent(data) or length >= 4 and not sent(struct.pack("<I", length) + data[4:]):  # in the header, too
            wrong.append(length)
    check(f"{name} of any other length", not wrong, wrong)
    for what, data in {"another version": routing(kind, [(1, 0.5)], version=3),
                       "more items than it has": routing(kind, [(1, 0.5)], count=2),
                       "fewer items": routing(kind, [(1, 0.5)], count=0),
                       "as many as there are numbers": routing(kind, [(1, 0.5)], count=0xFFFFFFFF),
                       "so many that bytes are right again": routing(kind, [(1, 0.5)], count=0x20000001),
                       "513 experts": routing(kind, [(n, 0.5) for n in range(513)]),
                       "a stack without end": routing(kind, [(1, 0.5)], stack=b"s" * 32),
                       "another length than it says": routing(kind, [(1, 0.5)], length=4096)}.items():
        check(f"{name} of {what}", sent(data))
check("good ones before do not help", sent(good, good, routing(HINT, [(1, 0.5)], count=2)))
check("a good one alone is fine", not sent(good))

print("-- floods")
before = mount.count("fixed_bytes")
for turn in range(200):
    for sequence in range(4 * SEQUENCES):  # more than the daemon has space for
        one.socket.send(routing(OBSERVE, [((turn + sequence) % EXPERTS, 1.0)], layer=turn % LAYERS, sequence=sequence))
one.send(ASK, [(99, 1, 3)])
check("all of it was taken", one.answer()[:2] == (3, -errno.ENOENT))
check("no more sequences than there is room for", int(predict_fields()["sequences"]) <= SEQUENCES, predict_fields())
check("and no more memory", wait_until(lambda: mount.count("fixed_bytes") == before), mount.stat())
mount.check_budget()
generator = random.Random(SEED)
note(f"SEED={SEED} repeats this order")
for turn in range(2000):  # in random order, of random sequences, with invalid ones in between
    kind = generator.choice((OBSERVE, HINT, COUNT))
    items = [(n, generator.choice((0.0, 0.5, 1.0))) for n in generator.sample(range(EXPERTS + 1), generator.randrange(6))]
    one.socket.send(routing(kind, items, layer=generator.randrange(LAYERS + 1), sequence=generator.randrange(40),
                            weighed=generator.randrange(3)))
    if turn % 100 == 0:
        one.send(ASK, [(generator.randrange(EXPERTS), 1, turn | WITH_LAYOUT)], layer=turn // 100 % LAYERS, form=ANY)
        check("an expert meanwhile", one.coded()[:2] == (turn, 0))
        one.send(DROP, [(0, 0, turn)])
for turn in range(20):
    for number in range(50):
        one.socket.send(routing(OBSERVE, [(number % EXPERTS, 0.5)], layer=number % LAYERS, sequence=number % 3))
    os.setxattr(mount.path, "user.expertfs.prefetch", b"on" if turn % 2 else b"off")
one.send(ASK, [(99, 1, 3)])
check("turned off and on meanwhile", one.answer()[:2] == (3, -errno.ENOENT))

print("-- killed")
out, into = os.pipe()
pid = os.fork()
if pid == 0:
    child = Client(mount)
    os.write(into, b"x")
    while True:
        for layer in range(LAYERS):
            child.socket.send(routing(OBSERVE, [(layer, 1.0)], layer=layer, sequence=3))
            child.socket.send(routing(HINT, [(layer, 1.0)], layer=layer, sequence=3))
os.read(out, 1)
observed = int(predict_fields()["observed"])
check("one that tells on and on", wait_until(lambda: int(predict_fields()["observed"]) > observed))
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
one.close()
check("those who are gone have no sequence", wait_until(lambda: int(predict_fields()["sequences"]) <= 1), predict_fields())
check("nothing is held", mount.wait_idle(), mount.stat())
last = Client(mount)
last.send(ASK, [(2, 1, 0 | WITH_LAYOUT)], layer=2, form=ANY)
check("who comes next is served", last.coded()[:2] == (0, 0))
last.socket.send(good)
mount.unmount("the mount ends while a client holds and tells")
last.close()
done()
