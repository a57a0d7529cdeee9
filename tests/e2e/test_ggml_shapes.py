#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Single products of libggml-expertfs.so against those of ggml's CPU backend, on the shapes with which ggml tests its
own backends: numbers of experts, of experts used, of rows, columns and tokens; one input for all experts of a token, or
one each; BF16, F32 and every block type bit by bit, F16 by its error; one, two and three threads. Two contexts, of which one is freed, and
unloading."""
from e2e import *
from test_ggml import PLUGIN, PYTHON, need_plugin, plugin_environment

CLIENT = os.path.join(ROOT, "tests", "clients", "ggml_shapes.py")


def main():
    need_plugin()
    model = scratch("shapes.gguf")
    made = run(PYTHON, CLIENT, "make", model)
    if made.returncode == 77:
        skip(made.stdout.strip())
    if not check("the weights are made", made.returncode == 0, made.stderr[-1000:]):
        done()
    store = make_store(model)
    result = run(PYTHON, CLIENT, "unload", model, PLUGIN, env=plugin_environment(store))
    check("two contexts, freed in turn; unloaded three times", result.returncode == 0 and "unloaded\n" in result.stdout,
          result.stdout[-1500:] + result.stderr[-1500:])
    for threads in ("1", "2", "3"):
        result = run(PYTHON, CLIENT, "run", model, PLUGIN, threads, env=plugin_environment(store), timeout=800)
        if result.returncode == 77:
            skip(result.stdout.strip())
        check(f"{threads} threads: all products are as ggml's", result.returncode == 0 and "compared: 1356\n" in result.stdout,
              result.stdout[-1500:] + result.stderr[-1500:])
    done()


if __name__ == "__main__":
    main()
