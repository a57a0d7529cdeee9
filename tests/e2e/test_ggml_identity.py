#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so computes with the experts of the file that it has mapped, never with those of
another one of the same names and shapes: two models of a family and two quantisations in one folder, in place and
packed, by a mount and in the process; fine-tunes that differ in one expert, in one row of a table, or in the header
alone; a copy of the file; another mount in the place of a former one. Logits equal those of llama.cpp by itself."""
from e2e import *
from test_ggml import PLUGIN, SHAPE, client, need_plugin, plugin_environment, same
from test_ggml_quant import quantised

PROMPTS = ("--prompts", "7,40", "--no-repack")
LEFT = "is left to the processor"


def reader(path):
    """The offsets and sizes of the tensors of a GGUF file."""
    code = """
import sys
from gguf import GGUFReader
for t in GGUFReader(sys.argv[1]).tensors:
    print(t.name, int(t.data_offset), int(t.n_bytes), int(t.shape[-1]))
"""
    made = run(os.path.join(ROOT, "build", "venv", "bin", "python"), "-c", code, path)
    rows = [line.split() for line in made.stdout.splitlines()]
    return {name: tuple(int(n) for n in numbers) for name, *numbers in rows}


def tuned(source, name, change):
    """A copy of a model of which some bytes are changed: change(file, tensors)."""
    path = scratch(name)
    shutil.copyfile(source, path)
    with open(path, "r+b") as file:
        change(file, reader(source))
    return path


def swap_rows(file, at, step):
    """Exchanges two rows, which are weights of a model also afterwards."""
    file.seek(at)
    both = file.read(2 * step)
    file.seek(at)
    file.write(both[step:] + both[:step])


def one_expert(file, tensors):
    """Two rows of gate of expert 5 of 16 in layer 2, neither the last expert nor the middle of one."""
    offset, size, experts = tensors["blk.2.ffn_gate_exps.weight"]
    swap_rows(file, offset + 5 * (size // experts), 512 * 2)


def plain(model, name):
    check(f"llama.cpp by itself runs: {name}", client(model, *PROMPTS, plugin=None, name=name).returncode == 0)


def folders(what, first, second):
    """Two models in one folder: each by a mount, and by the store in the process, in place and packed."""
    folder = scratch(f"both-{what}")
    os.makedirs(folder)
    files = []
    for name, model in (("a.gguf", first), ("b.gguf", second)):
        os.link(model, os.path.join(folder, name))
        files.append(os.path.join(folder, name))
    for file in files:
        plain(file, f"plain-{what}-{os.path.basename(file)}")
    store = make_store(folder)
    for where, source in (("in place", folder), ("packed", store)):
        taken = 0
        mount = Mount(source, "budget=192M") if can_mount() else None
        for file in files:
            base = f"plain-{what}-{os.path.basename(file)}"
            for way, mapped, more in (("a mount", mount and mount / os.path.basename(file), {}), ("the process", file, {"store": source})):
                if not mapped:
                    continue
                ours = client(mapped, *PROMPTS, name="out", **more)
                taken += LEFT not in ours.stderr
                # tensors of equal bytes, as two quantisations have, are the source's by content
                some = bool(re.search(r"expertfs compute buffer size = +[0-9.]*[1-9]", ours.stderr))
                same(f"{what}, {where}, {way}, {os.path.basename(file)}", ours, "out", base, taken=some)
        check(f"{what}, {where}: the experts of one of the models are the source's", taken == (2 if mount else 1), taken)
        if mount:
            mount.stop()


def can_mount():
    return os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3"))


def fine_tune(model, store):
    """A fine-tune of one expert: its layer's gate is left to the processor, all else is the store's."""
    other = tuned(model, "tuned.gguf", one_expert)
    plain(other, "plain-tuned")
    for where, source in (("packed", store), ("in place", model)):
        ours = client(other, *PROMPTS, store=source, name="out")
        left = re.findall(r"(\S+) is left to the processor", ours.stderr)
        same(f"one expert differs, {where}", ours, "out", "plain-tuned", taken=where == "packed")
        check(f"one expert differs, {where}: what is left is named",
              left == ["blk.2.ffn_gate_exps.weight"] if where == "packed" else len(left) == 12, left)


def next_to_a_mount(model, store):
    """The plain file is mapped, and experts come from a mount of its store, as `expertctl up MNT -- PROGRAM {gguf}` sets."""
    if not can_mount():
        note("left out: a mount needs /dev/fuse, and root or fusermount3")
        return
    plain(model, "plain-model")
    for where, source in (("packed", store), ("in place", model)):
        mount = Mount(source, "budget=192M")
        settings = {"EXPERTFS_MOUNT": mount.path, "EXPERTFS_MOUNT_STORE": source}
        before = mount.count("fuse_handouts")
        same(f"the plain file, {where}", client(model, *PROMPTS, settings=settings), "out", "plain-model")
        check(f"the plain file, {where}: experts come from the mount", mount.count("fuse_handouts") > before + 10)
        same(f"a fine-tune of it, {where}", client(scratch("tuned.gguf"), *PROMPTS, settings=settings), "out", "plain-tuned",
             taken=where == "packed")
        settings["EXPERTFS_MOUNT_STORE"] = scratch("none.efs")
        same(f"a store that is not there, {where}", client(model, *PROMPTS, settings=settings), "out", "plain-model", taken=False)
        mount.unmount()


def lasts(path):
    """Whether results of comparing are remembered on the file's file system."""
    return run("stat", "-f", "-c", "%T", path).stdout.strip() in ("ext2/ext3", "xfs", "btrfs", "f2fs", "zfs", "nfs", "ceph")


def copies(model, store):
    """A copy of the packed file is compared with the store once; then it is known, until its times change."""
    if not lasts(model):
        note("left out: the scratch folder is on a file system where nothing is remembered")
        return
    copy = scratch("copy.gguf")
    shutil.copyfile(model, copy)
    os.utime(copy, (1, 1))
    time.sleep(3.1)  # changed less than two seconds ago: nothing is remembered
    plain(copy, "plain-copy")
    states = lambda: sum(len(open(scratch("state") + "/" + name).readlines()) for name in os.listdir(scratch("state"))
                         if name.startswith("same-"))
    before = states() if os.path.exists(scratch("state")) else 0
    same("a copy", client(copy, *PROMPTS, store=store), "out", "plain-copy")
    rows = states()
    check("a copy is remembered, by tensor", rows - before == 12, f"{before} {rows}")
    same("a copy, again", client(copy, *PROMPTS, store=store), "out", "plain-copy")
    check("a copy is compared once", states() == rows, states())
    with open(copy, "r+b") as file:
        one_expert(file, reader(model))
    plain(copy, "plain-copy")
    same("a copy that was changed", client(copy, *PROMPTS, store=store), "out", "plain-copy")


def packed_here(folder, model, store):
    """mkexpertfs remembers the files that it packed: nothing is compared."""
    if not lasts(model):
        return
    state = scratch("state-packed")
    os.utime(model, (1, 1))
    time.sleep(3.1)
    made = run(program("mkexpertfs"), "--quiet", "--force", folder, store, env={**os.environ, "EXPERTFS_STATE": state})
    check("packed again", made.returncode == 0, made.stderr)
    rows = [row.split() for name in os.listdir(state) if name.startswith("same-") for row in open(f"{state}/{name}")]
    st = os.stat(model)
    check("the packed file is remembered, all of it", [str(st.st_dev), str(st.st_ino), str(st.st_size)] in
          [row[1:4] for row in rows if row[0] == "same" and row[9] == str(st.st_size)], rows)
    environment = {**plugin_environment(store), "EXPERTFS_STATE": state}
    traced = run("strace", "-f", "-e", "trace=pread64", "-o", scratch("trace"), os.path.join(ROOT, "build", "venv", "bin", "python"),
                 os.path.join(ROOT, "tests", "clients", "ggml.py"), model, scratch("out.npz"), *PROMPTS,
                 env={**environment, "GGML_BACKEND_PATH": PLUGIN}) if shutil.which("strace") else None
    if traced and traced.returncode == 0:
        read = sum(int(n) for n in re.findall(r"pread64\(.*\) = (\d+)", open(scratch("trace")).read()))
        note(f"bytes read by pread(2) with a remembered file: {read}")


def another_mount(first, second):
    """A mount is replaced by one of another model while a program still holds the former one: see loads in one process."""
    if not can_mount():
        note("left out: a mount needs /dev/fuse, and root or fusermount3")
        return
    code = """
import sys
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[1:]
import ctypes, numpy as np, llama_cpp
ctypes.CDLL("libggml.so.0").ggml_backend_load_all()
def logits(path):
    model = llama_cpp.Llama(path, n_ctx=64, n_threads=1, verbose=True, logits_all=True)
    model.eval([1, 2, 3, 4, 5])
    return model, np.array(model.scores[:5]).view(np.uint32).copy()
path, other = sys.argv[1] + "/model.gguf", sys.argv[2]
kept, _ = logits(path)
print("loaded", flush=True)
sys.stdin.readline()
_, ours = logits(path)
_, want = logits(other)
print("same", bool((ours == want).all()), flush=True)
"""
    mount = Mount(first, "budget=192M")
    environment = {**plugin_environment(None), "GGML_BACKEND_PATH": PLUGIN}
    child = subprocess.Popen([os.path.join(ROOT, "build", "venv", "bin", "python"), "-c", code, os.path.join(ROOT, "tests", "clients"),
                              mount.path, os.path.join(second, "model.gguf")], env=environment, stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not check("another mount: the first is loaded", child.stdout.readline() == "loaded\n", child.poll()):
        print(child.communicate()[1][-1500:])
        return
    run("umount", "-l", mount.path) if os.geteuid() == 0 else run("fusermount3", "-u", "-z", mount.path)
    later = subprocess.Popen([program("expertfs"), "-f", "-o", "budget=192M", second, mount.path], stderr=subprocess.DEVNULL)
    wait_until(lambda: os.path.exists(mount / ".expertfs") or later.poll() is not None)
    out, err = child.communicate("\n", timeout=PATIENCE)
    check("another mount at the same place: its own experts", "same True" in out, out + err[-1500:])
    run("umount", mount.path) if os.geteuid() == 0 else run("fusermount3", "-u", mount.path)
    later.wait()
    mount.abandon()


def tables():
    """A table of 64 MiB of which one row differs."""
    python, rows = os.path.join(ROOT, "build", "venv", "bin", "python"), os.path.join(ROOT, "tests", "clients", "ggml_rows.py")
    model = scratch("rows.gguf")
    if not check("the tables are made", run(python, rows, "make", model).returncode == 0):
        return
    store = make_store(model)
    offset, size, count = reader(model)["table.F16"]
    other = tuned(model, "rows-tuned.gguf", lambda file, tensors: swap_rows(file, offset + 3 * (size // count), size // count))
    result = run(python, rows, "run", other, PLUGIN, env=plugin_environment(store, "128M"))
    check("a row of a table differs: its three batches are left to ggml, the other nine are as ggml's",
          "compared: 12, wrong: 3\n" in result.stdout, result.stdout[-800:] + result.stderr[-800:])


def main():
    need_plugin()
    if SANITIZED:
        skip("Python and llama.cpp have no sanitizer in them")
    folder, other = make_model("model", *SHAPE), make_model("other", *SHAPE, "--seed", "5")
    model, second = (os.path.join(f, "model.gguf") for f in (folder, other))
    probe = client(model, *PROMPTS, plugin=None, name="probe")
    if probe.returncode == 77:
        skip(probe.stdout.strip().splitlines()[-1])
    store = make_store(folder)
    folders("two models", model, second)
    fine_tune(model, store)
    next_to_a_mount(model, store)
    copies(model, store)
    packed_here(folder, model, store)
    another_mount(folder, other)
    tables()
    small, large = quantised(model, "Q4_K_M"), quantised(model, "Q5_K_M")
    if small and large:
        folders("two quantisations", small, large)
    done()


if __name__ == "__main__":
    main()
