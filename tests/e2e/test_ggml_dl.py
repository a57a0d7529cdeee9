#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""llama.cpp built with GGML_BACKEND_DL, which searches for backends: its own programs load libggml-expertfs.so via
GGML_BACKEND_PATH only. Perplexity equals that without the plugin: for BF16 in all digits, for F16 in four. llama-server
generates the same tokens with every option that concerns experts, and started by expertctl up. `make
test-long` runs this (EXPERTFS_LLAMA=DIR): llama.cpp is downloaded from the source package of llama-cpp-python and
compiled in DIR, which is kept; some 10 minutes on 2 cores."""
import contextlib
import glob
import socket
import tarfile
import urllib.request

from e2e import *
from test_ggml import PLUGIN, PYTHON, SHAPE, need_plugin, plugin_environment

FOLDER = os.environ.get("EXPERTFS_LLAMA", "")
PROGRAMS = ("llama-perplexity", "llama-bench", "llama-server")
QUANTIZE = os.path.join(ROOT, "tools", "bench", "llama_quantize.py")
LORA = "import sys; sys.path.insert(0, sys.argv[1]); import ggml_lora; ggml_lora.make(*sys.argv[2:])"
TEXT = os.path.join(ROOT, "ARCHITECTURE.md")
# the features that `gcc -march=native` would use, by name: such builds refuse GGML_NATIVE
FLAGS = {"avx512f": "AVX512", "avx512vbmi": "AVX512_VBMI", "avx512_vnni": "AVX512_VNNI", "avx512_bf16": "AVX512_BF16"}


def needed(result, what):
    """Skips the test when a step that it needs, but does not test, has failed."""
    if result.returncode:
        skip(f"{what}: {(result.stdout + result.stderr).strip().splitlines()[-1:]}")


def sources():
    """The folder of llama.cpp's sources, downloaded once."""
    folder = os.path.join(FOLDER, "src")
    if os.path.exists(os.path.join(folder, "CMakeLists.txt")):
        return folder
    with open(os.path.join(ROOT, "tests", "clients", "requirements-runtimes.txt")) as file:
        package = next(line.strip() for line in file if line.startswith("llama-cpp-python"))
    needed(run(PYTHON, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python",
               "-d", FOLDER, package, timeout=600), f"{package} is not fetched")
    part = folder + ".part"
    shutil.rmtree(part, ignore_errors=True)
    with tarfile.open(glob.glob(os.path.join(FOLDER, "llama_cpp_python-*.tar.gz"))[0]) as archive:
        for member in archive:
            _, found, rest = member.name.partition("/vendor/llama.cpp/")
            if not found or not member.isfile() or ".." in rest.split("/"):
                continue
            path = os.path.join(part, rest)  # extract() has a safe mode only since Python 3.11.4
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.extractfile(member) as packed, open(path, "wb") as plain:
                shutil.copyfileobj(packed, plain)
    os.rename(part, folder)
    return folder


def build():
    """The folder of its programs."""
    out = os.path.join(FOLDER, "dl")
    if not shutil.which("cmake"):
        skip("cmake is missing")
    with open("/proc/cpuinfo") as file:
        has = re.search("^flags.*", file.read(), re.M)
    options = [f"-DGGML_{option}=ON" for flag, option in FLAGS.items() if has and flag in has.group(0).split()]
    needed(run("cmake", "-S", sources(), "-B", out, "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON",
               "-DGGML_BACKEND_DL=ON", "-DGGML_NATIVE=OFF", *options, "-DLLAMA_BUILD_TESTS=OFF",
               "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_OPENSSL=OFF", timeout=600),
           "llama.cpp is not configured")
    needed(run("cmake", "--build", out, "-j", str(os.cpu_count()), "--target", *PROGRAMS, timeout=7200),
           "llama.cpp does not compile")
    return os.path.join(out, "bin")


def start(name, model, *options, store=None):
    environment = plugin_environment(store)
    if store:
        environment["GGML_BACKEND_PATH"] = PLUGIN
    return run(os.path.join(BIN, name), "-m", model, "-t", "2", *options, env=environment, timeout=1200)


def perplexity(what, model, store=None):
    for _ in range(8):  # it sometimes exits with 0 before its log is written completely, also without the plugin
        result = start("llama-perplexity", model, "-f", TEXT, "-c", "128", "--chunks", "8", "-v", store=store)
        text = result.stdout + result.stderr
        told = re.search(r"Final estimate: PPL = ([0-9.]+)", text)
        if told or result.returncode:
            break
    if not check(f"{what}: a perplexity is told", result.returncode == 0 and told, text[-1500:]):
        done()
    check(f"{what}: experts are {'taken' if store else 'the processor’s'}",
          bool(re.search(r"expertfs compute buffer size = +[0-9.]*[1-9]", text)) == bool(store), text[-1500:])
    return told.group(1)


def complete(port, number, out):
    """The tokens that follow a drawn prompt, the most probable ones."""
    drawn = random.Random(number)
    body = {"prompt": [drawn.randrange(3, 2000) for _ in range(20 + 30 * number)], "n_predict": 16, "temperature": 0,
            "top_k": 1, "cache_prompt": False, "return_tokens": True, "ignore_eos": True}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=1000) as answer:
        out[number] = json.load(answer)["tokens"]


def answers(port, server):
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        return json.load(answer)["status"] == "ok"
    return server.poll() is not None


def serve(model, *options, environment=None, prefix=()):
    """({prompt: tokens} of four requests at once, the log)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port, out, path = free.getsockname()[1], {}, scratch("server.log")
    with open(path, "w") as log:
        server = subprocess.Popen([*prefix, os.path.join(BIN, "llama-server"), "-m", model, "-t", "2", "-c", "2048", "-v", "--port",
                                   str(port), "--no-repack", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env=environment or {**os.environ})
        wait_until(lambda: answers(port, server))
        threads = [threading.Thread(target=complete, args=(port, n, out)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.terminate()
        server.wait(PATIENCE)
    with open(path, errors="replace") as log:
        return out, log.read()


def server(source):
    model, adapter = scratch("q4.gguf"), scratch("lora.gguf")
    needed(run(PYTHON, QUANTIZE, source, model, "Q4_K_M"), "Q4_K_M is not made")
    needed(run(PYTHON, "-c", LORA, os.path.join(ROOT, "tests", "clients"), model, adapter), "the adapter is not made")
    environment = {**plugin_environment(model, "32M"), "GGML_BACKEND_PATH": PLUGIN}
    plain, _ = serve(model, "-np", "1")
    if not check("llama-server by itself answers", len(plain) == 4, plain):
        return
    for options in (("-np", "1"), ("-np", "4"), ("--cpu-moe",), ("--n-cpu-moe", "2"), ("-ot", "exps=CPU"),
                    ("-md", model, "--spec-draft-n-max", "4"), ("-fit", "off")):
        ours, log = serve(model, *options, *(() if "-np" in options else ("-np", "1")), environment=environment)
        # with several slots the batches, and so the order of sums, depend on the time, also without the backend
        good = ours == plain if "-np" not in options or "1" in options else [len(t) for t in ours.values()] == [16] * 4
        check(f"llama-server {' '.join(options[:2])}: the same tokens", good, log[-1500:])
        check(f"llama-server {' '.join(options[:2])}: experts are taken",
              re.search(r"expertfs model buffer size = +[0-9.]*[1-9]", log), log[-1500:])
    adapted, _ = serve(model, "-np", "1", "--lora", adapter)
    ours, log = serve(model, "-np", "1", "--lora", adapter, environment=environment)
    check("llama-server with an adapter: the same tokens", ours == adapted != plain, log[-1500:])
    if os.path.exists("/dev/fuse") and (os.geteuid() == 0 or shutil.which("fusermount3")):
        ours, log = serve("{gguf}", "-np", "1", prefix=(program("expertctl"), "up", "-o", "budget=40M", model, "--"))
        check("expertctl up -- llama-server: the same tokens", ours == plain, log[-1500:])
        check("expertctl up -- llama-server: experts are taken",
              re.search(r"expertfs model buffer size = +[0-9.]*[1-9]", log), log[-1500:])


def main():
    global BIN
    if not FOLDER:
        skip("make test-long runs this: EXPERTFS_LLAMA names no folder to build llama.cpp in")
    need_plugin()
    os.makedirs(FOLDER, exist_ok=True)
    BIN = build()
    for dtype in ("bf16", "f16"):
        folder = make_model(dtype, *SHAPE, "--dtype", dtype)
        model, store = os.path.join(folder, "model.gguf"), make_store(folder)
        plain, ours = perplexity(f"{dtype}, plain", model), perplexity(f"{dtype}, with the backend", model, store)
        if dtype == "bf16" and os.uname().machine == "x86_64":
            check("BF16: the same perplexity, to the last digit", plain == ours, f"{plain} {ours}")
        else:
            check(f"{dtype}: the same perplexity, to four digits", abs(float(ours) / float(plain) - 1) < 1e-4,
                  f"{plain} {ours}")
        print(f"    {dtype}: perplexity {plain}, with the backend {ours}")
        result = start("llama-bench", model, "-p", "16", "-n", "4", "-r", "1", store=store)
        check(f"{dtype}: llama-bench runs with it", result.returncode == 0 and "pp16" in result.stdout and
              "expertfs" in result.stdout + result.stderr, result.stdout + result.stderr[-1500:])
        if dtype == "bf16":
            server(model)
    done()


BIN = ""
if __name__ == "__main__":
    main()
