//! The bound, what goes first, and that a hash never decides.

use proptest::prelude::*;

use super::*;

fn ids(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

fn get(cache: &PromptCache, key: u64, text: &str) -> Option<Vec<u32>> {
    cache.get(key, text).map(|part| part.ids().to_vec())
}

#[test]
fn a_part_comes_back() {
    let cache = PromptCache::new(10_000);
    let key = PromptCache::key("text", true);
    assert_eq!(get(&cache, key, "text"), None);
    cache.insert(key, "text", &[1, 2]);
    assert_eq!(get(&cache, key, "text"), Some(vec![1, 2]));
    let bytes = (4 + 8 + ENTRY) as u64;
    assert_eq!(cache.stats(), CacheStats { hits: 1, misses: 1, evictions: 0, entries: 1, bytes });
    assert_ne!(key, PromptCache::key("text", false));
}

#[test]
fn a_colliding_hash_is_a_miss_and_the_newer_part_stays() {
    let cache = PromptCache::new(10_000);
    cache.insert(5, "one", &[1]);
    assert_eq!(get(&cache, 5, "two"), None);
    cache.insert(5, "two", &[2, 2]);
    assert_eq!((get(&cache, 5, "one"), get(&cache, 5, "two")), (None, Some(vec![2, 2])));
    assert_eq!((cache.stats().entries, cache.stats().bytes), (1, (3 + 8 + ENTRY) as u64));
}

#[test]
fn parts_in_use_stay_while_others_come_and_go() {
    let cache = PromptCache::new(20 * (8 + ENTRY));
    cache.insert(0, "hot!", &[1]);
    for key in 1..1000 {
        cache.insert(key, "cold", &[1]);
        assert!(get(&cache, 0, "hot!").is_some(), "gone after {key}");
    }
    assert_eq!(cache.stats().entries, 20);
    assert_eq!(cache.stats().evictions, 980);
}

#[test]
fn nothing_larger_than_a_share_is_kept() {
    for bytes in [0, 1000] {
        let cache = PromptCache::new(bytes);
        cache.insert(1, &"x".repeat(1000), &ids(1));
        assert_eq!(cache.stats(), CacheStats::default());
    }
    let cache = PromptCache::default();
    cache.insert(1, &"x".repeat(1 << 20), &ids(1 << 18));
    assert_eq!(cache.stats().entries, 1);
}

#[test]
fn threads_share_it() {
    let cache = PromptCache::new(64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                for i in 0..5000 {
                    let n = (i * (thread + 1)) % 700;
                    let text = n.to_string();
                    let key = PromptCache::key(&text, false);
                    match get(cache, key, &text) {
                        Some(found) => assert_eq!(found, ids(n as usize % 50)),
                        None => cache.insert(key, &text, &ids(n as usize % 50)),
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!(stats.hits + stats.misses, 20_000);
    assert!(stats.bytes <= 64 << 10 && stats.evictions > 0, "{stats:?}");
}

proptest! {
    /// Its bytes are those of its entries and within the bound, after each step.
    #[test]
    fn it_keeps_its_bound(
        bound in 0..20_000_usize,
        steps in proptest::collection::vec((0..40_u64, 0..900_usize, any::<bool>()), 0..200),
    ) {
        let cache = PromptCache::new(bound);
        for (key, n, look) in steps {
            let text = "x".repeat(n);
            if look {
                let found = get(&cache, key, &text);
                prop_assert!(found.is_none_or(|found| found == ids(n / 3)));
            } else {
                cache.insert(key, &text, &ids(n / 3));
                let kept = get(&cache, key, &text).is_some();
                prop_assert_eq!(kept, n + n / 3 * 4 + ENTRY <= bound, "the newest stays, if it fits");
            }
            let shard = cache.shards[0].lock();
            let sum: usize = shard.map.values().map(|part| part.size()).sum();
            prop_assert_eq!(shard.bytes, sum);
            prop_assert_eq!(shard.ring.len(), shard.map.len());
            prop_assert!(sum <= bound);
        }
    }
}
