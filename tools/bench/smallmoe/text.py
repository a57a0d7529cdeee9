#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""text.py WORK: text for training and running the small model, from documentation in Debian packages.

The packages are downloaded with apt-get (not installed) and unpacked into WORK/debs. Writes these files, with a zero
byte between documents:

    WORK/train.txt    manual pages and manuals, 19 files of 20
    WORK/held.txt     the twentieth: the same kind of text, not used for training
    WORK/other.txt    another kind of text, fortunes, not used for training
"""
import gzip
import hashlib
import html.parser
import os
import re
import subprocess
import sys

MANUALS = ["manpages", "manpages-dev", "debian-policy", "debian-faq", "doc-debian", "developers-reference",
           "maint-guide", "apt-doc", "bash-doc", "glibc-doc", "dict-jargon"]
OTHER = ["fortunes", "fortunes-min"]
LEAST = 400  # limits of a document's length, characters
MOST = 400_000


class Plain(html.parser.HTMLParser):
    """Collects the visible text of an HTML page in words."""

    def __init__(self):
        super().__init__()
        self.words, self.hidden = [], 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in ("script", "style", "head")

    def handle_endtag(self, tag):
        self.hidden -= tag in ("script", "style", "head") and self.hidden > 0

    def handle_data(self, data):
        if not self.hidden:
            self.words.append(data)


def from_roff(text):
    """The text of a manual page, with the arguments of macros, without comments, macro names and font changes."""
    lines = []
    for line in text.split("\n"):
        if line.startswith((".\\\"", "'\\\"", ".TH", ".IX", ".de", ".if", ".ie", ".el", ".ds", ".nr", ".so")):
            continue
        line = re.sub(r"^\.\s*\S*\s?", "", line)
        line = re.sub(r"\\f(\(..|\[\w*\]|.)", "", line)
        line = re.sub(r"\\(-|e|&|\||\^|c)", lambda m: {"-": "-", "e": "\\"}.get(m[1], ""), line)
        lines.append(re.sub(r"\\\((..)", lambda m: {"aq": "'", "bu": "*", "em": "-", "lq": '"', "rq": '"'}.get(
            m[1], ""), line).replace('"', ""))
    return "\n".join(lines)


def read_document(path):
    """The text of a file; None: not English text, or too short."""
    name = os.path.basename(path)
    data = open(path, "rb").read()
    if name.endswith((".gz", ".dz")):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError):
            return None
        name = name.rsplit(".", 1)[0]
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    if "/man/man" in path:
        text = from_roff(text)
    elif name.endswith(".html"):
        page = Plain()
        page.feed(text)
        text = "".join(page.words)
    elif not (name.endswith((".txt", ".dict", ".info")) or "/fortunes/" in path and "." not in name):
        return None
    text = re.sub(r"[ \t]+", " ", text.replace("\0", ""))
    text = re.sub(r" ?\n ?(\n ?)+", "\n\n", text).strip()
    plain = sum(c.isascii() and (c.isalpha() or c == " ") for c in text)
    return text[:MOST] if len(text) >= LEAST and plain > 0.6 * len(text) else None


def documents(folder):
    """Yields (path, text) of the documents below folder, in English, without duplicates: packages contain the same text
    as plain text and as HTML."""
    seen = set()
    for root, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(root, name)
            if os.path.islink(path) or re.search(r"[._-](?!en)[a-z]{2}(_[A-Z]{2}|-[a-z]{2})?\.(html|txt)", name):
                continue
            text = read_document(path)
            mark = text and hashlib.sha256("".join(text.split())[:2000].encode()).digest()
            if text and mark not in seen:
                seen.add(mark)
                yield os.path.relpath(path, folder), text


def unpack(work, package):
    """Downloads and unpacks a package. Returns its folder; None: it cannot be downloaded."""
    debs = os.path.join(work, "debs")
    folder = os.path.join(debs, package)
    if not os.path.isdir(folder):
        os.makedirs(debs, exist_ok=True)
        done = subprocess.run(["apt-get", "download", "-q", package], cwd=debs, capture_output=True, text=True)
        if done.returncode:
            print(f"text.py: {package} cannot be downloaded, goes without: {done.stderr.strip().splitlines()[-1]}; "
                  "is `apt-get update` needed?", file=sys.stderr)
            return None
        deb = next(n for n in os.listdir(debs) if n.startswith(package + "_") and n.endswith(".deb"))
        subprocess.run(["dpkg-deb", "-x", deb, package + ".part"], cwd=debs, check=True)
        os.rename(folder + ".part", folder)
    return folder


def main():
    work = sys.argv[1]
    parts = {"train": [], "held": [], "other": []}
    for package in MANUALS + OTHER:
        folder = unpack(work, package)
        for path, text in documents(folder) if folder else ():
            held = hashlib.sha256(path.encode()).digest()[0] % 20 == 0
            parts["other" if package in OTHER else "held" if held else "train"].append(text)
    if not all(parts.values()):
        sys.exit("text.py: not enough text; `apt-get update`, then again")
    for part, texts in parts.items():
        texts.sort(key=lambda text: hashlib.sha256(text.encode()).digest())
        with open(os.path.join(work, part + ".txt"), "w", encoding="utf-8") as f:
            f.write("\0".join(texts))
        print(f"{part}: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.2f} M characters")


if __name__ == "__main__":
    main()
