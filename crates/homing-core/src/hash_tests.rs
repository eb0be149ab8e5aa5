//! The formulas against golden vectors, and the properties that the index relies on.

use super::*;
use proptest::prelude::*;

/// Vectors of the real package (`testdata/hash-vectors`, see `docs/kv-cache.md`).
#[test]
fn hashes_equal_the_golden_vectors() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/hash-vectors/dynamo_block_hashes.json"
    );
    let file: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut checked, mut left) = (0, 0);
    for v in file["vectors"].as_array().unwrap() {
        let options = v["options"].as_object().unwrap();
        let known = ["lora_name", "cache_namespace"];
        if options.keys().any(|k| !known.contains(&k.as_str())) {
            left += 1; // images and bigrams: a later step
            continue;
        }
        let text = |k: &str| options.get(k).and_then(|x| x.as_str()).unwrap_or("");
        let tokens: Vec<u32> =
            v["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let space = HashSpace::new(text("lora_name"), text("cache_namespace"));
        let size = v["block_size"].as_u64().unwrap() as u32;
        let want = |k: &str| -> Vec<u64> {
            let list = v[k].as_array().unwrap();
            list.iter().map(|h| h.as_str().unwrap().parse().unwrap()).collect()
        };
        let locals: Vec<u64> = space.locals(&tokens, size).map(|h| h.0).collect();
        assert_eq!(locals, want("local_block_hashes"), "{}", v["name"]);
        let chain: Vec<u64> =
            Prompt::from_tokens(&tokens, size, space).chain.iter().map(|h| h.0).collect();
        assert_eq!(chain, want("sequence_hashes"), "{}", v["name"]);
        checked += 1;
    }
    assert!(checked >= 20, "{checked} checked, {left} left out");
}

#[test]
fn f26_a_partial_block_and_the_last_token_never_count() {
    let p = |n: usize| Prompt::from_tokens(&vec![1; n], 16, HashSpace::default());
    assert_eq!((p(40).chain.len(), p(40).reusable_blocks()), (2, 2));
    assert_eq!((p(32).chain.len(), p(32).reusable_blocks()), (2, 1));
    assert_eq!((p(0).chain.len(), p(0).reusable_blocks()), (0, 0));
    assert_eq!(Prompt::of_length(1000).reusable_blocks(), 0);
}

#[test]
fn an_engine_hash_in_bytes_is_its_last_eight() {
    let digest: Vec<u8> = (0..32).collect();
    assert_eq!(EngineHash::from_digest(&digest), Some(EngineHash(0x1819_1A1B_1C1D_1E1F)));
    assert_eq!(EngineHash::from_digest(&digest[..7]), None);
}

proptest! {
    /// Two prompts share exactly the chains of their common full blocks.
    #[test]
    fn chains_are_prefixes(
        head in prop::collection::vec(0u32..50, 0..60),
        a in prop::collection::vec(0u32..50, 0..40),
        b in prop::collection::vec(50u32..99, 0..40),
        size in 1u32..20,
    ) {
        let of = |tail: &[u32]| {
            Prompt::from_tokens(&[&head[..], tail].concat(), size, HashSpace::default()).chain
        };
        let (x, y) = (of(&a), of(&b));
        let common = x.iter().zip(y.iter()).take_while(|(p, q)| p == q).count();
        let full = head.len() / size as usize;
        let possible = full.min(x.len()).min(y.len());
        prop_assert_eq!(common, possible);
    }

    #[test]
    fn spaces_do_not_collide(tokens in prop::collection::vec(any::<u32>(), 1..300)) {
        let spaces = [("", ""), ("a", ""), ("", "a"), ("a", "a"), ("b", "")];
        let hashes: Vec<_> = spaces.iter().map(|(l, s)| HashSpace::new(l, s).local(&tokens)).collect();
        for (i, h) in hashes.iter().enumerate() {
            prop_assert!(!hashes[i + 1..].contains(h));
        }
    }
}

proptest! {
    /// It is the text that counts, and not in how many parts it comes; what is not full is left out.
    #[test]
    fn a_text_is_hashed_as_one(
        text in prop::collection::vec(any::<u8>(), 0..2000),
        cuts in prop::collection::vec(0usize..2000, 0..4),
    ) {
        let space = HashSpace::new("adapter", "");
        let whole = Prompt::from_text(&[&text], space);
        prop_assert_eq!(whole.chain.len(), text.len() / TEXT_CHUNK);
        prop_assert_eq!(whole.tokens as usize, text.len().div_ceil(4));
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let parts: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        prop_assert_eq!(&Prompt::from_text(&parts, space), &whole);
        let mut longer = text.clone();
        longer.extend([7; TEXT_CHUNK]);
        let longer = Prompt::from_text(&[&longer], space);
        prop_assert_eq!(&longer.chain[..whole.chain.len()], &whole.chain[..]);
    }
}
