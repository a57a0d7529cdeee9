# SPDX-License-Identifier: Apache-2.0
"""A local copy (options local and local-size) of a store on a filesystem that fails (quirkfs.c) and of a checkpoint in
place: the bytes that were read before come from the copy, also when the store cannot be read; the copy stays within its
size; damage, kills, a second mount and a full disk never change a byte. Kills while it fills: engine/test_local."""
from e2e import *
from http_server import Server

need_fuse()
if os.geteuid():
    skip("quirkfs is mounted by root")
quirkfs_program = program("tests/e2e/quirkfs")
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "4", "--vocab", "4000")
store = make_store(model)
source = contents(model)
store_bytes = os.path.getsize(store)
below, quirk_path = scratch("below"), scratch("quirkfs")
os.mkdir(below)
os.mkdir(quirk_path)
shutil.copy(store, below)
shutil.copytree(model, f"{below}/model")
quirkfs = subprocess.Popen([quirkfs_program, below, quirk_path, f"read={errno.EIO}"])


def end():
    if is_mounted(quirk_path):
        run("umount", "-l", quirk_path)
    quirkfs.wait(PATIENCE)


atexit.register(end)
if not wait_until(lambda: is_mounted(quirk_path) or quirkfs.poll() is not None) or quirkfs.poll() is not None:
    skip("quirkfs was not mounted")
remote = f"{quirk_path}/{os.path.basename(store)}"
local = scratch("local")
room = 2 * store_bytes + (16 << 20)  # more than the store
BUDGET = "budget=64M,nopassthrough,warm=off,direct_io=on,nostate,prefetch=off"


def serve(path, size, folder=local):
    return Mount(path, f"{BUDGET},local={folder},local-size={size}")


def fail(failing):
    """The filesystem of the store fails from now on, or no more."""
    quirkfs.send_signal(signal.SIGUSR1 if failing else signal.SIGUSR2)
    wait_until(lambda: not re.search("^(ShdPnd|SigPnd):.*[1-9a-f]", open(f"/proc/{quirkfs.pid}/status").read(), re.M))
    for name in files_below(quirk_path):
        forget_pages(f"{quirk_path}/{name}")


def wrong(mount):
    return [name for name, data in source.items() if open(mount / name, "rb").read() != data]


def remote_bytes(mount):
    stat = mount.numbers()
    return stat["disk_bytes"] - stat["local_bytes"]


def copy_of(folder=local):
    return next(f"{folder}/{name}" for name in os.listdir(folder) if not name.endswith(".map"))


def fill(mount):
    result = run(program("expertctl"), "warmup", "--local", mount.path)
    check("warmup --local fills the copy", result.returncode == 0 and "the local copy has" in result.stdout and
          mount.count("local_held_bytes") == -(-store_bytes // 4096) * 4096, (result, mount.numbers()))
    check("local_fill is off again", mount.config()["local_fill"] == "off")


def warmup_local(mount):
    """The result of warmup --local; its status is 124 if it did not end."""
    return run("timeout", "-k", "5", PATIENCE // 2, program("expertctl"), "warmup", "--local", mount.path)


def is_a_problem(what, mount, text):
    status = run(program("expertctl"), "status", mount.path).stdout
    check(f"{what}: is a problem of status", re.search(f"^problems [^$]*{text}", status, re.M), status)
    return status


def evict(mount):
    """A smaller budget evicts a part of what the mount holds."""
    os.setxattr(mount.path, "user.expertfs.budget", b"40M")
    os.setxattr(mount.path, "user.expertfs.budget", b"64M")


print("-- everything finds room")
mount = serve(remote, room)
check("the tables are copied at once", wait_until(lambda: mount.count("local_held_bytes") > 0) and
      open(copy_of(), "rb").read(4096) == open(store, "rb").read(4096), mount.numbers())
check("the files are the files", not wrong(mount))
evict(mount)
check("the files are the files", not wrong(mount))
check("written is held", wait_until(lambda: mount.count("local_written_bytes") == mount.count("local_held_bytes") > 0), mount.numbers())
stat = mount.numbers()
check("nothing evicted or damaged", stat["local_evicted_bytes"] == 0 and stat["local_damaged"] == 0 and
      stat["disk_bytes"] >= stat["local_bytes"], stat)
check("config", mount.config()["local"] == local and int(mount.config()["local_limit_bytes"]) == room)
fill(mount)
status = run(program("expertctl"), "status", mount.path).stdout
check("status: a line about it", re.search(r"^local +\S+ .* used; of what memory lacked ", status, re.M), status)
mount.unmount()
check("a complete copy is the store", open(copy_of(), "rb").read() == open(store, "rb").read())
check("it can be verified", run(program("expertctl"), "verify", copy_of()).returncode == 0)

print("-- after a mount the store's file system fails")
mount = serve(remote, room)
fail(True)
check("all files come from the copy", not wrong(mount))
check("no byte of the store was read", remote_bytes(mount) == 0, mount.numbers())
check("no error", mount.count("disk_errors") == 0 and mount.count("read_errors") == 0)
fail(False)
mount.unmount()

print("-- damage: pages of the copy and entries of its map")
for path in (copy_of(), copy_of() + ".map"):
    for i in range(20):
        flip(path, 8192 + i * (os.path.getsize(path) - 16384) // 20)
mount = serve(remote, room)
check("the files are the files", not wrong(mount))
check("the damage was found, and no chunk was wrong", mount.count("local_damaged") > 0 and mount.count("chunks_damaged") == 0,
      mount.numbers())
fill(mount)

print("-- a second mount only reads")
second = serve(remote, room)
check("it says so", "only reads it" in second.log_text(), second.log_text())
check("the files are the files, from the copy", not wrong(second) and remote_bytes(second) == 0, second.numbers())
check("a complete copy is no problem of it", warmup_local(second).returncode == 0 and
      "only reads it" not in run(program("expertctl"), "status", second.path).stdout)
second.unmount()
mount.unmount()
part = scratch("part")
mount, second = serve(remote, room, part), serve(remote, room, part)
result = warmup_local(second)
check("warmup --local of one that cannot write ends with 1 and the reason", result.returncode == 1 and
      re.search(r"the local copy has .* of .*: another process writes the local copy", result.stderr), result)
is_a_problem("a copy that another process writes", second, "another process writes the local copy")
fill(mount)
check("when the other has filled it, it has all", warmup_local(second).returncode == 0)
second.unmount()
mount.unmount()

print("-- the store cannot be read while it fills")
shutil.rmtree(part)
mount = serve(remote, room, part)
wait_until(lambda: mount.count("local_held_bytes") > 0)
fail(True)
result = warmup_local(mount)
check("warmup --local ends with 1 and the reason", result.returncode == 1 and
      "cannot read the store: Input/output error" in result.stderr, result)
is_a_problem("a store that cannot be read", mount, "cannot read the store")
fail(False)
fill(mount)
mount.unmount()

print("-- a copy that is smaller than the store, four readers, kills")
small = scratch("small")
least = 8 << 20
size = max(store_bytes * 6 // 10, least + (1 << 20))
for _ in range(2):
    mount = serve(remote, size, small)
    had = mount.count("local_held_bytes")
    readers = [subprocess.Popen(["sh", "-c", 'for i in 1 2; do cat "$0"/*.safetensors | md5sum; done', mount.path],
                                stdout=subprocess.PIPE) for _ in range(4)]
    sums = {line for reader in readers for line in reader.communicate()[0].split(b"\n") if line}
    check("the readers get the same bytes", len(sums) == 1, sums)
    check("the files are the files", not wrong(mount))
    stat = mount.numbers()
    check("the copy stays within its size", stat["local_held_bytes"] <= size and
          os.stat(copy_of(small)).st_blocks * 512 <= size + (1 << 20), (stat["local_held_bytes"], os.stat(copy_of(small)), size))
    check("some reads came from it, if it had something", (stat["local_bytes"] > 0 or had == 0) and stat["local_damaged"] == 0, stat)
    mount.kill()
    mount.abandon()

print("-- a store on an HTTP server, which ends after the mount")
server = Server({"/model.efs": open(store, "rb").read()})
mount = Mount(server.url + "/model.efs", f"{BUDGET},local={local},local-size={room}")
if mount.ready:
    server.close()
    check("all files come from the copy", not wrong(mount) and remote_bytes(mount) == 0, mount.numbers())
    mount.unmount()

print("-- folders and names that cannot be used")
file, mixed, full = scratch("file"), scratch("mixed"), scratch("full")
open(file, "w").close()
other = make_store(make_model("other", "-F", "qwen3-moe", "-d", "256", "-i", "256", "-e", "8", "-l", "2", "--vocab", "500"))
serve(other, 64 << 20, mixed).unmount()
was, name = copy_of(mixed), os.path.basename(copy_of())
os.rename(was, f"{mixed}/{name}")
os.rename(was + ".map", f"{mixed}/{name}.map")
for what, folder, limit, text in (("a file in place of the folder", file, size, "cannot open the folder"),
                                  ("another store's copy", mixed, size, "a local copy of another source"),
                                  ("a size that is too small", scratch("tiny"), 1 << 20, "below the minimum")):
    mount = serve(remote, limit, folder)
    check(f"{what}: one warning", mount.log_text().count(text) == 1 and "without a local copy" in mount.log_text(), mount.log_text())
    check(f"{what}: the files are the files", not wrong(mount) and mount.count("local_written_bytes") == 0)
    result = warmup_local(mount)
    check(f"{what}: warmup --local is refused, with the reason", result.returncode == 1 and
          "local_fill=on needs a local copy" in result.stderr and text in result.stderr, result)
    status = is_a_problem(what, mount, text)
    check(f"{what}: status: no copy", re.search("^local +no copy$", status, re.M), status)
    check(f"{what}: local_fill is off", mount.config()["local_fill"] == "off")
    mount.unmount()
for words, text in (("local=x", "option local needs option local-size=SIZE"), ("local-size=1G", "option local-size needs option local=DIR"),
                    ("local=x,local-size=much", "not a size")):
    result = run(program("expertfs"), "-o", words, store, scratch("mnt"))
    check(f"{words}: is refused with 2", result.returncode == 2 and text in result.stderr, result)

print("-- a full local disk")
os.mkdir(full)
if run("mount", "-t", "tmpfs", "-o", "size=6M", "tmpfs", full).returncode == 0:
    atexit.register(lambda: run("umount", "-l", full))
    run("dd", "if=/dev/zero", f"of={full}/ballast", "bs=4k")
    mount = Mount(remote, f"{BUDGET},local={full},local-size={size},local_fill=on")
    result = warmup_local(mount)
    check("no room for the map: warmup --local is refused, with the reason", result.returncode == 1 and
          "No space left on device" in result.stderr and mount.config()["local_fill"] == "off", result)
    is_a_problem("no room for the map", mount, "No space left on device")
    mount.unmount()
    os.remove(f"{full}/ballast")
    mount = serve(remote, size, full)
    check("the files are the files", not wrong(mount) and not wrong(mount))
    check("one warning", wait_until(lambda: "No space left on device" in mount.log_text()) and
          mount.log_text().count("No space left on device") == 1, mount.log_text())
    check("what is there is read", not wrong(mount) and mount.count("local_bytes") > 0 and mount.count("disk_errors") == 0, mount.numbers())
    result = warmup_local(mount)
    check("warmup --local ends with 1 and the reason", result.returncode == 1 and
          re.search(r"the local copy has .* of .*No space left on device", result.stderr), result)
    is_a_problem("a full disk", mount, "No space left on device")
    mount.unmount()
    run("umount", full)
else:
    note("left out: a tmpfs cannot be mounted")

print("-- a folder on a read-only mount")
frozen = scratch("frozen")
os.mkdir(frozen)
if run("mount", "--bind", local, frozen).returncode == 0:
    atexit.register(lambda: run("umount", "-l", frozen))
    run("mount", "-o", "remount,ro,bind", frozen)
    mount = serve(remote, room, frozen)
    check("the reason is the true one", re.search("cannot write the local copy: Read-only file system", mount.log_text()) and
          "another process" not in mount.log_text(), mount.log_text())
    check("the files are the files, from the copy", not wrong(mount) and mount.count("local_bytes") > 0, mount.numbers())
    mount.unmount()
    mount = serve(other, 64 << 20, frozen)
    check("one that has no copy yet: one warning", "cannot open: Read-only file system" in mount.log_text(), mount.log_text())
    mount.unmount()
    run("umount", frozen)
else:
    note("left out: a bind mount cannot be made")

print("-- a checkpoint in place, on a filesystem without a known change time")
place = scratch("place")
mount = serve(f"{quirk_path}/model", 2 * store_bytes + (64 << 20), place)
check("one warning, with the way out", mount.log_text().count("does not record each change") == 1 and
      f"hint: pack it: mkexpertfs {quirk_path}/model STORE" in mount.log_text(), mount.log_text())
check("the files are the files, without a copy", not wrong(mount) and mount.count("local_written_bytes") == 0 and
      not os.path.exists(place), mount.numbers())
mount.unmount()

print("-- a checkpoint in place, whose files change")
on_disk = tempfile.mkdtemp(prefix="expertfs-e2e-", dir="/var/tmp")
atexit.register(shutil.rmtree, on_disk, ignore_errors=True)
kind = run("stat", "-f", "-c", "%T", on_disk).stdout.strip()
if kind in ("ext2/ext3", "xfs", "btrfs", "f2fs", "zfs", "bcachefs"):
    shutil.copytree(model, f"{on_disk}/model")
    big = max((name for name in source if name.endswith(".safetensors")), key=lambda name: len(source[name]))
    path = f"{on_disk}/model/{big}"
    os.utime(path, (1577836800, 1577836800))
    mount = serve(f"{on_disk}/model", 2 * store_bytes + (64 << 20), place)
    fill_result = run(program("expertctl"), "warmup", "--local", mount.path)
    check("the copy gets all of it", fill_result.returncode == 0, fill_result)
    mount.unmount()
    mount = serve(f"{on_disk}/model", 2 * store_bytes + (64 << 20), place)
    check("the files are the files", not wrong(mount))
    check("some reads came from the copy", mount.count("local_bytes") > 0, mount.numbers())
    mount.unmount()
    flip(path, len(source[big]) - 100)
    source[big] = open(path, "rb").read()
    os.utime(path, (1577836800, 1577836800))
    mount = serve(f"{on_disk}/model", 2 * store_bytes + (64 << 20), place)
    check("one that was written to has another copy, with the same modification time, too: its new bytes are served", not wrong(mount), wrong(mount))
    mount.unmount()
else:
    note(f"left out: /var/tmp is {kind}, without a known change time")
done()
