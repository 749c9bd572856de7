//! Faults by name: what is known to go wrong with the real service, each with its targets, its probability and its count.
//!
//! A fault hits calls: those that happen at a moment (an incident of the service, a lost object) hit one, states of the host hit until they
//! are taken back ([`Hits`]); a count says otherwise. The engine decides (deterministically by the seed); [`crate::Simulator`] does what the verdict says. What a name
//! means stands in one table, [`KINDS`]. Text form: `NAME[=VALUE][,KEY=VALUE…]`, for example
//! `slow-call=200ms,call=HcnCreateEndpoint,probability=0.1,count=5` or `hns-restart=crash,delay=120s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use hcn::{Function, Guid, HResult};
use serde::{Deserialize, Serialize};

use crate::latency::{duration, mix};

mod count;
mod kinds;

pub use count::Count;
pub use kinds::{FaultKind, Hits, KINDS, Value, kind};

/// A fault: what happens to which calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// A name of [`KINDS`].
    pub name: String,
    /// The function's exported name, `*` stands for any text; none is what the name says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// The object's id; none is every object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<Guid>,
    /// Only calls whose document, query or path contains this text, in any case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How long it waits; of a restart, how long the service is away; of what shows up late or goes for a while, how long that takes.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
    /// What the call answers; none is what the name says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hresult: Option<HResult>,
    /// For `hns-restart`: how it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<RestartMode>,
    /// How likely a call that it names is hit; none is always.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probability: Option<f64>,
    /// How many calls it still hits; none is what the name says.
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

/// How the service ends before it starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RestartMode {
    /// Restart-Service.
    #[default]
    Clean,
    /// It crashed; the service manager starts it again.
    Crash,
    /// The host rebooted.
    Reboot,
}

impl FromStr for RestartMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "clean" => Ok(Self::Clean),
            "crash" => Ok(Self::Crash),
            "reboot" => Ok(Self::Reboot),
            other => Err(format!("{other:?} is no way to restart: use clean, crash or reboot")),
        }
    }
}

impl fmt::Display for RestartMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Clean => "clean",
            Self::Crash => "crash",
            Self::Reboot => "reboot",
        })
    }
}

/// What a fault does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call waits.
    Delay,
    /// The call does not return until the fault is cleared.
    Hang,
    /// The call fails before it has an effect.
    Fail,
    /// The call has its effect and fails.
    FailAfter,
    /// The call succeeds without an effect.
    Pretend,
    /// A create makes two objects.
    Twice,
    /// An endpoint is attached without a virtual adapter.
    Partial,
    /// What the call makes, or the fault's object, is not what its document says.
    Defect(Defect),
    /// The host's adapter is without its addresses and routes once the call has succeeded.
    Outage(Outage),
    /// No listener hears of what the call does.
    DropEvents,
    /// Queries of networks show it so.
    Show(Shown),
    /// It happens to the service as the call comes in.
    Incident(Incident),
    /// It hits when the service starts again.
    Start(Loss),
    /// The service does not stop when it is told to.
    StaysUp,
}

/// How queries show a network's ManagementIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Not yet there.
    NoManagementAddress,
    /// A link-local address.
    LinkLocalAddress,
}

/// What is wrong with an object although its document is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// An endpoint's access rules have no effect.
    Rules,
    /// An endpoint's port passes nothing.
    Port,
    /// A namespace gets its compartment late.
    Compartment,
}

/// What comes back to the host's adapter after a while. All of it does when the host reboots, and when the faults are cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Its addresses and its routes.
    Passing,
    /// Its addresses and the default route, as its lease has them.
    LosesRoutes,
    /// Nothing.
    LosesAddresses,
}

/// What happens to the service beside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// It restarts; the call fails.
    Restart,
    /// It restarts and has forgotten everything; the call fails.
    Wipe,
    /// Its data are damaged: it is away until they are wiped.
    Corrupt,
    /// The object is gone, as if another program had deleted it.
    LoseObject,
    /// The object's policies are gone.
    LosePolicies,
    /// The network is another one of the same name, without endpoints.
    NewNetwork,
    /// The endpoint gets a defect.
    Defect(Defect),
}

/// What is lost, or wrongly kept, over a restart or reboot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Networks do not come back.
    Networks,
    /// Endpoints do not come back.
    Endpoints,
    /// Endpoints come back from a reboot.
    StaleEndpoints,
    /// Namespaces without containers do not come back.
    Namespaces,
    /// Load balancers do not come back.
    Balancers,
    /// Half of the load balancers do not come back.
    SomeBalancers,
    /// Load balancers come back without DSR.
    DirectServerReturn,
    /// Load balancers are not listed, but what they listened on stays taken.
    Listeners,
}

/// What befalls one call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// How long it waits.
    pub delay: Duration,
    /// Whether it never returns.
    pub hang: bool,
    /// How it fails, without an effect.
    pub error: Option<HResult>,
    /// How it fails after its effect.
    pub error_after: Option<HResult>,
    /// Whether it succeeds without an effect.
    pub pretend: bool,
    /// Whether it has its effect twice.
    pub twice: bool,
    /// Whether an attached endpoint gets no adapter.
    pub partial: bool,
    /// Defects, of which object (none: what the call makes), and how long.
    pub defects: Vec<(Defect, Option<Guid>, Duration)>,
    /// What happens to the host's adapter once the call has succeeded, and how long.
    pub outages: Vec<(Outage, Duration)>,
    /// Whether nobody is told.
    pub silent: bool,
    /// How networks are shown.
    pub shown: Option<Shown>,
    /// What happens to the service, to which object (none: the call's), and how.
    pub incidents: Vec<(Incident, Fault)>,
    /// The names of the faults that hit.
    pub names: Vec<&'static str>,
}

/// What the engine knows of a call.
#[derive(Clone, Copy, Debug)]
pub struct Called<'a> {
    /// The function.
    pub function: Function,
    /// The object, where the call names one.
    pub id: Option<Guid>,
    /// The texts that it carries.
    pub texts: [Option<&'a str>; 3],
}

/// A fault that is set, with its number and how often it hit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActiveFault {
    /// The number to remove it by.
    pub number: u32,
    /// How many calls it hit.
    #[serde(rename = "struck")]
    pub hits: u64,
    /// How many calls it named.
    pub seen: u64,
    /// The fault.
    pub fault: Fault,
}

/// The faults that are set.
#[derive(Debug, Default)]
pub struct Faults {
    active: Vec<ActiveFault>,
    last: u32,
    seed: u64,
}

/// The names of faults that have a word in common with that one; all of them where there is none.
fn like(name: &str) -> Vec<&'static str> {
    let words: Vec<&str> = name.split(['-', '_', ' ']).filter(|word| word.len() > 1).collect();
    let all = || KINDS.iter().map(|kind| kind.name);
    let alike: Vec<_> = all().filter(|known| words.iter().any(|word| known.contains(word))).collect();
    if alike.is_empty() { all().collect() } else { alike }
}

/// Whether `name` is what `pattern` says; `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => {
            name.strip_prefix(head).is_some_and(|rest| (0..=rest.len()).any(|cut| rest.is_char_boundary(cut) && matches(tail, &rest[cut..])))
        }
    }
}

/// Refuses the name of a function that there is not; `*` stands for any text.
pub fn is_function(call: &str) -> Result<(), String> {
    let known = Function::all().any(|function| matches(call, &function.to_string()));
    if known { Ok(()) } else { Err(format!("there is no function {call:?}: write it as HcnCreateEndpoint, HNSCall, or HcnCreate* for several")) }
}

impl Fault {
    /// A fault of that name with what the name says.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// What the name means; an error says what is wrong with the fault.
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

    /// The fault with the count that its name says, where it has none.
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
        let carries = |wanted: &str| called.texts.iter().flatten().any(|text| text.to_ascii_lowercase().contains(&wanted.to_ascii_lowercase()));
        let id = self.id.is_none_or(|wanted| match kind.action {
            // It may be of another object than the call's.
            Action::Incident(_) => true,
            // An endpoint's attachment is a call of its namespace.
            Action::Defect(_) => Some(wanted) == called.id || carries(&wanted.to_string()),
            _ => Some(wanted) == called.id,
        });
        let text = self.text.as_deref().is_none_or(carries);
        call && id && text
    }

    /// How long it waits.
    pub fn delay(&self, kind: &FaultKind) -> Duration {
        Duration::from_millis(if self.delay_ms == 0 { kind.delay_ms } else { self.delay_ms })
    }
}

impl Verdict {
    fn add(&mut self, kind: &'static FaultKind, fault: &Fault) {
        self.names.push(kind.name);
        let hresult = fault.hresult.or(kind.hresult);
        if !matches!(kind.action, Action::Incident(_) | Action::Defect(_) | Action::Outage(_)) {
            self.delay += fault.delay(kind);
        }
        match kind.action {
            Action::Delay => {}
            Action::Hang => self.hang = true,
            Action::Fail => self.error = self.error.or(hresult),
            Action::FailAfter => self.error_after = self.error_after.or(hresult),
            Action::Pretend => self.pretend = true,
            Action::Twice => self.twice = true,
            Action::Partial => self.partial = true,
            Action::Defect(defect) => {
                if fault.id.is_some() {
                    self.incidents.push((Incident::Defect(defect), fault.clone()));
                }
                self.defects.push((defect, fault.id, fault.delay(kind)));
            }
            Action::Outage(outage) => self.outages.push((outage, fault.delay(kind))),
            Action::DropEvents => self.silent = true,
            Action::Show(shown) => self.shown = self.shown.or(Some(shown)),
            Action::Incident(incident) => self.incidents.push((incident, fault.clone())),
            Action::Start(_) | Action::StaysUp => {}
        }
    }
}

impl ActiveFault {
    /// Counts a call that the fault names, and says whether it is hit.
    fn hits(&mut self, seed: u64) -> bool {
        self.seen += 1;
        if self.seen <= u64::from(self.fault.skip) || self.fault.count == Some(Count::Calls(0)) {
            return false;
        }
        if let Some(probability) = self.fault.probability {
            // The draw follows from the seed, the fault and the call's number alone: other faults and threads do not move it.
            let draw = mix(seed ^ mix(u64::from(self.number)) ^ self.seen);
            if (draw >> 11) as f64 / (1u64 << 53) as f64 >= probability {
                return false;
            }
        }
        if let Some(Count::Calls(left)) = &mut self.fault.count {
            *left -= 1;
        }
        self.hits += 1;
        true
    }
}

impl Faults {
    /// No faults; draws follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// The faults that are set.
    pub fn list(&self) -> &[ActiveFault] {
        &self.active
    }

    /// Sets a fault, after a look whether it can mean anything. Answers its number.
    pub fn add(&mut self, fault: Fault) -> Result<u32, String> {
        fault.check()?;
        self.last += 1;
        self.active.push(ActiveFault { number: self.last, hits: 0, seen: 0, fault: fault.settled() });
        Ok(self.last)
    }

    /// What the newest fault does without waiting for a call: where it is of one object, and no call is said, it happens to that object now.
    pub fn at_once(&mut self) -> Option<(Incident, Fault)> {
        let seed = self.seed;
        let active = self.active.last_mut()?;
        let FaultKind { action, calls, .. } = kind(&active.fault.name)?;
        let incident = match action {
            Action::Defect(defect @ (Defect::Rules | Defect::Port)) => Incident::Defect(*defect),
            Action::Incident(incident @ (Incident::LoseObject | Incident::LosePolicies)) if calls.is_empty() => *incident,
            _ => return None,
        };
        let Fault { id, call, text, .. } = &active.fault;
        if id.is_none() || call.is_some() || text.is_some() || !active.hits(seed) {
            return None;
        }
        let fault = active.fault.clone();
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        Some((incident, fault))
    }

    /// Takes a fault back.
    pub fn remove(&mut self, number: u32) -> bool {
        let before = self.active.len();
        self.active.retain(|fault| fault.number != number);
        self.active.len() != before
    }

    /// Takes every fault back.
    pub fn clear(&mut self) {
        self.active.clear();
    }

    /// Whether a fault hangs calls.
    pub fn hangs(&self) -> bool {
        self.active.iter().any(|active| kind(&active.fault.name).is_some_and(|kind| kind.action == Action::Hang))
    }

    /// What befalls a call; a fault with a count is used up by it.
    pub fn judge(&mut self, called: &Called<'_>) -> Verdict {
        let mut verdict = Verdict::default();
        if self.active.is_empty() {
            return verdict;
        }
        let function = called.function.to_string();
        let seed = self.seed;
        for active in &mut self.active {
            let Some(kind) = kind(&active.fault.name) else { continue };
            if !matches!(kind.action, Action::Start(_) | Action::StaysUp) && active.fault.names(kind, called, &function) && active.hits(seed) {
                verdict.add(kind, &active.fault);
            }
        }
        // A hanging call is held by its fault, so that one stays until it is cleared.
        self.active
            .retain(|active| active.fault.count != Some(Count::Calls(0)) || kind(&active.fault.name).is_some_and(|kind| kind.action == Action::Hang));
        verdict
    }

    /// Whether the service stops when it is told to.
    pub fn stops(&mut self) -> bool {
        let seed = self.seed;
        let stays = |active: &&mut ActiveFault| kind(&active.fault.name).is_some_and(|kind| kind.action == Action::StaysUp);
        let stays = self.active.iter_mut().filter(stays).any(|active| active.hits(seed));
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        !stays
    }

    /// What goes wrong as the service starts.
    pub fn losses(&mut self) -> Vec<Loss> {
        let seed = self.seed;
        let mut losses = Vec::new();
        for active in &mut self.active {
            if let Some(FaultKind { action: Action::Start(loss), .. }) = kind(&active.fault.name)
                && active.hits(seed)
            {
                losses.push(*loss);
            }
        }
        self.active.retain(|active| active.fault.count != Some(Count::Calls(0)));
        losses
    }
}

/// Reads a code: `0x803b0013`, a name as `HCN_E_PORT_ALREADY_EXISTS`, or the decimal number of an error record, as `2151350291`.
pub fn code(text: &str) -> Result<HResult, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        // A small decimal number is a count or a mistake, no code that anybody writes so.
        None => text.parse().ok().filter(|number| *number >= 0x8000_0000),
    };
    // The short form of Win32 codes, as Go programs print them.
    let short = |number: u32| if number != 0 && number < 0x1_0000 { 0x8007_0000 | number } else { number };
    let named = || HResult::known().find(|code| code.name() == Some(text));
    number
        .map(|number| HResult(short(number)))
        .or_else(named)
        .ok_or_else(|| format!("{text:?} is no result code: write it as 0x803b0013 or by its name"))
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
