// SPDX-License-Identifier: MPL-2.0

//! The pools of the runtime directory, with their state and their figures.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use serde_json::Value;
use xmem_core::discovery::printable;
use xmem_core::{ConnectError, PoolStats};

use crate::Error;
use crate::caps::Caps;
use crate::format::duration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum State {
    Live,
    /// The producer does not answer.
    Silent,
    /// This user has no access to the pool.
    NoAccess,
    /// The producer uses another version of the shared format.
    OtherVersion,
    /// The producer was killed. Its files are harmless: the pool's next producer replaces them, and `xmem clean` removes them.
    Stale,
}

impl State {
    /// The state of a pool, from the answer to a query.
    pub(crate) fn of(answer: &Result<PoolStats, ConnectError>) -> Self {
        match answer {
            Ok(_) => Self::Live,
            Err(ConnectError::Denied { .. } | ConnectError::Refused { .. }) => Self::NoAccess,
            Err(ConnectError::OtherVersion { .. }) => Self::OtherVersion,
            Err(ConnectError::NotFound { .. }) => Self::Stale,
            Err(_) => Self::Silent,
        }
    }

    /// The text in tables.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Silent => "silent",
            Self::NoAccess => "no access",
            Self::OtherVersion => "other version",
            Self::Stale => "stale",
        }
    }
}

/// A pool of the runtime directory.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    pub(crate) state: State,
    /// `None`: there is no producer, or it does not answer.
    pub(crate) stats: Option<PoolStats>,
}

impl Pool {
    /// `answer` is `None` if the pool was not queried because it has no producer.
    fn new(name: String, path: PathBuf, answer: Option<Result<PoolStats, ConnectError>>) -> Self {
        Self {
            name,
            path,
            state: answer.as_ref().map_or(State::Stale, State::of),
            stats: answer.and_then(Result::ok),
        }
    }
}

/// The pools of the runtime directory, for several threads.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    kept: Mutex<Option<(Instant, Arc<Vec<Pool>>)>>,
    asking: Mutex<()>,
}

impl Shared {
    /// The pools, with answers of the producers that are at most `age` old.
    pub(crate) fn get(&self, age: Duration) -> Result<Arc<Vec<Pool>>, Error> {
        let kept = || {
            let kept = locked(&self.kept).clone();
            kept.filter(|(time, _)| time.elapsed() < age)
                .map(|(_, pools)| pools)
        };
        if let Some(pools) = kept() {
            return Ok(pools);
        }
        // One thread queries the producers, which takes a second if a producer is stopped. The other threads wait for its result.
        let _asking = locked(&self.asking);
        if let Some(pools) = kept() {
            return Ok(pools);
        }
        let pools = Arc::new(all()?);
        *locked(&self.kept) = Some((Instant::now(), pools.clone()));
        Ok(pools)
    }
}

/// Ignores poisoning: the guarded data is consistent after each statement.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All pools of the runtime directory.
pub(crate) fn all() -> Result<Vec<Pool>, Error> {
    let mut pools = xmem_core::discovery::read_pools()?;
    pools.retain(|pool| name_of(&pool.path).is_some());
    let live = pools.iter().filter(|pool| pool.live);
    let live: Vec<_> = live.map(|pool| &pool.name).collect();
    let mut answers = xmem_core::discovery::query_all(&live).into_iter();
    let pools = pools.into_iter().map(|pool| {
        let answer = if pool.live { answers.next() } else { None };
        Pool::new(pool.name, pool.path, answer)
    });
    Ok(pools.collect())
}

/// The name of the pool with this socket in the runtime directory. `None` if the file cannot be a pool's socket.
pub(crate) fn name_of(socket: &Path) -> Option<&str> {
    let name = socket.file_name()?.to_str()?.strip_suffix(".sock")?;
    let leads_there = xmem_core::discovery::socket_path(name).is_ok_and(|path| path == socket);
    leads_there.then_some(name)
}

/// Queries the pools with these names.
pub(crate) fn ask(names: Vec<String>) -> Vec<Pool> {
    let answers = xmem_core::discovery::query_all(&names);
    let pools = names.into_iter().zip(answers).map(|(name, answer)| {
        let path = xmem_core::discovery::socket_path(&name).unwrap_or_default();
        Pool::new(name, path, Some(answer))
    });
    pools.collect()
}

/// The figures of each pool as `show` prints them, with its state.
pub(crate) fn as_json(pools: &[Pool]) -> Result<Vec<Value>, Error> {
    let as_json = |pool: &Pool| {
        let mut value = match &pool.stats {
            Some(stats) => stats_json(stats)?,
            None => serde_json::json!({ "pool": pool.name }),
        };
        value["state"] = serde_json::to_value(pool.state)?;
        Ok(value)
    };
    pools.iter().map(as_json).collect()
}

/// The text for an empty list. The directory may not exist, because the first producer creates it.
pub(crate) fn no_pools() -> String {
    let dir = xmem_core::discovery::runtime_dir();
    let none = if dir.exists() {
        ""
    } else {
        ", which does not exist yet"
    };
    format!("no pools in {}{none}", dir.display())
}

/// The description of a pool of buffers by number.
pub(crate) fn buffers_of(writers: usize) -> String {
    let e = if writers == 1 { "" } else { "es" };
    format!("buffers of {writers} process{e}")
}

/// The figures as JSON, under their names in the core. Adds the time of the query and the format. The sticky state is an object by
/// key.
pub(crate) fn stats_json(stats: &PoolStats) -> Result<Value, Error> {
    let mut json = serde_json::to_value(stats)?;
    json["time"] = unix_time().into();
    json["format"] = caps_summary(stats).into();
    json["sticky"] = stats
        .sticky
        .iter()
        .map(|(key, value)| (key.clone(), Value::from(unquoted(value))))
        .collect();
    Ok(json)
}

/// Seconds since 1970.
fn unix_time() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// A short description of the pool's caps. `None` if it has none.
pub(crate) fn caps_summary(stats: &PoolStats) -> Option<String> {
    Caps::of(stats).map(|caps| caps.summary())
}

/// The line with the most important figures.
pub(crate) fn headline(stats: &PoolStats) -> String {
    let format = caps_summary(stats).map_or_else(String::new, |format| format + ", ");
    let end = if stats.eos { ", at its end" } else { "" };
    printable(&format!(
        "{}: {format}{}{end}, up {}, {:.1} fps",
        stats.pool,
        stats.delivery,
        duration(stats.up_ns),
        stats.fps
    ))
}

/// Removes the quotes that GStreamer puts around some values, such as segments.
pub(crate) fn unquoted(text: &str) -> String {
    let inner = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    let Some(inner) = inner else {
        return text.to_owned();
    };
    let mut chars = inner.chars();
    std::iter::from_fn(|| match chars.next()? {
        '\\' => chars.next(),
        other => Some(other),
    })
    .collect()
}
