# SPDX-License-Identifier: Apache-2.0
"""expertctl status -w on a terminal: redrawn in place with bars, cut to its size, ended by Ctrl-C with 0."""
import pty
import select
import termios

from e2e import *

need_fuse()
expertctl = program("expertctl")
_, store = shared(NARROW)
mount = Mount(store)


def watched(rows, columns, until, more=(), environment=None):
    """(exit status, output) of status -w 1 in a terminal, after Ctrl-C when the output has `until` three times."""
    control, device = pty.openpty()
    termios.tcsetwinsize(device, (rows, columns)) if hasattr(termios, "tcsetwinsize") else \
        fcntl.ioctl(device, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def own():
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    process = subprocess.Popen([expertctl, "status", "-w", "1", *more, mount.path], stdin=device, stdout=device,
                               stderr=device, preexec_fn=own, env={**os.environ, "TERM": "xterm", **(environment or {})})
    os.close(device)
    text, typed, end = b"", False, time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if select.select([control], [], [], 0.1)[0]:
            try:
                text += os.read(control, 65536)
            except OSError:  # the process has ended
                break
        if text.count(until) >= 3 and not typed:
            os.write(control, b"\x03")
            typed = True
        for name in files_below(mount.path):
            if not name.startswith(".expertfs"):
                open(mount / name, "rb").read()
    status = process.wait(PATIENCE)
    os.close(control)
    return status, text.decode(errors="replace")


def screens(text):
    """What each screen shows: its lines without escape sequences."""
    return [re.sub(r"\x1b\[\??[0-9]*[A-Za-z]", "", screen).replace("\r", "").split("\n") for screen in text.split("\x1b[H")[1:]]


for locale, levels in (("C.UTF-8", "▁▂▃▄▅▆▇█"), ("C", "_.:-=+*#")):
    status, text = watched(30, 100, b"problems", environment={"LC_ALL": locale})
    shown = screens(text)
    check(f"{locale}: Ctrl-C ends it with 0", status == 0, (status, text[-500:]))
    check(f"{locale}: the screen is cleared once, then redrawn", text.count("\x1b[2J") == 1 and len(shown) >= 3, text[:200])
    bars = [[re.fullmatch(rf"{name} +(\d+ %|-)  ([ {re.escape(levels)}]+)", line.rstrip()) or line for line, name in zip(screen, ("memory", "hits", "disk"))]
            for screen in shown[1:3]]
    check(f"{locale}: bars of memory, hits and disk", all(isinstance(line, re.Match) for screen in bars for line in screen), bars)
    check(f"{locale}: a column a sample", isinstance(bars[1][0], re.Match) and len(bars[1][0][2]) == 3, bars)
    check(f"{locale}: then the words", any(f"{mount.path} serves {store}" in line for line in shown[0]), shown[0])
    check(f"{locale}: the terminal wraps lines again", text.count("\x1b[?7l") == text.count("\x1b[?7h"))
status, text = watched(10, 30, b"memory", more=("-t",))
check("a small terminal: no screen has more lines than it", status == 0 and all(len(screen) <= 10 for screen in screens(text)), (status, text))
process = subprocess.Popen([expertctl, "status", "-w", "1", mount.path], stdout=subprocess.PIPE, text=True)
process.stdout.readline()
process.send_signal(signal.SIGINT)
said = process.communicate(timeout=PATIENCE)[0]
check("no terminal: no escapes, Ctrl-C ends it with 0", process.returncode == 0 and "\x1b" not in said, (process.returncode, said))
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
