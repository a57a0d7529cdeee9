# SPDX-License-Identifier: Apache-2.0
"""One wrong byte in a store: whoever reads what it touches gets an error, everybody else the right bytes, nobody a
wrong one. Read in pieces, mapped, and as experts with and without passthrough."""
from e2e import *

need_fuse()
model, store = shared(MIXTRAL, "--shard-size", "16K")
source = contents(model)
size = os.path.getsize(store)
PIECE = 32768

experts = experts_by_the_daemon(store)


def read_all(mount, want):
    """(pieces that were right, pieces that gave an error, [what was wrong])"""
    right, refused, wrong = 0, [], []
    for name, data in want.items():
        try:
            fd = os.open(mount / name, os.O_RDONLY)
        except OSError as error:
            wrong.append(f"open {name}: {error}")
            continue
        for offset in range(0, len(data), PIECE):
            end, at = min(offset + PIECE, len(data)), offset
            try:
                while at < end:  # the page cache may give the sound pages before it gives the error
                    piece = os.pread(fd, end - at, at)
                    if not piece or piece != data[at:at + len(piece)]:
                        wrong.append(f"{name} at {at}: {len(piece)} bytes, and wrong")
                        break
                    at += len(piece)
                right += at == end
            except OSError as error:
                refused.append((name, at))
                if error.errno not in (errno.EUCLEAN, errno.EIO):
                    wrong.append(f"{name} at {at}: {error}")
        os.close(fd)
    return right, refused, wrong


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
    at = generator.randrange(4096, size * 9 // 10)  # behind are the index tables
    broken = scratch("broken.efs")
    shutil.copy(store, broken)
    with open(broken, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ (1 << generator.randrange(8))]))
    options = ("", "nopassthrough", "direct_io=off", "budget=64M")[turn % 4]
    mount = Mount(broken, options)
    right, refused, wrong = read_all(mount, source)
    right2, refused2, wrong2 = read_all(mount, experts)
    pieces = right + right2 + len(refused) + len(refused2)
    check(f"byte {at}, {options or 'no options'}: {len(refused)} + {len(refused2)} of {pieces} pieces are refused, the "
          f"others right", not wrong + wrong2 and len(refused) + len(refused2) < pieces // 4, (wrong + wrong2)[:5])
    if refused:
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
