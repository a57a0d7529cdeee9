# SPDX-License-Identifier: Apache-2.0
"""tools/bench/run disk GB_PER_S COMMAND...: runs a command with its checkpoints (BENCH_DIR) on a disk of this rate.

The disk is an ext4 file system on a loop device over a file of --gib in /dev/shm, whose reads a cgroup limits (blkio.throttle, or io.max),
so that a figure does not depend on the disk of the machine. `tools/bench/run disk 0.5 tools/bench/run cold experts` measures cold reads;
the file takes memory as it is written. Needs root. Everything is removed in the end."""
import argparse
import os
import signal
import subprocess
import sys
import tempfile

from cgroup import limited_disk


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the disk is removed then, too
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=int, default=10)
    parser.add_argument("rate", type=float, help="GB/s of reads")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="expertfs-bench-", dir="/dev/shm") as folder:
        image, where = os.path.join(folder, "image"), os.path.join(folder, "disk")
        os.mkdir(where)
        with open(image, "wb") as file:
            file.truncate(given.gib << 30)
        subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", image], check=True)
        device = output("losetup", "--find", "--show", "--direct-io=on", image)
        group = limited_disk(output("lsblk", "-ndo", "MAJ:MIN", device), int(given.rate * 1e9))
        try:
            subprocess.run(["mount", device, where], check=True)
            code = subprocess.run([*group.prefix, *given.command], env={**os.environ, "BENCH_DIR": where}, check=False).returncode
        finally:  # a process that the command has left keeps the disk until it ends
            subprocess.run(["umount", "--lazy", where], check=False)
            subprocess.run(["losetup", "--detach", device], check=True)
            group.remove()
    sys.exit(code)


if __name__ == "__main__":
    main()
