# SPDX-License-Identifier: Apache-2.0
"""pytest runs the scripts tests/ROOM/test_*.py and test_*.sh, each as one test and one process: exit status 0 is
passed, 77 skipped (its last line is the reason), any other failed. After TEST_TIMEOUT seconds (900) a script gets
SIGTERM, for which it cleans up.

Run as root, each script has its mount namespace: expertctl reads and lists all mounts that it sees, and a mount that it reads
is busy.

The slowest scripts of the last run start first, so that none of them runs alone at the end. Scripts in ALONE measure
the whole machine (its memory, its disk) and run in a second pass, one at a time: -m alone, -m "not alone".

"""
import json
import os
import signal
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
PYTHON = os.environ.get("PYTHON", os.path.join(ROOT, "build/venv/bin/python"))
SECONDS = os.path.join(BUILD, "tests", "seconds.json")
ALONE = (
    "test_expertctl.py",  # expertctl ls sees the mounts of other tests
    "test_budget_limit.py", "test_profile.py")  # they measure memory and rates
OWN_MOUNTS = ["unshare", "-m", "--propagation", "slave"]  # a copy of a mount does not keep it
if os.geteuid() or subprocess.run([*OWN_MOUNTS, "true"], stderr=subprocess.DEVNULL, check=False).returncode:
    OWN_MOUNTS = []
# The order of a first run, without measured times.
SLOW = ("test_neon.sh", "test_clients.py", "test_replay_live.py", "test_runmoe.py", "test_ggml.py", "test_pages_after_close.py",
        "test_install.sh", "test_guide.py", "test_soak.py", "test_readers.py")


class ScriptFailed(Exception):
    pass


def interruptible():
    """Restores signals: a shell starts background jobs with SIGINT and SIGQUIT ignored, nohup(1) with SIGHUP; tests of
    these signals would inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Script(pytest.Item):
    def runtest(self):
        command = [PYTHON, str(self.path)] if self.path.suffix == ".py" else [str(self.path)]
        process = subprocess.Popen([*OWN_MOUNTS, *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, errors="replace",
                                   preexec_fn=interruptible)
        try:
            output, _ = process.communicate(timeout=int(os.environ.get("TEST_TIMEOUT", "900")))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            try:
                output, _ = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            raise ScriptFailed(f"timed out\n{output[-8000:]}")
        lines = output.rstrip().splitlines()
        self.add_report_section("call", "output", output)
        if process.returncode == 77:
            pytest.skip(lines[-1] if lines else "no reason given")
        if process.returncode:
            wrong = [line for line in lines if line.startswith(("FAILED", "not ok"))][:20]
            raise ScriptFailed("\n".join([f"exit status {process.returncode}", *(wrong or lines[-60:])]))

    def repr_failure(self, excinfo, style=None):
        return str(excinfo.value) if isinstance(excinfo.value, ScriptFailed) else super().repr_failure(excinfo, style)

    def reportinfo(self):
        return self.path, None, self.name


class ScriptFile(pytest.File):
    def collect(self):
        yield Script.from_parent(self, name=self.path.name)


def pytest_collect_file(file_path, parent):
    if file_path.name.startswith("test_") and file_path.suffix == ".sh":
        return ScriptFile.from_parent(parent, path=file_path)
    return None


def pytest_pycollect_makemodule(module_path, parent):
    return ScriptFile.from_parent(parent, path=module_path)  # run as a process, not imported


def seconds_known():
    try:
        with open(SECONDS) as file:
            return json.load(file)
    except (OSError, ValueError):
        return {name: len(SLOW) - at for at, name in enumerate(SLOW)}


def pytest_runtest_logreport(report):
    """Prints a failure when it occurs, not after the last test."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\n{report.nodeid}:\n{str(report.longrepr)[:6000]}", file=sys.stderr, flush=True)


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: measures the whole machine")


def pytest_collection_modifyitems(items):
    known = seconds_known()
    items.sort(key=lambda item: (-known.get(item.path.name, 0), item.nodeid))
    for item in items:
        if item.path.name in ALONE:
            item.add_marker(pytest.mark.alone)


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    stats = terminalreporter.stats
    counts = [len(stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")]
    if "TEST_COUNTS" in os.environ and not hasattr(config, "workerinput"):
        with open(os.environ["TEST_COUNTS"], "a") as file:
            file.write(f"{counts[0]} {counts[1] + counts[2]} {counts[3]}\n")
        with open(os.environ["TEST_COUNTS"] + ".failed", "a") as file:
            for report in stats.get("failed", []) + stats.get("error", []):
                file.write(f"{report.nodeid}: {str(report.longrepr)[:2000]}\n")
    known = seconds_known() if os.path.exists(SECONDS) else {}
    for reports in stats.values():
        for report in reports:
            if getattr(report, "when", None) == "call":
                known[report.nodeid.split("::")[-1]] = round(report.duration, 1)
    os.makedirs(os.path.dirname(SECONDS), exist_ok=True)
    with open(SECONDS, "w") as file:
        json.dump(known, file, indent=0)
