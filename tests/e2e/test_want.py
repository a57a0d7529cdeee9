# SPDX-License-Identifier: Apache-2.0
"""Requests: lines written to .expertfs/want; accepted ones, and refused ones, which have no effect. For permissions:
test_permissions.py."""
from e2e import *

need_fuse()
model, store = shared()
mount = Mount(store, "budget=128M")
WANT = mount / ".expertfs/want"


def write(text):
    file = os.open(WANT, os.O_WRONLY)
    try:
        return os.write(file, text if isinstance(text, bytes) else text.encode())
    finally:
        os.close(file)


def want_counts():
    return {name: int(number) for name, number in mount.fields("want").items() if name != "refused_last"}


def why():
    return mount.fields("want")["refused_last"]


def states():
    return {name: row["state"] for name, row in mount.table("experts").items()}


def quiet():
    return wait_until(lambda: mount.count("inflight") == 0)


print("-- the file")
check("its mode", os.stat(WANT).st_mode & 0o777 == 0o644)
check("access tells that it can be written", os.access(WANT, os.R_OK | os.W_OK) and not os.access(WANT, os.X_OK))
check("nothing was asked for yet", want_counts() == {"taken": 0, "refused": 0} and why() == "-", want_counts())

print("-- what is taken")
good = ["0: 0", "1: 3*2 4 5*17\n", "2:1\n", "0: 1\n1: 2*3\n2: 3 4\n", "\n\n0: 2\n \n", "L01: 6", "0:\t7*4294967295  1 \n",
        "".join(f"{n % 3}: {n % 8}*{n + 1}\n" for n in range(1000))]
for text in good:
    check(f"{text!r:.40}", write(text) == len(text))
check("they are counted", want_counts() == {"taken": len(good), "refused": 0} and mount.count("fuse_wants") == len(good), want_counts())
quiet()
there = states()
check("and brought into memory", all(there[name] != "M" for name in ("L00/E000", "L01/E003", "L01/E006", "L02/E001")), there)
for command in (f"echo 1: 1 >'{WANT}'", f"echo 1: 1 >>'{WANT}'", f"printf '1: 1\\n2: 2\\n' | tee '{WANT}'", f"cat <<<'0: 3' >'{WANT}'"):
    check(command.replace(mount.path, "MNT"), run("bash", "-c", command).returncode == 0)
taken = want_counts()["taken"]
file = os.open(WANT, os.O_RDWR)
check("many writes by one open, anywhere", all(os.pwrite(file, b"1: 2", offset) == 4 for offset in (0, 7, 1 << 40)) and
      os.writev(file, [b"1: ", b"4*2", b" 5\n"]) == 9 and want_counts()["taken"] == taken + 4, want_counts())
check("it stays empty", os.fstat(file).st_size == 0 and os.stat(WANT).st_size == 0, os.stat(WANT).st_size)
os.ftruncate(file, 0)
os.fsync(file)
os.close(file)

print("-- what is refused")
before, refused = states(), want_counts()["refused"]
taken = want_counts()["taken"]
long = "0: 1" + " " * 4093
bad = ["3: 0", "99: 0", "0: 8", "0: 1 99", "0", "0:", ": 1", "x", "0: 1*0", "0: 1 1", "0: -1", "1 2 3", "0: 1;2", "-1: 0", long,
       "encoder-L00: 1", "0: " + " ".join(map(str, range(600))), b"\0", b"\xff\xff", b"0: 1\0", "0: 1\n1: 2\n2: 99\n", "0: 1\nx\n0: 2",
       "0: 1\n" * 13200, "0: 99999999999999999999", b"\x80" * 70000]
for text in bad:
    printed = len(mount.log_text())
    check(f"{text!r:.40}: EINVAL", error_of(write, text) == "EINVAL")
check("they are counted", want_counts() == {"taken": taken, "refused": refused + len(bad)}, want_counts())
check("and nothing was asked for", quiet() and states() == before)
check("the answer has the reason", "LAYER: EXPERT*TOKENS" in os.getxattr(mount.path, "user.expertfs.answer").decode() or
      "at most 65536" in os.getxattr(mount.path, "user.expertfs.answer").decode(), os.getxattr(mount.path, "user.expertfs.answer"))
result = run("sh", "-c", f"echo foo >'{WANT}'")
check("what a shell wrote: the file has the reason", result.returncode and re.match(
    r'"foo": a request is LAYER: EXPERT\*TOKENS EXPERT ..., such as 3: 17\*12 4 9\*2, with', why()), why())
check("what is taken then changes nothing of it", write("0: 1") and why().startswith('"foo"'), why())
error_of(write, "0: 1 99")
check("of the last one", "no expert 99" in os.getxattr(mount.path, "user.expertfs.answer").decode(),
      os.getxattr(mount.path, "user.expertfs.answer"))
check("the log tells it", wait_until(lambda: "invalid request" in mount.log_text()))
lines = mount.log_text().count("invalid request")
check("the log is not flooded", lines <= len(bad), lines)
check("truncate to a size", error_of(os.truncate, WANT, 1) == "EROFS")
check("chmod, chown, utime, unlink, rename", [error_of(os.chmod, WANT, 0o666), error_of(os.chown, WANT, 1, 1),
      error_of(os.utime, WANT), error_of(os.unlink, WANT), error_of(os.rename, WANT, WANT + "x")] == ["EROFS"] * 5)
file = os.open(WANT, os.O_RDWR)
check("fallocate", error_of(os.posix_fallocate, file, 0, 10) == "EROFS")
os.close(file)
taken = want_counts()["taken"]
result = run(sys.executable, "-c", f"""
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
at = libc.mmap(None, 4096, 3, 1, os.open({WANT!r}, os.O_RDWR), 0)
ctypes.memmove(at, b"0: 1", 4)
""")
check("a mapping of it cannot be written to", result.returncode < 0 and want_counts()["taken"] == taken, result)

with open(WANT) as opened:
    check("an ioctl: ENOTTY", error_of(fcntl.ioctl, opened, 0x4210EF01, bytes(528)) == "ENOTTY")

print("-- many at once")
before, bad = want_counts(), []


def writer(number):
    for n in range(100):
        text = f"{n % 3}: {number}*{n + 1} {(number + 1) % 8}\n"
        if n % 10 == 9:
            text += "0: 88\n"
        got = error_of(write, text)
        if got != ("EINVAL" if n % 10 == 9 else "none"):
            bad.append((text, got))


in_threads(writer, range(8))
after = want_counts()
check("8 writers, each answered by itself", not bad and after["taken"] - before["taken"] == 720 and
      after["refused"] - before["refused"] == 80, (bad[:3], before, after))
quiet()
opens = {name: int(value) for name, value in mount.stat().items() if name.startswith("fuse_open")}
check("every open is counted once", sum(opens[f"fuse_{name}"] for name in ("opens_passthrough", "opens_direct",
      "opens_cached", "opens_control", "open_errors", "open_interrupts")) == opens["fuse_opens"] - 1, opens)
mount.unmount()
done()
