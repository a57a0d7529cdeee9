#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds the kernels for 64-bit Arm with a cross compiler and runs their tests under qemu's user emulation.
# EXPERTFS_NEON=all runs every test of the kernels, otherwise test_cascade only.
# Exit status 0 and "OK", 77 with a reason when a tool is missing, 1 when a test fails.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
cross=${CROSS_CC:-aarch64-linux-gnu-gcc}
run=

if [ "$(uname -m)" = aarch64 ]; then
    cross=${CROSS_CC:-cc}
else
    for qemu in qemu-aarch64 qemu-aarch64-static; do
        command -v "$qemu" >/dev/null 2>&1 && run=$qemu && break
    done
    [ -n "$run" ] || { echo "SKIP: no qemu-aarch64 (Debian: qemu-user)"; exit 77; }
fi
command -v "$cross" >/dev/null 2>&1 || { echo "SKIP: no $cross (Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross)"; exit 77; }

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' INT TERM

compile=("$cross" -std=gnu11 -O3 -ffp-contract=off -Wall -Wextra -Wconversion -Wshadow -Werror -D_GNU_SOURCE -static
    -I"$root/tests/kernels/neon" -I"$root/tests/common" -I"$root/tests/kernels" -I"$root/kernels")
mkdir "$tmp/objects"
cd "$tmp/objects"
for source in "$root"/kernels/*.c; do
    case $source in
    *_avx2.c | *_avx512.c | *_avx512bf16.c) ;;
    *) "${compile[@]}" -c "$source" ;;
    esac
done

tests=("$root/tests/kernels/test_cascade.c")
[ "${EXPERTFS_NEON:-}" != all ] || tests=("$root"/tests/kernels/test_*.c)
for test in "${tests[@]}"; do
    name=$(basename "$test" .c)
    "${compile[@]}" -o "$tmp/$name" ./*.o "$test" -lm
    EXPERTFS_CPU=neon $run "$tmp/$name" >"$tmp/log" 2>&1 || { cat "$tmp/log"; echo "FAIL: $name on aarch64"; exit 1; }
    grep 'neon' "$tmp/log" || true
done
echo OK
