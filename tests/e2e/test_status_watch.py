# SPDX-License-Identifier: Apache-2.0
"""expertctl status -w and log -f end with 0 on Ctrl-C and when the mount is unmounted, and with 1 when its daemon is killed."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
_, store = shared(NARROW)
mount = Mount(store)


process = subprocess.Popen([expertctl, "status", "-w", "1", mount.path], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
process.send_signal(signal.SIGINT)
said = process.communicate(timeout=PATIENCE)[0]
check("Ctrl-C ends it with 0", process.returncode == 0, (process.returncode, said))
mount.stop()

print("-- the mount goes down")
for at, lazy in ((scratch("below"), False), (scratch("kept"), True)):
    os.makedirs(at, exist_ok=True)
    check("mounted", run(expertctl, "up", "-o", "budget=64M", store, at).returncode == 0)
    watching = [subprocess.Popen([expertctl, *words, at], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                for words in (("log", "-f"), ("status", "-w", "1"))]
    for process in watching:
        process.stdout.readline()
    if lazy:
        run("umount", "-l", at)
    else:  # a watcher may have a file open
        wait_until(lambda: run(expertctl, "down", at).returncode == 0)
    for process, what in zip(watching, ("log -f", "status -w")):
        said = process.communicate(timeout=PATIENCE)
        check(f"{what}: said, 0", process.returncode == 0 and said[1] == f"expertctl: {at} was unmounted\n", (process.returncode, said))
at = Mount(store)
watching = [subprocess.Popen([expertctl, *words, at.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for words in (("log", "-f"), ("status", "-w", "1"))]
for process in watching:
    process.stdout.readline()
os.kill(int(re.search(r"^pid: (\d+)", open(at / ".expertfs/config").read(), re.M)[1]), signal.SIGKILL)
for process in watching:
    said = process.communicate(timeout=PATIENCE)
    check("its daemon is killed: a failure", process.returncode == 1 and "has ended" in said[1], (process.returncode, said))
run("umount", "-l", at.path)
done()
