#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Quantised models in llama.cpp with libggml-expertfs.so: experts are computed by the host's kernels on the store's
bytes. Logits have the same bits as without the backend, with repacking off, of prompts and of single tokens. Little
memory, a mount, two contexts, two programs, the file in place of a store; a model that fits into memory is left to the CPU backend,
which repacks it."""
from e2e import *
from test_ggml import PYTHON, SHAPE, client, compare, drop, need_plugin, number, same

QUANTIZE = os.path.join(ROOT, "tools", "bench", "llama_quantize.py")
TYPES = ("Q4_K_M", "Q8_0", "Q4_0", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4_MOE")


def quantised(source, ftype):
    """A quantised model; None: llama.cpp failed, which is reported."""
    model = scratch(f"{ftype}.gguf")
    made = run(PYTHON, QUANTIZE, source, model, ftype)
    if made.returncode == 77:
        skip(made.stdout.strip())
    return model if check(f"{ftype}: quantised", made.returncode == 0, made.stderr[-1000:]) else None


def run_all(source, ftype, prompts):
    model = quantised(source, ftype)
    if not model:
        return None, None
    store = make_store(model)
    plain = client(model, "--prompts", prompts, "--no-repack", plugin=None, name="plain")
    if check(f"{ftype}: llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
        ours = client(model, "--prompts", prompts, "--no-repack", store=store)
        same(ftype, ours, "out", "plain")
        check(f"{ftype}: no tensor of experts is left to the processor", "left to the processor" not in ours.stderr,
              ours.stderr[-1500:])
    return model, store


def in_place(source):
    """BF16 and F16 in place: the library multiplies their coded forms only, so the host's kernels do."""
    client(source, "--prompts", "7,64", "--no-repack", plugin=None, name="plain")
    same("BF16, in place", client(source, "--prompts", "7,64", "--no-repack", store=source, budget="64M"), "out", "plain")
    halves = os.path.join(make_model("halves", *SHAPE, "--dtype", "f16"), "model.gguf")
    client(halves, "--prompts", "7,64", "--no-repack", plugin=None, name="halves")
    same("F16, in place", client(halves, "--prompts", "7,64", "--no-repack", store=halves, budget="64M"), "out", "halves")


def reads_once():
    """Prompts that use nearly all experts, with memory for two layers: down finds the experts of gate and up in memory, and
    those that are read ahead are not evicted before they are used."""
    model = os.path.join(make_model("layers", "-F", "qwen3-moe", "-d", "512", "-i", "256", "-e", "32", "--experts-per-token", "8",
                                    "-l", "8", "--vocab", "2048", "--format", "gguf"), "model.gguf")
    drop(model)
    ours = client(model, "--prompts", "64,65,66", "--tokens", "0", "--no-repack", store=model, budget="80M", plugin="preload")
    if check("prompts in place: run", ours.returncode == 0, ours.stderr[-1500:]):
        times = number("read", ours) / os.path.getsize(model)
        check(f"three prompts read the file {times:.2f} times", times <= 3)


def ways(model, store):
    """Q4_K_M in the other ways."""
    client(model, "--prompts", "7,64", "--no-repack", plugin=None, name="plain")
    for what, options, more in (("hardly any memory", (), {"budget": "32M"}),
                                ("one thread, preloaded", ("--threads", "1"), {"plugin": "preload"}),
                                ("two contexts at once", ("--contexts", "2"), {}),
                                ("two contexts, hardly any memory", ("--contexts", "2"), {"budget": "32M"}),
                                ("hints", (), {"budget": "32M", "prefetch": "on"})):
        ours = client(model, "--prompts", "7,64", "--no-repack", *options, store=store, **more)
        same(f"Q4_K_M, {what}", ours, "out", "plain")
    same("Q4_K_M, in place", client(model, "--prompts", "7,64", "--no-repack", store=model, budget="32M"), "out", "plain")
    if os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3")):
        mount = Mount(store, "budget=64M")
        same("Q4_K_M, a mount", client(mount / os.path.basename(model), "--prompts", "7,64", "--no-repack"), "out", "plain")
        mount.stop()
    else:
        note("left out: a mount needs /dev/fuse, and root or fusermount3")


def limited(source):
    """An automatic budget in cgroups with less and less memory: no kill, the same logits. The compute buffers get their
    pages during the prompt, so the budget must be checked again after it."""
    model = quantised(source, "Q8_0")
    store = make_store(model)
    client(model, "--prompts", "600", "--no-repack", plugin=None, name="plain")
    for limit in (400, 300, 250):
        try:
            cgroup = need_cgroup(limit << 20)
        except SystemExit:
            note("left out: little memory")
            return
        ours = client(model, "--prompts", "600", "--no-repack", store=store, budget="auto", plugin="preload", join=cgroup.join)
        same(f"Q8_0, {limit} MiB of memory", ours, "out", "plain")


def shared(model):
    """Two programs on one mount: what they hold of the model, in the daemon's memory and in the page cache, is in memory
    once. The rest of a program, such as its KV cache, is its own."""
    if not os.path.exists("/dev/fuse") or (os.geteuid() and not shutil.which("fusermount3")):
        return
    try:
        cgroup = need_cgroup(None)
    except SystemExit:
        note("left out: memory of two programs")
        return
    mount = Mount(model, "budget=64M", prefix=cgroup.prefix)
    running, pages = [], []
    for _ in range(2):
        running.append(client(mount / os.path.basename(model), "--wait", "--prompts", "64", plugin="preload", budget="auto",
                              start=True, join=cgroup.join))
        lines = iter(running[-1].stdout.readline, "")
        check("a program on the mount has begun", any(line == "begun\n" for line in lines), "")
        stat = cgroup.stat()
        pages.append(stat["file"] if cgroup.version == 2 else stat["total_cache"])
    check("two programs on a mount: pages of the model are in memory once", pages[1] <= 1.1 * pages[0], str(pages))
    for one in running:
        out, _ = one.communicate("\n", timeout=PATIENCE)
        check("a program on the mount ends", one.returncode == 0, out[-1500:])
    mount.stop()


def options(model, store):
    """--cpu-moe, and an adapter: its products are ggml's, those of the experts the backend's."""
    client(model, "--prompts", "7,64", "--no-repack", plugin=None, name="plain")
    same("Q4_K_M, --cpu-moe", client(model, "--prompts", "7,64", "--no-repack", "--cpu-moe", store=store), "out", "plain")
    adapter = scratch("lora.gguf")
    made = run(PYTHON, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import ggml_lora; ggml_lora.make(*sys.argv[2:])",
               os.path.join(ROOT, "tests", "clients"), model, adapter)
    if not check("LoRA: made", made.returncode == 0, made.stderr[-1000:]):
        return
    plain = client(model, "--prompts", "7,64", "--no-repack", "--lora", adapter, plugin=None, name="lora")
    if check("LoRA: llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
        check("LoRA: other logits than without", compare("lora", "plain") != "", "")
        same("LoRA", client(model, "--prompts", "7,64", "--no-repack", "--lora", adapter, store=store), "out", "lora")


def repacked(model, store):
    """The CPU backend gets its repacked experts where the backend would not compute them."""
    for what, more in (("a file that fits", {"store": store, "budget": None}), ("no store", {"budget": None})):
        plain = client(model, "--prompts", "7", plugin=None, name="plain")
        ours = client(model, "--prompts", "7", plugin="preload", name="fits", **more)
        same(f"{what}: repacked", ours, "fits", "plain", taken=False)
        size = re.compile(r"(?:CPU_REPACK|AMX) model buffer size = *([0-9.]+)")
        check(f"{what}: the buffers of repacked weights are as large",
              size.findall(ours.stderr) == size.findall(plain.stderr), ours.stderr[-1500:])


def main():
    need_plugin()
    source = os.path.join(make_model("model", *SHAPE), "model.gguf")
    for ftype in TYPES[1:]:
        run_all(source, ftype, "1,40")
    model, store = run_all(source, TYPES[0], "1,7,64,700")
    if model:
        ways(model, store)
        options(model, store)
        shared(model)
        limited(source)
        in_place(source)
        reads_once()
        repacked(model, store)
    done()


if __name__ == "__main__":
    main()
