"""Predictions held against what engines say: mocks whose usage lies, says nothing, or whose template differs.

A `Between` stands between the router and a mock, passes everything, and changes what the engine says of
its cache on the way.
"""
import http.client
import json
import os
import re
import shutil
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from harness import MODEL, PATIENCE, TOKENIZER, Mock, Serve, call, eventually, events, tokenized

CHAT = "/v1/chat/completions"
# A prompt of many blocks, the same each time.
LONG = "The quick brown fox jumps over the lazy dog. " * 60


class Between:
    """A proxy in front of a mock. `usage` changes an answer's usage, `page` the metrics; `seen` has the bodies
    of completions as they came from the router, `asked` those of /tokenize, which answers with `status` if set."""

    def __init__(self, mock, usage=None, page=None, settings=""):
        self.usage, self.page, self.settings = usage, page, settings
        self.seen, self.asked, self.status = [], [], None
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def forward(self, body=None):
                conn = http.client.HTTPConnection("127.0.0.1", mock.port, timeout=PATIENCE)
                sent = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
                conn.request(self.command, self.path, body, sent)
                res = conn.getresponse()
                answer = between.changed(self.path, res.read())
                conn.close()
                self.send_response(between.status if self.path == "/tokenize" and between.status else res.status)
                self.send_header("content-type", res.getheader("content-type", "application/json"))
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def do_GET(self):
                self.forward()

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path.startswith("/v1/"):
                    between.seen.append(body)
                elif self.path == "/tokenize":
                    between.asked.append(body)
                self.forward(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # The router hangs up on a slow answer of its probes, and when it ends.
        self._server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def changed(self, path, answer):
        if path == "/metrics" and self.page:
            return self.page(answer.decode()).encode()
        if path.startswith("/v1/") and self.usage:
            def change(found):
                usage = json.loads(found.group(1))
                self.usage(usage)
                return b'"usage":' + json.dumps(usage).encode()
            return re.sub(rb'"usage":\s*(\{(?:[^{}]|\{[^{}]*\})*\})', change, answer)
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def says(cached):
    """Changes a usage to say that so many tokens were cached."""
    def change(usage):
        usage["prompt_tokens_details"] = None if cached is None else {"cached_tokens": cached}
    return change


def chat(router, text=LONG, **more):
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 1, **more}
    status, headers, answer = router.post(CHAT, body)
    assert status == 200, (status, answer[:300])
    return headers, answer


def warm(router):
    """Asks the same until the router predicts that most of it is cached."""
    def predicted():
        return int(chat(router)[0].get("x-homing-cached-tokens", 0)) > 100
    eventually(predicted, "a prediction")


def trust(router, shape="chat"):
    return router.workers()[0]["trust"].get(shape)


def reuse(router):
    return {word: router.metric("homing_prompt_tokens_total", model=MODEL, reuse=word)
            for word in ("cached", "new", "evicted", "misplaced", "unknown")}


def fast_mock():
    return Mock("--speedup", "1000", "--block-size", "16")


def test_an_engine_that_keeps_its_word_is_trusted():
    with fast_mock() as mock, Serve([mock], tokenized()) as router:
        warm(router)
        before = reuse(router)
        for _ in range(10):
            chat(router)
        got = eventually(lambda: trust(router), "trust")
        assert got["trust"] == 1 and got["likely_cause"] is None and got["over"] == 0, got
        assert got["agreed"] >= 10 and got["other_lengths"] == 0, got
        assert router.metric("homing_index_trust", worker="w0") == 1
        parts = {word: n - before[word] for word, n in reuse(router).items()}
        assert parts["cached"] > parts["new"] > 0, parts
        assert sum(parts.values()) == parts["cached"] + parts["new"], parts


def test_an_index_that_lies_loses_its_weight_and_gets_it_back():
    with fast_mock() as mock, Between(mock) as between, Serve([between], tokenized()) as router:
        warm(router)
        between.usage = says(0)
        for _ in range(20):
            chat(router)
        low = eventually(lambda: (t := trust(router)) and t["trust"] < 0.1 and t, "little trust")
        assert low["over"] >= 20 and low["likely_cause"] == "unknown", low
        assert router.metric("homing_cache_prediction_error", worker="w0") > 0.5
        assert router.metric("homing_index_trust", worker="w0") < 0.1
        assert router.logged("far less of its prompts than its index promises") == 1
        # What the index says stays visible, and how far it counts.
        body = {"model": MODEL, "messages": [{"role": "user", "content": LONG}]}
        status, _, answer = call(router.admin, "POST", "/admin/preview", {"endpoint": CHAT, "body": body})
        candidate = json.loads(answer)["candidates"][0]
        assert status == 200 and candidate["overlap_blocks"] > 10 and candidate["trust"] < 0.1, candidate
        between.usage = None
        for _ in range(30):
            chat(router)
        eventually(lambda: trust(router)["trust"] == 1, "trust again")
        assert router.logged("reuses what its index promises again") == 1
        parts = reuse(router)
        assert parts["evicted"] > 0, "what was here before and is denied"


def test_cached_tokens_null_is_unknown_and_not_zero():
    with fast_mock() as mock, Between(mock, usage=says(None)) as between, \
            Serve([between], tokenized()) as router:
        warm(router)
        for _ in range(20):
            chat(router)
        got = eventually(lambda: trust(router), "trust")
        assert got["trust"] == 1 and got["unknown"] >= 20 and got["agreed"] == got["over"] == 0, got
        parts = reuse(router)
        assert parts["unknown"] > 0 and sum(parts.values()) == parts["unknown"], parts


def test_where_usage_is_silent_the_engines_counters_speak():
    def nothing_hit(page):
        return re.sub(r"(?m)^(vllm:prefix_cache_hits_total\S*) \S+$", r"\1 0", page)

    with fast_mock() as mock, Between(mock, usage=says(None), page=nothing_hit) as between, \
            Serve([between], tokenized() + '[health]\ninterval = "100ms"\n') as router:
        warm(router)

        def lost():
            chat(router)
            return trust(router)["trust"] < 0.5
        eventually(lost, "little trust", seconds=90)


def test_verify_off_looks_at_nothing():
    with fast_mock() as mock, Between(mock, usage=says(0)) as between, \
            Serve([between], tokenized() + '[index]\nverify = "off"\n') as router:
        warm(router)
        for _ in range(20):
            chat(router)
        assert router.workers()[0]["trust"] == {}
        parts = reuse(router)
        assert parts["unknown"] == sum(parts.values()) > 0, parts


def test_inject_usage_asks_streams_for_their_usage():
    with fast_mock() as mock, Between(mock) as between, \
            Serve([between], tokenized() + '[index]\nverify = "inject_usage"\n') as router:
        body = b'{ "model": "%s", "stream": true,"max_tokens":2,\n"messages":[{"role":"user","content":"Hi"}] }\n' \
            % MODEL.encode()
        status, _, answer = router.post(CHAT, body)
        assert status == 200
        assert between.seen == [body[:-2] + b',"stream_options":{"include_usage":true}}\n'], between.seen
        last = events(answer)[-1]
        assert last["usage"]["prompt_tokens"] > 0 and last["choices"] == [], last
        # The router has read it: without, the count would be its guess.
        assert sum(reuse(router).values()) == last["usage"]["prompt_tokens"]
        # Whoever has said what it wants gets that, and what is no stream is left alone.
        for said in ({"stream": True, "stream_options": {"include_usage": False}}, {"stream": False}, {}):
            chat(router, "Hi", **said)
            assert json.loads(between.seen[-1]).get("stream_options") == said.get("stream_options")


def test_usage_alone_never_edits_a_body():
    with fast_mock() as mock, Between(mock) as between, Serve([between], tokenized()) as router:
        body = b'{"model": "%s","stream":true,"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}' % MODEL.encode()
        status, _, answer = router.post(CHAT, body)
        assert status == 200 and between.seen == [body]
        assert all(not e.get("usage") for e in events(answer))


def test_a_template_that_differs_is_found_when_the_worker_registers():
    with tempfile.TemporaryDirectory(prefix="homing-e2e-") as folder:
        other = os.path.join(folder, "tokenizer")
        shutil.copytree(TOKENIZER, other)
        path = os.path.join(other, "chat_template.jinja")
        with open(path) as f:
            template = f.read()
        with open(path, "w") as f:
            f.write("Something else. " + template)
        with Mock("--speedup", "1000", "--tokenizer", other) as mock, Serve([mock], tokenized()) as router:
            got = eventually(lambda: trust(router), "the probe's answer")
            assert got["trust"] < 0.5 and got["likely_cause"] == "template", got
            assert trust(router, "completions")["trust"] == 1, "its tokenizer is the same"
            log = router.stderr()
            assert log.count("makes other tokens of a prompt") == 1 and "first_difference" in log, log
            assert "Something" not in log and "Hello" not in log, "never text"
            # Each answer says so, too, once prompts are tokenized: this engine's have another length.
            eventually(lambda: chat(router) and trust(router)["other_lengths"] > 2, "other lengths")


def test_tokens_that_somebody_else_holds_are_misplaced():
    with fast_mock() as a, fast_mock() as b, Serve([a, b], tokenized()) as router:
        def ask(worker):
            body = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 1}
            status, headers, _ = router.post(CHAT, body, {"x-homing-worker": worker})
            assert status == 200
            return int(headers.get("x-homing-cached-tokens", 0))
        eventually(lambda: ask("w0") > 100, "a prediction")
        before = reuse(router)
        ask("w1")
        eventually(lambda: reuse(router) != before, "the count")
        grown = {word: n - before[word] for word, n in reuse(router).items()}
        assert grown["misplaced"] > 100 and grown["cached"] == grown["evicted"] == 0, grown
        assert 0 < grown["new"] < 32, "less than a block, and the template's end"
