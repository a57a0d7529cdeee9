# SPDX-License-Identifier: Apache-2.0
"""The files, identifiers, targets, tests and man pages that CONTRIBUTING.md names exist."""
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
os.chdir(ROOT)
text = open("CONTRIBUTING.md", encoding="utf-8").read()


def known(word, among):
    return word in among or ("NAME" in word and any(re.fullmatch(word.replace("NAME", "[a-z0-9_]+"), one) for one in among))


def words_of(path):
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", open(path, encoding="utf-8", errors="replace").read()))


tree = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], stdout=subprocess.PIPE, text=True, check=True).stdout.split("\n")
tree = [path for path in tree if path and os.path.exists(path)]
names = {os.path.basename(path) for path in tree}
words = set()
for path in tree:
    if path.endswith((".c", ".h", ".cu", ".py", ".sh", ".map", ".1", ".5", "Makefile")) or path in ("tests/run", "tests/reach"):
        words |= words_of(path)
tests = [re.sub(r"\.(c|sh|py)$", "", path) for path in tree if re.search(r"(^|/)(test_|fuzz_)[^/]*\.(c|sh|py)$", path)]
missing = []


def expect(what, found):
    if not found:
        missing.append(what)


def exists(path):
    """A path or the name of a file; NAME, ROOM and the like stand for some names."""
    pattern = re.sub(r"[A-Z]{3,}", "*", path) if not os.path.exists(path) else path
    return path.startswith(("build/", "results/")) or glob.glob(pattern) or any(
        re.fullmatch(pattern.replace(".", r"\.").replace("*", ".*"), name) for name in names)


spans = re.findall(r"`([^`]+)`", text) + [line.strip().split("  ")[0] for line in re.findall(r"^    (\S.*)$", text, re.M)]
for span in spans:
    if span.startswith(("tests/run ", "make check")):
        for pattern in re.split(r"; *make.*", span.split(" ", 1)[1])[0].split() if span.startswith("tests/run") else []:
            expect(f"{span}: no test is named {pattern}", pattern.isupper() or "..." in pattern or
                   any(pattern in test or pattern in test + ".sh" for test in tests) or exists(pattern))
        continue
    for target in re.findall(r"\bmake ((?:[a-z][a-z-]*(?: |$))+)", span):
        for one in target.split():
            expect(f"make {one}", re.search(rf"^(\.PHONY:.* |)\b{one}\b", open("Makefile").read(), re.M))
    for word in re.findall(r"[A-Za-z_0-9.*/+-]+", re.sub(r"\bmake .*|(?<![\w/])--?[a-z-]+|[A-Z_]+=\S+", "", span)):
        if re.search(r"/.|\.(c|h|py|sh|cu|map|txt|md)$", word) and not word.startswith(("/", "fake", "ggml-", ".expertfs/")):
            expect(word, exists(word))
        elif re.fullmatch(r"[A-Za-z_]*_[A-Za-z_0-9]*", word) and not word.startswith("_"):
            expect(word, known(word, words))
for name, part in re.findall(r"\b([a-z]+(?:-[a-z]+)*)\(([1-8])\)", text):
    expect(f"man/{name}.{part}", os.path.exists(f"man/{name}.{part}") or os.path.exists(f"tools/mkmodel/{name}.{part}"))
FILE = r"`([\w/.-]+\.(?:c|h|py))`"
END = rf"(?=\. |\.$|; |\n\n|{FILE.replace('(', '(?:', 1)})"
inside = re.findall(rf"{FILE}(?: \([^)]*\))?: (.*?){END}", text, re.S)  # `FILE`: ... `NAME`
inside += [(path, what) for what, path in re.findall(rf"((?:`\w+`(?:,\s|\sor\s|\sand\s)?)+)\s(?:of|in)\s{FILE}", text)]
for path, what in inside:
    place = path if os.path.exists(path) else next((one for one in tree if os.path.basename(one) == path), None)
    for word in re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", what))) if place else []:
        expect(f"{word} in {path}", word in ("NAME", "struct", "enum") or known(word, words_of(place)))
for line in missing:
    print(f"CONTRIBUTING.md: {line}: not found")
print(f"{len(spans)} spans of code, {len(missing)} names missing")
sys.exit(1 if missing else 0)
