# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run llama: llama.cpp generates from a GGUF file with expertfs and from the plain file, under memory limits.

--ours selects candidates: up, `expertctl up MODEL -- PROGRAM {gguf}`, which chooses among the others; backend, the plain file with
libggml-expertfs.so and the store, whose budget is in the same cgroup; mount, the file in a mount; both, the file in a mount with
libggml-expertfs.so. --peers selects what they are compared with: plain, the plain file with the read-ahead of its disk; plain-128K,
with 128 KiB, left out after the first round if it or plain is slower than the other by a fifth; repacked, as llama.cpp comes;
or any of the candidates. --user runs all of them as that user; NAME@root, such as up@root, as this one. --cpu avx2 keeps expertfs
and llama.cpp from AVX-512.

For each limit the candidates take turns, each cold and in a new memory cgroup, which includes the daemon. All evaluate the same
tokens, which llama.cpp drew from the plain file, so that they use the same experts; candidates of one processor must also draw the
same tokens. A quantised file, such as Q4_K_M, is served in place and run with repacking off in all but `repacked`. Prints medians
and ratios to the better peer, and appends every run to results/llama.csv."""
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
import subprocess
import sys
import time

import llama_avx2
from cgroup import Cgroup
from common import HERE, WORK, drop, is_mounted, tool, touch_memory
from runner import ROUNDS, Rows, turns

# 32 experts of 9 MiB in a layer, 4 per token; --size sets the number of layers
SHAPE = ["-F", "qwen3-moe", "-d", "2048", "-i", "768", "-e", "32", "--experts-per-token", "4", "--vocab", "32768"]
LOW_KIB = 128  # the default of most disks
PLAIN = {"plain": None, "plain-128K": LOW_KIB, "repacked": None}  # read-ahead in KiB; None: the disk's
MOUNTED = ("mount", "both")
KINDS = (*PLAIN, *MOUNTED, "backend", "up")
SLOWER = 0.8  # a plain candidate below this part of the other's rate is left out after the first round
# tokens a second over the plain file that are wanted, by limit
WANTED = {"BF16": {"25%": 4.5, "50%": 2.5, "75%": 1.5, "none": 1}, "BF16 avx2": {"25%": 2.5, "50%": 1.7, "75%": 1.3, "none": 1},
          "quantised": {"25%": 3, "50%": 2, "75%": 1.3, "none": 1}, "mount": {"30%": 3.5, "50%": 1.6, "75%": 1.1, "none": 1}}
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


def of_user(options, user):
    """The environment of programs: folders of the user's own; other code paths."""
    home = os.path.join(options.dir, f"home-{user.pw_name if user else 'own'}")
    os.makedirs(home, exist_ok=True)
    if user:
        os.chown(home, user.pw_uid, user.pw_gid)
    forced = {"EXPERTFS_CPU": options.cpu, "LD_LIBRARY_PATH": llama_avx2.library(options.dir)} if options.cpu else {}
    return {**os.environ, **forced, "HOME": home, "XDG_DATA_HOME": f"{home}/data", "XDG_STATE_HOME": f"{home}/state", "EXPERTFS_STATE": f"{home}/state"}


class ReadAhead(Ended):
    """Sets the read-ahead of a file's disk until the end of the block; kib None: leaves it unchanged."""

    def __init__(self, path, kib=None):
        device = os.stat(path).st_dev
        self.file = f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb"
        with open(self.file) as f:
            self.before = int(f.read())
        self.write(kib)

    def write(self, kib):
        if kib is not None:
            with open(self.file, "w") as f:
                f.write(str(kib))

    def end(self):
        self.write(self.before)


class Limited(Ended):
    def __init__(self, limit_bytes):
        self.cgroup = Cgroup(limit_bytes)

    def end(self):
        self.cgroup.remove()


class Mounted(Ended):
    """A daemon in the cgroup; returns when it has mounted. end() stops it and unmounts."""

    def __init__(self, store, path, options, user, cgroup, log):
        os.makedirs(path, exist_ok=True)
        self.path = path
        if user:
            os.chown(path, user.pw_uid, user.pw_gid)
        with open(log, "w") as out:
            self.daemon = subprocess.Popen([tool("expertfs"), "-f", store, path, *(["-o", options.options] if options.options else [])],
                                           stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                           env=of_user(options, user), preexec_fn=joins(cgroup, signal.SIGTERM, user))
        end = time.monotonic() + 60
        while not is_mounted(path):
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
        if is_mounted(self.path):
            subprocess.run(["umount", "-l", self.path] if os.geteuid() == 0 else ["fusermount3", "-uz", self.path],
                           check=False)


class Client(Ended):
    def __init__(self, path, options, user, cgroup, environment, repack, prefix=()):
        command = [*prefix, sys.executable, os.path.join(HERE, "llama_client.py"), path, "--tokens", str(max(options.tokens)),
                   "--threads", str(options.threads), "--prompt", str(options.prompt), *(["--no-repack"] * (not repack)),
                   *(["--feed", options.feed] if options.feed else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**of_user(options, user), **environment}, preexec_fn=joins(cgroup, signal.SIGKILL, user))

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


def preloaded(environment):
    """Variables that preload the backend. LD_PRELOAD has the file name only, because the path may contain blanks, which
    separate its entries; LD_LIBRARY_PATH has the folder."""
    folder, name = os.path.split(tool("libggml-expertfs.so"))
    return {"LD_PRELOAD": name, "LD_LIBRARY_PATH": ":".join(filter(None, (folder, environment.get("LD_LIBRARY_PATH"))))}


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


def two_read_aheads(gguf):
    """Whether plain-128K differs from plain: the disk has another read-ahead, and it can be set."""
    try:
        with ReadAhead(gguf, LOW_KIB) as own:
            return own.before != LOW_KIB
    except OSError as error:
        print(f"plain: only with the disk's own read-ahead: {error}")
        return False


def draw_tokens(gguf, options):
    """Names a file with the tokens that all candidates evaluate, drawn by llama.cpp from the plain file."""
    name = os.path.basename(gguf if options.quantize else os.path.dirname(gguf))
    path = os.path.join(options.dir, f"tokens-{name}-{options.prompt}-{max(options.tokens)}")
    options.feed = None
    if not os.path.exists(path):
        with Limited(None) as limited, Client(gguf, options, options.user, limited.cgroup, {}, not options.quantize) as client:
            tokens = client.result()["tokens"]
        with open(path + ".part", "w") as file:
            file.write(" ".join(map(str, tokens)))
        os.rename(path + ".part", path)
    options.feed = path


def once(candidate, gguf, store, limit_bytes, options):
    """Results of one cold run; without a limit, also of a second run with everything in memory. None: repacked weights did not fit."""
    kind, _, root = candidate.partition("@")
    user = None if root else options.user
    environment = of_user(options, user)
    for path in (gguf, store, *glob.glob(f"{environment['XDG_DATA_HOME']}/expertfs/*.efs")):
        forget(path)
    touch_memory(2 * os.path.getsize(gguf))
    results, more = [], {}
    with Limited(limit_bytes) as limited, contextlib.ExitStack() as stack:
        if PLAIN.get(kind):
            stack.enter_context(ReadAhead(gguf, PLAIN[kind]))
        path = "{gguf}" if kind == "up" else gguf
        if kind in MOUNTED:
            mount = os.path.join(options.dir, "llama-mnt")
            stack.enter_context(Mounted(store, mount, options, user, limited.cgroup, os.path.join(options.dir, "llama.log")))
            path = os.path.join(mount, os.path.basename(gguf))
        if kind in ("backend", "both"):
            more = preloaded(environment)
        if kind == "backend":
            more.update({"EXPERTFS_STORE": store, **({"EXPERTFS_BUDGET": options.budget} if options.budget else {})})
        prefix = (tool("expertctl"), "up", gguf, "--") if kind == "up" else ()
        for _ in range(1 if limit_bytes else 2):
            with Client(path, options, user, limited.cgroup, more, kind == "repacked" or not options.quantize, prefix) as client:
                try:
                    results.append(client.result())
                except Failed:
                    if kind != "repacked":
                        raise
                    return None
    if options.cpu and results[0]["avx512"]:
        raise Failed(f"{candidate}: llama.cpp uses AVX-512")
    return results


class Skipping:
    """Calls candidates in turns, without a plain one that was much slower than the other in the first round."""

    def __init__(self, call, size):
        self.call, self.size, self.first = call, size, {}

    def candidate(self, name):
        def run():
            rate = self.first.get(name)
            if rate and name in PLAIN and rate < SLOWER * max(self.first[other] for other in PLAIN if other in self.first):
                return None
            results = self.call(name)
            if results and name not in self.first:
                self.first[name] = self.size / sum(results[-1]["step_s"])
            return results
        return run


def measures(options):
    """(what, unit, the value of a run)."""
    for n in options.tokens:
        yield f"{n} tokens", "tokens/s", lambda run, n=n: n / sum(run["step_s"][:n])
    for name, what in (("first_s", "first token"), ("load_s", "load"), ("prompt_s", "prompt")):
        yield what, "s", lambda run, name=name: run[name]


def wanted(limit, what, ours, options):
    """The ratio to the plain file that is wanted, as text."""
    kind = {"mount": "mount", "up": "quantised" if options.quantize else f"BF16 {options.cpu}".strip()}.get(ours)
    aim = WANTED.get(kind, {}).get(limit) if what.endswith("tokens") and "plain" in options.peers else None
    return f"   wanted >= {aim}" if aim else ""


def measure(options):
    gguf, store = prepare(options)
    kinds = dict.fromkeys([*options.ours, *(peer for peer in options.peers if peer != "plain-128K" or two_read_aheads(gguf))])
    for user in {None if "@" in kind else options.user for kind in kinds if kind.startswith("up")}:  # packs the model where it does not fit
        subprocess.run([tool("expertctl"), "up", gguf, "--", "true", "{gguf}"], check=True, stdin=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, env={**of_user(options, user), "EXPERTFS_BUDGET": "64M"},
                       **({"user": user.pw_name, "group": user.pw_gid, "extra_groups": []} if user else {}))
    draw_tokens(gguf, options)
    if options.prepare:
        return
    size, drawn = os.path.getsize(gguf), {}
    form = "in place" if store == gguf else f"packed {os.path.getsize(store) / size:.3f}"
    kind = f"{options.quantize or 'BF16'} of {size / 1e9:.1f} GB, {form}{', AVX2' if options.cpu else ''}"
    print(f"{kind}; {max(options.tokens)} tokens, at most {options.rounds} rounds, user {options.user.pw_name if options.user else 'root'}; "
          f"mount options: {options.options or 'none'}")
    rows = Rows("llama", row=options.row, input=kind, **({"user": options.user.pw_name} if options.user else {}))
    for limit in options.limits.split(","):
        limit_bytes = bytes_of(limit, size)
        skipping = Skipping(lambda name, limit=limit_bytes: once(name, gguf, store, limit, options), max(options.tokens))
        runs = {name: [run for run in found if run] for name, found in
                turns({name: skipping.candidate(name) for name in kinds}, options.rounds, options.seconds).items()}
        for name in runs:
            for result in (result for run in runs[name] for result in run):
                drawn.setdefault(tuple(result["tokens"]), set()).add(name)
        if len([names for names in drawn.values() if names != {"repacked"}]) > 1 and not options.cpu:
            raise Failed(f"limit {limit}: other tokens: {drawn}")
        for turn, state in enumerate(["cold"] if limit_bytes else ["cold", "warm"]):
            of = {name: [run[turn] for run in runs[name]] for name in kinds if runs[name]}
            for ours in options.ours:
                tell(rows, options, limit if limit_bytes else f"none, {state}", limit, ours, of)
    print("   all " + ("drew the same tokens" if len(drawn) == 1 else f"evaluated the same tokens, and drew {len(drawn)} different texts"))


def tell(rows, options, name, limit, ours, of):
    """Prints and writes what was measured of one candidate."""
    for what, unit, value in measures(options):
        peers = {peer: [value(run) for run in of[peer]] for peer in options.peers if peer in of and peer != ours}
        own = [value(run) for run in of[ours]]
        result = rows.compare(own, peers, unit, limit=name, what=what, ours=ours)
        print(f"   {name:11} {ours:9} {what:12} {result.value:8.2f} {unit:9} {result.peer:11} {result.peer_value:8.2f}   {result}, "
              f"{result.rounds} rounds{wanted(limit, what, ours, options)}", flush=True)


def candidates(text):
    kinds = text.split(",")
    if not kinds or not set(KINDS).issuperset(kind.removesuffix("@root") for kind in kinds):
        raise argparse.ArgumentTypeError(f"{text}: only {', '.join(KINDS)}, or one of these with @root")
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="5GB", help="of the GGUF file that is made (5GB)")
    parser.add_argument("--preset", help="of mkmodel, for a file of another shape and size")
    parser.add_argument("--limits", default="25%,50%,75%,none", help="memory limits: parts of the file, or sizes (512M); none")
    parser.add_argument("--tokens", type=lambda text: sorted({int(n) for n in text.split(",")}), default=[24, 96],
                        help="as many are generated as the largest says; the rate is told for each (24,96)")
    parser.add_argument("--quantize", default="", help="measure the file in this type of llama.cpp, such as Q4_K_M")
    parser.add_argument("--prompt", type=int, default=0, help="tokens of the prompt, drawn (0: a sentence of some twenty)")
    parser.add_argument("--weights", default="scaled", help="of mkmodel: scaled (default), normal, heavy, or a checkpoint")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=int, default=0, help="most for the rounds of a limit (0: no limit)")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of llama.cpp (all cores)")
    parser.add_argument("--options", default="", help="mount options")
    parser.add_argument("--ours", type=candidates, default=["up"], help="up")
    parser.add_argument("--peers", type=candidates, default=["plain", "plain-128K"], help="plain,plain-128K")
    parser.add_argument("--cpu", choices=["avx2"], default="", help="the code path of all candidates")
    parser.add_argument("--user", type=pwd.getpwnam, help="run all programs as this user, who can read --dir (as it is)")
    parser.add_argument("--budget", default="", help="of the store in the backend (what it takes by itself)")
    parser.add_argument("--prepare", action="store_true", help="only make the files")
    parser.add_argument("--row", default="", help="name in results/llama.csv")
    parser.add_argument("--dir", default=WORK)
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
    try:
        measure(options)
    except (Failed, OSError, subprocess.CalledProcessError) as failed:
        sys.exit(f"tools/bench/run llama: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
