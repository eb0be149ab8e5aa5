//! `homing preview`: where a request would go, and why. Nothing is sent, held or bound.

use super::admin::Router;
use super::table::{Row, candidates, number, place, printable, said, text};
use crate::Failure;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The flags of `homing preview`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "FILE has {\"endpoint\": PATH, \"headers\": {..}, \"body\": {..}}, or a request's body alone.\n\n\
                  Examples:\n  homing preview --model qwen --prompt 'Hello' --session s1\n  homing preview \
                  request.json\n  jq -n '{model:\"qwen\",messages:[{role:\"user\",content:\"Hi\"}]}' | homing \
                  preview - --header 'x-homing-require-labels: zone=a' --json\n\ndocs/explain.md says what each \
                  line means.\n\nExit codes: 0 it would be served or wait, 1 it would be refused or the router can't be asked, 2 bad usage."
)]
pub(crate) struct Args {
    /// The request; - reads it from the standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["model", "prompt"],
          required_unless_present_all = ["model", "prompt"])]
    file: Option<PathBuf>,
    /// Instead of a file: the model
    #[arg(long, value_name = "NAME", requires = "prompt")]
    model: Option<String>,
    /// and what its user says
    #[arg(long, value_name = "TEXT", requires = "model")]
    prompt: Option<String>,
    /// Its session's id
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// A header of the request, as `name: value` (repeatable)
    #[arg(long = "header", value_name = "HEADER")]
    headers: Vec<String>,
    /// The path that it would be sent to [default: what FILE says, else /v1/chat/completions]
    #[arg(long, value_name = "PATH")]
    endpoint: Option<String>,
    #[command(flatten)]
    router: Router,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Asks, and prints.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let question = question(args)?;
    let answer = args.router.ask("/admin/preview", Some(question.to_string()))?;
    let refused = answer["error"].is_object();
    if args.json {
        println!("{answer}");
    } else {
        print!("{}", table(&printable(answer)));
    }
    // Why is printed above, or in the object.
    if refused { Err(Failure::Said) } else { Ok(()) }
}

/// What the admin API is asked.
fn question(args: &Args) -> Result<Value, Failure> {
    let mut question = match (&args.file, &args.model, &args.prompt) {
        (Some(path), _, _) => asked(read(path)?, path)?,
        (None, Some(model), Some(prompt)) => {
            let body = match args.endpoint.as_deref() {
                Some("/v1/completions") => json!({"model": model, "prompt": prompt}),
                Some("/v1/responses") => json!({"model": model, "input": prompt}),
                _ => json!({"model": model, "messages": [{"role": "user", "content": prompt}]}),
            };
            Map::from_iter([("body".to_owned(), body)])
        }
        _ => return Err(Failure::Usage("give a FILE, or --model and --prompt".to_owned())),
    };
    if let Some(path) = &args.endpoint {
        question.insert("endpoint".to_owned(), path.as_str().into());
    }
    let headers = question.entry("headers").or_insert_with(|| json!({}));
    let Some(headers) = headers.as_object_mut() else {
        return Err(Failure::Usage("headers of the file must be an object of strings".to_owned()));
    };
    for header in &args.headers {
        let Some((name, value)) = header.split_once(':') else {
            let text =
                format!("--header {header:?} has no colon; write e.g. 'x-homing-affinity: off'");
            return Err(Failure::Usage(text));
        };
        headers.insert(name.trim().to_lowercase(), value.trim().into());
    }
    if let Some(id) = &args.session {
        headers.insert("x-homing-session-id".to_owned(), id.as_str().into());
    }
    Ok(Value::Object(question))
}

fn read(path: &Path) -> Result<String, Failure> {
    let mut text = String::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text)
    } else {
        std::fs::File::open(path).and_then(|mut file| file.read_to_string(&mut text))
    };
    let failed = |error| Failure::Usage(format!("can't read {}: {error}", path.display()));
    read.map_err(failed)?;
    Ok(text)
}

/// A question, or the body of one.
fn asked(text: String, path: &Path) -> Result<Map<String, Value>, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) if map.contains_key("body") => Ok(map),
        Ok(body @ Value::Object(_)) => Ok(Map::from_iter([("body".to_owned(), body)])),
        Ok(_) => Err(wrong("a request is a JSON object".to_owned())),
        Err(error) => Err(wrong(format!("it is not JSON: {error}"))),
    }
}

fn table(p: &Value) -> String {
    let mut out = String::new();
    let mut line = |name: &str, what: Option<String>| {
        if let Some(what) = what {
            // To a string: it can't fail.
            let _ = writeln!(out, "{name:<12}{what}");
        }
    };
    let target = p["worker"].as_str().map(|worker| said(worker, &p["dp_rank"]));
    line(
        "would go to",
        Some(match (&target, p["waits"].as_bool()) {
            (Some(target), _) => target.clone(),
            (None, Some(true)) => "nowhere yet: it would wait in the queue".to_owned(),
            (None, _) => "nowhere".to_owned(),
        }),
    );
    line(
        "refused",
        p["error"].as_object().map(|e| {
            format!("{} {}: {}", number(&e["status"]), text(&e["code"]), text(&e["message"]))
        }),
    );
    line("model", p["model"].as_str().map(str::to_owned));
    line("session", session(&p["session"]));
    line("prompt", p["prompt_tokens"].as_u64().map(|n| format!("{n} tokens")));
    let mut all = p["candidates"].as_array().cloned().unwrap_or_default();
    for c in &mut all {
        let there = |at: &Value| at["worker"] == c["worker"] && at["dp_rank"] == c["dp_rank"];
        let (picked, home) = (target.is_some() && there(p), there(&p["session"]["home"]));
        (c["picked"], c["home"]) = (picked.into(), home.into());
    }
    let rows: Vec<_> = all.iter().map(Row::of).collect();
    if !rows.is_empty() {
        out += "\n";
        out += &candidates(&rows);
    }
    out
}

fn session(s: &Value) -> Option<String> {
    let affinity = text(&s["affinity"]);
    let digest = s["key_digest"].as_str();
    // As `homing why` has it: who is bound is pinned by mode hard, and preferred by soft.
    let how = match s["steer"].as_str() {
        Some("pin") => Some("hard"),
        Some("prefer") => Some("soft"),
        Some("join") => Some("where another first turn of it goes"),
        _ => None,
    };
    let home = s["home"].is_object().then(|| format!("at home at {}", place(&s["home"])));
    let notes: Vec<_> = how.map(str::to_owned).into_iter().chain(home).collect();
    let steer = match notes.is_empty() {
        true => String::new(),
        false => format!(" ({})", notes.join(", ")),
    };
    match digest {
        None if affinity == "none" => None,
        digest => Some(format!("{}: {affinity}{steer}", digest.unwrap_or("-"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn of(flags: &[&str]) -> Result<Value, String> {
        let cli = Cli::try_parse_from([&["preview"], flags].concat()).map_err(|e| e.to_string())?;
        question(&cli.args).map_err(|e| format!("{e:?}"))
    }

    #[test]
    fn flags_make_a_question() {
        let flags = ["--model", "m", "--prompt", "hi", "--session", "s", "--header", "X-A:  b: c "];
        let want = json!({
            "body": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
            "headers": {"x-a": "b: c", "x-homing-session-id": "s"},
        });
        assert_eq!(of(&flags), Ok(want));
        assert!(of(&[]).is_err() && of(&["--model", "m"]).is_err());
        assert!(of(&["f", "--model", "m", "--prompt", "p"]).is_err(), "one or the other");
        let colon = of(&["--model", "m", "--prompt", "p", "--header", "x"]).unwrap_err();
        assert!(colon.contains("no colon"), "{colon}");
    }

    #[test]
    fn a_file_has_a_question_or_a_body() {
        let path = PathBuf::from("f");
        let body = json!({"model": "m"});
        let whole = json!({"endpoint": "/v1/completions", "body": body});
        let read = |text: &str| asked(text.to_owned(), &path).map(Value::Object).ok();
        assert_eq!(read(&whole.to_string()), Some(whole));
        assert_eq!(read(&body.to_string()), Some(json!({"body": body})));
        assert!(read("[]").is_none() && read("{").is_none());
    }

    #[test]
    fn what_would_happen_is_told_in_lines() {
        let told = table(&json!({
            "worker": null, "dp_rank": null, "waits": true, "error": null, "model": "m",
            "session": {"key_digest": "ab", "affinity": "hit", "steer": "pin", "home": {"worker": "w", "dp_rank": 2}},
            "candidates": [],
        }));
        assert!(told.contains("it would wait in the queue"), "{told}");
        assert!(told.contains("session     ab: hit (hard, at home at w rank 2)"), "{told}");
        let told = |steer: &str, affinity: &str| {
            session(
                &json!({"key_digest": "ab", "affinity": affinity, "steer": steer, "home": null}),
            )
        };
        assert_eq!(told("free", "new"), Some("ab: new".to_owned()));
        assert_eq!(told("prefer", "hit"), Some("ab: hit (soft)".to_owned()));
        let told =
            table(&json!({"worker": null, "session": {"affinity": "none"}, "candidates": [],
            "error": {"status": 404, "code": "model_not_found", "message": "no"}}));
        assert!(
            told.contains("refused     404 model_not_found: no") && !told.contains("session"),
            "{told}"
        );
    }
}
