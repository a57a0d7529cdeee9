# SPDX-License-Identifier: Apache-2.0
"""Session.ffn() of the Python package, against numpy; arguments that it refuses, each with a sentence."""
from package import *

try:
    import ml_dtypes
    import numpy
except ImportError as why:
    skip(f"{why}: tools/setup-python basic installs it")

model, store = shared()
weights = {name: numpy.frombuffer(data, ml_dtypes.bfloat16).astype(numpy.float64) for name, data in experts_of(model).items()}
HIDDEN, INNER, EXPERTS, K = 256, 512, 8, 2
random_numbers = numpy.random.default_rng(7)


def expected(layer, x, idx, w):
    out = numpy.zeros(x.shape)
    for t in range(len(x)):
        for k in range(idx.shape[1]):
            gate, up, down = (weights[f"model.layers.{layer}.mlp.experts.{idx[t, k]}.{role}_proj.weight"].reshape(shape) for role, shape in
                              (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))))
            g = gate @ x[t].astype(numpy.float64)
            out[t] += float(w[t, k]) * (down @ (g / (1 + numpy.exp(-g)) * (up @ x[t].astype(numpy.float64))))
    return out


def tokens(count, dtype=numpy.float32):
    x = random_numbers.standard_normal((count, HIDDEN)).astype(dtype)
    idx = numpy.stack([random_numbers.permutation(EXPERTS)[:K] for _ in range(count)]).astype(numpy.int64).reshape(count, K)
    return x, idx, random_numbers.random((count, K)).astype(numpy.float32)


def close(got, want, tolerance):
    return float(numpy.abs(numpy.asarray(got, numpy.float64) - want).max()) <= tolerance * float(numpy.abs(want).max())


def refusals(session):
    x, idx, w = tokens(4)
    for what, kind, arguments, words in (
            ("x of another type", TypeError, (x.astype(numpy.float64), idx, w), "x is of float64"),
            ("x that is strided", ValueError, (numpy.asfortranarray(x), idx, w), "strided"),
            ("x of one dimension", ValueError, (x[0], idx, w), "dimensions"),
            ("x that is a list", TypeError, (x.tolist(), idx, w), "list"),
            ("idx of another type", TypeError, (x, idx.astype(numpy.int16), w), "idx is of int16"),
            ("idx that is strided", ValueError, (x, numpy.repeat(idx, 2, 1)[:, ::2], w), "strided"),
            ("idx of fewer tokens", ValueError, (x, idx[:3], w), "shapes"),
            ("w of another type", TypeError, (x, idx, w.astype(numpy.float16)), "w is of float16"),
            ("x in the other byte order", TypeError, (x.astype(">f4"), idx, w), "x is of >f4"),
            ("idx in the other byte order", TypeError, (x, idx.astype(">i8"), w), "idx is of >i8"),
            ("w in the other byte order", TypeError, (x, idx, w.astype(">f4")), "w is of >f4"),
            ("out in the other byte order", TypeError, (x, idx, w, numpy.zeros(x.shape, ">f4")), "out is of >f4"),
            ("rows of part of an element", ValueError, (numpy.zeros(x.shape, "f4,u2")["f0"], idx, w), "aligned"),
            ("out of another shape", ValueError, (x, idx, w, numpy.zeros((4, 8), numpy.float32)), "shapes"),
            ("out that is read-only", ValueError, (x, idx, w, numpy.broadcast_to(numpy.float32(0), x.shape)), "read-only")):
        error = raised(kind, session.ffn, 0, *arguments)
        check(what, error and words in str(error), error)
    twice, beyond = idx.copy(), idx.copy()
    twice[2] = 3
    beyond[1, 1] = EXPERTS
    check("an expert twice for a token", fails_with(errno.EINVAL, session.ffn, 0, x, twice, w))
    check("an expert that is not there", fails_with(errno.EINVAL, session.ffn, 0, x, beyond, w))
    check("a layer that is not there", fails_with(errno.ENOENT, session.ffn, 3, x, idx, w))
    check("and no tokens", fails_with(errno.ENOENT, session.ffn, 3, x[:0], idx[:0], w[:0]))
    check("a layer of more than 32 bits", raised(ValueError, session.ffn, 1 << 32, x, idx, w))
    check("NUL in a text", raised(ValueError, session.ffn, 0, x, idx, w, act="silu\0x") and raised(ValueError, session.ffn, 0, x, idx, w, stack="\0"))
    error = raised(OSError, session.ffn, 0, x, idx, w, act="gelu")
    check("another activation", error and error.errno == errno.EOPNOTSUPP and "gelu" in str(error), error)
    check("another hidden size", fails_with(errno.EINVAL, session.ffn, 0, x[:, :128].copy(), idx, w))
    check("no form of that name", raised(ValueError, session.ffn, 0, x, idx, w, form="half"))


def check_damage(what, session):
    """Layer 1 has a damaged expert, 4: what reaches it says where and what to do, and changes nothing; the rest runs."""
    x, idx, w = tokens(2)
    bad, good, out = numpy.array([[2, 5], [4, 6]]), numpy.array([[2, 5], [7, 6]]), numpy.full((2, HIDDEN), 7, numpy.float32)
    calls = {form: (lambda form=form: session.ffn(1, x, bad, w, out, form=form)) for form in ("full", "coded", "any")}
    calls |= {"a request": lambda: session.request(1, range(8)).wait(), "its file": lambda: session.read("experts/L01/E004.safetensors")}
    for call, run_it in calls.items():
        error = raised(expertfs.Error, run_it)
        named = "experts/L01/E004.safetensors" if call == "its file" else "layer 1, expert 4"
        check(f"{what}, {call}: an error with store, layer, expert and a way out", error and error.errno == errno.EUCLEAN and
              error.strerror.startswith(f"{session.path}: {named}") and "it is damaged\nhint: restore the store from a copy" in str(error), error)
    check("the result is untouched", (out == 7).all())
    for form in ("full", "coded", "any"):
        check("other experts and layers are still run", close(session.ffn(1, x, good, w, form=form), expected(1, x, good, w), 1e-5) and
              close(session.ffn(2, x, bad, w, form=form), expected(2, x, bad, w), 1e-5))


def check_session(what, session):
    print(f"-- {what}")
    x, idx, w = tokens(5)
    want = expected(1, x, idx, w)
    first = session.ffn(1, x, idx, w, act="silu")
    check("float32", first.dtype == numpy.float32 and close(first, want, 1e-5))
    for form in ("full", "coded"):
        check(f"the same bits, {form}, idx of int32", numpy.array_equal(session.ffn(1, x, idx.astype(numpy.int32), w, form=form), first))
    out = numpy.full((5, HIDDEN + 8), 7, numpy.float32)[:, :HIDDEN]
    check("into rows with a gap", session.ffn(1, x, idx, w, out) is out and numpy.array_equal(out, first) and (out.base[:, HIDDEN:] == 7).all())
    bf16 = x.astype(ml_dtypes.bfloat16)
    result = session.ffn(1, bf16, idx, w.astype(ml_dtypes.bfloat16))
    check("bfloat16", result.dtype == ml_dtypes.bfloat16 and close(result, expected(1, bf16, idx, w.astype(ml_dtypes.bfloat16)), .02))
    check("no tokens", session.ffn(1, x[:0], idx[:0], w[:0]).shape == (0, HIDDEN))
    check("no experts", (session.ffn(1, x, idx[:, :0].copy(), w[:, :0].copy()) == 0).all())
    held = session.request(1, [0, 1]).wait()
    check("while experts are held", numpy.array_equal(session.ffn(1, x, idx, w), first))
    del held
    results = {}
    check("four threads at once", in_threads(lambda n: results.update({n: session.ffn(1, x, idx, w)}), range(4)) and
          all(numpy.array_equal(results[n], first) for n in range(4)))
    refusals(session)


with expertfs.open(store, budget="128M", state=False) as session:
    check_session("a store", session)

print("-- without room")
wide, wide_store = shared(WIDE)
with expertfs.open(wide_store, budget="64M", state=False) as session:
    held = session.request(0, range(8)).wait()
    error = None
    for expert in range(8):
        try:
            held += session.request(1, [expert])
        except MemoryError as why:
            error = str(why)
            break
    note(f"{len(held)} are held, expert {expert} of layer 1 is not: {error}")
    x, idx = numpy.ones((1, 512), numpy.float32), numpy.array([[expert]])
    check("tensors of this thread leave no room: MemoryError", raised(MemoryError, session.ffn, 1, x, idx, numpy.ones((1, 1), numpy.float32), form="full"))
    held.clear()
    check("then it runs", session.ffn(1, x, idx, numpy.ones((1, 1), numpy.float32)).any())

print("-- damage in an expert")
damaged = damaged_store(store, 1, 4)
if check("its bytes are found in the store", damaged):
    with expertfs.open(damaged, budget="128M", state=False) as session:
        check_damage("a store", session)

if os.path.exists("/dev/fuse"):
    if damaged:
        with expertfs.mount(damaged, budget="128M") as path, expertfs.open(path) as session:
            check_damage("a mount", session)
    with expertfs.mount(store, budget="128M") as path, expertfs.open(path) as session:
        check_session("a mount", session)
    print("-- a daemon that is killed while experts run")
    mount = Mount(store, "budget=128M")
    session, ended, x = expertfs.open(mount.path), [], tokens(3)

    def run_on(_):
        try:
            while True:
                for layer in range(3):
                    session.ffn(layer, *x)
        except OSError as why:
            ended.append((time.monotonic(), why.errno))
    thread = threading.Thread(target=run_on, args=(0,), daemon=True)
    thread.start()
    check("they run", wait_until(lambda: session.stats()["coded"] + session.stats()["leases"] > 3))
    killed = time.monotonic()
    os.kill(mount.daemon.pid, signal.SIGKILL)
    thread.join(PATIENCE)
    check("EIO", len(ended) == 1 and ended[0][1] == errno.EIO, ended)
    note(f"after {ended[0][0] - killed:.2f} s" if ended else "never")
    session.close()
    mount.abandon()
else:
    note("no /dev/fuse: not run on a mount")
done()
