# SPDX-License-Identifier: Apache-2.0
"""Runs every command of expertfs-guide(7) as printed, in a separate mount namespace where /srv is a scratch folder and
files written to /etc go to another one. Commands whose packages are not installed are noted and skipped."""
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

need_fuse()
if os.geteuid() or run("unshare", "-m", "true").returncode:
    skip("needs root and unshare -m, for a namespace with a /srv of its own")
if not shutil.which("fusermount3"):
    skip("fusermount3 is not installed")

page = open(os.path.join(ROOT, "man", "expertfs-guide.7")).read()
commands = []
for block in re.findall(r"^\.Bd -literal[^\n]*\n(.*?)^\.Ed$", page, re.M | re.S):
    for line in block.splitlines():
        if line.startswith("$ "):
            commands.append(line[2:])
        elif commands and block.startswith("$ "):
            commands[-1] += "\n" + line
check("the guide has its commands", len(commands) > 25, commands)
inline = re.findall(r"^\.[PQ]q? ?Q?l?.*\b((?:expertfs|mkexpertfs|expertctl|moe-replay) .*/srv.*)$", page, re.M)
check("commands stand in displays, where they are run", not inline, inline)

os.environ["EXPERTFS_STATE"] = scratch("state")
srv, etc = scratch("srv"), scratch("etc")
for name in (srv, etc, scratch("work"), scratch("bin"), scratch("sbin")):
    os.makedirs(name)
os.symlink(program("expertfs"), scratch("sbin/mount.expertfs"))
os.rename(make_model("model", "--preset=tiny-qwen3-moe"), f"{srv}/model")
gguf = make_model("gguf", "--preset=tiny-qwen3-moe", "--format=gguf")
os.rename(f"{gguf}/model.gguf", f"{srv}/model.gguf")

# Programs by name: those of this tree, python with the runtimes, and a systemctl that runs the unit's commands.
for name in ("expertfs", "mkexpertfs", "expertctl"):
    os.symlink(program(name), scratch(f"bin/{name}"))
python = os.environ.get("PYTHON", sys.executable)
with open(scratch("bin/python3"), "w") as file:
    file.write(f'#!/bin/sh\nexec "{python}" "$@"\n')
unit = open(os.path.join(ROOT, "tools", "packaging", "expertfs@.service.in")).read()
before, start = (re.search(rf"^{name}=(.*)$", unit, re.M).group(1).replace("@BINDIR@", scratch("bin"))
                 for name in ("ExecStartPre", "ExecStart"))
with open(scratch("bin/systemctl"), "w") as file:
    file.write(f"""#!/bin/sh
# what systemd does of the unit, for a machine where it does not run
set -e
for unit; do :; done
name=${{unit#expertfs@}} OPTIONS=rw
. /etc/expertfs/"$name".conf
case $1 in
enable) {before.removeprefix("-")} && {start} ;;
stop) fusermount3 -u "$MOUNTPOINT" ;;
*) echo "systemctl $1 is not known here" >&2; exit 2 ;;
esac
""")
for name in ("python3", "systemctl"):
    os.chmod(scratch(f"bin/{name}"), 0o755)
os.environ["PATH"] = scratch("bin") + ":" + os.environ["PATH"]

NEEDS = {"from transformers": "torch, transformers", "from mlx_lm": "mlx_lm", "from llama_cpp": "llama_cpp"}
script = [f"mount --make-rprivate / && mount --bind '{srv}' /srv", "set -e",
          f"mount -t overlay overlay -o lowerdir=/etc,upperdir='{etc}',workdir='{scratch('work')}' /etc || exit 77",
          # mount(8) looks for the program of a type in the system's folders only
          f"mount -t overlay overlay -o lowerdir='{scratch('bin')}':/usr/local/bin /usr/local/bin || exit 77",
          f"mount -t overlay overlay -o lowerdir='{scratch('sbin')}':/sbin /sbin || exit 77",
          "gone() { for n in $(seq 4800); do mountpoint -q \"$1\" || return 0; sleep 0.05; done; echo \"$1 stays\"; return 1; }"]
left_out = []
for number, command in enumerate(commands):
    needed = next((NEEDS[words] for words in NEEDS if words in command), None)
    if needed and run(python, "-c", f"import {needed}").returncode:
        left_out.append(f"{needed}: not installed for {python}")
        continue
    script.append(f"echo '== {number}'\n{command}")
    if re.match(r"(fusermount3 -u|umount|systemctl stop|expertctl down)", command):
        script.append(f"gone {'/srv/gguf' if 'gguf' in command else '/srv/mnt'}")
with open(scratch("script"), "w") as file:
    file.write("\n".join(script) + "\n")
result = run("unshare", "-m", "bash", scratch("script"))
if result.returncode == 77:
    skip(f"/etc cannot be overlaid here: {result.stderr.strip()}")
parts = re.split(r"^== (\d+)\n", result.stdout, flags=re.M)
outputs = {int(number): text for number, text in zip(parts[1::2], parts[2::2])}
last = commands[max(outputs)] if outputs else script[0]
check("all of its commands succeed", result.returncode == 0, f"{last!r}: exit {result.returncode}\n{result.stdout[-2000:]}\n"
      f"{result.stderr[-2000:]}")
told = {commands[number]: text for number, text in outputs.items()}
expected = {"expertctl verify": "ok", "ls /srv/mnt": "config.json", "expertctl ls": "/srv/mnt", "expertctl get": "128 MiB",
            "expertctl doctor": "good", "expertctl status": "problems", "expertctl up -o budget=256M /srv/model": "next: ",
            "expertctl warmup": "read from the store", "expertctl log": "info: ", "cat /srv/mnt/.expertfs/profile": "live_"}
for begin, words in expected.items():
    texts = [text for command, text in told.items() if command.startswith(begin)]
    check(f"{begin}: tells what it is to tell", texts and all(words in text for text in texts), texts)
for words, needed in NEEDS.items():
    texts = [text for command, text in told.items() if words in command]
    if texts:
        check(f"{needed}: prints tokens", all(text.strip() for text in texts), texts)
for line in left_out:
    note("left out: " + line)
check("nothing stays mounted", not [line for line in open("/proc/mounts", errors="surrogateescape") if SCRATCH in line])
done()
