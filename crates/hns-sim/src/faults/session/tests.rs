//! The decorator over a session and a service that record what they are asked to do.

use std::sync::Mutex;

use hcn::{HostComputeEndpoint, HostComputeNamespace, Kind, NamespaceType};

use super::*;
use crate::faults::{Action, FaultKind, Faults, KINDS, Shown};
use crate::state::{Change, Endpoint, Object};

/// What the decorator asked for, in order.
type Log = std::sync::Arc<Mutex<Vec<String>>>;

struct RecordingSession(Log);

struct RecordingService(Log, Mutex<Faults>);

fn note(log: &Log, line: impl Into<String>) {
    log.lock().unwrap().push(line.into());
}

/// Effects of a call that writes an attached endpoint and a namespace and sends an event.
fn staged() -> Staged {
    let document = HostComputeEndpoint { state: 3, ..HostComputeEndpoint::local("pod", "192.168.1.5/24".parse().unwrap(), None) };
    let endpoint = Endpoint { interface: Some("eth0".into()), ..Endpoint::detached(document) };
    let namespace = HostComputeNamespace { namespace_type: NamespaceType::Host, namespace_id: 5, ..HostComputeNamespace::default() };
    let event = hcn::Event { event_type: 1, status: HResult::OK, data: None };
    Staged {
        changes: vec![Change::put(ENDPOINT, Object::Endpoint(endpoint)), Change::put(NAMESPACE, Object::Namespace(namespace))],
        announced: vec![event.clone()],
        events: vec![event],
        opened: None,
        text: Some(r#"{"ManagementIP":"10.240.0.11"}"#.into()),
    }
}

const ENDPOINT: Guid = Guid(uuid::Uuid::from_u128(1));
const NAMESPACE: Guid = Guid(uuid::Uuid::from_u128(2));

/// What of the effects of a call is not as [`staged`] has it.
fn altered(staged: &Staged) -> String {
    let mut text = String::new();
    if staged.changes.is_empty() {
        text += " without changes";
    }
    if staged.events.is_empty() && staged.announced.is_empty() {
        text += " without events";
    }
    for change in &staged.changes {
        match &change.after {
            Some(Object::Endpoint(endpoint)) => {
                let defects = endpoint.defects;
                for (is_so, what) in [(endpoint.interface.is_none(), "adapter"), (defects.unfiltered, "rules"), (defects.blocked, "port")] {
                    text += &if is_so { format!(" without {what}") } else { String::new() };
                }
            }
            Some(Object::Namespace(namespace)) if namespace.namespace_id == 0 => text += " without compartment",
            _ => {}
        }
    }
    text
}

impl ClientSession for RecordingSession {
    fn subject(&self, args: &Args<'_>) -> Option<Guid> {
        args.id
    }

    fn take_time(&self, _call: &Call<'_>) {
        note(&self.0, "time");
    }

    fn execute(&self, _call: &Call<'_>, alter: impl FnOnce(&mut Staged)) -> Result<Reply, RawError> {
        let mut staged = staged();
        alter(&mut staged);
        note(&self.0, format!("execute{}", altered(&staged)));
        Ok(Reply { handle: Some(Handle(7)), result: staged.text })
    }

    fn close(&self, handle: Option<Handle>) {
        note(&self.0, format!("close {}", handle.unwrap().0));
    }

    fn subscribe(&self, _sink: EventSink) -> Result<Subscription, RawError> {
        note(&self.0, "subscribe");
        Err(HResult::NOT_IMPLEMENTED.into())
    }
}

impl FaultTarget for RecordingService {
    fn effects_on(&self, called: &Called<'_>) -> (Effects, u64) {
        (self.1.lock().unwrap().effects_on(called), 0)
    }

    fn hang(&self, releases: u64) {
        note(&self.0, format!("hang since {releases}"));
    }

    fn restart(&self, restart: Restart) -> Result<(), String> {
        note(&self.0, format!("restart {}{}", restart.mode, if restart.wipe { " wiped" } else { "" }));
        Ok(())
    }

    fn damage_data(&self) {
        note(&self.0, "damage");
    }

    fn tamper(&self, tampering: Tampering, subject: Option<Guid>) -> Result<(), RawError> {
        note(&self.0, format!("{tampering:?} {subject:?}"));
        Ok(())
    }

    fn blank_uplink(&self, restore: Option<(Duration, bool)>) {
        note(&self.0, format!("blank {:?}", restore.map(|(_, all_routes)| all_routes)));
    }

    fn has_switch(&self) -> bool {
        self.0.lock().unwrap().iter().any(|line| line.starts_with("execute"))
    }

    fn deliver_compartments(&self, namespaces: Vec<Guid>, _delay: Duration) {
        note(&self.0, format!("deliver {}", namespaces.len()));
    }
}

/// What one call of `function` about the endpoint asks for while a fault is active, how it ends, and which faults hit it.
fn hit(fault: &Fault, function: Function) -> (Vec<String>, Result<Option<String>, HResult>, Vec<&'static str>) {
    let (log, mut faults) = (Log::default(), Faults::new(0));
    faults.add(fault.clone()).unwrap();
    let decorated = FaultySession::new(RecordingSession(log.clone()), RecordingService(log.clone(), Mutex::new(faults)));
    let args = Args { id: Some(ENDPOINT), ..Args::default() };
    let (outcome, names) = decorated.call(&Call { number: 1, function, args, subject: Some(ENDPOINT) });
    let log = std::mem::take(&mut *log.lock().unwrap());
    (log, outcome.map(|reply| reply.result).map_err(|error| error.hresult), names)
}

/// A function that faults of a kind hit.
fn target(kind: &FaultKind) -> Function {
    let first = kind.calls.split(' ').next().filter(|pattern| !pattern.is_empty()).unwrap_or("HcnCreateEndpoint");
    Function::all().find(|function| crate::text::matches(first, &function.to_string())).unwrap()
}

fn fault_of(kind: &FaultKind) -> Fault {
    let needs_code = kind.action == Action::Fail && kind.hresult.is_none();
    let delay_ms = u64::from(kind.action == Action::Delay || kind.delay_ms != 0 && matches!(kind.action, Action::Fail | Action::Pretend));
    Fault { delay_ms, hresult: needs_code.then_some(HResult::FAIL), ..Fault::named(kind.name) }
}

#[test]
fn each_kind_of_fault_acts_on_the_session_and_the_service() {
    let whole = r#"{"ManagementIP":"10.240.0.11"}"#;
    for kind in KINDS {
        let fault = fault_of(kind);
        let code = || Err(fault.hresult.or(kind.hresult).unwrap());
        let (lost, ok) = (Err(HResult::RPC_CALL_FAILED), Ok(Some(whole.to_owned())));
        let about = |tampering| format!("{tampering:?} {:?}", Some(ENDPOINT));
        let (log, result): (Vec<String>, Result<Option<String>, HResult>) = match kind.action {
            Action::Delay => (vec!["execute".into()], ok),
            Action::Hang => (vec!["hang since 0".into()], lost),
            Action::Fail => (vec![], code()),
            Action::FailAfter => (vec!["execute".into(), "close 7".into()], code()),
            Action::Pretend => (vec!["execute without changes".into()], ok),
            Action::Twice => (vec!["execute".into(), "execute".into(), "close 7".into()], ok),
            Action::Partial => (vec!["execute without adapter".into()], ok),
            Action::Defect(Defect::Rules) => (vec!["execute without rules".into()], ok),
            Action::Defect(Defect::Port) => (vec!["execute without port".into()], ok),
            Action::Defect(Defect::Compartment) => (vec!["execute without compartment".into(), "deliver 1".into()], ok),
            Action::Outage(outage) => {
                let all_routes = [
                    (Outage::Passing, Some(true)),
                    (Outage::LosesRoutes, Some(false)),
                    (Outage::LosesAddresses, None),
                    (Outage::WithSwitch, Some(true)),
                ];
                let restore = all_routes.into_iter().find(|(of, _)| *of == outage).unwrap().1;
                (vec!["execute".into(), format!("blank {restore:?}")], ok)
            }
            Action::DropEvents => (vec!["execute without events".into()], ok),
            Action::Show(Shown::NoManagementAddress) => (vec!["execute".into()], Ok(Some("{}".into()))),
            Action::Show(Shown::LinkLocalAddress) => (vec!["execute".into()], Ok(Some(r#"{"ManagementIP":"169.254.17.1"}"#.into()))),
            Action::Incident(Incident::Restart) => (vec!["restart clean".into()], lost),
            Action::Incident(Incident::Wipe) => (vec!["restart clean wiped".into()], lost),
            Action::Incident(Incident::Corrupt) => (vec!["damage".into()], lost),
            Action::Incident(Incident::Tamper(tampering)) => (vec![about(tampering), "execute".into()], ok),
            // These hit the start and the end of the service.
            Action::Start(_) | Action::StaysUp => (vec!["execute".into()], ok),
        };
        let log = [vec!["time".to_owned()], log].concat();
        let names = if matches!(kind.action, Action::Start(_) | Action::StaysUp) { vec![] } else { vec![kind.name] };
        assert_eq!(hit(&fault, target(kind)), (log, result, names), "{}", kind.name);
    }
}

#[test]
fn calls_without_faults_pass_unaltered() {
    let other = Fault { id: Some(NAMESPACE), .."svc-down".parse().unwrap() };
    let (log, result, names) = hit(&other, Function::Create(Kind::Endpoint));
    assert_eq!((log, names), (vec!["time".to_owned(), "execute".to_owned()], vec![]));
    assert!(result.is_ok());
}

#[test]
fn defects_of_a_named_object_hit_it_at_once_and_in_the_call() {
    let named = Fault { id: Some(ENDPOINT), ..Fault::named("acl-broken") };
    let (log, _, _) = hit(&named, Function::Modify(Kind::Endpoint));
    assert_eq!(log, ["time".to_owned(), format!("DisableRules {:?}", Some(ENDPOINT)), "execute without rules".to_owned()]);
}

#[test]
fn failed_calls_close_the_handle_of_what_they_made() {
    let both = "error-after-effect,call=HcnCreateEndpoint".parse().unwrap();
    let (log, result, _) = hit(&both, Function::Create(Kind::Endpoint));
    assert_eq!((log.last().unwrap().as_str(), result), ("close 7", Err(HResult::RPC_CALL_FAILED)));
}
