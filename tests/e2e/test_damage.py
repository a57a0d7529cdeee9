# SPDX-License-Identifier: Apache-2.0
"""One wrong byte in a store: a reader of the data that it belongs to gets an error, all other readers the correct
bytes, and none a wrong byte. Read in pieces, mapped, and as experts with and without passthrough."""
from e2e import *

need_fuse()
model, store = shared(MIXTRAL, "--shard-size", "16K")
source = contents(model)
size = os.path.getsize(store)
PIECE = 32768

experts = experts_without_passthrough(store)


MAPPED = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    begin, end = int(sys.argv[3]), int(sys.argv[3]) + int(sys.argv[4])
    seen = view[begin:end]
    sys.exit(3 if seen != open(sys.argv[2], "rb").read()[begin:end] else 0)
"""


def mapped(path, origin, offset, length):
    command = [sys.executable, "-c", MAPPED, path, origin, str(offset), str(length)]
    return subprocess.run(command, capture_output=True).returncode


generator = random.Random(7)
hurt = damaged = fallbacks = 0
for turn in range(16):
    at = generator.randrange(4096, size * 9 // 10)  # the index tables follow
    broken = scratch("broken.efs")
    shutil.copy(store, broken)
    flip(broken, at, 1 << generator.randrange(8))
    options = ("", "nopassthrough", "direct_io=off", "budget=64M")[turn % 4]
    mount = Mount(broken, options)
    right, refused, wrong = read_pieces(mount, {**source, **experts}, PIECE)
    wrong += [(name, offset) for name, offset in refused if offset is None]
    check(f"byte {at}, {options or 'no options'}: {len(refused)} of {right + len(refused)} pieces are refused, the others "
          f"right", not wrong and len(refused) < right // 3, wrong[:5])
    if refused and refused[0][0] in source:
        hurt += 1
        name, offset = refused[0]
        status = mapped(mount / name, f"{model}/{name}", offset, 4096)
        check("mapped, it is a bus error or right", status in (0, -signal.SIGBUS), status)
        stat = mount.stat()
        doctor = run(program("expertctl"), "doctor", mount.path)
        check("doctor tells of it", doctor.returncode == 1 and "WRONG   errors" in doctor.stdout and "verify" in doctor.stdout, doctor)
        damaged += stat["chunks_damaged"] != "0" and stat["read_errors"] != "0"
        fallbacks += int(stat["fuse_lease_fallbacks"])
    mount.unmount()
check(f"{hurt} of 16 bytes were in use, and each was counted as damage", hurt >= 8 and damaged == hurt, damaged)
note(f"{fallbacks} experts were opened without a lease")
done()
