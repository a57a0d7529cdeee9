# SPDX-License-Identifier: Apache-2.0
"""expertfs.transformers with experts in memory of a graphics processor, on a driver without a device, whose memory is memory of the
process: the bits of the eager implementation, nothing is held after a forward, with room for few experts; what is refused. PyTorch
then computes on the CPU, by tensors that a substitute for torch.from_dlpack() makes of the same capsules. By PyTorch itself where it
finds a graphics processor."""
from package import *

try:
    import torch
    import transformers
except ImportError as why:
    skip(f"{why}: tools/setup-python torch installs it")
environment = environment_of_fake_device()
PROGRAM = TAKER + """
import errno, functools, sys
import torch
import transformers
import expertfs
import expertfs.transformers as moe
from expertfs._library import lib
from expertfs.experts_torch import device_arrivals

DTYPES, made = {(4, 16): torch.bfloat16}, []

def from_dlpack(of):
    assert of.__dlpack_device__() == (2, 0)
    taken = Taken(of.__dlpack__(stream=1, max_version=(1, 1)))
    one = taken.struct.tensor
    rows, columns = one.shape[0], one.shape[1]
    memory = (ctypes.c_char * (rows * columns * 2)).from_address(one.data)
    memory.taken = taken
    made.append((rows, columns))
    return torch.frombuffer(memory, dtype=DTYPES[one.kind, one.bits]).view(rows, columns)

def held():
    stats = (ctypes.c_uint64 * 32)()
    assert lib.efs_client_gpu_stats(session._client, stats) == 0
    return stats[11]

def refused(number, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except OSError as error:
        assert error.errno == number, error
        return
    raise SystemExit(f"not refused: {number}")

path, store, room = sys.argv[1:]
refused(errno.ENODEV, moe.from_pretrained, path, store, "128M", device=torch.cuda.device_count())
refused(errno.EOPNOTSUPP, moe.from_pretrained, path, store, "128M", device=0, way="coded")
torch.from_dlpack = from_dlpack
eager = {"experts_implementation": "eager"} if moe._version.ARGUMENTS else {}
auto = transformers.AutoModelForCausalLM
session = expertfs.open(store, "128M", state=False, device=0, device_budget=room)
with moe.using(session, "full"):
    ours = auto.from_pretrained(path, dtype="auto", **moe._version.ARGUMENTS)
for binding in moe._bindings(ours):
    binding.arrivals = functools.partial(device_arrivals, binding)  # as for tensors of a device
theirs = auto.from_pretrained(path, dtype="auto", **eager)
for tokens in ([list(range(2, 40))], [[5]], [[7, 9], [11, 13]]):
    with torch.no_grad():
        mine, wanted = (model(torch.tensor(tokens)).logits for model in (ours, theirs))
    assert torch.equal(mine, wanted), (mine - wanted).abs().max()
    assert held() == 0 and not t._lent, (held(), t._lent)
print(len(made), session.stats()["coded"])
del ours
session.close()
"""
path = make_model("qwen", "--preset=tiny-qwen3-moe")
store = make_store(path)
for room in ("48M", "34M"):
    result = run(sys.executable, "-c", PROGRAM, path, store, room, env=environment)
    check(f"{room}: eager's logits, and nothing is held", result.returncode == 0 and result.stdout, result.stdout + result.stderr)
    note(result.stdout.strip())
if not torch.cuda.is_available():
    note("by PyTorch: left out: it finds no graphics processor")
    done()
import expertfs.transformers as moe

auto, tokens = transformers.AutoModelForCausalLM, torch.tensor([[2, 3, 5, 7]], device="cuda:0")
theirs = auto.from_pretrained(path, dtype="auto", **({"experts_implementation": "eager"} if moe._version.ARGUMENTS else {})).to("cuda:0")
ours = moe.from_pretrained(path, store, "128M", device=0, device_budget="48M", dtype="auto")
with torch.no_grad():
    check("by PyTorch: eager's logits", torch.equal(ours(tokens).logits, theirs(tokens).logits))
ours.expertfs.close()
done()
