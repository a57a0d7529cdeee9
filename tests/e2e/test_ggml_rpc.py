#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so and slots for experts in the memory of a server of ggml's RPC backend on the
loopback interface, which this process cannot reach: logits have the bits of those with all experts in that memory by
ggml itself, for each type. Adapters, a draft, --cpu-moe, -ot, --n-cpu-moe, and a lost server."""
import atexit
import socket

from e2e import *
from test_ggml import CLIENT, PYTHON, SHAPE, client, need_plugin, same
from test_ggml_device import counted, plain, settings
from test_ggml_quant import TYPES, quantised

SERVER = os.path.join(os.path.dirname(CLIENT), "ggml_server.py")


def library():
    """ggml's RPC backend, of the version of llama-cpp-python."""
    with open(os.path.join(os.path.dirname(CLIENT), "requirements-runtimes.txt")) as file:
        version = re.search(r"^llama-cpp-python==(\S+)", file.read(), re.M).group(1)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache, "expertfs", f"ggml-{version}", "libggml-rpc.so")


class Server:
    """A server; its device is RPC0."""

    def __init__(self):
        atexit.register(self.stop)
        for _ in range(5):  # the port may be another program's before the server has it
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            self.process = subprocess.Popen([PYTHON, SERVER, library(), str(self.port)], stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL)
            if wait_until(self.answers) and self.process.poll() is None:
                return
        check("the server runs", False, self.process.poll())

    def answers(self):
        with socket.socket() as probe:
            return self.process.poll() is not None or probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self.process.kill()
        self.process.wait()


def remote(server, file, slots, *options, share="off", **more):
    variables = settings("RPC0", file, slots, {"GGML_RPC": library(), "EXPERTFS_DEVICE_SHARE": share})
    return client(file, "--rpc", f"127.0.0.1:{server.port}", "--no-repack", *options, settings=variables, **more)


def stock(server, file, *options, name="stock"):
    """All experts in the device's memory, by ggml."""
    result = client(file, "--rpc", f"127.0.0.1:{server.port}", "--on-device", "--no-repack", *options, plugin=None, name=name,
                    settings={"GGML_RPC": library()})
    return check(f"{os.path.basename(file)}: ggml with all experts on the device", result.returncode == 0, result.stderr[-1500:])


def one_type(server, what, model, store, divided=False):
    """More slots than a token chooses, and fewer than a prompt does. divided: the processor computes a part, with the
    same bits, because the server computes on the same processor."""
    options = ("--prompts", "1,40", "--tokens", "3")
    if stock(server, model, *options):
        for share in ("off", "on")[:1 + divided]:
            result = remote(server, model, 6, *options, share=share, store=store)
            same(f"{what}, 6 slots, share={share}", result, "out", "stock")
            counted(f"{what}, 6 slots, share={share}", result, 6)


def placed(server, model):
    """--n-gpu-layers with --cpu-moe, --n-cpu-moe and -ot: layers, and experts of some layers, are ggml's on the server.
    A draft: another model in the process, whose experts are ggml's."""
    for share, *options in (("off", "--cpu-moe"), ("on", "--n-cpu-moe", "2"), ("off", "-ot", r"blk\.[13]\.ffn_(up|down|gate)_exps")):
        options = ("--prompts", "7,40", "--gpu-layers", "99", *options)
        result = client(model, "--rpc", f"127.0.0.1:{server.port}", "--no-repack", *options, plugin=None, name="stock",
                        settings={"GGML_RPC": library()})
        check(f"{options[4:]}: ggml by itself", result.returncode == 0, result.stderr[-1500:])
        result = remote(server, model, 6, *options, share=share, store=model)
        same(f"{options[4:]}, share={share}", result, "out", "stock")
        slots = "6 slots of 16 experts in each of 4 layers" if "--cpu-moe" in options else "12 slots of 16 experts in each of 2 layers"
        check(f"{options[4:]}: the budget is for the layers that stay", slots in result.stderr, result.stderr[-1500:])
    draft = os.path.join(make_model("draft", *SHAPE, "--seed=7"), "model.gguf")
    plain(draft, "--prompts", "7,40", name="draft")
    result = remote(server, model, 6, "--prompts", "7,40", "--also", draft, scratch("also.npz"), share="on", store=model)
    same("with a draft", result, "out", "plain")
    same("the draft", result, "also", "draft")


def adapters(server, model):
    """Products of an adapter (LoRA) are ggml's; --cpu-moe; and the server is lost."""
    adapter = scratch("lora.gguf")
    made = run(PYTHON, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import ggml_lora; ggml_lora.make(*sys.argv[2:])",
               os.path.dirname(CLIENT), model, adapter)
    if check("LoRA: made", made.returncode == 0, made.stderr[-1000:]):
        plain(model, "--prompts", "7,40", "--lora", adapter, name="lora")
        same("LoRA", remote(server, model, 6, "--prompts", "7,40", "--lora", adapter, store=model), "out", "lora")
    plain(model, "--prompts", "7,40")
    same("--cpu-moe", remote(server, model, 6, "--prompts", "7,40", "--cpu-moe", store=model), "out", "plain")
    placed(server, model)
    running = remote(server, model, 6, "--wait", store=model, start=True)
    begun = any(line == "begun\n" for line in iter(running.stdout.readline, ""))
    server.stop()
    try:
        text, _ = running.communicate("\n", timeout=PATIENCE)
        check("the server is lost: ggml ends the program, with a message", begun and running.returncode != 0 and "RPC server" in text,
              text[-1500:])
    except subprocess.TimeoutExpired:
        running.kill()
        check("the server is lost: nothing hangs", False)


def main():
    """All types of expertfs-ggml(7)."""
    need_plugin()
    if not os.path.exists(library()):
        skip("ggml's RPC backend is not built: tools/setup-python runtimes")
    source = os.path.join(make_model("model", *SHAPE), "model.gguf")
    server = Server()
    q4 = None
    for ftype in TYPES:
        model = quantised(source, ftype)
        if model:
            one_type(server, ftype, model, make_store(model), divided=q4 is None)
        q4 = q4 or model
    one_type(server, "BF16", source, make_store(source), divided=True)
    halves = os.path.join(make_model("halves", *SHAPE, "--dtype", "f16"), "model.gguf")
    one_type(server, "F16", halves, make_store(halves))
    if q4:
        adapters(server, q4)
    server.stop()
    done()


if __name__ == "__main__":
    main()
