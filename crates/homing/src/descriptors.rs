//! File descriptors: a connection takes one, and the request on it another. The system's soft limit is often 1,024,
//! which is far too few, and may be raised to the hard one by anybody.

use rustix::process::{Resource, getrlimit, setrlimit};

/// With fewer a router of a few hundred streams comes near its end.
const ENOUGH: u64 = 8_192;

/// Raises the limit as far as it may be, and says so where that is not far. Gives what it is then.
pub(crate) fn raise() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    let before = limit.current;
    // None is no limit at all.
    limit.current = limit.maximum;
    let now = match setrlimit(Resource::Nofile, limit) {
        Ok(()) => limit.current,
        Err(error) => {
            tracing::debug!(%error, "the limit of file descriptors can't be raised");
            before
        }
    };
    let now = now.unwrap_or(u64::MAX);
    if now < ENOUGH {
        tracing::warn!(
            descriptors = now,
            "few file descriptors may be open at once, and each stream takes two: raise the hard limit \
             (LimitNOFILE= of the systemd unit, ulimit -Hn)"
        );
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise(), hard.unwrap_or(u64::MAX));
        assert_eq!(getrlimit(Resource::Nofile).current, hard);
        assert_eq!(raise(), hard.unwrap_or(u64::MAX), "twice is no harm");
    }
}
