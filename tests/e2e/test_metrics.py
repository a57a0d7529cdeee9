# SPDX-License-Identifier: Apache-2.0
"""Prometheus' own programs read .expertfs/metrics of two mounts; status -m prints it, expertctl log -f follows."""
import socket
import urllib.request

from e2e import *

need_fuse()
expertctl = program("expertctl")
_, store = shared(NARROW)
odd = scratch('odd "name", with \\ in it.efs')
shutil.copy(store, odd)
mounts = [Mount(store), Mount(odd)]

print("-- expertctl status --metrics")
for mount in mounts:
    result = run(expertctl, "status", "--metrics", mount.path)
    check("the file, as text", result.returncode == 0 and result.stdout.startswith("# HELP expertfs_mount_info") and
          f'expertfs_pool_capacity_bytes{{mount="{mount.path}",pool="C"}}' in result.stdout, result)
check("a folder that is no mount", run(expertctl, "status", "--metrics", SCRATCH).returncode == 1)

print("-- promtool")
if shutil.which("promtool"):
    with open(mounts[1] / ".expertfs/metrics") as file:
        result = subprocess.run(["promtool", "check", "metrics"], stdin=file, capture_output=True, text=True, check=False)
    said = [line for line in result.stderr.splitlines() if "_m_total" not in line and "_s_total" not in line]
    check("it finds only pools that it takes for metres and seconds", not said, result)
else:
    note("left out: promtool (Debian's prometheus)")

print("-- node_exporter")
exporter = shutil.which("prometheus-node-exporter")
if exporter:
    folder = scratch("textfiles")
    os.mkdir(folder)
    for number, mount in enumerate(mounts):
        os.symlink(mount / ".expertfs/metrics", f"{folder}/{number}.prom")

    def scraped():
        try:
            return urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE).read().decode()
        except OSError:
            return ""
    text = ""
    for _ in range(5):  # the port may be another program's before the exporter has it
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with open(scratch("exporter.log"), "w") as log:
            process = subprocess.Popen([exporter, "--collector.disable-defaults", "--collector.textfile",
                                        f"--collector.textfile.directory={folder}", f"--web.listen-address={address}"], stderr=log)
        wait_until(lambda: scraped() or process.poll() is not None)
        text = scraped()
        process.kill()
        process.wait()
        if text:
            break
    check("no error", "node_textfile_scrape_error 0" in text, open(scratch("exporter.log")).read())
    for mount in mounts:
        lines = [line for line in mount.control("metrics").splitlines() if line.startswith("expertfs_")]
        there = [line for line in text.splitlines() if line.startswith("expertfs_") and f'mount="{mount.path}"' in line]
        check(f"all {len(lines)} samples of a mount", len(there) == len(lines) > 100, (len(there), len(lines)))
    check("counters keep their type", "# TYPE expertfs_reads_total counter" in text)
else:
    note("left out: Debian's prometheus-node-exporter")

print("-- the dashboard for Grafana")
with open(os.path.join(ROOT, "tools/packaging/grafana.json")) as file:
    board = json.load(file)
expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
there = set(re.findall(r"^# TYPE (\w+)", mounts[0].control("metrics"), re.M))
asked = set(re.findall(r"expertfs_\w+", " ".join(expressions + [board["templating"]["list"][1]["query"]])))
check(f"{len(expressions)} queries of {len(asked)} families that exist", len(expressions) > 8 and asked <= there, asked - there)
if shutil.which("promtool"):
    rules = [{"record": f"expertfs:rule{number}", "expr": expression.replace("$__rate_interval", "5m").replace("$mount", ".*")}
             for number, expression in enumerate(expressions)]
    with open(scratch("rules.json"), "w") as file:  # JSON is YAML
        json.dump({"groups": [{"name": "all", "rules": rules}]}, file)
    result = run("promtool", "check", "rules", scratch("rules.json"))
    check("promtool reads the queries", result.returncode == 0 and f"{len(rules)} rules found" in result.stdout, result)

print("-- expertctl log -f")
mount = mounts[0]
follower = subprocess.Popen([expertctl, "log", "-f", mount.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
first = follower.stdout.readline()
check("what is there", first == mount.control("log").splitlines(True)[0], first)
seen = [first]
for number in range(3):
    os.setxattr(mount.path, "user.expertfs.budget", b"%dM" % (1000 + number))
    while f"budget={1000 + number}M" not in seen[-1]:
        seen.append(follower.stdout.readline())
        if not seen[-1]:
            break
check("what is added, each line once", seen == mount.control("log").splitlines(True)[:len(seen)], (seen, mount.control("log")))
follower.send_signal(signal.SIGINT)
rest = follower.communicate(timeout=PATIENCE)
check("SIGINT ends it with 0", follower.returncode == 0 and not rest[1], (follower.returncode, rest))
result = run(expertctl, "log", "-f", "--json", mount.path)
check("not with --json", result.returncode == 2 and "--json goes without --follow" in result.stderr, result)
follower = subprocess.Popen([expertctl, "log", "-f", mount.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
follower.stdout.readline()
for mount in mounts:
    mount.stop()
said = follower.communicate(timeout=PATIENCE)
check("the end of the mount is said", follower.returncode == 0 and said[1], said)
done()
