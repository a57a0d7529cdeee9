#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so: the same logits as without it, bit by bit (for BF16 experts), from a store opened
in the process and from a mount, for prompts and single tokens, on one thread and two, in two contexts at once; the
mapped file's experts are not read; layers that are not in the store are computed by the CPU backend; damage and a lost
mount make the decode fail, never another token."""
from e2e import *

PYTHON = os.path.join(ROOT, "build", "venv", "bin", "python")
PLUGIN = os.path.join(PLAIN, "libggml-expertfs.so")
PRELOADED = scratch(os.path.basename(PLUGIN))  # names in LD_PRELOAD are separated by blanks
os.symlink(PLUGIN, PRELOADED)
CLIENT = os.path.join(ROOT, "tests", "clients", "ggml.py")
LOADS = os.path.join(ROOT, "tests", "clients", "ggml_loads.py")
SHAPE = ("-F", "qwen3-moe", "-d", "512", "-i", "256", "-e", "16", "--experts-per-token", "4", "-l", "4", "--vocab",
         "2048", "--format", "gguf")
PROMPTS = "1,7,64,700"


def need_plugin(sanitized=False):
    """sanitized: a part of the test uses the daemon with its sanitizer."""
    if not os.path.exists(PLUGIN):
        skip("libggml-expertfs.so is not built: the headers of ggml are not there (tools/setup-python runtimes)")
    if SANITIZED and not sanitized:
        skip("Python and llama.cpp have no sanitizer in them")


def plugin_environment(store, budget="192M", prefetch="off"):
    """The environment of a client."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("EXPERTFS_", "GGML_", "LD_PRELOAD"))}
    environment.update({"EXPERTFS_STATE": scratch("state"), "EXPERTFS_PREFETCH": prefetch})
    if budget:
        environment["EXPERTFS_BUDGET"] = budget
    if store:
        environment["EXPERTFS_STORE"] = store
    return environment


def client(file, *options, store=None, plugin="path", name="out", **more):
    """Runs ggml.py; its logits are in scratch(name + ".npz"). settings: further variables of its environment."""
    environment = plugin_environment(store, more.pop("budget", "192M"), more.pop("prefetch", "off"))
    environment.update(more.pop("settings", {}))
    if plugin:
        environment.update({"GGML_BACKEND_PATH": PLUGIN} if plugin == "path" else {"LD_PRELOAD": PRELOADED})
    out = scratch(name + ".npz")
    if os.path.exists(out):
        os.remove(out)
    command = [PYTHON, CLIENT, file, out, *options]
    if more.pop("start", False):
        return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=more.pop("join", None))
    return run(*command, env=environment, preexec_fn=more.pop("join", None))


def compare(name, want):
    """Describes how the arrays of two runs differ; empty: not at all."""
    code = """
import sys
import numpy as np
a, b = (np.load(path) for path in sys.argv[1:])
assert sorted(a) == sorted(b) and len(a), (sorted(a), sorted(b))
for n in a:
    if not np.array_equal(a[n].view(np.uint32), b[n].view(np.uint32)):
        print(n, float(np.abs(a[n] - b[n]).max()), "of", float(np.abs(b[n]).max()))
"""
    result = run(PYTHON, "-c", code, scratch(name + ".npz"), scratch(want + ".npz"))
    return result.stdout + result.stderr[-300:]


def same(what, result, name, want, taken=True):
    """Checks that the run succeeded with the same bits; taken: computed by the plugin."""
    text = result.stdout + result.stderr
    if not check(f"{what}: runs", result.returncode == 0, text[-2000:]):
        return
    check(f"{what}: the plugin is loaded", "loaded expertfs backend" in text, text[:500])
    check(f"{what}: experts are {'taken' if taken else 'left to the processor'}",
          bool(re.search(r"expertfs compute buffer size = +[0-9.]*[1-9]", text)) == taken, text[-1500:])
    differ = compare(name, want)
    if taken and os.uname().machine != "x86_64":
        note(f"{what}: bits are compared on x86-64 alone: {differ or 'the same'}")
    else:
        check(f"{what}: the same logits, to the bit", differ == "", differ)


def number(what, result):
    return int(re.search(f"^{what}: ([0-9]+)$", result.stdout, re.M).group(1))


def drop(path):
    """Drops the file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def pages(model, store):
    """Experts are nearly all of the file: the loader reads and maps all of it; with the plugin it does neither."""
    size = os.path.getsize(model)
    drop(model)
    plain = client(model, plugin=None, name="pages")
    drop(model)
    ours = client(model, store=store, plugin="preload", name="pages")
    if not check("pages: both run", plain.returncode == 0 and ours.returncode == 0, ours.stderr[-1500:]):
        return
    check("the loader maps all of the file", number("mapped", plain) > 0.9 * size, plain.stdout[-300:])
    check("experts' pages are not mapped, nor faulted in while it generates", number("mapped", ours) < 0.3 * size,
          ours.stdout[-300:])
    if number("cached before", plain) > 0 or number("cached before", ours) > 0:
        note("left out: pages of this file system stay in memory")
    else:
        check("the loader reads all of the file", number("cached when loaded", plain) > 0.9 * size, plain.stdout[:300])
        check("experts are not read from the file while it is loaded", number("cached when loaded", ours) < 0.3 * size,
              ours.stdout[:300])


def loads(model, store):
    """A model loaded while another model's context is created; one whose loading is aborted; the library preloaded and
    a copy of it named in GGML_BACKEND_PATH."""
    other, file, copy = scratch("other.gguf"), scratch("file"), scratch("libggml-expertfs-copy.so")
    shutil.copy(model, other)
    shutil.copy(PLUGIN, copy)
    with open(file, "wb") as out:
        out.write(os.urandom(8 << 20))
    for path in (model, other, file):
        drop(path)
    environment = {**plugin_environment(store), "LD_PRELOAD": PRELOADED, "GGML_BACKEND_PATH": copy}
    result = run(PYTHON, LOADS, model, other, file, env=environment)
    if not check("loads: run", result.returncode == 0, result.stdout + result.stderr[-1500:]):
        return
    check("loads: two copies of the library are one backend", "\nbackends of ours: 1\n" in "\n" + result.stdout,
          result.stdout)
    check("loads: a file where a model was mapped is read ahead", "read ahead: False" not in result.stdout, result.stdout)
    if number("cached before", result) > 0:
        note("left out: pages of this file system stay in memory")
    else:
        check("loads: experts are not read for a context of another model",
              number("cached of the other", result) < 0.25 * os.path.getsize(other), result.stdout)


def halves():
    """F16: the order of sums differs from ggml's. Compared with the same weights in F32, whose vectors are not rounded,
    the error is at most 1.1 times llama.cpp's, and the most probable token is the same where errors do not decide
    it."""
    folder = make_model("model-f16", *SHAPE, "--dtype", "f16")
    model, store, wide = os.path.join(folder, "model.gguf"), make_store(folder), scratch("wide.gguf")
    made = run(PYTHON, "-c", "import sys; sys.path.insert(0, sys.argv[1]); import runmoe; runmoe.as_f32(*sys.argv[2:])",
               os.path.dirname(CLIENT), model, wide)
    if not check("F16: widened", made.returncode == 0, made.stderr[-1000:]):
        return
    for name, result in (("wide", client(wide, "--prompts", "7,64", "--tokens", "1", plugin=None, name="wide")),
                         ("half", client(model, "--prompts", "7,64", "--tokens", "1", plugin=None, name="half")),
                         ("ours", client(model, "--prompts", "7,64", "--tokens", "1", store=store, name="ours"))):
        if not check(f"F16, {name}: runs", result.returncode == 0, result.stderr[-1500:]):
            return
    check("F16: experts are taken", bool(re.search(r"expertfs compute buffer size = +[0-9.]*[1-9]", result.stderr)),
          result.stderr[-1500:])
    code = """
import sys
import numpy as np
wide, half, ours = (np.load(path) for path in sys.argv[1:])
for n in wide:
    w, h, o = (a[n][: int(n)].astype(np.float64) for a in (wide, half, ours))
    theirs, mine = (float(np.sqrt(np.mean((a - w) ** 2))) for a in (h, o))
    top = np.sort(h, axis=1)
    clear = top[:, -1] - top[:, -2] > 4 * np.abs(h - w).max()
    print(n, mine <= 1.1 * theirs, np.array_equal(h.argmax(1)[clear], o.argmax(1)[clear]), mine / theirs, clear.mean())
"""
    told = run(PYTHON, "-c", code, *(scratch(f"{name}.npz") for name in ("wide", "half", "ours")))
    lines = told.stdout.splitlines()
    check("F16: errors no more than 1.1 of llama.cpp's, the same tokens",
          len(lines) == 2 and all(line.split()[1:3] == ["True", "True"] for line in lines), told.stdout + told.stderr[-500:])
    note(f"F16: prompt, good, same, error over llama.cpp's, clear: {lines}")


def without_store_or_plugin(model, store):
    result = client(model, plugin=None, name="other")
    check("without the plugin: plain llama.cpp", "loaded expertfs" not in result.stderr, result.stderr[:300])
    result = client(model, name="none")
    same("no store, no mount", result, "none", "other", taken=False)
    check("no store, no mount: said", "EXPERTFS_STORE names no store" in result.stderr, result.stderr[-500:])
    result = client(model, store=scratch("nothing.efs"), name="none")
    same("a store that is not there", result, "none", "other", taken=False)
    check("a store that is not there: said", "nothing.efs" in result.stderr, result.stderr[-500:])
    result = client(model, store=store, budget="many", name="none")
    same("a budget that is no size", result, "none", "other", taken=False)
    check("a budget that is no size: said", "EXPERTFS_BUDGET=many is no size" in result.stderr, result.stderr[-500:])


def budgets(model, store):
    """Without a budget, a file that fits into memory is left to the CPU backend, and the loader reads it as usual; with
    an automatic one the budget stays small until a context decodes."""
    drop(model)
    result = client(model, "--prompts", "7,64", store=store, budget=None, plugin="preload", name="spared")
    same("a file that fits", result, "spared", "plain", taken=False)
    check("a file that fits: said", "fits into memory" in result.stderr, result.stderr[-500:])
    if number("cached before", result) == 0:
        check("a file that fits: the loader reads all of it",
              number("cached when loaded", result) > 0.9 * os.path.getsize(model), result.stdout[:300])
    result = client(model, "--prompts", "7,64", store=store, budget="auto", name="auto")
    same("an automatic budget", result, "auto", "plain")
    first, then = (re.search(f"budget of .*model.efs{when}: ([0-9]+) MiB", result.stderr)
                   for when in (" until a context decodes", ""))
    check("an automatic budget is small until a context decodes",
          first and then and 4 * int(first.group(1)) < int(then.group(1)), result.stderr[-1000:])


def other_weights(store):
    """A file with the names and shapes of the store's tensors and other weights: the store's weights must not be
    used."""
    other = os.path.join(make_model("other-model", *SHAPE, "--seed", "5"), "model.gguf")
    client(other, plugin=None, name="plain-other")
    result = client(other, store=store, name="other-weights")
    same("a file with other weights", result, "other-weights", "plain-other", taken=False)
    check("a file with other weights: said", "has other weights" in result.stderr, result.stderr[-500:])


def damage(store):
    """A copy of a store with damaged experts. Those that loading verifies, the last ones of each layer, stay undamaged;
    otherwise the plugin would leave their layers to the CPU backend."""
    bad = scratch("bad.efs")
    shutil.copy(store, bad)
    size = os.path.getsize(bad)
    with open(bad, "r+b") as file:
        for layer in range(4):  # about 23 % of the store each
            for part in range(12):
                file.seek(int(size * (0.04 + 0.234 * (layer + 0.05 + part / 16))))
                file.write(bytes(64))
    return bad


def damaged(model, store):
    result = client(model, store=damage(store), name="damaged")
    text = result.stdout + result.stderr
    check("damage: no tokens", result.returncode == 1 and not re.search("^tokens:", text, re.M),
          text[-1500:])
    check("damage: the decode failed", "decode failed" in text, text[-1500:])
    check("damage: said, with the file and the expert",
          re.search(r"expertfs: .*bad\.efs.*checksum differs", text) and "cannot be had" in text, text[-1500:])


def mounted(model, store):
    if not os.path.exists("/dev/fuse") or os.geteuid() and not shutil.which("fusermount3"):
        note("left out: a mount needs /dev/fuse, and root or fusermount3")
        return
    mount = Mount(store, "budget=256M")
    file = mount / os.path.basename(model)
    for plugin in ("path", "preload"):
        ours = client(file, "--prompts", "7,64", plugin=plugin, name="mount")
        same(f"a mount, {plugin}", ours, "mount", "plain")
        check(f"a mount, {plugin}: experts' pages are not mapped", number("mapped", ours) < 0.3 * os.path.getsize(file),
              ours.stdout[-300:])
    result = client(file, "--prompts", "7,64", budget=None, plugin="preload", name="mount")
    same("a file of a mount that fits", result, "mount", "plain", taken=False)
    check("a file of a mount that fits: said", "fits into memory" in result.stderr, result.stderr[-500:])
    hinting = Mount(store, "budget=64M,prefetch=on")
    same("hints to a mount", client(hinting / os.path.basename(model), "--prompts", "7,64", name="mount"), "mount",
         "plain")


    def told():
        return int(re.search("^observed: ([0-9]+)$", hinting.control("predict"), re.M).group(1))
    # the program may end before the mount has read its last packets
    wait_until(lambda: told() >= 2 * 8 * 4)
    # requests of loading and of the first prompt also count until a sequence is reported; there are two per layer
    check("hints to a mount: told once for each layer of each token", 2 * 8 * 4 <= told() < 2 * 2 * 8 * 4, told())
    hinting.stop()
    waiting = client(file, "--wait", "--tokens", "40", name="gone", start=True)
    text = ""
    for line in waiting.stdout:
        text += line
        if line == "begun\n":
            break
    mount.daemon.kill()
    mount.daemon.wait()
    rest, _ = waiting.communicate("\n", timeout=PATIENCE)
    check("a mount that goes: no tokens", waiting.returncode != 0 and not re.search("^tokens:", rest, re.M),
          rest[-1500:])
    # a page of the file that is not in memory is lost, too: SIGBUS
    check("a mount that goes: a failed decode, said", waiting.returncode < 0 or
          "decode failed" in rest and "expertfs: " in rest, f"{waiting.returncode} {rest[-1500:]}")
    mount.abandon()


def unknown_versions():
    """A library that claims to be another ggml version, and one that is not ggml."""
    source, library = scratch("fake.c"), scratch("libfake.so")
    with open(source, "w") as file:
        file.write("""
        #include <stddef.h>
        #include <dlfcn.h>
        #ifndef FOUND
        #define FOUND NULL
        #endif
        int found;
        #ifdef VERSION
        const char *ggml_version(void) { return VERSION; }
        #endif
        void ggml_log_internal(int level, const char *format, ...) { (void)level; (void)format; }
        void *ggml_backend_buffer_init(void) { return NULL; }
        int ggml_graph_n_nodes(void) { return 0; }
        void *ggml_graph_node(void) { return NULL; }
        size_t ggml_tensor_overhead(void) { return OVERHEAD; }
        const char *ggml_op_name(int op) { return op == 30 ? "MUL_MAT_ID" : "GET_ROWS"; }
        const char *ggml_type_name(int type) { (void)type; return "bf16"; }
        void *ggml_backend_reg_by_name(const char *name) { (void)name; return FOUND; }
        #define UNUSED(name) void name(void) {}
        UNUSED(ggml_row_size) UNUSED(ggml_init) UNUSED(ggml_free) UNUSED(ggml_new_tensor_2d) UNUSED(ggml_new_tensor_3d)
        UNUSED(ggml_get_type_traits) UNUSED(ggml_mul_mat) UNUSED(ggml_mul_mat_id) UNUSED(ggml_new_graph_custom) UNUSED(ggml_build_forward_expand)
        int taken(const char *path)
        {
            void *library = dlopen(path, RTLD_NOW), *call = library ? dlsym(library, "ggml_backend_init") : NULL;
            volatile int found = call && ((void *(*)(void))call)() != NULL;
            return call ? found : -1;
        }
        """)
    for what, options, want in (("the version that is known", ['-DVERSION="0.25.3"', "-DOVERHEAD=368"], 1),
                                ("an older version that is known", ['-DVERSION="0.16.0"', "-DOVERHEAD=368"], 1),
                                ("another version", ['-DVERSION="0.25.4"', "-DOVERHEAD=368"], 0),
                                ("tensors of another size", ['-DVERSION="0.25.3"', "-DOVERHEAD=376"], 0),
                                ("a ggml that tells no version", ["-DOVERHEAD=368"], 0),
                                ("a ggml that has such a backend", ['-DVERSION="0.25.3"', "-DOVERHEAD=368", "-DFOUND=&found"], 0)):
        built = run("gcc", "-shared", "-fPIC", *options, "-o", library, source)
        if built.returncode:
            note(f"left out: gcc: {built.stderr[-300:]}")
            return
        result = run(sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).taken(sys.argv[2].encode()))",
                     library, PLUGIN)
        check(f"{what} is {'taken' if want else 'refused'}", result.stdout.strip() == str(want),
              result.stdout + result.stderr)
    program = scratch("linked")
    main = 'extern const char *ggml_version(void); int main(void) { return ggml_version()[0] != 48; }'
    for version, told in (("0.25.3", False), ("0.25.4", True)):
        run("gcc", "-shared", "-fPIC", f'-DVERSION="{version}"', "-DOVERHEAD=368", "-o", library, source)
        with open(scratch("linked.c"), "w") as file:
            file.write(main)
        built = run("gcc", "-o", program, scratch("linked.c"), library, f"-Wl,-rpath,{os.path.dirname(library)}")
        result = run(program, env={**os.environ, "LD_PRELOAD": PRELOADED})
        check(f"a program linked with ggml {version}: {'told' if told else 'nothing'} at its start",
              built.returncode == 0 and result.returncode == 0 and ("ggml 0.25.4 is not known" in result.stderr) == told,
              built.stderr + result.stdout + result.stderr)


def large():
    """An expert of 48 MiB, larger than a fixed share of the budget while loading would be."""
    try:
        cgroup = need_cgroup(500 << 20)
    except SystemExit:
        note("left out: large experts in little memory")
        return
    folder = make_model("large", "-F", "qwen3-moe", "-d", "2048", "-i", "4096", "-e", "4", "--experts-per-token", "2", "-l",
                        "1", "--vocab", "2048", "--format", "gguf")
    model, store = os.path.join(folder, "model.gguf"), make_store(folder)
    client(model, "--prompts", "7", plugin=None, name="large-plain")
    same("large experts", client(model, "--prompts", "7", store=store, budget="auto", name="large", join=cgroup.join),
         "large", "large-plain")


def main():
    need_plugin(sanitized=True)
    if not SANITIZED:
        unknown_versions()
    folder = make_model("model", *SHAPE)
    model, store = os.path.join(folder, "model.gguf"), make_store(folder)
    plain = client(model, "--prompts", PROMPTS, plugin=None, name="plain-all")
    if plain.returncode == 77:
        skip(plain.stdout.strip().splitlines()[-1])
    if not check("llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:]):
        done()
    client(model, "--prompts", "7,64", plugin=None, name="plain")
    if SANITIZED:  # no other part runs code with a sanitizer
        mounted(model, store)
        done()
    for threads in (1, 2):
        same(f"a store, {threads} threads", client(model, "--prompts", PROMPTS, "--threads", str(threads), store=store),
             "out", "plain-all")
    same("preloaded", client(model, "--prompts", "7,64", store=store, plugin="preload"), "out", "plain")
    same("two contexts at once", client(model, "--prompts", "7,64", "--contexts", "2", store=store), "out", "plain")
    same("hardly any memory", client(model, "--prompts", "7,64", store=store, budget="40M"), "out", "plain")
    same("hints, hardly any memory", client(model, "--prompts", "7,64", store=store, budget="40M", prefetch="on"),
         "out", "plain")
    same("not mapped", client(model, "--prompts", "7,64", "--no-mmap", store=store), "out", "plain", taken=False)
    pages(model, store)
    loads(model, store)
    budgets(model, store)
    large()
    halves()
    mounted(model, store)
    other_weights(store)
    without_store_or_plugin(model, store)
    damaged(model, store)
    done()


if __name__ == "__main__":
    main()
