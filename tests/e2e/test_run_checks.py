# SPDX-License-Identifier: Apache-2.0
"""expertctl up with a program checks before it starts: that the program's ggml takes the backend, and that a user can
unmount, which needs /etc/mtab."""
from e2e import *

need_fuse()
expertctl = program("expertctl")
store = make_store(make_model("model", "-F", "qwen3-moe", "-d", "64", "-i", "64", "-e", "4", "-l", "1", "--vocab", "320"), environment=NO_STATE)
os.makedirs(scratch("tmp"))
os.environ["TMPDIR"] = scratch("tmp")
for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "GGML_BACKEND_PATH"):
    os.environ.pop(name, None)


def compiled(folder, takes):
    """A program linked with a libggml.so that takes a backend, of a version that the backend knows, or refuses it."""
    os.makedirs(folder)
    with open(f"{folder}/ggml.c", "w") as file:
        file.write(f"const char *ggml_version(void) {{ return \"{'0.25.3' if takes else '0.9.9'}\"; }}\n"
                   f"void *ggml_backend_load(const char *path) {{ return {'(void *)path' if takes else '0'}; }}\n")
    with open(f"{folder}/main.c", "w") as file:
        file.write("#include <stdio.h>\nconst char *ggml_version(void);\n"
                   "int main(void) { return printf(\"ran %s\\n\", ggml_version()) < 0; }\n")
    for command in (["-shared", "-fPIC", "-o", f"{folder}/libggml.so", f"{folder}/ggml.c", "-Wl,-soname,libggml.so.0"],
                    ["-o", f"{folder}/llama-server", f"{folder}/main.c", f"-L{folder}", "-lggml", f"-Wl,-rpath,{folder}"]):
        result = run(*os.environ.get("CC", "cc").split(), *command)
        if result.returncode:
            skip(f"no C compiler: {result.stderr[:200]}")
    os.symlink("libggml.so", f"{folder}/libggml.so.0")
    return f"{folder}/llama-server"


if os.path.exists(os.path.join(BUILD, "libggml-expertfs.so")) and not SANITIZED:
    print("-- ggml")
    takes, refuses = compiled(scratch("takes"), True), compiled(scratch("refuses"), False)
    for arguments in (("{}",), ()):
        result = run(expertctl, "up", store, "--", takes, *arguments)
        check("a ggml that takes the backend: one line says how it runs", (result.returncode, result.stdout) ==
              (0, "ran 0.25.3\n") and len([line for line in result.stderr.splitlines() if not line.startswith(("expertctl: note: ", "hint: "))]) == 1,
              result)
    result = run(expertctl, "up", store, "--", refuses, "{}")
    check("one that refuses it: a warning says what happens, and the program runs", result.returncode == 0 and
          result.stdout == "ran 0.9.9\n" and "warning: " in result.stderr and "its ggml 0.9.9 refuses" in result.stderr and
          "reads experts from the mount's files\nhint: " in result.stderr, result)
    result = run(expertctl, "up", store, "--", refuses)
    check("without a mount it is not started", result.returncode == 125 and result.stdout == "" and
          "its ggml 0.9.9 refuses" in result.stderr and "{}/NAME" in result.stderr, result)
    result = run(expertctl, "up", store, "--", "llama-server", "{}", env={**os.environ, "PATH": f"{scratch('refuses')}:{os.environ['PATH']}"})
    check("a program in PATH", "its ggml 0.9.9 refuses" in result.stderr, result)
else:
    note("left out: the backend of ggml is not built")
result = run(expertctl, "up", store, "--", "sh", "-c", "exit 3", "{}")
check("a program without ggml: nothing is said", result.returncode == 3 and "refuses" not in result.stderr, result)

print("-- a user without /etc/mtab")
if os.geteuid() or run("unshare", "-m", "true").returncode or not shutil.which("fusermount3"):
    note("left out: it needs root, unshare -m and fusermount3")
    done()
for name in ("etc", "work", "dev", "home", "path"):
    os.makedirs(scratch(name))
os.symlink(shutil.which("ls"), scratch("path/ls"))
os.chmod(scratch("home"), 0o777)
os.chmod(scratch("tmp"), 0o777)
os.chmod(SCRATCH, 0o755)
os.chmod(store, 0o644)
as_nobody = f"env -u EXPERTFS_STATE -u XDG_DATA_HOME HOME={scratch('home')} setpriv --reuid=65534 --regid=65534 --clear-groups timeout 240 '{expertctl}' up '{store}' -- ls {{}}"
with open(scratch("script"), "w") as file:
    file.write(f"""mount --make-rprivate / || exit 77
mount -t overlay overlay -o lowerdir=/etc,upperdir='{scratch("etc")}',workdir='{scratch("work")}' /etc || exit 77
mount -t tmpfs none '{scratch("dev")}' && mknod -m 666 '{scratch("dev")}/fuse' c 10 229 || exit 77
mount --bind '{scratch("dev")}/fuse' /dev/fuse || exit 77
ln -sf /proc/self/mounts /etc/mtab
{as_nobody} || exit 1
{as_nobody.replace(" timeout 240", f" timeout 240 env PATH='{scratch('path')}'")} && exit 1
rm /etc/mtab
{as_nobody}
status=$?
{as_nobody.replace(" -- ls {}", " 2>&1")} && exit 1
grep '{scratch("tmp")}' /proc/self/mounts
exit $status
""")
result = run("unshare", "-m", "bash", scratch("script"))
if result.returncode == 77:
    note(f"left out: {result.stderr.strip()}")
else:
    check("it runs with /etc/mtab, and fails without it, with the way out", result.returncode == 125 and
          result.stdout.splitlines().count("config.json") == 1 and "/etc/mtab: No such file" in result.stderr and
          "ln -s /proc/self/mounts /etc/mtab" in result.stderr, result)
    check("without fusermount3 in PATH it fails, too", "expertctl: fusermount3: not in PATH" in result.stderr, result)
    check("without /etc/mtab, without a program", "/etc/mtab: No such file" in result.stdout, result)
    check("nothing stays mounted, no folder stays", scratch("tmp") not in result.stdout and not os.listdir(scratch("tmp")),
          (result, os.listdir(scratch("tmp"))))
done()
