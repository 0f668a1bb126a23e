// SPDX-License-Identifier: MPL-2.0

//! An HTTP server for browsers and programs of this host: one request per connection, with limits for the number of connections,
//! the size of a request, and the time of each connection.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::format::to_stderr;
use crate::tool::end_as_first_process;

/// The limit of connections. Further connections are closed immediately.
const CONNECTIONS: usize = 64;
/// The time limits for reading a request, and for the whole connection.
const TIME: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));
/// The limits of a request's header, in bytes and in lines.
const HEAD: (usize, usize) = (16 << 10, 64);
/// The delay after a connection could not be accepted, for example because there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) type Response = hyper::Response<Full<Bytes>>;

/// A response with a body of this type.
pub(crate) fn response(content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

pub(crate) fn error(status: StatusCode, reason: &str) -> Response {
    let mut response = response("text/plain; charset=utf-8", format!("{reason}\n"));
    *response.status_mut() = status;
    response
}

/// Serves requests until the process ends. Prints `what` with the address, whose path is `path`.
///
/// Pages of other sites can send requests from a browser of this host. They could open cameras, although they cannot read the
/// responses. So they may only lead to `path`. A page can also let its own name resolve to this host, and could then read the
/// responses. So on a loopback address only requests whose Host header names this host are answered.
pub(crate) fn serve(
    listen: SocketAddr,
    what: &str,
    path: &'static str,
    answer: impl Fn(&Uri) -> Response + Send + Sync + 'static,
) -> Result<(), Error> {
    let is_loopback = listen.ip().to_canonical().is_loopback();
    let answer = move |request: &Request<_>| match refusal(request, is_loopback, path) {
        Some(refused) => refused,
        None => answer(request.uri()),
    };
    end_as_first_process()?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(CONNECTIONS)
        .build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind(listen).await.map_err(|error| {
            format!("cannot listen on {listen}: {error}. Choose another port with --listen")
        })?;
        let address = listener.local_addr()?;
        to_stderr(format_args!("{what} at http://{address}{path}"));
        if !is_loopback {
            to_stderr(
                "every host that reaches this address can read them, and so can web pages in browsers of these hosts",
            );
        }
        accept(&listener, Arc::new(answer)).await
    })
}

async fn accept(
    listener: &TcpListener,
    answer: Arc<impl Fn(&Request<()>) -> Response + Send + Sync + 'static>,
) -> Result<(), Error> {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            // Errors of one connection are ignored.
            let _ = timeout(TIME.1, handle_connection(stream, answer)).await;
            drop(place);
        });
    }
}

async fn handle_connection(
    stream: TcpStream,
    answer: Arc<impl Fn(&Request<()>) -> Response + Send + Sync + 'static>,
) -> hyper::Result<()> {
    let service = service_fn(|request: Request<hyper::body::Incoming>| {
        let answer = answer.clone();
        async move {
            let request = request.map(drop);
            // It queries producers, and waits for them.
            let answered = spawn_blocking(move || answer(&request)).await;
            let failed = |_| error(StatusCode::INTERNAL_SERVER_ERROR, "this is a bug of xmem");
            Ok::<_, Infallible>(with_common_headers(answered.unwrap_or_else(failed)))
        }
    });
    http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(TIME.0)
        .max_buf_size(HEAD.0)
        .max_headers(HEAD.1)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn with_common_headers(mut response: Response) -> Response {
    let resource_policy = HeaderName::from_static("cross-origin-resource-policy");
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (resource_policy, "same-origin"),
    ] {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The response to a request that is not answered.
fn refusal(request: &Request<()>, is_loopback: bool, path: &str) -> Option<Response> {
    let forbidden = |reason| Some(error(StatusCode::FORBIDDEN, reason));
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = error(StatusCode::METHOD_NOT_ALLOWED, "GET only");
        refused
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(refused);
    }
    if is_loopback && !is_for_localhost(request.headers()) {
        return forbidden("ask for 127.0.0.1 or localhost, or start with another --listen");
    }
    if request.uri().path() != path && is_of_another_site(request.headers()) {
        return forbidden("another site asks for this");
    }
    None
}

/// Whether there is one Host header, with a loopback address or `localhost`.
fn is_for_localhost(headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return false;
    };
    let host = host.to_str().unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_matches(['[', ']']).parse();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
}

/// Whether a browser sent the request for a page of another site. Browsers set this header, and pages cannot. Other programs do not
/// send it.
fn is_of_another_site(headers: &HeaderMap) -> bool {
    let mut sites = headers.get_all("sec-fetch-site").iter();
    sites.any(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(headers: &[(&'static str, &str)], path: &str) -> u16 {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let refused = refusal(&request.body(()).unwrap(), true, "/");
        refused.map_or(200, |refused| refused.status().as_u16())
    }

    #[test]
    fn foreign_names_are_not_this_host() {
        for host in [
            "localhost",
            "LocalHost:8080",
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:8080",
            "[::ffff:127.0.0.1]:8080",
        ] {
            assert_eq!(status(&[("host", host)], "/"), 200, "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "192.0.2.7:80",
            "127.0.0.1.evil.example",
            "[::2]:80",
            "[::ffff:192.0.2.7]:80",
        ] {
            assert_eq!(status(&[("host", host)], "/"), 403, "{host}");
        }
        let two = [("host", "localhost"), ("host", "localhost")];
        assert_eq!(status(&two, "/"), 403);
        assert_eq!(status(&[], "/"), 403);
    }

    #[test]
    fn pages_of_other_sites_only_lead_to_the_page() {
        let from = |site, path| {
            let headers = [("host", "localhost"), ("sec-fetch-site", site)];
            status(&headers, path)
        };
        for site in ["cross-site", "same-site", "whatever"] {
            assert_eq!(from(site, "/picture/cam0"), 403, "{site}");
            assert_eq!(from(site, "/pools.json"), 403, "{site}");
            assert_eq!(from(site, "/"), 200, "{site}");
        }
        for site in ["same-origin", "none"] {
            assert_eq!(from(site, "/picture/cam0"), 200, "{site}");
        }
    }
}
