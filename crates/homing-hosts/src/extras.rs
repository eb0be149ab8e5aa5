//! What a router may have besides its settings: the binary, or a program of one's own, gives it.

use crate::reload::Reread;
use homing_runtime::fleet::discovery::Driven;
use homing_runtime::replication::Ports;
use homing_runtime::replication::port::PortError;
use homing_runtime::traces::TraceSettings;
use std::pin::Pin;

/// What a router may have besides its settings.
#[derive(Default)]
pub struct Extras {
    /// How its settings are read anew.
    pub reread: Option<Reread>,
    /// Where its spans go.
    pub traces: Option<TraceSettings>,
    /// A socket that is listened on already, in the place of `gateway.listen`.
    pub listener: Option<std::net::TcpListener>,
    /// What `replication.backend` is reached by, given this router's number.
    pub replicate: Option<Replicate>,
    /// Another router of this user serves at `gateway.listen`, and shall be told to stop once this one serves there, too:
    /// it does once a worker is ready. What `affinity.snapshot` says is taken over when the other has ended.
    pub take_over: bool,
    /// Where workers come from besides the settings.
    pub discoveries: Vec<Driven>,
}

/// Connects to what routers share over.
pub type Replicate =
    Box<dyn FnOnce(u32) -> Pin<Box<dyn Future<Output = Result<Ports, PortError>> + Send>> + Send>;

impl std::fmt::Debug for Extras {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extras(..)")
    }
}
