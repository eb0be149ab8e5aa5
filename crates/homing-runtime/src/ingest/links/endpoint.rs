//! What an endpoint names, spelled as engines and libzmq spell it.

use homing_wire::engine::is_wildcard;
use std::io;
use std::path::PathBuf;

/// Somewhere to connect to, or to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// `tcp://host:port`; the host is a name, or an address without its brackets.
    Tcp { host: String, port: u16 },
    /// Every address of our own host: others connect to us. 0: a port that is free.
    Every { only_v4: bool, port: u16 },
    /// `ipc://path`.
    Path(PathBuf),
}

/// Why an endpoint can't be used.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum EndpointError {
    /// It is none.
    #[error("{0:?} is no endpoint; expected tcp://HOST:PORT (or ipc://PATH)")]
    Malformed(String),
    /// Nobody can be asked at every address.
    #[error("{0:?} names no host that could be asked; expected tcp://HOST:PORT")]
    Nowhere(String),
    /// It can't be listened at.
    #[error("can't listen at {endpoint}: {why}; choose another port, or free it")]
    Taken {
        /// As it was given.
        endpoint: String,
        /// The system's reason.
        why: io::Error,
    },
}

impl Address {
    pub(super) fn parse(endpoint: &str) -> Result<Self, EndpointError> {
        Self::read(endpoint).ok_or_else(|| EndpointError::Malformed(endpoint.to_owned()))
    }

    fn read(endpoint: &str) -> Option<Self> {
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            // `@name` is one of Linux's that is in no folder.
            let path =
                path.strip_prefix('@').map_or_else(|| path.into(), |name| format!("\0{name}"));
            return (!path.is_empty()).then(|| Self::Path(path.into()));
        }
        let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
        if is_wildcard(endpoint) {
            let port = if port == "*" { 0 } else { port.parse().ok()? };
            return Some(Self::Every { only_v4: host == "0.0.0.0", port });
        }
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        (!host.is_empty()).then(|| Self::Tcp { host: host.to_owned(), port })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_as_libzmq_reads_them() {
        let tcp = |host: &str, port| Some(Address::Tcp { host: host.into(), port });
        assert_eq!(Address::read("tcp://10.0.0.1:5557"), tcp("10.0.0.1", 5557));
        assert_eq!(Address::read("tcp://engine-0.engines:1"), tcp("engine-0.engines", 1));
        assert_eq!(Address::read("tcp://[fe80::1%eth0]:5557"), tcp("fe80::1%eth0", 5557));
        let every = |only_v4, port| Some(Address::Every { only_v4, port });
        assert_eq!(Address::read("tcp://*:5557"), every(false, 5557));
        assert_eq!(Address::read("tcp://[::]:*"), every(false, 0));
        assert_eq!(Address::read("tcp://0.0.0.0:5557"), every(true, 5557));
        let path = |path: &str| Some(Address::Path(path.into()));
        assert_eq!(Address::read("ipc:///tmp/kv"), path("/tmp/kv"));
        assert_eq!(Address::read("ipc://@kv"), path("\0kv"));
        for none in [
            "",
            "nonsense://",
            "tcp://",
            "tcp://h",
            "tcp://h:",
            "tcp://h:0",
            "tcp://h:*",
            "tcp://:1",
        ] {
            assert!(Address::parse(none).is_err(), "{none}");
        }
        for none in ["tcp://h:65536", "tcp://*:x", "ipc://", "inproc://x", "h:1", "tcp://[]:1"] {
            assert!(Address::parse(none).is_err(), "{none}");
        }
    }
}
