#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every C file is formatted as .clang-format specifies, by the pinned version: other versions give other results.
set -u
cd "$(dirname "$0")/../.."
format=$(dirname "${PYTHON:-/usr/bin/python3}")/clang-format
[ -x "$format" ] && "$format" --version | grep -q ' 14\.' ||
    { echo "clang-format 14 is not installed: tools/setup-python basic"; exit 77; }
files=$(git ls-files '*.c' '*.h' '*.cu' 2>/dev/null) && [ -n "$files" ] ||
    files=$(find engine expertfs kernels sched tests tools -name '*.[ch]' -o -name '*.cu')
"$format" --dry-run -Werror $files || { echo "run: make format"; exit 1; }
