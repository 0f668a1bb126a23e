// SPDX-License-Identifier: MPL-2.0

//! `xmem serve`

mod picture;

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use hyper::{StatusCode, Uri};
use percent_encoding::percent_decode_str;
use serde_json::Value;
use xmem_core::{BudgetLimit, Delivery, PoolStats};

use crate::Error;
use crate::http::{self, Response, error, response};
use crate::launch::{check_decodable, video_caps};
use crate::pools::{self, Pool, Shared, State};
use picture::{Key, Pictures};

const PAGE: &str = include_str!("page.html");
/// The page is self-contained: it loads nothing from other hosts, and other pages cannot embed it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// How long all requests share one answer of the producers: for the figures, and to decide whether there can be a picture.
const FRESH: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

pub(crate) fn run(listen: SocketAddr) -> Result<(), Error> {
    let site = Site::default();
    http::serve(listen, "pools", "/", move |request| {
        site.answer(request)
            .unwrap_or_else(|reason| error(StatusCode::INTERNAL_SERVER_ERROR, &reason.to_string()))
    })
}

#[derive(Default)]
struct Site {
    pools: Shared,
    pictures: Pictures,
}

impl Site {
    fn answer(&self, request: &Uri) -> Result<Response, Error> {
        let path = percent_decode_str(request.path()).decode_utf8_lossy();
        match path.strip_prefix("/picture/") {
            Some(name) => self.picture(name, request.query()),
            None => match path.as_ref() {
                "/" => {
                    let mut page = response("text/html; charset=utf-8", PAGE);
                    let policy = HeaderValue::from_static(POLICY);
                    page.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
                    Ok(page)
                }
                "/pools.json" => self.pools(),
                _ => Ok(error(StatusCode::NOT_FOUND, "the pools are at /")),
            },
        }
    }

    fn pools(&self) -> Result<Response, Error> {
        let pools = self.pools.get(FRESH.0)?;
        let mut json = pools::as_json(&pools)?;
        for (value, pool) in json.iter_mut().zip(pools.iter()) {
            // Removed because it can be long, for example a picture in the tags.
            value.as_object_mut().map(|value| value.remove("sticky"));
            value["name"] = pool.name.clone().into();
            value["no_picture"] = self
                .is_raw(pool)
                .err()
                .map_or(Value::Null, |error| error.to_string().into());
        }
        Ok(response("application/json", serde_json::to_vec(&json)?))
    }

    /// The newest picture, unless the browser already has it.
    fn picture(&self, name: &str, query: Option<&str>) -> Result<Response, Error> {
        let is_asked_for = |pool: &&Pool| pool.name == name;
        let mut pools = self.pools.get(FRESH.1)?;
        if !pools.iter().any(|pool| is_asked_for(&pool)) {
            pools = self.pools.get(FRESH.0)?;
        }
        let Some(pool) = pools.iter().find(is_asked_for) else {
            let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
            let names = if names.is_empty() {
                pools::no_pools()
            } else {
                format!("there are {}", names.join(", "))
            };
            let reason = format!("there is no pool {name}: {names}");
            return Ok(error(StatusCode::NOT_FOUND, &reason));
        };
        let picture = self
            .is_raw(pool)
            .and_then(|is_raw| self.pictures.ask(&key(pool), is_raw));
        Ok(match picture {
            Err(reason) => error(StatusCode::SERVICE_UNAVAILABLE, &reason.to_string()),
            Ok(Some(picture)) if query != Some(&format!("after={}", picture.number)) => {
                let mut answer = response("image/jpeg", picture.jpeg);
                answer
                    .headers_mut()
                    .insert("picture", picture.number.into());
                answer
            }
            Ok(_) => {
                let mut nothing = Response::default();
                *nothing.status_mut() = StatusCode::NO_CONTENT;
                nothing
            }
        })
    }

    /// Whether the viewer needs no decoder. `Err` is the reason why there is no picture, such as the error of the last viewer. If
    /// the pool has no room for a viewer, this ends the viewer.
    fn is_raw(&self, pool: &Pool) -> Result<bool, Error> {
        let key = key(pool);
        let no_room = pool.stats.as_ref().and_then(no_room);
        if let Some(reason) = &no_room {
            self.pictures.end_viewer(&key, reason);
        }
        let is_raw = is_raw(pool)?;
        match no_room.or_else(|| self.pictures.failure(&key)) {
            Some(reason) => Err(reason.into()),
            None => Ok(is_raw),
        }
    }
}

/// The reason why a viewer would reduce the budgets of the consumers. `None` if it would not.
fn no_room(stats: &PoolStats) -> Option<String> {
    let limit = stats.budget_limit;
    (limit != BudgetLimit::Asked)
        .then(|| format!("it has no free slot for a viewer: raise its {limit}"))
}

/// Identifies a pool until its producer is replaced. The next producer may have another format.
fn key(pool: &Pool) -> Key {
    let producer = pool.stats.as_ref().map_or(0, |stats| stats.pid);
    (pool.name.clone().into(), producer)
}

/// Whether the pool's frames are raw video. `Err` is the reason why there is no picture.
fn is_raw(pool: &Pool) -> Result<bool, Error> {
    let Some(stats) = &pool.stats else {
        return Err(match pool.state {
            State::Stale => "its producer was killed",
            State::NoAccess => "this user may not read it",
            State::OtherVersion => {
                "its producer has another version of xmem: update the older of both"
            }
            State::Live | State::Silent => "its producer does not answer: it is stopped or hangs",
        }
        .into());
    };
    if stats.delivery == Delivery::Lossless {
        return Err("it is lossless, so a viewer could hold up its producer; `xmem snapshot` takes one picture".into());
    }
    // The caps are set with the first frame. A source on demand may need a consumer first.
    let has_begun = stats.published > 0;
    match video_caps(stats) {
        Ok(caps) => check_decodable(&caps).map(|()| caps.is_raw()),
        Err(reason) if has_begun => Err(reason),
        Err(_) => Ok(false),
    }
}
