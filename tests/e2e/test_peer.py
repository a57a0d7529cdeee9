# SPDX-License-Identifier: Apache-2.0
"""Two machines as processes: runmoe with a small budget, and expertpeer, which holds all experts. The logits of all
positions have the bits of a run alone, also when the peer is stopped, killed or another program; hostile callers."""
import socket

from e2e import *

RUNMOE, PEER = program("runmoe"), program("expertpeer")
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "32", "-l", "4", "--vocab", "500"))
key = make_key("key")
PROMPT = ",".join(str(n) for n in range(3, 400, 37))


def start(port, logits, *options):
    return subprocess.Popen([RUNMOE, store, "-p", PROMPT, "-n", "60", "--batch", "2", "--logits", scratch(logits), "--budget", "36M",
                             "--threads", "1", *(("--peers", f"127.0.0.1:{port}", "--peer-key", key) if port else ()), *options],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process, logits):
    out, error = process.communicate()
    check(f"{logits}: runmoe ends with 0", process.returncode == 0, error)
    with open(scratch(logits), "rb") as file:
        return dict(line.split(": ", 1) for line in out.splitlines() if ": " in line), file.read()


def ran(port, logits, *options):
    return end(start(port, logits, *options), logits)


alone, want = ran(0, "alone")
rounded = ran(0, "alone-bf16", "--activations", "bf16")[1]
peer = Peer(store, key)
for activations, same in (("f32", want), ("bf16", rounded)):
    computed = 0
    for _ in range(20):  # a machine that is busy may find reading sooner, or the answer late
        said, got = ran(peer.port, activations, "--activations", activations)
        check(f"{activations}: the logits have the same bits", got == same)
        computed += int(said["peer_vectors"])
        if computed:
            break
    check(f"{activations}: the peer computed some experts", computed > 0, said)
stats = peer.end()
check("the server saw no wrong message", (stats["bad"], stats["failed"], stats["refused"]) == (0, 0, 0), stats)

for name, number in (("stopped", signal.SIGSTOP), ("killed", signal.SIGKILL)):
    peer = Peer(store, key)
    runs = start(peer.port, name)
    wait_until(lambda: runs.poll() is not None or os.stat(scratch(name)).st_size > 100000 if os.path.exists(scratch(name)) else False)
    peer.process.send_signal(number)
    check(f"{name} in the middle: the logits have the same bits", end(runs, name)[1] == want)
    peer.kill()

with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts and says nothing
    process = start(silent.getsockname()[1], "silent")
    error = process.communicate()[1]
    check("a port that says nothing: the same bits", process.returncode == 0 and open(scratch("silent"), "rb").read() == want, error)
    check("it is said that no peer answered", "no peer answered" in error and "the same key" in error, error)

peer = Peer(store, key)
for what in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(4000), os.urandom(70000)):
    with socket.create_connection(("127.0.0.1", peer.port)) as caller:
        caller.sendall(what)
flood = []
for _ in range(100):
    flood.append(socket.create_connection(("127.0.0.1", peer.port)))
said, got = ran(peer.port, "flooded")
check("beside a flood of connections: the same bits", got == want)
for one in flood:
    one.close()
wait_until(lambda: ran(peer.port, "afterwards")[0]["peers_connected"] == "1")
stats = peer.end()
check("it has refused them", stats["refused"] >= 40, stats)

refused = run(PEER, store, "--listen", "127.0.0.1:0")
check("without a key: wrong usage", refused.returncode == 2 and "openssl rand" in refused.stderr, refused.stderr)
os.chmod(key, 0o644)
refused = run(PEER, store, "--listen", "127.0.0.1:0", "--key", key)
check("a key that others can read is refused, with the way out", refused.returncode == 1 and "hint: chmod 600" in refused.stderr,
      refused.stderr)
os.chmod(key, 0o600)
plain = make_model("plain", "-F", "qwen3-moe", "-d", "256", "-i", "160", "-e", "4", "-l", "1", "--vocab", "500")
refused = run(PEER, plain, "--listen", "127.0.0.1:0", "--key", key)
check("a checkpoint in place is refused by name, with the way out", refused.returncode == 1 and
      f"expertpeer: {plain}: " in refused.stderr and "hint: pack it" in refused.stderr, refused.stderr)

need_fuse()
mount = Mount(store)
peer = Peer(mount.path, key)
said, got = ran(peer.port, "of a mount")
check("a peer of a mount: the logits have the same bits", got == want)
said, got = end(subprocess.Popen([RUNMOE, mount.path, "-p", PROMPT, "-n", "60", "--batch", "2", "--logits", scratch("mounted"),
                                  "--threads", "1", "--peers", f"127.0.0.1:{peer.port}", "--peer-key", key],
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), "mounted")
check("a caller on a mount: the same", got == want)
stats = peer.end()
check("of a mount: no wrong message", (stats["bad"], stats["failed"], stats["refused"]) == (0, 0, 0), stats)
mount.unmount()

print("-- counts are those of the caller's mount")


def mounted(server, budget):
    return Mount(store, f"budget={budget},warm=off,nopassthrough", environment={"EXPERTFS_STATE": scratch(server)})


def saved(server):
    """Passes, and the calls of each expert, of each layer: expertfs-counts(5). None: there are none."""
    names = [name for name in os.listdir(scratch(server)) if name.startswith("counts-")] if os.path.exists(scratch(server)) else []
    if not names:
        return None
    with open(os.path.join(scratch(server), names[0]), "rb") as file:
        data = file.read()
    layers, experts = struct.unpack_from("<2I", data, 24)
    return (struct.unpack_from(f"<{layers}Q", data, 48), struct.unpack_from(f"<{layers * experts}I", data, 48 + 16 * layers))


def runs_on(server, *peers):
    caller = mounted(server, "36M")
    said = end(subprocess.Popen([RUNMOE, caller.path, "-p", PROMPT, "-n", "60", "--batch", "2", "--logits", scratch(server + "-logits"),
                                 "--threads", "1", *peers], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), server + "-logits")
    caller.unmount()
    return said[0]


runs_on("by-itself")
for turn in range(20):
    helper = mounted("helper", "256M")
    ctl("warmup", helper.path)
    peer = Peer(helper.path, key)
    said = runs_on(f"caller{turn}", "--peers", f"127.0.0.1:{peer.port}", "--peer-key", key)
    peer.end()
    helper.unmount()
    if int(said["peer_vectors"]):
        break
check("the peer computed some experts", int(said["peer_vectors"]) > 0, said)
check("the caller's mount counts its choices as alone", saved(f"caller{turn}") == saved("by-itself") and
      sum(saved("by-itself")[0]) > 0, (saved(f"caller{turn}"), saved("by-itself")))
check("the peer's counts none", saved("helper") is None, saved("helper"))
done()
