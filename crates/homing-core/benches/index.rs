//! `cargo bench -p homing-core --bench index`: what `homing bench --only index` measures, without the binary and
//! with the system's allocator. It is the same code, taken from there.

#[path = "../../homing/src/bench/index.rs"]
mod index;
#[expect(dead_code, reason = "the other benches use the rest of it")]
#[path = "../../homing/src/bench/meter.rs"]
mod meter;

use index::Sizes;
use meter::Bars;

fn main() {
    // `cargo bench` says so; `cargo test` wants to know only whether it works.
    let full = std::env::args().any(|a| a == "--bench");
    let sizes = if full { Sizes::FULL } else { Sizes::QUICK };
    let figures = index::measure(sizes, &mut |what| eprintln!("{what}"));
    print!("{}", figures.table(Bars(full)));
    println!("{}", figures.json());
}
