# SPDX-License-Identifier: Apache-2.0
"""The CPU backend of llama-cpp-python's ggml, compiled without AVX-512: pip's has all that this processor has. A program that starts
with the folder in LD_LIBRARY_PATH takes it in place of its own."""
import glob
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile

FLAGS = {"NATIVE": "OFF", "SSE42": "ON", "AVX": "ON", "AVX2": "ON", "BMI2": "ON", "FMA": "ON", "F16C": "ON", "LLAMAFILE": "ON",
         "BUILD_TESTS": "OFF", "BUILD_EXAMPLES": "OFF"}


def library(work):
    """Compiles it once, which takes two minutes, and returns its folder. Raises OSError or CalledProcessError."""
    version = importlib.metadata.version("llama-cpp-python")
    made = os.path.join(work, f"ggml-avx2-{version}")
    if os.path.exists(made):
        return made
    with tempfile.TemporaryDirectory(dir=work) as folder:
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet", "--no-deps",
                        "--no-binary", "llama-cpp-python", "--dest", folder, f"llama-cpp-python=={version}"], check=True)
        with tarfile.open(glob.glob(f"{folder}/*.tar.gz")[0]) as package:
            package.extractall(folder, [member for member in package if "/vendor/llama.cpp/ggml/" in member.name])
        source = glob.glob(f"{folder}/*/vendor/llama.cpp/ggml")[0]
        open(f"{source}/ggml.pc.in", "w").close()  # missing in the package; cmake stops without it
        quiet = {"check": True, "stdout": subprocess.DEVNULL}
        subprocess.run(["cmake", "-S", source, "-B", f"{folder}/b", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON",
                        "-DCMAKE_SKIP_RPATH=ON", *(f"-DGGML_{name}={value}" for name, value in FLAGS.items())], **quiet)
        subprocess.run(["cmake", "--build", f"{folder}/b", "--target", "ggml-cpu", "-j", str(os.cpu_count())], **quiet)
        os.mkdir(made + ".part")
        shutil.copy(f"{folder}/b/src/libggml-cpu.so.0", made + ".part")
        os.rename(made + ".part", made)
    return made
