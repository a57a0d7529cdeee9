# SPDX-License-Identifier: Apache-2.0
"""The Python package with threads and signals: Ctrl-C ends every wait, and frees nothing that the library still uses; close()
and the end of the interpreter leave alone what other threads use."""
from package import *

model, store = shared()
wide, wide_store = shared(WIDE)
try:
    import numpy
except ImportError:
    numpy = None
    note("no numpy: ffn() is left out")
# A thread that has ended holds all memory for experts: `kept`.
HELD = """
import expertfs, os, signal, sys, threading, time
session = expertfs.open(sys.argv[1], budget="48M", state=False)
kept = []
def hold():
    try:
        for number in range(16):
            kept.extend(session.request(number // 8, [number % 8]))
    except MemoryError:
        pass
def in_thread(run, *arguments):
    thread = threading.Thread(target=run, args=arguments, daemon=True)
    thread.start()
    return thread
in_thread(hold).join()
assert 2 < len(kept) < 15, len(kept)
"""
NEXT = "next(session.request(1, [7]))"
FFN = """__import__("numpy") and session.ffn(1, numpy.ones((1, 512), "f4"), numpy.array([[7]]), numpy.ones((1, 1), "f4"), form="full")"""


def ends(what, code, *arguments, says, quiet=True):
    """Runs a program, which must end without help."""
    try:
        result = python(code, *arguments)
        check(what, result.returncode == 0 and result.stdout == says and not (quiet and result.stderr), result)
    except subprocess.TimeoutExpired as hangs:
        check(what, False, hangs)


print("-- Ctrl-C")
for what, call in (("the next expert", NEXT), ("all of a request", "session.request(1, [7]).wait()"), ("ffn()", "import numpy; " + FFN)):
    if what != "ffn()" or numpy:
        ends(f"while it waits for {what}", HELD + f"""
def interrupt():
    while not session._calls.others():
        time.sleep(.01)
    time.sleep(.3)
    os.kill(os.getpid(), signal.SIGINT)
in_thread(interrupt)
try:
    {call}
except KeyboardInterrupt:
    print("interrupted")
kept.clear()
session.close()
""", wide_store, says="interrupted\n")
# A signal raises only within the call of interrupts(): elsewhere the program itself would end by it.
SIGNALS = """
import expertfs, os, signal, sys, threading, time
ended, raising = [], []
def interrupt(*_):
    if raising:
        raising.clear()
        raise KeyboardInterrupt
def send():
    while not ended:
        time.sleep(.003)
        os.kill(os.getpid(), signal.SIGINT)
def interrupts(call):
    try:
        raising.append(True)
        call()
        raising.clear()
        return False
    except KeyboardInterrupt:
        return True
def stop():
    ended.append(True)
    sender.join()
signal.signal(signal.SIGINT, interrupt)
sender = threading.Thread(target=send)
sender.start()
"""
ends("while files are read: all reads that end have the right bytes", SIGNALS + """
session = expertfs.open(sys.argv[1], budget="48M", state=False)
path = max(session.files(), key=lambda one: one.nbytes).path
right, interrupted = session.read(path), 0
def read():
    assert session.read(path) == right
while interrupted < 100:
    interrupted += interrupts(read)
stop()
while session:
    try:
        session = session.close()
    except OSError as busy:  # the last read has just begun
        assert busy.errno == 16
        time.sleep(.01)
""", wide_store, says="")
ends("a handler raises as soon as a read or a request has begun: memory of the read is kept, the request is released", """
import expertfs.files, expertfs.request, expertfs.session, sys, threading
class Interrupted:
    def __getattr__(self, name):
        return getattr(real, name)
    def efs_read(self, *arguments):  # it may call back before it returns
        threads.append(threading.current_thread())
        real.efs_read(*arguments)
    def efs_client_begin(self, *arguments):
        assert real.efs_client_begin(*arguments) == 0
        raise KeyboardInterrupt
    def efs_client_release(self, handle):
        released.append(handle)
        real.efs_client_release(handle)
threads, released, real = [], [], expertfs.files.lib
session = expertfs.open(sys.argv[1], budget="48M", state=False)
expertfs.files.lib = expertfs.request.lib = expertfs.session.lib = Interrupted()
session.read("config.json")
for _ in range(4):
    try:
        session.request(0, range(8))
    except KeyboardInterrupt:
        pass
print(threading.main_thread() in threads, len(released))
session.close()
""", wide_store, says="False 4\n")
for progress in ("None", "lambda *_: None"):
    ends(f"while a checkpoint is packed, progress={progress}", SIGNALS + f"""
def pack():
    while True:
        expertfs.pack(*sys.argv[1:], force=True, progress={progress})
print(interrupts(pack))
stop()
""", wide, scratch("interrupted.efs"), says="True\n")
if os.path.exists("/dev/fuse"):
    ends("while a store is mounted: it is unmounted, and its folder removed", """
import expertfs, os, random, signal, sys, tempfile, threading
tempfile.tempdir, drawn = sys.argv[2], random.Random(1)
for turn in range(20):
    timer = threading.Timer(drawn.random() * .1, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with expertfs.mount(sys.argv[1], budget="128M"):
            timer.join()
    except KeyboardInterrupt:
        pass
print(os.listdir(sys.argv[2]))
""", store, tempfile.mkdtemp(dir=SCRATCH), says="[]\n")

print("-- close() and threads")
ends("a thread waits: close() fails until it has ended", HELD + f"""
came = []
thread = in_thread(lambda: came.append({NEXT}.number))
while not session._calls.others():
    time.sleep(.01)
held, session._holds = session._holds, set()  # as if the library had not lent them
try:
    session.close()
except OSError as error:
    print(error.strerror.partition(": ")[2])
session._holds = held
kept.clear()
thread.join(60)
print(came)
session.close()
""", wide_store, says="other threads use it: 1\nhint: wait for them before it is closed\n[7]\n")
LOOPS = """
import expertfs, sys, threading, time
def forever(call):
    try:
        while not stopped:
            call()
    except ValueError as closed:
        assert "is closed" in str(closed)
def start(session):
    calls = [lambda: list(session.request(0, range(8))), lambda: session.read("config.json"), session.stats, lambda: session.observe(0, [1, 2])]
    if len(sys.argv) > 2:
        import numpy
        calls.append(lambda: session.ffn(1, numpy.ones((4, 512), "f4"), numpy.array([[0, 1]] * 4), numpy.ones((4, 2), "f4")))
    threads = [threading.Thread(target=forever, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    return threads
stopped = []
"""
has_numpy = ("numpy",) if numpy else ()
ends("threads in calls of all kinds", LOOPS + """
for turn in range(5):
    session = expertfs.open(sys.argv[1], budget="128M", state=False)
    threads = start(session)
    for attempt in range(10):
        try:
            session.close()
            break
        except OSError as error:
            assert error.errno == 16, error
            time.sleep(.002 * turn)
    stopped.append(True)
    for thread in threads:
        thread.join()
    if "closed" not in repr(session):
        session.close()
    stopped.clear()
""", wide_store, *has_numpy, says="")
ends("the interpreter ends while threads are in calls", LOOPS + """
start(expertfs.open(sys.argv[1], budget="128M", state=False))
time.sleep(.3)
print("end")
""", wide_store, *has_numpy, says="end\n")
ends("and while one waits for memory", HELD + f"in_thread(lambda: {NEXT})\nwhile not session._calls.others():\n    time.sleep(.01)\nprint('end')\n",
     wide_store, says="end\n")
ends("a session is freed with its last reference", """
import expertfs, gc, os, sys
gc.disable()
before = len(os.listdir("/proc/self/task"))
session = expertfs.open(sys.argv[1], budget="128M", state=False)
session.files()
del session
assert len(os.listdir("/proc/self/task")) == before
""", store, says="")
done()
