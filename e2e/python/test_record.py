"""`gateway.record`: live traffic into a file, of hashes, lengths and times; and played again by `homing replay`."""
import json
import os
import stat
import tempfile

from harness import MODEL, BIN, Mock, Serve, configuration, environment, eventually, run, tokenized
import subprocess

TEXT = "Pigeons find their way home from places where they have never been before. "


def turns(router, sessions=4, count=3, stream=False):
    """Conversations that grow -> requests that were answered."""
    done = 0
    talks = [[{"role": "user", "content": f"{s}. " + TEXT * 30}] for s in range(sessions)]
    for _ in range(count):
        for s, talk in enumerate(talks):
            body = {"model": MODEL, "messages": talk, "max_tokens": 8, "stream": stream}
            status, _, answer = router.post("/v1/chat/completions", body, {"x-homing-session-id": f"secret-{s}"})
            assert status == 200, answer
            done += 1
            talk += [{"role": "assistant", "content": "Indeed. "}, {"role": "user", "content": TEXT * 10}]
    return done


def lines(path):
    with open(path) as f:
        text = f.read()
    assert text.endswith("\n") and "igeons" not in text and "secret" not in text, text[:300]
    header, *rest = [json.loads(line) for line in text.splitlines()]
    assert header["schema"] == "homing.trace.v1", header
    return header, rest


def replayed(path, *args):
    code, out, err = run("replay", "--json", "--trace", path, "--workers", "2", "--blocks", "4000", *args)
    assert code == 0 and err == "", (code, err)
    return json.loads(out)


class Folder(tempfile.TemporaryDirectory):
    def __enter__(self):
        super().__enter__()
        self.file = os.path.join(self.name, "trace.jsonl")
        return self

    @property
    def setting(self):
        return f'record = "{self.file}"\n'


def test_live_traffic_is_recorded_and_can_be_replayed():
    with Folder() as folder, Mock() as a, Mock() as b:
        with Serve([a, b], extra=tokenized(), gateway=folder.setting) as router:
            # Before the first events nobody knows how long blocks are.
            turns(router, sessions=1, count=1)
            eventually(lambda: sum(w["cached_blocks"] for w in router.workers()) > 0, "blocks are known")
            n = 1 + turns(router) + turns(router, sessions=2, count=2, stream=True)
            # What no worker has answered is no traffic.
            router.post("/v1/chat/completions", {"model": "nobody", "messages": []})
            router.post("/v1/messages/count_tokens", {"model": MODEL, "messages": [{"role": "user", "content": "x"}]})
            eventually(lambda: router.metric("homing_trace_lines_total", outcome="written") == n, "written in time")
            assert len(lines(folder.file)[1]) == n, "without a shutdown"
            turns(router, sessions=1, count=1)
            router.terminate()
            assert router.wait() == 0
        header, all_of_them = lines(folder.file)
        assert len(all_of_them) == n + 1, "what had gathered is written at the end"
        assert stat.S_IMODE(os.stat(folder.file).st_mode) == 0o600
        assert header["block_size"] == 16
        sizes = [line.get("block_size", 16) for line in all_of_them]
        assert sizes[0] == 128 and set(sizes[1:]) == {16}, sizes
        assert all(line["prompt_tokens"] > 0 and line["output_tokens"] > 0 for line in all_of_them)
        assert len({line["session"] for line in all_of_them}) == 4
        assert any("after" in line for line in all_of_them), "a turn repeats nothing"
        said = replayed(folder.file, "--policy", "kv", "--affinity", "hard")
        assert said["requests"] == n + 1, said
        # A conversation's next turn begins with the one before it, and that is in the trace.
        assert said["best_hit_rate"] > 0.5 and said["policies"]["kv"]["hit_rate"] > 0.4, said


def test_prompts_that_are_only_known_by_their_text():
    with Folder() as folder, Mock("--stock") as mock:
        with Serve([mock], gateway=folder.setting) as router:
            n = turns(router)
        header, all_of_them = lines(folder.file)
        assert header["block_size"] == 128 and len(all_of_them) == n
        assert all("block_size" not in line for line in all_of_them)
        said = replayed(folder.file, "--policy", "kv")
        assert said["requests"] == n and said["best_hit_rate"] > 0.5, said
        # Another run goes on with it.
        with Serve([mock], gateway=folder.setting) as router:
            turns(router, sessions=1, count=1)
        again = lines(folder.file)[1]
        assert again[:n] == all_of_them and len(again) == n + 1
        assert again[n]["t_ms"] > all_of_them[-1]["t_ms"]
        assert replayed(folder.file)["requests"] == n + 1


def test_a_file_of_somebody_else_is_left_alone():
    with Folder() as folder, Mock() as mock:
        with open(folder.file, "w") as f:
            f.write("my thesis\n")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
            config.write(configuration([mock], gateway=folder.setting))
            config.flush()
            code, _, err = run("serve", "--config", config.name)
            assert code == 2 and "gateway.record" in err and "no trace" in err, (code, err)
            with open(folder.file) as f:
                assert f.read() == "my thesis\n"
            code, out, _ = run("check", "--config", config.name)
            assert code == 0 and "record" in out and folder.file in out, out


def test_a_disk_that_takes_no_more_costs_lines_and_no_request():
    with Folder() as folder, Mock() as mock, tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(configuration([mock], gateway=folder.setting))
        config.flush()
        # A file may have 8 KiB; beyond it each write fails, as on a disk that is full.
        script = f"trap '' XFSZ; ulimit -f 8; exec {BIN} serve --config {config.name}"
        router = Limited(["bash", "-c", script])
        with router:
            done = 0
            while router.metric("homing_trace_lines_total", outcome="lost") == 0:
                done += turns(router, sessions=8, count=2)
                assert done < 2000
            written = router.metric("homing_trace_lines_total", outcome="written")
            turns(router, sessions=8, count=2)
            router.terminate()
            assert router.wait() == 0
            said = router.stderr()
            assert said.count("can't be written") == 1, said
        assert os.path.getsize(folder.file) <= 8192
        assert len(lines(folder.file)[1]) >= written > 0, "what is there is whole"
        assert replayed(folder.file)["requests"] >= written


class Limited(Serve):
    """A router that some shell has started."""

    def __init__(self, command):
        import threading
        self._dir = tempfile.TemporaryDirectory(prefix="homing-e2e-")
        self._stderr = open(os.path.join(self._dir.name, "stderr"), "w+b")
        self.args, self.lines = ("serve",), []
        self.proc = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                                     stderr=subprocess.PIPE, env=environment())
        self._said = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # Its log can't go into a file: that would be bounded, too.
        threading.Thread(target=lambda: self._said.extend(self.proc.stderr), daemon=True).start()
        self._began(1, True)

    def stderr(self):
        return "".join(self._said)
