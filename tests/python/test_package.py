# SPDX-License-Identifier: Apache-2.0
"""The Python package: layers, requests, tensors without a copy that are read-only, files, counters, errors, what ends
when; of a store, a checkpoint in place and a mount."""
import copy
import gc
import pickle

from package import *
from expertfs import values

try:
    import numpy
except ImportError:
    numpy = None
    note("no numpy: arrays are left out")

model, store = shared()
originals = experts_of(model)


def names_of(expert):
    return {tensor.name: bytes(tensor.buffer) for tensor in expert.tensors}


def leased(session):
    return session.stats()["leased_experts"]


def check_session(what, session):
    print(f"-- {what}")
    layers = session.layers()
    check("layers", [(one.stack, one.number, one.experts) for one in layers] == [("", n, tuple(range(8))) for n in range(3)], layers)
    listed = {one.name: one for layer in layers for expert in layer.experts for one in layer.tensors(expert)}
    check("their tensors", set(listed) == set(originals) and all(len(originals[name]) == one.nbytes and one.dtype == "BF16" and
          one.role == name.split(".")[-2][:-5] for name, one in listed.items()))
    check("an expert that is not there", raised(KeyError, layers[0].tensors, 8))
    found = {}
    for layer in layers:
        for expert in session.request(layer.number, layer.experts):
            found.update(names_of(expert))
    del expert
    check("every expert, in order of arrival", found == originals)
    experts = session.request(1, [5, 0, 3], tokens=[1, 2, 3]).wait()
    check("in the order of the request", [one.number for one in experts] == [5, 0, 3])
    one = experts[1]
    check("tensors by role and by name", one["gate"] is one[one["gate"].name] and set(one) == {t.name for t in one.tensors} and
          one["down"].shape == (256, 512) and "nothing" not in one)
    check("its buffer is read-only", one["gate"].buffer.readonly and raised(TypeError, one["gate"].buffer.__setitem__, 0, 1))
    tensor = one["up"]
    del experts, one
    error = raised(OSError, session.close)
    check("close() with a living tensor", error and error.errno == errno.EBUSY and "1 expert " in str(error) and
          "\nhint: " in str(error), error)
    check("which is still right", bytes(tensor.buffer) == originals[tensor.name])
    view = tensor.buffer[:100]
    del tensor
    check("a view of it keeps it, too", fails_with(errno.EBUSY, session.close) and bytes(view) == originals[
        "model.layers.1.mlp.experts.0.up_proj.weight"][:100])
    del view
    check("nothing is leased then", wait_until(lambda: leased(session) == 0), session.stats())
    coded = session.request(0, [1, 2], form="coded").wait()
    check("the coded form has no memory to read", [list(one) for one in coded] == [[], []])
    del coded
    check("an expert twice", fails_with(errno.EINVAL, session.request, 0, [1, 1]))
    check("no such expert, no such layer, no such stack", all(fails_with(errno.ENOENT, session.request, *bad) for bad in (
        (0, [8]), (3, [0]), (0, [0], 1, "full", "encoder"))))
    check("no such form", raised(ValueError, session.request, 0, [0], form="half"))
    check("numbers of tokens for other experts", raised(ValueError, session.request, 0, [0, 1], [1]))
    session.observe(0, [1, 2], [.6, .4])
    session.hint(1, [3], [.5], sequence=2)
    session.observe(0, [])
    session.leave()
    check("a device's budget without a device", raised(ValueError, expertfs.open, session.path, device_budget="1G"))
    if not session.is_mount:
        expertfs.open(session.path, budget="auto").close()
    check("bytes below 0 are not left", raised(ValueError, session.leave, -1))
    check("a weight out of range", fails_with(errno.EINVAL, session.hint, 1, [3], [1.5]))
    files = {file.path: file.nbytes for file in session.files()}
    config = open(f"{model}/config.json", "rb").read()
    check("files", files["config.json"] == len(config) and "experts/L01/E007.safetensors" in files and
          set(files_below(model)) <= set(files))
    check("read", session.read("config.json") == config and session.read("config.json", 5, 7) == config[5:12] and
          session.read("config.json", len(config), 7) == b"" and fails_with(errno.ENOENT, session.read, "nothing"))
    check("an offset below 0", raised(ValueError, session.read, "config.json", -1))


def check_arrays(session):
    expert = session.request(0, [2]).wait()[0]
    for name, make in (("asarray", numpy.asarray), ("from_dlpack", lambda t: numpy.from_dlpack(t) if t.dtype != "BF16" else None)):
        array = make(expert["gate"])
        if array is None:  # numpy has no BF16 in DLPack
            continue
        check(f"numpy.{name}: shape, bytes, no copy", array.shape == (512, 256) and array.tobytes() == originals[expert["gate"].name] and
              array.ctypes.data == expert["gate"]._address)
        check("numpy refuses a write", not array.flags.writeable and raised(ValueError, array.__setitem__, 0, 0))
    array, name = numpy.asarray(expert["down"]), expert["down"].name
    del expert
    gc.collect()
    check("an array keeps the expert", leased(session) == 1 and array.tobytes() == originals[name])
    del array
    check("and its last reference drops it", wait_until(lambda: leased(session) == 0))
    expert = session.request(0, [2]).wait()[0]
    check("numpy.from_dlpack: numpy's own refusal of BF16", raised(RuntimeError, numpy.from_dlpack, expert["gate"]))
    capsule = expert["up"].__dlpack__()
    del expert
    session.request(0, [3])
    check("a capsule that is not taken keeps the expert", leased(session) >= 1 and "dltensor" in repr(capsule))
    del capsule
    session.request(0, [3])
    check("a refused one is freed by the next request", wait_until(lambda: leased(session) == 0))


def check_fork(session):
    tensor = session.request(0, [2]).wait()[0]["gate"]

    def in_child():
        wrong = [name for name, call in (
            ("layers", session.layers), ("request", lambda: session.request(0, [1])), ("stats", session.stats), ("files", session.files),
            ("observe", lambda: session.observe(0, [1])), ("read", lambda: session.read("config.json")), ("close", session.close))
            if not fails_with(errno.ECHILD, call)]
        return wrong if wrong or bytes(tensor.buffer) == originals[tensor.name] else "other bytes"
    pid_text = as_user(0, [0], in_child) if os.geteuid() == 0 else "[]"
    check("after a fork every call raises ECHILD, and tensors stay readable", pid_text == "[]", pid_text)
    del tensor
    check("the parent goes on", session.request(0, [2]).wait()[0].number == 2)


def check_values(session):
    print("-- values that are refused, with their name")
    large = 1 << 32
    for name, value, call in (
            ("expert", large + 1, lambda: session.request(0, [large + 1])), ("layer", large, lambda: session.request(large, [1])),
            ("expert", 1.9, lambda: session.request(0, [1.9])), ("tokens", -1, lambda: session.request(0, [1], tokens=-1)),
            ("tokens", large + 1, lambda: session.request(0, [1], [large + 1])), ("tokens", 1.5, lambda: session.request(0, [1], 1.5)),
            ("expert", large + 1, lambda: session.observe(0, [large + 1])), ("layer", large, lambda: session.hint(large, [1])),
            ("sequence", large, lambda: session.observe(0, [1], sequence=large)), ("experts", 1, lambda: session.observe(0, [1, 2], [1.0])),
            ("expert", -1, lambda: session.hint(0, [-1])), ("workers", large * 2, lambda: expertfs.open(store, workers=large * 2)),
            ("budget", 1.5, lambda: expertfs.open(store, 1.5)), ("budget", 1 << 63, lambda: expertfs.open(store, str(1 << 63))), ("reserved", -1, lambda: expertfs.open(store, reserved=-1)),
            ("offset", 1 << 64, lambda: session.read("config.json", 1 << 64)), ("size", 1.5, lambda: session.read("config.json", 0, 1.5)),
            ("threads", large, lambda: expertfs.pack(model, scratch("cut.efs"), threads=large)),
            ("path", "\\x00", lambda: expertfs.open(store + "\0x", budget="128M", state=False)),
            ("prefetch", "\\x00", lambda: expertfs.open(store, budget="128M", state=False, prefetch="off\0x")),
            ("stack", "\\x00", lambda: session.request(0, [1], stack="\0x")), ("stack", "\\x00", lambda: session.observe(0, [1], stack="\0x")),
            ("src", "\\x00", lambda: expertfs.pack(model + "\0x", scratch("cut.efs"))),
            ("dst", "\\x00", lambda: expertfs.pack(model, scratch("cut.efs\0x")))):
        error = raised((TypeError, ValueError), call)
        check(f"{name}: {value}", error and name in str(error) and str(value) in str(error), error)


def check_sizes():
    for text, bytes_ in (("9007199254740993", 9007199254740993), ("1.5K", 1536), ("2G", 2 << 30), ("0.1M", 104857), ("1e3", 1000), (None, 0), (7, 7)):
        check(f"the size {text}", values.size("budget", text) == bytes_, values.size("budget", text))
    check("no sizes", all(raised(ValueError, values.size, "budget", text) for text in ("", "G", "1/0", "nan", "inf", "-1", "much", "1GiB")))
    check("raised() takes a tuple, and names it", raised((KeyError, ValueError), int, "x") and named((KeyError, ValueError)) == "KeyError or ValueError")


def check_copies(session):
    request = session.request(0, [2])
    expert = request.wait()[0]
    for one in (session, request, expert, expert["gate"]):
        for way in (copy.copy, copy.deepcopy, pickle.dumps):
            error = raised(TypeError, way, one)
            check(f"{way.__name__} of a {type(one).__name__}", error and "expertfs" in str(error), error)
    del one, expert, request, error
    gc.collect()  # the frames of the errors


session = expertfs.open(store, budget="128M", state=False)
check_session("a store", session)
check_values(session)
check_sizes()
check_copies(session)
if numpy:
    check_arrays(session)
check_fork(session)
session.close()
check("closed", raised(ValueError, session.layers) and "closed" in repr(session))
with expertfs.open(model, budget=128 << 20, state=False) as session:
    check_session("a checkpoint in place", session)
for _ in range(20):  # a session may be closed as soon as a read has returned
    with expertfs.open(store, budget="64M", state=False) as session:
        session.read("config.json")

print("-- types that DLPack and numpy have")
if numpy:
    header = json.dumps({f"model.layers.0.mlp.experts.{e}.{role}_proj.weight": {
        "dtype": "F32", "shape": [4, 3], "data_offsets": [48 * (3 * e + i), 48 * (3 * e + i + 1)]}
        for e in range(2) for i, role in enumerate(("gate", "up", "down"))}).encode()
    values = numpy.arange(72, dtype=numpy.float32)
    os.mkdir(scratch("f32"))
    with open(scratch("f32/model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + values.tobytes())
    with expertfs.open(scratch("f32"), budget="64M", state=False) as session:
        tensor = session.request(0, [1]).wait()[0]["up"]
        array = numpy.from_dlpack(tensor)
        check("numpy.from_dlpack", array.dtype == numpy.float32 and numpy.array_equal(array, values[48:60].reshape(4, 3)) and
              not array.flags.writeable and array.ctypes.data == tensor._address, array)
        capsule = tensor.__dlpack__(max_version=(1, 1))
        check("a capsule that is never taken", "dltensor_versioned" in repr(capsule))
        check("another device, a copy", raised(BufferError, tensor.__dlpack__, dl_device=(2, 0)) and raised(BufferError, tensor.__dlpack__, copy=True))
        del tensor, array, capsule

print("-- what cannot be opened")
check("nothing", fails_with(errno.ENOENT, expertfs.open, scratch("nothing")))
check("a folder", fails_with(errno.ENODEV, expertfs.open, SCRATCH) or fails_with(errno.EISDIR, expertfs.open, SCRATCH))
error = raised(MemoryError, expertfs.open, store, budget="1M")
check("a budget below the minimum", isinstance(error, OSError) and error.errno == errno.ENOMEM and re.search(r"\d", error.strerror), error)
check("no size", raised(ValueError, expertfs.open, store, budget="much"))
damaged = scratch("damaged.efs")
shutil.copy(store, damaged)
with open(damaged, "r+b") as file:
    file.write(b"nothing!")
check("no store", fails_with(errno.EUCLEAN, expertfs.open, damaged))

print("-- damage in an expert")
damaged = damaged_store(store, 1, 4)
if check("its bytes are found in the store", damaged):
    with expertfs.open(damaged, budget="128M", state=False) as session:
        good, bad = [], []
        request = session.request(1, range(8))
        while True:
            try:
                good.append(next(request).number)
            except StopIteration:
                break
            except OSError as error:
                bad.append(error)
        check("it is an error with layer and expert, others are right", sorted(good) == [0, 1, 2, 3, 5, 6, 7] and len(bad) == 1 and
              bad[0].errno == errno.EUCLEAN and "layer 1, expert 4" in str(bad[0]), (good, bad))
        check("a message says where", wait_until(lambda: any("tensor" in one.text for one in session.messages())))

print("-- memory that the program itself holds")
wide, wide_store = shared(WIDE)
with expertfs.open(wide_store, budget="64M", state=False) as session:
    held = []
    error = raised(MemoryError, lambda: [held.append(one) for layer in (0, 1, 0, 1) for _ in range(5)
                                         for one in session.request(layer, range(8))])
    check("a wait for it raises MemoryError, in place of waiting for ever", error and f"{len(held)} in use" in str(error), (error, len(held)))
    error = None
    held.clear()
    check("then it goes on", len(session.request(0, [0, 1]).wait()) == 2)



def check_oversize(what, session):
    """Experts that do not fit into memory at once: neither wait() nor the loop variable of a for waits for ever."""
    numbers, errors, kept = [], [], []

    def run_all(_):
        request = session.request(0, range(8))
        errors.append(raised(MemoryError, request.wait))
        errors.append(raised(MemoryError, lambda: kept.extend(request)))
        numbers.extend(one.number for one in kept)
        kept.clear()
        while len(numbers) < 8:
            try:
                expert = next(request)
                numbers.append(expert.number)
            except MemoryError as why:
                errors.append(why)
            expert = None
        kept.extend(session.request(1, [0]))
        request = session.request(0, range(8))
        errors.append(raised(MemoryError, request.wait))
        kept.clear()
    check(f"{what}: all ends", in_threads(run_all, [0]))
    check("with MemoryError and a way out", len(errors) == 3 and all(one and "8 experts" in str(one) and "\nhint: " in str(one) for one in errors), errors)
    check("with none in use: to iterate", "8 experts: 0 in use\nhint: iterate over the request in place of wait()" in str(errors[0]), errors)
    check("else: to delete tensors", all("hint: delete tensors before" in str(one) for one in errors[1:]), errors)
    check("one by one all others come", len(set(numbers)) == 8, numbers)


for budget in ("22M", "24M"):
    with expertfs.open(wide_store, budget=budget, state=False) as session:
        check_oversize(f"8 experts of 3 MiB, {budget}", session)


def check_two_threads(what, session, by_ffns=(False, True)):
    """Two threads hold 3 experts each, and want 5 more each, with memory for 6 to 10: by requests, or by ffn()."""
    for by_ffn in by_ffns if numpy else (False,):
        errors, ended, all_hold, first_ended = [], [], threading.Barrier(2), threading.Event()

        def wait_for_more(layer, kept):
            for expert in range(3, 8):
                kept.extend(session.request(layer, [expert]))
                if by_ffn:
                    one = numpy.ones((1, 1), numpy.float32)
                    session.ffn(layer, numpy.ones((1, 512), numpy.float32), numpy.array([[(expert + 1) % 8]]), one, form="full")

        def hold_and_wait(layer):
            kept = session.request(layer, range(3)).wait()
            all_hold.wait()
            while layer not in ended:
                try:
                    wait_for_more(layer, kept)
                    ended.append(layer)
                except MemoryError as error:
                    errors.append(str(error))
                    kept.clear()
                    if layer == 1:  # else both may try and fail in step, for ever
                        first_ended.wait(PATIENCE)
            if layer == 0:
                first_ended.set()
        check(f"{what}: two threads that wait for each other: both end{', by ffn()' * by_ffn}", in_threads(hold_and_wait, (0, 1)) and
              len(ended) == 2 and errors, (ended, errors))


with expertfs.open(wide_store, budget="48M", state=False) as session:
    check_two_threads("a store", session)

print("-- the end of the interpreter")
result = python("""import expertfs, sys
session = expertfs.open(sys.argv[1], budget="128M", state=False)
kept = session.request(0, range(8)).wait()
capsule = kept[0]["gate"].__dlpack__()
views = [one["gate"].buffer for one in kept]
waiting = session.request(1, range(8))
print("end")
""", store)
check("with living tensors and requests it does not hang", result.returncode == 0 and result.stdout == "end\n", result)
result = python("import expertfs, sys\nexpertfs.open(sys.argv[1], budget='128M', state=False).request(0, [1])\n", store)
check("nor without", result.returncode == 0 and not result.stderr, result)

print("-- packing")
seen = []
packed = expertfs.pack(model, scratch("again.efs"), progress=lambda done, total, phase: seen.append((done, total, phase)) and None)
check("the same store", open(scratch("again.efs"), "rb").read() == open(store, "rb").read() and packed.experts == 24 and
      packed.store_bytes == os.path.getsize(store) and seen and seen[-1][1] > 0, (packed, seen[-1:]))
check("it is there", fails_with(errno.EEXIST, expertfs.pack, model, scratch("again.efs")))


def interrupted(*_):
    raise KeyboardInterrupt


try:
    expertfs.pack(model, scratch("none.efs"), progress=interrupted)
    check("an exception of progress()", False)
except KeyboardInterrupt:
    check("an exception of progress() is raised again, and leaves no file", not os.path.exists(scratch("none.efs")))

need_fuse()
with expertfs.mount(store, budget="128M") as path:
    session = expertfs.open(path)
    check("it is a mount", session.is_mount and is_mounted(path))
    check_session("a mount", session)
    check_fork(session)
    session.close()
    check("a budget for a mount", raised(ValueError, expertfs.open, path, budget="1G"))
check("it is unmounted, and its folder removed", not is_mounted(path) and not os.path.exists(path))
try:
    with expertfs.mount(store, scratch("mnt") if not os.mkdir(scratch("mnt")) else "", budget="128M") as path:
        raise KeyError("x")
except KeyError:
    check("after an exception, too", not is_mounted(scratch("mnt")) and os.path.isdir(scratch("mnt")))
with expertfs.mount(wide_store, budget="30M") as path, expertfs.open(path) as session:
    check_oversize("a mount", session)
with expertfs.mount(wide_store, budget="52M") as path, expertfs.open(path) as session:
    check_two_threads("a mount", session, (False,))
error = raised(OSError, lambda: expertfs.mount(scratch("nothing")).__enter__())
check("what cannot be mounted", error and "nothing" in str(error), error)
print("-- a daemon that is killed")
mount = Mount(store, "budget=128M")
session = expertfs.open(mount.path)
tensor = session.request(0, [2]).wait()[0]["gate"]
os.kill(mount.daemon.pid, signal.SIGKILL)
begin = time.monotonic()
error = raised(OSError, lambda: session.request(0, [3, 4]).wait())
check("a request fails, and tensors stay readable", error and error.errno in (errno.EIO, errno.EPIPE, errno.ENOTCONN) and
      bytes(tensor.buffer) == originals[tensor.name], error)
note(f"after {time.monotonic() - begin:.2f} s")
del tensor
session.close()
mount.abandon()
done()
