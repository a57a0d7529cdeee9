#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The checks of symbols detect violations, also in a folder with a blank in its name: in a copy of the tree, objects of
# one room get the names of another room's, and each must be reported.
set -u
cd "$(dirname "$0")/../.."
objects=${BUILD:-build}/obj
[ -e "$objects/engine/base/sys.o" ] || { echo "nothing is built"; exit 77; }
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
copy="$dir/a folder"
mkdir -p "$copy/tests/house" "$copy/build/obj" || exit 1
cp -r engine expertfs kernels sched tools "$copy" && cp tests/house/test_house.sh "$copy/tests/house" || exit 1
for house in engine expertfs kernels sched; do cp -r "$objects/$house" "$copy/build/obj" || exit 1; done
swap() { cp "$objects/$1" "$copy/build/obj/$2" || exit 1; }
swap engine/base/sys.o kernels/matvec.o
swap expertfs/fuse/reads.o expertfs/base/log.o
swap engine/serve/serve.o engine/trace/record.o
out=$(BUILD="$copy/build" "$copy/tests/house/test_house.sh") && { echo "nothing was complained of"; exit 1; }
bad=0
for what in 'kernels/matvec.o: uses [a-z]' 'expertfs/base/ uses efsd_[a-z_]* of expertfs/' \
    'engine/trace/record.o: calls efs_[a-z_]* of engine/fetch/'; do
    grep -q "$what" <<<"$out" || { echo "not complained of: $what"; bad=1; }
done
[ "$bad" = 0 ] || echo "$out" | head -20
exit $bad
