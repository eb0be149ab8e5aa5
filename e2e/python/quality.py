"""Replays the public traces of ../shared under every policy, and prints the tables of docs/routing-quality.md.

    HOMING_BIN=target/release/homing python3 e2e/python/quality.py --seeds 5

Virtual time: the same figures on every machine, in some minutes a seed. A session that moves changes what all others
meet, so that a single run says little of a policy: each figure is the median of the seeds.
"""
import argparse
import concurrent.futures
import json
import os
import statistics
import subprocess

from harness import BIN, ROOT

TRACES = os.path.join(ROOT, "../shared/data/traces")
# Name, file, further flags, and (blocks per engine, rate) of each run.
TRACE = [
    ("Mooncake conversation", "mooncake/conversation_trace.000-035min.jsonl.gz", [],
     [(8192, .15), (8192, .3), (8192, .45), (32768, .15), (32768, .3), (32768, .5)]),
    ("Mooncake synthetic", "mooncake/synthetic_trace.first-half.jsonl.gz", [],
     [(8192, .2), (8192, .45), (32768, .2), (32768, .6)]),
    ("agent fleet, 60 min", "claude-code/derived_fleet_60min.jsonl.zst", ["sessions"],
     [(8192, .4), (8192, .8), (32768, .6), (32768, 1.2)]),
    ("Claude Code sessions", "claude-code/claude_code_sessions.jsonl.zst", ["sessions", "--limit", "4000"],
     [(16384, .5), (16384, 1.0), (32768, .5), (32768, 1.5)]),
    ("Azure conversation", "azure/AzureLLMInferenceTrace_conv.csv.gz", ["--limit", "8000"],
     [(8192, 1.0), (8192, 3.0), (8192, 5.0)]),
]
OURS = ["latency", "kv", "least_loaded", "round_robin"]
OTHERS = ["usual_formula", "text_tree"]
SHOWN = [("hit_rate",), ("ttft_ms", "mean"), ("ttft_ms", "p95"), ("tpot_ms", "mean"), ("tpot_ms", "p99"), ("imbalance",)]


def replay(file, blocks, rate, seed, policies, *flags):
    args = [BIN, "replay", "--json", "--trace", os.path.join(TRACES, file), "--workers", "8", "--blocks", str(blocks),
            "--rate-scale", str(rate), "--seed", str(seed), *flags]
    for policy in policies:
        args += ["--policy", policy]
    return json.loads(subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def figures(row):
    return {key: row[key[0]] if len(key) == 1 else row[key[0]][key[1]] for key in SHOWN}


def played(file, flags, blocks, rate, seed):
    """What all policies made of one run: the trace's own figures, and those of each policy."""
    sessions = "sessions" in flags
    flags = [flag for flag in flags if flag != "sessions"]
    home = ["--affinity", "soft", "--soft", "weigh"] if sessions else ["--affinity", "off"]
    said = replay(file, blocks, rate, seed, OURS, *flags, *home)
    # Routers of others keep no sessions, or have no choice then.
    rows = said["policies"] | replay(file, blocks, rate, seed, OTHERS, *flags, "--affinity", "off")["policies"]
    if sessions:
        hard = replay(file, blocks, rate, seed, ["least_loaded"], *flags, "--affinity", "hard")
        rows["least_loaded, sessions hard"] = hard["policies"]["least_loaded"]
    return said, {policy: figures(row) for policy, row in rows.items()}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--seeds", type=int, default=1, help="seeds 1 to N, of which medians are shown (1)")
    args.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    args = args.parse_args()

    mean, p95, tpot, imbalance = SHOWN[1], SHOWN[2], SHOWN[3], SHOWN[5]
    wins = {"mean": 0, "p95": 0, "mean within 1 %": 0, "p95 within 1 %": 0, "mean within 5 %": 0, "p95 within 5 %": 0,
            "tpot within 2 % of least_loaded": 0, "imbalance at most 1.25": 0}
    worst = {"mean": 0.0, "p95": 0.0}
    cases = [(name, file, flags, blocks, rate) for name, file, flags, runs in TRACE for blocks, rate in runs]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        runs = [[pool.submit(played, *case[1:], seed) for seed in range(1, args.seeds + 1)] for case in cases]
        for (name, _, _, blocks, rate), seeds in zip(cases, runs):
            seeds = [seed.result() for seed in seeds]
            said = seeds[0][0]
            rows = {policy: {key: statistics.median(rows[policy][key] for _, rows in seeds) for key in SHOWN}
                    for policy in seeds[0][1]}
            print(f"\n### {name}, 8 x {blocks} blocks, rate {rate}\n")
            print(f"{said['requests']} requests; best possible {said['best_hit_rate']:.3f}, one pooled LRU {said['pooled_hit_rate']:.3f}.\n")
            print("| policy | hit rate | TTFT mean, ms | p95 | TPOT mean, ms | p99 | imbalance |\n|---|---|---|---|---|---|---|")
            best = {key: min(row[key] for row in rows.values()) for key in (mean, p95)}
            for policy, row in sorted(rows.items(), key=lambda it: it[1][mean]):
                bold = {key: "**" if row[key] == best[key] else "" for key in best}
                print(f"| `{policy}` | {row[SHOWN[0]]:.3f} | " +
                      " | ".join(f"{bold[key]}{row[key]:,.0f}{bold[key]}" for key in (mean, p95)) +
                      f" | {row[tpot]:.1f} | {row[SHOWN[4]]:.0f} | {row[imbalance]:.2f} |", flush=True)
            ours = rows["latency"]
            for name, key in (("mean", mean), ("p95", p95)):
                over = ours[key] / min(row[key] for policy, row in rows.items() if policy != "latency")
                worst[name] = max(worst[name], over)
                for mark, limit in (("", 1.0), (" within 1 %", 1.01), (" within 5 %", 1.05)):
                    wins[name + mark] += over <= limit
            wins["tpot within 2 % of least_loaded"] += ours[tpot] <= 1.02 * rows["least_loaded"][tpot]
            wins["imbalance at most 1.25"] += ours[imbalance] <= 1.25
    print(f"\nOf {len(cases)} runs `latency` is best, or within: " + ", ".join(f"{k} {n}" for k, n in wins.items()) +
          "; at worst, of the best of the others: " + ", ".join(f"{k} {over:.3f}" for k, over in worst.items()))


if __name__ == "__main__":
    main()
