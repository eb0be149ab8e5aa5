"""The queue's order and its refusals, the overload detector, and what engines report of their load."""
import http.client
import json

from harness import MODEL, Mock, Serve, call, check_error, eventually
from sessions import CHAT, Background, Fleet, chat_body, check_refused

QUEUE = "[queue]\nbusy_active_requests = 1\nmax_requests = 10"


def waits(fleet, count):
    eventually(lambda: fleet.router.metric("homing_queue_depth") == count, f"{count} in the queue")


def asked(worker):
    """The words of the requests that have reached a worker, oldest first."""
    return [json.loads(r.body)["messages"][0]["content"] for r in worker.seen]


def test_the_higher_priority_is_served_first_and_equals_in_order():
    with Fleet(1, extra=QUEUE) as fleet:
        (worker,) = fleet.workers
        gate, stream = fleet.hold(worker)
        turns = []
        for text, priority in (("a", None), ("low", "-3"), ("b", "0"), ("high", "7"), ("c", None)):
            headers = {} if priority is None else {"x-homing-priority": priority}
            turns.append(Background(lambda t=text, h=headers: fleet.ok(text=t, headers=h)))
            waits(fleet, len(turns))
        gate.open.set()
        stream.rest()
        for turn in turns:
            turn.result()
        assert asked(worker)[1:] == ["high", "a", "b", "c", "low"], asked(worker)
        assert not any(r.values(b"x-homing-priority") for r in worker.seen), "it is for the router"
        fleet.quiet()


def test_a_full_queue_says_when_to_come_again_to_every_priority():
    with Fleet(1, extra=QUEUE.replace("10", "1")) as fleet:
        gate, stream = fleet.hold(fleet.workers[0])
        first = Background(lambda: fleet.turn(text="first"))
        waits(fleet, 1)
        for priority in ("0", "2147483647"):
            turn = fleet.turn(headers={"x-homing-priority": priority})
            check_refused(turn, 429, "queue_full", word="none")
            # nothing has been measured yet: soon
            assert 1000 <= int(turn.headers["retry-after-ms"]) < 3000, turn.headers
        gate.open.set()
        stream.rest()
        assert first.result().status == 200
        fleet.quiet()


def test_an_overloaded_home_spills_and_has_its_sessions_back_when_it_has_recovered():
    with Fleet(2, extra="[overload]\nactive_requests = 2\nrecover = 0.5") as fleet:
        home = fleet.home("s")
        (other,) = fleet.others(home)
        gates = [fleet.hold(home) for _ in range(2)]
        state = fleet.state(home)
        assert (state["state"], state["overloaded_by"]) == ("overloaded", ["active_requests"]), state
        assert fleet.router.metric("homing_worker_overloaded", worker=home.name) == 1
        turn = fleet.ok("s")
        assert (turn.word, turn.worker) == ("spilled", other.name), turn
        assert fleet.ok("new").worker == other.name
        gate, stream = gates.pop()
        gate.open.set()
        stream.rest()
        eventually(lambda: fleet.state(home)["state"] == "ready", "it has recovered")
        turn = fleet.ok("s")
        assert (turn.word, turn.worker) == ("hit", home.name), turn
        # everybody overloaded is a refusal, and no session moves for it
        gates += [fleet.hold(w) for w in (home, other, other)]
        turn = fleet.turn("s")
        check_refused(turn, 429, "overloaded")
        assert fleet.session("s")["worker"] == home.name
        for gate, stream in gates:
            gate.open.set()
            stream.rest()
        fleet.quiet()
        assert fleet.router.metric("homing_worker_overloaded") == 0


class Stranger:
    """A client that asks an engine directly, for a long answer: it is there until it leaves."""

    def __init__(self, mock, words=40, most=4000):
        self._conn = http.client.HTTPConnection("127.0.0.1", mock.port, timeout=60)
        body = {"model": MODEL, "stream": True, "max_tokens": most, "ignore_eos": True,
                "messages": [{"role": "user", "content": " ".join(f"word{i}" for i in range(words))}]}
        self._conn.request("POST", CHAT, json.dumps(body), {"content-type": "application/json"})
        self._res = self._conn.getresponse()
        assert self._res.status == 200, self._res.read()

    def leave(self):
        self._res.close()
        self._conn.close()


def reported(router, worker="w0"):
    return next(w for w in router.workers() if w["id"] == worker)["reported"]


def state(router, worker="w0"):
    return next(w for w in router.workers() if w["id"] == worker)


PROBES = '[health]\ninterval = "200ms"\n'


def test_what_engines_report_counts_as_load_until_it_has_gone():
    with Mock() as busy, Mock() as idle:
        with Serve([busy, idle], extra=PROBES + '[routing]\npolicy = "least_loaded"\n') as router:
            strangers = [Stranger(busy) for _ in range(3)]
            eventually(lambda: (reported(router) or {}).get("foreign") == 3, "the strangers are seen")
            said = reported(router)
            assert said["running"] + said["waiting"] == 3 and 0 < said["kv_usage"] <= 1, said
            assert 0 <= said["age_seconds"] < 30, said
            assert router.metric("homing_worker_foreign_requests", worker="w0") == 3
            assert state(router)["active_requests"] == 0, "bookings are ours alone"
            for _ in range(4):
                status, headers, body = router.post(CHAT, chat_body(max_tokens=2))
                assert (status, headers["x-homing-worker"]) == (200, "w1"), (status, headers, body)
            for stranger in strangers:
                stranger.leave()
            eventually(lambda: reported(router)["foreign"] == 0, "they have gone")
            assert reported(router, "w1")["foreign"] == 0, "what was ours was never foreign"


def test_strangers_make_a_worker_busy_and_overloaded_and_it_recovers():
    extra = PROBES + "[queue]\nbusy_active_requests = 2\nmax_requests = 4\n"
    with Mock() as mock, Serve([mock], extra=extra) as router:
        strangers = [Stranger(mock) for _ in range(2)]
        eventually(lambda: (reported(router) or {}).get("foreign") == 2, "the strangers are seen")
        turn = Background(lambda: router.post(CHAT, chat_body(max_tokens=2)))
        eventually(lambda: router.metric("homing_queue_depth") == 1, "it waits")
        strangers.pop().leave()
        assert turn.result()[0] == 200
        strangers.pop().leave()
    extra = PROBES + "[overload]\nactive_requests = 2\nkv_usage = 0.3\n"
    # Slow, so that an answer which must fit into its small cache takes long enough all the same.
    with Mock("--blocks", "128", "--speedup", "0.1") as mock, Serve([mock], extra=extra) as router:
        for words, why in ((1, "active_requests"), (300, "kv_usage")):
            strangers = [Stranger(mock, words, most=600) for _ in range(2 if words == 1 else 1)]
            eventually(lambda: state(router)["overloaded_by"] == [why], f"overloaded by {why}")
            assert state(router)["state"] == "overloaded"
            status, headers, body = router.post(CHAT, chat_body(max_tokens=2))
            check_error(status, body, 429, "overloaded")
            assert 1 <= int(headers["retry-after"]) <= 60
            for stranger in strangers:
                stranger.leave()
            eventually(lambda: state(router)["state"] == "ready", "it has recovered")
            assert router.post(CHAT, chat_body(max_tokens=2))[0] == 200


def test_an_engine_without_metrics_is_known_by_our_bookings_alone():
    # Scripted ones tell when they began, and nothing of their load.
    with Fleet(1, extra=PROBES) as fleet:
        assert fleet.ok().status == 200
        assert fleet.state(fleet.workers[0])["reported"] is None
        status, body = fleet.admin("GET", "/metrics")
        assert status == 200 and b"homing_worker_foreign_requests" in body
