"""All at once: sessions, failures of every kind, clients that leave, workers that die and come back, an
operator who drains and deletes. Afterwards nothing is left, and each session has one home (R13, R26)."""
import http.client
import random
import time

from harness import eventually
from scripted_worker import Hold, Reset, Status
from sessions import Background, Fleet, chat_body

ROUNDS = 60
# What the router may answer where workers fail; whatever else comes is a worker's own, or a bug.
STATUSES = {200, 400, 429, 500, 502, 503, 504}
WORDS = {"none", "new", "joined", "hit", "rebound", "spilled", "unbound_full", "conflict", "surplus", "unbound",
         "rejected"}


def some_act(dice):
    return dice.choice([None] * 12 + [Status(429, {"Retry-After": "1"}), Status(503), Status(500), Status(400), Reset(),
                                      Reset()])


def client(fleet, seed, rounds):
    """Turns of a few sessions, one after the other -> how many answers had which word."""
    dice, words = random.Random(seed), {}
    for _ in range(rounds):
        session = f"s{dice.randrange(10)}"
        headers = dice.choice([{}, {}, {}, {"x-homing-affinity": "soft"}, {"x-homing-affinity": "off"},
                               {"x-homing-session-final": "true"}, {"x-homing-parent-session-id": "boss"},
                               {"x-homing-worker": f"w{dice.randrange(3)}"},
                               {"x-homing-allowed-workers": f"w{dice.randrange(3)}"}])
        if dice.random() < 0.3:
            try:
                stream = fleet.stream(session, headers)
            except AssertionError:
                continue                                             # refused: the plain turns look at that
            if dice.random() < 0.5:
                stream.leave()
                continue
            try:
                stream.rest()
            except (OSError, http.client.HTTPException):
                pass                                                 # its worker was killed in the middle
            continue
        try:
            turn = fleet.turn(session, headers=headers)
        except http.client.IncompleteRead:
            continue
        assert turn.status in STATUSES and turn.word in WORDS, turn
        words[turn.word] = words.get(turn.word, 0) + 1
    return words


def havoc(fleet, stop, seed):
    """What happens to the fleet meanwhile. w0 stays, so that the pool is never empty for long."""
    dice, started = random.Random(seed), 1_800_000_000
    while not stop:
        worker = fleet.workers[dice.choice([1, 2])]
        what = dice.randrange(6)
        for w in fleet.workers:
            w.will(*[act for act in (some_act(dice) for _ in range(3)) if act])
        if what == 0:
            worker.stop()
            time.sleep(0.05)
            started += 1
            worker.start(started)
        elif what == 1:
            fleet.admin("POST", f"/admin/workers/{worker.name}/drain?move_sessions=true")
            time.sleep(0.05)
            fleet.admin("POST", f"/admin/workers/{worker.name}/undrain")
        elif what == 2:
            fleet.admin("DELETE", f"/admin/sessions/s{dice.randrange(10)}")
        elif what == 3:
            hold = Hold(begun=True)
            worker.will(hold)
            time.sleep(0.03)
            hold.open.set()
        elif what == 4:
            fleet.preview({"x-homing-session-id": f"s{dice.randrange(10)}"}, chat_body())
        else:
            time.sleep(0.02)


def storm(affinity, extra, rounds=ROUNDS):
    keen = '[health]\ninterval = "100ms"\n' + extra
    with Fleet(3, affinity=affinity + '\nsubagents = "group"\nmax_parallel = 4\nmax_sessions = 8', extra=keen,
               gateway='request_timeout = "1s"') as fleet:
        stop, words = [], {}
        weather = Background(lambda: havoc(fleet, stop, seed=1))
        clients = [Background(lambda i=i: client(fleet, i, rounds)) for i in range(12)]
        for one in clients:
            one.join(60)
        stop.append(True)
        weather.result()
        for one in clients:
            for word, count in one.result().items():
                words[word] = words.get(word, 0) + count
        assert "new" in words, words
        fleet.quiet()
        assert fleet.sessions()["count"] <= 8
        assert "panic" not in fleet.router.stderr(), fleet.router.log()
        for worker in fleet.workers:
            worker.acts.clear()
        fleet.router.wait_ready(3)
        for listed in fleet.sessions()["sessions"]:
            assert listed["leases"] == 0, listed
        # the sky is clear: who has room has a home, and stays there
        for i in range(1, 10):
            fleet.admin("DELETE", f"/admin/sessions/s{i}")
        last = []

        def at_home():
            last.append(fleet.turn("s0"))
            return last[-1].word == "hit"

        try:
            eventually(at_home, "the last overload is over", seconds=10)
        except AssertionError:
            raise AssertionError(f"{last[-3:]}\n{fleet.sessions()}\n{fleet.router.workers()}") from None
        assert {fleet.ok("s0").word for _ in range(3)} == {"hit"}
        bound = sum(w["bindings"] for w in fleet.router.workers())
        assert bound <= fleet.sessions()["count"], (bound, fleet.sessions())
        fleet.quiet()


def test_after_a_storm_nothing_is_left():
    storm("", "")


def test_after_a_storm_of_those_who_wait_nothing_is_left():
    storm('on_overload = "wait"\non_full = "evict_idle"', "[queue]\nbusy_active_requests = 2\nmax_requests = 20\n",
          rounds=12)


def test_after_a_storm_under_the_strict_set_nothing_is_left():
    storm('on_overload = "reject"\non_failure = "reject"\non_down = "reject"\nreject_as = "invalid_argument"', "")
