//! Faults by name: known failures of the real service, each with its targets, its probability and its count.
//!
//! A fault hits calls: an event at one moment (a restart, a lost object) hits one call, a state of the host hits calls until the fault is
//! removed ([`Hits`]); a count overrides both. [`KINDS`] is the table of names. The engine decides which faults hit a call, deterministically
//! by the seed; the decorator `FaultySession` applies their effects to a client's session. The rest of the crate knows no faults: the model
//! and the service only have the operations that the decorator calls. Text form: `NAME[=VALUE][,KEY=VALUE…]`, for example
//! `slow-call=200ms,call=HcnCreateEndpoint,probability=0.1,count=5` or `hns-restart=crash,delay=120s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hcn::{Function, Guid, HResult};
use serde::{Deserialize, Serialize};

use crate::latency::duration;
use crate::text::matches;

mod count;
mod effects;
mod engine;
mod kinds;
mod reply;
mod session;

pub use crate::restart::{Loss, RestartMode};
pub use crate::text::code;
pub use count::Count;
pub use effects::{Action, Defect, Effects, Incident, Outage, Shown};
pub use engine::{ActiveFault, Called, Faults};
pub use kinds::{FaultKind, Hits, KINDS, Value, kind};
pub(crate) use session::{Call, ClientSession, FaultTarget, FaultySession, incident};

/// A fault, with the calls that it hits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// A name of [`KINDS`].
    pub name: String,
    /// The function's exported name, `*` stands for any text; none is the default of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The object's id; none is every object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Only calls whose document, query or path contains this text, in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How long it waits; of a restart, how long the service is down; of what shows up late or goes for a while, how long that takes.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// What the call answers; none is the default of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hresult: Option<HResult>,
    /// For `hns-restart`: how it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RestartMode>,
    /// How likely a call that it names is hit; none is always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// How many calls it still hits; none is the default of the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<Count>,
    /// How many calls that it names it lets pass first.
    #[serde(skip_serializing_if = "is_zero_u32")]
    pub skip: u32,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn is_zero_u32(number: &u32) -> bool {
    *number == 0
}

/// The names of faults that have a word in common with that one; all of them where there is none.
fn like(name: &str) -> Vec<&'static str> {
    let words: Vec<&str> = name.split(['-', '_', ' ']).filter(|word| word.len() > 1).collect();
    let all = || KINDS.iter().map(|kind| kind.name);
    let alike: Vec<_> = all().filter(|known| words.iter().any(|word| known.contains(word))).collect();
    if alike.is_empty() { all().collect() } else { alike }
}

/// Refuses the name of a function that there is not; `*` stands for any text.
pub fn is_function(call: &str) -> Result<(), String> {
    let known = Function::all().any(|function| matches(call, &function.to_string()));
    if known { Ok(()) } else { Err(format!("there is no function {call:?}: write it as HcnCreateEndpoint, HNSCall, or HcnCreate* for several")) }
}

impl Fault {
    /// A fault of that name with its defaults.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// The kind of the fault; an error explains what is wrong with it.
    pub fn check(&self) -> Result<&'static FaultKind, String> {
        let kind = kind(&self.name).ok_or_else(|| format!("there is no fault {:?}: use one of {}", self.name, like(&self.name).join(", ")))?;
        let name = kind.name;
        if let Some(call) = &self.call {
            is_function(call)?;
        }
        if self.probability.is_some_and(|probability| !(0.0..=1.0).contains(&probability)) {
            return Err(format!("the probability of {name} must be from 0 to 1"));
        }
        if self.count == Some(Count::Calls(0)) {
            return Err(format!("{name} with count=0 hits nothing: write the number of calls, or count=all"));
        }
        match (kind.value(), self.hresult) {
            (Value::Code, Some(code)) if code.0 >> 31 == 0 => return Err(format!("{name} cannot fail with success: {}", kind.usage())),
            (Value::Code, None) if kind.action == Action::Fail && kind.hresult.is_none() => {
                return Err(format!("{name} needs a code: {}", kind.usage()));
            }
            (Value::Code, _) | (_, None) => {}
            (_, Some(_)) => return Err(format!("{name} has no code: {}", kind.usage())),
        }
        if kind.action == Action::Delay && self.delay_ms == 0 && kind.delay_ms == 0 {
            return Err(format!("{name} needs a delay: {}", kind.usage()));
        }
        let timeless = match kind.action {
            Action::Hang | Action::Start(_) | Action::StaysUp => true,
            Action::Incident(incident) => !matches!(incident, Incident::Restart | Incident::Wipe),
            Action::Defect(defect) => defect != Defect::Compartment,
            Action::Outage(outage) => outage == Outage::LosesAddresses,
            _ => false,
        };
        if self.delay_ms != 0 && timeless {
            return Err(format!("{name} has no delay"));
        }
        if self.mode.is_some() && kind.value() != Value::Mode {
            return Err(format!("{name} has no mode: {}", kind.usage()));
        }
        Ok(kind)
    }

    /// The fault with the default count of its name, where it has none.
    pub fn settled(mut self) -> Self {
        if self.count.is_none() && kind(&self.name).is_some_and(|kind| kind.hits == Hits::Once) {
            self.count = Some(Count::Calls(1));
        }
        self
    }

    /// Whether a call of `function` that carries nothing would use the fault up, or a part of it.
    pub fn is_spent_by(&self, function: Function) -> bool {
        let Some(kind) = kind(&self.name) else { return false };
        let called = Called { function, id: None, texts: [None; 3] };
        let counted = matches!(self.clone().settled().count, Some(Count::Calls(_)));
        counted && !matches!(kind.action, Action::Start(_) | Action::StaysUp) && self.names(kind, &called, &function.to_string())
    }

    fn names(&self, kind: &FaultKind, called: &Called<'_>, function: &str) -> bool {
        let call = match &self.call {
            Some(call) => matches(call, function),
            None => kind.calls.is_empty() || kind.calls.split(' ').any(|call| matches(call, function)),
        };
        let carries = |part: &str| called.texts.iter().flatten().any(|text| text.to_ascii_lowercase().contains(&part.to_ascii_lowercase()));
        let id = self.id.is_none_or(|id| match kind.action {
            // It may be of another object than the call's.
            Action::Incident(_) => true,
            // An endpoint's attachment is a call of its namespace.
            Action::Defect(_) => Some(id) == called.id || carries(&id.to_string()),
            _ => Some(id) == called.id,
        });
        let text = self.text.as_deref().is_none_or(carries);
        call && id && text
    }

    /// How long it waits.
    pub fn delay(&self, kind: &FaultKind) -> Duration {
        Duration::from_millis(if self.delay_ms == 0 { kind.delay_ms } else { self.delay_ms })
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let (name, value) = match parts.next().unwrap_or_default().split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text.split(',').next().unwrap_or_default(), None),
        };
        let mut fault = Self::named(name.trim());
        if let (Some(value), Some(kind)) = (value, kind(&fault.name)) {
            let wrong = |error: String| format!("{error}; {}", kind.usage());
            match kind.value() {
                Value::Duration => fault.delay_ms = milliseconds(value).map_err(wrong)?,
                Value::Code => fault.hresult = Some(code(value).map_err(wrong)?),
                Value::Mode => fault.mode = Some(value.parse().map_err(wrong)?),
                Value::None => return Err(format!("{name} takes no VALUE, and {value:?} is one; {}", kind.usage())),
            }
        }
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} of a fault is not KEY=VALUE"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{value:?} is not a whole number"));
            match key.trim() {
                "call" => fault.call = Some(value.to_owned()),
                "id" => fault.id = Some(value.parse().map_err(|error: hcn::guid::GuidError| error.to_string())?),
                "text" => fault.text = Some(value.to_owned()),
                "delay" => fault.delay_ms = milliseconds(value)?,
                "code" => fault.hresult = Some(code(value)?),
                "mode" => fault.mode = Some(value.parse()?),
                "probability" => fault.probability = Some(value.parse().map_err(|_| format!("{value:?} is not a probability"))?),
                "count" => fault.count = Some(value.parse()?),
                "skip" => fault.skip = number()?,
                other => return Err(format!("a fault has no {other:?}: use call, id, text, delay, code, mode, probability, count or skip")),
            }
        }
        fault.check()?;
        Ok(fault)
    }
}

fn milliseconds(text: &str) -> Result<u64, String> {
    Ok(u64::try_from(duration(text)?.as_millis()).unwrap_or(u64::MAX))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let mut member = |key: &str, value: Option<String>| value.map_or(Ok(()), |value| write!(f, ",{key}={value}"));
        member("mode", self.mode.map(|mode| mode.to_string()))?;
        member("code", self.hresult.map(|code| format!("{:#010x}", code.0)))?;
        member("delay", (self.delay_ms != 0).then(|| format!("{}ms", self.delay_ms)))?;
        member("call", self.call.clone())?;
        member("id", self.id.map(|id| id.to_string()))?;
        member("text", self.text.clone())?;
        member("probability", self.probability.map(|probability| probability.to_string()))?;
        member("skip", (self.skip != 0).then(|| self.skip.to_string()))?;
        member("count", self.count.map(|count| count.to_string()))
    }
}

#[cfg(test)]
mod tests;
