//! The one binary, as a function: a program of one's own may bring routing policies along ([`main_with`];
//! `examples/custom-policy`). What each command does lives beside this file, one file a command; `homing --help`
//! lists them.

mod bench;
mod check;
mod demo;
mod descriptors;
mod doctor;
mod etcd;
mod explain;
mod logging;
mod mock;
mod progress;
mod register;
mod replay;
mod replicate;
mod running;
mod serve;
mod sources;

use clap::{Parser, Subcommand};
pub use homing_runtime::settings::Policies;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Routes LLM inference requests to the worker that already holds their KV cache, and keeps every
/// session at home there.
#[derive(Debug, Parser)]
#[command(
    name = "homing",
    version,
    arg_required_else_help = true,
    after_help = "Examples:\n  homing demo\n  homing serve --worker http://10.0.0.1:8000 --worker \
                  http://10.0.0.2:8000\n  homing serve --config homing.toml\n\nExit codes: 0 success, \
                  1 failure, 2 bad usage or configuration."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work: four simulated engines, the gateway, and agent sessions played through it
    Demo(demo::Args),
    /// Run the router
    Serve(serve::Args),
    /// Run one simulated engine behind the OpenAI API
    Mock(mock::Args),
    /// Play a request trace through chosen policies in virtual time, without a GPU
    Replay(replay::Args),
    /// Measure in-process speeds on this machine
    Bench(bench::Args),
    /// Look at a router and its engines: what is wrong or missing, and the flag or setting that mends it
    Doctor(doctor::Args),
    /// Ask a running router where a request would go, and why
    Preview(explain::preview::Args),
    /// The decision record of a request: who could have served it, what each would have cost, what really happened
    Why(explain::why::Args),
    /// Keep one engine registered at routers for as long as it is well: a side-car
    Register(register::Args),
    /// Validate a configuration and print it with its defaults and where each value came from
    Check(check::Args),
}

/// How a command ends.
#[derive(Debug)]
enum Failure {
    /// Exit code 2: the command line or the configuration is wrong.
    Usage(String),
    /// Exit code 1.
    Failed(anyhow::Error),
    /// Exit code 1; why was printed already.
    Said,
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

/// An error and its causes in one line; what an error says of its cause already is not said twice.
fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        if said.is_empty() {
            cause
        } else if said.contains(&cause) {
            said
        } else {
            format!("{said}: {cause}")
        }
    })
}

/// What `homing` does, with policies of one's own besides the built-in ones: `routing.policy` and `--policy` know them
/// by name. To be called once, by `main`.
#[must_use]
pub fn main_with(policies: Policies) -> ExitCode {
    sources::bring(policies);
    let result = match Cli::parse().command {
        Command::Demo(args) => demo::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Mock(args) => mock::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Preview(args) => explain::preview::run(&args),
        Command::Why(args) => explain::why::run(&args),
        Command::Register(args) => register::run(&args),
        Command::Check(args) => check::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(text)) => {
            eprintln!("homing: {text}");
            ExitCode::from(2)
        }
        Err(Failure::Said) => ExitCode::FAILURE,
        Err(Failure::Failed(error)) => {
            eprintln!("homing: {}", causes(&error));
            ExitCode::FAILURE
        }
    }
}
