//! The sockets themselves, with their limits: how one listens to an endpoint, and how one asks it.
//!
//! A context of libzmq has 1023 sockets, and a feed takes three (one is inside its monitor), four while it
//! asks: a full context is left to its sockets, with whose last it ends, and another one begun.

use homing_wire::engine::is_wildcard;
use homing_wire::frames::build_request;
use std::time::Duration;

/// The longest message taken, in bytes; libzmq drops the connection of a longer one.
pub(super) const MAX_MESSAGE: i64 = 16 << 20;
/// Messages that libzmq keeps for us: one turn's, which at an engine's some 10 KB each is little, and at
/// the longest is 1 GiB. Beyond it nothing is lost yet: libzmq stops reading, and the publisher keeps
/// what we have not read, up to a mark of its own (vLLM's: 100,000). Only then does it drop, which we see
/// as a gap.
pub(super) const HIGH_WATER: i32 = 64;
/// A dead peer is noticed after three of these, in milliseconds.
const HEARTBEAT_MS: i32 = 5_000;

/// How often a port is tried that is in use still: closing a socket takes libzmq a moment.
const BIND_TRIES: u32 = 10;
const BIND_PAUSE: Duration = Duration::from_millis(20);

/// A feed's.
pub(super) struct Sockets {
    pub(super) events: zmq::Socket,
    pub(super) monitor: zmq::Socket,
}

/// Opens sockets.
pub(super) struct Links {
    context: zmq::Context,
    /// Names the sockets' monitors.
    opened: u64,
}

impl Links {
    pub(super) fn new() -> Self {
        Self { context: zmq::Context::new(), opened: 0 }
    }

    /// Listens to everything that is published there, or by whoever connects there.
    pub(super) fn events(&mut self, endpoint: &str) -> zmq::Result<Sockets> {
        let mut tries = 0;
        loop {
            self.opened += 1;
            let serial = self.opened;
            match self.in_context(|context| open(context, endpoint, serial)) {
                Err(zmq::Error::EADDRINUSE) if tries < BIND_TRIES => {
                    tries += 1;
                    std::thread::sleep(BIND_PAUSE);
                }
                opened => return opened,
            }
        }
    }

    /// Asks there for everything from a number on; the replies come from the socket.
    pub(super) fn replies(&mut self, endpoint: &str, from: u64) -> zmq::Result<zmq::Socket> {
        self.in_context(|context| {
            let socket = context.socket(zmq::DEALER)?;
            limit(&socket)?;
            socket.connect(endpoint)?;
            // It waits in the socket until that is connected.
            socket.send_multipart(build_request(from), zmq::DONTWAIT)?;
            Ok(socket)
        })
    }

    fn in_context<T>(&mut self, open: impl Fn(&zmq::Context) -> zmq::Result<T>) -> zmq::Result<T> {
        match open(&self.context) {
            Err(zmq::Error::EMFILE) => {
                self.context = zmq::Context::new();
                open(&self.context)
            }
            opened => opened,
        }
    }
}

/// What holds for all that is read from engines.
fn limit(socket: &zmq::Socket) -> zmq::Result<()> {
    socket.set_linger(0)?;
    socket.set_rcvhwm(HIGH_WATER)?;
    socket.set_maxmsgsize(MAX_MESSAGE)?;
    socket.set_reconnect_ivl(100)?;
    socket.set_reconnect_ivl_max(5_000)?;
    socket.set_heartbeat_ivl(HEARTBEAT_MS)?;
    socket.set_heartbeat_timeout(3 * HEARTBEAT_MS)?;
    socket.set_ipv6(true)
}

fn open(context: &zmq::Context, endpoint: &str, serial: u64) -> zmq::Result<Sockets> {
    let events = context.socket(zmq::SUB)?;
    limit(&events)?;
    let address = format!("inproc://feed-monitor-{serial}");
    let watched = zmq::SocketEvent::HANDSHAKE_SUCCEEDED.to_raw() as i32
        | zmq::SocketEvent::DISCONNECTED.to_raw() as i32;
    events.monitor(&address, watched)?;
    let monitor = context.socket(zmq::PAIR)?;
    monitor.set_linger(0)?;
    monitor.connect(&address)?;
    events.set_subscribe(b"")?;
    if is_wildcard(endpoint) {
        events.bind(endpoint)?;
    } else {
        events.connect(endpoint)?;
    }
    Ok(Sockets { events, monitor })
}
