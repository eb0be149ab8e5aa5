//! What becomes of a name's workers, answer by answer.

use super::*;
use crate::settings::{Settings, Sources};

fn worker(lines: &str) -> Worker {
    let text = format!("[[workers]]\nurl = \"dns://pool:8000/v\"\n{lines}");
    let file = Some(("f".into(), text));
    let mut settings = Settings::load(Sources { file, ..Sources::default() }).unwrap();
    settings.workers.remove(0)
}

struct World {
    name: Name,
    changes: Changes,
}

impl World {
    fn new(lines: &str) -> Self {
        let (sender, changes) = mpsc::channel(64);
        Self { name: Name::new(worker(lines), sender), changes }
    }

    /// What an answer changes: `+id url`, `-id`.
    async fn hears(&mut self, answer: io::Result<Vec<&str>>) -> Vec<String> {
        let parsed = answer.map(|all| all.into_iter().map(|a| a.parse().unwrap()).collect());
        self.name.found(parsed).await.unwrap();
        let mut told = Vec::new();
        while let Ok(change) = self.changes.try_recv() {
            told.push(match change {
                Change::Upsert(worker) | Change::Replace(worker) => {
                    format!("+{} {}", worker.id, worker.url)
                }
                Change::Remove(id) => format!("-{id}"),
                Change::Reset(_) => panic!("others' workers are not its own"),
                Change::Frozen(why) => panic!("it says so by its answers: {why:?}"),
            });
        }
        told
    }
}

fn failed<T>() -> io::Result<T> {
    Err(io::Error::other("no resolver"))
}

#[tokio::test]
async fn every_address_is_a_worker_and_those_that_vanish_depart() {
    let mut world = World::new("");
    assert_eq!(world.hears(failed()).await, [""; 0]);
    let both = || Ok(vec!["10.0.0.2:8000", "10.0.0.1:8000", "10.0.0.2:8000"]);
    assert_eq!(
        world.hears(both()).await,
        ["+10.0.0.1:8000 http://10.0.0.1:8000/v", "+10.0.0.2:8000 http://10.0.0.2:8000/v"]
    );
    assert_eq!(world.hears(both()).await, [""; 0]);
    // One answer may be short.
    assert_eq!(world.hears(Ok(vec!["10.0.0.1:8000"])).await, [""; 0]);
    assert_eq!(world.hears(both()).await, [""; 0]);
    assert_eq!(world.hears(Ok(vec!["10.0.0.1:8000"])).await, [""; 0]);
    assert_eq!(world.hears(Ok(vec!["10.0.0.1:8000"])).await, ["-10.0.0.2:8000"]);
    assert_eq!(world.hears(both()).await, ["+10.0.0.2:8000 http://10.0.0.2:8000/v"]);
    drop(world.changes);
    assert!(world.name.found(Ok(vec!["10.0.0.9:1".parse().unwrap()])).await.is_err());
}

#[tokio::test]
async fn f66_a_resolver_that_fails_changes_nothing() {
    let mut world = World::new("id = \"gpu\"\n");
    assert_eq!(world.hears(Ok(vec!["[::1]:8000"])).await, ["+gpu-[::1]:8000 http://[::1]:8000/v"]);
    for _ in 0..5 {
        assert_eq!(world.hears(failed()).await, [""; 0]);
        assert_eq!(world.hears(Ok(vec![])).await, [""; 0]);
    }
    assert_eq!(world.name.known.len(), 1);
}

#[tokio::test]
async fn a_name_has_a_bound() {
    let mut world = World::new("");
    let (sender, mut changes) = mpsc::channel(2 * ADDRESSES_MAX);
    world.name.changes = sender;
    let many = (0..2000u16).map(|n| SocketAddr::from(([10, 0, 0, 1], n + 1))).collect();
    world.name.found(Ok(many)).await.unwrap();
    assert_eq!(world.name.known.len(), ADDRESSES_MAX);
    assert!(changes.try_recv().is_ok());
}

#[tokio::test]
async fn a_real_name_is_looked_up() {
    let mut named = worker("");
    named.url = "dns://localhost:8000".parse().unwrap();
    named.id = named.url.default_id();
    let (mut changes, follow) = follow(vec![named]);
    let first = tokio::select! {
        change = changes.recv() => change,
        () = follow => None,
    };
    let Some(Change::Upsert(worker)) = first else { panic!("{first:?}") };
    assert!(worker.url.to_string().starts_with("http://"), "{}", worker.url);
    assert!(worker.id.ends_with(":8000"), "{}", worker.id);
}
