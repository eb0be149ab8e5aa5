//! The README's first command, as a user runs it: what it prints must be so.

use homing_e2e::binary;
use serde_json::Value;
use std::process::Command;

#[test]
fn the_demo_comes_close_to_the_best_possible_and_random_is_far_below() {
    let Some(binary) = binary() else { return };
    let out = Command::new(binary).args(["demo", "--json"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    let rate = |policy: &str| report["policies"][policy]["hit_rate"].as_f64().unwrap();
    let best = report["best_hit_rate"].as_f64().unwrap();
    assert!(best - rate("kv") <= 0.03, "{report}");
    assert!(rate("kv") <= best + 1e-9, "better than possible: {report}");
    assert!(rate("random") < rate("kv") - 0.2, "{report}");
    let ttft = |policy: &str, q: &str| report["policies"][policy]["ttft_ms"][q].as_f64().unwrap();
    assert!(ttft("kv", "p50") < ttft("random", "p50"), "{report}");
    assert!(ttft("kv", "p95") < ttft("random", "p95"), "{report}");
    for policy in ["kv", "random"] {
        let turns = report["policies"][policy]["turns_per_worker"].as_array().unwrap();
        let sum: u64 = turns.iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!((turns.len(), sum), (4, report["turns"].as_u64().unwrap()), "{report}");
    }
}
