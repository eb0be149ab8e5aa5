//! What is read at each scrape.

use super::*;
use crate::testing::{ask, eventually, shell, stats};
use std::sync::atomic::{AtomicU64, Ordering};

fn has(shell: &Shell, line: &str) -> bool {
    shell.metrics().text().unwrap().lines().any(|l| l == line)
}

#[tokio::test]
async fn sessions_that_idled_out_are_counted() {
    let shell = shell("affinity.ttl = '1s'\n", &["a"]);
    Metrics::watch(&shell, Arc::default());
    assert!(has(&shell, "homing_affinity_expired_total 0"));
    drop(shell.admit(ask(&shell, "s")).await.unwrap().check().unwrap().begin());
    let clock = tokio::spawn(shell.clone().keep_time());
    eventually("it has idled out", || stats(&shell).bindings == 0).await;
    assert!(has(&shell, "homing_affinity_expired_total 1"));
    clock.abort();
}

#[test]
fn lost_log_lines_are_read_from_who_counts_them() {
    let shell = shell("", &[]);
    let dropped = Arc::new(AtomicU64::new(0));
    let counted = dropped.clone();
    Metrics::watch_log_drops(&shell, move || counted.load(Ordering::Relaxed));
    assert!(has(&shell, "homing_log_lines_dropped_total 0"));
    dropped.fetch_add(3, Ordering::Relaxed);
    assert!(has(&shell, "homing_log_lines_dropped_total 3"));
    assert!(has(&shell, "# TYPE homing_log_lines_dropped counter"));
}

#[test]
fn a_series_that_is_always_zero_says_why() {
    let shell = shell("", &["a"]);
    Metrics::watch(&shell, Arc::default());
    assert!(has(&shell, "homing_affinity_waiters 0"));
    let text = shell.metrics().text().unwrap();
    let help = text.lines().find(|l| l.starts_with("# HELP homing_affinity_waiters ")).unwrap();
    assert!(help.contains("always 0, since selection never waits"), "{help}");
}
