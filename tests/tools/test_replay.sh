#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# expertctl profile and moe-replay: options, a small trace with known results, JSON, mapping, Ctrl-C.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/tools.sh mkexpertfs expertctl moe-replay mkmodel
export EXPERTFS_STATE=$dir/state
run() { ran "$@"; } # EXIT PROGRAM ARGUMENT...
"$mkmodel" --preset=tiny-qwen3-moe "$dir/model" && "$mkexpertfs" -q "$dir/model" "$dir/m.efs" || exit 1

# Traces: skewed and random (4 layers of 16, top-3, 30 sequences), a second one with another seed, a long one
make_trace eval 1 30 20
make_trace past 2 30 20
make_trace long 3 2 2000 24 32 4
head -c 1000 "$dir/eval.route" >"$dir/cut.route"

# profile
run 2 "$expertctl" profile
run 2 "$expertctl" profile --seconds 0 "$dir/m.efs"
run 2 "$expertctl" profile a b
run 1 "$expertctl" profile "$dir/missing"
run 0 "$expertctl" profile --force --seconds 1 "$dir/m.efs"
for word in 'spread   disk .* %, decode .* %' 'disk .*GB/s' 'decode .*GB/s' 'rho 0\.' "saved  *$dir/state/profile-"; do says "$word"; done
run 0 "$expertctl" profile --force --seconds 1 --json "$dir/m.efs"
"$python" - "$dir" <<'P' || complain "profile --json: $(cat "$dir/out")"
import glob, json, sys
printed = json.load(open(sys.argv[1] + "/out"))
files = glob.glob(sys.argv[1] + "/state/profile-*")
assert len(files) == 1 and json.load(open(files[0])) == printed, files
assert printed["content_hash"] in files[0] and printed["tensors"] == 3 and printed["disk_bytes_per_second"] > 0
# round numbers for the following checks
printed.update(full_bytes=1000000, sm_bytes=500000, e_bytes=100000, coded_bytes=600000, tensors=1, shards=1, workers=2,
               disk_bytes_per_second=1e9, read_latency_ns=0, decode_bytes_per_second=1e9)
json.dump(printed, open(sys.argv[1] + "/p.json", "w"))
P
profile=$dir/p.json eval=$dir/eval.route past=$dir/past.route

# Usage
run 2 "$expertctl" replay "$eval"
[ "$(wc -l <"$dir/err")" = 1 ] || complain "expertctl replay: $(cat "$dir/err")"
warns 'moe-replay'
run 2 "$moe_replay" "$eval"
warns 'one of --store, --profile'
run 2 "$moe_replay" --store "$dir/m.efs" --profile "$profile" "$eval"
for wrong in --policy=best --policy=lru:most --policy=oracle:full --policy=zero-3:raw --policy=,lru --budget=50%,0% --budget=101% --budget=10%% --budget=nan% \
    --schedule=fast --tune=x=1 --tune=share --tune=share=2 --tune=swaps=65 --predict=oracle --predict=mixed,; do
    run 2 "$moe_replay" --profile "$profile" $wrong "$eval"
    warns "${wrong%%=*}"
done
run 1 "$moe_replay" --profile "$profile" "$dir/cut.route"
warns "cut.route: the trace says"
run 1 "$moe_replay" --profile "$profile" "$dir/m.efs"
warns 'not a routing trace'
: >"$dir/empty.route"
run 1 "$moe_replay" --profile "$profile" "$dir/empty.route"
warns 'empty.route: there is no token in this trace; .* once experts were asked for'
run 1 "$moe_replay" --profile "$profile" "$dir/missing"
run 1 "$moe_replay" --profile "$profile" --plan-from "$dir/cut.route" "$eval"
run 1 "$moe_replay" --profile "$eval" "$eval"
run 1 "$moe_replay" --store "$dir/missing" "$eval"
run 1 "$moe_replay" --profile "$profile" --json "$dir/no/such" --policy lru --budget 50% "$eval"
warns 'no/such'

# Runs: the numbers are consistent
all=zipmoe:makespan,zipmoe,published,lru,lru:even,lru:full,lru:raw,lfu,fifo,marking,marking:io,oracle
all=$all,least-stale,layer-lfu,fmoe,moe-infinity,dali,dali-printed
replay() { # JSON ARGUMENT...
    local json=$1
    shift
    run 0 "$moe_replay" --profile "$profile" --plan-from "$past" --json "$dir/$json" "$@"
}
replay a.json --policy $all --budget 10%,60%,48M --batch 1,4 "$eval"
says 'budget 10%: .*batch 4'
says '^I/O ms, batch 1'
says '^zipmoe:io .*\*'
for words in '^TPOT ms, batch 4' '^MB/tok, batch 1' '^TPOT: time per token'; do says "$words"; done
sed 's/"disk_bytes_per_second": [^,}]*/"disk_bytes_per_second": 1e15/' "$profile" >"$dir/fast.json"
grep -q 1e15 "$dir/fast.json" || complain "fast.json: $(cat "$dir/fast.json")"
replay z.json --profile "$dir/fast.json" --policy dali,dali-printed --budget 10%,60%,48M --layer-us 10 "$eval"
replay b.json --policy $all --budget 10%,60%,48M --batch 1,4 "$eval"
replay c.json --policy $all --budget 10%,60%,48M --batch 1,4 --schedule paper "$eval"
replay d.json --policy marking --budget 10% --tokens 100 --layer-us 100 --run-us 5 "$eval"
"$python" - "$dir" <<'P' || complain "replay --json"
import json, sys
a, b, c, d = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in "abcd")
fields = {"trace", "runner", "policy", "batch", "budget_bytes", "tokens", "tpot_ns_median", "tpot_ns_p99", "ttft_ns_median",
          "hits", "read_bytes_per_token"}
clocks = {"policy_ns_mean"}
assert len(a) == 18 * 3 * 2
whole = 4 * 16 * 1000000
for run in a:
    at = (run["policy"], run["pools"], run["budget"], run["batch"])
    assert fields <= set(run) and run["trace"] == "tst" and run["runner"] == "simulate", at
    assert run["tokens"] == 600 and sum(run["plan_bytes"].values()) <= run["budget_bytes"], at
    assert run["budget_bytes"] == {"10%": whole // 10, "60%": whole * 6 // 10, "48M": 48 << 20}[run["budget"]], at
    assert run["passes"] == 600 if run["batch"] == 1 else 150 <= run["passes"] < 300, at
    hits = run["hits"]
    assert sum(hits.values()) == 600 * 4 * 3 if run["batch"] == 1 else sum(hits.values()) < 600 * 4 * 3, at
    reads = hits["M"] * (1000000 if run["pools"] == "raw" else 600000) + hits["S"] * 100000 + hits["E"] * 500000
    dali = run["policy"].startswith("dali")  # reads experts without a request
    assert abs(run["read_bytes_per_token"] * 600 - reads) < 1 or dali and run["read_bytes_per_token"] * 600 > reads, at
    assert abs(run["io_ns_per_token"] * 600 - reads) < 1, at  # 1e9 bytes a second, no latency
    assert (0 < run["io_utilisation"] or dali) and run["io_utilisation"] <= 1 and 0 <= run["decode_utilisation"] <= 1, at
    assert run["tpot_ns_median"] <= run["tpot_ns_p99"] and run["ttft_ns_median"] <= run["ttft_ns_p99"], at
    if run["pools"] in ("coded", "even", "oracle"):
        assert hits["F"] == hits["S"] == hits["E"] == 0, at
        best = next(r for r in a if r["policy"] == "oracle" and r["budget"] == run["budget"] and r["batch"] == run["batch"])
        assert best["hits"]["M"] <= hits["M"] or dali, at
    if run["budget"] == "48M" and run["pools"] in ("coded", "oracle"):
        assert hits["M"] <= 4 * 16, at  # all experts fit: each is read at most once
strip = lambda runs, more=(): [{k: v for k, v in r.items() if k not in clocks and k not in more} for r in runs]
assert strip(a) == strip(b)  # repeatable
times = ("tpot_ns_median", "tpot_ns_p99", "ttft_ns_median", "ttft_ns_p99", "tokens_per_second", "io_utilisation",
         "decode_utilisation", "schedule")
assert strip(a, times) == strip(c, times)  # another order of the same reads
assert len(d) == 1 and d[0]["tokens"] == 100
assert d[0]["tpot_ns_median"] >= 4 * 100000
P

# Replacement of the papers: the same misses as with these few lines, one sequence at a time
"$python" - "$dir" <<'P' || complain "replacement"
import json, struct, sys
data = open(f"{sys.argv[1]}/eval.route", "rb").read()
_, layers, experts, chosen, _, name, tokens = struct.unpack_from("<6IQ", data, 8)
at, trace, sequences = 40 + name, [], []
for _ in range(tokens):
    sequences.append(struct.unpack_from("<I", data, at)[0])
    ids = struct.unpack_from(f"<{layers * chosen}H", data, at + 4)
    trace.append([ids[l * chosen:(l + 1) * chosen] for l in range(layers)])
    at += 4 + 2 * layers * chosen
def misses(rule, room):
    rooms = [room // layers + (l < room % layers) for l in range(layers)]
    dali = rule.startswith("dali")
    kept = {(l, e) for l in range(layers) for e in range(rooms[l])} if dali else set()
    last, count, calls, score, clock, missed = {}, {}, {}, {}, 0, 0
    for t, token in enumerate(trace):
        if t == 0 or sequences[t] != sequences[t - 1]:
            calls = {}
        for l, ids in enumerate(token):
            clock += 1
            asked = [(l, e) for e in ids]
            missed += sum(u not in kept for u in asked)
            absent = [u for u in asked if u not in kept]
            for u in asked:
                last[u] = clock
                count[u] = count.get(u, 0) + 1
                calls[u] = calls.get(u, 0) + 1
                score[u] = score.get(u, 0) + 1
            def worth(u):
                if rule == "layer-lfu":
                    return count[u]
                if rule == "moe-infinity":
                    of = sum(calls.get((u[0], e), 0) for e in range(experts))
                    return ((calls.get(u, 0) / of if of else 0) + 1e-3) * (1 - u[0] / layers)
                if u[0] <= l and last[u] <= clock - 1 - l:
                    return -(layers + 1)
                return -(u[0] - l if u[0] > l else layers - l + u[0])
            for u in absent if not dali else []:
                full = sum(k[0] == l for k in kept) == rooms[l] if rule == "layer-lfu" else len(kept) == room
                if full:
                    go = [k for k in kept if last[k] != clock and (rule != "layer-lfu" or k[0] == l)]
                    if not go:
                        continue
                    kept.remove(min(go, key=lambda k: (worth(k), last[k], k)))
                kept.add(u)
            if dali and (t % 4 == 3 if rule == "dali" else t % 4 == 0):
                of = lambda inside: [(l, e) for e in range(experts) if ((l, e) in kept) == inside]
                busy = lambda u: -score.get(u, 0)
                come, go = sorted(of(False), key=busy)[:8], of(True)
                go = sorted(go, key=(lambda u: score.get(u, 0)) if rule == "dali" else busy)[:8]
                for i, o in zip(come, go):
                    if rule == "dali" and score.get(i, 0) <= score.get(o, 0):
                        break
                    kept.remove(o)
                    kept.add(i)
                score = {u: n for u, n in score.items() if u[0] != l}
    return missed
# DALI's transfers take time: with an instantaneous disk the misses are equal, otherwise there are more.
slow = [run for run in json.load(open(f"{sys.argv[1]}/a.json")) if run["batch"] == 1]
fast = json.load(open(f"{sys.argv[1]}/z.json"))
assert len(fast) == 6
for run in fast:
    other = next(r for r in slow if (r["policy"], r["budget"]) == (run["policy"], run["budget"]))
    assert other["hits"]["M"] >= run["hits"]["M"] and (other["hits"]["M"] > 0 or run["budget"] != "48M"), (run, other)
for run in fast + slow:
    if run["policy"] in ("least-stale", "layer-lfu", "moe-infinity") or run in fast:
        want = misses(run["policy"], run["budget_bytes"] // 600000)
        assert run["hits"]["M"] == want, (run["policy"], run["budget"], run["hits"], want)
P

# Systems that load whole layers of 16 raw experts, 1 ms each. Two of four layers fit in 60 % of the memory (38 experts):
# Accelerate keeps one and reads three into the room of the second, none in 30 %. A token takes 3 (4) * 16 ms to read
# and 4 * 0.1 ms, the first one reads all. ZeRO-3 with any memory: 4 * 16 ms without other work, 4 * 20 ms if it reads a
# layer of 16 ms during 20 ms of other work.
replay l.json --policy accelerate,zero-3 --budget 30%,60%,100% --layer-us 100 --tokens 20 "$eval"
replay n.json --policy zero-3 --budget 60% --tokens 20 "$eval"
replay o.json --policy zero-3 --budget 60% --layer-us 20000 --tokens 20 "$eval"
"$python" - "$dir" <<'P' || complain "whole layers: $(cat "$dir"/[lno].json)"
import json, sys
l, n, o = (json.load(open(f"{sys.argv[1]}/{name}.json")) for name in "lno")
of = lambda policy, budget: next(r for r in l if (r["policy"], r["budget"]) == (policy, budget))
for budget, layers in (("30%", 4), ("60%", 3), ("100%", 0)):
    run = of("accelerate", budget)
    assert (run["pools"], run["tpot_ns_median"], run["ttft_ns_median"]) == ("raw", layers * 16000000 + 400000, 64400000), run
    assert run["read_bytes_per_token"] * 20 == (64 + 19 * 16 * layers) * 1000000, run
    assert run["hits"] == {"F": 19 * 16 * (4 - layers), "C": 0, "S": 0, "E": 0, "M": 64 + 19 * 16 * layers}, run
assert len({of("zero-3", budget)["tpot_ns_median"] for budget in ("30%", "60%", "100%")}) == 1
assert (n[0]["tpot_ns_median"], n[0]["ttft_ns_median"]) == (64000000, 64000000), n
assert (o[0]["tpot_ns_median"], o[0]["ttft_ns_median"]) == (80000000, 80000000 + 16000000), o
assert o[0]["read_bytes_per_token"] * 20 == 64000000 * 20, o
P

# Prefetch. A perfect predictor is never wrong where a plan moves no experts between pools, and delays nothing; the
# predictions do not depend on the budget, nor do the requests.
replay e.json --policy zipmoe:io,oracle,lru:raw --budget 25%,50% --batch 1,4 --layer-us 500 --run-us 200 \
    --tune share=0.1 --predict perfect,mixed,brainstorm "$eval"
says 'guesses: .* times as fast, limit '
replay f.json --policy zipmoe --budget 25%,50% --batch 1 --layer-us 500 --run-us 200 --predict all --tokens 200 "$eval"
replay g.json --policy zipmoe --budget 0.1% --layer-us 500 --predict perfect --tokens 50 "$eval"
replay h.json --policy zipmoe --budget 25% --compute ffn-coded --layer-us 500 --predict perfect --tokens 100 "$eval"
"$python" - "$dir" <<'P' || complain "replay --predict"
import json, sys
e, f, g, h = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in "efgh")
assert len(e) == 2 * 2 * (4 + 1 + 1), len(e)
name = lambda r: r["guesses"] and r["guesses"]["predictor"]
for run in e:
    at = (run["policy"], name(run), run["budget"], run["batch"])
    if run["policy"] != "zipmoe":
        assert run["guesses"] is None, at
    if run["guesses"] is None:
        continue
    plain = next(r for r in e if r["policy"] == "zipmoe" and not r["guesses"]
                 and (r["budget"], r["batch"]) == (run["budget"], run["batch"]))
    x = run["guesses"]
    assert sum(run["hits"].values()) == sum(plain["hits"].values()), at
    assert 0 < x["right_bytes_per_token"] <= x["read_bytes_per_token"], at
    # missing experts are read by the request, or were prefetched correctly
    assert abs(x["right_bytes_per_token"] + run["read_bytes_per_token"] - x["missing_bytes_per_token"]) < 10, at
    assert run["tokens_per_second"] * run["limit_ns_per_token"] <= 1e9, at
    if name(run) == "perfect" and run["batch"] == 1:
        assert x["wasted"] == x["cancelled"] == 0 and run["tokens_per_second"] > plain["tokens_per_second"], at
        assert abs(x["right_bytes_per_token"] - x["read_bytes_per_token"]) * 600 < 2 * 600000, at
names = [name(r) for r in f if r["budget"] == "25%"]
assert names == [None, "deepspeed", "brainstorm", "request", "transition", "edgemoe", "moe-infinity", "fmoe", "mixed",
                 "perfect"], names
assert g[1]["guesses"]["read_bytes_per_token"] == 0  # not even one expert fits
assert h[1]["guesses"]["read_bytes_per_token"] > 0 and h[1]["decode_utilisation"] == 0
P

# Only JSON on standard output; the default plan; a model of another shape, measured at its first use
run 0 "$moe_replay" --profile "$profile" --policy lru --budget 50% --json - "$eval"
"$python" -m json.tool "$dir/out" >"$dir/tidy" || complain "--json -: $(cat "$dir/out")"
run 0 "$moe_replay" --profile "$profile" --budget 50% --tokens 50 "$eval"
says 'assumed skew'
says '^zipmoe:io' # the default of a mount
rm -r "$dir/state"
run 0 "$moe_replay" --store "$dir/m.efs" --budget 50% --tokens 50 --policy zipmoe,lru "$dir/long.route"
warns 'measuring'
says 'mapped onto [0-9]* layers of [0-9]* experts: layers and experts modulo'
if ! grep -q 'the machine is busy, the profile is not saved' "$dir/err"; then
    run 0 "$moe_replay" --store "$dir/m.efs" --budget 50% --tokens 50 --policy lru "$dir/long.route"
    [ ! -s "$dir/err" ] || complain "measured again: $(cat "$dir/err")"
fi

# Ctrl-C: the results until then, as a table and as JSON
"$moe_replay" --profile "$profile" --policy $all --json "$dir/cut.json" --batch 1,4,16 \
    "$dir/long.route" >"$dir/out" 2>"$dir/err" &
pid=$!
for _ in $(seq 2400); do grep -q "^zipmoe:io" "$dir/out" || ! kill -0 $pid && break; sleep 0.1; done
kill -TERM $pid # like Ctrl-C, which shells make their background jobs ignore
wait $pid
status=$?
[ $status = 130 ] || complain "interrupted: exit $status: $(cat "$dir/err")"
says '^I/O ms, batch'
"$python" -c 'import json, sys
runs = json.load(open(sys.argv[1]))
assert 1 <= len(runs) < 13 * 4 * 3 and all(r["tokens"] > 0 for r in runs)' "$dir/cut.json" || complain "interrupted: JSON"
[ $bad = 0 ] || exit 1
echo "profile and replay are well"
