//! A small HTTP server for one page: few connections, short requests, a time limit for each, so that no client can hold it up.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::sampler::{StopSignal, Worker};

/// Connections at once; further ones are closed.
const MAX_CONNECTIONS: usize = 8;
/// Longest request.
const MAX_REQUEST: usize = 8 << 10;
/// Headers of a request.
const MAX_HEADERS: usize = 64;
/// From the first byte of a request to the last one of its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks for connections, and whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What is served.
pub(super) struct ServedPage {
    /// Its type.
    pub(super) content_type: &'static str,
    /// Its text.
    pub(super) body: String,
}

/// Makes the page for a request with this `Accept` header; an error is answered with status 500.
pub(super) type MakePage = dyn Fn(&str) -> Result<ServedPage, String> + Send + Sync;

/// A server, until it is dropped.
pub(super) struct MetricsServer {
    address: SocketAddr,
    thread: Worker,
}

impl MetricsServer {
    /// Listens on `address` and serves `/metrics`.
    pub(super) fn start(address: SocketAddr, page: Arc<MakePage>) -> io::Result<MetricsServer> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let thread = Worker::spawn("http", move |stop| serve(&listener, &page, stop))?;
        Ok(MetricsServer { address, thread })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it has ended by itself.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

fn serve(listener: &TcpListener, page: &Arc<MakePage>, stop: &StopSignal) {
    let mut connections: Vec<Worker> = Vec::new();
    while !stop.is_set() {
        connections.retain(|connection| !connection.is_finished());
        // An error is one of the connection (ECONNABORTED) or passes (EMFILE).
        let Ok((stream, _)) = listener.accept() else {
            stop.sleep(POLL_INTERVAL);
            continue;
        };
        if connections.len() >= MAX_CONNECTIONS {
            continue;
        }
        let page = Arc::clone(page);
        let answer = move |stop: &StopSignal| {
            // Whoever goes away before the answer has nobody to be told.
            let _ =
                ClientConnection { stream, until: Instant::now() + TIMEOUT, stop }.answer(&*page);
        };
        connections.extend(Worker::spawn("scrape", answer));
    }
}

struct ClientConnection<'a> {
    stream: TcpStream,
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
        let (status, content_type, body) = match &asked {
            RequestTarget::Metrics { accept, .. } => match page(accept) {
                Ok(page) => ("200 OK", page.content_type, page.body),
                Err(why) => ("500 Internal Server Error", PLAIN, format!("{why}\n")),
            },
            RequestTarget::Root => ("200 OK", PLAIN, "memspy exporter: see /metrics\n".to_owned()),
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
        self.stream.shutdown(std::net::Shutdown::Write)
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

    /// Reads or writes once, while there is time.
    fn in_time<T>(
        &mut self,
        mut act: impl FnMut(&mut TcpStream) -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.stop.is_set() {
                return Err(ErrorKind::TimedOut.into());
            }
            // In short pieces, so that memspy's own end is not held up.
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

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum RequestTarget {
    Metrics { accept: String, head: bool },
    Root,
    Refused(&'static str),
}

impl RequestTarget {
    /// What `request` asks for; `None` while it is not all there.
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
        let accepts = parsed.headers.iter().find(|it| it.name.eq_ignore_ascii_case("accept"));
        let accept =
            accepts.map_or_else(String::new, |it| String::from_utf8_lossy(it.value).into_owned());
        Some(match path.split_once('?').map_or(path, |(path, _)| path) {
            "/metrics" => RequestTarget::Metrics { accept, head },
            "/" => RequestTarget::Root,
            _ => RequestTarget::Refused("404 Not Found"),
        })
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
