//! A small HTTP server with limits, so that no client can block it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sampler::{StopSignal, Worker};

/// Another connection closes the oldest, so slow clients keep nobody out.
const MAX_CONNECTIONS: usize = 8;
const MAX_REQUEST: usize = 8 << 10;
const MAX_HEADERS: usize = 64;
/// From a request's first byte to its answer's last.
const TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct ServedPage {
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

/// Makes the page for this `Accept` header; an error becomes status 500.
pub(super) type MakePage = dyn Fn(&str) -> Result<ServedPage, String> + Send + Sync;

/// Runs until dropped.
pub(super) struct MetricsServer {
    address: SocketAddr,
    thread: Worker,
}

impl MetricsServer {
    /// Serves `/metrics` to requests for its own address or one of `hosts`.
    pub(super) fn start(
        address: SocketAddr,
        hosts: Vec<String>,
        page: Arc<MakePage>,
    ) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let thread =
            Worker::spawn("http", move |stop| serve(&listener, &hosts.into(), &page, stop))?;
        Ok(MetricsServer { address, thread })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn serve(listener: &TcpListener, hosts: &Arc<[String]>, page: &Arc<MakePage>, stop: &StopSignal) {
    // Oldest first, each with a handle that ends its reads and writes.
    let mut connections: VecDeque<(TcpStream, Worker)> = VecDeque::new();
    while !stop.is_set() {
        connections.retain(|(_, connection)| !connection.is_finished());
        // The connection's error (ECONNABORTED), or a temporary one (EMFILE).
        let Ok((stream, _)) = listener.accept() else {
            stop.sleep(POLL_INTERVAL);
            continue;
        };
        if connections.len() >= MAX_CONNECTIONS
            && let Some((oldest, worker)) = connections.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
            drop(worker);
        }
        let Ok(handle) = stream.try_clone() else { continue };
        let (page, hosts) = (Arc::clone(page), Arc::clone(hosts));
        let answer = move |stop: &StopSignal| {
            // A client that has gone gets no error.
            let until = Instant::now() + TIMEOUT;
            let _ = ClientConnection { stream, hosts: &hosts, until, stop }.answer(&*page);
        };
        connections.extend(Worker::spawn("scrape", answer).map(|worker| (handle, worker)));
    }
}

struct ClientConnection<'a> {
    stream: TcpStream,
    /// Host names allowed besides the address.
    hosts: &'a [String],
    until: Instant,
    stop: &'a StopSignal,
}

impl ClientConnection<'_> {
    fn answer(&mut self, page: &MakePage) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        let mut request = Vec::with_capacity(1024);
        let asked = loop {
            if let Some(asked) = RequestTarget::parse(&request) {
                break asked;
            }
            let mut more = [0; 1024];
            let read = self.in_time(|stream| stream.read(&mut more))?;
            if read == 0 {
                return Ok(());
            }
            request.extend_from_slice(&more[..read]);
        };
        let own = self.stream.local_addr()?.ip();
        let (status, content_type, body) = match &asked {
            RequestTarget::Metrics { host, .. } | RequestTarget::Root { host }
                if !is_own(host, own, self.hosts) =>
            {
                ("403 Forbidden", PLAIN, OTHER_HOST.to_owned())
            }
            RequestTarget::Metrics { accept, .. } => match page(accept) {
                Ok(page) => ("200 OK", page.content_type, page.body),
                Err(why) => ("500 Internal Server Error", PLAIN, format!("{why}\n")),
            },
            RequestTarget::Root { .. } => {
                ("200 OK", PLAIN, "memspy exporter: see /metrics\n".to_owned())
            }
            RequestTarget::Refused(status) => (*status, PLAIN, format!("{status}\n")),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        self.send(head.as_bytes())?;
        if !matches!(asked, RequestTarget::Metrics { head: true, .. }) {
            self.send(body.as_bytes())?;
        }
        self.stream.shutdown(Shutdown::Write)
    }

    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.in_time(|stream| stream.write(bytes))?;
            if sent == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    fn in_time<T>(
        &mut self,
        mut act: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.is_set() {
                return Err(ErrorKind::TimedOut.into());
            }
            // Short waits, so that memspy can end meanwhile.
            let piece = Some(left.min(Duration::from_millis(200)));
            self.stream.set_read_timeout(piece)?;
            self.stream.set_write_timeout(piece)?;
            match act(&mut self.stream) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                done => return done,
            }
        }
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";
/// Quotes nothing of the request: a foreign page may have sent it (DNS rebinding).
const OTHER_HOST: &str = "this exporter answers to its own address only; \
    to let it answer to the name in the request, start it with --allow-host NAME\n";

/// A browser page rebound to this exporter's address sends its own name as `Host`.
fn is_own(host: &str, own: IpAddr, allowed: &[String]) -> bool {
    let bare = match host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        Some((address, _port)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    let is_address = bare.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical() == own.to_canonical());
    let is_local = own.to_canonical().is_loopback() && bare.eq_ignore_ascii_case("localhost");
    let is_allowed = allowed.iter().any(|name| name.eq_ignore_ascii_case(bare));
    is_address || is_local || is_allowed
}

#[derive(Debug, PartialEq, Eq)]
enum RequestTarget {
    Metrics { host: String, accept: String, head: bool },
    Root { host: String },
    Refused(&'static str),
}

impl RequestTarget {
    /// `None` while it is incomplete.
    fn parse(request: &[u8]) -> Option<RequestTarget> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        match parsed.parse(request) {
            Ok(httparse::Status::Partial) if request.len() < MAX_REQUEST => return None,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Some(RequestTarget::Refused("431 Request Header Fields Too Large"));
            }
            Err(_) => return Some(RequestTarget::Refused("400 Bad Request")),
            Ok(httparse::Status::Complete(_)) => {}
        }
        let head = match parsed.method {
            Some("GET") => false,
            Some("HEAD") => true,
            _ => return Some(RequestTarget::Refused("405 Method Not Allowed")),
        };
        let path = parsed.path.unwrap_or_default();
        let header = |name: &str| {
            let found = parsed.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
            found.map_or_else(String::new, |it| String::from_utf8_lossy(it.value).into_owned())
        };
        let (host, accept) = (header("host"), header("accept"));
        Some(match path.split_once('?').map_or(path, |(path, _)| path) {
            "/metrics" => RequestTarget::Metrics { host, accept, head },
            "/" => RequestTarget::Root { host },
            _ => RequestTarget::Refused("404 Not Found"),
        })
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
