//! What became of predictions: how far off they are, how far they are believed, and why prompt tokens
//! were computed. Read from the core at each scrape.

use super::family;
use crate::shell::Shell;
use homing_core::core::WorkerView;
use homing_core::trust::{Checks, TrustView};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use std::fmt;
use std::sync::Weak;

/// See the module.
#[derive(Debug)]
pub(super) struct Verified(pub(super) Weak<Shell>);

impl Collector for Verified {
    fn encode(&self, mut e: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(shell) = self.0.upgrade() else { return Ok(()) };
        let workers = shell.core().workers();
        let help = "How far predicted and reported cached tokens are apart lately, in parts of the prompt, \
                    of the worker's worst API shape: a moving mean over some 16 requests";
        // 0 would say that predictions come true, of a worker whose answers don't say what was reused.
        let compared = |t: &&TrustView| {
            let Checks { agreed, over, under, .. } = t.checks;
            // Errors without a check are from the engine's own counters.
            agreed + over + under > 0 || t.error > 0.0
        };
        let error = |w: &WorkerView| {
            w.trust.iter().filter(compared).map(|t| t.error).max_by(f64::total_cmp)
        };
        each(&mut e, "cache_prediction_error", help, &workers, error)?;
        let help =
            "How far what the index says of a worker is believed, 0 to 1, of its worst API shape";
        let trust =
            |w: &WorkerView| w.trust.iter().map(|t| t.trust.factor()).min_by(f64::total_cmp);
        each(&mut e, "index_trust", help, &workers, trust)?;

        let reuse = shell.core().reuse();
        let series: Vec<_> = reuse
            .iter()
            .flat_map(|(model, reuse)| {
                let labels = |word| [("model", &**model), ("reuse", word)];
                reuse.parts().map(|(word, tokens)| (labels(word), tokens))
            })
            .collect();
        let help = "Prompt tokens of answered requests, by what became of them";
        let series = series.iter().map(|(labels, tokens)| (&labels[..], *tokens));
        family(&mut e, "prompt_tokens", help, MetricType::Counter, series)
    }
}

/// A gauge for each worker that has a value.
fn each(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    workers: &[WorkerView],
    value: impl Fn(&WorkerView) -> Option<f64>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for worker in workers {
        let Some(value) = value(worker) else { continue };
        let labels = [("worker", &*worker.info.spec.name)];
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}
