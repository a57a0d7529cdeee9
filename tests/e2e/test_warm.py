# SPDX-License-Identifier: Apache-2.0
"""A mount with prefetch that has memory for all experts: they are in memory before any request, as packed, within the
budget; and a mount that is ended meanwhile ends normally."""
from e2e import *

need_fuse()
model, store = shared()


def rests(mount):
    """Waits until no read is in flight and the disk was idle for 0.5 s."""
    before, since = -1, time.monotonic()
    while time.monotonic() - since < 0.5:
        stat = mount.stat()
        if stat["disk_reads"] != before or int(stat["inflight"]):
            before, since = stat["disk_reads"], time.monotonic()
        time.sleep(0.02)


mount = Mount(store, "nostate,prefetch=auto,budget=1G")
check("extents come with nobody request_maker", wait_until(lambda: mount.count("warmed_extents") > 0))
rests(mount)
bytes_before = mount.count("disk_bytes")
experts = mount.experts()
check("there are experts", len(experts) > 8, len(experts))
tensors = tensors_of(model)
bad = []
for name in experts:
    with open(mount / name, "rb") as file:
        data = file.read()
    header, at = safetensors_header(data)
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            begin, end = entry["data_offsets"]
            if data[at + begin:at + end] != tensors[tensor]:
                bad.append(tensor)
check("experts are the checkpoint's", not bad, bad[:3])
check("none of them was read from the disk again", mount.count("disk_bytes") == bytes_before)
mount.check_budget()
mount.unmount()

for pause in (0, 0.02, 0.1):
    mount = Mount(store, "nostate,prefetch=auto,budget=1G")
    time.sleep(pause)
    mount.stop(f"SIGTERM after {pause} s")

mount = Mount(store, "nostate,budget=1G")
rests(mount)
check("without prefetch nothing comes", mount.count("warmed_extents") == 0)
mount.unmount()
done()
