//! `homing why`: the record of a request's decision.

use super::admin::{Router, encoded};
use super::table::{Row, candidates, ms, number, place, printable, said, text};
use crate::Failure;
use serde_json::Value;
use std::fmt::Write as _;

/// The flags of `homing why`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The id is the answer's x-request-id, and the access log's request_id; a client may send its own. \
                  Records of the latest decisions are kept in memory.\n\nExamples:\n  homing why \
                  5c1f0e9ab3d24771-2a\n  homing why 5c1f0e9ab3d24771-2a --admin http://10.0.0.5:9464 \
                  --json\n\ndocs/explain.md says what each line means."
)]
pub(crate) struct Args {
    /// The request's id
    #[arg(value_name = "REQUEST_ID")]
    id: String,
    #[command(flatten)]
    router: Router,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks, and prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.id.is_empty() {
        return Err(Failure::Usage(
            "an empty request id; copy x-request-id of an answer".to_owned(),
        ));
    }
    let answer = args.router.ask(&format!("/admin/decisions/{}", encoded(&args.id)), None)?;
    if args.json {
        println!("{answer}");
    } else {
        print!("{}", table(&printable(answer)));
    }
    Ok(())
}

fn table(d: &Value) -> String {
    let mut out = format!(
        "request {}: {}, {}, {}\n\n",
        text(&d["request_id"]),
        text(&d["model"]),
        text(&d["shape"]),
        text(&d["stage"]).replace('_', " ")
    );
    let mut line = |name: &str, what: Option<String>| {
        if let Some(what) = what {
            // To a string: it can't fail.
            let _ = writeln!(out, "{name:<9}{what}");
        }
    };
    line("went to", Some(went(d)));
    line("refused", refused(d));
    line("session", session(d));
    line("prompt", Some(prompt(d)));
    line("waited", waited(d));
    line("tried", tried(d));
    line("times", Some(times(&d["times"])));
    line("really", really(&d["really"]));
    line("regret", regret(&d["really"]));
    let rows: Vec<_> = d["candidates"].as_array().into_iter().flatten().map(Row::of).collect();
    out += "\n";
    out += &candidates(&rows);
    out += &left_out(d);
    out
}

fn went(d: &Value) -> String {
    let Some(worker) = d["worker"].as_str() else {
        let waits = d["waited"]["still"] == true;
        return if waits { "nowhere yet" } else { "nowhere" }.to_owned();
    };
    let rank = &d["dp_rank"];
    let of = format!(", one of {} that could serve it", number(&d["eligible"]));
    let why = match (d["explicit"].as_bool(), d["session"]["steer"].as_str()) {
        (Some(true), _) => "; the request names it".to_owned(),
        (_, Some("pin")) if at_home(d) => "; its session lives there".to_owned(),
        (_, Some("prefer")) if at_home(d) => "; its session lives there and stays".to_owned(),
        (_, Some("pin" | "prefer")) => {
            format!("; not home, which is {}: {}", place(&d["session"]["home"]), why_not_home(d))
        }
        (_, Some("join")) => "; another first turn of its session".to_owned(),
        _ => "; the policy's choice".to_owned(),
    };
    format!("{}{of}{why}", said(worker, rank))
}

/// What spoke against home; where nothing did, another was cheaper by more than moving costs.
fn why_not_home(d: &Value) -> String {
    let home = d["candidates"].as_array().into_iter().flatten().find(|c| c["home"] == true);
    let against = home.and_then(|c| c["against"].as_array()).filter(|words| !words.is_empty());
    match against {
        Some(words) => words.iter().map(text).collect::<Vec<_>>().join(", ").replace('_', " "),
        None if home.is_some() => "cheaper here".to_owned(),
        None => "it is gone".to_owned(),
    }
}

fn at_home(d: &Value) -> bool {
    let rows = d["candidates"].as_array();
    rows.into_iter().flatten().any(|c| c["picked"] == true && c["home"] == true)
}

fn refused(d: &Value) -> Option<String> {
    let error = d["error"].as_object()?;
    Some(format!(
        "{} {}: {}",
        number(&error["status"]),
        text(&error["code"]),
        text(&error["message"])
    ))
}

fn session(d: &Value) -> Option<String> {
    let s = &d["session"];
    let digest = s["key_digest"].as_str()?;
    let home = match s["home"].is_null() {
        true => String::new(),
        false => format!(", at home at {}", place(&s["home"])),
    };
    // What becomes of it is known once the worker has begun to answer, or won't.
    let open =
        ["begun_ms", "ended_ms"].iter().all(|at| d["times"][at].is_null()) && d["error"].is_null();
    let outcome = if open { "not decided yet" } else { text(&s["affinity"]) };
    let home = if at_home(d) || home.is_empty() {
        home
    } else {
        home.replacen("at home", "was at home", 1)
    };
    Some(format!("{digest}: {outcome} ({}{home})", text(&s["mode"])))
}

fn prompt(d: &Value) -> String {
    let p = &d["prompt"];
    let known = if p["exact"] == true { "counted here" } else { "guessed by its text" };
    let mut text = format!("{} tokens ({known})", number(&p["tokens"]));
    if let Some(cached) = d["predicted_cached_tokens"].as_u64() {
        let _ = write!(text, ", {cached} of them predicted to be cached there");
    }
    let size = p["block_size"].as_u64().unwrap_or(0);
    let best = d["best_overlap_blocks"].as_u64().unwrap_or(0) * size;
    if best > 0 {
        let _ = write!(text, ", at best {best} by the index");
    }
    text
}

fn waited(d: &Value) -> Option<String> {
    let w = d["waited"].as_object()?;
    let whom = match (w["for"].as_str(), w["worker"].as_str()) {
        (Some("home"), worker) => format!("its session's home, {}", worker.unwrap_or("?")),
        (Some("named"), worker) => format!("{}, which it names", worker.unwrap_or("?")),
        _ => "any worker that is free".to_owned(),
    };
    if w["still"] == true {
        return Some(format!("for {whom}; it waits still"));
    }
    Some(format!("{} for {whom}", ms(&w["ms"])))
}

fn tried(d: &Value) -> Option<String> {
    let tries = d["tries"].as_array().filter(|tries| tries.len() > 1)?;
    let one = |t: &Value| {
        let how = t["failure"].as_str().map(|how| format!(": {how}")).unwrap_or_default();
        format!("{} at {}{how}", place(t), ms(&t["at_ms"]))
    };
    let mut all: Vec<_> = tries.iter().map(one).collect();
    let more = d["attempts"].as_u64().unwrap_or(0).saturating_sub(tries.len() as u64);
    if more > 0 {
        all.push(format!("and {more} more"));
    }
    Some(all.join(", "))
}

fn times(t: &Value) -> String {
    let mut all = vec![
        format!("prompt {}", ms(&t["prompt_ms"])),
        format!("look-up {}", ms(&t["look_up_ms"])),
    ];
    // Without waiting it got its place when the core was asked.
    if t["granted_ms"] != t["asked_ms"] {
        all.push(format!("asked at {}", ms(&t["asked_ms"])));
    }
    for (name, key) in [
        ("placed at", "granted_ms"),
        ("sent at", "dispatched_ms"),
        ("answered from", "begun_ms"),
        ("first token at", "first_token_ms"),
        ("ended at", "ended_ms"),
    ] {
        if !t[key].is_null() {
            all.push(format!("{name} {}", ms(&t[key])));
        }
    }
    all.join(", ")
}

fn really(r: &Value) -> Option<String> {
    let mut all = Vec::new();
    if let Some(tokens) = r["prompt_tokens"].as_u64() {
        all.push(match r["cached_tokens"].as_u64() {
            Some(cached) => format!("{cached} of {tokens} prompt tokens were cached"),
            None => format!("{tokens} prompt tokens; how many were cached is not said"),
        });
    }
    if let Some(tokens) = r["output_tokens"].as_u64() {
        all.push(format!("{tokens} output tokens"));
    }
    if !r["ttft_ms"].is_null() {
        all.push(format!("first token after {}", ms(&r["ttft_ms"])));
    }
    (!all.is_empty()).then(|| all.join(", "))
}

fn regret(r: &Value) -> Option<String> {
    let tokens = r["regret_tokens"].as_u64().map(|n| match n {
        0 => "none: nobody who could serve it had more of it".to_owned(),
        n => format!("{n} tokens that the best could have reused"),
    });
    let time = (!r["regret_ms"].is_null())
        .then(|| format!("{} beyond the least that was predicted", ms(&r["regret_ms"])));
    let all: Vec<_> = tokens.into_iter().chain(time).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

fn left_out(d: &Value) -> String {
    let Some(n) = d["left_out"].as_u64().filter(|n| *n > 0) else { return String::new() };
    let against: Vec<_> = d["against"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(word, n)| format!("{} {}", number(n), word.replace('_', " ")))
        .collect();
    match against.is_empty() {
        true => format!("and {n} more\n"),
        false => format!("and {n} more; of all: {}\n", against.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn decision() -> Value {
        let candidate = |worker: &str, picked: bool, against: &[&str]| {
            // Nobody is asked what it costs to use what can't be used.
            let (cost, terms) = match against {
                [] => (json!(82.5), json!({"prefill": 17.0, "homes": 65.5})),
                _ => (Value::Null, json!({})),
            };
            json!({
                "worker": worker, "dp_rank": 0, "cost": cost, "terms": terms,
                "overlap_blocks": 48, "trust": 1.0, "active_requests": 1, "active_prefill_tokens": 0,
                "active_blocks": 65, "homes": 3, "against": against, "picked": picked, "home": picked,
            })
        };
        json!({
            "request_id": "r1", "model": "m", "shape": "chat", "stage": "complete",
            "worker": "gpu-b", "dp_rank": 0, "error": null, "explicit": false,
            "session": {"key_digest": "9f31", "affinity": "hit", "mode": "hard", "steer": "pin",
                        "home": {"worker": "gpu-b", "dp_rank": 0}},
            "prompt": {"tokens": 1034, "exact": true, "block_size": 16},
            "eligible": 2, "considered": 1, "best_overlap_blocks": 48, "predicted_cached_tokens": 768,
            "candidates": [candidate("gpu-a", false, &["not_ready"]), candidate("gpu-b", true, &[])],
            "left_out": 0, "against": {"not_ready": 1}, "attempts": 1,
            "tries": [{"worker": "gpu-b", "dp_rank": 0, "at_ms": 0.6, "failure": null}],
            "waited": null,
            "times": {"prompt_ms": 0.4, "look_up_ms": 0.01, "asked_ms": 0.5, "granted_ms": 0.51,
                      "dispatched_ms": 0.6, "begun_ms": 41.2, "first_token_ms": 41.2, "ended_ms": 812.0},
            "really": {"prompt_tokens": 1034, "cached_tokens": 752, "output_tokens": 200, "ttft_ms": 40.7,
                       "regret_tokens": 16, "regret_ms": null},
        })
    }

    #[test]
    fn a_turn_at_home_is_told_with_its_reasons() {
        let table = table(&decision());
        for part in [
            "request r1: m, chat, complete",
            "went to  gpu-b, one of 2 that could serve it; its session lives there",
            "session  9f31: hit (hard, at home at gpu-b)",
            "768 of them predicted to be cached there, at best 768 by the index",
            "752 of 1034 prompt tokens were cached, 200 output tokens, first token after 40.7 ms",
            "regret   16 tokens that the best could have reused",
            "sent at 0.6 ms, answered from 41.2 ms",
        ] {
            assert!(table.contains(part), "{part:?} is not in\n{table}");
        }
        let row = |worker: &str| table.lines().find(|l| l.contains(worker) && l.contains("48"));
        assert!(row("gpu-b").unwrap().starts_with('>'), "{table}");
        assert!(row("gpu-b").unwrap().ends_with("prefill 17.0 + homes 65.5"), "{table}");
        assert!(row("gpu-a").unwrap().ends_with("not ready"), "{table}");
        assert!(!table.contains("tried"), "one attempt is no story");
    }

    #[test]
    fn a_refusal_after_waiting_says_where_it_was_tried_and_why() {
        let mut d = decision();
        d["worker"] = Value::Null;
        d["stage"] = "refused".into();
        d["error"] = json!({"status": 502, "code": "worker_error", "message": "it broke off"});
        d["waited"] = json!({"for": "home", "worker": "gpu-b", "ms": 1500.0, "still": false});
        let tried = |worker: &str| json!({"worker": worker, "dp_rank": 1, "at_ms": 1.0, "failure": "broken"});
        d["tries"] = json!([tried("gpu-a"), tried("gpu-b")]);
        (d["attempts"], d["left_out"]) = (6.into(), 130.into());
        let table = table(&d);
        for part in [
            "went to  nowhere",
            "refused  502 worker_error: it broke off",
            "waited   1500 ms for its session's home, gpu-b",
            "gpu-a rank 1 at 1 ms: broken, gpu-b rank 1 at 1 ms: broken, and 4 more",
            "and 130 more; of all: 1 not ready",
        ] {
            assert!(table.contains(part), "{part:?} is not in\n{table}");
        }
    }
}
