//! Objects to workers, and what has changed of them. Nothing here asks anybody.
//!
//! A pod counts from when it is ready first: until then its engine loads. From then on it stays, ready or not, until it
//! terminates or is gone: whether it answers is found out by probes, and a gap in readiness is no departure.

use super::objects::{EndpointSlice, Pod};
use homing_runtime::fleet::discovery::Change;
use homing_runtime::settings::{KubernetesPort as Port, Upstream, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_64;

/// Most workers of a discovery.
pub(super) const WORKERS_MAX: usize = 4096;
/// Longest id of a worker, in bytes.
const ID_MAX: usize = 128;
/// Where a node's zone is said, of pods and by us.
const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) type Labels = Arc<BTreeMap<String, String>>;

/// Where an engine may be, as one object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// What its worker is called.
    pub(super) id: String,
    /// Which life of it that is.
    pub(super) uid: String,
    /// The pod, where its labels are elsewhere.
    pub(super) pod: Option<String>,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    pub(super) labels: Labels,
    pub(super) zone: Option<String>,
    pub(super) is_ready: bool,
    pub(super) is_ending: bool,
}

/// The seats of a slice. `Err`: it has no such port.
pub(super) fn of_slice(slice: EndpointSlice, port: &Port) -> Result<Vec<Seat>, String> {
    let port = match port {
        Port::Number(number) => *number,
        Port::Name(name) => {
            let named = |p: &&super::objects::SlicePort| p.name.as_deref() == Some(name);
            let found = slice.ports.iter().flatten().find(named).and_then(|port| port.port);
            match found {
                Some(port) => port,
                // A slice without endpoints has no ports either.
                None if slice.endpoints.iter().flatten().next().is_none() => return Ok(Vec::new()),
                None => return Err(format!("the Service has no port that is named `{name}`")),
            }
        }
    };
    if slice.address_type == "FQDN" {
        return Ok(Vec::new());
    }
    let mut seats = Vec::new();
    for endpoint in slice.endpoints.into_iter().flatten() {
        // The first address stands for all, as the API has it.
        let first = endpoint.addresses.iter().flatten().next();
        let Some(address) = first.and_then(|text| text.parse::<IpAddr>().ok()) else { continue };
        let is_ending = endpoint.conditions.terminating == Some(true);
        // `serving` is `ready`, terminating or not; what isn't said counts as yes.
        let is_ready = endpoint.conditions.ready.or(endpoint.conditions.serving).unwrap_or(true);
        let pod =
            endpoint.target_ref.filter(|target| target.kind == "Pod" && !target.name.is_empty());
        let (id, uid, pod) = match pod {
            Some(pod) => (fitting(&pod.name), pod.uid, Some(pod.name)),
            None => (address.to_string(), String::new(), None),
        };
        let (labels, zone) = (Labels::default(), endpoint.zone);
        seats.push(Seat { id, uid, pod, address, port, labels, zone, is_ready, is_ending });
    }
    Ok(seats)
}

/// The seats of a pod: one a port.
pub(super) fn of_pod(pod: Pod, ports: &[u16]) -> Vec<Seat> {
    let Some(address) = pod.status.pod_ip.and_then(|text| text.parse::<IpAddr>().ok()) else {
        return Vec::new();
    };
    let says = |kind: &str| {
        let conditions = pod.status.conditions.iter().flatten();
        conditions.into_iter().any(|c| c.kind == kind && c.status == "True")
    };
    let is_ready = says("Ready");
    let is_over = matches!(pod.status.phase.as_str(), "Succeeded" | "Failed");
    let is_ending = pod.metadata.deletion_timestamp.is_some() || is_over;
    let labels: Labels = Arc::new(pod.metadata.labels.unwrap_or_default());
    let seat = |port: u16| {
        let name = &pod.metadata.name;
        let id = fitting(&if ports.len() > 1 { format!("{name}:{port}") } else { name.clone() });
        let (uid, labels) = (pod.metadata.uid.clone(), labels.clone());
        Seat { id, uid, pod: None, address, port, labels, zone: None, is_ready, is_ending }
    };
    ports.iter().copied().map(seat).collect()
}

/// See the module.
#[derive(Debug)]
pub(super) struct Members {
    upstream: Arc<Upstream>,
    /// By the objects' names.
    objects: BTreeMap<String, Vec<Seat>>,
    /// Of pods that slices name, by uid.
    labels: BTreeMap<String, Labels>,
    /// Those of them that need not be asked for again.
    fresh: BTreeSet<String>,
    workers: BTreeMap<String, Worker>,
    /// There were too many, and it has been said.
    complained: bool,
}

impl Members {
    pub(super) fn new(upstream: Arc<Upstream>) -> Self {
        let (objects, labels, fresh, workers, complained) = Default::default();
        Self { upstream, objects, labels, fresh, workers, complained }
    }

    /// An object is as it says now; without seats it may be gone.
    pub(super) fn put(&mut self, object: String, seats: Vec<Seat>) {
        if seats.is_empty() {
            self.objects.remove(&object);
        } else {
            self.objects.insert(object, seats);
        }
    }

    /// These objects there are, and no others.
    pub(super) fn replace(&mut self, objects: BTreeMap<String, Vec<Seat>>) {
        self.objects = objects;
    }

    /// Pods whose labels are not known, with their uids.
    pub(super) fn unlabelled(&self) -> Vec<(String, String)> {
        let seats = self.objects.values().flatten();
        let unknown = seats.filter(|seat| !seat.is_ending && !self.fresh.contains(&seat.uid));
        let pods: BTreeSet<_> =
            unknown.filter_map(|seat| Some((seat.pod.clone()?, seat.uid.clone()))).collect();
        pods.into_iter().collect()
    }

    /// A pod's labels, by its uid.
    pub(super) fn label(&mut self, uid: String, labels: Labels) {
        self.fresh.insert(uid.clone());
        self.labels.insert(uid, labels);
    }

    /// All labels are to be asked for anew; until they are, those that are known hold.
    pub(super) fn doubt_labels(&mut self) {
        self.fresh.clear();
    }

    /// All workers as they are now.
    pub(super) fn all(&mut self) -> Vec<Worker> {
        self.settle();
        self.workers.values().cloned().collect()
    }

    /// What has changed since it was last asked.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let before = std::mem::take(&mut self.workers);
        self.workers.clone_from(&before);
        self.settle();
        let gone = before.keys().filter(|id| !self.workers.contains_key(*id));
        let mut changes: Vec<Change> = gone.map(|id| Change::Remove(id.clone())).collect();
        let new = self.workers.iter().filter(|(id, worker)| before.get(*id) != Some(*worker));
        changes.extend(new.map(|(_, worker)| Change::Upsert(worker.clone())));
        changes
    }

    fn settle(&mut self) {
        let seats = || self.objects.values().flatten();
        // A pod that terminates somewhere does so everywhere: a slice may be a copy of before.
        let ending: BTreeSet<&str> =
            seats().filter(|s| s.is_ending && !s.uid.is_empty()).map(|s| s.uid.as_str()).collect();
        let mut chosen: BTreeMap<&str, &Seat> = BTreeMap::new();
        for seat in seats() {
            if seat.is_ending || ending.contains(seat.uid.as_str()) {
                continue;
            }
            let known =
                self.workers.get(&seat.id).is_some_and(|w| w.generation == generation(&seat.uid));
            if !seat.is_ready && !known {
                continue;
            }
            // Of two that say so, the ready one; then IPv4, then the smallest: always the same.
            let rank = |s: &Seat| (!s.is_ready, s.address, s.port, s.uid.clone());
            let best = chosen.entry(&seat.id).or_insert(seat);
            if rank(seat) < rank(best) {
                *best = seat;
            }
        }
        if chosen.len() > WORKERS_MAX && !std::mem::replace(&mut self.complained, true) {
            tracing::error!(
                found = chosen.len(),
                used = WORKERS_MAX,
                "too many workers in the cluster"
            );
        }
        let workers = chosen.into_values().take(WORKERS_MAX).filter_map(|seat| self.worker(seat));
        let workers: BTreeMap<_, _> = workers.map(|worker| (worker.id.clone(), worker)).collect();
        let there: BTreeSet<String> = seats().map(|seat| seat.uid.clone()).collect();
        self.labels.retain(|uid, _| there.contains(uid));
        self.fresh.retain(|uid| there.contains(uid));
        self.workers = workers;
    }

    fn worker(&self, seat: &Seat) -> Option<Worker> {
        let url = match seat.address {
            IpAddr::V4(address) => format!("http://{address}:{}", seat.port),
            IpAddr::V6(address) => format!("http://[{address}]:{}", seat.port),
        };
        let known = self.labels.get(&seat.uid).unwrap_or(&seat.labels);
        let mut labels = BTreeMap::clone(known);
        if let Some(zone) = &seat.zone {
            labels.entry(ZONE.to_owned()).or_insert_with(|| zone.clone());
        }
        Some(Worker {
            id: seat.id.clone(),
            url: url.parse().ok()?,
            dp_size: None,
            kv_events: None,
            kv_replay: None,
            labels,
            upstream: self.upstream.clone(),
            generation: generation(&seat.uid),
        })
    }
}

/// Every router must come to the same one. 0 where nothing tells one life from another.
fn generation(uid: &str) -> u64 {
    if uid.is_empty() { 0 } else { xxh3_64(uid.as_bytes()).max(1) }
}

/// Pods may have longer names than workers.
fn fitting(id: &str) -> String {
    match id.get(..ID_MAX - 17) {
        Some(start) if id.len() > ID_MAX => format!("{start}-{:016x}", xxh3_64(id.as_bytes())),
        _ => id.to_owned(),
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
mod tests;
