# SPDX-License-Identifier: Apache-2.0
"""A process with a client forks, as multiprocessing and DataLoader do: every call of the child fails with ECHILD, none
hangs, the parent's tensors do not change while the mount reuses its memory for other experts, and both can continue:
the parent with its client, the child with a new one."""
import multiprocessing

from e2e import *

need_fuse()
import library_client
from library_client import api, library

model, store = shared()
originals = experts_of(model)
EXPERT_BYTES = 4096 + sum(len(data) for name, data in originals.items() if "layers.0.mlp.experts.0." in name)
processes = multiprocessing.get_context("fork")
HELD = [0, 1, 2, 3]


def begin(client, layer, experts):
    needs, request, error = (api.Need * len(experts))(*((e, 2) for e in experts)), ctypes.c_void_p(), api.Error()
    rc = library.efs_client_begin(client.handle, b"", layer, needs, len(needs), api.FORM_FULL,
                                  ctypes.byref(request), ctypes.byref(error))
    return rc, request, error.text.decode()


def held_tensors(request):
    """[(name, address, bytes)] of all experts of a request."""
    found, count, tensors = [], ctypes.c_uint32(), ctypes.POINTER(api.Tensor)()
    for index in range(len(HELD)):
        assert library.efs_client_tensors(request, index, ctypes.byref(tensors), ctypes.byref(count)) == 0
        found += [(t.name.decode(), t.data, t.bytes) for t in tensors[:count.value]]
    return found


def changed(tensors):
    return [name for name, address, size in tensors if ctypes.string_at(address, size) != originals[name]]


def child(client, request, tensors, path, closes):
    """The permitted actions of a forked child; exits with a status that names the failure."""
    index, status, count, found = ctypes.c_uint32(), ctypes.c_int(), ctypes.c_uint32(), ctypes.POINTER(api.Tensor)()
    errors = {"begin": begin(client, 0, [1])[0],
              "wait_any": library.efs_client_wait_any(request, -1, ctypes.byref(index), ctypes.byref(status)),
              "wait": library.efs_client_wait(request),
              "tensors": library.efs_client_tensors(request, 0, ctypes.byref(found), ctypes.byref(count))}
    wrong = {name: rc for name, rc in errors.items() if rc != -errno.ECHILD}
    if changed(tensors):  # the parent holds them
        wrong["held"] = changed(tensors)
    if "process" not in begin(client, 0, [1])[2]:
        wrong["text"] = begin(client, 0, [1])[2]
    if closes:
        library.efs_client_drop(request, 0)
        library.efs_client_release(request)
        if begin(client, 0, [2])[0] != -errno.ECHILD:  # must not send the releases
            wrong["begin, after what was released"] = True
        library.efs_client_close(client.handle)
        left = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{fd}")]
        if any(name.startswith(path) for name in left):
            wrong["left open"] = left
    own = library_client.Client(path, originals)
    bad = own.ask(2, HELD)
    if bad:
        wrong["its own client"] = bad
    own.close()
    if wrong:
        print("       child:", wrong, flush=True)
    os._exit(1 if wrong else 0)


def forks(what, path, closes, reading):
    client = library_client.Client(path, originals)
    rc, request, text = begin(client, 1, HELD)
    check(f"{what}: a request", rc == 0 and library.efs_client_wait(request) == 0, text)
    tensors = held_tensors(request)
    workers = [processes.Process(target=child, args=(client, request, tensors, path, closes)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    ended = [worker.exitcode for worker in workers]
    for worker in workers:
        if worker.exitcode is None:
            worker.kill()
            worker.join()
    check(f"{what}: the children {'close' if closes else 'leave it open'} and end", ended == [0, 0], ended)
    reading()
    check(f"{what}: what the parent holds has not changed", not changed(tensors), f"{len(changed(tensors))} of {len(tensors)}")
    library.efs_client_release(request)
    bad = sum((client.ask(layer, list(range(8))) for layer in range(3)), [])
    check(f"{what}: the parent goes on", not bad, bad)
    client.close()


floor = Mount(store, "budget=64M")
fixed = floor.count("fixed_bytes")
floor.unmount()
for options in ("", ",nopassthrough"):
    mount = Mount(store, f"budget={fixed + (32 << 20) + 8 * EXPERT_BYTES}{options}")

    def read_all():
        for name in files_below(mount / "experts"):
            with open(mount / f"experts/{name}", "rb") as file:
                file.read()
        other = library_client.Client(mount, originals)
        bad = sum((other.ask(layer, [expert]) for _ in range(2) for layer in (0, 2) for expert in range(8)), [])
        check("others read all", not bad, bad)
        other.close()

    for closes in (True, False):
        forks(f"mount{options}", mount.path, closes, read_all)
    check("nothing is leased when they have closed", wait_until(lambda: mount.count("leased_experts") == 0), mount.control("experts"))

    # A child that lives on keeps the descriptors that it was forked with. Experts that its parent releases are freed
    # nevertheless, except files, which the kernel reports as closed when the last process has closed them.
    if mount.passthrough():
        client = library_client.Client(mount, originals)
        rc, request, text = begin(client, 1, HELD)
        check("a request", rc == 0 and library.efs_client_wait(request) == 0, text)
        ends, keeps = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(keeps)
            os.read(ends, 1)
            os._exit(0)
        os.close(ends)
        library.efs_client_release(request)
        client.close()
        check("what a parent closes comes free while its child lives", wait_until(lambda: mount.count("leased_experts") == 0), mount.control("experts"))
        os.close(keeps)
        os.waitpid(pid, 0)
    mount.unmount(f"after forks{options}")

for closes in (True, False):
    forks("store", store, closes, lambda: None)
done()
