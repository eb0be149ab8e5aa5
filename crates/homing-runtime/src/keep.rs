//! Bindings over a restart (R25): the core's sessions into the snapshot file every so often and at
//! shutdown, and back at the start.
//!
//! Beside [`crate::snapshot`], which is the file alone. The table is walked by parts while requests go on,
//! and the file is written on a thread that may block.

use crate::settings::Affinity;
use crate::shell::Shell;
use crate::snapshot::{
    self, Header, KeyError, Life, Origin, Place, Problem, Reader, SavedBinding, Secret, WriteError,
    Writer, Written,
};
use homing_core::SelectionCore;
use homing_core::affinity::saved::Kept;
use homing_core::affinity::version::Version;
use homing_core::core::Cursor;
use homing_core::ids::{DpRank, KeySecret, PartitionId, SessionKey, Target, WorkerId};
use homing_core::time::Time;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a kill loses at most, unless the table is so large that writing it takes longer than a twentieth
/// of this.
const INTERVAL: Duration = Duration::from_secs(10);
/// How often it is seen whether another router has let go of the file.
const LOOK: Duration = Duration::from_millis(200);
/// Writing takes at most so small a part of the time.
const SHARE: u32 = 20;

/// The secret that keys this router's sessions, and where it comes from.
#[derive(Debug)]
pub struct Keyed {
    secret: Secret,
    origin: Origin,
}

impl Keyed {
    /// From `affinity.key_file`, else from the snapshot's header, else `fresh`.
    ///
    /// # Errors
    /// [`KeyError`], when the key file can't be used.
    pub fn find(affinity: &Affinity, fresh: [u8; 32]) -> Result<Self, KeyError> {
        let (key_file, file) = (affinity.key_file.as_deref(), affinity.snapshot.as_deref());
        let (secret, origin) = snapshot::secret(key_file, file, fresh)?;
        if let Origin::KeyFile { exposed: true } | Origin::Snapshot { exposed: true } = origin {
            let path = key_file.or(file).map(|p| p.display().to_string());
            tracing::warn!(
                path,
                "others than its owner may read the file with the session secret: chmod 600"
            );
        }
        Ok(Self { secret, origin })
    }

    /// The secret for the core's keys.
    #[must_use]
    pub fn secret(&self) -> KeySecret {
        KeySecret::new(self.secret.as_bytes())
    }
}

/// Keeps one file.
#[derive(Debug)]
pub struct Keeper {
    shell: Arc<Shell>,
    path: PathBuf,
    keyed: Keyed,
    /// What the sessions looked like when they were written last.
    written: Mutex<Option<Stamp>>,
    /// Held while the file is written: one at a time, and the last one waits for the one before.
    writing: Mutex<()>,
    /// Keeps other routers off the file, as long as this process lives.
    lock: Mutex<Lock>,
}

/// Whose the file is.
#[derive(Debug)]
enum Lock {
    /// Ours; `None`: the folder takes no locks.
    Held(#[expect(dead_code, reason = "held, not read")] Option<File>),
    /// Another router's, whose place this one takes, until that has ended.
    Awaited,
}

/// Changes whenever a binding may have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp(Vec<homing_core::partition::Stats>);

/// What a snapshot brought back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Bindings that are back.
    pub bindings: u64,
    /// Those that are not: idled out, ended, of workers that had departed, or without room.
    pub left: u64,
}

impl Keeper {
    /// The keeper of `path`, and the only one. `takes_over`: once the other one has ended that is there; until then it
    /// reads, and writes nothing.
    ///
    /// # Errors
    /// [`TakenError`], when another router keeps its sessions there.
    pub fn new(
        shell: Arc<Shell>,
        path: PathBuf,
        keyed: Keyed,
        takes_over: bool,
    ) -> Result<Arc<Self>, TakenError> {
        let (written, writing) = Default::default();
        let lock = match lock(&path) {
            Ok(lock) => Lock::Held(lock),
            Err(_) if takes_over => Lock::Awaited,
            Err(taken) => return Err(taken),
        };
        Ok(Arc::new(Self { shell, path, keyed, written, writing, lock: Mutex::new(lock) }))
    }

    /// Whether the file is ours to write.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        matches!(*self.lock.lock(), Lock::Held(_))
    }

    /// Takes the file over, once the other router has let go of it: what that has written at its end and is newer than
    /// what is known here holds here, too. Blocks.
    fn take_over(&self) {
        if self.is_ours() {
            return;
        }
        let Ok(lock) = lock(&self.path) else { return };
        let read = self.read(|core, now, place, kept| core.take_in(now, place, kept));
        // After it is read: nobody writes over what was not.
        *self.lock.lock() = Lock::Held(lock);
        match read {
            Ok(_) | Err(Problem::Absent(_)) => {}
            Err(problem) => {
                tracing::error!(%problem, "what the router before has kept at its end is lost")
            }
        }
    }

    /// Brings back what the file holds, before the first request and before workers register. A file that
    /// can't be used is reported and set aside, and stops nothing. Blocks.
    pub fn restore(&self) -> Restored {
        let read = self.read(|core, now, place, kept| core.restore(now, place, kept));
        self.shell.core().restored();
        match read {
            Ok(restored) => restored,
            Err(Problem::Absent(_)) => Restored::default(),
            // It is another's: that will see to it.
            Err(problem) if !self.is_ours() => {
                tracing::warn!(%problem, "the sessions of the router before can't be read yet");
                Restored::default()
            }
            Err(problem) => {
                let aside = snapshot::set_aside(&self.path).map(|p| p.display().to_string());
                tracing::error!(
                    %problem,
                    set_aside_as = aside.unwrap_or_else(|e| format!("nothing: {e}")),
                    "sessions of before are lost"
                );
                Restored::default()
            }
        }
    }

    /// Reads the file, and gives what it holds to `take`, which says how much of it was of use.
    fn read(
        &self,
        take: impl Fn(&SelectionCore, Time, PartitionId, &[Kept]) -> usize,
    ) -> Result<Restored, Problem> {
        let mut reader = Reader::open(&self.path)?;
        if !reader.header().is_keyed_by(&self.keyed.secret) && !self.is_ours() {
            tracing::warn!(
                "the router before has another session secret (affinity.key_file): its sessions are not taken over"
            );
            return Ok(Restored::default());
        }
        if !reader.header().is_keyed_by(&self.keyed.secret) {
            let aside = snapshot::set_aside(&self.path)?;
            tracing::error!(
                set_aside_as = %aside.display(),
                "the snapshot was written under another session secret (affinity.key_file): none of its \
                 sessions can be recognised"
            );
            return Ok(Restored::default());
        }
        let core = self.shell.core();
        let places: Vec<Option<PartitionId>> =
            reader.places().iter().map(|p| core.promise_partition(&p.pool, p.role)).collect();
        let lives: BTreeMap<u32, WorkerId> = reader
            .lives()
            .iter()
            .map(|l| (l.id, core.promise_worker(&l.name, l.started)))
            .collect();
        let now = self.shell.now();
        let mut restored = Restored::default();
        let mut parts: BTreeMap<PartitionId, Vec<Kept>> = BTreeMap::new();
        let ended = loop {
            let batch = match reader.batch() {
                Ok(Some(batch)) => batch,
                Ok(None) => break Ok(()),
                Err(problem) => break Err(problem),
            };
            let all = batch.len() as u64;
            for saved in batch {
                let place = places.get(saved.partition as usize).copied().flatten();
                if let Some((place, life)) = place.zip(lives.get(&saved.worker)) {
                    parts.entry(place).or_default().push(kept(saved, *life));
                }
            }
            let mut back = 0;
            for (place, kept) in &mut parts {
                back += take(core, now, *place, kept) as u64;
                kept.clear();
            }
            restored.bindings += back;
            restored.left += all - back;
        };
        ended?;
        tracing::info!(
            sessions = restored.bindings,
            left = restored.left,
            path = %self.path.display(),
            "sessions of before are back; the others are known already, had idled out, or their workers are gone"
        );
        Ok(restored)
    }

    /// Writes the file, whole and at once; not while it is another's. Blocks.
    ///
    /// # Errors
    /// [`WriteError`]; the file of before is still there then.
    pub fn write(&self) -> Result<Written, WriteError> {
        let _alone = self.writing.lock();
        self.take_over();
        if !self.is_ours() {
            return Ok(Written::default());
        }
        let core = self.shell.core();
        let stamp = self.stamp();
        let now = self.shell.now();
        let header = Header::new(now.as_micros(), &self.keyed.secret, self.keyed.origin);
        let mut writer = Writer::create(&self.path, &header)?;
        let mut cursor = Cursor::default();
        let mut batch = Vec::new();
        // Only what bindings name: the names of pools and workers that are long gone must not pile up.
        let (mut numbers, mut named) = (BTreeMap::new(), BTreeSet::new());
        while let Some(part) = core.snapshot(self.shell.now(), &mut cursor) {
            batch.clear();
            for (partition, kept) in &part {
                let next = numbers.len() as u32;
                let number = *numbers.entry(*partition).or_insert(next);
                named.insert(kept.target.worker);
                batch.push(saved(number, kept));
            }
            writer.bindings(&batch)?;
        }
        let partitions = core.partitions();
        let mut places: Vec<(u32, Place)> = numbers
            .iter()
            .filter_map(|(id, number)| {
                let p = partitions.get(id.0 as usize)?;
                Some((*number, Place { pool: p.pool.to_string(), role: p.role }))
            })
            .collect();
        places.sort_by_key(|(number, _)| *number);
        let places: Vec<Place> = places.into_iter().map(|(_, place)| place).collect();
        let life = |l: homing_core::fleet::Life| Life {
            id: l.id.0,
            name: l.name.to_string(),
            started: l.started,
        };
        let lives = core.lives().into_iter().filter(|l| named.contains(&l.id));
        let lives: Vec<Life> = lives.map(life).collect();
        let written = writer.finish(&places, &lives)?;
        *self.written.lock() = Some(stamp);
        Ok(written)
    }

    fn stamp(&self) -> Stamp {
        Stamp(self.shell.core().partitions().into_iter().map(|p| p.stats).collect())
    }

    /// Whether there is anything new to write. What is in use is new at any time: its idle time has not
    /// begun.
    fn has_changed(&self) -> bool {
        let now = self.stamp();
        now.0.iter().any(|s| s.leases > 0) || self.written.lock().as_ref() != Some(&now)
    }

    /// Writes every so often. Runs until it is dropped.
    pub async fn keep(self: Arc<Self>) {
        let mut pause = INTERVAL;
        let mut fails = false;
        loop {
            // As soon as it is ours what the other one has told last is of use.
            tokio::time::sleep(if self.is_ours() { pause } else { LOOK }).await;
            if self.is_ours() && !self.has_changed() {
                continue;
            }
            let keeper = self.clone();
            let began = Instant::now();
            let written = tokio::task::spawn_blocking(move || keeper.write()).await;
            pause = INTERVAL.max(began.elapsed() * SHARE);
            if self.is_ours() {
                self.shell.metrics().snapshot_written(matches!(written, Ok(Ok(_))));
            }
            match written {
                Ok(Ok(written)) => {
                    fails = false;
                    tracing::debug!(sessions = written.bindings, bytes = written.bytes, "kept");
                }
                Ok(Err(error)) => {
                    // What is wrong stays so for many rounds, and is worth one line.
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!(%error, "sessions can't be kept; trying again");
                    }
                }
                Err(error) => tracing::error!(%error, "keeping sessions broke off"),
            }
        }
    }

    /// Where.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Another router keeps its sessions in this file: the two would undo each other's writes.
#[derive(Debug, thiserror::Error)]
#[error(
    "another router that runs keeps its sessions in {path}: give each a file of its own",
    path = .0.display()
)]
pub struct TakenError(PathBuf);

/// Takes the lock beside the snapshot, which outlives no process. `None`: the folder takes no locks, or what
/// is there is no file, or nothing can be written there, which the first write will say better.
fn lock(path: &Path) -> Result<Option<File>, TakenError> {
    if path.exists() && !path.is_file() {
        return Ok(None);
    }
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let options = File::options().write(true).create(true).truncate(false).open(name);
    let Ok(file) = options else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(TakenError(path.to_owned())),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Whether a router could start with these files: the key can be read, and there is a place for the snapshot.
///
/// # Errors
/// What is wrong, and with which key of the settings.
pub fn look_at_files(affinity: &Affinity) -> Result<(), String> {
    let key_file = affinity.key_file.as_deref();
    snapshot::secret(key_file, None, [0; 32]).map_err(|e| format!("affinity.key_file: {e}"))?;
    let Some(path) = &affinity.snapshot else { return Ok(()) };
    let problem = |why: &str| Err(format!("affinity.snapshot: {}: {why}", path.display()));
    if path.exists() && !path.is_file() {
        return problem("it is not a file: name one");
    }
    let folder = path.parent().filter(|f| !f.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        return problem("its folder does not exist: create it");
    }
    Ok(())
}

fn saved(partition: u32, kept: &Kept) -> SavedBinding {
    SavedBinding {
        partition,
        key: kept.key.0,
        worker: kept.target.worker.0,
        rank: kept.target.rank.map(|r| r.0),
        sequence: kept.version.sequence,
        writer: kept.version.writer,
        idle_since: kept.idle_since.as_micros(),
        last: kept.last,
    }
}

fn kept(saved: &SavedBinding, worker: WorkerId) -> Kept {
    Kept {
        key: SessionKey(saved.key),
        target: Target { worker, rank: saved.rank.map(DpRank) },
        version: Version { sequence: saved.sequence, writer: saved.writer },
        idle_since: Time::from_micros(saved.idle_since),
        last: saved.last,
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
