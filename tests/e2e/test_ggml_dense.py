#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Dense weights in llama.cpp with libggml-expertfs.so and EXPERTFS_DENSE: a part of their rows is kept in memory, the
others are read for each product. Logits have the same bits as without the backend, of prompts and of single tokens, for
models with and without experts, from a file and from a mount; the memory stays within the limit, also in a cgroup that
is smaller than the weights; a file that changes makes the decode fail."""
from e2e import *
from test_ggml import PYTHON, client, need_plugin, number, same

MAKER = os.path.join(ROOT, "tests", "clients", "dense_model.py")
SHORT = ("--prompts", "1,7,64", "--tokens", "3", "--no-repack")
STREAMED = re.compile("dense weights: ([0-9]+) of ([0-9]+) MiB stay in memory")


def model_of(kind, *options):
    model = scratch(f"{kind}{''.join(options)}.gguf")
    made = run(PYTHON, MAKER, model, "--type", kind, *options, timeout=240)
    if made.returncode == 77:
        skip(made.stdout.strip())
    if not check(f"{kind}: made", made.returncode == 0, made.stderr[-1000:]):
        done()
    return model


def streamed(what, result, part=True):
    """Checks how many of the dense weights were kept: a part of them, or all."""
    found = STREAMED.search(result.stdout + result.stderr)
    check(f"{what}: {'a part' if part else 'all'} of the dense weights stays in memory",
          found and (int(found[1]) < int(found[2])) == part, (result.stdout + result.stderr)[-1500:])


def kinds():
    for kind, options in (("Q8_0", ()), ("Q4_K", ("--tied",)), ("BF16", ()), ("MXFP4", ()), ("F32", ("--layers", "2"))):
        model = model_of(kind, "--inner", "3072", *options)
        plain = client(model, *SHORT, plugin=None, name="plain")
        if not check(f"{kind}: llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
            continue
        for limit in ("16M", "1G"):
            ours = client(model, *SHORT, store=model, dense=limit, budget="64M", plugin="preload")
            same(f"{kind}, {limit}", ours, "out", "plain")
            streamed(f"{kind}, {limit}", ours, limit == "16M")
        if kind == "Q8_0":
            ways(model, plain)


def ways(model, plain):
    for what, options, more in (("one thread", ("--threads", "1"), {}), ("GGML_BACKEND_PATH", (), {"plugin": "path"}),
                                ("two contexts at once", ("--contexts", "2"), {}), ("auto", (), {"dense": "auto"})):
        more = {"store": model, "dense": "16M", "budget": "64M", "plugin": "preload", **more}
        ours = client(model, *SHORT, *options, **more)
        same(f"Q8_0, {what}", ours, "out", "plain")
        if what == "one thread":
            check("Q8_0: the weights are not mapped", number("mapped", ours) < 8 << 20, ours.stdout[-500:])
            more_bytes = number("anonymous", ours) - number("anonymous", plain)
            check("Q8_0: memory is within the limits", more_bytes < (16 + 64) << 20, str(more_bytes))
    for what, dense in (("not set", None), ("off", "off"), ("no size", "many")):
        ours = client(model, *SHORT, store=model, dense=dense, plugin="preload")
        same(f"Q8_0, EXPERTFS_DENSE {what}", ours, "out", "plain", taken=False)
    check("EXPERTFS_DENSE: a value that is no size is reported", "EXPERTFS_DENSE=many is no size" in ours.stderr,
          ours.stderr[-1500:])
    changed(model)
    if os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3")):
        mount = Mount(model, "budget=64M")
        ours = client(mount / os.path.basename(model), *SHORT, dense="16M", plugin="preload")
        same("Q8_0, a mount", ours, "out", "plain")
        streamed("Q8_0, a mount", ours)
        mount.stop()
    else:
        note("left out: a mount needs /dev/fuse, and root or fusermount3")


def changed(model):
    """The file is written to while a program uses it."""
    copy = scratch("changed.gguf")
    shutil.copy(model, copy)
    one = client(copy, "--wait", *SHORT, store=copy, dense="16M", budget="64M", plugin="preload", start=True)
    begun = any(line == "begun\n" for line in iter(one.stdout.readline, ""))
    os.utime(copy)
    out, _ = one.communicate("\n", timeout=120)
    check("a file that changed: the decode fails", begun and one.returncode == 1 and "decode failed" in out and
          "cannot be had" in out, out[-1500:])


def experts():
    """A model with experts: both parts within limits."""
    folder = make_model("moe", "-F", "qwen3-moe", "-d", "1024", "-i", "256", "-e", "8", "--experts-per-token", "2", "-l", "4",
                        "--vocab", "4096", "--format", "gguf")
    model = os.path.join(folder, "model.gguf")
    client(model, *SHORT, plugin=None, name="plain")
    store = make_store(folder)
    for what, of in (("in place", model), ("packed", store)):
        ours = client(model, *SHORT, store=of, dense="16M", budget="64M", plugin="preload")
        same(f"experts, {what}", ours, "out", "plain")
        streamed(f"experts, {what}", ours)
    ours = client(model, *SHORT, store=model, dense="auto", budget="auto", plugin="preload")
    same("experts, auto", ours, "out", "plain")
    streamed("experts, auto", ours, False)


def limited():
    """A cgroup that is smaller than the weights: what is kept is chosen by the memory that is available."""
    model = model_of("Q8_0", "--inner", "8192", "--hidden", "2048", "--layers", "8")
    size = os.path.getsize(model)
    options = ("--prompts", "40", "--tokens", "2", "--no-repack")
    client(model, *options, plugin=None, name="plain")
    for limit in (360 << 20, 260 << 20):
        try:
            cgroup = need_cgroup(limit)
        except SystemExit:
            note("left out: little memory")
            return
        check("the weights are larger than the cgroup", size > limit, f"{size} {limit}")
        ours = client(model, *options, store=model, dense="auto", budget=None, plugin="preload", join=cgroup.join)
        same(f"{limit >> 20} MiB for {size >> 20}", ours, "out", "plain")
        streamed(f"{limit >> 20} MiB for {size >> 20}", ours)


def main():
    need_plugin()
    kinds()
    experts()
    limited()
    done()


if __name__ == "__main__":
    main()
