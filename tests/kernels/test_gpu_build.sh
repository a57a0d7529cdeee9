#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tools/gpu: without nvcc it reports that it builds nothing and succeeds; with nvcc every kernel builds without a
# warning.
set -eu
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }

said=$(NVCC=$work/none tools/gpu "$work/none.out") || fail "without nvcc: exit $?"
[[ $said == "gpu: not built: "* ]] || fail "without nvcc: $said"
[ ! -e "$work/none.out" ] || fail "without nvcc: something was made"
printf '#!/bin/sh\n[ "$1" != --list-gpu-code ] || { echo sm_90; exit; }\necho "error: broken" >&2; exit 1\n' >"$work/nvcc"
chmod +x "$work/nvcc"
! said=$(NVCC=$work/nvcc tools/gpu "$work/out" 2>&1) || fail "a compiler that fails: exit 0"
[[ $said == *"does not know sm_80"*"error: broken"* ]] || fail "a compiler that fails: $said"

said=$(tools/gpu "$work/gpu" 2>&1) || fail "$said"
if [[ $said == "gpu: not built"* ]]; then
    echo "$said: only that was looked at"
    exit 0
fi
while read -r kernel; do
    grep -qE "^$kernel +sm_[0-9]+ +[0-9]+ registers +[0-9]+ bytes of shared memory +0 spilled$" <<<"$said" || fail "$kernel: $said"
done < <(grep -oE 'efs_gpu_[a-z_]+\(const' kernels/cuda/kernels.cu | sed 's/(const//')
[ -s "$work/gpu/kernels.fatbin" ] || fail "no kernels.fatbin"
echo "every kernel is built"
