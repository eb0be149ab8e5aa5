//! Who counts as a worker, by what is heard of the registrations: a plain structure, which is told the time.
//!
//! * A registration is a key's life, from when it is made to when it is gone; its number (the revision that made it) is the
//!   worker's generation, so one that registers anew is another life.
//! * Its URL is fixed. What would change it, or can't be read, is refused, and what was there stands.
//! * A URL belongs to the oldest registration that has it; another one waits until that has gone.
//! * *After an outage* leases may have run out whose workers never stopped. So for a while nobody departs: who registers
//!   anew at the same URL goes on as who he was, and who is new is let in at once. Only then those who are still missing
//!   have departed. A worker that was truly started anew during an outage is told by what its probes and its events say,
//!   as everywhere where nobody counts registrations.

use super::follow::Heard;
use super::generated::KeyValue;
use super::lease::TTL;
use homing_runtime::fleet::discovery::Change;
use homing_runtime::fleet::entry;
use homing_runtime::settings::{Upstream, Worker};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// So long after an outage nobody departs: each worker that lives has registered anew by then, or kept its lease.
pub(super) const GRACE: Duration = TTL;
/// What is said until then.
const BACK: &str =
    "etcd is back: for as long as a lease lasts workers that have not registered again are kept";
/// Most registrations.
const MOST: usize = 4096;
/// Largest registration, in bytes.
const VALUE_MAX: usize = 64 << 10;

/// One that counts.
#[derive(Debug)]
struct Member {
    worker: Worker,
    /// The registration that it has now; the worker's generation is that which it began with.
    made: i64,
    /// It was not there any more after an outage.
    missing: bool,
}

/// A registration that would count, were its URL not another's.
#[derive(Debug)]
struct Waiting {
    worker: Worker,
    made: i64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Members {
    prefix: String,
    common: Arc<Upstream>,
    members: BTreeMap<String, Member>,
    waiting: BTreeMap<String, Waiting>,
    /// What has been refused, by key: the write of it, which is said once.
    refused: BTreeMap<String, i64>,
    count: Arc<AtomicU64>,
    /// A list that is being read.
    list: Option<Vec<KeyValue>>,
    /// Something has been known once.
    known: bool,
    /// Since when it was lost etcd has been away.
    away: bool,
    until: Option<Instant>,
}

impl Members {
    /// Nobody yet. `common`: how workers are reached; `count`: of those that were refused.
    pub(super) fn new(prefix: String, common: Arc<Upstream>, count: Arc<AtomicU64>) -> Self {
        let (members, waiting, refused) = Default::default();
        let list = Some(Vec::new());
        let (known, away, until) = (false, false, None);
        Self { prefix, common, members, waiting, refused, count, list, known, away, until }
    }

    /// When [`Members::settle`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Something is heard; what that changes.
    pub(super) fn hear(&mut self, heard: Heard, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        match heard {
            Heard::Put(kv) => match &mut self.list {
                // What is beyond the bound is not even kept; one more shows that there was more.
                Some(list) if list.len() > MOST => {}
                Some(list) => list.push(kv),
                None => self.put(&kv, &mut changes),
            },
            Heard::Gone(key) => {
                if self.list.is_none()
                    && let Some(id) = self.id(&key)
                {
                    self.gone(&id, &mut changes);
                }
            }
            Heard::Lost { away, why } => {
                self.list = Some(Vec::new());
                self.away |= away;
                self.until = None;
                if away {
                    changes.push(Change::Frozen(Some(why)));
                }
            }
            Heard::InStep => {
                let list = self.list.take().unwrap_or_default();
                self.listed(list, now, &mut changes);
            }
        }
        changes
    }

    fn listed(&mut self, mut list: Vec<KeyValue>, now: Instant, changes: &mut Vec<Change>) {
        // The oldest first: they have their URLs.
        list.sort_by_key(|kv| kv.create_revision);
        let spares = self.away && self.known;
        let there: BTreeMap<String, i64> =
            list.iter().filter_map(|kv| Some((self.id(&kv.key)?, kv.create_revision))).collect();
        self.waiting.retain(|id, waiting| there.get(id) == Some(&waiting.made));
        self.refused.retain(|id, _| there.contains_key(id));
        if spares {
            for (id, member) in &mut self.members {
                member.missing = !there.contains_key(id);
            }
            self.until = Some(now + GRACE);
        } else {
            self.members.retain(|id, member| there.get(id) == Some(&member.made));
        }
        if spares {
            changes.push(Change::Frozen(Some(BACK.to_owned())));
        }
        for kv in &list {
            self.put(kv, changes);
        }
        if !spares {
            changes.clear();
            self.settled(changes);
        }
    }

    /// The time after an outage is over.
    pub(super) fn settle(&mut self, now: Instant) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
            for (id, member) in &self.members {
                if member.missing {
                    tracing::warn!(
                        worker = id,
                        "it has not registered again since etcd is back: it has departed"
                    );
                }
            }
            self.members.retain(|_, member| !member.missing);
            self.let_in(&mut Vec::new());
            self.settled(&mut changes);
        }
        changes
    }

    fn settled(&mut self, changes: &mut Vec<Change>) {
        (self.known, self.away) = (true, false);
        let all = self.members.values().map(|member| member.worker.clone()).collect();
        changes.push(Change::Reset(all));
    }

    fn id(&self, key: &[u8]) -> Option<String> {
        let id = std::str::from_utf8(key).ok()?.strip_prefix(&self.prefix)?;
        (!id.is_empty()).then(|| id.to_owned())
    }

    fn put(&mut self, kv: &KeyValue, changes: &mut Vec<Change>) {
        let Some(id) = self.id(&kv.key) else {
            let shown = String::from_utf8_lossy(&kv.key).chars().take(256).collect::<String>();
            return self.refuse(&shown, kv, "its key is no id");
        };
        let worker = match self.read(&id, &kv.value) {
            Ok(worker) => worker,
            Err(why) => return self.refuse(&id, kv, &why),
        };
        let made = kv.create_revision;
        let worker = Worker { generation: made.unsigned_abs(), ..worker };
        let spares = self.until.is_some();
        if let Some(member) = self.members.get_mut(&id) {
            let same_place = member.worker.url == worker.url;
            if member.made == made || (spares && same_place) {
                if !same_place {
                    return self.refuse(&id, kv, "it would move a worker that is registered");
                }
                (member.made, member.missing) = (made, false);
                let worker = Worker { generation: member.worker.generation, ..worker };
                if member.worker != worker {
                    member.worker = worker.clone();
                    changes.push(Change::Upsert(worker));
                }
                self.refused.remove(&id);
                return;
            }
            // Another life; the old one's place is free.
            self.members.remove(&id);
            self.enter(&id, kv, worker, changes);
            if !self.members.contains_key(&id) {
                changes.push(Change::Remove(id));
            }
            self.let_in(changes);
            return;
        }
        self.enter(&id, kv, worker, changes);
    }

    /// One that is no member: it becomes one, or waits.
    fn enter(&mut self, id: &str, kv: &KeyValue, worker: Worker, changes: &mut Vec<Change>) {
        self.waiting.remove(id);
        let holder = self.members.iter().find(|(_, member)| member.worker.url == worker.url);
        if let Some((holder, _)) = holder {
            let why = format!("its URL is that of `{holder}`");
            self.refuse(id, kv, &why);
            if self.waiting.len() < MOST {
                self.waiting.insert(id.to_owned(), Waiting { worker, made: kv.create_revision });
            }
            return;
        }
        if self.members.len() >= MOST {
            return self.refuse(id, kv, "there are too many workers");
        }
        self.refused.remove(id);
        let member = Member { worker: worker.clone(), made: kv.create_revision, missing: false };
        self.members.insert(id.to_owned(), member);
        changes.push(Change::Upsert(worker));
    }

    fn gone(&mut self, id: &str, changes: &mut Vec<Change>) {
        self.refused.remove(id);
        if self.waiting.remove(id).is_some() {
            return;
        }
        let Some(member) = self.members.get_mut(id) else { return };
        if self.until.is_some() {
            member.missing = true;
            return;
        }
        self.members.remove(id);
        changes.push(Change::Remove(id.to_owned()));
        self.let_in(changes);
    }

    /// Those whose URL has become free, the oldest first.
    fn let_in(&mut self, changes: &mut Vec<Change>) {
        let mut waiting: Vec<(i64, String)> =
            self.waiting.iter().map(|(id, waiting)| (waiting.made, id.clone())).collect();
        waiting.sort();
        for (made, id) in waiting {
            let Some(one) = self.waiting.get(&id) else { continue };
            if self.members.values().any(|member| member.worker.url == one.worker.url) {
                continue;
            }
            let worker = one.worker.clone();
            self.waiting.remove(&id);
            self.refused.remove(&id);
            self.members.insert(id, Member { worker: worker.clone(), made, missing: false });
            changes.push(Change::Upsert(worker));
        }
    }

    fn read(&self, id: &str, value: &[u8]) -> Result<Worker, String> {
        if value.len() > VALUE_MAX {
            return Err(format!("it has more than {VALUE_MAX} bytes"));
        }
        let value: Value =
            serde_json::from_slice(value).map_err(|e| format!("it is not JSON: {e}"))?;
        let Value::Object(keys) = value else { return Err("it is no object".to_owned()) };
        let worker = entry::worker_under(keys, &self.common)?;
        if worker.id != id {
            return Err(format!("it says that its id is `{}`", worker.id));
        }
        if worker.url.socket().is_some() {
            // Whoever writes there would choose a socket of this machine to be spoken to.
            return Err(format!(
                "`{}` is a socket of one machine, and all routers read this: those belong into the configuration",
                worker.url
            ));
        }
        Ok(worker)
    }

    /// Each write is said once, however often it is seen.
    fn refuse(&mut self, id: &str, kv: &KeyValue, why: &str) {
        if self.refused.get(id) == Some(&kv.mod_revision) {
            return;
        }
        if self.refused.len() < MOST {
            self.refused.insert(id.to_owned(), kv.mod_revision);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            worker = id,
            why,
            "a registration in etcd is refused; whoever is registered stays as he is"
        );
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
