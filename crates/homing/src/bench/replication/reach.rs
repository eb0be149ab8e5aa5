//! Whether the servers of `--nats` and `--etcd` are there, before anything is measured: a router waits for what it shares
//! over for as long as it takes, and so would a measurement.

use super::join::Over;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// For a connection, and for what NATS says first.
const PATIENCE: Duration = Duration::from_secs(5);
/// What NATS says first is some hundred bytes.
const GREETING_MAX: u64 = 64 << 10;

/// Looks at one of them.
///
/// # Errors
/// What is missing, in words.
pub(super) fn look_at(over: &Over) -> Result<(), String> {
    match over {
        Over::Memory => Ok(()),
        Over::Nats(url) | Over::Bucket(url) => {
            let start = "start it with JetStream (nats-server -js), or leave out --nats";
            let wrong = |what: &str| format!("NATS at {url}: {what}; {start}");
            let stream = connect(url, 4222).map_err(|why| wrong(&why))?;
            let mut greeting = String::new();
            let read = BufReader::new(stream.take(GREETING_MAX)).read_line(&mut greeting);
            let info = match read {
                Ok(_) => greeting.strip_prefix("INFO "),
                Err(_) => None,
            };
            let info = info.and_then(|info| serde_json::from_str::<serde_json::Value>(info).ok());
            match info {
                None => Err(wrong("what listens there is no NATS server")),
                Some(info) if info["jetstream"] != true => Err(wrong("it has no JetStream")),
                Some(_) => Ok(()),
            }
        }
        Over::Etcd(url) => match connect(url, 2379) {
            Ok(_) => Ok(()),
            Err(why) => Err(format!("etcd at {url}: {why}; start it, or leave out --etcd")),
        },
    }
}

/// A connection to where a URL leads.
fn connect(url: &str, port: u16) -> Result<TcpStream, String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.split('/').next().unwrap_or(rest);
    let (host, port) = match place.rsplit_once(':') {
        Some((host, text)) if !text.ends_with(']') => {
            (host, text.parse().map_err(|_| "the port is no number".to_owned())?)
        }
        _ => (place, port),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut why = "the name has no address".to_owned();
    for address in addresses {
        let made = TcpStream::connect_timeout(&address, PATIENCE).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        match made {
            Ok(stream) => return Ok(stream),
            Err(error) => why = format!("it can't be reached: {error}"),
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    /// What is said of a server that greets so.
    fn greeted(greeting: &'static [u8]) -> Result<(), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(greeting).unwrap();
        });
        let said = look_at(&Over::Bucket(url));
        server.join().unwrap();
        said
    }

    #[test]
    fn a_server_that_is_not_there_or_not_the_right_one_is_said_at_once() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let nats = look_at(&Over::Nats(format!("nats://{free}"))).unwrap_err();
        assert!(nats.contains("can't be reached") && nats.contains("nats-server -js"), "{nats}");
        let etcd = look_at(&Over::Etcd(format!("http://{free}/"))).unwrap_err();
        assert!(etcd.contains("can't be reached") && etcd.contains("--etcd"), "{etcd}");
        assert_eq!(greeted(b"INFO {\"version\":\"2.10.0\",\"jetstream\":true} \r\n"), Ok(()));
        let plain = greeted(b"INFO {\"version\":\"2.10.0\"} \r\n").unwrap_err();
        assert!(plain.contains("has no JetStream"), "{plain}");
        let other = greeted(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
        assert!(other.contains("no NATS server"), "{other}");
        assert_eq!(look_at(&Over::Memory), Ok(()));
    }
}
