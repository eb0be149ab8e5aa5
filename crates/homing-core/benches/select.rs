//! `cargo bench -p homing-core --bench select`: what `homing bench --only select` measures, without the binary and
//! with the system's allocator. It is the same code, taken from there.

#[expect(dead_code, reason = "the other benches use the rest of it")]
#[path = "../../homing/src/bench/meter.rs"]
mod meter;
#[path = "../../homing/src/bench/select.rs"]
mod select;

use select::Sizes;

fn main() -> Result<(), String> {
    // `cargo bench` says so; `cargo test` wants to know only whether it works.
    let full = std::env::args().any(|a| a == "--bench");
    let sizes = if full { Sizes::FULL } else { Sizes::QUICK };
    let figures = select::measure(sizes, &mut |what| eprintln!("{what}"))?;
    print!("{}", figures.table());
    let mut all = serde_json::Map::new();
    figures.put(&mut all);
    println!("{}", serde_json::Value::Object(all));
    Ok(())
}
