//! What the core must know of the configuration, already validated.

use crate::ids::Role;
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

/// What happens to a new session when the table is full (R15).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// It is routed without affinity.
    #[default]
    RouteUnbound,
    /// The longest-idle binding makes room.
    EvictIdle,
}

/// What a Hard session's request does while its worker is overloaded (R07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnOverload {
    /// It is served elsewhere, and the session stays.
    #[default]
    Spill,
    /// It is refused.
    Reject,
    /// It waits for its worker.
    Wait,
    /// It goes to its worker all the same.
    Dispatch,
}

/// What a Hard session's request does when its live worker has just failed it (R07).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// It moves, and the session with it.
    #[default]
    Rebind,
    /// It is refused.
    Reject,
}

/// Which policy picks among the candidates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Fewest blocks to compute and to decode.
    Kv,
    /// Fewest milliseconds, its own and others'.
    #[default]
    Latency,
    /// Fewest active requests.
    LeastLoaded,
    /// The less loaded of two at random.
    PowerOfTwo,
    /// One after the other.
    RoundRobin,
    /// Any.
    Random,
}

/// Whether a Soft session's home is weighed against others (R06).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Soft {
    /// It stays while it can.
    #[default]
    Keep,
    /// It moves where moving is cheaper.
    Weigh,
}

/// The affinity table's part.
#[derive(Clone, Debug)]
pub struct AffinitySettings {
    /// What a Soft session does while its home can be used.
    pub soft: Soft,
    /// Idle time-to-live of a binding; `None`: sessions are passive (R02).
    pub ttl: Option<Duration>,
    /// The prefill role's own (R17); `None`: as `ttl`.
    pub prefill_ttl: Option<Option<Duration>>,
    /// Bindings of a partition, at most (R15).
    pub max_sessions: usize,
    /// What happens to a new session then.
    pub on_full: OnFull,
    /// What a bound worker that is Down means.
    pub on_down: OnDown,
    /// What one that is overloaded means.
    pub on_overload: OnOverload,
    /// What one that has just failed the request means.
    pub on_failure: OnFailure,
    /// Holds and leases on one session, at most; 0: no bound of its own (R27).
    pub max_parallel: u32,
    /// Whether bindings are published, for other routers (R23).
    pub shared: bool,
    /// Whether a first turn is made known in a shared store before it is dispatched (R24).
    pub claimed: bool,
}

impl AffinitySettings {
    /// The time-to-live of a role's bindings; `None`: they are passive there.
    #[must_use]
    pub fn ttl_of(&self, role: Role) -> Option<Duration> {
        match (role, self.prefill_ttl) {
            (Role::Prefill, Some(own)) => own,
            _ => self.ttl,
        }
    }
}

impl Default for AffinitySettings {
    fn default() -> Self {
        Self {
            soft: Soft::Keep,
            ttl: Some(Duration::from_secs(1800)),
            prefill_ttl: None,
            max_sessions: 1_000_000,
            on_full: OnFull::RouteUnbound,
            on_down: OnDown::Rebind,
            on_overload: OnOverload::Spill,
            on_failure: OnFailure::Rebind,
            max_parallel: 32,
            shared: false,
            claimed: false,
        }
    }
}

/// The admission queue's part.
#[derive(Clone, Debug)]
pub struct QueueSettings {
    /// Waiting requests at most; 0: nothing waits but what waits for one worker (R08), of which there
    /// are at most 1,024.
    pub max_requests: usize,
    /// How long one may wait.
    pub max_wait: Duration,
    /// A rank with this many active requests is busy; 0: never.
    pub busy_active_requests: u32,
    /// One with this many prompt tokens to compute is, too; 0: never.
    pub busy_prefill_tokens: u64,
}

impl QueueSettings {
    /// Whether a rank can be busy at all.
    #[must_use]
    pub fn knows_busy(&self) -> bool {
        self.busy_active_requests > 0 || self.busy_prefill_tokens > 0
    }
}

impl Default for QueueSettings {
    fn default() -> Self {
        Self {
            max_requests: 0,
            max_wait: Duration::from_secs(30),
            busy_active_requests: 0,
            busy_prefill_tokens: 0,
        }
    }
}

/// The overload detector's part: when a worker counts as overloaded, and when no longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverloadSettings {
    /// From so many active requests a rank on, as the mean of its ranks; 0: never.
    pub active_requests: u32,
    /// From this share of its KV memory on, as it reports it; 0: never.
    pub kv_usage: f64,
    /// From so many times the pool's mean on, if it is well beyond it, too; 0: never.
    pub factor: f64,
    /// No longer at this share of the bound that it has reached, or below.
    pub recover: f64,
}

impl Default for OverloadSettings {
    fn default() -> Self {
        Self { active_requests: 0, kv_usage: 0.0, factor: 0.0, recover: 0.8 }
    }
}

/// When a worker counts as unwell by what comes back from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VitalSettings {
    /// After so many faults in a row; 0: never.
    pub faults: u32,
    /// While streams are open there of which no byte comes.
    pub stalls: bool,
    /// Whether many that stop answering probes at once count as up for a while.
    pub blinks: bool,
}

impl VitalSettings {
    /// Probes alone count.
    pub const OFF: Self = Self { faults: 0, stalls: false, blinks: false };
}

impl Default for VitalSettings {
    fn default() -> Self {
        Self { faults: 5, stalls: true, blinks: true }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct CoreSettings {
    /// Sessions.
    pub affinity: AffinitySettings,
    /// Waiting.
    pub queue: QueueSettings,
    /// Who is overloaded.
    pub overload: OverloadSettings,
    /// For how long what an engine reports of its load counts.
    pub report_life: Duration,
    /// Choosing.
    pub policy: PolicyKind,
    /// How long a dispatched prompt counts as cached at its worker before that has said so. Zero: not at all.
    pub predict: Duration,
    /// Bytes that the indexes of all partitions may take together.
    pub index_memory: usize,
    /// How often one request may be moved to another worker after a failure.
    pub retry_attempts: u32,
    /// Retries in the last ten seconds, as a share of the requests in them; ten are always allowed.
    pub retry_budget: f64,
    /// Who is unwell.
    pub vitals: VitalSettings,
    /// Failed probes in a row that make a worker Down.
    pub health_failures: u32,
    /// Good probes in a row that bring it back.
    pub health_successes: u32,
    /// Whether decisions leave records; without them, what they cost can be measured.
    pub records: bool,
}

impl Default for CoreSettings {
    fn default() -> Self {
        Self {
            affinity: AffinitySettings::default(),
            queue: QueueSettings::default(),
            overload: OverloadSettings::default(),
            report_life: Duration::from_secs(15),
            policy: PolicyKind::default(),
            predict: Duration::from_secs(5),
            index_memory: 2 << 30,
            retry_attempts: 1,
            retry_budget: 0.1,
            vitals: VitalSettings::default(),
            health_failures: 3,
            health_successes: 1,
            records: true,
        }
    }
}
