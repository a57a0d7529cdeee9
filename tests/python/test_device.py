# SPDX-License-Identifier: Apache-2.0
"""Experts in memory of a graphics processor as tensors of DLPack, on a driver without a device, whose memory is memory of
the process: bytes, shapes, what is held until when, the stream after whose work it is dropped; the example in Python of
expertfs-gpu(7). With a substitute for PyTorch; by PyTorch itself where it finds a graphics processor."""
from package import *

environment = environment_of_fake_device()

TORCH = TAKER + """
import sys, types
import expertfs

class View:
    def __init__(self, of):
        self.device, capsule = of.__dlpack_device__(), of.__dlpack__(stream=2, max_version=(1, 1))
        self.taken = Taken(capsule)
        one = self.taken.struct
        self.shape, self.dtype = tuple(one.tensor.shape[:one.tensor.dims]), (one.tensor.kind, one.tensor.bits)
        assert tuple(one.tensor.device) == self.device and one.flags == 1 and list(one.tensor.strides[:2]) == [self.shape[1], 1]
        self.bytes = ctypes.string_at(one.tensor.data, self.shape[0] * self.shape[1] * 2)

streams = []
torch = types.ModuleType("torch")
torch.from_dlpack = View
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True,
                                   current_stream=lambda device: streams.append(device) or types.SimpleNamespace(cuda_stream=0))
sys.modules["torch"] = torch
"""
ALL = TORCH + """
import errno, pickle
from expertfs._library import lib

def held():
    stats = (ctypes.c_uint64 * 32)()
    assert lib.efs_client_gpu_stats(session._client, stats) == 0
    return stats[11]

def fails(kind, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__}")

session = expertfs.open(sys.argv[1], "128M", state=False, device=0, device_budget="48M")
kept, found = None, {}
for expert in session.request(0, [2, 5, 7], form="device"):
    assert held() >= 1
    for tensor in expert.tensors:
        view = torch.from_dlpack(tensor)
        assert view.device == (2, 0) and view.shape == tensor.shape and view.dtype in ((4, 16), (2, 16)), vars(view)
        found[tensor.name] = view.bytes
        kept = kept or (tensor.name, view)  # outlives its request
fails(BufferError, lambda: tensor.buffer), fails(BufferError, lambda: tensor.__array_interface__)
fails(BufferError, tensor.__dlpack__, dl_device=(1, 0)), fails(BufferError, tensor.__dlpack__, copy=True)
del expert, tensor, view
assert held() == 1 and streams == [0, 0], (held(), streams)
assert fails(OSError, session.close).errno == errno.EBUSY
kept = None
assert held() == 0 and streams == [0, 0, 0] and not t._lent, (held(), streams)
assert fails(OSError, session.request, 0, [99], form="device").errno == errno.ENOENT
torch.cuda.is_initialized = lambda: False  # then nothing of PyTorch is in a stream
del session.request(1, [0], form="device").wait()[0]
assert held() == 0 and len(streams) == 3
full = session.request(0, [2]).wait()[0]  # other forms as before
assert all(bytes(one.buffer) == found[one.name] and one.__dlpack_device__() == (1, 0) for one in full.tensors)
del full
session.close()
assert fails(OSError, expertfs.open, sys.argv[1], "128M", state=False, device=7).errno == errno.ENODEV
assert fails(OSError, expertfs.open, sys.argv[1], "128M", state=False, device=0, device_budget="1M").errno == errno.EINVAL
with expertfs.open(sys.argv[1], "128M", state=False) as session:
    fails(ValueError, session.request, 0, [2], form="device")
pickle.dump(found, open(sys.argv[2], "wb"))
"""
for dtype in ("bf16", "f16"):
    model = make_model(dtype, "--preset=tiny-qwen3-moe", "--dtype", dtype)
    store = make_store(model)
    result = run(sys.executable, "-c", ALL, store, scratch("found"), env=environment)
    if check(f"{dtype}: tensors that outlive requests, what is held, streams, refusals", result.returncode == 0, result.stdout + result.stderr):
        want = {name: data for name, data in experts_of(model).items() if re.search(r"layers\.0\.mlp\.experts\.[257]\.", name)}
        check(f"{dtype}: the bytes that were packed", __import__("pickle").load(open(scratch("found"), "rb")) == want)
page = open(os.path.join(ROOT, "man/expertfs-gpu.7")).read()
example = re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed", page, re.M | re.S)[-1].replace("\\-", "-")
result = run(sys.executable, "-c", TORCH + example, store, "2", "5", env=environment)
check("the page's example", result.returncode == 0 and len(result.stdout.splitlines()) == 6 and
      "layers.0.mlp.experts.5.down_proj.weight" in result.stdout, result)

try:
    import torch
    why = "" if torch.cuda.is_available() else "PyTorch finds no graphics processor"
except ImportError as error:
    why = str(error)
if why:
    note(f"by PyTorch: left out: {why}")
    done()
with expertfs.open(store, "128M", state=False, device=0, device_budget="48M") as session:
    expert = session.request(0, [2], form="device").wait()[0]
    view, want = torch.from_dlpack(expert["gate"]), expert["gate"].name
    check("by PyTorch: the bytes", view.device.type == "cuda" and view.view(torch.uint8).cpu().numpy().tobytes() == experts_of(model)[want])
    del expert, view
done()
