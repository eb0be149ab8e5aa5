//! What one router keeps of what others say to it.

use super::*;
use crate::replication::fake::Wire;
use crate::testing::{register, settings};
use homing_core::ids::KeySecret;

fn talk() -> Talk {
    let text =
        "[affinity]\nkey_file = \"k\"\n[replication]\nbackend = \"nats\"\nurls = [\"nats://h\"]\n";
    let shell = Shell::keyed(&settings(text), KeySecret::new(&[7; 32]), &[1; 32]);
    let _ = register(&shell, "w1");
    let (bus, _) = Arc::new(Wire::default()).join(1);
    let head = Head { writer: 1, ..Head::default() };
    Talk::new(
        shell,
        bus,
        Arc::new(Counts::default()),
        true,
        head,
        oneshot::channel().0,
        Arc::default(),
    )
}

#[test]
fn of_workers_and_ranks_that_are_not_here_nothing_is_kept() {
    let mut talk = talk();
    let load = PeerLoad { active_requests: 1, ..PeerLoad::default() };
    let at = |worker: &str, rank| (Arc::from(worker), DpRank(rank), load);
    for n in 0..100_u32 {
        let unknown = (0..100).map(|k| at(&format!("{n}-{k}"), 0));
        let ranks = (1..100).map(|rank| at("w1", rank));
        let targets = unknown.chain(ranks).chain([at("w1", 0)]).collect();
        talk.hear_loads(n % 3 + 2, Loads { whole: false, targets });
        assert!(talk.kept() <= 3, "{}", talk.kept());
    }
    assert_eq!(talk.kept(), 3, "what is here counts");
    talk.hear_loads(2, Loads { whole: true, targets: Vec::new() });
    talk.forget(3);
    assert_eq!(talk.kept(), 1);
    let workers = talk.shell.core().workers();
    assert_eq!(workers[0].part.peers.active_requests, 1);
}
