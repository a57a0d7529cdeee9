# SPDX-License-Identifier: Apache-2.0
"""signalled.py SIGNAL SECONDS PROGRAM [ARGUMENT...]: sends a signal, such as INT, to a program that has handled it for
SECONDS. Ends with the program's status; 1 if the signal ended it."""
import re
import signal
import subprocess
import sys
import time

number = signal.Signals[f"SIG{sys.argv[1]}"]
process = subprocess.Popen(sys.argv[3:])
while process.poll() is None:
    with open(f"/proc/{process.pid}/status") as status:
        if int(re.search(r"^SigCgt:\s+(\w+)", status.read(), re.M)[1], 16) >> number - 1 & 1:
            break
    time.sleep(0.001)
time.sleep(float(sys.argv[2]))
process.send_signal(number)
status = process.wait()
sys.exit(status if status >= 0 else 1)
