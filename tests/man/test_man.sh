#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The man pages are well-formed, refer to each other, have the version of the programs, and are in docs/man as they are
# here; README only names existing files and make targets.
set -u
cd "$(dirname "$0")/../.." || exit 1
build=${BUILD:-build}
bad=0
complain() { echo "FAILED: $*"; bad=1; }
version=$(sed -n 's/^VERSION := //p' Makefile)

# Every page formats without a warning
if command -v mandoc >/dev/null; then
    for page in man/*.[1-8]; do
        said=$(mandoc -T lint -W warning "$page" 2>&1) || complain "mandoc -T lint: $said"
    done
    said=$(tools/manual --check) || complain "$said"
elif command -v man >/dev/null && command -v groff >/dev/null; then
    for page in man/*.[1-8]; do
        said=$(MANWIDTH=80 man --warnings=all -E UTF-8 -l "$page" 2>&1 >/dev/null) || complain "$page does not format"
        [ -z "$said" ] || complain "man --warnings: $said"
    done
else
    echo "neither mandoc nor man with groff is installed: the pages' form was not checked"
    lint_skipped=1
fi

# Title and name equal the file's name; references to our pages resolve; no line ends with a blank
for page in man/*.[1-8]; do
    name=${page##*/}
    title=$(sed -n 's/^\.Dt //p' "$page")
    [ "$title" = "$(tr '[:lower:]' '[:upper:]' <<<"${name%.*}") ${name##*.}" ] || complain "$page: .Dt $title"
    [ "$(sed -n '/^\.Sh NAME/{n;s/^\.Nm //p}' "$page")" = "${name%.*}" ] || complain "$page: NAME is another"
    grep -qx "\.Os \"expertfs $version\"" "$page" || complain "$page: .Os is not expertfs $version"
    while read -r _ to section _; do
        case "$to $section" in
        'fusermount3 1' | 'cachestat 2' | 'execve 2' | 'fork 2' | 'getfattr 1' | 'listxattr 2' | 'madvise 2' | 'mlock 2' | 'mmap 2' | 'open 2' | 'open_by_handle_at 2' | 'pread 2' | 'read 2' | 'setfattr 1' | 'stat 2' | 'syslog 3' | 'write 2' | 'fstab 5' | 'nohup 1' | 'mount 8' | 'umount 8' | 'sudo 8') ;; # the system's
        *) [ -e "man/$to.$section" ] || complain "$page refers to $to($section)" ;;
        esac
    done < <(grep '^\.Xr ' "$page")
    grep -n '[[:space:]]$' "$page" && complain "$page: blanks at the end of a line"
done
for page in mkexpertfs.1 expertfs.1 expertctl.1 moe-replay.1 expertfs-store.5 expertfs-proc.5 libexpertfs.3 expertfs-guide.7 expertfs-ggml.7; do
    [ -e "man/$page" ] || complain "there is no man/$page"
done

# One version everywhere
for program in mkexpertfs expertfs expertctl expertpeer moe-replay; do
    [ -x "$build/$program" ] || { complain "$program is not built"; continue; }
    said=$("$build/$program" --version)
    [[ " $said " == *" $version "* ]] || complain "$program --version says \"$said\", the Makefile $version"
done

# README: the files and targets that it names exist
if [ -e README.md ]; then
    while read -r path; do
        [ -e "$path" ] || complain "README.md links to $path"
    done < <(grep -oE '\]\([^):#]+\)' README.md | sed -E 's/^\]\(//; s/\)$//')
    while read -r target; do
        grep -qE "^([a-z -]+ )?$target( [a-z -]+)?:|^\.PHONY:.* $target( |$)" Makefile || complain "README.md: make $target"
    done < <(grep -oE '\bmake [a-z][a-z-]+' README.md | sed 's/make //' | sort -u)
    while read -r folder; do
        grep -q "\`$folder/" README.md || complain "README.md: the map lacks $folder/"
    done < <(git ls-files 2>/dev/null | grep / | grep -v '^\.' | cut -d/ -f1 | sort -u)
else
    complain "there is no README.md"
fi
[ $bad = 0 ] || exit 1
if [ "${lint_skipped:-}" ]; then
    echo "all but the pages' form is well; neither mandoc nor man with groff is installed for that"
    exit 77
fi
echo "the pages are well"
