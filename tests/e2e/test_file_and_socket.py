# SPDX-License-Identifier: Apache-2.0
"""The same experts as files and over the socket, concurrently and in turn, under a budget in which each evicts the
other: a mapped file never changes, a window keeps the expert for which it was passed, and the daemon survives."""
import reader_processes
from e2e import *
from socket_packets import ASK, DROP, Client

need_fuse()
model, store = shared(WIDE)
folder = scratch("copies")
os.mkdir(folder)
files = experts_without_passthrough(store)
mount = Mount(store, "budget=48M")
need_passthrough(mount)
# The readers hold mapped files while they wait, so that they may wait for each other: refused after 30 seconds without
# progress. At the end each of the four waits for one request at most, and one that ends is progress for the other three.
NO_ROOM = (-errno.ENOMEM, -errno.EDEADLK)
ENDED_WITHIN = 5 * 30 + 30


def name_of(layer, number):
    return f"experts/L{layer:02}/E{number:03}.safetensors"


def file_and_socket_reader(layer):
    """Requests an expert and opens its file at the same time, then requests the layer's others, one a call; checks the
    mapping after other experts were read."""
    held, clients, others = [], [], []

    def answered(number):
        answer = clients[0].answer()
        if answer[1] == 0:
            reader_processes.same(clients[0].file(answer), files[name_of(layer, number)], f"the window of {number}")
        elif answer[1] not in NO_ROOM:
            raise reader_processes.WrongBytes(f"{number}: {answer}")
        clients[0].send(DROP, [(0, 0, 1)])

    def both(generator):
        if not clients:
            clients.append(Client(mount))
            clients[0].socket.settimeout(ENDED_WITHIN)
        if others:
            number = others.pop()
            clients[0].send(ASK, [(number, 1, 1)], layer=layer)
            answered(number)
        else:
            number, *others[:] = generator.sample(range(8), 8)
            name = name_of(layer, number)
            clients[0].send(ASK, [(number, 1, 1)], layer=layer)
            held.append((name, Mapping(mount / name)))
            answered(number)
        if len(held) > 1 and not others:
            name, mapping = held.pop(0)
            reader_processes.same(mapping.bytes(), files[name], f"a mapping of {name}")
            mapping.close()
    return both


print("-- files and windows by many")
readers, stop = reader_processes.start(mount, files, len(reader_processes.KINDS), 1, folder, asks=[file_and_socket_reader(layer) for layer in (0, 1, 0, 1)])
time.sleep(5)
stop.set()
did, problems, signals = reader_processes.join(readers, ENDED_WITHIN)
check(f"{did} reads and requests: no wrong byte, nobody was killed", did and not problems and not signals, (problems, signals))
check("the daemon lives", mount.daemon.poll() is None, mount.daemon.returncode)

print("-- by turns")
check("what the clients held is given back", mount.wait_idle())
client, held, by_kernel = Client(mount), [], 0
for turn in range(40):
    layer, number = turn % 2, turn // 2 % 8
    before = mount.count("fuse_opens_passthrough")
    held.append((layer, number, Mapping(mount / name_of(layer, number))))
    by_kernel += mount.count("fuse_opens_passthrough") - before
    if len(held) > 1:
        layer, number, mapping = held.pop(0)
        if mapping.bytes() != files[name_of(layer, number)]:
            check(f"turn {turn}: a mapped file is its expert", False, (layer, number))
        mapping.close()
        client.send(ASK, [(number, 1, 5)], layer=layer)
        answer = client.answer()
        if answer[1] or (client.file(answer) != files[name_of(layer, number)]):
            check(f"turn {turn}: one whose file was open is handed out", False, answer)
            break
        client.send(DROP, [(0, 0, 5)])
        wait_until(lambda: mount.count("leased_experts") <= 1)
for *_, mapping in held:
    mapping.close()
# not all: an expert that is being demoted at that moment stays where it is
check(f"of 40 whose window no client holds the kernel serves {by_kernel}", by_kernel > 10)
client.close()
mount.check_budget()
check("nothing is leased", mount.wait_idle())
mount.unmount()
done()
