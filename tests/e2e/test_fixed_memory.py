# SPDX-License-Identifier: Apache-2.0
"""What the budget counts for the process, its threads and its buffers (fixed_bytes) is an upper bound of the daemon's
anonymous memory, with 1 and with 64 workers: after reads of every kind, listings, as many clients as the socket takes,
and writes of 1 MiB to a control file; while control files are open, and clients read no answers. The budget counts
64 KiB for a stack; 48 KiB are never exceeded."""
import fcntl
import resource
import termios

from e2e import *
from memory_sampler import resident_bytes
from socket_packets import AS_CODED, ASK, CANCEL, OBSERVE, WITH_LAYOUT, Client, routing

need_fuse()
if SANITIZED:
    skip("a sanitizer takes memory of its own")
LAYERS, EXPERTS, CLIENTS = 4, 32, 120
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "512", "-i", "384", "-e", str(EXPERTS), "-l", str(LAYERS),
                              "--vocab", "8000"))


def stacks(pid):
    """{thread: KiB of its stack in memory}"""
    ranges, found = [], {}
    with open(f"/proc/{pid}/smaps", errors="replace") as text:
        for line in text:
            here = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
            if here:
                ranges.append([int(here[1], 16), int(here[2], 16), 0])
            elif line.startswith("Anonymous:"):
                ranges[-1][2] = int(line.split()[1])
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/syscall") as call, open(f"/proc/{pid}/task/{thread}/comm") as name:
                words = call.read().split()
                pointer = int(words[-2], 16) if len(words) >= 3 else 0  # "running": its stack is in no system call
                found.update({f"{name.read().strip()} {thread}": kib for begin, end, kib in ranges if begin <= pointer < end})
        except (FileNotFoundError, ProcessLookupError):
            pass  # the thread has ended
    return found


def all_at_once(count, run):
    threads = [threading.Thread(target=run, args=(random.Random(i),)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_parts(mount, files, generator):
    for _ in range(40):
        with open(mount / generator.choice(files), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            os.pread(file.fileno(), generator.choice((100, 4096, 65536, 1 << 20)), generator.randrange(max(1, size)))


def ask_all(mount):
    """Clients that hold a coded expert each, or an error if they would hold too much together."""
    clients = [Client(mount) for _ in range(CLIENTS)]
    for i, client in enumerate(clients):
        client.socket.send(routing(OBSERVE, [(n, 1 / EXPERTS) for n in range(EXPERTS)]))
        client.send(ASK, [(i % EXPERTS, 1, i)], form=AS_CODED, layer=i % LAYERS)
    return clients, sum(client.coded() is not None for client in clients)


def list_all(mount):
    for folder, _, names in os.walk(mount.path):
        for name in names:
            os.stat(os.path.join(folder, name))


def write_much(mount, _generator):
    with open(mount / ".expertfs/want", "wb", buffering=0) as file:
        for _ in range(10):
            try:
                file.write(b"0: 1 2\n" * 150000)
            except OSError:  # more than is taken at once
                pass


def anonymous(mount):
    return resident_bytes(mount.daemon.pid)[0]


def open_often(mount, name, before, counted):
    """Opens a file as often as possible; closes all. Returns the number of opens, by how many KiB the memory rose more
    than what the budget counts, and whether it is freed afterwards."""
    files = []
    try:
        while len(files) < 1017:
            files.append(os.open(mount / name, os.O_RDONLY))
    except OSError as error:
        assert error.errno == errno.ENFILE, error
    opens, more = len(files), anonymous(mount) - before
    for _ in range(20):  # while they are refused, stat is, too
        os.close(files.pop())
    wait_until(lambda: error_of(mount.control, "stat") == "none")
    more -= mount.count("fixed_bytes") - counted
    mount.check_budget()
    for file in files:
        os.close(file)
    return opens, more >> 10, wait_until(lambda: anonymous(mount) - before < 1 << 20)


def is_received(client):
    return fcntl.ioctl(client.socket, termios.TIOCOUTQ, b"\0" * 4) == b"\0" * 4


def read_nothing(mount):
    """Clients that let answers wait: to cancellations, and to requests of experts. Returns what they take, in KiB, and
    the answer to one that reads."""
    before, good = anonymous(mount), Client(mount)
    clients = [Client(mount) for _ in range(CLIENTS)]
    for client in clients:
        try:
            for _ in range(16):  # half of them fit into the socket
                client.send(CANCEL, [(0, 0, 1000 + tag) for tag in range(64)])
            client.ask_coded(0, 0, 8, WITH_LAYOUT)
        except ConnectionError:  # disconnected
            pass
    wait_until(lambda: all(is_received(client) for client in clients))
    more = anonymous(mount) - before
    good.ask_coded(0, 0, 8)
    answers = good.coded_answers(8)
    for client in clients + [good]:
        client.close()
    return more >> 10, answers == [(tag, 0) for tag in range(8)]


resource.setrlimit(resource.RLIMIT_NOFILE, (2000, max(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))


for workers, budget in ((1, 64), (64, 256)):
    print(f"-- {workers} workers")
    mount = Mount(store, f"budget={budget}M,workers={workers}")
    files = [name for name in files_below(mount.path) if "/" not in name]
    for name in mount.experts():
        open(mount / name, "rb").read()
    all_at_once(16, lambda generator: read_parts(mount, files, generator))
    if mount.control("handout").startswith("address: /"):
        clients, good = ask_all(mount)
        check("all clients have an answer", good == CLIENTS, good)
        for name in mount.experts():
            open(mount / name, "rb").read()
        for client in clients:
            client.close()
    all_at_once(8, lambda _: list_all(mount))
    for name in ("stat", "experts", "plan", "metrics", "config"):
        mount.control(name)
    before = anonymous(mount)
    all_at_once(16, lambda generator: write_much(mount, generator))
    check("after writes of 1 MiB the receivers' buffers are freed",  # after the answers
          wait_until(lambda: anonymous(mount) - before < 1 << 20), f"{anonymous(mount) - before >> 10} KiB")
    before, counted = anonymous(mount), mount.count("fixed_bytes")
    for name in (".expertfs/experts", ".expertfs/version", "config.json"):
        opens, more, ends = open_often(mount, name, before, counted)
        check(f"{name}: {opens} opens are counted, above 2 MiB", opens > 20 and more < 2048 + 512, more)
        check(f"{name}: their memory is freed", ends)
    if mount.control("handout").startswith("address: /"):
        more, good = read_nothing(mount)
        check("packets that are not read take at most 1 MiB", more < 1024, f"{more} KiB")
        check("a client that reads is served", good)
    most = {name: kib for name, kib in stacks(mount.daemon.pid).items() if kib > 48 and name.startswith("efs-")}
    check("no stack takes more than 48 KiB", not most, most)
    fixed, now = mount.count("fixed_bytes"), anonymous(mount)
    check("the anonymous memory is less than what is counted", now <= fixed, (now >> 10, fixed >> 10))
    note(f"anonymous {now >> 10} KiB of {fixed >> 10} counted, stacks {sum(stacks(mount.daemon.pid).values())} KiB")
    mount.unmount()
done()
