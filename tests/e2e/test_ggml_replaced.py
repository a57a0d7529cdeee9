#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A mount is replaced at its path by one of another model of the same names and shapes, while a program maps a file of
the former one: between mapping the file and asking the backend, and between that and the first row of a table. Inode
numbers of both mounts are the same. Two file systems with files of one inode number and time are two models, too, and a
file whose times do not say that it changed."""
from e2e import *
from test_ggml import PLUGIN, PYTHON, client, need_plugin, plugin_environment, same
from test_ggml_identity import reader
from test_ggml_rows import CLIENT

PROMPTS = ("--prompts", "7", "--no-repack")


def unmount(mount):
    run("umount", "-l", mount.path) if os.geteuid() == 0 else run("fusermount3", "-u", "-z", mount.path)


def replace(mount, other, over):
    """Mounts `other` on the path of a mount that is in use, or over it, where /proc/PID/maps still has the path. Returns
    the daemon."""
    if not over:
        unmount(mount)
    daemon = subprocess.Popen([program("expertfs"), "-f", "-o", "budget=64M,nonempty", other, mount.path], stderr=subprocess.DEVNULL)
    device = os.stat(os.path.dirname(mount.path)).st_dev if not over else os.stat(mount.path).st_dev
    if not wait_until(lambda: os.stat(mount.path).st_dev != device):
        check("the other model is mounted", False, daemon.poll())
    return daemon


def tables(at, over, first, other):
    mount = Mount(first, "budget=64M")
    child = subprocess.Popen([PYTHON, CLIENT, "run", mount / "model.gguf", PLUGIN, at], env=plugin_environment(None),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not check(f"{at}: the program waits", child.stdout.readline() == f"{at}\n", child.poll()):
        print(child.communicate()[1][-1500:])
        return
    daemon = replace(mount, other, over)
    out, err = child.communicate("\n", timeout=PATIENCE)
    check(f"{at}, over {over}: no row of the other model", re.search(r"left: (\d+)\ncompared: 12, wrong: \1\n", out), out + err[-1500:])
    unmount(mount)
    daemon.wait()
    mount.abandon()


def file_systems(first, other):
    """The backend has seen the first model served in place; then EXPERTFS_STORE names the other one, of equal inode
    number and times, and the program maps the first one again."""
    places = [scratch(name) for name in ("first-fs", "other-fs")]
    for place, model in zip(places, (first, other)):
        os.makedirs(place)
        if run("mount", "-t", "tmpfs", "none", place).returncode:
            note("left out: mounting needs root")
            return
        atexit.register(run, "umount", "-l", place)
        shutil.copyfile(model, f"{place}/model.gguf")
        os.utime(f"{place}/model.gguf", (1, 1))
    files = [f"{place}/model.gguf" for place in places]
    check("both have one inode number", os.stat(files[0]).st_ino == os.stat(files[1]).st_ino)
    time.sleep(3.1)  # changed less than two seconds ago: nothing is remembered
    check("llama.cpp by itself runs the first", client(files[0], *PROMPTS, plugin=None, name="plain").returncode == 0)
    same("the first file system", client(files[0], *PROMPTS, store=files[0]), "out", "plain")
    same("the other one is named", client(files[0], *PROMPTS, store=files[1]), "out", "plain", taken=False)


def written_through_mapping(model):
    """A copy in a tmpfs is compared with the store, then changed through a mapping, which leaves its times there."""
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="expertfs-e2e-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    store, copy, prompts = make_store(model), f"{folder}/model.gguf", ("--prompts", "7,40", "--no-repack")
    shutil.copyfile(model, copy)
    os.utime(copy, (1, 1))
    time.sleep(3.1)
    check("llama.cpp by itself runs the copy", client(copy, *prompts, plugin=None, name="plain").returncode == 0)
    same("a copy in a tmpfs", client(copy, *prompts, store=store), "out", "plain")
    offset, size, experts = reader(model)["blk.2.ffn_gate_exps.weight"]
    before, row = os.stat(copy), 512 * 2
    with open(copy, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        for expert in range(experts):
            at = offset + expert * (size // experts)
            pages[at:at + 2 * row] = pages[at + row:at + 2 * row] + pages[at:at + row]
    note(f"its times stay: {os.stat(copy) == before}")
    check("llama.cpp by itself runs the changed copy", client(copy, *prompts, plugin=None, name="plain").returncode == 0)
    ours = client(copy, *prompts, store=store)
    same("a copy changed through a mapping", ours, "out", "plain")
    check("the changed tensor is left", re.findall(r"(\S+) is left to the processor", ours.stderr) == ["blk.2.ffn_gate_exps.weight"])


def main():
    need_plugin()
    if SANITIZED:
        skip("Python and llama.cpp have no sanitizer in them")
    folders = []
    for seed in ("1", "2"):
        folders.append(scratch(f"rows-{seed}"))
        os.makedirs(folders[-1])
        made = run(PYTHON, CLIENT, "make", f"{folders[-1]}/model.gguf", seed)
        if made.returncode == 77:
            skip(made.stdout.strip())
        check(f"tables {seed} are made", made.returncode == 0, made.stderr[-1000:])
    if os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3")):
        for at in ("mapped", "placed"):
            for over in (False, True):
                tables(at, over, *folders)
    else:
        note("left out: a mount needs /dev/fuse, and root or fusermount3")
    shape = ("-F", "qwen3-moe", "-d", "512", "-i", "512", "-e", "16", "-l", "3", "--vocab", "500", "--format=gguf")
    models = [os.path.join(make_model(f"model-{seed}", *shape, "--seed", seed), "model.gguf") for seed in ("1", "2")]
    file_systems(*models)
    written_through_mapping(models[0])
    done()


if __name__ == "__main__":
    main()
