#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""expertctl up with a program, on a store that is mounted for it, on a mount, or on a store that it opens itself; its
arguments and environment, its status, its signals; nothing is left behind, however it ends. llama.cpp run this way gets
its experts from the backend and generates the same tokens."""
from e2e import *

CLIENT = os.path.join(ROOT, "tests", "clients", "ggml.py")
PYTHON = os.environ.get("PYTHON", sys.executable)
PLUGIN = os.path.join(BUILD, "libggml-expertfs.so")
TEMPORARY = scratch("tmp")

for name in ("EXPERTFS_STORE", "EXPERTFS_BUDGET", "LD_PRELOAD", "LD_LIBRARY_PATH", "GGML_BACKEND_PATH"):
    os.environ.pop(name, None)
os.environ["TMPDIR"] = TEMPORARY


def started(*arguments, **more):
    return subprocess.Popen([program("expertctl"), "up", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, errors="replace", **more)


def ran(*arguments, **more):
    return run(program("expertctl"), "up", *arguments, **more)


def left():
    """Folders, mounts, daemons and supervisors that a run has left behind."""
    found = os.listdir(TEMPORARY)
    with open("/proc/mounts", errors="surrogateescape") as table:
        found += [line for line in table if TEMPORARY in line]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as line:
                words = line.read().split("\0")
        except OSError:
            continue
        if TEMPORARY in " ".join(words) and int(pid) != os.getpid():
            found.append(" ".join(words))
    return found


def nothing_left(what):
    check(f"{what}: nothing is left", wait_until(lambda: not left()), left())


def ends(what, result, status, *words):
    check(f"{what}: status {status}", result.returncode == status, f"{result.returncode} {result.stdout} {result.stderr}")
    for word in words:
        check(f"{what}: says {word!r}", re.search(word, result.stdout + result.stderr, re.M), result.stdout + result.stderr)
    check(f"{what}: nothing is left", not left(), left())


def begun(process):
    """Waits until the program prints its first line: the mount's path."""
    return process.stdout.readline().strip()


def arguments(folder, store):
    result = ran(store, "--", "cmp", os.path.join(folder, "model.gguf"), "{}/model.gguf")
    ends("a program reads the mount's file", result, 0)
    check("lines say how it runs, and why", re.fullmatch(f"expertctl: note: {store}: from which files it was packed is not known\nhint: .*\n"
          f"expertctl: cmp runs on a mount of {store}\n", result.stdout + result.stderr) or not os.path.exists(PLUGIN), result.stdout + result.stderr)
    result = ran(store, "--", "sh", "-c", 'echo "{}/model.gguf|$EXPERTFS_MOUNT|$EXPERTFS_STORE|$0|$1"', "a{}b{}", "-o",
                 env={**os.environ, "EXPERTFS_STORE": "elsewhere"})
    path = result.stdout.split("|")[1] if "|" in result.stdout else ""
    ends("words", result, 0)
    check("{}, each time; the rest is the program's", result.stdout ==
          f"{path}/model.gguf|{path}||a{path}b{path}|-o\n", result.stdout)
    result = ran("-o", "budget=64M", "-o", "policy=lru", store, "--", "sh", "-c",
                 'grep -E "^(budget|policy)" "$EXPERTFS_MOUNT/.expertfs/config"; cat "$EXPERTFS_MOUNT/.expertfs/stat"')
    ends("mount options", result, 0, r"policy: lru", r"budget_bytes: 67108864")
    ends("a status", ran(store, "--", "sh", "-c", "exit 7", "{}"), 7)
    for delay in ("0.001", "0.005", "0.02"):
        result = run("sh", "-c", 'sleep "$1" & shift; exec "$@"', "sh", delay, program("expertctl"), "up", store, "--", "test",
                     "-d", "{}")
        ends(f"a child that it was given ends after {delay} s", result, 0)
    result = ran(store, "--", "sh", "-c", 'echo "$EXPERTFS_STORE|$EXPERTFS_MOUNT"; exit 3')
    if os.path.exists(PLUGIN):
        ends("without a mount", result, 3)
        check("without a mount: the program is told the store", result.stdout == f"{store}|\n", result.stdout)
    else:
        ends("without a mount and a backend", result, 125, "libggml-expertfs.so: not installed.*\nhint: write {}/NAME")
    ends("a signal of its own", ran(store, "--", "sh", "-c", "kill -9 $$ {}"), 128 + 9)
    ends("a program that is not there", ran(store, "--", "no-such-program", "{}"), 127, "no-such-program: No such file")
    ends("the program first", ran("true", "--", store), 125, "true: No such file .*\nhint: a model is a directory")
    ends("a folder", ran(store, "--", "/", "{}"), 126, "Permission denied")
    ends("a folder without weights", ran(os.path.join(folder, "extra"), "--", "true"), 125, "no weights found")
    ends("a file that is no store", ran(os.path.join(folder, "extra", "odd.bin"), "--", "true"), 125, "neither a store, nor a GGUF")
    ends("a wrong mount option", ran("-o", "nonsense", store, "--", "true"), 125, 'unknown option "nonsense"')
    ends("a budget below the minimum", ran("-o", "budget=1M", store, "--", "true"), 125, "below the minimum")
    line = os.path.join(scratch("lines"), "a\nb.efs")
    os.makedirs(os.path.dirname(line), exist_ok=True)
    os.link(store, line)
    ends("a path with a line end", ran(line, "--", "test", "-e", "{}/model.gguf"), 0)
    ends("no program", ran(store, "--"), 2, "PROGRAM is needed")
    ends("a mount point and a program", ran(store, SCRATCH, "--", "true"), 2, "the mount point is a temporary folder")
    ends("an option of the mount", ran("--budget=3G", store, "--", "true"), 2, "unrecognized option '--budget=3G'")
    ends("one of the program", ran("-o", "budget=64M", "--mlock", store, "--", "true"), 2, "unrecognized option '--mlock'")
    ends("{gguf}", ran(store, "--", "cmp", os.path.join(folder, "model.gguf"), "{gguf}"), 0)
    ends("--options, cut", ran("--opt=budget=64M", "--opt", "ro", store, "--", "true"), 0)
    ends("no folder for temporary files", ran(store, "--", "true", "{}", env={**os.environ, "TMPDIR": scratch("none")}), 125,
         "TMPDIR names another")


def signals(store):
    counts = 'trap "echo one" {0}; echo "{{}}"; n=0; while [ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done'
    for number in (signal.SIGTERM, signal.SIGUSR1):
        run_ = started(store, "--", "sh", "-c", counts.format(number.name[3:]) + "; exit 5")
        begun(run_)
        run_.send_signal(number)
        check(f"{number.name} comes to the program", run_.stdout.readline() == "one\n")
        run_.send_signal(signal.SIGKILL)
        run_.wait()
        nothing_left(f"{number.name}, then SIGKILL")
        run_.communicate()
    own = 'trap "echo int; exit 6" INT; echo "{}"; n=0; while [ $n -lt 3000 ]; do sleep 0.01; n=$((n+1)); done'
    run_ = started(store, "--", "sh", "-c", own, start_new_session=True)
    begun(run_)
    os.killpg(run_.pid, signal.SIGINT)  # as a terminal does
    out, _ = run_.communicate(timeout=PATIENCE)
    check("Ctrl-C is for the program, which decides", (out, run_.returncode) == ("int\n", 6), (out, run_.returncode))
    nothing_left("Ctrl-C")
    run_ = started(store, "--", "sh", "-c", "echo {}; exec sleep 300")
    begun(run_)
    run_.terminate()
    check("SIGTERM ends it, and the run with 143", run_.wait(PATIENCE) == 143)
    run_.communicate()
    nothing_left("SIGTERM")
    for pause in (0, 0.003, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05):  # some arrive while it mounts
        run_ = started(store, "--", "true", "{}", "-o")
        time.sleep(pause)
        run_.terminate()
        check(f"a signal after {pause} s", run_.wait(PATIENCE) in (143, 130, 0, -15), run_.returncode)
        run_.communicate()
        nothing_left(f"a signal after {pause} s")


def supervisor_killed(store):
    """The supervisor is killed: the run cleans up in its place. The daemon is killed: the program gets errors for its
    files."""
    for what, daemon_goes in (("supervisor", False), ("daemon", True)):
        run_ = started(store, "--", "sh", "-c", "echo {}; read line; exit 3", stdin=subprocess.PIPE)
        path = begun(run_)
        children = run("pgrep", "-P", str(run_.pid)).stdout.split()
        daemon = [pid for pid in run("pgrep", "-f", path).stdout.split()
                  if open(f"/proc/{pid}/cmdline").read().startswith("expertfs\0-o\0")]
        check(f"a run has a supervisor, a daemon and a program ({what})", len(daemon) == 1 and len(children) == 2, (children, daemon))
        parent = re.search(r"^PPid:\s+(\d+)", open(f"/proc/{daemon[0]}/status").read(), re.M).group(1)
        os.kill(int(daemon[0] if daemon_goes else parent), signal.SIGKILL)
        _, told = run_.communicate("\n", timeout=PATIENCE)
        check(f"a killed {what}: the program's status", run_.returncode == 3, (run_.returncode, told))
        if daemon_goes:
            check("a killed daemon: said", "was ended by signal 9" in told, told)
        nothing_left(f"a killed {what}")


def on_a_mount(store):
    mount = Mount(store, "budget=64M")
    result = ran(os.path.join(mount.path, "experts"), "--", "echo", "{}", "{}/model.gguf")
    check("on a mount: its root, from any folder in it", result.stdout == f"{mount.path} {mount.path}/model.gguf\n",
          result.stdout + result.stderr)
    result = ran("-o", "budget=1G", mount.path, "--", "true")
    check("on a mount: no options", result.returncode == 125 and "mounted already" in result.stderr, result.stderr)
    result = ran(mount.path, "--", "sh", "-c", "exit 9")
    check("on a mount: it stays", result.returncode == 9 and os.path.exists(mount / "model.gguf"), result.stderr)
    check("on a mount: it serves", mount.count("budget_bytes") == 64 << 20)
    mount.unmount()


def llama(model, store):
    """The same tokens from llama.cpp without the backend and with it, on a store and on a mount, preloaded and found by
    name."""
    if not os.path.exists(PLUGIN) or SANITIZED:
        note("left out: llama.cpp: libggml-expertfs.so is not built, or has a sanitizer in it")
        return
    plain = run(PYTHON, CLIENT, model, scratch("out.npz"))
    if plain.returncode == 77:
        note(f"left out: {plain.stdout.strip().splitlines()[-1]}")
        return

    def tokens(result):
        found = re.search(r"^tokens: .*$", result.stdout, re.M)
        return found and found.group(0)

    line_of_python(model, store)
    check("llama.cpp by itself runs", tokens(plain), plain.stdout + plain.stderr)
    program_ = (PYTHON, CLIENT)
    runs = {"a store that the program opens": (store, "--", *program_, model, scratch("out.npz")),
            "a mount of its own": ("-o", "budget=192M", store, "--", *program_, "{}/model.gguf", scratch("out.npz")),
            "through a shell": ("-o", "budget=192M", store, "--", "sh", "-c", '"$0" "$1" "{}/model.gguf" "$2"', *program_,
                                scratch("out.npz"))}
    for what, words in runs.items():
        result = ran(*words, env={**os.environ, "EXPERTFS_BUDGET": "192M"})
        ends(f"llama.cpp, {what}", result, 0, "loaded expertfs backend", r"expertfs compute buffer size = +[0-9.]*[1-9]")
        check(f"llama.cpp, {what}: the same tokens", tokens(result) == tokens(plain), result.stdout[-500:])


def preloaded():
    """A ggml without built-in backends loads all backend files before ours, one that has some loads ours only; once."""
    if not os.path.exists(PLUGIN) or SANITIZED:
        return
    source, library, binary = scratch("fake.c"), scratch("libfake.so"), scratch("fake")
    with open(source, "w") as file:
        file.write("""
        #include <stddef.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #ifdef MAIN
        size_t ggml_backend_reg_count(void);
        int main(void) { size_t n = ggml_backend_reg_count(); printf("%zu %zu", n, ggml_backend_reg_count()); }
        #else
        static size_t count;
        size_t ggml_backend_reg_count(void) { return count + (getenv("INSIDE") != NULL); }
        void ggml_backend_load_all(void) { printf("all "); count += 2; }
        void *ggml_backend_load(const char *path) { printf("%s ", strrchr(path, '/') + 1); count++; return NULL; }
        #endif
        """)
    built = run("gcc", "-shared", "-fPIC", "-o", library, source)
    built = built if built.returncode else run("gcc", "-DMAIN", "-o", binary, source, "-L", os.path.dirname(library),
                                               "-lfake", f"-Wl,-rpath,{os.path.dirname(library)}")
    if built.returncode:
        note(f"left out: gcc: {built.stderr[-300:]}")
        return
    names = {"LD_PRELOAD": os.path.basename(PLUGIN), "LD_LIBRARY_PATH": os.path.dirname(PLUGIN)}
    for inside, want in ((False, "all libggml-expertfs.so 3 3"), (True, "libggml-expertfs.so 2 2")):
        result = run(binary, env={**os.environ, **names, **({"INSIDE": "1"} if inside else {})})
        check(f"preloaded into a ggml with {'one' if inside else 'no'} backend inside", result.stdout == want,
              result.stdout + result.stderr)


def line_of_python(model, store):
    """Runs the Python line of expertfs-ggml(7) as printed there."""
    page = open(os.path.join(ROOT, "man", "expertfs-ggml.7")).read()
    lines = re.search(r"^(import ctypes.*?)^\.Ed", page, re.M | re.S).group(1)
    lines = lines.replace("libggml-expertfs.so", PLUGIN)
    result = run(PYTHON, "-c", lines + f"llama_cpp.Llama({model!r}, n_ctx=64, verbose=True)",
                 env={**os.environ, "EXPERTFS_STORE": store, "EXPERTFS_BUDGET": "64M"})
    check("the page's line of Python loads the backend", result.returncode == 0 and
          re.search(r"expertfs compute buffer size = +[0-9.]*[1-9]", result.stderr), result.stderr[-1500:])


def expert_reads(model, store):
    """Reads of a file are counted separately if they touch an expert; with the backend, none does once a model is
    loaded."""
    mount = Mount(store, "budget=192M")

    def more(before=[0]):
        before[0], was = mount.count("fuse_reads_experts"), before[0]
        return before[0] - was

    size = os.path.getsize(model)
    fd = os.open(mount / "model.gguf", os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 4096)
    more()
    os.preadv(fd, [page], 0)  # metadata
    os.preadv(fd, [page], size)
    check("a read of what is no expert's does not count", more() == 0)
    experts = [at for at in range(0, size // 4096 * 4096, 65536) if os.preadv(fd, [page], at) and more()]
    check("reads of experts do, each once", size * 0.5 < len(experts) * 65536 < size, (len(experts), size))
    os.close(fd)
    if os.path.exists(PLUGIN) and not SANITIZED:
        process = started(mount.path, "--", PYTHON, CLIENT, "{}/model.gguf", scratch("out.npz"), "--wait", "--tokens", "40",
                          stdin=subprocess.PIPE, env={**os.environ, "EXPERTFS_BUDGET": "auto"})
        text = ""
        for line in process.stdout:
            text += line
            if line == "begun\n":
                break
        else:
            note(f"left out: llama.cpp: {text}")
            process.communicate()
            mount.unmount()
            return
        more()  # loading may read pages that hold parts of experts
        rest, _ = process.communicate("\n", timeout=PATIENCE)
        check("40 tokens: no expert is read from the file", "tokens:" in rest and more() == 0, rest[-500:])
        check("40 tokens: experts come over the socket", mount.count("fuse_handouts") > 0, mount.stat())
    mount.unmount()


def main():
    need_fuse()
    if SANITIZED and os.path.exists(PLUGIN):
        skip("programs have no sanitizer in them, which the backend that they are given needs")
    os.makedirs(TEMPORARY)
    folder = make_model("model", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "8", "--experts-per-token", "2", "-l",
                        "3", "--vocab", "1000", "--format", "gguf")
    store = make_store(folder, environment=NO_STATE)
    arguments(folder, store)
    signals(store)
    supervisor_killed(store)
    on_a_mount(store)
    preloaded()
    expert_reads(os.path.join(folder, "model.gguf"), store)
    llama(os.path.join(folder, "model.gguf"), store)
    done()


if __name__ == "__main__":
    main()
