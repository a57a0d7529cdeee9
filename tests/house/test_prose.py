# SPDX-License-Identifier: Apache-2.0
"""Comments, man pages and documents use the words of the field: at most 10 turns of phrase of TURNS per 1,000 lines of
prose in each folder. `test_prose.py --list [PATH...]` prints the lines. A hit that reads well may stay."""
import os
import re
import subprocess
import sys

LIMIT = 10  # per 1,000 lines; a folder may have one hit
TURNS = [(re.compile(pattern, re.IGNORECASE), words) for pattern, words in (
    (r"\b(for|by|of|to|with|from|than|beside|and) who\b|"
     r"(^|[.;:(] *)who (?!is who)\w+|\bwho (waits?|asks?|reads?|comes?|needs?|goes|has|holds?|takes?|wants?|looks?|frees?|opens?|calls?)\b",
     "who, of threads and code: 'the waiter', 'the caller', 'a thread that'"),
    (r"\btells?\b|\btold\b|\btelling\b", "tell: 'report', 'print', 'return', 'notify'"),
    (r"\basked for\b|\basks? for\b(?=.{0,12}$)", "asked for: 'requested'"),
    (r"\bnobody\b|\bno one\b|\banybody\b|\bsomebody\b", "nobody: 'no thread', 'no caller', 'no process'"),
    (r"\b(gives?|gave|given|giving) (way|back|away)\b", "give way/back: 'evict', 'release', 'free', 'return'"),
    (r"\blets? go\b|\bletting go\b|\bgone\b|\bgoes away\b", "let go, gone: 'release', 'freed', 'evicted'"),
    (r"\bcomes? (free|due|back|first|of|to)\b|\bcame (free|back|of)\b", "comes free: 'is released'"),
    (r"\b(can|could|to|may|is|not) be had\b|\bto be had\b", "be had: 'available', 'allocate'"),
    (r"\bstands? (in|at|for|there|behind|before|on|as)\b|\bstood\b|\bstanding (in|at)\b",
     "stands in: 'is stored in', 'resides in'"),
    (r"\bbegun\b|\bbegan\b|\bbegins? (again|anew)\b|\banew\b", "begun: 'started', 'in flight', 'retry'"),
    (r"\bbeside\b|\bthereby\b|\btherein\b|\bmerely\b|\bowed?\b|\bowes\b|\bhence\b",
     "beside: 'next to', 'in addition to'"),
    (r"\breckon\w*", "reckon: 'estimate', 'compute'"),
    (r"\bguess(es|ed|ing)?\b", "guess: 'prediction', 'prefetch'"),
    (r"\bkeepers?\b|\bsteward\b|\bbooks\b|\bgauge\b|\bhandouts?\b|\blooks? after\b", "private nouns"),
    (r"\bothers\b", "others: name them: 'other threads', 'other clients'"),
    (r"\bbut for\b|\brather (no|a|be)\b|\bsave for\b|\bever so\b|\bby and by\b|\bto spare\b", "but for: 'except'"),
    (r"\bsince it (was|is|has)\b|\bfor it (is|was|has|would)\b|\bin vain\b|\bno end\b|\bat an end\b",
     "for it is: 'because'"),
    (r"(^|[.;:(,] *)what (is|was|are|were|it|they|has|have|comes|goes|must|can|may|does|waits|holds|needs|others|one|we|a|the|no)\b",
     "headless what: name the thing"),
    (r"\b(that|those|these|one|ones|it|they) (of|for|in|with) (which|whom|whose)\b|\bin whose\b|\bof whose\b|"
     r"\bby whose\b",
     "of which: split the sentence"),
    (r"\bas (much|many|long|far|often|soon) as (there|it|they|can|may|is|are)\b", "as much as: give the bound"),
    (r"\bso (much|many|long|far|often)\b(?! (as|that))", "so much: give the quantity"),
    (r"\bmay not (be|have|come|go)\b.*\bwhose\b|\bwhoever\b|\bwhatever\b|\bwherever\b|\bwhichever\b",
     "whatever: name the cases"),
    (r"\bthe (former|latter)\b|\bof its own\b|\bby itself\b(?=.{0,3}$)|\bon its own\b(?=.{0,3}$)", "vague reference"),
    (r"\bgoes (for|by|with|along|ahead|there|in)\b|\bgo (for|by|with) it\b|\bwent (by|with|for)\b",
     "goes by: name the action"),
)]
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
ROFF = re.compile(r'\.(\\"|Dd|Dt|Os|Sh|SH|TH|nf|fi|Bl|El|Nm|in|sp|PP|TP|RS|RE)')


def prose(path):
    """(line number, text) of the prose of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if path.endswith((".c", ".h", ".cu")):
        for comment in COMMENT.finditer(text):
            first = text.count("\n", 0, comment.start()) + 1
            for number, line in enumerate(comment.group().split("\n"), first):
                line = line.strip().strip("/*").strip()
                if line and "SPDX" not in line:
                    yield number, line
    elif path.endswith(".md"):
        code = False
        for number, line in enumerate(text.split("\n"), 1):
            code ^= line.startswith("```")
            if line.strip() and not code and not line.startswith("    "):
                yield number, line.strip()
    elif re.search(r"\.[1-8]$", path):
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip() and not ROFF.match(line):
                yield number, re.sub(r"\\f.|^\.\w+ ", "", line).strip()
    elif path.endswith((".sh", ".py")) or ("." not in os.path.basename(path) and text.startswith("#!")):
        for number, line in enumerate(text.split("\n"), 1):
            comment = re.search(r"(^|\s)#(?!!)\s*(.+)", line)
            if comment and "SPDX" not in line:
                yield number, comment.group(2).strip()


def files(paths):
    try:
        listed = subprocess.run(["git", "ls-files", "--", *paths], stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        print("no Git checkout")
        sys.exit(77)
    return [path for path in listed.stdout.split("\n") if path and os.path.isfile(path)]


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    listing, rooms, bad = "--list" in sys.argv, {}, 0
    for path in files([a for a in sys.argv[1:] if not a.startswith("--")]):
        if path == os.path.relpath(__file__):
            continue  # it has the patterns
        room = "/".join(path.split("/")[:2]) if path.count("/") > 1 else path.split("/")[0]
        counted = rooms.setdefault(room, [0, 0, []])
        for number, line in prose(path):
            hits = [words for pattern, words in TURNS if pattern.search(line)]
            counted[0] += 1
            counted[1] += len(hits)
            if hits:
                counted[2].append(f"{path}:{number}: {line[:110]}  [{hits[0]}]")
    for room, (lines, hits, which) in sorted(rooms.items()):
        too_many = hits > max(1, LIMIT * lines / 1000)
        bad += too_many
        if listing or too_many:
            print(f"{room}: {hits} in {lines} lines of prose", *which, sep="\n  ")
    return bad > 0


sys.exit(main())
