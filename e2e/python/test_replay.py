"""`homing replay`: traces of every format through policies, as a table, an object and a page; and what is said of
what can't be played."""
import gzip
import json
import os
import random
import re
import tempfile
import xml.etree.ElementTree

from harness import run

KEYS = {"hit_rate", "ttft_ms", "tpot_ms", "imbalance", "wall_s"}


def sessions(count=20, turns=8, seed=5):
    """Agent sessions that grow, as `homing.trace.v1`."""
    dice = random.Random(seed)
    lines = []
    for session in range(count):
        at, blocks = dice.uniform(0, 30_000), [f"{session % 4 + 1:08x}{b:08x}" for b in range(60)]
        for _ in range(turns):
            new = [f"{session + 1000:08x}{len(blocks) + b:08x}" for b in range(dice.randint(2, 20))]
            blocks = blocks + new
            lines.append({"t_ms": at, "session": f"{session:016x}", "prompt_tokens": len(blocks) * 16 + 5,
                          "output_tokens": dice.randint(5, 80), "blocks": "".join(blocks)})
            at += dice.uniform(2_000, 20_000)
    lines.sort(key=lambda line: line["t_ms"])
    return [{"schema": "homing.trace.v1", "block_size": 16}] + lines


class Folder:
    """Files that are gone afterwards."""

    def __enter__(self):
        self._dir = tempfile.TemporaryDirectory(prefix="homing-replay-")
        return self

    def __exit__(self, *_):
        self._dir.cleanup()

    def path(self, name):
        return os.path.join(self._dir.name, name)

    def write(self, name, lines):
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)


def replayed(*args):
    code, out, err = run("replay", "--json", *args)
    assert code == 0 and err == "", (code, err)
    return json.loads(out)


def without_wall(said):
    for row in said["policies"].values():
        row.pop("wall_s")
    return said


def test_policies_beside_each_other_and_the_same_again():
    with Folder() as folder:
        trace = folder.write("sessions.jsonl.gz", sessions())
        args = ("--trace", trace, "--workers", "4", "--blocks", "4000", "--seed", "7")
        said = replayed(*args, "--policy", "kv", "--policy", "round_robin", "--affinity", "off")
        assert {"trace", "requests", "prompt_blocks", "best_hit_rate", "pooled_hit_rate", "policies"} <= said.keys()
        assert (said["trace"], said["requests"]) == ("sessions.jsonl.gz", 160), said
        assert list(said["policies"]) == ["kv", "round_robin"]
        for row in said["policies"].values():
            assert KEYS <= row.keys() and row["answered"] == 160 and row["refused"] == 0, row
            assert {"mean", "p50", "p95", "p99"} == row["ttft_ms"].keys() and {"mean", "p99"} == row["tpot_ms"].keys()
            assert 0 < row["hit_rate"] <= said["best_hit_rate"] and row["imbalance"] >= 1, row
        kv, robin = said["policies"]["kv"], said["policies"]["round_robin"]
        assert kv["hit_rate"] > robin["hit_rate"] + 0.1, said
        assert kv["ttft_ms"]["mean"] < robin["ttft_ms"]["mean"], said
        again = replayed(*args, "--policy", "kv", "--policy", "round_robin", "--affinity", "off")
        assert without_wall(said) == without_wall(again)
        # Sessions that stay at home need no policy for it.
        home = replayed(*args, "--policy", "round_robin")["policies"]["round_robin"]
        assert home["hit_rate"] > robin["hit_rate"] + 0.1, home


def test_a_plan_a_page_and_progress():
    with Folder() as folder:
        trace = folder.write("s <1>.jsonl", sessions())
        page = folder.path("report.html")
        plan = folder.write("plan.toml", [
            f"trace = {json.dumps(trace)}\n", "workers = 3\n", "blocks = 2000\n", 'policy = ["least_loaded"]\n',
            'fail = ["w1@20s..60s"]\n', "replicas = 2\n", 'event_delay = "50ms"\n', f"html = {json.dumps(page)}\n"])
        code, out, err = run("replay", "--plan", plan, "--policy", "kv", "--rate-scale", "2")
        assert code == 0, err
        assert re.search(r"^kv +\d+\.\d %", out, re.M) and "best possible" in out and "pooled" in out, out
        assert "least_loaded" not in out, "a flag comes before the plan"
        assert "160/160 requests" in err, err
        with open(page) as f:
            html = f.read()
        assert "s &lt;1&gt;.jsonl" in html and "<1>" not in html
        assert "2 routers that share nothing, KV events 50ms late, 2 times the rate, w1 away 20s to 1m" in html
        assert not re.search(r"(src|href)\s*=|url\(|https?:", html), "it loads nothing"
        charts = re.findall(r"<svg.*?</svg>", html, re.S)
        assert len(charts) == 4, len(charts)
        for chart in charts:
            lines = xml.etree.ElementTree.fromstring(chart).findall("polyline")
            assert lines and all(line.get("points") for line in lines), chart[:300]


def test_other_formats_are_told_by_their_content():
    with Folder() as folder:
        mooncake = [{"timestamp": 100 * i, "input_length": 1500, "output_length": 20, "hash_ids": [0, i % 5 + 1, 9]}
                    for i in range(40)]
        azure = ["TIMESTAMP,ContextTokens,GeneratedTokens\n"] + [
            f"2023-11-16 18:15:{i % 60:02}.5,{300 + i},{i % 9}\n" for i in range(40)]
        agents = [{"id": f"s{n}", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 640, "system_tokens": 0,
                   "requests": [{"t": 9.0 * i, "type": "n", "in": 64 * (12 + i), "out": 30, "api_time": 2.0,
                                 "think_time": 7.0, "hash_ids": list(range(1, 13 + i))} for i in range(5)]}
                  for n in range(6)]
        for name, lines, requests in [("mooncake", mooncake, 40), ("azure", azure, 40), ("sessions", agents, 30)]:
            said = replayed("--trace", folder.write("trace", lines), "--policy", "kv", "--workers", "2")
            assert (said["format"], said["requests"], said["block_size"]) == (name, requests, 64), said
            assert said["policies"]["kv"]["answered"] == requests, said
            assert (said["best_hit_rate"] > 0) == (name != "azure"), said


def test_what_is_wrong_is_said_with_file_line_and_remedy():
    with Folder() as folder:
        good = {"timestamp": 1, "input_length": 1500, "output_length": 2, "hash_ids": [1, 2, 3]}
        bad = folder.write("bad.jsonl", [good, {"timestamp": 1}])
        code, out, err = run("replay", "--trace", bad)
        assert code == 1 and out == "" and "bad.jsonl: line 2: missing field `input_length`" in err, err
        code, _, err = run("replay", "--trace", folder.write("text", ["hello\n"]))
        assert code == 1 and "line 1: not a trace that is known" in err and "docs/replay.md" in err, err
        trace = folder.write("good.jsonl", [good])
        plan = folder.write("plan.toml", ["wokers = 3\n"])
        for args, says in [
            ((), "--trace"),
            (("--trace", folder.path("none")), "can't read --trace"),
            (("--trace", trace, "--policy", "best"), "least_loaded"),
            (("--trace", trace, "--workers", "0"), "--workers must be 1"),
            (("--trace", trace, "--fail", "w9@1s..2s"), "from w0 on"),
            (("--trace", trace, "--session-ttl", "soon"), "--session-ttl"),
            (("--trace", trace, "--event-delay", "soon"), "50ms"),
            (("--plan", plan), "wokers"),
        ]:
            code, out, err = run("replay", *args)
            assert code == 2 and out == "" and says in err, (args, code, err)
