//! Reads a `/metrics` page: the counters and histograms that reports are made of.
//!
//! Only what that takes of the Prometheus text format: samples are summed over their label sets, and
//! lines that don't parse are skipped, because a page of a real engine has hundreds of others.

use super::histogram::Histogram;

/// A parsed page.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// (name, labels as written, value).
    samples: Vec<(String, String, f64)>,
}

impl Scrape {
    /// Parses `text`.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter_map(sample).collect();
        Self { samples }
    }

    /// The sum of `name` over its label sets; `None` if the page doesn't have it.
    #[must_use]
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.samples
            .iter()
            .filter(|(n, ..)| n == name)
            .fold(None, |sum, (_, _, value)| Some(sum.unwrap_or(0.0) + value))
    }

    /// The histogram `name`, summed over its label sets; `None` if the page doesn't have it.
    #[must_use]
    pub fn histogram(&self, name: &str) -> Option<Histogram> {
        let bucket = format!("{name}_bucket");
        let mut rows: Vec<(f64, u64)> = Vec::new();
        for (_, labels, value) in self.samples.iter().filter(|(n, ..)| *n == bucket) {
            let edge = label(labels, "le")?;
            let edge = if edge == "+Inf" { f64::INFINITY } else { edge.parse().ok()? };
            match rows.iter_mut().find(|(e, _)| *e == edge) {
                Some((_, n)) => *n += *value as u64,
                None => rows.push((edge, *value as u64)),
            }
        }
        if rows.is_empty() {
            return None;
        }
        rows.sort_by(|a, b| a.0.total_cmp(&b.0));
        let edges = rows.iter().map(|(e, _)| *e).filter(|e| e.is_finite()).collect();
        let counts: Vec<u64> = rows.iter().map(|(_, n)| *n).collect();
        Some(Histogram::from_cumulative(edges, &counts, self.sum(&format!("{name}_sum"))?))
    }
}

fn sample(line: &str) -> Option<(String, String, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (series, value) = line.trim_end().rsplit_once(' ')?;
    let value = value.parse().ok()?;
    let (name, labels) = match series.split_once('{') {
        Some((name, rest)) => (name, rest.strip_suffix('}')?),
        None => (series, ""),
    };
    Some((name.to_owned(), labels.to_owned(), value))
}

/// The value of a label that has no quote in it (as `le` never has).
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let start = labels.find(&format!("{name}=\""))? + name.len() + 2;
    labels[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::super::metrics::render;
    use super::super::{Engine, EngineConfig};
    use super::*;
    use homing_core::time::Time;

    #[test]
    fn a_page_of_ours_reads_back() {
        let page =
            render(&Engine::new(EngineConfig::default()), "a \"b\"", Time::from_micros(1_500_000));
        let scrape = Scrape::parse(&page);
        assert_eq!(scrape.sum("process_start_time_seconds"), Some(1.5));
        assert_eq!(scrape.sum("vllm:prefix_cache_hits_total"), Some(0.0));
        let ttft = scrape.histogram("vllm:time_to_first_token_seconds").expect("is on the page");
        assert_eq!(ttft, Histogram::new(&super::super::histogram::TTFT_EDGES));
        assert!(scrape.sum("vllm:nothing").is_none());
    }

    /// The page of a real server has the same families and edges.
    #[test]
    fn a_page_of_a_real_vllm_reads_and_has_our_names() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata/kv-events/engine-vllm-0.32.0/llama-int.metrics.prom"
        );
        let text = std::fs::read_to_string(path).expect("the project carries it");
        let real = Scrape::parse(&text);
        assert_eq!(real.sum("vllm:prefix_cache_queries_total"), Some(6778.0));
        let ours = render(&Engine::new(EngineConfig::default()), "m", Time::ZERO);
        for (name, ..) in &Scrape::parse(&ours).samples {
            assert!(real.sum(name).is_some(), "{name} is not vLLM's");
        }
        for family in [
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
        ] {
            let edges = |page: &Scrape| -> Vec<f64> {
                page.histogram(family).expect(family).cumulative().map(|(e, _)| e).collect()
            };
            assert_eq!(edges(&real), edges(&Scrape::parse(&ours)), "{family}");
        }
    }
}
