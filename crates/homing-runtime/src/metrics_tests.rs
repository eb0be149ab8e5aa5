//! What is read at each scrape.

use super::*;
use crate::testing::{ask, eventually, shell, stats};
use homing_core::ask::{Step, Usage};
use homing_core::hash::{HashSpace, Prompt};
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

#[tokio::test]
async fn sessions_that_found_no_room_or_made_some_are_counted_and_so_are_moves() {
    for (on_full, evicted, full) in [("evict_idle", 1, 0), ("route_unbound", 0, 1)] {
        let text = format!("affinity.max_sessions = 1\naffinity.on_full = '{on_full}'\n");
        let shell = shell(&text, &["a", "b"]);
        Metrics::watch(&shell, Arc::default());
        for session in ["s", "t"] {
            let checked = shell.admit(ask(&shell, session)).await.unwrap().check().unwrap();
            drop(checked.begin());
        }
        assert!(has(&shell, &format!("homing_affinity_evicted_total {evicted}")), "{on_full}");
        assert!(has(&shell, &format!("homing_affinity_full_table_fallbacks_total {full}")));
        let bound = if evicted == 1 { "t" } else { "s" };
        let checked = shell.admit(ask(&shell, bound)).await.unwrap().check().unwrap();
        let moved = checked.failed(Failure::Broken).await.unwrap().check().unwrap().begin();
        assert_eq!(moved.1, Outcome::Rebound);
        assert!(has(&shell, "homing_affinity_moves_total{reason=\"failed\"} 1"));
        assert!(has(&shell, "homing_affinity_moves_total{reason=\"overloaded\"} 0"));
    }
}

#[tokio::test]
async fn r07_a_worker_that_was_overloaded_is_told_to_be_well_without_a_request() {
    let shell = shell("", &["a"]);
    let checked = shell.admit(ask(&shell, "")).await.unwrap().check().unwrap();
    assert!(checked.failed(Failure::Overloaded(None)).await.is_err(), "nobody else is there");
    let shed = || shell.core().workers()[0].part.shed;
    assert!(shed());
    let clock = tokio::spawn(shell.clone().keep_time());
    eventually("its time is over", || !shed()).await;
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
fn what_discoveries_say_is_counted() {
    let shell = shell("", &["a"]);
    Metrics::watch_discovery(&shell, || 2, || 1);
    assert!(has(&shell, "homing_registrations_refused_total 2"));
    assert!(has(&shell, "# TYPE homing_discovery_frozen gauge"));
    assert!(has(&shell, "homing_discovery_frozen 1"));
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

#[test]
fn f24_what_became_of_holes_is_counted_by_worker() {
    let shell = shell("", &["a"]);
    let book = Arc::new(FeedBook::default());
    Metrics::watch(&shell, book.clone());
    assert!(!shell.metrics().text().unwrap().contains("homing_kv_event_replays_total{"));
    book.note_hole("a", 2);
    for line in [
        "homing_kv_event_gaps_total{worker=\"a\"} 1",
        "homing_kv_event_gaps_lost_total{worker=\"a\"} 1",
        "homing_kv_event_replays_total{worker=\"a\",outcome=\"filled\"} 0",
        "homing_kv_event_replays_total{worker=\"a\",outcome=\"failed\"} 1",
        "homing_index_uncertain_ranks{worker=\"a\"} 1",
    ] {
        assert!(has(&shell, line), "{line}: {}", shell.metrics().text().unwrap());
    }
}

#[tokio::test]
async fn f28_an_error_is_there_once_something_was_compared() {
    let shell = shell("", &["a"]);
    Metrics::watch(&shell, Arc::default());
    let turn = async |cached_tokens| {
        let mut request = ask(&shell, "");
        let tokens: Vec<u32> = (0..1000).collect();
        request.prompt = Prompt::from_tokens(&tokens, 16, HashSpace::default());
        let checked = shell.admit(request).await.unwrap().check().unwrap();
        let (live, _) = checked.begin();
        live.progress(Step::Usage(Usage { prompt_tokens: 1000, cached_tokens }));
    };
    const ERROR: &str = "homing_cache_prediction_error{worker=\"a\"} 0";
    let said = || shell.metrics().text().unwrap().contains("homing_cache_prediction_error{");
    assert!(!said());
    // The engine doesn't say: that it is trusted all the same is no news of what came true.
    turn(None).await;
    assert!(has(&shell, "homing_index_trust{worker=\"a\"} 1.0"));
    assert!(!said());
    turn(Some(0)).await;
    assert!(said(), "{}", shell.metrics().text().unwrap());
    assert!(shell.metrics().text().unwrap().lines().any(|l| l.starts_with(ERROR)));
}
