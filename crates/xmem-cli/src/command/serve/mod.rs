// SPDX-License-Identifier: MPL-2.0

//! `xmem serve`

mod picture;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use percent_encoding::percent_decode_str;
use serde_json::Value;
use xmem_core::PoolStats;

use crate::Error;
use crate::http::{self, Request, Response};
use crate::launch::video_caps;
use crate::pools::{self, Pool, State};
use picture::{Key, Pictures, locked};

const PAGE: &str = include_str!("page.html");
/// The page is self-contained: it loads nothing from other hosts, and other pages cannot embed it.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src blob: data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// How long all requests share one answer of the producers: for the figures, and to decide whether there can be a picture.
const FRESH: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

pub(crate) fn run(listen: SocketAddr) -> Result<(), Error> {
    let site = Site::default();
    http::serve(listen, "pools", "/", move |request| {
        site.answer(request).unwrap_or_else(|error| {
            Response::error("500 Internal Server Error", &error.to_string())
        })
    })
}

type Figures = Arc<Vec<Pool>>;

#[derive(Default)]
struct Site {
    kept: Mutex<Option<(Instant, Figures)>>,
    asking: Mutex<()>,
    pictures: Pictures,
}

impl Site {
    fn answer(&self, request: &Request) -> Result<Response, Error> {
        let path = percent_decode_str(&request.path).decode_utf8_lossy();
        match path.strip_prefix("/picture/") {
            Some(name) => self.picture(name, &request.query),
            None => match path.as_ref() {
                "/" => Ok(Response::new("text/html; charset=utf-8", PAGE.as_bytes())
                    .with("Content-Security-Policy", POLICY)),
                "/pools.json" => self.pools(),
                _ => Ok(Response::error("404 Not Found", "the pools are at /")),
            },
        }
    }

    /// The pools, with answers of the producers that are at most `age` old.
    fn figures(&self, age: Duration) -> Result<Figures, Error> {
        let kept = || {
            let kept = locked(&self.kept).clone();
            kept.filter(|(time, _)| time.elapsed() < age)
                .map(|(_, figures)| figures)
        };
        if let Some(figures) = kept() {
            return Ok(figures);
        }
        // One request queries the producers, which takes a second if a producer is stopped. The other requests wait for its result.
        let _asking = locked(&self.asking);
        if let Some(figures) = kept() {
            return Ok(figures);
        }
        let figures = Arc::new(pools::all()?);
        *locked(&self.kept) = Some((Instant::now(), figures.clone()));
        Ok(figures)
    }

    fn pools(&self) -> Result<Response, Error> {
        let pools = self.figures(FRESH.0)?;
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
        Ok(Response::new(
            "application/json",
            serde_json::to_vec(&json)?,
        ))
    }

    /// The newest picture, unless the browser already has it.
    fn picture(&self, name: &str, query: &str) -> Result<Response, Error> {
        let is_asked_for = |pool: &&Pool| pool.name == name;
        let mut pools = self.figures(FRESH.1)?;
        if !pools.iter().any(|pool| is_asked_for(&pool)) {
            pools = self.figures(FRESH.0)?;
        }
        let Some(pool) = pools.iter().find(is_asked_for) else {
            let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
            let names = if names.is_empty() {
                pools::no_pools()
            } else {
                format!("there are {}", names.join(", "))
            };
            return Ok(Response::error(
                "404 Not Found",
                &format!("there is no pool {name}: {names}"),
            ));
        };
        let picture = self
            .is_raw(pool)
            .and_then(|is_raw| self.pictures.ask(&key(pool), is_raw));
        Ok(match picture {
            Err(reason) => Response::error("503 Service Unavailable", &reason.to_string()),
            Ok(Some(picture)) if query != format!("after={}", picture.number) => {
                Response::new("image/jpeg", picture.jpeg)
                    .with("Picture", &picture.number.to_string())
            }
            Ok(_) => Response::nothing(),
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
    let limit = &stats.budget_limit;
    (!limit.is_empty()).then(|| format!("it has no free slot for a viewer: raise its {limit}"))
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
            State::Live | State::Silent => "its producer does not answer: it is stopped or hangs",
        }
        .into());
    };
    if stats.delivery == "lossless" {
        return Err("it is lossless, so a viewer could hold up its producer; `xmem snapshot` takes one picture".into());
    }
    // The caps are set with the first frame. A source on demand may need a consumer first.
    let has_begun = stats.published > 0;
    match video_caps(stats) {
        Ok(caps) => Ok(caps.is_raw()),
        Err(reason) if has_begun => Err(reason),
        Err(_) => Ok(false),
    }
}
