//! The bucket: a stream with the last message of each subject, as NATS' key-value buckets are made.
//!
//! It is looked for when something is to be done first, and after each outage: one that has been lost, since the
//! server's storage was wiped, is made anew. An operator may make it before, with more replicas: all but its age stays.

use super::dial::Line;
use async_nats::jetstream::context::{CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use homing_runtime::replication::port::PortError;
use std::time::Duration;

/// How long NATS remembers ids of messages, which we don't use; never longer than they live.
const DUPLICATES: Duration = Duration::from_secs(120);

/// The stream of a bucket.
pub(super) fn stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// What a key is appended to.
pub(super) fn prefix(bucket: &str) -> String {
    format!("$KV.{bucket}.")
}

/// Makes sure that it is there, and forgets values after `idle`.
pub(super) async fn ensure(
    line: &Line,
    jetstream: &Context,
    bucket: &str,
    idle: Duration,
) -> Result<(), PortError> {
    let name = stream(bucket);
    // Made by another in between: once more around.
    for _ in 0..2 {
        let found = match jetstream.get_stream(&name).await {
            Ok(stream) => Some(stream.cached_info().config.clone()),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(e)
                    if e.error_code() == ErrorCode::STREAM_NOT_FOUND =>
                {
                    None
                }
                GetStreamErrorKind::JetStream(e) => return Err(of_server(line, &e)),
                _ if is_missing(&error) => return Err(no_jetstream(line)),
                _ => return Err(line.unreachable(chain(&error))),
            },
        };
        match found {
            Some(config) => return keep(line, jetstream, config, idle).await,
            None => match jetstream.create_stream(wanted(bucket, idle)).await {
                Ok(_) => {
                    tracing::info!(bucket, "a bucket for bindings was made in NATS");
                    return Ok(());
                }
                Err(error) => match error.kind() {
                    CreateStreamErrorKind::JetStream(e)
                        if e.error_code() == ErrorCode::STREAM_NAME_EXIST => {}
                    CreateStreamErrorKind::JetStream(e) => return Err(of_server(line, &e)),
                    CreateStreamErrorKind::JetStreamUnavailable => return Err(no_jetstream(line)),
                    _ => return Err(line.unreachable(chain(&error))),
                },
            },
        }
    }
    Err(line.unreachable("the bucket changes under our hands"))
}

fn wanted(bucket: &str, idle: Duration) -> Config {
    Config {
        name: stream(bucket),
        description: Some("where Homing's sessions live".to_owned()),
        subjects: vec![format!("{}>", prefix(bucket))],
        max_messages_per_subject: 1,
        max_age: idle,
        duplicate_window: DUPLICATES.min(idle),
        storage: StorageType::File,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        num_replicas: 1,
        ..Config::default()
    }
}

/// Gives one that is there the age that is wanted.
async fn keep(
    line: &Line,
    jetstream: &Context,
    mut config: Config,
    idle: Duration,
) -> Result<(), PortError> {
    if config.max_age == idle {
        return Ok(());
    }
    let before = std::mem::replace(&mut config.max_age, idle);
    config.duplicate_window = DUPLICATES.min(idle);
    jetstream.update_stream(&config).await.map_err(|error| line.unreachable(chain(&error)))?;
    tracing::info!(stream = config.name, ?before, ?idle, "the bucket forgets after another time");
    Ok(())
}

/// What JetStream answers.
pub(super) fn of_server(line: &Line, error: &async_nats::jetstream::Error) -> PortError {
    match error.error_code() {
        ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
            no_jetstream(line)
        }
        _ => line.unreachable(error),
    }
}

/// Nobody answers for it.
fn no_jetstream(line: &Line) -> PortError {
    line.refused("it has no JetStream, where bindings are kept: start it with `nats-server -js`")
}

/// Whether the server says that nobody is there for what was asked.
fn is_missing(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        let request = error.downcast_ref::<async_nats::RequestError>();
        if request.is_some_and(|e| e.kind() == async_nats::RequestErrorKind::NoResponders) {
            return true;
        }
        let request = error.downcast_ref::<async_nats::jetstream::context::RequestError>();
        let none = async_nats::jetstream::context::RequestErrorKind::NoResponders;
        if request.is_some_and(|e| e.kind() == none) {
            return true;
        }
        next = error.source();
    }
    false
}

/// The causes in one line: the crate's own words repeat them.
fn chain(error: &dyn std::error::Error) -> String {
    error.to_string()
}
