# SPDX-License-Identifier: Apache-2.0
"""Experts whose gate and up are one tensor of a layer: the same bits as those of the same model with separate ones, for
every form, codec and type of the inputs; also transposed, and transposed, interleaved and with biases, if the caller says
so. Other layouts, another one than the caller says, an odd number of rows, and other tensors are refused."""
from package import *

try:
    import ml_dtypes
    import numpy
except ImportError as why:
    skip(f"{why}: tools/setup-python basic installs it")

model, store = shared()
originals = experts_of(model)
HIDDEN, INNER, EXPERTS = 256, 512, 8


def layer_of(role, layer=1):
    return numpy.stack([numpy.frombuffer(originals[f"model.layers.{layer}.mlp.experts.{expert}.{role}_proj.weight"], numpy.uint16).reshape(
        (HIDDEN, INNER) if role == "down" else (INNER, HIDDEN)) for expert in range(EXPERTS)])


def write(name, tensors):
    """A checkpoint with these tensors of layer 1."""
    entries, at = {}, 0
    for tensor, values in tensors.items():
        entries[f"model.layers.1.mlp.experts.{tensor}"] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    header = json.dumps(entries).encode()
    os.mkdir(scratch(name))
    with open(scratch(f"{name}/model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + b"".join(values.tobytes() for values in tensors.values()))
    return scratch(name)


gate, up, down = map(layer_of, ("gate", "up", "down"))
fused = write("fused", {"gate_up_proj": numpy.concatenate((gate, up), axis=1), "down_proj": down})
generator = numpy.random.default_rng(3)
x = generator.standard_normal((300, HIDDEN)).astype(numpy.float32)  # more tokens of an expert than one product takes
idx = numpy.stack([generator.permutation(EXPERTS)[:3] for _ in range(300)])
idx[:280, 0], idx[:280, 1:] = 5, [[2, 7]]
w = generator.random((300, 3)).astype(numpy.float32)
with expertfs.open(store, budget="128M", state=False) as session:
    want = {(dtype, count): session.ffn(1, x[:count].astype(dtype), idx[:count], w[:count]) for dtype in (numpy.float32, ml_dtypes.bfloat16)
            for count in (1, 7, 300)}

for codec in ("in place", "cascade", "zstd", "lz4", "raw"):
    path = fused
    if codec != "in place":
        path = scratch(f"{codec}.efs")
        packed = run(program("mkexpertfs"), "-q", "--codec", codec, fused, path)
        check(f"{codec}: packed", packed.returncode == 0, packed)
    with expertfs.open(path, budget="128M", state=False) as session:
        layers = session.layers()
        check(f"{codec}: its layer", [(one.number, len(one.experts)) for one in layers] == [(1, EXPERTS)] and
              {one.role: one.shape for one in layers[0].tensors(3)} == {"gate_up": (2 * INNER, HIDDEN), "down": (HIDDEN, INNER)})
        for form in ("full", "coded"):
            wrong = [(dtype.__name__, count) for (dtype, count), result in want.items() if not numpy.array_equal(
                session.ffn(1, x[:count].astype(dtype), idx[:count], w[:count], act="silu", form=form), result)]
            check(f"{codec}, {form}: the bits of separate gate and up", not wrong, wrong)
        error = raised(OSError, session.ffn, 1, x, idx, w, act="gelu")
        check(f"{codec}: another activation", error and error.errno == errno.EOPNOTSUPP, error)



def columns(values):
    return values.transpose(0, 2, 1).copy()


def in_turns(a, b):
    return numpy.stack((a, b), axis=2).reshape(a.shape[0], 2 * a.shape[1], *a.shape[2:])


def bf16(*shape):
    return generator.standard_normal(shape).astype(ml_dtypes.bfloat16).view(numpy.uint16)


def runs(session, count, dtype, **more):
    return session.ffn(1, x[:count].astype(dtype), idx[:count], w[:count], **more)


def check_layout(what, want_from, path, number_of_tensors, **layout):
    """The results of another checkpoint; all other layouts are refused."""
    with expertfs.open(want_from, budget="128M", state=False) as session:
        wanted = {(dtype, count): runs(session, count, dtype) for dtype in (numpy.float32, ml_dtypes.bfloat16) for count in (1, 7, 300)}
    for path in path, make_store(path):
        with expertfs.open(path, budget="128M", state=False) as session:
            check(f"{what}: its tensors", len(session.layers()[0].tensors(3)) == number_of_tensors and
                  None not in {one.role for one in session.layers()[0].tensors(3)}, session.layers()[0].tensors(3))
            for form in ("full", "any"):
                wrong = [(dtype.__name__, count) for (dtype, count), result in wanted.items() if not numpy.array_equal(
                    runs(session, count, dtype, form=form, act="silu", **layout), result)]
                check(f"{what}, {form}: the bits of separate gate and up", not wrong, wrong)
            check("in coded form it is refused", fails_with(errno.EOPNOTSUPP, runs, session, 7, numpy.float32, form="coded", **layout))
            for other in ({}, {"transposed": True}, {"interleaved": True}, {"transposed": True, "interleaved": True}):
                if other != layout:
                    error = raised(OSError, runs, session, 7, numpy.float32, **other)
                    check(f"called {other}", error and error.errno in (errno.EINVAL, errno.EOPNOTSUPP), error)


check_layout("transposed, as Llama 4 has them", fused, write("transposed", {
    "gate_up_proj": columns(numpy.concatenate((gate, up), axis=1)), "down_proj": columns(down)}), 2, transposed=True)
biases = bf16(EXPERTS, INNER), bf16(EXPERTS, INNER), bf16(EXPERTS, HIDDEN)
each = {}
for expert in range(EXPERTS):
    for role, weight, bias in zip(("gate", "up", "down"), (gate, up, down), biases):
        each |= {f"{expert}.{role}_proj.weight": weight[expert], f"{expert}.{role}_proj.bias": bias[expert]}
check_layout("interleaved, as gpt-oss has them", write("with biases", each), write("interleaved", {
    "gate_up_proj": columns(in_turns(gate, up)), "gate_up_proj_bias": in_turns(*biases[:2]), "down_proj": columns(down),
    "down_proj_bias": biases[2]}), 4, transposed=True, interleaved=True)

for what, number, tensors in (
        ("transposed, and not called so", errno.EINVAL, {"gate_up_proj": columns(numpy.concatenate((gate, up), axis=1)), "down_proj": columns(down)}),
        ("an odd number of rows", errno.EINVAL, {"gate_up_proj": numpy.concatenate((gate, up), axis=1)[:, :-1].copy(), "down_proj": down}),
        ("another inner size", errno.EINVAL, {"gate_up_proj": numpy.concatenate((gate, up), axis=1), "down_proj": down[:, :, :-2].copy()}),
        ("without down", errno.EOPNOTSUPP, {"gate_up_proj": numpy.concatenate((gate, up), axis=1)})):
    with expertfs.open(write(what, tensors), budget="128M", state=False) as session:
        check(what, fails_with(number, session.ffn, 1, x, idx, w))
done()
