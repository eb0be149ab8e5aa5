//! Each part by an example, and that the parts add up whatever is said.

use super::*;
use crate::ids::{DpRank, NameId, WorkerId};
use crate::trust::Shape;
use proptest::prelude::*;

fn forecast(cached: u32, best: u32, seen: u32) -> Forecast {
    Forecast {
        worker: WorkerId(1),
        rank: DpRank(0),
        name: NameId(0),
        shape: Shape::Chat,
        exact: true,
        block_size: 16,
        tokens: 1000,
        cached,
        told: cached,
        best,
        seen,
    }
}

fn of(f: Forecast, cached: u64) -> Reuse {
    Reuse::of(&f, Some(&Usage { prompt_tokens: 1000, cached_tokens: Some(cached) }))
}

#[test]
fn what_is_not_reused_has_a_reason() {
    let all =
        |cached, misplaced, evicted, new| Reuse { cached, new, evicted, misplaced, unknown: 0 };
    assert_eq!(of(forecast(0, 0, 0), 0), all(0, 0, 0, 1000), "never seen");
    assert_eq!(of(forecast(960, 960, 960), 960), all(960, 0, 0, 40), "as predicted");
    assert_eq!(of(forecast(320, 960, 960), 320), all(320, 640, 0, 40), "somebody else has more");
    assert_eq!(of(forecast(320, 640, 960), 320), all(320, 320, 320, 40), "and had even more");
    assert_eq!(of(forecast(0, 0, 640), 0), all(0, 0, 640, 360), "nobody has it any more");
    assert_eq!(of(forecast(640, 640, 640), 320), all(320, 0, 320, 680 - 320), "gone unheard");
    assert_eq!(of(forecast(0, 0, 0), 640), all(640, 0, 0, 360), "more than we knew");
    assert_eq!(of(forecast(0, 320, 320), 640), all(640, 0, 0, 360), "there is nothing to blame");
}

#[test]
fn what_is_unknown_is_nothing_else() {
    let silent = Usage { prompt_tokens: 900, cached_tokens: None };
    let f = forecast(320, 640, 960);
    assert_eq!(Reuse::of(&f, Some(&silent)), Reuse { unknown: 900, ..Reuse::default() });
    assert_eq!(Reuse::of(&f, None), Reuse { unknown: 1000, ..Reuse::default() });
    let guess = Forecast { exact: false, ..forecast(0, 0, 0) };
    let told = of(guess, 600);
    assert_eq!(told, Reuse { cached: 600, unknown: 400, ..Reuse::default() });
}

#[test]
fn f57_sums_of_absurd_numbers_stay_at_the_most() {
    let mut sum = Reuse::default();
    let most = Usage { prompt_tokens: u64::MAX, cached_tokens: Some(u64::MAX) };
    for _ in 0..3 {
        sum += Reuse::of(&forecast(0, 0, 0), Some(&most));
    }
    assert_eq!(sum.cached, u64::MAX);
}

proptest! {
    /// Every token is counted once, whatever engines and indexes say.
    #[test]
    fn the_parts_add_up(
        tokens in 0u32..5000,
        held in [0u32..6000, 0u32..6000, 0u32..6000],
        prompt_tokens in 0u64..6000,
        cached_tokens in proptest::option::of(0u64..9000),
        exact: bool,
        told: bool,
    ) {
        let [cached, best, seen] = held;
        let f = Forecast { tokens, exact, ..forecast(cached, best, seen) };
        let usage = Usage { prompt_tokens, cached_tokens };
        let reuse = Reuse::of(&f, told.then_some(&usage));
        let want = if told { prompt_tokens } else { u64::from(tokens) };
        prop_assert_eq!(reuse.parts().iter().map(|(_, n)| n).sum::<u64>(), want);
        let mut sum = reuse;
        sum += reuse;
        prop_assert_eq!(sum.parts().map(|(_, n)| n), reuse.parts().map(|(_, n)| 2 * n));
    }
}
