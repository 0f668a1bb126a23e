// SPDX-License-Identifier: MPL-2.0

//! A small HTTP server: one request per connection, with limits for the number of connections and the time of each.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::format::to_stderr;

/// The limit of connections. Further connections are closed immediately.
const CONNECTIONS: usize = 64;
/// The time limit for reading a request, and for writing a response.
const TIME: Duration = Duration::from_secs(10);
/// The limits of a request's header, in bytes and in lines.
const HEAD: (usize, usize) = (16 << 10, 64);
/// The delay after a connection could not be accepted, for example because there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A GET or HEAD request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) path: String,
    /// The part of the target after the question mark.
    pub(crate) query: String,
    host: String,
}

impl Request {
    /// Whether the Host header is a loopback address or `localhost`.
    fn is_for_localhost(&self) -> bool {
        let name = match self.host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => &self.host,
        };
        let address = name.trim_matches(['[', ']']).parse();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

#[derive(Debug)]
pub(crate) struct Response {
    status: &'static str,
    headers: String,
    body: Arc<[u8]>,
}

impl Response {
    pub(crate) fn new(content_type: &str, body: impl Into<Arc<[u8]>>) -> Self {
        let headers = format!("Content-Type: {content_type}\r\n");
        Self {
            status: "200 OK",
            headers,
            body: body.into(),
        }
    }

    pub(crate) fn error(status: &'static str, reason: &str) -> Self {
        let text = format!("{reason}\n").into_bytes();
        Self {
            status,
            ..Self::new("text/plain; charset=utf-8", text)
        }
    }

    pub(crate) fn nothing() -> Self {
        Self {
            status: "204 No Content",
            headers: String::new(),
            body: Arc::default(),
        }
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }
}

/// Serves requests until the process ends. Prints `what` with the address.
///
/// On a loopback address, only requests whose Host header names this host are answered. Reason: a page of another site can let its
/// own name resolve to this host, and could then read the responses.
pub(crate) fn serve(
    listen: SocketAddr,
    what: &str,
    path: &str,
    answer: impl Fn(&Request) -> Response + Send + Sync + 'static,
) -> Result<(), Error> {
    let listener = TcpListener::bind(listen).map_err(|error| {
        format!("cannot listen on {listen}: {error}. Choose another port with --listen")
    })?;
    to_stderr(format_args!(
        "{what} at http://{}{path}",
        listener.local_addr()?
    ));
    let is_loopback = listen.ip().is_loopback();
    let answer = Arc::new(move |request: &Request| {
        if is_loopback && !request.is_for_localhost() {
            return Response::error(
                "403 Forbidden",
                "ask for 127.0.0.1 or localhost, or start with another --listen",
            );
        }
        answer(request)
    });
    loop {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        // The thread of each connection has a clone.
        if Arc::strong_count(&answer) > CONNECTIONS {
            continue;
        }
        let answer = answer.clone();
        // Errors of one connection are ignored. If no thread can be created, the connection is closed.
        let _ = thread::Builder::new().spawn(move || handle_connection(&stream, &*answer));
    }
}

fn handle_connection(stream: &TcpStream, answer: impl Fn(&Request) -> Response) -> io::Result<()> {
    let (mut head, mut is_head) = (Vec::new(), false);
    let response = match read(stream, &mut head)? {
        Ok((method, request)) => {
            is_head = method == "HEAD";
            match method.as_str() {
                "GET" | "HEAD" => answer(&request),
                _ => {
                    Response::error("405 Method Not Allowed", "GET only").with("Allow", "GET, HEAD")
                }
            }
        }
        Err(reason) => Response::error("400 Bad Request", &reason),
    };
    let mut stream = Timed {
        stream,
        end: Instant::now() + TIME,
    };
    write!(
        stream,
        "HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n\r\n",
        response.status,
        response.headers,
        response.body.len()
    )?;
    if !is_head {
        stream.write_all(&response.body)?;
    }
    // Read the remaining bytes: closing a socket with unread bytes would reset the connection before the response arrives.
    stream.stream.shutdown(Shutdown::Write)?;
    io::copy(&mut stream.take(HEAD.0 as u64), &mut io::sink())?;
    Ok(())
}

/// Reads a request. The inner `Err` describes an invalid request.
fn read(stream: &TcpStream, head: &mut Vec<u8>) -> io::Result<Result<(String, Request), String>> {
    let mut stream = Timed {
        stream,
        end: Instant::now() + TIME,
    };
    loop {
        let mut part = [0; 4096];
        let len = stream.read(&mut part)?;
        if len == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&part[..len]);
        let mut headers = [httparse::EMPTY_HEADER; HEAD.1];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(head) {
            Ok(httparse::Status::Complete(_)) => return Ok(parse_request(&request)),
            Ok(httparse::Status::Partial) if head.len() < HEAD.0 => {}
            Ok(httparse::Status::Partial) => return Ok(Err("the request is too long".to_owned())),
            Err(error) => return Ok(Err(error.to_string())),
        }
    }
}

fn parse_request(request: &httparse::Request<'_, '_>) -> Result<(String, Request), String> {
    let (path, query) = request
        .path
        .map_or(("", ""), |it| it.split_once('?').unwrap_or((it, "")));
    let mut hosts = request
        .headers
        .iter()
        .filter(|it| it.name.eq_ignore_ascii_case("host"));
    let host = hosts.next().map_or(String::new(), |it| {
        String::from_utf8_lossy(it.value).into_owned()
    });
    if hosts.next().is_some() {
        return Err("the request has two Host headers".to_owned());
    }
    let request_line = Request {
        path: path.to_owned(),
        query: query.to_owned(),
        host,
    };
    Ok((request.method.unwrap_or_default().to_owned(), request_line))
}

/// A connection with a deadline for all reads or writes. A timeout of each call would let a slow client keep the connection.
struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(Some(left))
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_are_not_this_host() {
        let is_local = |host: &str| {
            let (path, query, host) = (String::new(), String::new(), host.to_owned());
            Request { path, query, host }.is_for_localhost()
        };
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:8080",
        ] {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "192.0.2.7:80",
            "127.0.0.1.evil.example",
            "[::2]:80",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
