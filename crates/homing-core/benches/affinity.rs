//! `cargo bench -p homing-core --bench affinity`: what `homing bench --only affinity` measures, without the binary and with
//! the system's allocator. It is the same code, taken from there.

#[path = "../../homing/src/bench/affinity.rs"]
mod affinity;
#[path = "../../homing/src/bench/meter.rs"]
mod meter;

use affinity::Sizes;
use meter::Bars;

fn main() -> Result<(), String> {
    // `cargo bench` says so; `cargo test` wants to know only whether it works.
    let full = std::env::args().any(|a| a == "--bench");
    let sizes = if full { Sizes::FULL } else { Sizes::QUICK };
    let figures = affinity::measure(sizes, &mut |what| eprintln!("{what}"))?;
    print!("{}", figures.table(Bars(full)));
    println!("longest call of all: {:.0} us", figures.longest_call_us());
    Ok(())
}
