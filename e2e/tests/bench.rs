//! `homing bench`: that it runs, and the shape of what it prints; never how fast it was.

use homing_e2e::binary;
use serde_json::Value;
use std::io;
use std::process::{Command, Output};

fn bench(args: &[&str]) -> Option<io::Result<Output>> {
    Some(Command::new(binary()?).arg("bench").args(args).output())
}

#[test]
fn json_is_one_object_with_the_figures_of_each_part_that_is_measured() {
    let all = [&["--quick", "--json"][..], &["--quick", "--json", "--only", "affinity"]];
    for (args, wanted) in all
        .into_iter()
        .zip([&["affinity", "index", "select_us", "record_us", "replication"][..], &["affinity"]])
    {
        let Some(out) = bench(args) else { return };
        let out = out.unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let report: Value = serde_json::from_slice(&out.stdout).unwrap();
        let parts: Vec<&String> = report.as_object().unwrap().keys().collect();
        assert_eq!(parts, wanted, "{report}");
        let names = ["cycles_per_s", "hot_cycles_per_s", "longest_call_us", "bytes_per_binding"];
        let affinity = report["affinity"].as_object().unwrap();
        assert_eq!(affinity.keys().collect::<Vec<_>>(), names, "{report}");
        for name in names {
            assert!(affinity[name].as_f64().is_some_and(|x| x > 0.0), "{name}: {report}");
        }
        let paths = [
            "/lookup_us/p50",
            "/lookup_us/p99",
            "/lookup_1024_us/p50",
            "/apply_blocks_per_s",
            "/apply_single_blocks_per_s",
            "/left_after_removal",
            "/bytes_per_block/shared",
            "/bytes_per_block/distinct",
        ];
        let replication = [
            "/turn_us",
            "/messages_per_turn/first_1000",
            "/messages_per_turn/store_200",
            "/bytes_per_turn/later_20",
            "/register_bytes_alone",
            "/record_bytes",
            "/joins/memory/in_step_s",
        ];
        for path in replication.into_iter().filter(|_| wanted.len() > 1) {
            let figure = report["replication"].pointer(path).and_then(Value::as_f64);
            assert!(figure.is_some_and(|x| x > 0.0), "{path}: {report}");
        }
        for targets in ["8", "64", "1024"].into_iter().filter(|_| wanted.len() > 1) {
            assert!(report["select_us"][targets].as_f64().is_some_and(|x| x > 0.0), "{report}");
            // A difference: of a few requests it may be below zero.
            assert!(report["record_us"].is_f64(), "{report}");
        }
        for path in paths.into_iter().filter(|_| wanted.len() > 1) {
            let figure = report["index"].pointer(path).and_then(Value::as_f64);
            assert!(figure.is_some_and(|x| x > 0.0), "{path}: {report}");
        }
    }
}

#[test]
fn people_get_a_table_and_lines_of_progress_where_there_is_no_terminal() {
    let Some(out) = bench(&["--quick"]) else { return };
    let out = out.unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let (stdout, stderr) =
        (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    for row in ["turns a second", "longest call, growing", "longest call, expiring", "memory"] {
        assert!(stdout.contains(row), "no {row:?} in\n{stdout}");
    }
    assert!(stderr.contains("round 3 of 3"), "{stderr}");
    // Small sizes say nothing, so nothing is held against a bar.
    assert!(!stdout.contains("bar") && !stdout.contains("goal"), "{stdout}");
}

#[test]
fn a_server_that_is_not_there_is_said_before_anything_is_measured() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (flag, scheme) in [("--nats", "nats"), ("--etcd", "http")] {
        let Some(out) = bench(&[flag, &format!("{scheme}://{free}")]) else { return };
        let out = out.unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(said.contains(flag) && said.contains("can't be reached"), "{said}");
        assert!(out.stdout.is_empty() && !said.contains("round 1"), "{said}");
    }
}

#[test]
fn a_part_that_is_not_there_is_bad_usage() {
    let Some(out) = bench(&["--only", "gravity"]) else { return };
    let out = out.unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("affinity"), "it names those there are");
}
