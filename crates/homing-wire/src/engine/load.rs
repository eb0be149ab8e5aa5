//! What an engine has to do, from its page of metrics: vLLM's and SGLang's gauges, rank by rank where they are
//! told apart.
//!
//! vLLM names each data-parallel rank in the label `engine`. SGLang does so in `dp_rank`, where it has several;
//! and it may repeat a rank's numbers for each of the GPUs that compute it (`tp_rank`): one of them counts.

use super::MAX_RANKS;
use super::metrics::Exposition;
use std::collections::BTreeMap;

/// What one rank has to do, or all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLoad {
    /// Requests that it computes.
    pub running: u32,
    /// Requests that it has accepted and not begun.
    pub waiting: u32,
    /// Share of the KV memory that requests occupy, from 0 to 1; what is only cached doesn't count. `None`: it
    /// doesn't say.
    pub kv_usage: Option<f64>,
}

/// The names of a gauge, and the label that tells ranks apart.
type Gauge = &'static [(&'static str, &'static str)];

const RUNNING: Gauge =
    &[("vllm:num_requests_running", "engine"), ("sglang:num_running_reqs", "dp_rank")];
const WAITING: Gauge =
    &[("vllm:num_requests_waiting", "engine"), ("sglang:num_queue_reqs", "dp_rank")];
const KV_USAGE: Gauge = &[
    ("vllm:kv_cache_usage_perc", "engine"),
    // Its name before 0.10.
    ("vllm:gpu_cache_usage_perc", "engine"),
    ("sglang:token_usage", "dp_rank"),
];

/// No engine runs more requests than this, whatever it says.
const MOST: f64 = 1e6;

impl Exposition<'_> {
    /// What the engine has to do, by rank; under `None` what is told of no rank in particular. Empty where it
    /// doesn't say how many requests it computes.
    #[must_use]
    pub fn loads(&self) -> BTreeMap<Option<u16>, EngineLoad> {
        let running = self.by_rank(RUNNING);
        let (waiting, kv_usage) = (self.by_rank(WAITING), self.by_rank(KV_USAGE));
        // From a fraction, a negative or a huge number to the nearest that there is.
        let count = |value: f64| value.clamp(0.0, MOST) as u32;
        let load = |(rank, running): (Option<u16>, f64)| {
            let load = EngineLoad {
                running: count(running),
                waiting: waiting.get(&rank).map_or(0, |value| count(*value)),
                kv_usage: kv_usage.get(&rank).map(|usage| usage.clamp(0.0, 1.0)),
            };
            (rank, load)
        };
        running.into_iter().map(load).collect()
    }

    /// All of it together: the sums, and the mean usage. `None` where it doesn't say.
    #[must_use]
    pub fn load(&self) -> Option<EngineLoad> {
        let loads = self.loads();
        let sum = |of: fn(&EngineLoad) -> u32| {
            loads.values().map(of).fold(0, |sum: u32, n| sum.saturating_add(n))
        };
        let usages: Vec<f64> = loads.values().filter_map(|load| load.kv_usage).collect();
        (!loads.is_empty()).then(|| EngineLoad {
            running: sum(|load| load.running),
            waiting: sum(|load| load.waiting),
            kv_usage: (!usages.is_empty())
                .then(|| usages.iter().sum::<f64>() / usages.len() as f64),
        })
    }

    /// A gauge's values under the first of its names that is there. Once ranks are told apart, a value of no rank
    /// is their sum, or of something else.
    fn by_rank(&self, gauge: Gauge) -> BTreeMap<Option<u16>, f64> {
        let mut values: BTreeMap<Option<u16>, f64> = BTreeMap::new();
        for (name, label) in gauge {
            for sample in self.samples(name).filter(|s| s.value.is_finite()) {
                let rank = match sample.label(label) {
                    Some(rank) => match rank.parse() {
                        Ok(rank) => Some(rank),
                        Err(_) => continue,
                    },
                    None => None,
                };
                if values.len() < MAX_RANKS || values.contains_key(&rank) {
                    let value = values.entry(rank).or_insert(sample.value);
                    *value = value.max(sample.value);
                }
            }
            if !values.is_empty() {
                break;
            }
        }
        if values.len() > 1 {
            values.remove(&None);
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(text: &str) -> Vec<(Option<u16>, u32, u32, Option<f64>)> {
        let loads = Exposition::parse(text).loads();
        loads.into_iter().map(|(r, l)| (r, l.running, l.waiting, l.kv_usage)).collect()
    }

    #[test]
    fn a_real_vllm_tells_each_engine_s() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../testdata/kv-events/engine-vllm-0.32.0/llama-int.metrics.prom"
        );
        let text = std::fs::read_to_string(path).expect("the project carries it");
        assert_eq!(loads(&text), [(Some(0), 0, 0, Some(0.0))]);
    }

    #[test]
    fn vllm_by_engine_under_its_newer_name_and_its_older() {
        for usage in ["kv_cache_usage_perc", "gpu_cache_usage_perc"] {
            let text = format!(
                "vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 3.0\n\
                 vllm:num_requests_running{{engine=\"1\",model_name=\"m\"}} 1.0\n\
                 vllm:num_requests_waiting{{engine=\"1\",model_name=\"m\"}} 2.0\n\
                 vllm:num_requests_waiting_by_reason{{engine=\"1\",reason=\"capacity\"}} 9.0\n\
                 vllm:{usage}{{engine=\"0\",model_name=\"m\"}} 0.25\n\
                 vllm:{usage}{{engine=\"1\",model_name=\"m\"}} 0.75\n"
            );
            assert_eq!(loads(&text), [(Some(0), 3, 0, Some(0.25)), (Some(1), 1, 2, Some(0.75))]);
            let all = Exposition::parse(&text).load();
            assert_eq!(all, Some(EngineLoad { running: 4, waiting: 2, kv_usage: Some(0.5) }));
        }
        let old = "vllm:num_requests_running{model_name=\"m\"} 5.0\n";
        assert_eq!(loads(old), [(None, 5, 0, None)]);
    }

    #[test]
    fn sglang_by_dp_rank_and_once_a_group_of_gpus() {
        let text = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\"} 4.0\n\
                    sglang:num_running_reqs{model_name=\"m\",tp_rank=\"1\"} 4.0\n\
                    sglang:num_queue_reqs{model_name=\"m\"} 3.0\n\
                    sglang:token_usage{model_name=\"m\",tp_rank=\"0\"} 0.28\n";
        assert_eq!(loads(text), [(None, 4, 3, Some(0.28))]);
        let text = "sglang:num_running_reqs{dp_rank=\"0\"} 1\nsglang:num_running_reqs{dp_rank=\"1\"} 2\n\
                    sglang:num_running_reqs 3\nsglang:num_queue_reqs{dp_rank=\"1\"} 5\n";
        assert_eq!(loads(text), [(Some(0), 1, 0, None), (Some(1), 2, 5, None)]);
    }

    #[test]
    fn f57_what_makes_no_sense_is_passed_over_or_put_right() {
        assert_eq!(loads(""), []);
        assert_eq!(Exposition::parse("").load(), None);
        assert_eq!(loads("vllm:kv_cache_usage_perc 0.5\n"), []);
        let text = "vllm:num_requests_running{engine=\"x\"} 1\nvllm:num_requests_running{engine=\"0\"} NaN\n\
                    vllm:num_requests_running{engine=\"1\"} -7\nvllm:num_requests_running{engine=\"2\"} 1e99\n\
                    vllm:kv_cache_usage_perc{engine=\"1\"} 1.5\n";
        assert_eq!(loads(text), [(Some(1), 0, 0, Some(1.0)), (Some(2), 1_000_000, 0, None)]);
        let many: String = (0..5000)
            .map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n"))
            .collect();
        assert_eq!(loads(&many).len(), MAX_RANKS);
    }
}
