//! The report as one page: what was replayed, the figures, and how they came about. It loads nothing.

use super::chart::{Chart, Line, escaped};
use super::report::{NS, Report, Row, US, ms};
use homing_sim::replay::{Outcome, Quantiles, Sample};
use std::fmt::Write as _;

const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em;\
color:#222;background:#fff}h1{font-size:1.35em}h2{font-size:1.1em;margin-top:2em}\
table{border-collapse:collapse}td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}.charts{display:grid;gap:1em;\
grid-template-columns:repeat(auto-fit,minmax(430px,1fr))}figure{margin:0}figcaption{font-weight:600}\
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#555}.grid{stroke:#e5e5e5}\
polyline{fill:none;stroke-width:1.6}.legend{font-size:.85em;margin:.2em 0}";

/// Workers whose lines are drawn: more can't be told apart.
const DRAWN: usize = 32;

/// The page.
pub(super) fn page(report: &Report<'_>) -> String {
    let title = escaped(&report.title());
    let mut out = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>homing replay: {}</title>\
         <style>{STYLE}</style><h1>homing replay</h1><p>{title}</p>",
        escaped(&report.name)
    );
    table(report, &mut out);
    out.push_str("<h2>Latency, all policies</h2><div class=\"charts\">");
    let ttft = distribution(report, |o| &o.ttft_us, US);
    out.push_str(&chart("Time to first token: share of requests below", "ms", true, ttft).svg());
    let tpot = distribution(report, |o| &o.tpot_ns, NS);
    out.push_str(&chart("Time per output token: share of requests below", "ms", true, tpot).svg());
    out.push_str("</div>");
    for row in &report.rows {
        // Writing into a string can't fail.
        let _ = write!(out, "<h2>{}</h2><div class=\"charts\">", escaped(&row.policy));
        let hits = over_time(&row.outcome, |sample, w, _| {
            // Where a worker took nothing in, it has no rate.
            sample.cached_tokens[w] as f64 / sample.prompt_tokens[w] as f64
        });
        out.push_str(&chart("Hit rate by worker", "seconds", false, hits).svg());
        let busy = over_time(&row.outcome, |sample, w, width| sample.busy[w].as_secs_f64() / width);
        out.push_str(&chart("Busy share by worker", "seconds", false, busy).svg());
        out.push_str("</div>");
    }
    out.push_str("</html>\n");
    out
}

fn chart<'a>(title: &'a str, x: &'a str, log: bool, lines: Vec<Line>) -> Chart<'a> {
    Chart { title, x, log, top: 1.0, lines }
}

fn table(report: &Report<'_>, out: &mut String) {
    out.push_str(
        "<table><tr><th>policy<th>hit rate<th>TTFT mean<th>p50<th>p95<th>p99<th>TPOT mean<th>p99\
         <th>imbalance<th>busy<th>engine time a request<th>refused<th>broken off</tr>",
    );
    for row in &report.rows {
        let o = &row.outcome;
        let ttft = |q| ms(&o.ttft_us, q, US);
        let busy: f64 = o.busy.iter().map(std::time::Duration::as_secs_f64).sum();
        let _ = write!(
            out,
            "<tr><td>{}<td>{:.1} %<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.2}<td>{:.2}<td>{:.2}\
             <td>{:.0} %<td>{:.0}<td>{}<td>{}</tr>",
            escaped(&row.policy),
            o.hit_rate() * 100.0,
            o.ttft_us.mean() / US,
            ttft(0.5),
            ttft(0.95),
            ttft(0.99),
            o.tpot_ns.mean() / NS,
            ms(&o.tpot_ns, 0.99, NS),
            o.imbalance(),
            o.utilization() * 100.0,
            busy * 1e3 / o.answered.max(1) as f64,
            o.refused,
            o.broken,
        );
    }
    for (name, rate) in [("one pooled LRU", report.pooled), ("best possible", report.best)] {
        let _ = write!(out, "<tr><td>{name}<td>{:.1} %</tr>", rate * 100.0);
    }
    out.push_str("</table><p>Times in ms, in the engines' own time.</p>");
}

/// Each policy's distribution, at so many places.
fn distribution(report: &Report<'_>, of: fn(&Outcome) -> &Quantiles, per_ms: f64) -> Vec<Line> {
    const PLACES: usize = 200;
    let line = |row: &Row| {
        let values = of(&row.outcome);
        let point = |i: usize| {
            let part = i as f64 / PLACES as f64;
            (ms(values, part, per_ms), part)
        };
        let points = if values.is_empty() { Vec::new() } else { (1..=PLACES).map(point).collect() };
        Line { name: row.policy.clone(), points }
    };
    report.rows.iter().map(line).collect()
}

/// Each worker's value over the run.
fn over_time(outcome: &Outcome, value: impl Fn(&Sample, usize, f64) -> f64) -> Vec<Line> {
    let width = outcome.width.as_secs_f64();
    let line = |w: usize| {
        let point = |(i, s): (usize, &Sample)| ((i as f64 + 0.5) * width, value(s, w, width));
        let points = outcome.samples.iter().enumerate().map(point).filter(|p| p.1.is_finite());
        Line { name: format!("w{w}"), points: points.collect() }
    };
    (0..outcome.busy.len().min(DRAWN)).map(line).collect()
}
