# SPDX-License-Identifier: Apache-2.0
"""Every file is read back byte for byte: whole, and by many concurrent readers of all kinds; with each way of serving
and with little memory."""
import reader_processes
from e2e import *

need_fuse()
model, store = shared()
source, tensors = contents(model), experts_of(model)
folder = scratch("copies")
os.mkdir(folder)


def same_files(mount):
    bad = [name for name, data in source.items() if open(mount / name, "rb").read() != data]
    check(f"{len(source)} files are the same", not bad, bad)
    bad = [name for name, data in source.items() if os.stat(mount / name).st_size != len(data)]
    check("their sizes are the same", not bad, bad)


def same_experts(mount):
    """The experts' files, after a comparison of their tensors with the checkpoint."""
    files, seen, bad = {name: open(mount / name, "rb").read() for name in mount.experts()}, {}, []
    for name, data in files.items():
        header, base = safetensors_header(data)
        if base % 4096:
            bad.append(f"{name}: data at {base}")
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            seen[tensor] = data[base + begin:base + end]
    check(f"{len(seen)} tensors below experts/ are the same", not bad and seen == tensors, bad)
    return files


for options in ("", "nopassthrough", "direct_io=off", "nopassthrough,direct_io=off", "workers=1", "budget=64M",
                "budget=64M,nopassthrough"):
    print(f"-- options: {options or 'none'}")
    mount = Mount(store, options)
    note(f"{mount.config()['serving_path']}: {mount.config()['serving_reason']}")
    same_files(mount)
    want = {name: data for name, data in {**source, **same_experts(mount)}.items() if data}
    problems = reader_processes.each_kind(mount, want, folder)
    check(f"12 readers of {len(reader_processes.KINDS)} kinds at once see the same bytes", not problems, problems[:5])
    same_files(mount)
    stat = mount.stat()
    errors = {name: stat[name] for name in ("read_errors", "fuse_reply_errors", "lease_errors", "disk_errors",
                                            "chunks_damaged") if stat[name] != "0"}
    check("no errors were counted", not errors, errors)
    mount.unmount()
done()
