//! What was simulated, so that two reports can be told apart: in a line, of what isn't as by default; and whole, for
//! scripts.

use super::keys::Settled;
use homing_sim::replay::Outage;
use humantime::format_duration;
use serde_json::{Map, Value, json};

/// Affinity, routers and what they share always; of the rest, what was asked for.
pub(super) fn text(settled: &Settled) -> String {
    let config = &settled.config;
    let sharing = match (config.replicas, config.sharing.word()) {
        (1, _) => String::new(),
        (_, "none") => " that share nothing".to_owned(),
        (_, what) => {
            let what = if what == "all" { "bindings and load" } else { what };
            format!(" that share {what}, {} away", format_duration(config.sharing.delay))
        }
    };
    let s = if config.replicas == 1 { "" } else { "s" };
    let mut all = vec![
        format!("affinity {}", settled.affinity),
        format!("{} router{s}{sharing}", config.replicas),
    ];
    if settled.events.word() != "auto" {
        all.push(format!("KV events to {}", settled.events.word()));
    }
    if !config.event_delay.is_zero() {
        all.push(format!("KV events {} late", format_duration(config.event_delay)));
    }
    if (config.rate_scale - 1.0).abs() > f64::EPSILON {
        all.push(format!("{} times the rate", config.rate_scale));
    }
    let away = |o: &Outage| {
        format!("w{} away {} to {}", o.worker, format_duration(o.from), format_duration(o.until))
    };
    all.extend(config.outages.iter().map(away));
    all.extend(settled.routers.iter().map(|(key, value)| format!("{key} = {value}")));
    all.join(", ")
}

/// All of it.
pub(super) fn json(settled: &Settled) -> Value {
    let config = &settled.config;
    let away = |o: &Outage| {
        json!({
            "worker": format!("w{}", o.worker),
            "from_s": o.from.as_secs_f64(),
            "until_s": o.until.as_secs_f64(),
        })
    };
    let routers = settled.routers.iter();
    let routers: Map<_, _> =
        routers.map(|(key, value)| ((*key).to_owned(), Value::from(value.as_str()))).collect();
    json!({
        "affinity": settled.affinity,
        "replicas": config.replicas,
        "sharing": config.sharing.word(),
        "sharing_delay_ms": config.sharing.delay.as_secs_f64() * 1e3,
        "events": settled.events.word(),
        "event_delay_ms": config.event_delay.as_secs_f64() * 1e3,
        "rate_scale": config.rate_scale,
        "max_queued": config.engine.batch.max_queued,
        "outages": config.outages.iter().map(away).collect::<Vec<_>>(),
        "routers": routers,
    })
}

#[cfg(test)]
mod tests {
    use super::super::keys::Keys;
    use super::*;

    fn settled(plan: &str) -> Settled {
        let keys: Keys = toml::from_str(&format!("trace = \"t\"\n{plan}")).unwrap();
        let Ok(settled) = keys.settle(None) else { panic!("{plan}") };
        settled
    }

    #[test]
    fn two_replays_of_different_things_say_so() {
        assert_eq!(text(&settled("")), "affinity hard, 1 router");
        assert_eq!(text(&settled("replicas = 4")), "affinity hard, 4 routers that share nothing");
        let plan = "replicas = 4\nsharing = \"all\"\nsharing_delay = \"5ms\"\nevent_delay = \"50ms\"\n\
                    fail = [\"w3@60s..90s\"]\nrate_scale = 2.0\non_overload = \"wait\"";
        let it = settled(plan);
        assert_eq!(
            text(&it),
            "affinity hard, 4 routers that share bindings and load, 5ms away, KV events 50ms late, 2 times the \
             rate, w3 away 1m to 1m 30s, affinity.on_overload = wait"
        );
        let json = json(&it);
        assert_eq!(
            (
                &json["replicas"],
                &json["sharing"],
                &json["sharing_delay_ms"],
                &json["event_delay_ms"]
            ),
            (&4.into(), &"all".into(), &5.0.into(), &50.0.into())
        );
        assert_eq!(json["outages"][0]["worker"], "w3");
        assert_eq!(json["outages"][0]["until_s"], 90.0);
        assert_eq!(json["routers"]["affinity.on_overload"], "wait");
        // Nothing is left out of what is as by default.
        let plain = super::json(&settled(""));
        assert_eq!((&plain["replicas"], &plain["sharing"]), (&1.into(), &"none".into()));
    }
}
