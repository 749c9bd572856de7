//! Faults, counters and the call log: what a test or a person asks of the simulator beside its service.
//!
//! Frames as in `hcn::remote`: `{"id","call","args"}` → `{"id","error","result"}`, with the calls `counters`, `calls`, `faults`, `add-fault`
//! and `clear-faults`. They exist on the admin socket alone.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hcn::remote::{Address, Stream, read_frame, write_frame};
use hcn::{Function, Guid, HResult, RawError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Simulator;

/// How many calls the log remembers.
const LOG: usize = 1000;

/// A fault: what happens to calls of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// `slow-call` (waits `delay_ms`) or `fail-call` (fails with `hresult` before it has an effect).
    pub name: String,
    /// The function's exported name; none is every function.
    pub call: Option<String>,
    /// The object's id; none is every object.
    pub id: Option<Guid>,
    /// How long `slow-call` waits.
    pub delay_ms: u64,
    /// What `fail-call` answers.
    pub hresult: Option<HResult>,
    /// How many calls it still strikes; none is all.
    pub count: Option<u32>,
}

/// What befalls one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How long it waits.
    pub delay: Duration,
    /// How it fails.
    pub error: Option<HResult>,
}

/// One call as the log remembers it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoggedCall {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The function's exported name.
    pub call: String,
    /// The object, where the call named one.
    pub id: Option<Guid>,
    /// How long it took.
    pub micros: u64,
    /// How it ended.
    pub hresult: HResult,
}

/// How often a function was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// Calls.
    pub calls: u64,
    /// Those of them that failed.
    pub failed: u64,
    /// The time all of them took.
    pub micros: u64,
}

/// Faults, counters and log.
#[derive(Debug, Default)]
pub struct Desk {
    faults: Vec<Fault>,
    counters: BTreeMap<Function, Counter>,
    log: VecDeque<LoggedCall>,
}

impl Desk {
    /// Adds a fault, after a look whether it can mean anything.
    pub fn add_fault(&mut self, fault: Fault) -> Result<(), String> {
        match (fault.name.as_str(), fault.hresult, fault.delay_ms) {
            ("slow-call", None, 1..) | ("fail-call", Some(_), 0) => {}
            ("slow-call", ..) => return Err("slow-call needs delay_ms, and no hresult".into()),
            ("fail-call", ..) => return Err("fail-call needs hresult, and no delay_ms".into()),
            (other, ..) => return Err(format!("there is no fault {other:?}: use slow-call or fail-call")),
        }
        if let Some(call) = &fault.call
            && call.parse::<Function>().is_err()
        {
            return Err(format!("there is no function {call:?}"));
        }
        self.faults.push(fault);
        Ok(())
    }

    /// What befalls a call; a fault with a count is used up by it.
    pub fn judge(&mut self, function: Function, id: Option<Guid>) -> Verdict {
        let mut verdict = Verdict::default();
        if self.faults.is_empty() {
            return verdict;
        }
        let name = function.to_string();
        for fault in &mut self.faults {
            let strikes = fault.call.as_ref().is_none_or(|call| *call == name) && fault.id.is_none_or(|wanted| Some(wanted) == id);
            if !strikes || fault.count == Some(0) {
                continue;
            }
            if let Some(count) = &mut fault.count {
                *count -= 1;
            }
            verdict.delay += Duration::from_millis(fault.delay_ms);
            verdict.error = verdict.error.or(fault.hresult);
        }
        self.faults.retain(|fault| fault.count != Some(0));
        verdict
    }

    /// Notes how a call ended.
    pub fn note<T>(&mut self, function: Function, id: Option<Guid>, took: Duration, outcome: &Result<T, RawError>) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let counter = self.counters.entry(function).or_default();
        counter.calls += 1;
        counter.failed += u64::from(outcome.is_err());
        counter.micros += micros;
        if self.log.len() == LOG {
            self.log.pop_front();
        }
        let time_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let hresult = outcome.as_ref().map_or_else(|error| error.hresult, |_| HResult::OK);
        self.log.push_back(LoggedCall { time_ms, call: function.to_string(), id, micros, hresult });
    }

    fn answer(&mut self, call: &str, args: Value) -> Result<Value, String> {
        match call {
            "counters" => {
                let counters: BTreeMap<String, Counter> = self.counters.iter().map(|(function, counter)| (function.to_string(), *counter)).collect();
                Ok(json!(counters))
            }
            "calls" => Ok(json!(self.log)),
            "faults" => Ok(json!(self.faults)),
            "add-fault" => {
                let fault = serde_json::from_value(args).map_err(|error| format!("that is no fault: {error}"))?;
                self.add_fault(fault).map(|()| Value::Null)
            }
            "clear-faults" => {
                self.faults.clear();
                Ok(Value::Null)
            }
            other => Err(format!("there is no admin call {other:?}: use counters, calls, faults, add-fault or clear-faults")),
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Request {
    id: u64,
    call: String,
    args: Value,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    result: Value,
}

/// Serves one connection of the admin socket.
pub fn serve(mut stream: Stream, simulator: &Simulator) -> io::Result<()> {
    while let Some(Request { id, call, args }) = read_frame(&mut stream)? {
        let outcome = simulator.desk().answer(&call, args);
        let answer = match outcome {
            Ok(result) => Answer { id, result, ..Answer::default() },
            Err(error) => Answer { id, error: Some(error), ..Answer::default() },
        };
        write_frame(&mut stream, &answer)?;
    }
    Ok(())
}

/// Asks the simulator whose admin socket is at `socket`.
pub fn request(socket: &Path, call: &str, args: Value) -> io::Result<Value> {
    let mut stream = Address::Unix(socket.to_owned()).connect()?;
    write_frame(&mut stream, &Request { id: 1, call: call.to_owned(), args })?;
    let answer: Answer = read_frame(&mut stream)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    match answer.error {
        Some(error) => Err(io::Error::new(io::ErrorKind::InvalidInput, error)),
        None => Ok(answer.result),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hcn::Kind;

    #[test]
    fn a_fault_strikes_what_it_names_and_is_used_up() {
        let mut desk = Desk::default();
        let create = Function::Create(Kind::Endpoint);
        let fault = Fault {
            name: "fail-call".into(),
            call: Some("HcnCreateEndpoint".into()),
            hresult: Some(HResult::RPC_CALL_FAILED),
            count: Some(1),
            ..Fault::default()
        };
        desk.add_fault(fault).unwrap();
        desk.add_fault(Fault { name: "slow-call".into(), delay_ms: 5, ..Fault::default() }).unwrap();
        let slow = Verdict { delay: Duration::from_millis(5), error: None };
        assert_eq!(desk.judge(Function::Open(Kind::Endpoint), None), slow);
        assert_eq!(desk.judge(create, None).error, Some(HResult::RPC_CALL_FAILED));
        assert_eq!(desk.judge(create, None), slow);
        assert!(desk.add_fault(Fault { name: "flood".into(), ..Fault::default() }).is_err());
        assert!(desk.add_fault(Fault { name: "slow-call".into(), call: Some("HcnFly".into()), delay_ms: 1, ..Fault::default() }).is_err());
    }
}
