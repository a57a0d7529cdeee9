#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The session that autopkgtest(1) runs with the packages, here with the programs of the build; links between the
# documents that are packaged.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs expertctl mkmodel
tools/packaging/docs "$dir/doc" || complain "docs: exit $?"
for document in "$dir"/doc/*.md; do
    while read -r target; do
        case $target in
        http* | \#*) ;;
        README.md | BENCHMARKS.md | llama.svg) [ -e "$dir/doc/$target" ] || complain "$document: $target is not there" ;;
        changelog.gz | copyright) ;; # made by debhelper
        *) complain "$document: a link to $target, which is not in the package" ;;
        esac
    done < <(grep -oP '\]\(\K[^)]*' "$document")
    grep -q '^!\[' "$document" || complain "$document: the image is not there"
done
if [ -c /dev/fuse ] && command -v fusermount3 >/dev/null; then
    PATH=$(dirname "$mkexpertfs"):$PATH EXPERTFS_UNPACKED=1 EXPERTFS_README=$PWD/README.md ran 0 tools/packaging/debian/tests/first-session
    says 'a first session: well'
    [ "$bad" = 0 ] || cat "$dir/out" "$dir/err"
fi
[ "$bad" = 0 ] && echo "first session: well"
exit "$bad"
