//! `homing` with one more policy: `custom-policy serve --policy frugal --worker http://10.0.0.1:8000 ...`.

use custom_policy::Frugal;
use homing::Policies;
use std::process::ExitCode;

fn main() -> ExitCode {
    homing::main_with(Policies::default().with("frugal", || Box::new(Frugal::default())))
}
