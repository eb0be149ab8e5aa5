"""Replays the public traces of ../shared under every policy, and prints the tables of docs/routing-quality.md.

    HOMING_BIN=target/release/homing python3 e2e/python/quality.py

Virtual time: the same figures on every machine, in some minutes.
"""
import json
import os
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


def replay(file, blocks, rate, policies, *flags):
    args = [BIN, "replay", "--json", "--trace", os.path.join(TRACES, file), "--workers", "8", "--blocks", str(blocks),
            "--rate-scale", str(rate), "--seed", "1", *flags]
    for policy in policies:
        args += ["--policy", policy]
    return json.loads(subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def main():
    wins = {"mean": 0, "p95": 0, "mean within 5 %": 0, "p95 within 5 %": 0, "tpot within 2 % of least_loaded": 0,
            "imbalance at most 1.25": 0}
    runs = 0
    for name, file, flags, cases in TRACE:
        sessions = "sessions" in flags
        flags = [flag for flag in flags if flag != "sessions"]
        home = ["--affinity", "soft", "--soft", "weigh"] if sessions else ["--affinity", "off"]
        for blocks, rate in cases:
            said = replay(file, blocks, rate, OURS, *flags, *home)
            # Routers of others keep no sessions, or have no choice then.
            rows = said["policies"] | replay(file, blocks, rate, OTHERS, *flags, "--affinity", "off")["policies"]
            if sessions:
                hard = replay(file, blocks, rate, ["least_loaded"], *flags, "--affinity", "hard")
                rows["least_loaded, sessions hard"] = hard["policies"]["least_loaded"]
            print(f"\n### {name}, 8 x {blocks} blocks, rate {rate}\n")
            print(f"{said['requests']} requests; best possible {said['best_hit_rate']:.3f}, one pooled LRU {said['pooled_hit_rate']:.3f}.\n")
            print("| policy | hit rate | TTFT mean, ms | p95 | TPOT mean, ms | p99 | imbalance |\n|---|---|---|---|---|---|---|")
            best = {key: min(row["ttft_ms"][key] for row in rows.values()) for key in ("mean", "p95")}
            for policy, row in sorted(rows.items(), key=lambda it: it[1]["ttft_ms"]["mean"]):
                mark = {key: "**" if row["ttft_ms"][key] == best[key] else "" for key in best}
                mean, p95 = (f"{mark[k]}{row['ttft_ms'][k]:,.0f}{mark[k]}" for k in ("mean", "p95"))
                print(f"| `{policy}` | {row['hit_rate']:.3f} | {mean} | {p95} | {row['tpot_ms']['mean']:.1f} | "
                      f"{row['tpot_ms']['p99']:.0f} | {row['imbalance']:.2f} |", flush=True)
            ours, runs = rows["latency"], runs + 1
            for key in ("mean", "p95"):
                wins[key] += ours["ttft_ms"][key] <= best[key]
                wins[key + " within 5 %"] += ours["ttft_ms"][key] <= 1.05 * best[key]
            wins["tpot within 2 % of least_loaded"] += ours["tpot_ms"]["mean"] <= 1.02 * rows["least_loaded"]["tpot_ms"]["mean"]
            wins["imbalance at most 1.25"] += ours["imbalance"] <= 1.25
    print(f"\nOf {runs} runs `latency` is best, or within: " + ", ".join(f"{k} {n}" for k, n in wins.items()))


if __name__ == "__main__":
    main()
