//! What an engine counted, in modelled time, and its `/metrics` page under vLLM's names.
//!
//! Names, labels, help texts' meaning and bucket edges were read from a vLLM 0.32.0 server. Two counts
//! differ on purpose: a request is counted as one prefix-cache query, at its admission, where vLLM
//! counts each attempt to admit it; and the page has only the families that routers and this project's
//! tests read.

use super::histogram::{Histogram, ITL_EDGES, REQUEST_EDGES, TTFT_EDGES};
use super::model::{Engine, FinishReason};
use homing_core::time::Time;
use std::fmt::Write as _;
use std::time::Duration;

/// Counters and histograms of one engine.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    /// Prompt tokens of admitted requests.
    pub prefix_cache_queries: u64,
    /// Those of them that were reused.
    pub prefix_cache_hits: u64,
    /// Prompt tokens whose prefill is done, reused ones included.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub generation_tokens: u64,
    /// Times that a running request lost its blocks.
    pub preemptions: u64,
    /// Requests that ended by themselves.
    pub stopped: u64,
    /// Requests that reached a length limit.
    pub cut: u64,
    /// Requests whose client left.
    pub aborted: u64,
    /// From submission to the first token.
    pub ttft: Histogram,
    /// Between tokens.
    pub itl: Histogram,
    /// From submission to the last token.
    pub e2e: Histogram,
    /// From submission to admission.
    pub queue: Histogram,
}

impl Default for EngineMetrics {
    fn default() -> Self {
        Self {
            prefix_cache_queries: 0,
            prefix_cache_hits: 0,
            prompt_tokens: 0,
            generation_tokens: 0,
            preemptions: 0,
            stopped: 0,
            cut: 0,
            aborted: 0,
            ttft: Histogram::new(&TTFT_EDGES),
            itl: Histogram::new(&ITL_EDGES),
            e2e: Histogram::new(&REQUEST_EDGES),
            queue: Histogram::new(&REQUEST_EDGES),
        }
    }
}

impl EngineMetrics {
    pub(super) fn admitted(&mut self, prompt: usize, cached: usize, waited: Duration) {
        self.prefix_cache_queries += prompt as u64;
        self.prefix_cache_hits += cached as u64;
        self.queue.observe(waited);
    }

    pub(super) fn first_token(&mut self, prompt: usize, ttft: Duration) {
        self.prompt_tokens += prompt as u64;
        self.generation_tokens += 1;
        self.ttft.observe(ttft);
    }

    pub(super) fn token(&mut self, gap: Duration) {
        self.generation_tokens += 1;
        self.itl.observe(gap);
    }

    pub(super) fn done(&mut self, reason: FinishReason, e2e: Duration) {
        match reason {
            FinishReason::Stop => self.stopped += 1,
            FinishReason::Length => self.cut += 1,
        }
        self.e2e.observe(e2e);
    }
}

/// The `/metrics` page of a server of `model` since `started`: its data-parallel ranks are engines 0, 1, ..
/// Prometheus text format 0.0.4.
#[must_use]
pub fn render(ranks: &[&Engine], model: &str, started: Time) -> String {
    let model = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels = |rank| format!("engine=\"{rank}\",model_name=\"{model}\"");
    let ranks = ranks.iter().enumerate().map(|(rank, engine)| (labels(rank), *engine)).collect();
    let mut page = Page { out: String::with_capacity(8192), ranks };
    page.head(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
    );
    let _ = writeln!(page.out, "process_start_time_seconds {}", started.as_micros() as f64 / 1e6);
    page.gauge("num_requests_running", "Requests in the running batch.", |e| e.running() as f64);
    page.gauge("num_requests_waiting", "Requests that wait for the batch.", |e| e.waiting() as f64);
    page.gauge(
        "kv_cache_usage_perc",
        "Share of the KV cache in use; 1 is all of it.",
        Engine::kv_usage,
    );
    page.counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", |m| {
        m.prefix_cache_queries
    });
    page.counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.", |m| {
        m.prefix_cache_hits
    });
    page.counter("num_preemptions", "Running requests that lost their blocks.", |m| m.preemptions);
    page.counter("prompt_tokens", "Prompt tokens processed.", |m| m.prompt_tokens);
    page.counter("generation_tokens", "Tokens generated.", |m| m.generation_tokens);
    page.ends();
    page.histogram("time_to_first_token_seconds", "Time to the first token, in seconds.", |m| {
        &m.ttft
    });
    page.histogram("inter_token_latency_seconds", "Time between tokens, in seconds.", |m| &m.itl);
    page.histogram("e2e_request_latency_seconds", "Time to the last token, in seconds.", |m| {
        &m.e2e
    });
    page.histogram("request_queue_time_seconds", "Time in the queue, in seconds.", |m| &m.queue);
    page.cache_configs();
    page.out
}

struct Page<'a> {
    out: String,
    /// The labels of each rank, and the rank.
    ranks: Vec<(String, &'a Engine)>,
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Engine) -> f64) {
        self.head(&format!("vllm:{name}"), "gauge", help);
        for (labels, engine) in &self.ranks {
            let _ = writeln!(self.out, "vllm:{name}{{{labels}}} {:?}", value(engine));
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&EngineMetrics) -> u64) {
        self.head(&format!("vllm:{name}_total"), "counter", help);
        for (labels, engine) in &self.ranks {
            let value = value(engine.metrics());
            let _ = writeln!(self.out, "vllm:{name}_total{{{labels}}} {value}.0");
        }
    }

    fn ends(&mut self) {
        self.head("vllm:request_success_total", "counter", "Requests that ended, by reason.");
        for (labels, engine) in &self.ranks {
            let m = engine.metrics();
            for (reason, n) in [("stop", m.stopped), ("length", m.cut), ("abort", m.aborted)] {
                let _ = writeln!(
                    self.out,
                    "vllm:request_success_total{{{labels},finished_reason=\"{reason}\"}} {n}.0"
                );
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&EngineMetrics) -> &Histogram) {
        self.head(&format!("vllm:{name}"), "histogram", help);
        let Self { out, ranks } = self;
        for (labels, engine) in ranks {
            let it = of(engine.metrics());
            let mut total = 0;
            for (edge, n) in it.cumulative() {
                let edge = if edge.is_finite() { format!("{edge:?}") } else { "+Inf".to_owned() };
                let _ = writeln!(out, "vllm:{name}_bucket{{{labels},le=\"{edge}\"}} {n}.0");
                total = n;
            }
            let _ = writeln!(out, "vllm:{name}_count{{{labels}}} {total}.0");
            let _ = writeln!(out, "vllm:{name}_sum{{{labels}}} {:?}", it.sum());
        }
    }

    fn cache_configs(&mut self) {
        self.head("vllm:cache_config_info", "gauge", "How the cache was configured.");
        for (rank, (_, engine)) in self.ranks.iter().enumerate() {
            let cache = engine.config().cache;
            let _ = writeln!(
                self.out,
                "vllm:cache_config_info{{block_size=\"{}\",enable_prefix_caching=\"True\",engine=\"{rank}\",num_gpu_blocks=\"{}\"}} 1.0",
                cache.block_size.max(1),
                cache.blocks.max(1),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sequence::Namespace;
    use super::super::{EngineConfig, EngineRequest, RequestId};
    use super::*;
    use homing_wire::engine::metrics::Exposition;

    /// Names without their labels.
    fn names(page: &str) -> impl Iterator<Item = &str> {
        let samples = page.lines().filter(|line| !line.starts_with('#'));
        samples.filter_map(|line| line.split(['{', ' ']).next())
    }

    /// The edges of a histogram as they are written.
    fn edges(page: &Exposition<'_>, family: &str) -> Vec<String> {
        let bucket = format!("{family}_bucket");
        page.samples(&bucket).map(|s| s.label("le").expect("an edge").into_owned()).collect()
    }

    #[test]
    fn a_page_reads_back_as_what_was_recorded() {
        let mut engine = Engine::new(EngineConfig::default());
        for id in 0..5 {
            let request = EngineRequest {
                id: RequestId(id),
                tokens: (0..100 + 300 * id as u32).collect(),
                output: vec![1; 1 + id as usize],
                ending: FinishReason::Stop,
                namespace: Namespace::default(),
            };
            engine.submit(Time::ZERO, request).expect("fits");
        }
        while let Some(at) = engine.poll_timeout() {
            engine.handle_timeout(at);
        }
        let text = render(&[&engine], "a \"b\"", Time::from_micros(1_500_000));
        let page = Exposition::parse(&text);
        let m = engine.metrics();
        assert_eq!(page.process_start_time(), Some(1.5));
        let model = page.samples("vllm:prompt_tokens_total").find_map(|s| s.label("model_name"));
        assert_eq!(model.as_deref(), Some("a \"b\""));
        assert_eq!(page.sum("vllm:prefix_cache_hits_total"), Some(m.prefix_cache_hits as f64));
        assert_eq!((m.ttft.snapshot().count(), m.itl.snapshot().count()), (5.0, 10.0));
        for (family, recorded) in [
            ("vllm:time_to_first_token_seconds", &m.ttft),
            ("vllm:inter_token_latency_seconds", &m.itl),
            ("vllm:e2e_request_latency_seconds", &m.e2e),
            ("vllm:request_queue_time_seconds", &m.queue),
        ] {
            assert_eq!(page.histogram(family), Some(recorded.snapshot()), "{family}");
            let count = page.value(&format!("{family}_count"));
            assert_eq!(count, Some(recorded.snapshot().count()), "{family}");
        }
    }

    /// The page of a real server has the same families and edges.
    #[test]
    fn a_page_of_a_real_vllm_has_our_names_and_edges() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata/kv-events/engine-vllm-0.32.0/llama-int.metrics.prom"
        );
        let text = std::fs::read_to_string(path).expect("the project carries it");
        let real = Exposition::parse(&text);
        let text = render(&[&Engine::new(EngineConfig::default())], "m", Time::ZERO);
        let ours = Exposition::parse(&text);
        for name in names(&text) {
            assert!(real.value(name).is_some(), "{name} is not vLLM's");
        }
        for family in [
            "vllm:time_to_first_token_seconds",
            "vllm:inter_token_latency_seconds",
            "vllm:e2e_request_latency_seconds",
            "vllm:request_queue_time_seconds",
        ] {
            assert!(!edges(&ours, family).is_empty(), "{family}");
            assert_eq!(edges(&real, family), edges(&ours, family), "{family}");
        }
    }
}
