# SPDX-License-Identifier: Apache-2.0
"""The client runtime on real mounts: it returns the packed bytes, counts each use once and evicts kept experts, and
killed clients and unmounting during requests leave nothing behind."""
import functools
import multiprocessing
import resource

from e2e import *

need_fuse()
import library_client
from library_client import library

model, store = shared()
originals = experts_of(model)
EXPERT_BYTES = 4096 + sum(len(data) for name, data in originals.items() if "layers.0.mlp.experts.0." in name)


Client = functools.partial(library_client.Client, originals=originals)
processes = multiprocessing.get_context("fork")


def requests(mount):
    return sum(mount.count(f"requests_{state}") for state in "fcsepm")


def opens(mount):
    return sum(mount.count(f"fuse_opens_{way}") for way in ("passthrough", "direct", "cached"))


print("-- what it hands out")
for options in ("budget=128M", "budget=128M,nopassthrough,direct_io=on", "budget=128M,nopassthrough,direct_io=off"):
    mount = Mount(store, options)
    client = Client(mount)
    bad = sum((client.ask(layer, list(range(8))) for layer in (0, 1, 2, 1)), [])
    check(f"{options}: every expert, layer by layer", not bad, bad)
    check("an expert that is not there", client.ask(1, [3, 8]) and client.ask(7, [0]))
    wait_until(lambda: mount.count("inflight") == 0)
    check("each use is counted once", requests(mount) == 32, mount.stat())
    check("they came without files", wait_until(lambda: mount.count("fuse_handouts") >= 32) and opens(mount) == 0, mount.stat())
    client.close()
    check("nothing is leased when it is closed", wait_until(lambda: mount.count("leased_experts") == 0), mount.control("experts"))
    mount.unmount(options)

print("-- without experts/, where the daemon reports what is not there")
mount = Mount(store, "budget=128M,noexperts")
client = Client(mount)
check("an expert, a layer", client.ask(1, [8]) + client.ask(7, [0]) == [(1, 8, -errno.ENOENT), (7, 0, -errno.ENOENT)])
check("then others", not client.ask(1, [3]))
client.close()
mount.unmount("without experts/")

print("-- little memory")
floor = Mount(store, "budget=64M")
fixed = floor.count("fixed_bytes")
floor.unmount()
mount = Mount(store, f"budget={fixed + (32 << 20) + 6 * EXPERT_BYTES}")
client = Client(mount)
bad = sum((client.ask(layer, [first, first + 1, first + 2]) for first in (0, 3, 5) for layer in (0, 1, 2)), [])
check("more than the budget holds, one after the other", not bad, bad)
client.close()
mount.unmount("little memory")

print("-- no descriptor for a while")
mount = Mount(store, "budget=128M")
client = Client(mount)
check("a request", not client.ask(1, [0]))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0)
os.close(free)
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
bad = client.ask(1, [5])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
check("an expert whose memory cannot be mapped", bad, bad)
bad = sum((client.ask(layer, list(range(8))) for layer in range(3)), [])
check("then all come", not bad, bad)
client.close()
mount.unmount("few descriptors")

print("-- a child that lives on keeps the descriptors that it was forked with")
mount = Mount(store, "budget=128M")
client = Client(mount)
request = client.begin(1, [0, 1, 2, 3])
check("a request", library.efs_client_wait(request) == 0)
ends, keeps = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(keeps)
    os.read(ends, 1)
    os._exit(0)
os.close(ends)
library.efs_client_release(request)
client.close()
check("what a parent closes is free while its child lives", wait_until(lambda: mount.count("leased_experts") == 0), mount.control("experts"))
os.close(keeps)
os.waitpid(pid, 0)
mount.unmount("after a fork")

print("-- more experts than a packet has")
many = make_model("many", "-F", "qwen3-moe", "-d", "64", "-i", "64", "-e", "128", "-l", "4", "--vocab", "1000")
many_store = make_store(many)
mount = Mount(many_store, "budget=256M")
client = library_client.Client(mount, originals=experts_of(many))
check("128 experts of a layer", not client.ask(3, list(range(128))))
counted = requests(mount)
check("the same again", not client.ask(3, list(range(128))))
client.close()
check("each is counted once", wait_until(lambda: requests(mount) == counted + 128), requests(mount) - counted)
mount.unmount("128 experts")

print("-- killed clients")


def asks_on_and_on(path, ready):
    """Runs in another process: waits for about half of the experts that it requests."""
    client, generator = Client(path), random.Random()
    ready.set()
    while True:
        try:
            request = client.begin(generator.randrange(3), generator.sample(range(8), 4))
        except OSError:
            continue
        if generator.random() < 0.5:
            library.efs_client_wait_any(request, -1, ctypes.byref(ctypes.c_uint32()), ctypes.byref(ctypes.c_int()))
        library.efs_client_release(request)


def children(mount, count):
    """Processes without a client inherited from their parent."""
    found = []
    for _ in range(count):
        ready = processes.Event()
        found.append(processes.Process(target=asks_on_and_on, args=(mount.path, ready), daemon=True))
        found[-1].start()
        check("a client starts", ready.wait(PATIENCE))
    return found


def kill(clients):
    for client in clients:
        client.kill()
        client.join()


generator = random.Random(5)
mount = Mount(store, "budget=128M")
for round in range(4):
    clients = children(mount, 3)
    time.sleep(generator.random() / 5)
    kill(clients)
check("what they held is free", mount.wait_idle() and wait_until(lambda: mount.count("leased_bytes") == 0), mount.stat())
mount.check_budget()
client = Client(mount)
bad = sum((client.ask(layer, list(range(8))) for layer in range(3)), [])
check("others are served", not bad, bad)
client.close()
mount.unmount("after killed clients")

print("-- the end comes in the middle")
for what, options in (("SIGTERM", "budget=128M"), ("SIGTERM, little room", f"budget={fixed + (32 << 20) + 6 * EXPERT_BYTES}")):
    mount = Mount(store, options)
    clients = children(mount, 2)
    with open(mount / ".expertfs/want", "w") as want:
        want.write("".join(f"{layer}: {' '.join(map(str, range(8)))}\n" for layer in (0, 1, 2)))
    mount.stop(what)
    kill(clients)
mount = Mount(store, "budget=128M")
client = Client(mount)
check("a client asks", not client.ask(0, [1, 2]))
mount.stop("with a client that has experts mapped")
check("new requests fail", client.ask(0, [1, 2]))
client.close()
done()
