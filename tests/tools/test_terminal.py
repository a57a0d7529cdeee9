#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mkexpertfs --reclaim in a terminal: answers, Ctrl-C and Ctrl-D at its question."""
import os
import pty
import select
import sys
import termios

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
from e2e import *

mkexpertfs = program("mkexpertfs")
model = make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "1024", "-e", "16", "-l", "3", "--vocab", "1000")
store, asked = scratch("own.efs"), "Type yes to begin: "


def in_terminal(keys, prompt, *arguments):
    """The exit status of mkexpertfs in a terminal and its output; types keys when it has printed the prompt."""
    control, device = pty.openpty()

    def own():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    process = subprocess.Popen([mkexpertfs, *arguments], env={**os.environ, "TERM": "xterm"}, stdin=device, stdout=subprocess.DEVNULL, stderr=device,
                               preexec_fn=own)
    text, typed, end = "", False, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([control], [], [], 0.1)[0]:
            text += os.read(control, 65536).decode()
        elif process.poll() is not None:
            break
        if prompt in text and not typed:
            os.write(control, keys)
            typed = True
    if process.poll() is None:
        process.kill()
    status = process.wait()
    os.close(control)
    os.close(device)
    return status, text


def answered(keys):
    return in_terminal(keys, asked, "--reclaim", model, store)


os.mkdir(scratch("large"))
os.truncate(os.open(scratch("large/zeros.bin"), os.O_CREAT | os.O_WRONLY), 64 << 30)  # a hole, but seconds of work
status, text = in_terminal(b"\x03", "s left", "--any", "--codec=raw", scratch("large"), scratch("large.efs"))
check("progress is one line that changes, and is cleared at the end", status == 130 and re.fullmatch(
      r"(\r\x1b\[K[a-z]+: [^\n\x1b]* left(\^C)?)+(\^C)?\r\x1b\[Kmkexpertfs: interrupted; nothing was left behind\r\n", text), (status, text))
before = sorted(files_below(model))
status, text = answered(b"\x03")
check("Ctrl-C at the question ends it at once", status == 130 and
      text.endswith(asked + "^C\r\nmkexpertfs: interrupted; nothing was left behind\r\n"), (status, text))
status, text = answered(b"\x04")
check("so does Ctrl-D", status == 1 and text.endswith(asked + "\r\nmkexpertfs: nothing was done\r\n"), (status, text))
status, text = answered(b"no\n")
check("and no", status == 1 and text.endswith(asked + "no\r\nmkexpertfs: nothing was done\r\n"), (status, text))
check("and nothing was done", sorted(files_below(model)) == before and not os.path.exists(store + ".reclaim"))
status, text = answered(b"yes\n")
check("yes begins", status == 0 and os.path.exists(store) and not os.path.exists(model), (status, text))
done()
