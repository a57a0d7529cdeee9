# SPDX-License-Identifier: Apache-2.0
"""The chunk pool on the machine's memory nodes, on simulated ones, and without any: the same bytes, and config reports
their nodes."""
from e2e import *

need_fuse()
model, store = shared()
names = files_below(model)


def by_node(text):
    return {int(node): int(size) for node, size in re.findall(r"N(\d+)=(\d+)", text)}


def look(setting, kind, nodes):
    mount = Mount(store, "budget=128M", environment={"EXPERTFS_NUMA": setting})
    for _ in range(2):
        bad = [name for name in names if open(mount / name, "rb").read() != open(f"{model}/{name}", "rb").read()]
        check(f"{setting}: {len(names)} files are the same", not bad, bad)
    config, held = mount.config(), mount.count("chunk_pool_bytes")
    check(f"{setting}: it is {kind}", config["numa"] in kind, config["numa"])
    sizes, bound = by_node(config["numa_bytes"]), by_node(config["numa_bound_bytes"])
    if nodes:
        check(f"{setting}: {nodes} nodes", int(config["numa_nodes"]) == nodes == len(sizes), config["numa_bytes"])
    check(f"{setting}: the nodes hold the chunk pool", sum(sizes.values()) == held > 0, f"{sizes}, {held}")
    check(f"{setting}: they hold equal shares", nodes is None or max(sizes.values()) - min(sizes.values()) <= 8 << 20,
          config["numa_bytes"])
    if config["numa"] == "libnuma":
        check(f"{setting}: what is not bound has a reason", bound == sizes or config["numa_reason"] != "-", config)
    else:
        check(f"{setting}: nothing is bound, nor was it to be", not any(bound.values()) and config["numa_reason"] == "-",
              config)
    populated, huge = int(config["populated_bytes"]), config["huge_bytes"]
    check(f"{setting}: pages: {populated} bytes, huge: {huge}",
          populated <= held and (huge == "unknown" or int(huge) <= populated), held)
    mount.unmount(f"{setting}: umount")


look("", ("libnuma", "none"), None)
look("fake:2", ("mock",), 2)
look("fake:4", ("mock",), 4)
look("off", ("none",), 1)
done()
