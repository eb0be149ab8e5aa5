//! From an engine's page of metrics to what the core hears of its load.

use homing_core::ids::DpRank;
use homing_core::load::report::Report;
use homing_wire::engine::EngineLoad;
use homing_wire::engine::metrics::Exposition;

/// The reports of a worker that has `ranks` ranks here: each rank's own where there are several and the engine
/// tells them apart, and else one of all together. None where the page says nothing of its load.
pub(super) fn of(page: &Exposition<'_>, ranks: u16) -> Vec<(Option<DpRank>, Report)> {
    let report = |load: EngineLoad| Report {
        running: load.running,
        waiting: load.waiting,
        kv_usage: load.kv_usage,
    };
    let loads = page.loads();
    // One rank here may be many there: they are one in all that is decided.
    if ranks <= 1 || loads.contains_key(&None) {
        return page.load().map(|load| (None, report(load))).into_iter().collect();
    }
    loads.into_iter().map(|(rank, load)| (rank.map(DpRank), report(load))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "vllm:num_requests_running{engine=\"0\"} 3\n\
                       vllm:num_requests_running{engine=\"1\"} 1\n\
                       vllm:num_requests_waiting{engine=\"1\"} 2\n";

    fn reports(text: &str, ranks: u16) -> Vec<(Option<u16>, u32, u32)> {
        let all = of(&Exposition::parse(text), ranks);
        all.into_iter().map(|(rank, r)| (rank.map(|r| r.0), r.running, r.waiting)).collect()
    }

    #[test]
    fn each_rank_has_its_own_where_there_are_several_and_one_has_all() {
        assert_eq!(reports(TWO, 2), [(Some(0), 3, 0), (Some(1), 1, 2)]);
        assert_eq!(reports(TWO, 1), [(None, 4, 2)]);
        assert_eq!(reports("sglang:num_running_reqs 5\n", 2), [(None, 5, 0)]);
        assert_eq!(reports("process_start_time_seconds 1\n", 2), []);
    }
}
