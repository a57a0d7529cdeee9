#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packing in a terminal: the bar in narrow ones and in those that cannot go back, none in the background; Ctrl-C at the question of --reclaim."""
import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from e2e import *

os.environ["EXPERTFS_CPU"] = "scalar"  # slow: there is something to draw
mkexpertfs = program("mkexpertfs")
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "16", "-l", "3", "--vocab", "1000")


def in_terminal(columns, *arguments, term="xterm", wait_for=None, keys=b"", command=(mkexpertfs,)):
    """Status and what its standard error showed; keys are typed when that has wait_for."""
    control, device = pty.openpty()
    fcntl.ioctl(control, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))

    def own():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    process = subprocess.Popen([*command, *arguments], stdin=device, stdout=subprocess.DEVNULL, stderr=device,
                               preexec_fn=own, env={**os.environ, "TERM": term})
    text, end = "", time.monotonic() + 60
    while time.monotonic() < end:
        if select.select([control], [], [], 0.1)[0]:
            text += os.read(control, 65536).decode()
        elif process.poll() is not None:
            break
        if wait_for and wait_for in text:
            os.write(control, keys)
            wait_for = None
    if process.poll() is None:
        process.kill()
    status = process.wait()
    os.close(control)
    os.close(device)
    return status, text


for columns in (10, 40, 60, 80, 200):
    status, text = in_terminal(columns, "-f", "-t", "1", model, scratch("bar.efs"))
    drawn = [re.sub("\033\\[K", "", line) for line in re.split("[\r\n]+", text)]
    check(f"{columns} columns: the bar stays in one line, beside the ^C of who interrupts it", status == 0 and
          max(map(len, drawn)) <= columns - 3, (status, drawn))
    if not any("packing"[:columns - 3] in line for line in drawn):
        note("packed before the first bar")
status, text = in_terminal(80, "-f", model, scratch("bar.efs"), term="dumb")
check("TERM=dumb: no bar", status == 0 and "\033" not in text and "\r" not in text.replace("\r\n", ""), (status, text))

job = f"{shlex.quote(mkexpertfs)} -f -t 1 {shlex.quote(model)} {shlex.quote(scratch('job.efs'))} & wait"
status, text = in_terminal(80, "--norc", "--noprofile", "-i", "-c", job, command=("bash",))
check("in the background: no bar on the line that another types on", status == 0 and "packing" not in text and
      os.path.exists(scratch("job.efs")), (status, text))

before = sorted(files_below(model))
asked = "Type yes to begin: "
status, text = in_terminal(80, "--reclaim", model, scratch("own.efs"), wait_for=asked, keys=b"\x03")
check("Ctrl-C at the question ends it at once", status == 130 and
      text.endswith(asked + "^C\r\nmkexpertfs: interrupted; nothing was left behind\r\n"), (status, text))
status, text = in_terminal(80, "--reclaim", model, scratch("own.efs"), wait_for=asked, keys=b"\x04")
check("so does Ctrl-D", status == 1 and text.endswith(asked + "\r\nmkexpertfs: nothing was done\r\n"), (status, text))
status, text = in_terminal(80, "--reclaim", model, scratch("own.efs"), wait_for=asked, keys=b"no\n")
check("and no", status == 1 and text.endswith(asked + "no\r\nmkexpertfs: nothing was done\r\n"), (status, text))
check("and nothing was done", sorted(files_below(model)) == before and not os.path.exists(scratch("own.efs.reclaim")))
status, text = in_terminal(80, "--reclaim", model, scratch("own.efs"), wait_for=asked, keys=b"yes\n")
check("yes begins", status == 0 and os.path.exists(scratch("own.efs")) and not os.path.exists(model), (status, text))
done()
