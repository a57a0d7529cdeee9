# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with their own experts/ or .expertfs/, or with experts of more than 64 tensors: all experts are available
to requests, settings and clients, and a file of the checkpoint is never mistaken for an expert."""
from e2e import *

need_fuse()
import library_client

generator = random.Random(38)


def safetensors(tensors):
    """The bytes of a file of BF16 tensors: name -> bytes."""
    header, at = {}, 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(tensors.values())


def checkpoint(name, per_expert, own):
    """A model of 2 layers of 3 experts in a folder, with the additional files of `own`, packed: (tensors, store)."""
    tensors = {"model.norm.weight": generator.randbytes(258)}
    for layer in range(2):
        for expert in range(3):
            for part in range(per_expert):
                tensors[f"model.layers.{layer}.mlp.experts.{expert}.w{part}.weight"] = generator.randbytes(2048)
    for path, data in {"model.safetensors": safetensors(tensors), "config.json": b"{}", **own}.items():
        os.makedirs(os.path.dirname(scratch(f"{name}/{path}")), exist_ok=True)
        with open(scratch(f"{name}/{path}"), "wb") as file:
            file.write(data)
    return tensors, make_store(scratch(name))


def serve(what, store, tensors, options, shown):
    mount = Mount(store, options)
    folder = store.removesuffix(".efs")
    check(f"{what}: the checkpoint's files", all(open(mount / name, "rb").read() == open(f"{folder}/{name}", "rb").read()
                                                  for name in files_below(folder)))
    if os.path.exists(f"{folder}/.expertfs"):
        # a client does not take it for a mount: it serves the files itself, as those of any checkpoint
        client = library_client.Client(mount, tensors)
        check(f"{what}: a client gets its experts from the files", client.ask(1, [0, 2]) == [])
        client.close()
        # the kernel releases the files of a closed io_uring a little later
        check(f"{what}, {options}: it is unmounted", wait_until(lambda: run("umount", mount.path).returncode == 0))
        mount.check_exit(f"{what}, {options}: it has an .expertfs of its own")
        return
    check(f"{what}: view_hidden", mount.config()["view_hidden"] == ("no" if shown else "yes"), mount.config()["view_hidden"])
    with open(mount / ".expertfs/want", "w") as want:
        want.write("0: 0 1 2\n1: 2*9\n")
    for name, value in (("policy", "lru"), ("plan", "F=50:C=50"), ("budget", "64M"), ("budget", "128M")):
        os.setxattr(mount.path, f"user.expertfs.{name}", value.encode())
    wait_until(lambda: mount.count("inflight") == 0)
    client = library_client.Client(mount, {name: data for name, data in tensors.items() if ".experts." in name})
    bad = sum((client.ask(layer, [0, 1, 2]) for layer in (0, 1, 0)), [])
    check(f"{what}, {options}: a client gets every expert, by the socket", not bad, bad)
    client.close()
    if shown:
        read = {}
        for layer in range(2):
            read.update(tensors_of(mount / f"experts/L{layer:02}"))
        check(f"{what}: the experts' files", read == {name: data for name, data in tensors.items() if ".experts." in name})
    mount.unmount(f"{what}, {options}")


stranger = safetensors({"other.weight": generator.randbytes(2048)})
for what, per_expert, own in (
        ("its own experts/", 3, {"experts/notes.txt": b"not ours"}),
        ("files named as experts", 3, {f"experts/L0{layer}/E00{expert}.safetensors": stranger for layer in range(2) for expert in range(3)}),
        ("a file called experts", 3, {"experts": b"a file"}),
        ("its own .expertfs/", 3, {".expertfs/version": b"version: 0.1.0\n", ".expertfs/want": b""}),
        ("65 tensors an expert", 65, {}),
        ("300 tensors an expert, its own experts/", 300, {"experts/notes.txt": b"not ours"})):
    tensors, store = checkpoint(what.replace("/", "").replace(" ", "-"), per_expert, own)
    for options in ("budget=128M", "budget=128M,nopassthrough"):
        serve(what, store, tensors, options, not own)
done()
