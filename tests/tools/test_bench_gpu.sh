#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/bench/run gpu completes on a driver without a device, and reports the same bytes both ways; it refuses
# cases that it cannot measure.
set -eu
cd "$(dirname "$0")/../.."
export BUILD=${BUILD:-$PWD/build} ROUNDS=2 KERNELS_MIB=1
EXPERTFS_STATE=$(mktemp -d)
export EXPERTFS_STATE EXPERTFS_CUDA=$BUILD/tests/engine/libcuda-fake.so
trap 'rm -rf "$EXPERTFS_STATE"' EXIT
fail() { echo "$*"; exit 1; }

said=$(tools/bench/run gpu -l 8 --preset tiny-qwen3-moe 2>&1) || {
    [[ $said != *"built without kernels"* ]] || { echo "the library was built without kernels for graphics processors"; exit 77; }
    fail "$said"
}
[ "$(grep -c '^-- from' <<<"$said")" = 2 ] || fail "$said"
for name in plain_bytes_a_round link_bytes_over_plain coded_gb_per_second raw_gb_per_second coded_over_raw; do
    [ "$(grep -cE "^$name: [0-9]+(\.[0-9]+)?$" <<<"$said")" = 2 ] || fail "no $name: $said"
done
[ "$(grep -c '^{"format": .*"decode_ratio": .*"recover_ratio": ' <<<"$said")" = 6 ] || fail "no kernels: $said"
while read -r _ ratio; do
    [[ $ratio == 0.[67]* ]] || fail "chunks are two thirds: $said"
done < <(grep ^link_bytes_over_plain <<<"$said")

status=0
"$BUILD/bench_gpu" 2>/dev/null || status=$?
[ $status = 2 ] || fail "without stores: $status"
status=0
said=$("$BUILD/bench_gpu" /nowhere.efs /nowhere.efs 2>&1) || status=$?
[ $status = 1 ] && [[ $said == *nowhere* ]] || fail "no store: $said"
echo "bench-gpu runs"
