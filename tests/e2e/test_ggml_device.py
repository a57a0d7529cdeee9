#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so and slots for experts in the memory of fake_device.c, whose copies are delayed:
logits have the bits of llama.cpp by itself. Few and many slots, store, file in place and mount, biases, scales, experts
of two matrices, shared experts, little memory, also in the middle of a graph, a device that fails, two contexts, two models, damage, names of
no device; all of it also with layers that device and processor divide."""
from e2e import *
from test_ggml import PYTHON, SHAPE, client, damage, need_plugin, same
from test_ggml_kinds import MAKER

FAKE = os.path.join(PLAIN, "tests", "e2e", "libfake-device.so")
EXPERTS, LAYERS = 16, 4
DIVIDED = {"EXPERTFS_DEVICE_SHARE": "on"}


def round_bytes(file):
    """Bytes of one expert of each layer."""
    code = """
import sys, gguf
print(sum(int(t.n_bytes) // int(t.shape[2]) for t in gguf.GGUFReader(sys.argv[1]).tensors if "_exps.weight" in t.name))
"""
    return int(run(PYTHON, "-c", code, file).stdout)


def settings(device, file, slots, more):
    """slots: of each layer; or EXPERTFS_DEVICE_BUDGET. The device computes all, so that counts do not depend on times."""
    budget = slots if isinstance(slots, str) else str(slots * round_bytes(file))
    return {"EXPERTFS_DEVICE": device, "EXPERTFS_DEVICE_BUDGET": budget, "EXPERTFS_DEVICE_SHARE": "off", **more}


def fake(file, slots, *options, device="FAKE0", variables=(), **more):
    return client(file, "--fake", FAKE, "--no-repack", *options, settings=settings(device, file, slots, dict(variables)), **more)


def plain(file, *options, name="plain"):
    result = client(file, "--no-repack", *options, plugin=None, name=name)
    return check(f"{os.path.basename(file)}: llama.cpp by itself", result.returncode == 0, result.stderr[-1500:])


def counted(what, result, slots):
    """Checks the counters of a run. Returns the chosen experts in slots, all chosen, the copied ones, bytes, and those
    that the processor computed."""
    text = result.stdout + result.stderr
    check(f"{what}: {slots} slots", re.search(rf"\b{slots} slots of \d+ experts", text), text[-1500:])
    found = re.search(r"(\d+) of (\d+) chosen experts were in slots; copied (\d+) in [0-9.]+ s: (\d+) bytes; the processor computed (\d+)",
                      text)
    if not check(f"{what}: counters", found, text[-1500:]):
        return (0, 0, 0, 0, 0)
    hits, chosen, copied, size, computed = map(int, found.groups())
    check(f"{what}: the counters add up", hits + copied + computed == chosen, found.group())
    return hits, chosen, copied, size, computed


def ways(model, store):
    """Store, file in place and mount, and two contexts, with copies that are delayed."""
    options = ("--prompts", "1,40,700")
    plain(model, *options)
    for what, source, slots in (("a store", store, 1), ("a store", store, 6), ("in place", model, 6), ("in place", model, EXPERTS)):
        result = fake(model, slots, *options, store=source)
        same(f"{what}, {slots} slots", result, "out", "plain")
        counts = counted(f"{what}, {slots} slots", result, slots)
        if slots == EXPERTS:
            check(f"{what}: each expert is copied once", 0 < counts[2] <= EXPERTS * LAYERS and
                  counts[3] == counts[2] * round_bytes(model) // LAYERS, str(counts))
    one = fake(model, 6, "--prompts", "1", "--tokens", "8", store=model)
    hits, chosen, *_, computed = counted("one token at a time", one, 6)
    check("gate, up and down are one call", chosen == 9 * LAYERS * 4, str(chosen))
    check("EXPERTFS_DEVICE_SHARE=off: the processor computes none", computed == 0, str(computed))
    check("some experts are found in slots", hits > 0, str(hits))
    for policy in ("zipmoe", "lru", "lfu", "dali"):
        result = fake(model, 6, *options, store=model, variables={"EXPERTFS_DEVICE_POLICY": policy})
        same(f"policy {policy}", result, "out", "plain")
        counted(f"policy {policy}", result, 6)
    same("two contexts", fake(model, 6, *options, "--contexts", "2", store=model), "out", "plain")
    same("hints", fake(model, 6, *options, store=model, prefetch="on", budget="64M"), "out", "plain")
    same("hardly any memory here", fake(model, 6, *options, store=store, budget="32M"), "out", "plain")
    if os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3")):
        mount = Mount(store, "budget=64M")
        same("a mount", fake(mount / os.path.basename(model), 6, *options), "out", "plain")
        status(model, mount)
        two_models(model, mount)
        mount.stop()
    else:
        note("left out: a mount needs /dev/fuse, and root or fusermount3")


def status(model, mount):
    """The mount shows the counts of the program, which it sends after each batch."""
    running = fake(mount / os.path.basename(model), 6, "--prompts", "1", "--wait", start=True)
    begun = any(line == "begun\n" for line in iter(running.stdout.readline, ""))
    mine = []

    def shown():
        mine[:] = [row for row in json.loads(run(program("expertctl"), "status", "--json", mount.path).stdout)["clients"]
                   if row["pid"] == running.pid]
        return len(mine) == 1 and mine[0]["device_hits"] + mine[0]["device_copied"] >= 2 * 4 * LAYERS
    if check("status has the program", begun and wait_until(shown), mine):
        row = {name: mine[0]["device_" + name] for name in ("slots", "hits", "copied", "computed", "copied_bytes", "wait_ns")}
        check("status: slots of all layers, two tokens of four experts a layer", row["slots"] == 6 * LAYERS and
              row["hits"] + row["copied"] == 2 * 4 * LAYERS and row["copied"] > 0 == row["computed"] and row["wait_ns"] > 0 and
              row["copied_bytes"] == row["copied"] * round_bytes(model) // LAYERS, row)
    text, _ = running.communicate("\n", timeout=PATIENCE)
    check("the program goes on", running.returncode == 0, text[-1500:])


def two_models(model, mount):
    """Two models of one process share the device, each with slots of its own."""
    other = os.path.join(make_model("other", *SHAPE, "--seed=7"), "model.gguf")
    second = Mount(other, "budget=64M")
    prompts = ("--prompts", "1,40")
    if plain(model, *prompts, name="one") and plain(other, *prompts, name="two"):
        result = fake(mount / os.path.basename(model), str(6 * round_bytes(model)), *prompts, "--also", second / "model.gguf",
                      scratch("also.npz"))
        same("two models, the first", result, "out", "one")
        same("two models, the second", result, "also", "two")
        check("two models: slots for each", len(re.findall("6 slots of 16 experts", result.stderr)) >= 2, result.stderr[-1500:])
    second.stop()


def divided(model, store):
    """Device and processor compute parts of a layer at the same time. Each side is measured again and again, so both are
    used whatever their times."""
    options = ("--prompts", "1,40,700")
    greedy = {"EXPERTFS_DEVICE_SHARE": "greedy"}
    for what, source, slots, variables in (("a store", store, 1, DIVIDED), ("in place", model, 6, DIVIDED), ("in place", model, EXPERTS, DIVIDED),
                                           ("greedy", model, 6, greedy)):
        result = fake(model, slots, *options, variables=variables, store=source)
        same(f"divided: {what}, {slots} slots", result, "out", "plain")
        hits, chosen, copied, _, computed = counted(f"divided: {what}, {slots} slots", result, slots)
        check(f"divided: {what}, {slots} slots: both sides compute", copied > 0 and computed > 0, f"{hits} {chosen} {copied} {computed}")
    same("divided: two contexts", fake(model, 6, *options, "--contexts", "2", variables=DIVIDED, store=model), "out", "plain")
    same("divided: hints", fake(model, 6, *options, variables=DIVIDED, store=model, prefetch="on", budget="64M"), "out", "plain")
    same("divided: hardly any memory here", fake(model, 6, *options, variables=DIVIDED, store=store, budget="32M"), "out", "plain")


def long_prompt(model):
    """A prompt of 4,096 tokens, in batches of 512."""
    options = ("--prompts", "4096", "--tokens", "2")
    if plain(model, *options, name="long"):
        same("4,096 tokens", fake(model, 3, *options, store=model), "out", "long")
        same("4,096 tokens, divided", fake(model, 3, *options, variables=DIVIDED, store=model), "out", "long")


def faults(model, store):
    """Memory that lacks at the start, or in the middle of a graph; a device that fails; damage; names."""
    options = ("--prompts", "1,40")
    plain(model, *options)
    room = 6 * round_bytes(model)

    def tried(what, said, slots=6, variables=(), **more):
        result = fake(model, slots, *options, variables=variables, store=model, **more)
        same(what, result, "out", "plain")
        check(f"{what}: said", said in result.stderr, result.stderr[-1500:])
        return result

    tried("less memory than the budget", "4 slots of 16", variables={"FAKE_MEMORY": str(room - 1000)})
    result = tried("memory ends in a graph", "6 slots of 16", variables={"FAKE_MEMORY": str(room + 100)})
    check("memory ends in a graph: fewer slots", "4 slots of 16" in result.stderr, result.stderr[-1500:])
    tried("an automatic budget", "5 slots of 16", "auto", variables={"FAKE_MEMORY": str(room + (2 << 20))})
    tried("no memory", "the processor computes experts", variables={"FAKE_MEMORY": "1000000"})
    tried("no memory in a graph", "the processor computes experts", 1, variables={"FAKE_MEMORY": str(round_bytes(model) + 100)})
    for graph in ("1", "30"):
        tried(f"graph {graph} fails", "the processor computes experts from now on", variables={"FAKE_FAIL": graph})
    tried("divided: a graph fails", "the processor computes experts from now on", variables={"FAKE_FAIL": "6", **DIVIDED})
    tried("divided: memory ends in a graph", "4 slots of 16", variables={"FAKE_MEMORY": str(room + 100), **DIVIDED})
    tried("auto takes the device", "FAKE0: 6 slots of 16", device="auto")
    tried("EXPERTFS_DEVICE_SHARE is no such word", "EXPERTFS_DEVICE_SHARE=maybe is none of on, greedy, off",
          variables={"EXPERTFS_DEVICE_SHARE": "maybe"})
    tried("EXPERTFS_DEVICE_POLICY is no such word", "EXPERTFS_DEVICE_POLICY=fifo is none of zipmoe, lru, lfu, dali",
          variables={"EXPERTFS_DEVICE_POLICY": "fifo"})
    tried("a budget below one expert", "less than one expert of each layer", "1000")
    tried("a budget that is no size", "EXPERTFS_DEVICE_BUDGET=much is no size", "much")
    tried("no such device", "EXPERTFS_DEVICE=CUDA7: no such device; ggml has FAKE0", device="CUDA7")
    tried("the processor is no device", "EXPERTFS_DEVICE=CPU: no such device", device="CPU")
    result = fake(model, 6, *options, store=model, device="none")
    same("none", result, "out", "plain")
    check("none: no slots", "slots of" not in result.stderr, result.stderr[-1500:])
    result = client(model, "--no-repack", *options, store=model, settings={"EXPERTFS_DEVICE": "auto"})
    same("auto without a device", result, "out", "plain")
    check("auto without a device: no slots", "slots of" not in result.stderr, result.stderr[-1500:])
    damaged = damage(store)
    for variables in ({}, DIVIDED):
        text = fake(model, 6, *options, store=damaged, variables=variables)
        check(f"damage {variables}: the decode fails, with the expert", text.returncode == 1 and "decode failed" in text.stdout and
              "cannot be had" in text.stderr, text.stdout[-500:] + text.stderr[-500:])


def families():
    """Biases and a clamped SwiGLU, and scales, computed by the processor between two calls; experts of two matrices;
    shared experts."""
    for family, options in (("gpt-oss", ()), ("nomic-bert-moe", ("--embeddings",)), ("qwen2moe", ()), ("qwen3moe", ())):
        model = scratch(family + ".gguf")
        made = run(PYTHON, MAKER, family, model)
        if check(f"{family}: made", made.returncode == 0, made.stderr[-1000:]) and plain(model, "--prompts", "7,64", *options):
            for variables in ({}, DIVIDED):
                result = fake(model, 5, "--prompts", "7,64", *options, variables=variables, store=model)
                same(f"{family}, 5 slots {variables}", result, "out", "plain")
                counted(f"{family}, 5 slots {variables}", result, 5)


def main():
    need_plugin()
    if not os.path.exists(FAKE):
        skip("llama-cpp-python is not installed (tools/setup-python runtimes)")
    folder = make_model("model", *SHAPE)
    model, store = os.path.join(folder, "model.gguf"), make_store(folder)
    ways(model, store)
    plain(model, "--prompts", "1,40,700")
    divided(model, store)
    long_prompt(model)
    faults(model, store)
    families()
    done()


if __name__ == "__main__":
    main()
