"""A proxy between an engine's KV event sockets and the router, which loses, doubles and reorders what is
published, by a seed. Requests for a replay and their replies pass as they are."""
import random
import threading

import zmq


class FaultingProxy:
    """In front of one source of `/kv_event_sources`. Faults come between `harm()` and `heal()`."""

    def __init__(self, source, seed, lose=0.2, double=0.1, reorder=0.1, replay=True):
        self._source, self._dice = source, random.Random(seed)
        self._odds = (lose, double, reorder)
        self._stopped, self._harmful = threading.Event(), threading.Event()
        self.lost = self.doubled = self.reordered = 0
        self._context = zmq.Context()
        self._front = self._bound(zmq.PUB)
        self._replay = self._bound(zmq.ROUTER) if replay else None
        self.settings = f'kv_events = "{self._endpoint(self._front)}"\n'
        if replay:
            self.settings += f'kv_replay = "{self._endpoint(self._replay)}"\n'
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _bound(self, kind):
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind("tcp://127.0.0.1:*")
        return socket

    def _connected(self, kind, endpoint):
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.connect(endpoint)
        return socket

    @staticmethod
    def _endpoint(socket):
        return socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")

    def _run(self):
        events = self._connected(zmq.SUB, self._source["endpoint"])
        events.setsockopt(zmq.SUBSCRIBE, b"")
        # An engine answers a peer of three frames only; so each client has a connection of its own behind.
        behind, late = {}, None
        poller = zmq.Poller()
        poller.register(events, zmq.POLLIN)
        if self._replay:
            poller.register(self._replay, zmq.POLLIN)
        while not self._stopped.is_set():
            ready = dict(poller.poll(20))
            if late and not self._harmful.is_set():
                self._front.send_multipart(late)
                late = None
            if events in ready:
                late = self._pass(events.recv_multipart(), late)
            if self._replay in ready:
                who, *request = self._replay.recv_multipart()
                if who not in behind:
                    behind[who] = self._connected(zmq.DEALER, self._source["replay_endpoint"])
                    poller.register(behind[who], zmq.POLLIN)
                behind[who].send_multipart(request)
            for who, socket in behind.items():
                while socket in ready and socket.poll(0):
                    self._replay.send_multipart([who, *socket.recv_multipart()])
        for socket in (events, *behind.values()):
            socket.close()

    def _pass(self, frames, late):
        """Sends on what is left of a message -> what is to come late."""
        if not self._harmful.is_set():
            self._front.send_multipart(frames)
            return late
        lose, double, reorder = self._odds
        dice = self._dice.random()
        if dice < lose:
            self.lost += 1
            return late
        if late is None and dice < lose + reorder:
            self.reordered += 1
            return frames
        self._front.send_multipart(frames)
        if dice > 1 - double:
            self.doubled += 1
            self._front.send_multipart(frames)
        if late:
            self._front.send_multipart(late)
        return None

    def harm(self):
        self._harmful.set()

    def heal(self):
        """From now on everything passes as it is."""
        self._harmful.clear()

    def close(self):
        self._stopped.set()
        self._thread.join()
        self._context.destroy(linger=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
