//! Admin protocol: faults, latencies, counters, the call log, switches, restarts.
//!
//! Frames as in `hcn::remote`: `{"id","call","args"}` → `{"id","error","result"}`, on the admin socket alone. [`AdminClient`] is the typed
//! client, and its methods are the list of calls.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hcn::remote::{Address, Stream, read_frame, write_frame};
use hcn::{Guid, HnsVersion};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use crate::switches::Shown;
use crate::{Simulator, vfp};

pub use crate::calls::{CallFilter, Counter, LoggedCall};
pub use crate::faults::{ActiveFault, Count, Fault, FaultKind, Hits, KINDS, RestartMode, Value, is_function};
pub use crate::latency::Latency;

/// What the service is and holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: HnsVersion,
    /// How many objects of each kind there are.
    pub objects: BTreeMap<String, usize>,
    /// How often it restarted since the process began.
    pub restarts: u64,
    /// Whether it answers.
    pub running: bool,
    /// What every draw of faults and latencies follows from.
    pub seed: u64,
    /// How long calls take.
    pub latency: Latency,
    /// How many faults are set.
    pub faults: usize,
}

/// How the service is to restart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Restart {
    /// How it ends.
    pub mode: RestartMode,
    /// How long it is down.
    pub away_ms: u64,
    /// Whether it forgets everything (HNS.data deleted).
    pub wipe: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Request {
    id: u64,
    call: String,
    args: Json,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    result: Json,
}

fn given<T: DeserializeOwned>(args: Json, what: &str) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("that is no {what}: {error}"))
}

fn answer(simulator: &Simulator, call: &str, args: Json) -> Result<Json, String> {
    match call {
        "status" => Ok(json!(simulator.status())),
        "counters" => Ok(json!(simulator.controls().calls.counters())),
        "reset-counters" => {
            simulator.controls().calls.reset();
            Ok(Json::Null)
        }
        "calls" => {
            let filter: CallFilter = if args.is_null() { CallFilter::default() } else { given(args, "filter of calls")? };
            Ok(json!(simulator.controls().calls.select(&filter)))
        }
        "faults" => Ok(json!(simulator.controls().faults.list())),
        "add-fault" => simulator.add_fault(given(args, "fault")?).map(|number| json!(number)),
        "remove-fault" => {
            let number: u32 = given(args, "number of a fault")?;
            if simulator.remove_fault(number) { Ok(Json::Null) } else { Err(format!("there is no fault number {number}")) }
        }
        "clear-faults" => {
            simulator.clear_faults();
            Ok(Json::Null)
        }
        "latency" => Ok(json!(simulator.controls().latency)),
        "set-latency" => {
            simulator.controls().latency = given(args, "latency")?;
            Ok(Json::Null)
        }
        "switches" => Ok(json!(simulator.switches().list())),
        "set-switch" => {
            let text: String = given(args, "switch")?;
            simulator.set_switch(&text).map(|()| Json::Null)
        }
        "vfp" => {
            let endpoint: Option<Guid> = given(args, "endpoint's GUID")?;
            let dump = vfp::dump(&simulator.state(), endpoint);
            let gone = || format!("no switch with a packet processor has a port of endpoint {}", endpoint.unwrap_or_default());
            dump.map(|dump| json!(dump)).ok_or_else(gone)
        }
        "restart" => simulator.restart(given(args, "restart")?).map(|()| Json::Null),
        other => Err(format!(
            "there is no admin call {other:?}: use status, counters, reset-counters, calls, faults, add-fault, remove-fault, clear-faults, latency, \
             set-latency, switches, set-switch, vfp or restart"
        )),
    }
}

/// Serves one connection of the admin socket.
pub fn serve(mut stream: Stream, simulator: &Simulator) -> io::Result<()> {
    while let Some(Request { id, call, args }) = read_frame(&mut stream)? {
        let answer = match answer(simulator, &call, args) {
            Ok(result) => Answer { id, result, ..Answer::default() },
            Err(error) => Answer { id, error: Some(error), ..Answer::default() },
        };
        write_frame(&mut stream, &answer)?;
    }
    Ok(())
}

/// Asks the simulator whose admin socket is at `socket`.
pub fn request(socket: &Path, call: &str, args: Json) -> io::Result<Json> {
    request_within(socket, None, call, args)
}

fn request_within(socket: &Path, patience: Option<Duration>, call: &str, args: Json) -> io::Result<Json> {
    let mut stream = Address::Unix(socket.to_owned()).connect()?;
    stream.set_read_timeout(patience)?;
    write_frame(&mut stream, &Request { id: 1, call: call.to_owned(), args })?;
    let answer: Answer = read_frame(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    match answer.error {
        Some(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        None => Ok(answer.result),
    }
}

/// A typed client of an admin socket. What the simulator refuses is an error of kind `InvalidInput`, with its text.
#[derive(Clone, Debug)]
pub struct AdminClient {
    socket: PathBuf,
    patience: Option<Duration>,
}

impl AdminClient {
    /// A client of the socket at that path; each request connects.
    pub fn new(socket: impl Into<PathBuf>) -> Self {
        Self { socket: socket.into(), patience: None }
    }

    /// The same, for which an answer that takes longer is an error.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: Some(patience), ..self }
    }

    fn ask<T: DeserializeOwned>(&self, call: &str, args: Json) -> io::Result<T> {
        serde_json::from_value(request_within(&self.socket, self.patience, call, args)?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// What the service is and holds.
    pub fn status(&self) -> io::Result<Status> {
        self.ask("status", Json::Null)
    }

    /// How often each function was called.
    pub fn counters(&self) -> io::Result<BTreeMap<String, Counter>> {
        self.ask("counters", Json::Null)
    }

    /// Begins to count anew, with an empty log.
    pub fn reset_counters(&self) -> io::Result<()> {
        self.ask("reset-counters", Json::Null)
    }

    /// The latest calls, oldest first. [`CallFilter::since`] follows the log.
    pub fn calls(&self, filter: &CallFilter) -> io::Result<Vec<LoggedCall>> {
        self.ask("calls", json!(filter))
    }

    /// The faults that are set. [`KINDS`] has those that there are.
    pub fn faults(&self) -> io::Result<Vec<ActiveFault>> {
        self.ask("faults", Json::Null)
    }

    /// Sets a fault; answers its number. [`Fault`] is read from its text form with `parse`.
    pub fn add_fault(&self, fault: &Fault) -> io::Result<u32> {
        self.ask("add-fault", json!(fault))
    }

    /// Takes a fault back.
    pub fn remove_fault(&self, number: u32) -> io::Result<()> {
        self.ask("remove-fault", json!(number))
    }

    /// Takes every fault back; calls that hang fail.
    pub fn clear_faults(&self) -> io::Result<()> {
        self.ask("clear-faults", Json::Null)
    }

    /// How long calls take.
    pub fn latency(&self) -> io::Result<Latency> {
        self.ask("latency", Json::Null)
    }

    /// Says how long calls take.
    pub fn set_latency(&self, latency: &Latency) -> io::Result<()> {
        self.ask("set-latency", json!(latency))
    }

    /// The switches with their values and evidence.
    pub fn switches(&self) -> io::Result<Vec<Shown>> {
        self.ask("switches", Json::Null)
    }

    /// Sets a switch by its text, `name=value`, until the process ends.
    pub fn set_switch(&self, text: &str) -> io::Result<()> {
        self.ask("set-switch", json!(text))
    }

    /// The rules at the ports of switches: of all, or of an endpoint's.
    pub fn vfp(&self, endpoint: Option<Guid>) -> io::Result<vfp::Dump> {
        self.ask("vfp", json!(endpoint))
    }

    /// Restarts the service, or reboots its host, at once. Returns when it has ended; it answers again after `away`.
    pub fn restart(&self, mode: RestartMode, away: Duration) -> io::Result<()> {
        let away_ms = u64::try_from(away.as_millis()).unwrap_or(u64::MAX);
        self.ask("restart", json!(Restart { mode, away_ms, wipe: false }))
    }

    /// Restarts the service with nothing.
    pub fn wipe(&self) -> io::Result<()> {
        self.ask("restart", json!(Restart { wipe: true, ..Restart::default() }))
    }
}
