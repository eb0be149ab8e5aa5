//! `homing`, with nothing but its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    homing::main_with(homing::Policies::default())
}
