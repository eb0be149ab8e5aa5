//! What is written is what a reader needs; nothing of others is touched; what can't be written is counted.

use super::file::{Flushed, RecordError, TraceFile};
use super::lines::Compressor;
use super::{Recorded, Recorder};
use homing_core::hash::{HashSpace, Prompt};
use homing_core::ids::SessionDigest;
use homing_core::time::Time;
use homing_wire::trace::{DIGITS, Header, Line, SCHEMA, hash};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

/// A folder of the test's own, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("homing-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("trace.jsonl")
    }

    fn lines(&self) -> (Header, Vec<Line>) {
        let text = fs::read_to_string(self.file()).unwrap();
        assert!(text.ends_with('\n'), "{text:?}");
        let mut lines = text.lines();
        let header = serde_json::from_str(lines.next().unwrap()).unwrap();
        (header, lines.map(|line| serde_json::from_str(line).unwrap()).collect())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tokens(n: u32) -> Prompt {
    Prompt::from_tokens(&(0..n).collect::<Vec<_>>(), 16, HashSpace::default())
}

fn text(bytes: &[u8]) -> Prompt {
    Prompt::from_text(&[bytes], HashSpace::default())
}

/// So many milliseconds after the beginning, which is at 1,000 ms.
fn request(ms: u64, prompt: Prompt) -> Recorded {
    let session = Some(SessionDigest(7));
    Recorded { came: Time::from_micros((1000 + ms) * 1000), session, prompt, output_tokens: 3 }
}

fn write(file: &mut TraceFile, compressor: &mut Compressor, requests: Vec<Recorded>) -> Flushed {
    for request in &requests {
        compressor.add(request, file);
    }
    file.flush()
}

/// The whole chain of a line, as a reader makes it of the earlier ones.
fn chains(lines: &[Line]) -> Vec<Vec<u64>> {
    let mut all: Vec<Vec<u64>> = Vec::new();
    for line in lines {
        let mut chain = match line.after.as_ref().map(|after| hash(after.as_bytes()).unwrap()) {
            None => Vec::new(),
            Some(last) => {
                let at = |c: &Vec<u64>| Some(c[..=c.iter().position(|h| *h == last)?].to_vec());
                all.iter().find_map(at).expect("an earlier line has it")
            }
        };
        chain.extend(line.blocks.as_bytes().chunks(DIGITS).map(|d| hash(d).unwrap()));
        all.push(chain);
    }
    all
}

#[test]
fn a_next_turn_costs_what_is_new_and_the_chains_come_back() {
    let folder = Folder::new("turns");
    let mut file = TraceFile::open(&folder.file(), 1000).unwrap();
    let mut compressor = Compressor::new(128);
    let prompts = [tokens(40), tokens(100), tokens(100), tokens(9), text(&[b'a'; 1200])];
    let requests = prompts.iter().zip([0, 5, 6, 7, 8]).map(|(p, ms)| request(ms, p.clone()));
    let flushed = write(&mut file, &mut compressor, requests.collect());
    assert_eq!(flushed, Flushed { written: 5, lost: 0 });
    let (header, lines) = folder.lines();
    assert_eq!((&*header.schema, header.block_size, header.began_ms), (SCHEMA, 16, Some(1000)));
    let want: Vec<Vec<u64>> =
        prompts.iter().map(|p| p.chain.iter().map(|h| h.0).collect()).collect();
    assert_eq!(chains(&lines), want);
    let new: Vec<_> = lines.iter().map(|l| l.blocks.len() / DIGITS).collect();
    assert_eq!(new, [2, 4, 0, 0, 2], "the second turn repeats nothing of the first");
    let sizes: Vec<_> = lines.iter().map(|l| l.block_size).collect();
    assert_eq!(sizes, [None, None, None, None, Some(128)]);
    assert_eq!(lines[1].t_ms, 5.0);
    assert_eq!(lines[4].prompt_tokens, 300);
    assert_eq!(lines[0].session.as_deref(), Some("0000000000000007"));
}

#[test]
fn it_is_private_and_gone_on_with() {
    let folder = Folder::new("again");
    let mut file = TraceFile::open(&folder.file(), 1000).unwrap();
    assert_eq!(fs::metadata(folder.file()).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(TraceFile::open(&folder.file(), 0), Err(RecordError::Busy(_))));
    write(&mut file, &mut Compressor::new(16), vec![request(1, tokens(40))]);
    drop(file);
    // What a killed writer has left of a line is no line.
    let mut torn = fs::OpenOptions::new().append(true).open(folder.file()).unwrap();
    torn.write_all(b"{\"t_ms\":3,\"prom").unwrap();
    let mut file = TraceFile::open(&folder.file(), 9_000_000).unwrap();
    write(&mut file, &mut Compressor::new(128), vec![request(10, tokens(80))]);
    let (header, lines) = folder.lines();
    assert_eq!((header.block_size, header.began_ms), (16, Some(1000)));
    assert_eq!(lines.iter().map(|l| l.t_ms).collect::<Vec<_>>(), [1.0, 10.0], "one time for all");
    assert_eq!(lines[1].after, None, "another process remembers nothing");
}

#[test]
fn what_is_no_trace_of_ours_is_left_alone() {
    let folder = Folder::new("foreign");
    for there in [
        "hello\n",
        "{\"a\":1}\n",
        "no end",
        "{\"schema\":\"homing.trace.v9\",\"block_size\":16,\"began_ms\":1}\n",
        // Of a tool that doesn't say when it began: nobody can go on with that.
        "{\"schema\":\"homing.trace.v1\",\"block_size\":16}\n",
        "{\"schema\":\"homing.trace.v1\",\"block_size\":0,\"began_ms\":1}\n",
    ] {
        fs::write(folder.file(), there).unwrap();
        let opened = TraceFile::open(&folder.file(), 1000);
        assert!(matches!(opened, Err(RecordError::Foreign(_))), "{there}");
        assert_eq!(fs::read_to_string(folder.file()).unwrap(), there);
    }
    assert!(matches!(TraceFile::open(&folder.0, 1), Err(RecordError::Foreign(_))), "a folder");
    let nowhere = TraceFile::open(&folder.0.join("no/where"), 1);
    assert!(matches!(nowhere, Err(RecordError::Io { .. })));
}

#[test]
fn lines_that_could_not_be_written_are_counted_and_no_later_one_needs_them() {
    let folder = Folder::new("full");
    let mut file = TraceFile::open(&folder.file(), 1000).unwrap();
    let mut compressor = Compressor::new(16);
    write(&mut file, &mut compressor, vec![request(1, tokens(40))]);
    // What the system refuses is not written, whatever its reason.
    let good = file.replace(fs::File::open(folder.file()).unwrap());
    let failed = write(&mut file, &mut compressor, vec![request(2, tokens(80))]);
    assert_eq!(failed, Flushed { written: 0, lost: 1 });
    compressor.forget();
    file.replace(good);
    let flushed = write(&mut file, &mut compressor, vec![request(3, tokens(100))]);
    assert_eq!(flushed, Flushed { written: 1, lost: 0 });
    let (_, lines) = folder.lines();
    assert_eq!(lines.iter().map(|l| l.t_ms).collect::<Vec<_>>(), [1.0, 3.0]);
    assert_eq!(chains(&lines)[1].len(), 6);
}

#[test]
fn a_recorder_writes_all_that_it_was_given_before_it_is_closed() {
    let folder = Folder::new("thread");
    let recorder = Recorder::start(&folder.file(), true, Time::from_micros(1_000_000)).unwrap();
    for i in 0..1000 {
        recorder.record(request(i, tokens(17 + 16 * (i as u32 % 50))));
    }
    recorder.close();
    assert_eq!(recorder.counts(), (1000, 0));
    recorder.record(request(1, tokens(40)));
    assert_eq!(recorder.counts(), (1000, 1), "after the end");
    recorder.close();
    let (header, lines) = folder.lines();
    assert_eq!((header.block_size, lines.len()), (16, 1000));
    chains(&lines);
}
