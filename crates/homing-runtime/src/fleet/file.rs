//! Workers in a file of their own (`discovery.backend = "file"`): TOML or JSON with the keys of `[[workers]]`, looked
//! at every second. Replace it by renaming another over it: what is read half written is a bad file, and a bad one
//! keeps the last good one.

use super::discovery::{Change, Changes};
use super::dns;
use crate::settings::{Settings, Sources, Worker};
use crate::stamp::Stamp;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;

/// How often it is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Largest file: 4,096 workers with labels take a third of it.
const BYTES_MAX: u64 = 4 << 20;

/// Why a file of workers can't be used.
#[derive(Debug, Error)]
pub enum FileError {
    /// It can't be read.
    #[error("{} can't be read: {cause}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It can be, and says nothing that makes sense.
    #[error("{}: {what}", path.display())]
    Bad {
        /// Which.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
}

/// The workers of a file.
///
/// # Errors
/// [`FileError`]: one wrong entry spoils all of it.
pub fn read(path: &Path) -> Result<Vec<Worker>, FileError> {
    let unreadable = |cause| FileError::Unreadable { path: path.to_owned(), cause };
    let bad = |what: String| FileError::Bad { path: path.to_owned(), what };
    let about = std::fs::metadata(path).map_err(unreadable)?;
    if !about.is_file() || about.len() > BYTES_MAX {
        return Err(bad("it is no regular file, or larger than 4 MiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(unreadable)?;
    if text.trim().is_empty() {
        // Most likely it is being written; who wants nobody says `[]`.
        return Err(bad("it is empty; nobody is `[]`".to_owned()));
    }
    let text = if is_json(&text) { from_json(&text).map_err(bad)? } else { text };
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string()))?;
    if let Some(other) = table.keys().find(|key| *key != "workers") {
        return Err(bad(format!("it has `{other}`, and only [[workers]] belong here")));
    }
    let sources: Sources = Sources { file: Some((path.to_owned(), text)), ..Sources::default() };
    let settings = Settings::load(sources).map_err(|errors| bad(errors.to_string()))?;
    if let Some(name) = settings.workers.iter().find(|worker| dns::is_name(worker)) {
        return Err(bad(format!(
            "`{}` is a dns:// name: those belong into the configuration",
            name.id
        )));
    }
    Ok(settings.workers)
}

/// An object, or a list of them: no TOML begins so.
fn is_json(text: &str) -> bool {
    let mut signs = text.chars().filter(|c| !c.is_whitespace());
    match signs.next() {
        Some('{') => true,
        Some('[') => matches!(signs.next(), Some('{' | ']')),
        _ => false,
    }
}

/// `{"workers": [..]}` or the list alone, as TOML.
fn from_json(text: &str) -> Result<String, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
    let value = match value {
        list @ serde_json::Value::Array(_) => serde_json::json!({ "workers": list }),
        other => other,
    };
    let table: toml::Table =
        serde_json::from_value(value).map_err(|e| format!("not of workers: {e}"))?;
    toml::to_string(&table).map_err(|e| e.to_string())
}

/// Its workers as they change, and the task that looks.
pub fn follow(path: PathBuf) -> (Changes, impl Future<Output = ()>) {
    let (changes, stream) = mpsc::channel(1);
    let look = async move {
        let mut seen: Option<Option<Stamp>> = None;
        loop {
            let now = Stamp::of(&path);
            if seen != Some(now) {
                seen = Some(now);
                match read(&path) {
                    Ok(workers) => {
                        tracing::info!(path = %path.display(), workers = workers.len(), "the file of workers was read");
                        if changes.send(Change::Reset(workers)).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::error!(%error, "the file of workers can't be used: what it said before stands");
                        if changes.send(Change::Frozen(Some(error.to_string()))).await.is_err() {
                            return;
                        }
                    }
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    };
    (stream, look)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct File(PathBuf);

    impl File {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("homing-workers-{}-{name}", std::process::id())))
        }

        /// As it should be done.
        fn replace(&self, text: &str) {
            let beside = self.0.with_extension("new");
            std::fs::write(&beside, text).unwrap();
            std::fs::rename(beside, &self.0).unwrap();
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn ids(workers: &[Worker]) -> Vec<&str> {
        workers.iter().map(|w| w.id.as_str()).collect()
    }

    #[test]
    fn toml_and_json_say_the_same() {
        let file = File::new("forms");
        for text in [
            "# two\n[[workers]]\nid = 'a'\nurl = 'http://h:1'\n[[workers]]\nid = 'b'\nurl = 'http://h:2'\n",
            r#"{"workers": [{"id": "a", "url": "http://h:1"}, {"id": "b", "url": "http://h:2"}]}"#,
            r#" [{"id": "a", "url": "http://h:1"}, {"id": "b", "url": "http://h:2"}]"#,
        ] {
            file.replace(text);
            assert_eq!(ids(&read(&file.0).unwrap()), ["a", "b"], "{text}");
        }
        file.replace("[]");
        assert!(read(&file.0).unwrap().is_empty(), "nobody is a fleet, too");
        file.replace(" \n");
        assert!(read(&file.0).unwrap_err().to_string().contains("empty"));
        for (text, says) in [
            ("[[workers]]\nurl = 'http://h:1'\ndp_sise = 2\n", "dp_size"),
            ("[gateway]\nlisten = '127.0.0.1:1'\n", "only [[workers]]"),
            ("{\"workers\": [", "not JSON"),
            ("[[workers]]\nurl = 'dns://h:1'\n", "dns://"),
            ("[[workers]\n", "workers"),
        ] {
            file.replace(text);
            let error = read(&file.0).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("homing-workers"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_bad_file_keeps_the_last_good_one() {
        let file = File::new("watched");
        let (mut changes, look) = follow(file.0.clone());
        let look = tokio::spawn(look);
        file.replace("[[workers]]\nid = 'a'\nurl = 'http://h:1'\n");
        let next = |change| match change {
            Some(Change::Reset(workers)) => ids(&workers).join(","),
            other => panic!("{other:?}"),
        };
        assert_eq!(next(changes.recv().await), "a");
        // It is said that nothing more is known, and why.
        let frozen = |change| match change {
            Some(Change::Frozen(Some(why))) => why,
            other => panic!("{other:?}"),
        };
        file.replace("spoiled");
        assert!(frozen(changes.recv().await).contains("spoiled"));
        std::fs::remove_file(&file.0).unwrap();
        assert!(frozen(changes.recv().await).contains("can't be read"));
        tokio::time::sleep(LOOK * 2).await;
        assert!(changes.try_recv().is_err(), "it was said once");
        file.replace("[[workers]]\nid = 'b'\nurl = 'http://h:2'\n");
        assert_eq!(next(changes.recv().await), "b");
        look.abort();
    }
}
