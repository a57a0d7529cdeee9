#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with libggml-expertfs.so and peers: expertpeer, which holds all experts, computes some for a program whose
budget holds few. Logits have the bits of a run without peers, for BF16, where they are llama.cpp's own, and F16; also
when the peer is killed or stopped after the first token, has another key, or is a port that says nothing. Products of
a quantised model are not sent."""
import signal
import socket

from e2e import *
from test_ggml import client, compare, need_plugin, same
from test_ggml_quant import quantised

SHAPE = ("-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "32", "--experts-per-token", "4", "-l", "4", "--vocab", "2048",
         "--format", "gguf")
OPTIONS = ("--prompts", "1,7,64", "--tokens", "16", "--no-repack", "--threads", "1")
BUDGET = "40M"


def peers(port, key):
    return {"EXPERTFS_PEERS": f"127.0.0.1:{port}", "EXPERTFS_PEER_KEY": key}


def computes(what, model, store, key, want, *options):
    """Runs until the peer has computed something: a busy machine may find reading sooner, or an answer late."""
    peer = Peer(store, key)
    for _ in range(20):
        ours = client(model, *OPTIONS, *options, store=store, budget=BUDGET, settings=peers(peer.port, key))
        same(what, ours, "out", want)
        said = re.search("peers connected: they computed ([0-9]+) products", ours.stdout + ours.stderr)
        if not said or int(said[1]) > 0:
            break
    stats = peer.end()
    check(f"{what}: the peer computed some products", stats["vectors"] > 0, ours.stderr[-1500:])
    check(f"{what}: no message was wrong", (stats["bad"], stats["failed"]) == (0, 0), stats)


def ends(what, number, model, store, key):
    """The peer gets a signal after the first token."""
    peer = Peer(store, key)
    running = client(model, *OPTIONS, "--wait", store=store, budget=BUDGET, settings=peers(peer.port, key), start=True)
    begun = any(line == "begun\n" for line in iter(running.stdout.readline, ""))
    peer.process.send_signal(number)
    text = running.communicate("\n" * 3, timeout=PATIENCE)[0]
    check(f"{what}: runs", begun and running.returncode == 0, text[-1500:])
    differ = compare("out", "plain")
    check(f"{what}: the same logits, to the bit", differ == "", differ)
    peer.kill()


def main():
    need_plugin()
    folder, key, other = make_model("model", *SHAPE), make_key("key"), make_key("other", "ff" * 32)
    model, store = os.path.join(folder, "model.gguf"), make_store(folder)
    plain = client(model, *OPTIONS, plugin=None, name="plain")
    if plain.returncode == 77:
        skip(plain.stdout.strip().splitlines()[-1])
    check("llama.cpp by itself runs", plain.returncode == 0, plain.stderr[-1500:])
    computes("BF16", model, store, key, "plain")
    computes("BF16, two threads", model, store, key, "plain", "--threads", "2")
    computes("BF16, two contexts", model, store, key, "plain", "--contexts", "2")
    ends("killed", signal.SIGKILL, model, store, key)
    ends("stopped", signal.SIGSTOP, model, store, key)

    peer = Peer(store, key)
    ours = client(model, *OPTIONS, store=store, budget=BUDGET, settings=peers(peer.port, other))
    same("another key", ours, "out", "plain")
    stats = peer.end()
    check("another key: refused", stats["refused"] > 0 and stats["requests"] == 0, stats)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ours = client(model, *OPTIONS, store=store, budget=BUDGET, settings=peers(silent.getsockname()[1], key))
        same("a port that says nothing", ours, "out", "plain")
    for what, settings in (("no key", {"EXPERTFS_PEERS": "127.0.0.1:1"}), ("no address", peers("x", key))):
        ours = client(model, *OPTIONS, store=store, budget=BUDGET, settings=settings)
        same(what, ours, "out", "plain")
        check(f"{what}: said", "going on without peers" in ours.stderr, ours.stderr[-1500:])

    halves = make_model("halves", *SHAPE, "--dtype", "f16")
    model, store = os.path.join(halves, "model.gguf"), make_store(halves)
    alone = client(model, *OPTIONS, store=store, budget=BUDGET, name="alone")
    check("F16: runs alone", alone.returncode == 0, alone.stderr[-1500:])
    computes("F16", model, store, key, "alone")

    model = quantised(os.path.join(folder, "model.gguf"), "Q8_0")
    store = make_store(model)
    client(model, *OPTIONS, plugin=None, name="quantised")
    peer = Peer(store, key)
    same("Q8_0", client(model, *OPTIONS, store=store, budget="32M", settings=peers(peer.port, key)), "out", "quantised")
    stats = peer.end()
    check("Q8_0: nothing is sent", stats["connections"] > 0 and stats["requests"] == 0, stats)
    done()


if __name__ == "__main__":
    main()
