//! The conformance suite on the pure model: every version that Windows Server ships, each type of network, with restarts of the service.

use std::sync::{Arc, Mutex};

use hcn::conformance::{Options, Outcome, run};
use hcn::port::{EventSink, HostNetwork, Subscription};
use hcn::{Args, Event, Function, HResult, HnsVersion, NetworkType, RawError, Reply};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::store::Store;
use hns_sim::switches::Switches;

/// A service that can be restarted under its clients: handles die, what its store kept comes back, listeners hear of the disconnect.
struct Service {
    directory: tempfile::TempDir,
    version: HnsVersion,
    session: Mutex<Arc<dyn HostNetwork>>,
    sinks: Mutex<Vec<EventSink>>,
}

fn start(directory: &std::path::Path, version: HnsVersion) -> Arc<dyn HostNetwork> {
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: true };
    let store = Store::open(directory).unwrap();
    Simulator::new(Box::new(kernel), Switches::of(version), Some(store)).unwrap().session()
}

impl Service {
    fn new(version: HnsVersion) -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        let session = Mutex::new(start(directory.path(), version));
        Arc::new(Self { directory, version, session, sinks: Mutex::default() })
    }

    fn restart(&self) {
        for sink in self.sinks.lock().unwrap().drain(..) {
            sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None });
        }
        let mut session = self.session.lock().unwrap();
        *session = start(self.directory.path(), self.version);
    }
}

impl HostNetwork for Service {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        let session = self.session.lock().unwrap().clone();
        session.call(function, args)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.sinks.lock().unwrap().push(sink.clone());
        self.session.lock().unwrap().clone().subscribe(sink)
    }
}

/// Runs the suite; each line of `different` is a case that this version or type may not pass, and none other may.
#[track_caller]
fn judge(version: HnsVersion, network_type: NetworkType) {
    let service = Service::new(version);
    let again = service.clone();
    let restart: hcn::conformance::Restart = Arc::new(move || {
        again.restart();
        Ok(())
    });
    let options = Options { network_type: network_type.clone(), restart: Some(restart), ..Options::default() };
    let report = run(service, &options, |_| {}).unwrap();
    assert!(report.passed(), "HNS {version}, {network_type}:\n{}", report.failures());
    assert!(report.count(Outcome::Passed) > 40, "HNS {version}, {network_type}: hardly anything was judged:\n{report}");
}

#[test]
fn l2bridge_conforms_in_every_version() {
    for (major, minor) in [(9, 5), (10, 5), (11, 11), (12, 1), (13, 3), (14, 0), (15, 2), (15, 4), (15, 5), (16, 0)] {
        judge(HnsVersion::new(major, minor), NetworkType::L2Bridge);
    }
}

#[test]
fn every_type_conforms_in_the_newest_version() {
    for network_type in [NetworkType::Overlay, NetworkType::L2Tunnel, NetworkType::Transparent, NetworkType::Nat, NetworkType::Internal] {
        judge(HnsVersion::new(15, 5), network_type);
    }
}
