//! What the core must know of the configuration, already validated.

use std::time::Duration;

/// How a request regards its session's binding (R06).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// A constraint.
    #[default]
    Hard,
    /// A preference.
    Soft,
}

/// What a bound worker that is Down means (`affinity.on_down`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDown {
    /// It has departed: the session moves.
    #[default]
    Rebind,
    /// Hard requests are refused until it is back or gone.
    Reject,
}

/// Which policy picks among the candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Fewest blocks to compute and to decode.
    #[default]
    Kv,
    /// Fewest active requests.
    LeastLoaded,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
}

/// The affinity table's part.
#[derive(Clone, Debug)]
pub struct AffinitySettings {
    /// Idle time-to-live of a binding; `None`: sessions are passive (R02).
    pub ttl: Option<Duration>,
    /// Bindings and first turns under way, at most (R15).
    pub max_sessions: usize,
    /// What a bound worker that is Down means.
    pub on_down: OnDown,
}

impl Default for AffinitySettings {
    fn default() -> Self {
        Self {
            ttl: Some(Duration::from_secs(1800)),
            max_sessions: 1_000_000,
            on_down: OnDown::Rebind,
        }
    }
}

/// The admission queue's part.
#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// Waiting requests at most; 0: nothing waits.
    pub max_requests: usize,
    /// How long one may wait.
    pub max_wait: Duration,
    /// A rank with this many active requests is busy; 0: never.
    pub busy_active_requests: u32,
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self { max_requests: 0, max_wait: Duration::from_secs(30), busy_active_requests: 0 }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Sessions.
    pub affinity: AffinitySettings,
    /// Waiting.
    pub queue: QueueSettings,
    /// Choosing.
    pub policy: PolicyKind,
    /// How often one request may be moved to another worker after a failure.
    pub retry_attempts: u32,
    /// Failed probes in a row that make a worker Down.
    pub health_failures: u32,
    /// Good probes in a row that bring it back.
    pub health_successes: u32,
}

impl Default for CoreSettings {
    fn default() -> Self {
        Self {
            affinity: AffinitySettings::default(),
            queue: QueueSettings::default(),
            policy: PolicyKind::default(),
            retry_attempts: 1,
            health_failures: 3,
            health_successes: 1,
        }
    }
}
