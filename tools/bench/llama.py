# SPDX-License-Identifier: Apache-2.0
"""make bench-llama: llama.cpp generates from a GGUF file of a mount and from the plain file, under memory limits.

--ours selects candidates: mount, the file in a mount; backend, the plain file with libggml-expertfs.so and the store,
whose budget is in the same cgroup; both, the file in a mount with libggml-expertfs.so; up, `expertctl up MODEL -- PROGRAM
{gguf}`, which chooses among these and the plain file. --user runs all of them as that user. The plain file is measured with
the read-ahead of its disk and with 128 KiB. For each limit the candidates alternate, each cold and in a new memory
cgroup, which includes the daemon; all must generate the same tokens. Prints medians, and for each measure the ratio to
the better plain candidate.

--quantize measures a quantised file, such as Q4_K_M, which is served in place. llama.cpp then runs with repacking off in
all candidates, so that they compute the same bits, and once more as it comes (default), whose tokens may differ; it runs
in the first round only, because it is killed or swaps at most limits, and takes no part in the ratios. Where it fits, so
does the file: then the backend leaves all to llama.cpp, which repacks with it as without.

--seconds ends the rounds of a limit when one more would take longer, after at least one."""
import argparse
import atexit
import contextlib
import ctypes
import glob
import json
import mmap
import os
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import time

from cgroup import Cgroup
from common import HERE, ROOT, WORK, drop, tool, touch_memory

# 32 experts of 9 MiB in a layer, 4 per token; --size sets the number of layers
SHAPE = ["-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", "32", "--experts-per-token", "4", "--vocab", "32768"]
LOW_KIB = 128  # the default of most disks
# ratios to stock llama.cpp that are wanted, and the best ones: by limit, for tokens a second of a quantised file and of
# BF16, and for a prompt of 512 tokens; "none" is with all of the file in memory
LIMITS = ("25%", "50%", "75%", "none")
WANTED = {"quantised": ((3, 4), (2, 3), (1.1, 1.4), (0.98, 1.0)), "BF16": ((5, 6), (1.4, 4), (1.2, 3), (1.15, 1.15)),
          "prompt": ((2, 3), (1.5, 2), (1.1, 1.3), (0.95, 1.0))}
FIRST = (1.0, 1.43)  # of the first token, cold
DEFAULT = "default"  # the candidate with repacking
MOUNTED = ("mount", "both")
running = []  # objects whose end() is called at exit, last first
libc = ctypes.CDLL(None, use_errno=True)
libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def end_all():
    while running:
        running.pop().end()


class Failed(Exception):
    pass


class Ended:
    """A context manager whose end() is called at the end of the block or of the program."""

    def __enter__(self):
        running.append(self)
        return self

    def __exit__(self, *_):
        if self in running:
            running.remove(self)
            self.end()


def joins(cgroup, last_signal, user=None):
    """A preexec_fn: joins the cgroup, becomes the user, and sets the signal that the child gets when this process ends."""
    def start():
        cgroup.join()
        if user:
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
        libc.prctl(1, last_signal)  # PR_SET_PDEATHSIG; a change of the user resets it
    return start


def of_user(options):
    """The environment of programs: folders of the user's own."""
    home = os.path.join(options.dir, f"home-{options.user.pw_name if options.user else 'own'}")
    os.makedirs(home, exist_ok=True)
    if options.user:
        os.chown(home, options.user.pw_uid, options.user.pw_gid)
    return {"HOME": home, "XDG_DATA_HOME": f"{home}/data", "XDG_STATE_HOME": f"{home}/state", "EXPERTFS_STATE": f"{home}/state"}


class ReadAhead(Ended):
    """Sets the read-ahead of a file's disk until the end of the block; kib None: leaves it unchanged."""

    def __init__(self, path, kib=None):
        device = os.stat(path).st_dev
        self.file = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        with open(self.file) as f:
            self.before = int(f.read())
        self._write(kib)

    def _write(self, kib):
        if kib is not None:
            with open(self.file, "w") as f:
                f.write(str(kib))

    def end(self):
        self._write(self.before)


class Limited(Ended):
    def __init__(self, limit_bytes):
        self.cgroup = Cgroup(limit_bytes)

    def end(self):
        self.cgroup.remove()


class Mounted(Ended):
    """A daemon in the cgroup; returns when it has mounted. end() stops it and unmounts."""

    def __init__(self, store, path, options, cgroup, log):
        os.makedirs(path, exist_ok=True)
        self.path = path
        if options.user:
            os.chown(path, options.user.pw_uid, options.user.pw_gid)
        with open(log, "w") as out:
            self.daemon = subprocess.Popen([tool("expertfs"), "-f", store, path, *(["-o", options.options] if options.options else [])],
                                           stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                           env={**os.environ, **of_user(options)},
                                           preexec_fn=joins(cgroup, signal.SIGTERM, options.user))
        end = time.monotonic() + 60
        while not os.path.ismount(path):
            if self.daemon.poll() is not None or time.monotonic() > end:
                self.end()
                with open(log) as text:
                    raise Failed(f"expertfs did not mount: {text.read().strip()}")
            time.sleep(0.01)

    def end(self):
        if self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(30)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
                self.daemon.wait()
        if os.path.ismount(self.path):
            subprocess.run(["umount", "-l", self.path] if os.geteuid() == 0 else ["fusermount3", "-uz", self.path],
                           check=False)


class Client(Ended):
    def __init__(self, path, options, cgroup, environment, repack=True, prefix=()):
        command = [*prefix, sys.executable, os.path.join(HERE, "llama_client.py"), path, "--tokens", str(max(options.tokens)),
                   "--threads", str(options.threads), "--prompt", str(options.prompt), *(["--no-repack"] * (not repack))]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **of_user(options), **environment},
                                        preexec_fn=joins(cgroup, signal.SIGKILL, options.user))

    def result(self):
        out, messages = self.process.communicate()
        if self.process.returncode == 77:
            print(messages.strip())
            sys.exit(77)
        if self.process.returncode:
            raise Failed(f"the client ended with {self.process.returncode}: {messages.strip()[-500:]}")
        return json.loads(out.splitlines()[-1])

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def preloaded():
    """The environment that preloads the backend. LD_PRELOAD has the file name only, because the path may contain
    blanks, which separate its entries; LD_LIBRARY_PATH has the folder."""
    folder, name = os.path.split(tool("libggml-expertfs.so"))
    return {"LD_PRELOAD": name, "LD_LIBRARY_PATH": folder}


def cached_share(path):
    """The part of the file in the page cache, 0 to 1."""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE) as pages:
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        found = ctypes.create_string_buffer((len(pages) + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        if libc.mincore(start, len(pages), found):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(byte & 1 for byte in found.raw) / len(found.raw)


def forget(path):
    """Drops the file from the page cache. Raises Failed if more than 1 % stays, because another process has it
    mapped."""
    drop(path)
    share = cached_share(path)
    if share > 0.01:
        raise Failed(f"{path}: {share:.0%} of it stays in the page cache; another program has it mapped")


def prepare(options):
    """Creates the GGUF file, and its store unless it is quantised, if they do not exist. Returns their paths; those of a
    quantised file are the same."""
    folder = os.path.join(options.dir, "llama-" + (options.preset or options.size)
                          + ("" if options.weights == "scaled" else "-" + os.path.basename(options.weights)))
    gguf, store = os.path.join(folder, "model.gguf"), folder + ".efs"
    if options.quantize:
        small = f"{folder}-{options.quantize}.gguf"
        if not os.path.exists(small):
            quantize(make(gguf, options), small, options.quantize)
        return small, small
    if not os.path.exists(store):
        subprocess.run([tool("mkexpertfs"), "--quiet", "--force", os.path.dirname(make(gguf, options)), store], check=True)
    return gguf, store


def make(gguf, options):
    """The BF16 file."""
    folder = os.path.dirname(gguf)
    if not os.path.exists(gguf):
        shape = ["--preset", options.preset] if options.preset else [*SHAPE, "--size", options.size]
        shutil.rmtree(folder + ".part", ignore_errors=True)
        subprocess.run([tool("mkmodel"), "--format", "gguf", "--weights", options.weights, *shape, folder + ".part"],
                       check=True)
        os.rename(folder + ".part", folder)
    return gguf


def quantize(gguf, small, ftype):
    result = subprocess.run([sys.executable, os.path.join(HERE, "llama_quantize.py"), gguf, small + ".part", ftype],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        raise Failed(f"{ftype}: {result.stdout.strip()[-500:]}")
    os.rename(small + ".part", small)


def bytes_of(limit, size):
    """Parses a limit: a percentage of the file's size (25%), a size (2G, 512M), or none."""
    if limit == "none":
        return None
    if limit.endswith("%"):
        return int(size * float(limit[:-1]) / 100)
    return int(float(limit[:-1]) * 2 ** {"M": 20, "G": 30}[limit[-1]])


def plain_kinds(gguf, options):
    """The candidates without expertfs; with --quantize also DEFAULT, llama.cpp as it comes, which repacks."""
    return {**read_ahead_kinds(gguf), **({DEFAULT: None} if options.quantize else {})}


def read_ahead_kinds(gguf):
    """{name of a plain candidate: read-ahead in KiB, or None}: the disk's read-ahead and, if it differs and can be set,
    LOW_KIB."""
    try:
        with ReadAhead(gguf) as own:
            if own.before == LOW_KIB:
                return {"plain": None}
        with ReadAhead(gguf, LOW_KIB):
            return {f"plain {own.before}K": None, f"plain {LOW_KIB}K": LOW_KIB}
    except OSError as error:
        print(f"only with the disk's own read-ahead: {error}")
        return {"plain": None}


def once(candidate, gguf, store, limit_bytes, options):
    """Results of one cold run; without a limit, also of a second run with everything in memory."""
    kind, _, path_of_cpu = (candidate, "", "") if candidate in options.plain else candidate.partition(":")
    for path in (gguf, store, *glob.glob(f"{of_user(options)['XDG_DATA_HOME']}/expertfs/*.efs")):
        forget(path)
    touch_memory(2 * os.path.getsize(gguf))
    results = []
    with Limited(limit_bytes) as limited, contextlib.ExitStack() as stack:
        if options.plain.get(kind):
            stack.enter_context(ReadAhead(gguf, options.plain[kind]))
        mount = os.path.join(options.dir, "llama-mnt")
        with (Mounted(store, mount, options, limited.cgroup, os.path.join(options.dir, "llama.log"))
              if kind in MOUNTED else contextlib.nullcontext()):
            path = os.path.join(mount, os.path.basename(gguf)) if kind in MOUNTED else gguf
            environment = {**(preloaded() if kind in ("backend", "both") else {}),
                           **({"EXPERTFS_CPU": path_of_cpu} if path_of_cpu else {})}
            if kind == "backend":
                environment["EXPERTFS_STORE"] = store
                if options.budget:
                    environment["EXPERTFS_BUDGET"] = options.budget
            prefix = (tool("expertctl"), "up", gguf, "--") if kind == "up" else ()
            for _ in range(1 if limit_bytes else 2):
                with Client("{gguf}" if prefix else path, options, limited.cgroup, environment,
                            kind == DEFAULT or not options.quantize, prefix) as client:
                    try:
                        results.append(client.result())
                    except Failed:
                        if kind != DEFAULT:
                            raise
                        results.append(None)  # repacked weights do not fit: killed
    return results


def median_of(runs, measure, tokens):
    """The median of a measure over the runs; tokens_per_s: of the first `tokens` tokens of each run."""
    if None in runs:
        return float("nan")
    if measure == "tokens_per_s":
        return statistics.median(tokens / sum(r["step_s"][:tokens]) for r in runs)
    return statistics.median(r[measure] for r in runs)


def spread(runs, measure, tokens):
    """The least and the largest of a measure, as text."""
    each = [median_of([run], measure, tokens) for run in runs]
    return f"{min(each):.2f}-{max(each):.2f}"


def wanted(measure, limit, cold, options):
    """The ratio that is wanted, as text; empty: none."""
    kind = {"tokens_per_s": "quantised" if options.quantize else "BF16", "prompt_s": "prompt"}.get(measure)
    if measure == "first_s" and cold:
        least, best = FIRST
    elif limit not in LIMITS or kind is None or (limit == "none" and cold) or (kind == "prompt" and options.prompt < 512):
        return ""
    else:
        least, best = WANTED[kind][LIMITS.index(limit)]
    return f">= {least}, best >= {best}"


def tell(name, ours, plain, limit, options, report):
    """Prints a line for each measure: the medians, and the ratios of our candidates to the better plain one, above 1 if
    ours is better."""
    first = True
    lines = [("tokens_per_s", f"tokens/s, {n} tokens", True, n) for n in options.tokens]
    lines += [("first_s", "s to the first token", False, 0), ("load_s", "s to load", False, 0),
              ("prompt_s", "s for the prompt", False, 0)]
    for measure, unit, higher, n in lines:
        own = {kind: median_of(runs, measure, n) for kind, runs in ours.items()}
        others = {kind: median_of(runs, measure, n) for kind, runs in plain.items()}
        ran = [other for kind, other in others.items() if kind != DEFAULT and other == other]  # NaN: killed
        best = max(ran) if higher else min(ran)
        ratios = {kind: value / best if higher else best / value for kind, value in own.items()}
        ratio = next(iter(ratios.values()))
        print(f"   {name if first else '':14} {unit:21} " + " ".join(f"{value:8.2f}" for value in own.values())
              + " " + " ".join(f"{other:12.2f}" for other in others.values())
              + "   " + " ".join(f"{value:5.2f}" for value in ratios.values()) + f"   {wanted(measure, limit, name != 'none, warm', options):19}",
              f"of {len(next(iter(ours.values())))}: "
              + " ".join(spread(runs, measure, n) for runs in ours.values()), flush=True)
        report.append({"limit": name, "measure": measure, "tokens": n, **own, "plain": others, "ratio": ratio,
                       "ratios": ratios})
        first = False


def measure(options):
    gguf, store = prepare(options)
    options.plain = plain_kinds(gguf, options)
    ours = options.ours
    if any(kind.startswith("up") for kind in ours):  # packs the model where it does not fit
        subprocess.run([tool("expertctl"), "up", gguf, "--", "true", "{gguf}"], check=True, stdin=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env={**os.environ, **of_user(options), "EXPERTFS_BUDGET": "64M"},
                       **({"user": options.user.pw_name, "group": options.user.pw_gid, "extra_groups": []} if options.user else {}))
    kinds, ours_of_cpu = [*ours, *options.plain], [kind for kind in ours if ":" in kind]
    size, report, tokens = os.path.getsize(gguf), [], None
    form = "in place" if store == gguf else f"packed {os.path.getsize(store) / size:.3f}"
    print(f"{os.path.basename(gguf)} of {size / 2**30:.2f} GiB, {form}; "
          f"{max(options.tokens)} tokens, medians of at most {options.rounds}, taking turns; mount options: "
          f"{options.options or 'none'}"
          + (f"; budget of the backend: {options.budget or 'its own'}" if "backend" in ours else ""))
    print(f"   {'memory limit':14} {'':21} " + " ".join(f"{kind:>8}" for kind in ours) + " "
          + " ".join(f"{kind:>12}" for kind in options.plain)
          + "   " + ("ratio" if len(ours) == 1 else "ratios") + "   wanted")
    for limit in options.limits.split(","):
        limit_bytes = bytes_of(limit, size)
        runs, begin, longest = {kind: [] for kind in kinds}, time.monotonic(), 0
        for turn in range(options.rounds):
            now = time.monotonic()
            if turn and options.seconds and now - begin + longest > options.seconds:
                break
            for kind in kinds[::-1] if turn % 2 else kinds:
                if kind != DEFAULT or turn == 0:
                    runs[kind].append(once(kind, gguf, store, limit_bytes, options))
            longest = max(longest, time.monotonic() - now)
        # a forced code path adds up in another order than llama.cpp does on this processor
        for result in (r for kind in runs if kind != DEFAULT and kind not in ours_of_cpu for run in runs[kind] for r in run):
            tokens = tokens or result["tokens"]
            if result["tokens"] != tokens:
                raise Failed(f"limit {limit}: other tokens: {result['tokens']} instead of {tokens}")
        for turn, state in enumerate(["cold"] if limit_bytes else ["cold", "warm"]):
            of_turn = {kind: [run[turn] for run in runs[kind]] for kind in kinds}
            tell(limit if limit_bytes else f"none, {state}", {kind: of_turn[kind] for kind in ours},
                 {kind: of_turn[kind] for kind in options.plain}, limit, options, report)
    print(f"   all runs{' but those with repacking' if DEFAULT in kinds else ''} generated the same {max(options.tokens)} tokens")
    if options.json:
        with open(options.json, "w") as f:
            json.dump(report, f, indent=1)


def kinds_of(text):
    kinds = text.split(",")
    if not kinds or not {"mount", "backend", "both", "up"}.issuperset(kind.partition(":")[0] for kind in kinds):
        raise argparse.ArgumentTypeError(f"{text}: only mount, backend, both, up")
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="5GB", help="of the GGUF file that is made (5GB)")
    parser.add_argument("--preset", help="of mkmodel, for a file of another shape and size")
    parser.add_argument("--limits", default="25%,50%,75%,none", help="memory limits: parts of the file, or sizes (512M); none")
    parser.add_argument("--tokens", type=lambda text: sorted({int(n) for n in text.split(",")}), default=[24, 96],
                        help="as many are generated as the largest says; the rate is told for each (24,96)")
    parser.add_argument("--quantize", default="", help="measure the file in this type of llama.cpp, such as Q4_K_M")
    parser.add_argument("--prompt", type=int, default=0, help="tokens of the prompt, drawn (0: a sentence of some twenty)")
    parser.add_argument("--weights", default="scaled", help="of mkmodel: scaled (default), normal, heavy, or a checkpoint")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS", "3")))
    parser.add_argument("--seconds", type=int, default=0, help="most for the rounds of a limit (0: no limit)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of llama.cpp (all cores)")
    parser.add_argument("--options", default="", help="mount options")
    parser.add_argument("--ours", type=kinds_of, default=["mount"], help="of mount,backend,both,up (mount); up:avx2 is up with EXPERTFS_CPU=avx2")
    parser.add_argument("--user", type=pwd.getpwnam, help="run all programs as this user, who can read --dir (as it is)")
    parser.add_argument("--budget", default="", help="of the store in the backend (what it takes by itself)")
    parser.add_argument("--dir", default=WORK)
    parser.add_argument("--json", help="also write what is told into this file")
    options = parser.parse_args()
    os.makedirs(options.dir, exist_ok=True)
    try:
        Limited(None).end()
    except OSError as error:
        print(f"memory cgroups: {error}")
        sys.exit(77)
    if shutil.which("fusermount3") is None and os.geteuid():
        print("neither root nor fusermount3")
        sys.exit(77)
    if options.ours != ["mount"] and not os.path.exists(tool("libggml-expertfs.so")):
        print("libggml-expertfs.so is not built: ggml's headers are missing (tools/setup-python runtimes)")
        sys.exit(77)
    atexit.register(end_all)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        measure(options)
    except (Failed, OSError) as failed:
        sys.exit(f"tools/bench/run llama: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
