//! Files of keys and certificates that change under links that are in use.

use super::super::link::Wire;
use super::*;
use crate::settings::{Settings, Sources};
use http::header::{AUTHORIZATION, HeaderMap};

/// A file that goes with the test.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("homing-renew-{}-{name}", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn links(text: &str) -> Links {
    let file = Some(("test.toml".into(), text.to_owned()));
    let settings = Settings::load(Sources { file, ..Sources::default() }).unwrap();
    let links = Links::default();
    settings.workers.iter().for_each(|worker| links.join(worker).unwrap());
    links
}

/// What a worker is shown in a client's place.
fn shown(links: &Links, worker: &str) -> String {
    let mut headers = HeaderMap::new();
    headers.insert(AUTHORIZATION, HeaderValue::from_static("Bearer of-a-client"));
    links.named(worker).unwrap().now.load().authorize(&mut headers);
    headers[AUTHORIZATION].to_str().unwrap().to_owned()
}

/// Which it is: the links keep it, so that no other takes its place.
fn wire(links: &Links, worker: &str) -> Arc<Wire> {
    links.named(worker).unwrap().now.load().wire.clone()
}

#[test]
fn a_new_key_is_shown_by_the_link_that_is_there_and_a_bad_one_changes_nothing() {
    let file = File::new("key", "key-one\n");
    let text = format!(
        "[[workers]]\nid = 'a'\nurl = 'http://h:1'\napi_key_file = {0:?}\n\
         [[workers]]\nid = 'b'\nurl = 'http://h:2'\napi_key_file = {0:?}\n\
         [[workers]]\nid = 'c'\nurl = 'http://h:3'\n",
        file.0
    );
    let links = links(&text);
    let link = links.named("a").unwrap();
    assert_eq!((links.renew(), shown(&links, "a").as_str()), (0, "Bearer key-one"));
    file.write("key-two");
    assert_eq!(links.renew(), 2, "both");
    assert_eq!(
        (shown(&links, "a"), shown(&links, "b")),
        (shown(&links, "b"), "Bearer key-two".into())
    );
    assert_eq!(shown(&links, "c"), "Bearer of-a-client");
    assert!(
        Arc::ptr_eq(&wire(&links, "a"), &wire(&links, "c")),
        "a key makes no connections of its own"
    );
    for bad in ["", "two\nlines", "\u{e9}"] {
        file.write(bad);
        assert_eq!((links.renew(), links.said.lock().len()), (0, 2), "{bad:?}");
        assert_eq!((links.renew(), shown(&links, "a").as_str()), (0, "Bearer key-two"));
    }
    std::fs::remove_file(&file.0).unwrap();
    assert_eq!((links.renew(), shown(&links, "a").as_str()), (0, "Bearer key-two"));
    // What was before is new again; and who holds the link has it.
    file.write("key-two");
    assert_eq!((links.renew(), links.said.lock().len()), (2, 0));
    file.write("key-three");
    assert_eq!(links.renew(), 2);
    assert!(Arc::ptr_eq(&link, &links.named("a").unwrap()));
}

#[test]
fn a_new_ca_makes_new_connections_for_all_who_have_it_and_one_that_is_none_does_not() {
    const CA: &str = include_str!("../../../../testdata/tls/ca.pem");
    let file = File::new("ca", CA);
    let text = format!(
        "[upstream]\nca_file = {:?}\n[[workers]]\nid = 'a'\nurl = 'https://h:1'\n\
         [[workers]]\nid = 'b'\nurl = 'https://h:2'\n[[workers]]\nid = 'c'\nurl = 'http://h:3'\n",
        file.0
    );
    let links = links(&text);
    let before = wire(&links, "a");
    assert!(Arc::ptr_eq(&wire(&links, "b"), &before) && links.renew() == 0);
    file.write("no certificate");
    assert!(links.renew() == 0 && Arc::ptr_eq(&wire(&links, "a"), &before));
    file.write(&format!("{CA}\n{CA}"));
    assert_eq!(links.renew(), 2, "the one in clear has none");
    assert!(Arc::ptr_eq(&wire(&links, "a"), &wire(&links, "b")));
    assert!(!Arc::ptr_eq(&wire(&links, "a"), &before));
    // A worker that comes now shares them.
    links.leave("b");
    assert_eq!(links.renew(), 0);
}
