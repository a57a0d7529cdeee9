#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option that takes a number refuses invalid ones with status 2 and its name, also those with a valid prefix. The
options are those of --help."""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

WRONG = ("-1", "1e9", "99999999999999999999", "16777216T", "nan", "inf", "0x10", "", " 3", "3 x", "3,", "1.5.5", "--")
NUMBERS = {"N", "SIZE", "SECONDS", "MS", "N,...", "SIZE,...", "T"}
COMMANDS = [["mkexpertfs"], ["runmoe"], ["moe-replay"], ["moe-replay", "predict"], ["moe-replay", "assign"],
            ["moe-replay", "place"], *(["expertctl", command] for command in ("verify", "unpack", "profile", "status"))]


def numbers_of(command):
    """Options of --help that take a number."""
    text = run(program(command[0]), *command[1:], "--help").stdout
    found = re.findall(r"^ +(?:-\S, )?(--[a-z-]+)=(\S+)", text, re.M)
    return [option for option, kind in found if kind in NUMBERS]


count = 0
for command in COMMANDS:
    taken = []
    for option in numbers_of(command):
        for wrong in WRONG:
            result = run(program(command[0]), *command[1:], f"{option}={wrong}", "a", "b", "c")
            count += 1
            if result.returncode != 2 or option.strip("-") not in result.stderr:
                taken.append((option, wrong, result.returncode, result.stderr.strip()[:100]))
    check(f"{' '.join(command)}: refuses numbers that cannot be", not taken, taken)
check("there are such options", count > 300, count)
done()
