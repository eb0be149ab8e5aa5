//! What the tests of the snapshot share: a folder that goes away, content to write, and arbitrary content.

use super::{Header, Life, Origin, Place, Reader, SavedBinding, Secret, Writer};
use homing_core::ids::Role;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own for each test, removed at its end.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("homing-snapshot-{}-{}", std::process::id(), {
            NEXT.fetch_add(1, Ordering::Relaxed)
        });
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path of the snapshot in it.
    pub(crate) fn snapshot(&self) -> PathBuf {
        self.file("state.snap")
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names in it, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |e: fs::DirEntry| e.file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(&self.0).unwrap().map(|e| name(e.unwrap())).collect();
        names.sort();
        names
    }

    /// Another folder with the same files: what a process leaves that dies at this moment.
    pub(crate) fn crash(&self) -> Self {
        let copy = Self::new();
        for name in self.names() {
            fs::copy(self.file(&name), copy.file(&name)).unwrap();
        }
        copy
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// All that a file holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) bindings: Vec<SavedBinding>,
    pub(super) places: Vec<Place>,
    pub(super) lives: Vec<Life>,
}

impl Held {
    /// A little of everything. `generation` tells files apart.
    pub(super) fn sample(generation: u64) -> Self {
        let binding = |n: u64| SavedBinding {
            partition: (n % 2) as u32,
            key: u128::MAX - u128::from(n),
            worker: 7 + n as u32,
            rank: n.checked_sub(1).map(|rank| rank as u16),
            sequence: generation,
            writer: 3,
            idle_since: 1_700_000_000_000_000 + n,
            last: n == 2,
        };
        let place = |role| Place { pool: "qwen".to_owned(), role };
        let life = |id, started| Life { id, name: format!("gpu-{id}"), started };
        Self {
            bindings: (0..3).map(binding).collect(),
            places: vec![place(Role::Aggregated), place(Role::Decode)],
            lives: vec![life(7, None), life(8, Some(1_700_000_000_000))],
        }
    }

    pub(super) fn write(&self, path: &Path) {
        let mut writer = Writer::create(path, &header()).unwrap();
        writer.bindings(&self.bindings).unwrap();
        let written = writer.finish(&self.places, &self.lives).unwrap();
        assert_eq!(written.bindings, self.bindings.len() as u64);
        assert_eq!(written.bytes, fs::metadata(path).unwrap().len());
    }

    pub(super) fn read(path: &Path) -> Self {
        let mut reader = Reader::open(path).unwrap();
        let mut bindings = Vec::new();
        while let Some(batch) = reader.batch().unwrap() {
            assert!((1..=4096).contains(&batch.len()));
            bindings.extend_from_slice(batch);
        }
        assert_eq!(reader.batch().unwrap(), None, "the end stays the end");
        assert_eq!(reader.bindings(), bindings.len() as u64);
        Self { bindings, places: reader.places().to_vec(), lives: reader.lives().to_vec() }
    }
}

/// A header with a secret in it.
pub(super) fn header() -> Header {
    Header::new(1_700_000_000_000_000, &Secret::new([0xa5; 32]), Origin::Fresh)
}

prop_compose! {
    fn binding(places: u32)(
        partition in 0..places, key: u128, worker: u32, rank in option::of(any::<u16>()), sequence: u64,
        writer: u32, idle_since: u64, last: bool,
    ) -> SavedBinding {
        SavedBinding { partition, key, worker, rank, sequence, writer, idle_since, last }
    }
}

prop_compose! {
    fn life()(id: u32, name in ".{0,40}", started in option::of(any::<u64>())) -> Life {
        Life { id, name, started }
    }
}

prop_compose! {
    fn place()(
        pool in ".{0,40}",
        role in prop::sample::select(vec![Role::Aggregated, Role::Prefill, Role::Decode]),
    ) -> Place {
        Place { pool, role }
    }
}

/// Anything that a file can hold, nothing included.
pub(super) fn held() -> impl Strategy<Value = Held> {
    (vec(place(), 0..6), vec(life(), 0..20)).prop_flat_map(|(places, mut lives)| {
        lives.sort_by_key(|life| life.id);
        lives.dedup_by_key(|life| life.id);
        let most = if places.is_empty() { 1 } else { 200 };
        let binding = binding(places.len().max(1) as u32);
        vec(binding, 0..most).prop_map(move |bindings| Held {
            bindings,
            places: places.clone(),
            lives: lives.clone(),
        })
    })
}
