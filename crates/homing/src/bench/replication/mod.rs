//! What sharing costs, measured in this process: CPU a turn, messages a turn, bytes and memory a binding, and how soon a
//! router that is new has all that the others know.
//!
//! * [`router`]: a shell with workers, sharing as in service, and a bus in memory that counts;
//! * [`cost`]: two of them under equal load, against two that share nothing;
//! * [`reach`]: whether real servers are there;
//! * [`join`]: one more router beside one that has everything, over the bus in memory or a real server.
//!
//! The layer is the one that serves, `homing_runtime::replication` with its own rhythm, so time passes here as outside;
//! requests are the core's own calls, a turn being placed, begun after 30 ms and over after 300.

mod cost;
mod join;
mod layer;
mod reach;
mod router;
mod shelf;

use crate::bench::meter::Bars;
use cost::{Cost, How};
use join::{Joined, Over};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// What a gateway's whole request takes, in us: what the layer's part is held against (`docs/benchmarks.md`).
const GATEWAY_US: f64 = 100.0;

/// Rounds of the plain loop for one of the others.
const PLAIN_ROUNDS: usize = 7;

/// How much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// How long each round is measured, and goes before: uses have come to be told of by then.
    round: Duration,
    warm: Duration,
    /// Rounds of which the medians count.
    rounds: usize,
    /// Turns of the plain loop.
    turns: usize,
    /// Bindings of which the one that is new must hear.
    bindings: usize,
}

impl Sizes {
    /// The sizes that the bars are meant for.
    pub(crate) const FULL: Self = Self {
        round: Duration::from_secs(3),
        warm: Duration::from_millis(2500),
        rounds: 3,
        turns: 200_000,
        bindings: 1_000_000,
    };
    /// To see that it works; its figures say nothing.
    pub(crate) const QUICK: Self = Self {
        round: Duration::from_millis(200),
        warm: Duration::from_millis(100),
        rounds: 1,
        turns: 1_000,
        bindings: 20_000,
    };
}

/// Real servers to measure over besides.
#[derive(Clone, Debug, Default)]
pub(crate) struct Servers {
    /// `nats://host:port`, with JetStream.
    pub(crate) nats: Option<String>,
    /// `http://host:port`.
    pub(crate) etcd: Option<String>,
}

impl Servers {
    /// Whether all of them are there.
    ///
    /// # Errors
    /// Which is not, and why.
    pub(crate) fn look_at(&self) -> Result<(), String> {
        Over::all(self).iter().try_for_each(reach::look_at)
    }
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Place, check, commit, first token and finish, in us; and what is more of it where it is shared.
    turn_us: (f64, f64),
    costs: Vec<Cost>,
    /// A register alone in a message, and among 64, in bytes.
    message_bytes: (usize, f64),
    /// A record of a store, in bytes.
    record_bytes: usize,
    joins: Vec<(Over, Joined)>,
}

/// Measures; `say` is told what comes next.
///
/// # Errors
/// What could not be measured, and why.
pub(crate) fn measure(
    sizes: Sizes,
    servers: &Servers,
    say: &mut dyn FnMut(&str),
) -> Result<Figures, String> {
    say("replication: turns in process");
    let turn_us = cost::plain(sizes.turns, sizes.rounds * PLAIN_ROUNDS)?;
    let (message_bytes, record_bytes) = cost::bytes()?;
    let mut costs = Vec::new();
    for (how, rate) in How::ALL.into_iter().flat_map(|how| cost::RATES.map(|rate| (how, rate))) {
        let word = how.word();
        say(&format!("replication: two routers with {rate} turns a second each ({word})"));
        costs.push(cost::measure(how, rate, &sizes)?);
    }
    let mut joins = Vec::new();
    for over in Over::all(servers) {
        say(&format!(
            "replication: a router joins one that has {} bindings, over {over}",
            sizes.bindings
        ));
        joins.push((over.clone(), join::measure(&over, sizes.bindings)?));
    }
    Ok(Figures { turn_us, costs, message_bytes, record_bytes, joins })
}

impl Figures {
    /// Into the object that `--json` prints.
    pub(crate) fn json(&self) -> Value {
        let by_rate = |of: fn(&Cost) -> f64| -> Value {
            let all = self.costs.iter().map(|c| (c.name(), json!(rounded(of(c)))));
            Value::Object(all.collect::<Map<_, _>>())
        };
        let joins = self.joins.iter().map(|(over, joined)| {
            let figures = json!({
                "bindings": joined.bindings,
                "filled_s": rounded(joined.filled.as_secs_f64()),
                "in_step_s": rounded(joined.took.as_secs_f64()),
                "bytes_per_binding": rounded(joined.bytes_per_binding),
            });
            (over.to_string(), figures)
        });
        json!({
            "turn_us": rounded(self.turn_us.0),
            "turn_shared_more_us": rounded(self.turn_us.1),
            "cpu_us_per_turn": by_rate(|c| c.cpu_us),
            "messages_per_turn": by_rate(|c| c.messages),
            "bytes_per_turn": by_rate(|c| c.bytes),
            "register_bytes_alone": self.message_bytes.0,
            "register_bytes_of_64": rounded(self.message_bytes.1),
            "record_bytes": self.record_bytes,
            "joins": joins.collect::<Map<_, _>>(),
        })
    }

    /// For people.
    pub(crate) fn table(&self, bars: Bars) -> String {
        let mut out = String::from("replication\n");
        // To a string: it can't fail.
        let mut line = |what: String, measured: String, bar: &str| {
            let line = format!("  {what:<62}{measured:>12}  {}", bars.of(bar));
            let _ = writeln!(out, "{}", line.trim_end());
        };
        line(
            "place, check, commit, finish of a turn".to_owned(),
            format!("{:.2} us", self.turn_us.0),
            "",
        );
        line(
            "  the same where it is shared, more".to_owned(),
            format!("{:.2} us", self.turn_us.1),
            "",
        );
        for c in &self.costs {
            let part = format!(
                "bar 10 % of {GATEWAY_US:.0} us: here {:.1} %",
                c.cpu_us / GATEWAY_US * 100.0
            );
            let what =
                format!("sharing, CPU a turn, {} turns of {} a second", c.how.word(), c.rate);
            line(what, format!("{:.2} us", c.cpu_us), &part);
            line("  messages sent a turn".to_owned(), format!("{:.2}", c.messages), "bar 2");
            line("  bytes sent a turn".to_owned(), format!("{:.0}", c.bytes), "");
        }
        let (alone, among) = self.message_bytes;
        line("a register alone in its message".to_owned(), format!("{alone} B"), "bar 200 B");
        line("a register among 64".to_owned(), format!("{among:.0} B"), "");
        line("a record of a store".to_owned(), format!("{} B", self.record_bytes), "bar 200 B");
        for (over, joined) in &self.joins {
            let what =
                format!("a new router in step with {} bindings, over {over}", joined.bindings);
            line(what, format!("{:.2} s", joined.took.as_secs_f64()), "bar 10 s");
            line(
                "  filling the one that has them".to_owned(),
                format!("{:.2} s", joined.filled.as_secs_f64()),
                "",
            );
            line(
                "  memory a followed binding".to_owned(),
                format!("{:.0} B", joined.bytes_per_binding),
                "bar 120 B",
            );
        }
        out
    }
}

fn rounded(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}
