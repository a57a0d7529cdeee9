# SPDX-License-Identifier: Apache-2.0
"""Ways to change a file that no user may change. write_attempts.py MOUNT NAME prints the result of each, for users who
cannot read e2e.py."""
import ctypes
import errno
import json
import os
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PUNCH_AND_KEEP_SIZE = 3


def call(function, *arguments):
    if getattr(LIBC, function)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), function)


def of_a_file(path, then_write=False):
    """({name: a function that tries to change the file}, the same for ways that use a descriptor opened for reading,
    which the open mode forbids first). then_write: opening for writing is no change, writing then is."""
    long = ctypes.c_long

    def opened(flags):
        file = os.open(path, flags, 0o666)
        try:
            if then_write:
                os.pwrite(file, b"x", 0)
        finally:
            os.close(file)

    def with_file(function):
        file = os.open(path, os.O_RDONLY)
        try:
            function(file)
        finally:
            os.close(file)

    return {
        "open to write": lambda: opened(os.O_WRONLY),
        "open to read and write": lambda: opened(os.O_RDWR),
        "open to append": lambda: opened(os.O_WRONLY | os.O_APPEND),
        "open to read, cut": lambda: opened(os.O_RDONLY | os.O_TRUNC),
        "open to write, cut": lambda: opened(os.O_WRONLY | os.O_TRUNC | os.O_CREAT),
        "truncate": lambda: os.truncate(path, 0),
        "truncate to its size": lambda: os.truncate(path, os.stat(path).st_size),
        "chmod": lambda: os.chmod(path, 0o777),
        "fchmod": lambda: with_file(lambda file: os.fchmod(file, 0o666)),
        "utime": lambda: os.utime(path),
        "utime to a time": lambda: os.utime(path, (1, 1)),
    }, {
        "ftruncate": lambda: with_file(lambda file: os.ftruncate(file, 0)),
        "write": lambda: with_file(lambda file: os.write(file, b"x")),
        "fallocate": lambda: with_file(lambda file: call("fallocate", file, 0, long(0), long(1))),
        "punch a hole": lambda: with_file(lambda file: call("fallocate", file, PUNCH_AND_KEEP_SIZE, long(0), long(4096))),
    }


def in_a_mount(mount, name):
    """The same for the file `name` of a mount, with ways to create a file next to it or to remove it."""
    path, new, folder = f"{mount}/{name}", f"{mount}/new", f"{mount}/experts"
    other = f"{mount}/{'config.json' if name != 'config.json' else 'extra/odd.bin'}"
    raw = os.fsencode(path)
    ways, closed = of_a_file(path)

    def made(flags, at):
        os.close(os.open(at, flags, 0o666))

    return {
        **ways,
        "create": lambda: made(os.O_CREAT | os.O_WRONLY, new),
        "create to read": lambda: made(os.O_CREAT | os.O_RDONLY, new),
        "create exclusively": lambda: made(os.O_CREAT | os.O_EXCL | os.O_RDWR, f"{folder}/new"),
        "create in .expertfs": lambda: made(os.O_CREAT | os.O_WRONLY, f"{mount}/.expertfs/new"),
        "open stat to write": lambda: made(os.O_WRONLY, f"{mount}/.expertfs/stat"),
        "unlink": lambda: os.unlink(path),
        "unlink stat": lambda: os.unlink(f"{mount}/.expertfs/stat"),
        "rmdir": lambda: os.rmdir(folder),
        "mkdir": lambda: os.mkdir(new),
        "rename": lambda: os.rename(path, new),
        "rename over": lambda: os.rename(path, other),
        "rename a folder": lambda: os.rename(folder, new),
        "exchange": lambda: call("renameat2", -100, raw, -100, os.fsencode(other), 2),
        "chmod of a folder": lambda: os.chmod(folder, 0o777),
        "chown": lambda: os.chown(path, os.geteuid(), os.getegid()),
        "link": lambda: os.link(path, new),
        "symlink": lambda: os.symlink("x", new),
        "mknod of a file": lambda: os.mknod(new),
        "mknod of a pipe": lambda: os.mkfifo(new),
        "access": lambda: call("access", raw, os.W_OK),
        "access of the root": lambda: call("access", os.fsencode(mount), os.W_OK),
    }, closed


def results(ways, closed):
    """{name: its error}; EBADF or EINVAL for a descriptor not open for writing counts as EROFS, too."""
    found = {}
    for what, way in {**ways, **closed}.items():
        try:
            way()
            found[what] = "it worked"
        except OSError as error:
            found[what] = errno.errorcode.get(error.errno, error.errno)
            if what in closed and error.errno in (errno.EBADF, errno.EINVAL):
                found[what] = "EROFS"
    return found


if __name__ == "__main__":
    print(json.dumps(results(*in_a_mount(*sys.argv[1:3]))))
