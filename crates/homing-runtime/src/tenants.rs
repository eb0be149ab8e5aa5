//! What each tenant may take: requests at a time, requests and tokens a minute. One [`Tenants`] a process; who has
//! entered leaves by dropping what it got, however its request ends (F41).

use crate::settings::{Limits, Tenant};
use homing_core::time::Time;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Tenants that are remembered at most, for as long as they have done anything in the last minute: names may come
/// from a header.
const SEATS_MAX: usize = 16_384;
/// The span of the rates.
const MINUTE: Duration = Duration::from_secs(60);

/// Why a tenant has to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Too many requests at a time.
    Concurrency,
    /// Too many requests a minute.
    Requests,
    /// Too many tokens a minute.
    Tokens,
}

impl Limit {
    /// As the settings call it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Concurrency => "concurrency",
            Self::Requests => "requests_per_minute",
            Self::Tokens => "tokens_per_minute",
        }
    }
}

/// A refusal, and when to come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// Which limit.
    pub limit: Limit,
    /// When there is room again, if nobody else takes it.
    pub after: Duration,
}

/// What is left of so much a minute. It may be overdrawn.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Time,
}

impl Bucket {
    fn new(per_minute: u32, now: Time) -> Self {
        Self { left: f64::from(per_minute), at: now }
    }

    fn fill(&mut self, per_minute: u32, now: Time) {
        let most = f64::from(per_minute);
        let more = now.since(self.at).as_secs_f64() / MINUTE.as_secs_f64() * most;
        self.left = (self.left + more).min(most);
        self.at = self.at.max(now);
    }

    /// How long until so much is there.
    fn wait(&self, per_minute: u32, wanted: f64) -> Duration {
        let seconds = (wanted - self.left) / f64::from(per_minute) * MINUTE.as_secs_f64();
        Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(MINUTE)
    }
}

#[derive(Debug)]
struct Seat {
    active: AtomicU32,
    rates: Mutex<Rates>,
}

#[derive(Debug)]
struct Rates {
    requests: Bucket,
    tokens: Bucket,
    seen: Time,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Tenants {
    seats: Mutex<HashMap<Arc<str>, Arc<Seat>>>,
}

/// Whether a tenant may use a model.
#[must_use]
pub fn may_use(tenant: &Tenant, model: &str) -> bool {
    tenant.models.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => model.starts_with(start),
        None => pattern == model,
    })
}

/// A request that is in.
#[derive(Debug)]
pub struct Entered {
    seat: Arc<Seat>,
    limits: Limits,
    /// Tokens that were taken for it in advance.
    taken: u64,
}

impl Tenants {
    fn seat(&self, name: &Arc<str>, limits: &Limits, now: Time) -> Arc<Seat> {
        let mut seats = self.seats.lock();
        if let Some(seat) = seats.get(name) {
            return seat.clone();
        }
        if seats.len() >= SEATS_MAX {
            seats.retain(|_, seat| {
                seat.active.load(Ordering::Relaxed) > 0
                    || now.since(seat.rates.lock().seen) < MINUTE
            });
        }
        let bucket = |limit: Option<u32>| Bucket::new(limit.unwrap_or(0), now);
        let rates = Rates {
            requests: bucket(limits.requests_per_minute),
            tokens: bucket(limits.tokens_per_minute),
            seen: now,
        };
        let seat = Arc::new(Seat { active: AtomicU32::new(0), rates: Mutex::new(rates) });
        seats.insert(name.clone(), seat.clone());
        seat
    }

    /// A request of a tenant's comes, whose prompt has about so many tokens.
    ///
    /// # Errors
    /// [`Limited`]; nothing is taken then.
    pub fn enter(
        &self,
        name: &Arc<str>,
        limits: Limits,
        prompt: u64,
        now: Time,
    ) -> Result<Entered, Limited> {
        let seat = self.seat(name, &limits, now);
        let most = limits.concurrency.unwrap_or(u32::MAX);
        // Reserved at once: two that come together don't both see the last place (F42).
        let room = |n: u32| (n < most).then_some(n + 1);
        if seat.active.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return Err(Limited { limit: Limit::Concurrency, after: Duration::from_secs(1) });
        }
        // From here on its drop gives the place back.
        let mut entered = Entered { seat: seat.clone(), limits, taken: 0 };
        let mut rates = seat.rates.lock();
        rates.seen = now;
        if let Some(most) = limits.requests_per_minute {
            rates.requests.fill(most, now);
            // What is missing by rounding is there.
            if rates.requests.left < 1.0 - 1e-9 {
                let after = rates.requests.wait(most, 1.0);
                return Err(Limited { limit: Limit::Requests, after });
            }
        }
        if let Some(most) = limits.tokens_per_minute {
            rates.tokens.fill(most, now);
            if rates.tokens.left <= 0.0 {
                let after = rates.tokens.wait(most, 1.0);
                return Err(Limited { limit: Limit::Tokens, after });
            }
            rates.tokens.left -= prompt as f64;
            entered.taken = prompt;
        }
        if limits.requests_per_minute.is_some() {
            rates.requests.left -= 1.0;
        }
        Ok(entered)
    }

    /// Requests of a tenant that are in.
    #[must_use]
    pub fn active(&self, name: &str) -> u32 {
        self.seats.lock().get(name).map_or(0, |seat| seat.active.load(Ordering::Relaxed))
    }
}

impl Entered {
    /// What it really took, prompt and answer.
    pub fn spent(&mut self, tokens: u64, now: Time) {
        let Some(most) = self.limits.tokens_per_minute else { return };
        let mut rates = self.seat.rates.lock();
        rates.tokens.fill(most, now);
        rates.tokens.left -= tokens as f64 - self.taken as f64;
        self.taken = tokens;
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.seat.active.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_micros(1_000_000_000 + seconds * 1_000_000)
    }

    fn limits(concurrency: u32, requests: u32, tokens: u32) -> Limits {
        let limit = |n: u32| Some(n).filter(|n| *n > 0);
        Limits {
            concurrency: limit(concurrency),
            requests_per_minute: limit(requests),
            tokens_per_minute: limit(tokens),
            max_sessions: None,
        }
    }

    #[test]
    fn f41_places_are_given_back_however_a_request_ends() {
        let (t, name, two) = (Tenants::default(), Arc::from("a"), limits(2, 0, 0));
        let first = t.enter(&name, two, 0, at(0)).unwrap();
        let second = t.enter(&name, two, 0, at(0)).unwrap();
        let refused = t.enter(&name, two, 0, at(0)).unwrap_err();
        assert_eq!(refused.limit, Limit::Concurrency);
        assert_eq!(t.active("a"), 2);
        t.enter(&Arc::from("b"), two, 0, at(0)).expect("another tenant's are its own");
        drop(first);
        assert_eq!(t.active("a"), 1);
        let third = t.enter(&name, two, 0, at(0)).unwrap();
        drop((second, third));
        assert_eq!(t.active("a"), 0);
    }

    #[test]
    fn requests_a_minute_come_back_evenly() {
        let (t, name, six) = (Tenants::default(), Arc::from("a"), limits(0, 6, 0));
        let enter = |now| t.enter(&name, six, 0, now).map(drop);
        assert!((0..6).all(|_| enter(at(0)).is_ok()));
        let refused = enter(at(0)).unwrap_err();
        assert_eq!(refused, Limited { limit: Limit::Requests, after: Duration::from_secs(10) });
        assert!(enter(at(9)).is_err() && enter(at(10)).is_ok() && enter(at(10)).is_err());
        assert_eq!(
            (0..20).filter(|_| enter(at(1000)).is_ok()).count(),
            6,
            "no more than a minute's"
        );
        assert!(enter(at(999)).is_err(), "time that goes back gives nothing");
    }

    #[test]
    fn tokens_are_charged_by_what_was_used() {
        let (t, name, l) = (Tenants::default(), Arc::from("a"), limits(0, 0, 600));
        let mut one = t.enter(&name, l, 100, at(0)).unwrap();
        one.spent(1200, at(0));
        one.spent(1200, at(0));
        drop(one);
        let refused = t.enter(&name, l, 1, at(0)).unwrap_err();
        assert_eq!(refused.limit, Limit::Tokens);
        assert_eq!(refused.after.as_secs(), 60, "600 too many, at 10 a second");
        assert!(t.enter(&name, l, 1, at(59)).is_err());
        assert!(t.enter(&name, l, 1, at(61)).is_ok());
    }

    #[test]
    fn names_without_end_take_no_memory_without_end() {
        let t = Tenants::default();
        for i in 0..3 * SEATS_MAX {
            let name = Arc::from(format!("t{i}"));
            drop(t.enter(&name, limits(1, 0, 0), 0, at(i as u64)));
        }
        assert!(t.seats.lock().len() <= SEATS_MAX + 1);
    }

    #[test]
    fn models_by_pattern() {
        let tenant = |models: &[&str]| Tenant {
            name: "a".into(),
            models: models.iter().map(|m| (*m).to_owned()).collect(),
            steer: false,
            max_priority: 0,
            limits: Limits::default(),
        };
        assert!(may_use(&tenant(&["*"]), "anything"));
        assert!(
            may_use(&tenant(&["qwen*", "x"]), "qwen3") && may_use(&tenant(&["qwen*", "x"]), "x")
        );
        assert!(!may_use(&tenant(&["qwen*", "x"]), "xy") && !may_use(&tenant(&[]), "x"));
    }
}
