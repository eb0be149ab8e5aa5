"""One id used with two models, with an adapter, at two paths: what is one session, and what are two (R01)."""
import tempfile

from harness import MODEL, eventually
from scripted_worker import Hold, ScriptedWorker
from sessions import CHAT, Fleet, Turn, check_refused

ADAPTER = "sql-lora"


def fleet_of(*models, **kw):
    """A fleet whose workers serve these."""
    workers = [ScriptedWorker() for _ in models]
    for worker, served in zip(workers, models):
        worker.models = served
    return Fleet(workers=workers, **kw)


def test_r05_a_session_is_one_at_every_path():
    with Fleet(3) as fleet:
        home = fleet.home("s")
        sent = {"x-homing-session-id": "s"}
        for _ in range(3):
            turn = Turn(*fleet.router.post("/v1/completions", {"model": MODEL, "prompt": "Hi"}, sent))
            assert (turn.status, turn.word, turn.worker) == (200, "hit", home.name), turn
            assert fleet.stream("s").turn.worker == home.name
        fleet.quiet()
        turn = Turn(*fleet.router.post("/v1/completions", {"model": MODEL, "prompt": [1, 2]}, {
            "x-homing-session-id": "t"}))
        assert turn.word == "new" and fleet.ok("t").worker == turn.worker, turn


def test_r01_one_id_with_two_models_is_two_sessions():
    with fleet_of({"a": None}, {"a": None}, {"b": None}, {"b": None}) as fleet:
        homes = {model: fleet.ok("s", model=model) for model in ("a", "b")}
        assert [turn.word for turn in homes.values()] == ["new", "new"], homes
        for model, turn in homes.items():
            assert fleet.ok("s", model=model).worker == turn.worker
            assert fleet.session("s", model=model)["worker"] == turn.worker
        assert fleet.sessions()["count"] == 2
        assert fleet.admin("DELETE", "/admin/sessions/s?model=a")[0] == 204
        assert fleet.session("s", model="a") is None and fleet.session("s", model="b")
        assert fleet.ok("s", model="a").word == "new" and fleet.ok("s", model="b").word == "hit"
        # one of the other pool is nobody here
        other = {"x-homing-worker": homes["b"].worker}
        turn = fleet.turn("t", headers=other, model="a")
        assert turn.status == 400 and turn.code in ("unknown_worker", "invalid_request"), turn


def test_r01_an_adapters_session_is_apart_from_its_bases_and_departs_with_the_adapter():
    both = {MODEL: None, ADAPTER: MODEL}
    with fleet_of(dict(both), dict(both), {MODEL: None}, extra='[health]\ninterval = "50ms"') as fleet:
        base = fleet.ok("s")
        tuned = fleet.ok("s", model=ADAPTER)
        assert (base.word, tuned.word) == ("new", "new") and tuned.worker != "w2", (base, tuned)
        assert fleet.ok("s").word == fleet.ok("s", model=ADAPTER).word == "hit"
        home = fleet.worker(tuned.worker)
        fleet.home("there", headers={"x-homing-worker": home.name})
        del home.models[ADAPTER]
        eventually(lambda: ADAPTER not in fleet.state(home)["models"], "the router sees that it is gone")
        moved = fleet.ok("s", model=ADAPTER)
        assert moved.word == "rebound" and moved.worker not in (home.name, "w2"), moved
        assert fleet.ok("s", model=ADAPTER).word == "hit"
        # the worker itself is as well as before
        assert fleet.ok("there").word == "hit"
        assert fleet.ok("s").worker == base.worker


def test_r25_adapters_and_pools_come_back_apart():
    with tempfile.TemporaryDirectory() as folder:
        served = [{"a": None, ADAPTER: "a"}, {"a": None, ADAPTER: "a"}, {"b": None}, {"b": None}]
        with fleet_of(*served, affinity=f'snapshot = "{folder}/sessions"') as fleet:
            homes = {model: fleet.ok("s", model=model).worker for model in ("a", "b", ADAPTER)}
            fleet.end()
            fleet.begin()
            for model, home in homes.items():
                turn = fleet.ok("s", model=model)
                assert (turn.word, turn.worker) == ("hit", home), (model, turn, home)


def test_r12_a_worker_that_lets_its_first_token_wait_for_too_long():
    with Fleet(2, extra='[upstream]\nfirst_token_timeout = "1s"') as fleet:
        home = fleet.home("s")
        hold = Hold()
        home.will(hold)
        seen = fleet.seen()
        turn = Turn(*fleet.router.post(CHAT, {"model": MODEL, "stream": True, "messages": [
            {"role": "user", "content": "Hi"}]}, {"x-homing-session-id": "s"}))
        check_refused(turn, 504, "timeout", word="unbound")
        hold.open.set()
        assert fleet.seen() == seen + 1, "it may have run: nobody else is asked"
        assert fleet.ok("s").word == "hit"
        fleet.quiet()
