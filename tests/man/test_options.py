# SPDX-License-Identifier: Apache-2.0
"""The programs' --help and their man pages list the same options, -o options, commands and JSON names; the programs
accept all that the pages list."""
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from e2e import *

SAMPLES = {"NAME": "auto", "N": "1", "SIZE": "1M", "LABEL": "x", "FILE": "x", "STORE": "x", "TRACE": "x", "POOLS": "coded",
           "KIND": "paper", "SECONDS": "1", "MS": "5", "DIR|STORE": "x", "DIR": "x", "PROGRAM": "x", "WHAT": "ffn", "NAME=NUMBER": "share=0.1", "N,...": "1,4", "SIZE,...": "10%,1M", "NAME,...": "lru,zipmoe:layers",
           "REGEX": "([0-9]+)", "LxExK": "26x64x6", "MODE": "auto", "OPTIONS": "ro", "LEVEL": "info", "HOST:PORT": "127.0.0.1:0", "NAME=SIZE,...": "a=1G", "RULE": "ours"}


def page_of(name):
    return open(os.path.join(ROOT, "man", name)).read()


def part(page, *names):
    """The text of a section (Sh) or subsection (Ss) up to the next one of its level or above."""
    for macro, name in names:
        ends = r"\.Sh" if macro == "Sh" else r"\.S[hs]"
        found = re.search(rf"^\.{macro} {re.escape(name)}\n(.*?)(?=^{ends} |\Z)", page, re.M | re.S)
        if found:
            return found.group(1)
    sys.exit(f"a page lacks section {names}")


def same(what, on_page, there):
    on_page, there = set(on_page), set(there)
    check(what, on_page == there and there, f"only on the page: {sorted(map(str, on_page - there))}; missing on the page: "
          f"{sorted(map(str, there - on_page))}")


def options_of_help(text):
    """{(names, argument)} of a program's help: (("-t", "--threads"), "N")."""
    found = set()
    for line in text.splitlines():
        match = re.match(r" +(?:(-\S)(?:, )?)?(--[a-z-]+)?(?:[= ](\S+))?(?:  |$)", line)
        if match and (match.group(1) or match.group(2)):
            short, long, value = match.groups()
            found.add((tuple(name for name in (short, long) if name), value))
    return found


def options_of_page(text):
    """The same from the .It Fl lines of a section: `.It Fl t Ar N , Fl -threads Ns = Ns Ar N`."""
    found = set()
    for line in re.findall(r"^\.It (Fl .*)$", text, re.M):
        names, value = [], None
        for piece in line.replace("\\&", "").split(" , "):
            words = [word for word in piece.split() if word not in ("Ns", "=")]
            names.append("-" + words[1])
            if words[2:3] == ["Ar"]:
                value = words[3]
        found.add((tuple(names), value))
    return found


def spellings(names, value):
    """Ways to write an option on a command line."""
    for name in names:
        if value is None:
            yield [name]
        elif name.startswith("--"):
            yield [f"{name}={value}"]
            yield [name, value]
        else:
            yield [name, value]
            yield [name + value]


def accepted(what, command, options, sample=None):
    refused = []
    for names, argument in options:
        for words in spellings(names, argument and (sample or SAMPLES)[argument]):
            result = run(*command, *words, "--help")
            if result.returncode or not result.stdout:
                refused.append((words, result.stderr.strip()))
    check(f"{what}: accepts what its page tells", not refused, refused)
    result = run(*command, "--surely-not", "--help")
    check(f"{what}: refuses others with 2", result.returncode == 2, result.returncode)


print("-- width")
wide = {}
for command in (["expertfs"], ["mkexpertfs"], ["expertpeer"], ["moe-replay"], ["moe-replay", "predict"], ["moe-replay", "assign"],
                ["moe-replay", "place"], ["expertctl"],
                *(["expertctl", name] for name in re.findall(r"^\.Ss (\S+)$", part(page_of("expertctl.1"),
                                                                                   ("Sh", "DESCRIPTION")), re.M))):
    for line in run(program(command[0]), *command[1:], "--help").stdout.splitlines():
        if len(line) > 80:
            wide[line] = command
check("no line of a --help is wider than a terminal", not wide, wide)
options_text = run(program("expertfs"), "--help").stdout.split("Options of -o")[1]
check("tunables and at most 17 other mount options are listed, a line each",
      8 <= len(re.findall(r"^  \S", options_text, re.M)) - len(tunables()) <= 17, options_text)

short = [line for line in options_text.splitlines() if line and len(line) < 20 and line != "Others:"]
check("and no word of it is wrapped into a line alone", not short, short)

print("-- options")
for name in ("mkexpertfs", "expertfs", "expertpeer", "moe-replay"):
    page, help_text = page_of(f"{name}.1"), run(program(name), "--help").stdout
    options = options_of_page(part(page, ("Sh", "OPTIONS")))
    told = options_of_help(help_text)
    if name == "expertfs":  # --help shows its argument as OPTION[,OPTION...]
        options = {(names, "MOUNT" if names == ("-o",) else value) for names, value in options}
        told = {(names, "MOUNT" if names == ("-o",) else value) for names, value in told}
    same(f"{name}: the page and --help", options, told)
    accepted(name, [program(name)], options, {**SAMPLES, "MOUNT": "ro", "NAME": "mmap" if name == "moe-replay" else "auto"})

page = page_of("moe-replay.1")
options = options_of_page(part(page, ("Sh", "PREDICTION")))
help_text = run(program("moe-replay"), "predict", "--help").stdout
same("moe-replay predict: the page and --help", options, options_of_help(help_text))
accepted("moe-replay predict", [program("moe-replay"), "predict"], options,
         {**SAMPLES, "NAME,...": "request,transition", "KIND": "all"})
for command, section in (("assign", "ASSIGNMENT"), ("place", "PLACEMENT")):
    options = options_of_page(part(page, ("Sh", section)))
    same(f"moe-replay {command}: the page and --help", options,
         options_of_help(run(program("moe-replay"), command, "--help").stdout))
    accepted(f"moe-replay {command}", [program("moe-replay"), command], options,
             {**SAMPLES, "NAME,...": "prism,ours", "NAME": "h100"})

page, help_text = page_of("expertctl.1"), run(program("expertctl"), "--help").stdout
description = part(page, ("Sh", "DESCRIPTION"))
commands = re.findall(r"^\.Ss (\S+)$", description, re.M)
same("expertctl: commands of the page and of --help", commands, re.findall(r"^  ([a-z]+) +\S", help_text, re.M))
same("expertctl: commands of the synopsis", re.findall(r"^\.Cm ([a-z]+)\b", part(page, ("Sh", "SYNOPSIS")), re.M), commands)
common = options_of_page(description[:description.index("\n.Ss ")])
check("expertctl: three options of every command", len(common) == 3, common)
for command in commands:
    text = run(program("expertctl"), command, "--help").stdout
    check(f"expertctl {command} --help: has examples, and --json", re.search(rf"^Examples:\n  expertctl {command} ?", text, re.M) and
          "--json " in text, text)
    options = options_of_page(part(page, ("Ss", command))) | common
    same(f"expertctl {command}: the page and --help", options,
         options_of_help(run(program("expertctl"), command, "--help").stdout))
    accepted(f"expertctl {command}", [program("expertctl"), command], options)

topics = re.findall(r"^\.It Ql (.+)$", part(page, ("Ss", "doctor")), re.M)
said = run(program("expertctl"), "doctor", program("expertctl"), SCRATCH, scratch("missing")).stdout
found = [line[8:20].strip() for line in said.splitlines()]
check("expertctl doctor: topics", set(found) <= set(topics) and set(topics) - set(found) <= {"buffers", "errors"},
      set(found) ^ set(topics))
check("expertctl doctor: words", {line.split()[0] for line in said.splitlines()} <= {"good", "slower", "WRONG"}, said)

print("-- mount options")
page = page_of("expertfs.1")
text = part(page, ("Sh", "MOUNT OPTIONS"))
told = {}
for line in re.findall(r"^\.It Cm (.*)$", text, re.M):
    words = [word for word in line.split() if word not in ("Ns", "Ar", "Cm")]
    told[words[0]] = "".join(words[2:])
refusal = run(program("expertfs"), "-o", "surely_not", "--help")
check("an unknown one is refused with 2", refusal.returncode == 2, refusal.returncode)
source = open(os.path.join(ROOT, "expertfs", "base", "options.c")).read()
table = re.search(r"^static const struct option table\[\] = \{(.*?)^\};", source, re.M | re.S).group(1)
allowed = {name: "" if values == "NULL" else values.strip('"') for name, values in
           re.findall(r'\{"([\w-]+)", TAKE_\w+, [^"]*?(NULL|"[^"]*")', table)}
allowed |= {name: values for name, values in tunables().items() if name in told}  # expertfs-proc(5) has all
same("the page and expertfs/base/options.c", told, allowed)
differ = {name for name in allowed if allowed[name] and allowed[name] != told.get(name)}
check("their values", not differ, {name: (allowed[name], told.get(name)) for name in differ})
help_names = re.findall(r"^  ([a-z_-]+)(?:=\S+)?(?:  |$)", run(program("expertfs"), "--help").stdout.split("Options of -o")[1], re.M)
check("--help lists them", set(help_names) <= set(told) | set(tunables()) and len(help_names) >= 10, set(help_names) ^ set(told))
refused = []
for name, values in told.items():
    for value in values.split("|") if values else [None]:
        given = name if value is None else f"{name}={SAMPLES.get(value, value)}"
        if run(program("expertfs"), "-o", given, "--help").returncode:
            refused.append(given)
check("all of the page are accepted", not refused, refused)
passed = re.search(r"have no effect:\n(.*?)^Any other", text, re.M | re.S).group(1)
passed = [name for line in re.findall(r"^\.Cm (.*)$", passed, re.M) for name in line.split(" , ")]
passed = [name.rstrip(" ,.") for name in passed]
ignored = re.findall(r'"(\w+)"', re.search(r"ignored\[\] = \{(.*?)\};", source, re.S).group(1))
same("those of mount(8): the page and expertfs/base/options.c", passed, ignored + ["comment", "x-"])
refused = [name for name in passed if run(program("expertfs"), "-o", name, "--help").returncode]
check("all of them are accepted", not refused, refused)

print("-- JSON")


def names_of_json(text, section="JSON"):
    return [name for names in re.findall(r"^\.It Va (.*)$", part(text, ("Sh", section)), re.M) for name in
            names.split(" , Va ")]


model, store = scratch("model"), scratch("model.efs")
made = run(program("mkmodel"), "--preset=tiny-qwen3-moe", model)
packed = json.loads(run(program("mkexpertfs"), "--quiet", "--json", model, store).stdout)
page = page_of("mkexpertfs.1")
same("mkexpertfs --json", names_of_json(page), packed)
row_text = part(page, ("Sh", "JSON")).split(".It Va rows")[1]
same("its rows", re.findall(r"^\.Va (\w+)", row_text, re.M), packed["rows"][0])
info = json.loads(run(program("expertctl"), "info", "--json", store).stdout)
page = page_of("expertctl.1")
same("expertctl info --json", names_of_json(page), info)
codec_text = part(page, ("Sh", "JSON")).split(".It Va codecs")[1].split(".It Va")[0]
named = re.findall(r"\w+", " ".join(re.findall(r"^\.Va (.*)$", codec_text, re.M)))
same("its codecs", named, list(info["codecs"]) + list(info["codecs"]["none"]))
os.environ["EXPERTFS_STATE"] = scratch("state")
profile = run(program("expertctl"), "profile", "--seconds=1", "--json", store).stdout
os.makedirs(scratch("mnt"))
run(program("expertfs"), store, scratch("mnt"))
status = json.loads(run(program("expertctl"), "status", "--json", scratch("mnt")).stdout or "{}")
run(program("expertctl"), "down", scratch("mnt"))
if status:
    same("expertctl status --json", names_of_json(page, "JSON OF STATUS"), status)
same("expertctl profile --json", names_of_json(page, "JSON OF PROFILE"), json.loads(profile))
trace = struct.pack("<8s6IQI4H", b"MOETRACE", 1, 2, 4, 2, 0, 0, 1, 0, 0, 1, 2, 3)
open(scratch("one.route"), "wb").write(trace)
runs = json.loads(run(program("moe-replay"), "--store", store, "--policy", "lru", "--budget", "50%", "--json", "-",
                      scratch("one.route")).stdout)
same("moe-replay --json", names_of_json(page_of("moe-replay.1")), runs[0])
store_page = page_of("expertfs-store.5")
same("its report", re.findall(r"^\.Va (\w+)", part(store_page, ("Ss", "REPORT")), re.M), info["report"])
done()
