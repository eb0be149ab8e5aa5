"""Why a request went where it went: /admin/decisions, `homing why` and `homing preview`."""
import json
import socket
import tempfile

from harness import MODEL, Mock, Serve, call, eventually, run, tokenized

# Long enough for some blocks of the mock's tokenizer.
LONG = "Tell me of the pigeons that find their way home. " * 40
SECRET = "a-session-id-that-nobody-may-see"


def chat(router, text, session=None, request_id=None, **more):
    """One turn -> (status, headers, the JSON)."""
    headers = {}
    if session:
        headers["x-homing-session-id"] = session
    if request_id:
        headers["x-request-id"] = request_id
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | more
    status, headers, body = router.post("/v1/chat/completions", body, headers)
    return status, headers, json.loads(body)


def decision(router, request_id):
    """Its record, once the request is over."""
    def look():
        status, _, body = call(router.admin, "GET", f"/admin/decisions/{request_id}")
        said = json.loads(body)
        assert status == 200, said
        return said["times"]["ended_ms"] is not None and said
    return eventually(look, "the request is over")


def why(router, *args):
    return run("why", *args, "--admin", f"http://127.0.0.1:{router.admin}")


def preview(router, *args):
    return run("preview", *args, "--admin", f"http://127.0.0.1:{router.admin}")


def test_a_session_is_explained_turn_by_turn():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        status, headers, _ = chat(router, LONG, SECRET)
        assert status == 200
        first = decision(router, headers["x-request-id"])
        home = headers["x-homing-worker"]
        assert (first["worker"], first["stage"], first["model"]) == (home, "complete", MODEL), first
        assert first["session"]["affinity"] == "new" and first["session"]["home"] is None, first
        assert {c["worker"] for c in first["candidates"]} == {"w0", "w1"}, first
        picked = [c for c in first["candidates"] if c["picked"]]
        assert [c["worker"] for c in picked] == [home] and picked[0]["against"] == [], first
        eventually(lambda: sum(w["cached_blocks"] for w in router.workers()) > 0, "blocks are known")

        _, headers, answer = chat(router, LONG, SECRET, request_id="my id/2")
        assert headers["x-request-id"] == "my id/2"
        second = decision(router, "my%20id%2F2")
        assert second["session"]["steer"] == "pin" and second["session"]["home"]["worker"] == home, second
        assert (second["session"]["affinity"], second["considered"]) == ("hit", 1), second
        assert second["prompt"]["exact"] and second["predicted_cached_tokens"] > 0, second
        really, usage = second["really"], answer["usage"]
        assert really["prompt_tokens"] == usage["prompt_tokens"], (really, usage)
        assert really["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"], (really, usage)
        assert really["output_tokens"] == usage["completion_tokens"], (really, usage)
        assert really["regret_tokens"] == 0, really
        times = second["times"]
        order = [times[k] for k in ("asked_ms", "granted_ms", "dispatched_ms", "begun_ms", "ended_ms")]
        assert order == sorted(order) and order[0] >= 0, times
        assert times["first_token_ms"] is None and really["ttft_ms"] is None, "an answer that comes whole has none"

        body = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "max_tokens": 4, "stream": True,
                "stream_options": {"include_usage": True}}
        status, _, _ = router.post("/v1/chat/completions", body, {"x-request-id": "stream"})
        assert status == 200
        third = decision(router, "stream")
        times = third["times"]
        assert times["begun_ms"] <= times["first_token_ms"] <= times["ended_ms"], times
        assert third["really"]["ttft_ms"] > 0 and third["really"]["cached_tokens"] is not None, third
        assert third["session"] == {"key_digest": None, "affinity": "none", "mode": None, "home": None,
                                    "steer": None}, third

        all_of_them = router.admin_json("/admin/decisions")
        ids = [d["request_id"] for d in all_of_them["decisions"]]
        assert ids[:2] == ["stream", "my id/2"] and all_of_them["kept"] == len(ids) == 3, ids
        assert len(router.admin_json("/admin/decisions?limit=1")["decisions"]) == 1
        assert router.admin_json("/admin/decisions?limit=0")["decisions"] == []
        for wrong in ("limit=-1", "limit=x", "count=3"):
            assert call(router.admin, "GET", f"/admin/decisions?{wrong}")[0] == 400, wrong
        text = json.dumps(all_of_them)
        assert SECRET not in text and "pigeons" not in text
        digest = router.admin_json("/admin/sessions")["sessions"][0]["key_digest"]
        assert second["session"]["key_digest"] == digest, "as the other pages and the log show it"
        assert router.logged(digest)

        code, out, err = why(router, "my id/2")
        assert code == 0 and err == "", (code, err)
        for part in ("request my id/2: ", f"went to  {home}, one of 2", "its session lives there", digest,
                     "prompt tokens were cached", "regret   none", "overlap"):
            assert part in out, (part, out)
        rows = [line for line in out.splitlines() if line.startswith(">")]
        assert len(rows) == 1 and home in rows[0], out
        code, out, _ = why(router, "my id/2", "--json")
        assert code == 0 and json.loads(out) == second


def test_attempts_and_refusals_are_explained():
    with Mock() as mock, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with Serve([mock], extra="[health]\ninterval = '60s'\n") as router:
            status, headers, body = chat(router, "hi", None, "nowhere", model=MODEL)
            assert status == 200
            refused = {"x-homing-worker": "w9", "x-request-id": "unknown"}
            status, _, _ = router.post("/v1/chat/completions",
                                       {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}, refused)
            assert status == 400
            said = decision(router, "unknown")
            assert (said["stage"], said["worker"], said["attempts"]) == ("refused", None, 0), said
            assert (said["error"]["code"], said["error"]["status"]) == ("unknown_worker", 400), said
            code, out, _ = why(router, "unknown")
            assert code == 0 and "went to  nowhere" in out and "refused  400 unknown_worker" in out, out
            # Refused before anything was decided: a record says nothing of it.
            status, headers, _ = chat(router, "hi", model="no-such-model")
            assert status == 404
            code, out, err = why(router, headers["x-request-id"])
            assert code == 1 and out == "" and "records of the last 2 decisions are kept" in err, err
            mock.close()
            status, headers, _ = chat(router, "hi", request_id="gone")
            assert status >= 500, status
            said = decision(router, "gone")
            assert said["attempts"] == 1 and said["tries"][0]["failure"] == "refused", said
            assert said["stage"] == "refused" and said["really"]["ttft_ms"] is None, said


def test_why_says_what_to_do_where_there_is_no_router():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        code, out, err = run("why", "x", "--admin", f"127.0.0.1:{port}")
        assert code == 1 and out == "" and "is the router running" in err, (code, out, err)
        assert run("preview", "--model", "m", "--prompt", "p", "--admin", f"127.0.0.1:{port}")[0] == 1
    with Mock() as mock:
        # It has no admin API.
        code, _, err = run("why", "x", "--admin", mock.url)
        assert code == 1 and "admin" in err, err
    assert run("why")[0] == 2
    assert run("why", "")[0] == 2
    assert run("why", "x", "--admin", "ftp://nowhere")[0] == 2
    for command in ("why", "preview"):
        code, out, _ = run(command, "--help")
        assert code == 0 and "Examples:" in out


def test_a_preview_says_where_a_request_would_go_and_sends_nothing():
    with Mock() as a, Mock() as b, Serve([a, b], extra=tokenized()) as router:
        chat(router, LONG, "s")
        kept = router.admin_json("/admin/decisions")["kept"]
        home = router.admin_json("/admin/sessions")["sessions"][0]["worker"]
        code, out, err = preview(router, "--model", MODEL, "--prompt", LONG, "--session", "s")
        assert code == 0 and err == "", err
        assert f"would go to {home}" in out and "hit (hard, at home at" in out, out
        rows = [line for line in out.splitlines() if line.startswith(">")]
        assert len(rows) == 1 and home in rows[0], out
        code, out, _ = preview(router, "--model", MODEL, "--prompt", LONG, "--json")
        said = json.loads(out)
        assert code == 0 and len(said["candidates"]) == 2 and said["session"]["affinity"] == "none", said
        for candidate in said["candidates"]:
            parts = candidate["terms"].values()
            assert parts and abs(sum(parts) - candidate["cost"]) <= 1e-3 * max(1.0, candidate["cost"]), candidate
        question = {"endpoint": "/v1/completions", "headers": {"x-homing-worker": "w1"},
                    "body": {"model": MODEL, "prompt": "hello"}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump(question, f)
            f.flush()
            assert "would go to w1" in preview(router, f.name)[1]
            code, out, _ = preview(router, f.name, "--header", "x-homing-worker: w0")
            assert code == 0 and "would go to w0" in out, out
            f.seek(0)
            f.write("[" + " " * 400)
            f.flush()
            code, _, err = preview(router, f.name)
            assert code == 2 and "not JSON" in err, err
        code, out, _ = preview(router, "--model", "no-such-model", "--prompt", "p")
        assert code == 1 and "404 model_not_found" in out, out
        code, out, _ = preview(router, "--model", "no-such-model", "--prompt", "p", "--json")
        assert code == 1 and json.loads(out)["error"]["status"] == 404, out
        assert preview(router, "--model", MODEL)[0] == 2
        assert router.admin_json("/admin/decisions")["kept"] == kept, "a preview leaves no record"
