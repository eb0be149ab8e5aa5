//! Who counts as a worker: registrations as they come and go, and outages.

use super::*;
use homing_runtime::settings::{Settings, Sources};

struct World {
    members: Members,
    count: Arc<AtomicU64>,
    now: Instant,
}

fn kv(id: &str, made: i64, written: i64, value: &str) -> KeyValue {
    KeyValue {
        key: format!("/w/{id}").into_bytes().into(),
        create_revision: made,
        mod_revision: written,
        value: value.as_bytes().to_vec().into(),
        lease: 0,
    }
}

fn at(id: &str, made: i64, port: u16) -> KeyValue {
    kv(id, made, made, &format!(r#"{{"id": "{id}", "url": "http://h:{port}"}}"#))
}

fn shown(change: &Change) -> String {
    match change {
        Change::Reset(workers) => {
            let all: Vec<_> =
                workers.iter().map(|w| format!("{}#{}", w.id, w.generation)).collect();
            format!("={}", all.join(","))
        }
        Change::Upsert(worker) | Change::Replace(worker) => {
            format!("+{}#{}", worker.id, worker.generation)
        }
        Change::Remove(id) => format!("-{id}"),
        Change::Frozen(why) => format!("!{}", why.as_deref().unwrap_or("")),
    }
}

impl World {
    fn new() -> Self {
        let common = Arc::new(Settings::load(Sources::default()).unwrap().upstream);
        let count = Arc::<AtomicU64>::default();
        let members = Members::new("/w/".to_owned(), common, count.clone());
        Self { members, count, now: Instant::now() }
    }

    /// In step with these.
    fn with(list: &[KeyValue]) -> Self {
        let mut world = Self::new();
        world.list(list);
        world
    }

    fn hear(&mut self, heard: Heard) -> Vec<String> {
        self.members.hear(heard, self.now).iter().map(shown).collect()
    }

    fn put(&mut self, kv: KeyValue) -> Vec<String> {
        self.hear(Heard::Put(kv))
    }

    fn gone(&mut self, id: &str) -> Vec<String> {
        self.hear(Heard::Gone(format!("/w/{id}").into_bytes()))
    }

    fn list(&mut self, list: &[KeyValue]) -> Vec<String> {
        for kv in list {
            assert!(self.put(kv.clone()).is_empty(), "a list is said when it is whole");
        }
        self.hear(Heard::InStep)
    }

    fn lost(&mut self, away: bool) -> Vec<String> {
        self.hear(Heard::Lost { away, why: "why".to_owned() })
    }

    fn later(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.members.settle(self.now).iter().map(shown).collect()
    }

    fn refused(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[test]
fn they_come_and_go_and_come_as_others() {
    let mut w = World::new();
    assert_eq!(w.list(&[at("b", 7, 2), at("a", 5, 1)]), ["=a#5,b#7"]);
    assert_eq!(w.put(at("c", 9, 3)), ["+c#9"]);
    assert_eq!(w.gone("b"), ["-b"]);
    assert_eq!(w.put(at("b", 11, 2)), ["+b#11"], "another life");
    assert_eq!(w.put(at("c", 13, 3)), ["+c#13"], "its end was not heard");
    assert!(w.gone("nobody").is_empty());
    assert!(w.later(GRACE * 9).is_empty());
    // The same life, with other labels.
    let labels = kv("c", 13, 15, r#"{"id": "c", "url": "http://h:3", "labels": {"a": "b"}}"#);
    assert_eq!(w.put(labels.clone()), ["+c#13"]);
    assert!(w.put(labels).is_empty());
    assert_eq!(w.refused(), 0);
}

#[test]
fn what_is_refused_is_counted_once_and_changes_nothing() {
    let mut w = World::with(&[at("a", 5, 1), kv("bad", 6, 6, "{")]);
    assert_eq!(w.refused(), 1);
    assert!(w.put(kv("bad", 6, 6, "{")).is_empty());
    assert_eq!(w.refused(), 1, "it is the same write");
    assert!(w.put(kv("bad", 6, 8, "{")).is_empty());
    assert!(w.put(kv("a", 5, 9, "{}")).is_empty());
    assert!(w.put(kv("a", 5, 10, r#"{"id": "a", "url": "http://elsewhere:1"}"#)).is_empty());
    assert!(w.put(kv("", 11, 11, r#"{"url": "http://h:9"}"#)).is_empty());
    assert!(w.put(kv("x,y", 12, 12, r#"{"id": "x,y", "url": "http://h:9"}"#)).is_empty());
    assert_eq!(w.refused(), 6);
    assert_eq!(w.gone("a"), ["-a"]);
}

#[test]
fn sockets_of_one_machine_are_nobodys_for_all() {
    let mut w = World::with(&[at("a", 5, 1)]);
    for (made, url) in [(6, "unix:/run/docker.sock"), (7, "unix:///run/docker.sock")] {
        let kv = kv("b", made, made, &format!(r#"{{"id": "b", "url": "{url}"}}"#));
        assert!(w.put(kv).is_empty(), "{url}");
    }
    assert_eq!(w.refused(), 2);
}

#[test]
fn a_url_is_the_oldest_ones() {
    let mut w = World::new();
    assert_eq!(w.list(&[at("late", 9, 1), at("early", 5, 1), at("last", 11, 1)]), ["=early#5"]);
    assert_eq!(w.refused(), 2);
    assert_eq!(w.gone("early"), ["-early", "+late#9"]);
    assert!(w.gone("last").is_empty());
    assert_eq!(w.gone("late"), ["-late"], "whoever has gone waits no more");
    assert_eq!(w.put(at("early", 13, 1)), ["+early#13"]);
    // One that moves, by registering anew, makes room, and takes none.
    assert!(w.put(at("other", 15, 1)).is_empty());
    assert_eq!(w.put(at("early", 17, 2)), ["+early#17", "+other#15"]);
    assert_eq!(w.put(at("early", 19, 1)), ["-early"], "that URL is another's now");
    assert_eq!(w.gone("other"), ["-other", "+early#19"]);
}

#[test]
fn history_that_was_dropped_is_no_outage() {
    let mut w = World::with(&[at("a", 5, 1), at("b", 6, 2)]);
    assert!(w.lost(false).is_empty());
    assert_eq!(w.list(&[at("b", 8, 2), at("c", 9, 3)]), ["=b#8,c#9"]);
    assert_eq!(w.gone("b"), ["-b"]);
}

#[test]
fn after_an_outage_all_have_time_to_come_back() {
    let mut w = World::with(&[at("a", 5, 1), at("b", 6, 2), at("c", 7, 3), at("d", 8, 4)]);
    assert_eq!(w.lost(true), ["!why"]);
    assert!(w.later(GRACE * 9).is_empty());
    // `a` has kept its lease, `b` has registered anew, `n` is new.
    let back = format!("!{BACK}");
    let list = w.list(&[at("a", 5, 1), at("b", 16, 2), at("n", 17, 9)]);
    assert_eq!(list, [back.as_str(), "+n#17"]);
    assert!(w.put(at("c", 18, 3)).is_empty(), "it is who it was");
    assert_eq!(w.put(at("m", 19, 8)), ["+m#19"]);
    // A lease that runs out now began before.
    assert!(w.gone("a").is_empty());
    assert!(w.later(GRACE / 2).is_empty());
    assert!(w.put(at("a", 20, 1)).is_empty());
    assert_eq!(w.members.due(), Some(w.now + GRACE / 2));
    assert_eq!(w.later(GRACE / 2), ["=a#5,b#6,c#7,m#19,n#17"], "only `d` is missing");
    // From now on it is as ever, by the registrations that there are.
    assert!(w.put(at("b", 16, 2)).is_empty());
    assert_eq!(w.gone("b"), ["-b"]);
    assert_eq!(w.put(at("a", 30, 1)), ["+a#30"]);
}

#[test]
fn an_outage_in_the_time_after_one_begins_it_anew() {
    let mut w = World::with(&[at("a", 5, 1), at("b", 6, 2)]);
    w.lost(true);
    assert_eq!(w.list(&[]), [format!("!{BACK}")]);
    assert!(w.put(at("b", 9, 2)).is_empty());
    assert_eq!(w.lost(true), ["!why"]);
    assert!(w.later(GRACE * 2).is_empty());
    assert_eq!(w.list(&[at("a", 12, 1)]), [format!("!{BACK}")]);
    assert_eq!(w.later(GRACE), ["=a#5"]);
}

#[test]
fn who_takes_a_url_after_an_outage_waits_until_it_is_free() {
    let mut w = World::with(&[at("a", 5, 1)]);
    w.lost(true);
    assert_eq!(w.list(&[at("b", 9, 1)]), [format!("!{BACK}")]);
    assert_eq!(w.later(GRACE), ["=b#9"]);
}

#[test]
fn before_anything_is_known_nobody_is_waited_for() {
    let mut w = World::new();
    assert_eq!(w.lost(true), ["!why"]);
    assert_eq!(w.list(&[at("a", 5, 1)]), ["=a#5"]);
    assert_eq!(w.members.due(), None);
}

#[test]
fn a_flood_is_bounded() {
    let mut w = World::new();
    let many = MOST + 10;
    let list: Vec<KeyValue> =
        (0..many).map(|n| at(&format!("w{n:05}"), 5 + n as i64, 1 + n as u16)).collect();
    w.list(&list);
    assert_eq!(w.members.members.len(), MOST);
    assert!(w.refused() > 0);
    assert!(w.put(at("another", 90_000, 60_000)).is_empty());
}
