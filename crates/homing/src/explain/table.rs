//! Candidates as a table: one row each, the pick marked, with what it would have cost and of what, or why it was
//! none.

use serde_json::Value;
use std::fmt::Write as _;

/// One candidate, as it is printed.
#[derive(Debug)]
pub(super) struct Row {
    cells: [String; COLUMNS],
    last: String,
}

const COLUMNS: usize = 10;
const HEAD: [&str; COLUMNS] =
    ["", "worker", "rank", "overlap", "trust", "active", "prefill", "blocks", "homes", "cost"];

impl Row {
    /// Of a candidate in JSON.
    pub(super) fn of(c: &Value) -> Self {
        let mark = match (c["picked"].as_bool(), c["home"].as_bool()) {
            (Some(true), _) => ">",
            (_, Some(true)) => "home",
            _ => "",
        };
        let against: Vec<_> = c["against"].as_array().into_iter().flatten().collect();
        let against: Vec<_> = against.iter().map(|w| text(w).replace('_', " ")).collect();
        let terms: Vec<_> = c["terms"].as_object().into_iter().flatten().collect();
        let terms: Vec<_> =
            terms.iter().filter(|(_, cost)| cost.as_f64() != Some(0.0)).map(part).collect();
        // One term is the cost itself.
        let terms = if terms.len() > 1 { terms.join(" + ") } else { String::new() };
        let last = match (terms.as_str(), against.as_slice()) {
            (_, []) => terms,
            ("", _) => against.join(", "),
            _ => format!("{}; {terms}", against.join(", ")),
        };
        let cells = [
            mark.to_owned(),
            c["worker"].as_str().unwrap_or("(departed)").to_owned(),
            number(&c["dp_rank"]),
            number(&c["overlap_blocks"]),
            format!("{:.2}", c["trust"].as_f64().unwrap_or(0.0)),
            number(&c["active_requests"]),
            number(&c["active_prefill_tokens"]),
            number(&c["active_blocks"]),
            number(&c["homes"]),
            c["cost"].as_f64().map_or_else(|| "-".to_owned(), |cost| format!("{cost:.2}")),
        ];
        Self { cells, last }
    }
}

fn part((name, cost): &(&String, &Value)) -> String {
    format!("{} {:.1}", name.replace('_', " "), cost.as_f64().unwrap_or(0.0))
}

/// All of them, in columns.
pub(super) fn candidates(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "nobody was looked at\n".to_owned();
    }
    let wide =
        |i: usize| rows.iter().map(|r| r.cells[i].chars().count()).chain([HEAD[i].len()]).max();
    let widths: Vec<usize> = (0..COLUMNS).map(|i| wide(i).unwrap_or(0)).collect();
    let mut out = String::new();
    let head = HEAD.map(str::to_owned);
    let last = "of which; or why not";
    for (cells, last) in
        [(&head, last)].into_iter().chain(rows.iter().map(|r| (&r.cells, r.last.as_str())))
    {
        let mut line = String::new();
        for (i, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Words to the left, numbers to the right. To a string: it can't fail.
            let _ = match i {
                0 | 1 => write!(line, "{cell:<width$}  "),
                _ => write!(line, "{cell:>width$}  "),
            };
        }
        let _ = writeln!(out, "{}", format!("{line}{last}").trim_end());
    }
    out
}

/// A worker and its rank, where that says something.
pub(super) fn said(worker: &str, rank: &Value) -> String {
    match rank.as_u64() {
        Some(rank @ 1..) => format!("{worker} rank {rank}"),
        _ => worker.to_owned(),
    }
}

/// `{worker, dp_rank}`.
pub(super) fn place(at: &Value) -> String {
    said(at["worker"].as_str().unwrap_or("one that has departed"), &at["dp_rank"])
}

/// Text, or what is in its place.
pub(super) fn text(of: &Value) -> &str {
    of.as_str().unwrap_or("-")
}

/// The same with nothing in it that a terminal would act upon: names come from engines and clients.
pub(super) fn printable(mut all: Value) -> Value {
    // What turns the direction of writing is no control character, and forges as well.
    let acts =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    match &mut all {
        Value::String(text) if text.contains(acts) => *text = text.replace(acts, "\u{fffd}"),
        Value::Array(items) => items.iter_mut().for_each(|item| *item = printable(item.take())),
        Value::Object(fields) => {
            *fields = std::mem::take(fields)
                .into_iter()
                .map(|(name, value)| (name.replace(acts, "\u{fffd}"), printable(value)))
                .collect();
        }
        _ => {}
    }
    all
}

/// A whole number.
pub(super) fn number(of: &Value) -> String {
    of.as_u64().map_or_else(|| "-".to_owned(), |n| n.to_string())
}

/// Milliseconds, as many digits as say something.
pub(super) fn ms(of: &Value) -> String {
    let Some(ms) = of.as_f64() else { return "-".to_owned() };
    let digits = if ms >= 100.0 {
        0
    } else if ms >= 1.0 {
        1
    } else {
        3
    };
    let text = format!("{ms:.digits$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} ms")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_have_the_digits_that_say_something() {
        let shown = [0.0, 0.012, 1.25, 40.0, 100.4, 1500.0].map(|n| ms(&json!(n)));
        assert_eq!(shown, ["0 ms", "0.012 ms", "1.2 ms", "40 ms", "100 ms", "1500 ms"]);
        assert_eq!(ms(&Value::Null), "-");
    }
}
