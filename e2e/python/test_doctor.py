"""`homing doctor`: what it says of engines and routers, well and not, and how it ends."""
import http.server
import json
import os
import shutil
import socket
import tempfile
import threading

from harness import MODEL, TOKENIZER, Mock, Serve, call, configuration, eventually, run, tokenized
from scripted_worker import ScriptedWorker, send
from test_other_engines import TensorRtLlm


def doctor(*args):
    """-> (exit code, the findings by code, the whole JSON)."""
    code, out, err = run("doctor", "--json", *args)
    assert out, (code, err)
    said = json.loads(out)
    assert all(f["why"] and f["mend"] for f in said["findings"]), said
    return code, {f["code"]: f for f in said["findings"]}, said


def admin(router):
    return ("--admin", f"http://127.0.0.1:{router.admin}")


def has_cached(router, mock):
    """Sends a prompt, and waits until the router knows blocks of it."""
    status, _, body = call(mock.port, "POST", "/v1/completions",
                           {"model": MODEL, "prompt": list(range(400)), "max_tokens": 1})
    assert status == 200, body
    eventually(lambda: router.workers()[0]["cached_blocks"] > 0, "blocks known")


class Config:
    """The router's file, as the doctor gets it."""

    def __init__(self, workers, extra):
        self.file = tempfile.NamedTemporaryFile("w", suffix=".toml")
        self.file.write(configuration(workers, extra))
        self.file.flush()

    def __enter__(self):
        return ("--config", self.file.name)

    def __exit__(self, *_):
        self.file.close()


def test_an_engine_and_a_router_that_are_well():
    with Mock() as mock, Serve([mock], extra=tokenized()) as router, Config([mock], tokenized()) as config:
        has_cached(router, mock)
        code, findings, said = doctor(*config, *admin(router), "--probe")
        assert (code, findings) == (0, {}), said
        assert said["engines"] == ["w0"] and said["not_looked_at"] == [], said
        code, out, _ = run("doctor", *config, *admin(router), "--probe")
        assert code == 0 and out == "nothing is wrong; looked at the router and 1 engine(s)\n", out


def test_a_stock_engine_lacks_what_its_flags_would_give():
    with Mock("--stock") as mock, Serve([mock]) as router, Config([mock], "") as config:
        code, findings, said = doctor(*config, *admin(router), "--probe")
        assert code == 1 and {"events_off", "prompt_tokens_details_off", "tokenizer_missing"} <= set(findings), said
        assert "--kv-events-config '{\"enable_kv_cache_events\":true" in findings["events_off"]["mend"]
        assert "--enable-prompt-tokens-details" in findings["prompt_tokens_details_off"]["mend"]
        assert f'[[models]] with name = "{MODEL}"' in findings["tokenizer_missing"]["mend"]
        # without a router, and without asking for a token
        code, findings, said = doctor("--worker", mock.url)
        assert code == 1 and set(findings) == {"events_off"} and len(said["not_looked_at"]) == 2, said
        code, out, _ = run("doctor", "--worker", mock.url)
        assert code == 1 and out.startswith("missing  " + mock.url) and "mend: start vLLM with" in out, out


def test_an_engine_without_replay():
    with Mock("--kv-replay", "") as mock:
        code, findings, said = doctor("--worker", mock.url)
        assert code == 1 and set(findings) == {"replay_off"}, said
        assert '"replay_endpoint":"tcp://*:5558"' in findings["replay_off"]["mend"], said


def test_a_replay_socket_that_the_router_does_not_use():
    """What is written goes before what the engine says: `kv_events` alone means no replay."""
    with Mock("--kv-drop-every", "3") as mock:
        source = mock.get("/kv_event_sources")["0"]
        mock.settings = f'kv_events = "{source["endpoint"]}"'
        with Serve([mock], extra=tokenized()) as router, Config([mock], tokenized()) as config:
            eventually(lambda: router.workers()[0]["index"] == "events", "connected")
            for n in range(12):
                call(mock.port, "POST", "/v1/completions",
                     {"model": MODEL, "prompt": [n * 1000 + i for i in range(100)], "max_tokens": 1})
            eventually(lambda: router.metric("homing_kv_event_gaps_lost_total") > 0, "a hole that stays")
            code, findings, said = doctor(*config, *admin(router))
            found = findings.get("replay_off") or findings["events_uncertain"]
            assert code == 1 and f'write `kv_replay = "{source["replay_endpoint"]}"' in found["mend"], said
            assert "lost for good" in found["what"], said


def test_a_port_that_the_router_can_not_have():
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with Mock("--kv-connect", f"tcp://127.0.0.1:{port}", "--kv-replay", "") as mock:
            mock.settings = f'kv_events = "tcp://*:{port}"'
            with Serve([mock], extra=tokenized()) as router, Config([mock], tokenized()) as config:
                eventually(lambda: router.workers()[0]["index_error"], "it is said why")
                code, findings, said = doctor(*config, *admin(router))
                found = findings["events_unreachable"]
                assert code == 1 and f"can't listen at tcp://*:{port}: Address already in use" in found["what"], said
                assert "no engine has connected" not in found["mend"], said


class Pretender(http.server.BaseHTTPRequestHandler):
    """A router's admin API that shares over etcd, with counters that a test makes."""
    claims = iter(())
    up = 1

    def do_GET(self):
        claims = next(self.claims, 0) if self.path == "/metrics" else 0
        answers = {
            "/admin/workers": "[]", "/ready": '{"ready": true}',
            "/admin/config": json.dumps([
                {"key": "replication.backend", "value": '"etcd"', "origin": "file"},
                {"key": "replication.mode", "value": '"authoritative"', "origin": "file"},
                {"key": "replication.urls", "value": '["http://me:secret@10.9.9.9:2379"]', "origin": "file"}]),
            "/metrics": f"homing_replication_up {self.up}\nhoming_replication_in_step 1\n"
                        f'homing_replication_claims_total{{outcome="unreachable"}} {claims}\n',
        }
        body = answers[self.path].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_an_outage_that_is_over_is_not_told_of():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pretender) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = ("--admin", f"http://127.0.0.1:{server.server_port}")
        for claims, told in (([16, 16], False), ([16, 19], True), ([0], False)):
            Pretender.claims = iter(claims)
            _, findings, said = doctor(*there)
            assert ("replication_claims_unanswered" in findings) == told, said
        Pretender.claims, Pretender.up = iter(()), 0
        _, findings, said = doctor(*there)
        down = findings["replication_down"]
        assert "etcd at http://10.9.9.9:2379" in down["what"] and "secret" not in json.dumps(said), said
        assert "load" not in down["why"] and "-js" not in down["mend"], said
        server.shutdown()


def test_blocks_of_different_sizes():
    with Mock("--block-size", "16") as a, Mock("--block-size", "32") as b:
        code, findings, said = doctor("--worker", a.url, "--worker", b.url)
        assert code == 1 and set(findings) == {"block_size_mismatch"}, said
        assert findings["block_size_mismatch"]["about"] == b.url, said
        assert "--block-size 16" in findings["block_size_mismatch"]["mend"], said


def test_a_template_that_is_not_the_engines():
    with tempfile.TemporaryDirectory() as folder, Mock() as mock:
        shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
        with open(os.path.join(folder, "chat_template.jinja"), "a") as template:
            template.write("and more")
        extra = f'[[models]]\nname = "{MODEL}"\ntokenizer = "{folder}"\n'
        with Config([mock], extra) as config, Serve([mock], extra=extra) as router:
            has_cached(router, mock)
            code, findings, said = doctor(*config, *admin(router))
        assert code == 1 and set(findings) == {"template_differs"}, said
        assert "chat_template.jinja" in findings["template_differs"]["mend"], said
        # and a folder that is none, of a model that nobody serves
        extra = '[[models]]\nname = "other"\ntokenizer = "/no/such/folder"\n'
        with Config([mock], extra) as config, Serve([mock]) as router:
            has_cached(router, mock)
            code, findings, said = doctor(*config, *admin(router))
        wanted = {"tokenizer_broken", "model_name_mismatch"}
        assert code == 1 and set(findings) == wanted, said
        assert MODEL in findings["model_name_mismatch"]["mend"], said


class Ranked(ScriptedWorker):
    """An SGLang of four ranks."""

    def _probe(self, wfile, path):
        if path != "/server_info":
            return super()._probe(wfile, path)
        send(wfile, 200, json.dumps({"page_size": 16, "dp_size": 4, "disable_radix_cache": True}).encode())


def test_ranks_behind_one_url_and_sglangs_own_flags():
    with Ranked() as engine:
        engine.settings = "dp_size = 1"
        check_ranks(engine)


def check_ranks(engine):
    with Serve([engine]) as router:
        code, findings, said = doctor(*admin(router))
        assert code == 1 and "write `dp_size = 4`" in findings["ranks_behind_one_url"]["mend"], said
        assert findings["ranks_behind_one_url"]["severity"] == "broken", said
        assert said["findings"][0]["code"] == "ranks_behind_one_url", "the worst comes first"


def test_ranks_that_are_learned_need_no_setting():
    with Mock("--dp-size", "2") as mock:
        code, findings, said = doctor("--worker", mock.url)
        assert code == 0 and "ranks_behind_one_url" not in findings, said
    with Ranked() as engine, Serve([engine]) as router:
        code, findings, said = doctor(*admin(router))
        assert "ranks_behind_one_url" not in findings, said
        assert router.workers()[0]["ranks"] == 4


def test_a_wrong_setting_is_told_from_a_closed_port():
    with Mock() as mock:
        wrong = "tcp://127.0.0.1:1"
        mock.settings = f'kv_events = "{wrong}"'
        with Serve([mock], extra=tokenized()) as router, Config([mock], tokenized()) as config:
            code, findings, said = doctor(*config, *admin(router))
            assert code == 1 and set(findings) == {"events_unreachable"}, said
            mend = findings["events_unreachable"]["mend"]
            assert f'delete `kv_events = "{wrong}"`' in mend and "tcp://*" not in mend, mend
            # It can't know without the file, and says both.
            _, findings, said = doctor(*admin(router))
            assert "delete it or correct it" in findings["events_unreachable"]["mend"], said


def test_what_is_turned_off_is_a_note():
    extra = tokenized() + '[index]\nsource = "off"\nverify = "off"\n'
    with Mock() as mock, Serve([mock], extra=extra) as router, Config([mock], extra) as config:
        code, findings, said = doctor(*config, *admin(router))
        assert code == 0 and set(findings) == {"index_off", "verify_off"}, said
        assert all(f["severity"] == "note" for f in findings.values()), said


def test_tensorrt_llms_events_are_left_to_the_router():
    engine = TensorRtLlm()
    engine.tells({"type": "created", "num_blocks_per_cache_level": [100, 0]})
    with engine:
        code, findings, said = doctor("--worker", engine.url)
        assert (code, findings) == (0, {}), said
        assert len(engine.told) == 1, "who asks for events takes them away"


def test_who_is_not_there():
    with ScriptedWorker() as engine:
        with Serve([engine]) as router:
            engine.stop()
            eventually(lambda: router.workers()[0]["state"] == "down", "it is down")
            code, findings, said = doctor(*admin(router))
            assert code == 1 and {"worker_down", "router_unready"} >= set(findings), said
            assert "refused" in findings["worker_down"]["what"], "what follows from it is no finding of its own"
            gone = admin(router)
        code, findings, said = doctor(*gone)
        assert code == 1 and set(findings) == {"router_unreachable"}, said
        assert "homing serve" in findings["router_unreachable"]["mend"], said
        assert "looked at no router and 0 engine(s)\n" in run("doctor", *gone)[1]
        engine.start()


def test_bad_usage():
    for args in (["--worker", "ftp://x"], ["--admin", "http://"], ["--config", "/no/such/file"], ["--nonsense"]):
        code, out, err = run("doctor", *args)
        assert code == 2 and err and not out, (args, code, out, err)
    assert "homing doctor" in run("doctor", "--help")[1]
