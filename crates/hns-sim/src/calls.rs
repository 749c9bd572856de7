//! Counters and the log of calls.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hcn::{Function, Guid, HResult};
use serde::{Deserialize, Serialize};

use crate::text::matches;

/// How many calls the log remembers.
const LOG: usize = 1000;

/// One call as the log remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedCall {
    /// Its number since the service began, from 1.
    #[serde(default)]
    pub number: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Which session made it.
    #[serde(default)]
    pub session: u64,
    /// The function's exported name.
    pub call: String,
    /// The object, where the call named one.
    pub id: Option<Guid>,
    /// For `HNSCall`: method and path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// How long it took.
    pub micros: u64,
    /// How it ended.
    pub hresult: HResult,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<String>,
}

/// How often a function was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    pub calls: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// Those of them that a fault hit.
    #[serde(default, rename = "struck")]
    pub hits: u64,
    /// The time all of them took.
    pub micros: u64,
    /// The time the slowest took.
    #[serde(default)]
    pub slowest_micros: u64,
}

/// Which calls of the log are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CallFilter {
    /// Only calls with a higher number.
    pub since: u64,
    /// Only these functions; `*` stands for any text.
    pub call: Option<String>,
    /// Only this object.
    pub id: Option<Guid>,
    /// Only calls that failed.
    pub failed: bool,
    /// At most so many, the latest.
    pub limit: Option<usize>,
}

/// Counters and log.
#[derive(Debug, Default)]
pub struct Calls {
    counters: BTreeMap<Function, Counter>,
    log: VecDeque<LoggedCall>,
    last: u64,
}

/// A call to be noted.
pub struct Noted<'a> {
    pub session: u64,
    pub function: Function,
    pub id: Option<Guid>,
    /// For `HNSCall`: method and path.
    pub path: Option<String>,
    /// How long it took.
    pub took: Duration,
    /// How it ended.
    pub hresult: HResult,
    pub faults: &'a [&'static str],
}

impl Calls {
    /// The number of the next call.
    pub fn begin(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes how call `number` ended.
    pub fn note(&mut self, number: u64, noted: Noted<'_>) {
        let micros = u64::try_from(noted.took.as_micros()).unwrap_or(u64::MAX);
        let counter = self.counters.entry(noted.function).or_default();
        counter.calls += 1;
        counter.failed += u64::from(noted.hresult != HResult::OK);
        counter.hits += u64::from(!noted.faults.is_empty());
        counter.micros += micros;
        counter.slowest_micros = counter.slowest_micros.max(micros);
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        self.log.push_back(LoggedCall {
            number,
            time_ms,
            session: noted.session,
            call: noted.function.to_string(),
            id: noted.id,
            path: noted.path,
            micros,
            hresult: noted.hresult,
            faults: noted.faults.iter().map(|name| (*name).to_owned()).collect(),
        });
    }

    /// How often each function was called.
    pub fn counters(&self) -> BTreeMap<String, Counter> {
        self.counters.iter().map(|(function, counter)| (function.to_string(), *counter)).collect()
    }

    /// Begins to count anew, with an empty log.
    pub fn reset(&mut self) {
        self.counters.clear();
        self.log.clear();
    }

    /// The latest calls that the filter selects, oldest first.
    pub fn select(&self, filter: &CallFilter) -> Vec<&LoggedCall> {
        let selected = |call: &&LoggedCall| {
            call.number > filter.since
                && filter.call.as_ref().is_none_or(|name| matches(name, &call.call))
                && filter.id.is_none_or(|id| call.id == Some(id))
                && !(filter.failed && call.hresult == HResult::OK)
        };
        let mut calls: Vec<_> = self.log.iter().rev().filter(selected).take(filter.limit.unwrap_or(usize::MAX)).collect();
        calls.reverse();
        calls
    }
}
