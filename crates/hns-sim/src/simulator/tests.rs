use std::sync::mpsc;

use hcn::{HnsVersion, HostComputeNamespace};

use super::*;
use crate::admin::Restart;
use crate::kernel::NoKernel;

#[test]
fn registration_made_while_connections_end_survives_the_restart() {
    let kernel = NoKernel { management: None, survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
    let (sender, heard) = mpsc::channel();
    let (sender, again, registrations) = (Mutex::new(sender), simulator.clone(), Mutex::new(Vec::new()));
    let sink: EventSink = Arc::new(move |event: Event| sender.lock().unwrap().send(event.event_type).unwrap());
    // As a remote client does that connects again at once.
    simulator.on_restart(move || registrations.lock().unwrap().push(again.session().subscribe(sink.clone()).unwrap()));
    simulator.restart(Restart { mode: RestartMode::Clean, away_ms: 0, wipe: false }).unwrap();
    let client = hcn::blocking::Client::new(simulator.session());
    client.create(Guid::random(), &HostComputeNamespace::default()).unwrap();
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [Event::NAMESPACE_CREATE]);
}
