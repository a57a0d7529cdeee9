# SPDX-License-Identifier: Apache-2.0
"""deny_syscalls.py ERRNO NUMBER[:ARGUMENT],... -- COMMAND ...: run a program in which system calls fail with an errno, as
on a kernel that lacks them (ENOSYS) or in a container that forbids them (EPERM); with ARGUMENT only where that is the
second argument. x86-64 and 64-bit Arm."""
import ctypes
import os
import platform
import struct
import sys

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def forbid(numbers, error, threads=False):
    """Installs a filter that fails these calls, numbers or (number, second argument), for this process and its children.
    Needs CAP_SYS_ADMIN. threads: also for the threads that already run."""
    load, jump_if, give = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    program = [(load, 0, 0, 4), (jump_if, 1, 0, ARCHITECTURES[platform.machine()]), (give, 0, 0, 0x7FFF0000),
               (load, 0, 0, 0)]
    for number in numbers:
        if isinstance(number, tuple):
            program += [(jump_if, 0, 4, number[0]), (load, 0, 0, 24), (jump_if, 0, 1, number[1]),
                        (give, 0, 0, 0x00050000 | error), (load, 0, 0, 0)]
        else:
            program += [(jump_if, 0, 1, number), (give, 0, 0, 0x00050000 | error)]
    program.append((give, 0, 0, 0x7FFF0000))
    text = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *line) for line in program))
    head = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    seccomp = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    if libc.syscall(seccomp, 1, int(threads), ctypes.c_void_p(ctypes.addressof(head))):  # SECCOMP_SET_MODE_FILTER, _TSYNC
        raise OSError(ctypes.get_errno(), "no seccomp filter")


if __name__ == "__main__":
    forbid([tuple(map(int, number.split(":"))) if ":" in number else int(number) for number in sys.argv[2].split(",")],
           int(sys.argv[1]))
    os.execv(sys.argv[4], sys.argv[4:])
