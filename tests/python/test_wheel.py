# SPDX-License-Identifier: Apache-2.0
"""The wheel of the Python package: installed into an empty environment it opens a store with the library that it
contains, and needs neither numpy nor another library of this tree."""
from package import *

if SANITIZED:
    skip("a library with a sanitizer is not loaded by Python")
if run(sys.executable, "-c", "import auditwheel, setuptools.command.bdist_wheel").returncode:
    skip("no auditwheel: tools/setup-python wheel installs it")
made = run(os.path.join(ROOT, "tools/wheel"), LIBRARY, scratch("wheel"), expertfs.__version__,
           env={**os.environ, "PYTHON": sys.executable})
check("tools/wheel", made.returncode == 0 and made.stdout.endswith(".whl\n"), made)
said = run(sys.executable, "setup.py", "--version", cwd=os.path.join(ROOT, "python"),
           env={name: value for name, value in os.environ.items() if name != "EXPERTFS_VERSION"})
check("pip install ./python has the same version", said.stdout.split()[-1:] == [expertfs.__version__], said)
wheel = made.stdout.strip()
check("its name has the version, any Python, and a glibc", re.search(
    rf"/expertfs-{re.escape(expertfs.__version__)}-py3-none-manylinux_2_\d+_{os.uname().machine}\.whl$", wheel), wheel)
run("/usr/bin/python3", "-m", "venv", "--without-pip", scratch("venv"))
site = run(f"{scratch('venv')}/bin/python", "-c", "import site; print(site.getsitepackages()[0])").stdout.strip()
with __import__("zipfile").ZipFile(wheel) as archive:
    archive.extractall(site)
model, store = shared()
code = """import expertfs, sys
with expertfs.open(sys.argv[1], budget="128M", state=False) as session:
    print(len(session.layers()), session.request(0, [3]).wait()[0]["gate"].shape)
maps = open("/proc/self/maps").read()
print(expertfs.__file__, "expertfs/libexpertfs.so.0" in maps, "expertfs.libs/libzstd" in maps, "numpy" in sys.modules)
"""
environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
result = run(f"{scratch('venv')}/bin/python", "-c", code, store, env=environment, cwd="/")
check("it runs", result.stdout.splitlines() == ["3 (512, 256)", f"{site}/expertfs/__init__.py True True False"], result)
done()
