"""R25: bindings outlive the router, also one that is killed at a moment that it didn't choose; and what
becomes of a file that is damaged or somebody else's."""
import http.client
import glob
import os
import random
import struct
import subprocess
import tempfile
import time

from harness import answers, eventually, run
from scripted_worker import Hold
from sessions import Background, Fleet


class Kept(tempfile.TemporaryDirectory):
    """A folder for a snapshot."""

    def __enter__(self):
        folder = super().__enter__()
        self.path = os.path.join(folder, "sessions")
        self.affinity = f'snapshot = "{self.path}"'
        return self

    def beside(self, mark):
        return sorted(glob.glob(f"{self.path}.{mark}-*"))

    def created(self):
        """When the router began to write the whole file that lies there, in Unix seconds; 0: none does."""
        try:
            with open(self.path, "rb") as f:
                head = f.read(24)
        except FileNotFoundError:
            return 0
        assert head[:8] == b"HOMING\x1a\n", head
        return struct.unpack_from("<Q", head, 16)[0] / 1e6

    def mode(self, path=None):
        return oct(os.stat(path or self.path).st_mode & 0o7777)


def log_tells(fleet, *words):
    """One line of the log has all of these words."""
    return eventually(lambda: next((line for line in fleet.router.stderr().splitlines()
                                    if all(word in line for word in words)), None), f"a log line with {words}")


def digests(fleet):
    return {s["key_digest"]: (s["worker"], s["dp_rank"], s["version"]) for s in fleet.sessions()["sessions"]}


def test_r25_a_polite_end_keeps_everything():
    with Kept() as kept, Fleet(3, settings="dp_size = 2", affinity=kept.affinity + "\nmax_parallel = 1") as fleet:
        homes = {}
        for i in range(30):
            turn = fleet.ok(f"s{i}")
            homes[f"s{i}"] = (turn.worker, turn.rank)
        before, idle = digests(fleet), fleet.session("s0")["idle_seconds"]
        hold = Hold(begun=True)
        for worker in fleet.workers:
            worker.default = hold
        stream = fleet.stream("s1")
        fleet.router.terminate()
        eventually(lambda: not answers(fleet.router.admin, "/ready"), "it stops")
        hold.open.set()
        assert b"[DONE]" in stream.rest()
        assert fleet.router.wait() == 0, fleet.router.log()
        fleet.router.close()
        assert kept.mode() == "0o600" and not kept.beside("tmp")
        with open(kept.path, "rb") as f:
            data = f.read()
        assert b"s1" not in data[72:200] and b"s29" not in data, "keys are digests"
        fleet.begin()
        assert fleet.sessions()["count"] == 30 and fleet.sessions()["leases"] == 0
        assert digests(fleet) == before, "placed, versioned and keyed as before"
        assert fleet.session("s0")["idle_seconds"] >= idle, "what is left of the idle time, not all of it anew"
        for session, home in homes.items():
            turn = fleet.ok(session)
            assert (turn.word, (turn.worker, turn.rank)) == ("hit", home), (session, turn, home)
        # and once more, after a life in which most was only read
        fleet.end()
        fleet.begin()
        assert {k: v[:2] for k, v in digests(fleet).items()} == {k: v[:2] for k, v in before.items()}


def test_r25_once_ready_it_knows_its_sessions_homes():
    with Kept() as kept, Fleet(3, affinity=kept.affinity) as fleet:
        homes = {f"s{i}": fleet.ok(f"s{i}").worker for i in range(9)}
        for _ in range(3):
            fleet.end()
            # no word of this worker's until long after the start
            fleet.begin(ready=False)
            eventually(lambda: answers(fleet.router.admin, "/ready"), "ready")
            for session, home in homes.items():
                turn = fleet.ok(session)
                assert (turn.word, turn.worker) == ("hit", home), (session, turn, home)


def test_r25_homes_that_are_gone_after_the_start_are_departed():
    with Kept() as kept, Fleet(3, affinity=kept.affinity) as fleet:
        for worker in fleet.workers:
            fleet.home(worker.name, headers={"x-homing-worker": worker.name})
            fleet.home(f"{worker.name} too", headers={"x-homing-worker": worker.name})
        fleet.end()
        # w0 stays, w1 comes back as another process, w2 is not configured any more
        fleet.workers[1].started += 500
        fleet.begin(workers=fleet.workers[:2])
        assert (fleet.ok("w0").word, fleet.ok("w0 too").worker) == ("hit", "w0")
        for session in ("w1", "w2", "w1 too", "w2 too"):
            turn = fleet.ok(session)
            assert turn.word in ("rebound", "new") and turn.worker in ("w0", "w1"), (session, turn)
            assert fleet.ok(session).word == "hit"
        fleet.end()
        fleet.begin(workers=fleet.workers[:2])
        assert {fleet.ok(s).word for s in ("w0", "w1", "w2")} == {"hit"}


def test_r25_a_damaged_file_is_set_aside_and_reported_and_stops_nothing():
    def flipped(data):
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1:]

    damages = [lambda d: b"", lambda d: b"\0garbage", lambda d: d[:-1], lambda d: d[:40], lambda d: d + b"\0", flipped,
               lambda d: d[:8] + b"\xff" * 16 + d[24:], lambda d: os.urandom(len(d))]
    with Kept() as kept, Fleet(2, affinity=kept.affinity) as fleet:
        for number, damage in enumerate(damages):
            fleet.home("s")
            fleet.end()
            with open(kept.path, "rb") as f:
                data = damage(f.read())
            with open(kept.path, "wb") as f:
                f.write(data)
            for old in kept.beside("damaged"):
                os.remove(old)
            fleet.begin()
            assert fleet.sessions()["count"] == 0, number
            (aside,) = kept.beside("damaged")
            log_tells(fleet, "ERROR", aside)
            with open(aside, "rb") as f:
                assert f.read() == data, "what is set aside is what was there"
            assert kept.mode(aside) == "0o600"
            assert fleet.ok("s").word == "new", number
        fleet.end()
        fleet.begin()
        assert fleet.ok("s").word == "hit", "after a damage it is kept again"


def test_r25_damaged_files_dont_pile_up():
    with Kept() as kept, Fleet(1, affinity=kept.affinity) as fleet:
        for i in range(8):
            fleet.end(kill=True)
            with open(kept.path, "wb") as f:
                f.write(b"damaged %d" % i)
            fleet.begin()
        names = kept.beside("damaged")
        assert len(names) == 5, names
        assert any(open(name, "rb").read() == b"damaged 7" for name in names)


def key_file(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    os.chmod(path, 0o600)
    return path


def test_r25_a_key_file_keys_the_sessions_and_another_one_makes_them_strangers():
    secret = os.urandom(32)
    with Kept() as kept:
        folder = os.path.dirname(kept.path)
        path = key_file(folder, "key", secret)
        with Fleet(2, affinity=f'{kept.affinity}\nkey_file = "{path}"') as fleet:
            homes = {f"s{i}": fleet.ok(f"s{i}").worker for i in range(6)}
            told = digests(fleet)
            fleet.end()
            with open(kept.path, "rb") as f:
                data = f.read()
            assert secret not in data and secret.hex().encode() not in data
            # the same key in its other form
            key_file(folder, "key", secret.hex().encode() + b"\n")
            fleet.begin()
            assert digests(fleet) == told
            assert all(fleet.ok(s).worker == home for s, home in homes.items())
            fleet.end()
            key_file(folder, "key", os.urandom(32))
            fleet.begin()
            assert fleet.sessions()["count"] == 0
            (aside,) = kept.beside("damaged")
            log_tells(fleet, "ERROR", aside, "key_file")
            assert fleet.ok("s0").word == "new"
            assert not set(digests(fleet)) & set(told), "another key gives other digests"
            log = fleet.router.stderr()
            assert secret.hex() not in log
            # others may read it: a warning, and no more
            os.chmod(path, 0o644)
            fleet.end()
            fleet.begin()
            log_tells(fleet, "WARN", path)
            assert fleet.ok("s0").word == "hit"


def test_r01_a_key_file_alone_makes_digests_comparable_between_starts():
    with Kept() as kept:
        path = key_file(os.path.dirname(kept.path), "key", os.urandom(32))
        told = []
        for affinity in (f'key_file = "{path}"', f'key_file = "{path}"', "", ""):
            with Fleet(1, affinity=affinity) as fleet:
                fleet.home("s")
                told.append(set(digests(fleet)))
        assert told[0] == told[1] and len(set().union(*told)) == 3, told


def test_r25_a_key_file_that_is_none_stops_the_start_and_is_not_quoted():
    worker = ["--worker", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with Kept() as kept:
        folder = os.path.dirname(kept.path)
        for data in (b"", b"tooShortSecret", b"x" * 33, b"g" * 64, b"a" * 10_000):
            path = key_file(folder, "key", data)
            code, _, err = run("serve", *worker, HOMING_AFFINITY__KEY_FILE=path)
            assert code == 2 and path in err, (data[:40], code, err)
            assert len(data) < 5 or data.decode() not in err, err
        code, _, err = run("serve", *worker, HOMING_AFFINITY__KEY_FILE=folder + "/none")
        assert code == 2 and "none" in err, (code, err)
        missing = folder + "/no/folder"
        code, _, err = run("serve", *worker, HOMING_AFFINITY__SNAPSHOT=missing + "/snap")
        assert code == 2 and "affinity.snapshot" in err and missing in err, (code, err)


def test_r25_a_snapshot_that_names_a_folder_leaves_the_folder_alone():
    with Kept() as kept:
        # a folder of its own, inside ours: nothing outside may be touched, whatever happens
        folder = os.path.join(os.path.dirname(kept.path), "state")
        os.mkdir(folder, 0o755)
        precious = os.path.join(folder, "precious")
        with open(precious, "w") as f:
            f.write("not ours")
        worker = ["--worker", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        try:
            code, _, err = run("serve", *worker, timeout=3, HOMING_AFFINITY__SNAPSHOT=folder)
        except subprocess.TimeoutExpired:
            code, err = None, "it started"
        assert os.listdir(os.path.dirname(kept.path)) == ["state"], os.listdir(os.path.dirname(kept.path))
        with open(precious) as f:
            assert f.read() == "not ours"
        assert code == 2 and "affinity.snapshot" in err and folder in err, (code, err)


class Load:
    """Binds new sessions as fast as it can, until the router is gone."""

    def __init__(self, fleet, name):
        self.fleet, self.name, self.bound = fleet, name, {}
        self._threads = [Background(lambda t=t: self._run(t)) for t in range(2)]

    def _run(self, thread):
        n = 0
        while True:
            session, n = f"{self.name}-{thread}-{n}", n + 1
            try:
                turn = self.fleet.ok(session)
            except Exception:  # killed, with this turn on its way
                return
            self.bound[session] = (turn.worker, time.time())
            if n % 7 == 0:
                # some end, and must not come back
                gone = f"{self.name}-{thread}-{n - 3}"
                # whatever comes of it: killed meanwhile, it may be there and may not
                self.bound.pop(gone, None)
                try:
                    self.fleet.admin("DELETE", f"/admin/sessions/{gone}")
                except (OSError, http.client.HTTPException):
                    return
            time.sleep(0.004)

    def ended(self):
        for thread in self._threads:
            thread.result()
        return self.bound


def caught_writing(kept):
    """Looks often for a moment, for a write that takes less than one."""
    for _ in range(100):
        if any(".tmp-" in name for name in os.listdir(os.path.dirname(kept.path))):
            return True
        time.sleep(0.002)
    return False


def killed(seed):
    """A router that is killed twice under load: in the middle of a write, and at any moment -> how many
    bindings had to be back."""
    dice, checked = random.Random(seed), 0
    with Kept() as kept, Fleet(2, affinity=kept.affinity) as fleet:
        for life in range(2):
            load = Load(fleet, f"life{life}")
            before = kept.created()
            if (seed + life) % 2:
                # as soon as a write has begun
                eventually(lambda: caught_writing(kept) or kept.created() > before, "it writes")
            else:
                eventually(lambda: kept.created() > before, "it writes every so often")
                time.sleep(dice.random() * 3)
            fleet.end(kill=True)
            bound, whole = load.ended(), kept.created()
            assert not whole or kept.mode() == "0o600"
            # what is older than the file must be in it
            due = {session: worker for session, (worker, at) in bound.items() if at < whole}
            fleet.begin()
            assert not kept.beside("damaged"), kept.beside("damaged")
            assert fleet.sessions()["count"] >= len(due), (fleet.sessions()["count"], len(due))
            for session in dice.sample(sorted(due), min(len(due), 200)):
                turn = fleet.ok(session)
                assert (turn.word, turn.worker) == ("hit", due[session]), (session, turn, due[session])
            checked += len(due)
        # left-overs of the killed are cleared away
        fleet.end()
        assert not kept.beside("tmp"), kept.beside("tmp")
    return checked


def test_r25_kill_9_at_any_moment_loses_only_what_is_newer_than_the_file():
    lives = [Background(lambda s=s: killed(s)) for s in range(4)]
    for life in lives:
        life.join(90)
    checked = [life.result() for life in lives]
    assert all(n > 100 for n in checked), checked
