//! The conformance suite, with restarts of the service: on the pure model every version that Windows Server ships and each type of
//! network; on Linux the types again over the kernel.

#[cfg(target_os = "linux")]
#[path = "harness/lab.rs"]
mod harness;

use std::sync::{Arc, Mutex};

use hcn::port::{EventSink, HostNetwork, Subscription};
use hcn::{Args, Event, Function, HResult, HnsVersion, NetworkType, RawError, Reply};
use hcn_conformance::{Options, Outcome, run};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::store::Store;
use hns_sim::switches::Switches;

/// A service that can be restarted under its clients: handles die, what its store kept comes back, listeners hear of the disconnect.
struct Service {
    start: Box<dyn Fn() -> Arc<dyn HostNetwork> + Send + Sync>,
    /// None while it restarts: Windows replaces no journal that is open.
    session: Mutex<Option<Arc<dyn HostNetwork>>>,
    sinks: Mutex<Vec<EventSink>>,
}

impl Service {
    /// The model alone.
    fn new(version: HnsVersion) -> Arc<Self> {
        let directory = tempfile::tempdir().unwrap();
        Self::of(move || {
            let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: true };
            let store = Store::open(directory.path()).unwrap();
            Simulator::new(Box::new(kernel), Switches::of(version), Some(store)).unwrap().session()
        })
    }

    fn of(start: impl Fn() -> Arc<dyn HostNetwork> + Send + Sync + 'static) -> Arc<Self> {
        let session = Mutex::new(Some(start()));
        Arc::new(Self { start: Box::new(start), session, sinks: Mutex::default() })
    }

    fn restart(&self) {
        for sink in self.sinks.lock().unwrap().drain(..) {
            sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None });
        }
        let mut session = self.session.lock().unwrap();
        session.take();
        *session = Some((self.start)());
    }

    fn session(&self) -> Arc<dyn HostNetwork> {
        self.session.lock().unwrap().clone().unwrap()
    }
}

impl HostNetwork for Service {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        self.session().call(function, args)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.sinks.lock().unwrap().push(sink.clone());
        self.session().subscribe(sink)
    }
}

/// Runs the suite on the model: every case that applies must pass.
#[track_caller]
fn run_suite(version: HnsVersion, network_type: NetworkType) {
    run_suite_on(Service::new(version), version, network_type);
}

#[track_caller]
fn run_suite_on(service: Arc<Service>, version: HnsVersion, network_type: NetworkType) {
    let again = service.clone();
    let restart: hcn_conformance::Restart = Arc::new(move || {
        again.restart();
        Ok(())
    });
    let options = Options { network_type: network_type.clone(), restart: Some(restart), ..Options::default() };
    let report = run(service, &options, |_| {}).unwrap();
    assert!(report.passed(), "HNS {version}, {network_type}:\n{}", report.failures());
    assert!(report.count(Outcome::Passed) > 40, "HNS {version}, {network_type}: hardly any case applied:\n{report}");
}

#[test]
fn l2bridge_conforms_in_every_version() {
    for (major, minor) in [(9, 5), (10, 5), (11, 11), (12, 1), (13, 3), (14, 0), (15, 2), (15, 4), (15, 5), (16, 0)] {
        run_suite(HnsVersion::new(major, minor), NetworkType::L2Bridge);
    }
}

#[test]
fn every_type_conforms_in_the_newest_version() {
    for network_type in [
        NetworkType::Overlay,
        NetworkType::L2Tunnel,
        NetworkType::Transparent,
        NetworkType::Nat,
        NetworkType::Ics,
        NetworkType::Internal,
        NetworkType::Private,
    ] {
        run_suite(HnsVersion::new(15, 5), network_type);
    }
}

/// The same suite where each document becomes links, addresses and rules, which every case's end takes away again: on the defaults, and without
/// direct server return.
#[cfg(target_os = "linux")]
#[test]
fn every_type_conforms_over_the_kernel() {
    linux_sys::ns::in_lab("every_type_conforms_over_the_kernel", || {
        let (lab, version) = (harness::Lab::new(), HnsVersion::new(15, 5));
        let types = [NetworkType::L2Bridge, NetworkType::L2Tunnel, NetworkType::Overlay, NetworkType::Transparent, NetworkType::Nat];
        let defaults = Switches::of(version);
        let indirect = Switches { direct_server_return: false, ..defaults.clone() };
        let runs = types.into_iter().flat_map(|network_type| [(network_type.clone(), defaults.clone()), (network_type, indirect.clone())]);
        for (number, (network_type, switches)) in runs.enumerate() {
            let host = Arc::new(lab.host(&format!("10.240.0.{}", 11 + number), &[]));
            let (before, inner) = (host.links(), host.clone());
            let directory = tempfile::tempdir().unwrap();
            let service = Service::of(move || harness::start(&inner.ns, directory.path().to_owned(), &switches).session());
            run_suite_on(service, version, network_type.clone());
            assert_eq!(host.links(), before, "{network_type}: what the suite made is gone");
        }
    });
}

/// How a service answers a call that lies in one way.
type Lie = fn(&dyn HostNetwork, Function, Args<'_>) -> Result<Reply, RawError>;

/// A service that lies.
struct Liar {
    service: Arc<dyn HostNetwork>,
    lie: Lie,
}

impl HostNetwork for Liar {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        (self.lie)(&*self.service, function, args)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.service.subscribe(sink)
    }
}

/// Changes what the service says.
fn retold(outcome: Result<Reply, RawError>, from: &str, to: &str) -> Result<Reply, RawError> {
    outcome.map(|reply| Reply { result: reply.result.map(|text| text.replace(from, to)), ..reply })
}

#[test]
fn suite_detects_defects() {
    let lies: [(&str, &str, Lie); 6] = [
        ("deletes that do nothing", "cycles: a deleted namespace lets its endpoints live", |service, function, args| match function {
            Function::Delete(_) => Ok(Reply::default()),
            _ => service.call(function, args),
        }),
        ("one code for all errors", "errors: a network's name is unique", |service, function, args| {
            service.call(function, args).map_err(|_| RawError::with_record(HResult::FAIL, "Unspecified error "))
        }),
        ("no error records", "errors: an error record says the code", |service, function, args| {
            service.call(function, args).map_err(|error| error.hresult.into())
        }),
        ("lost settings", "policies: policies of a pod come back", |service, function, args| {
            retold(service.call(function, args), "\"NeedEncap\":true", "\"NeedEncap\":false")
        }),
        ("a random id for each endpoint", "documents: the client's GUID is kept", |service, function, args| match function {
            Function::Create(hcn::Kind::Endpoint) => service.call(function, Args { id: None, ..args }),
            _ => service.call(function, args),
        }),
        ("modifies that do nothing", "features: a load balancer is changed in place", |service, function, args| match function {
            Function::Modify(hcn::Kind::LoadBalancer) => Ok(Reply::default()),
            _ => service.call(function, args),
        }),
    ];
    for (what, noticed, lie) in lies {
        let service = Service::new(HnsVersion::new(15, 5));
        let report = run(Arc::new(Liar { service, lie }), &Options::default(), |_| {}).unwrap();
        assert!(report.failures().contains(noticed), "{what} is not noticed by {noticed:?}:\n{report}");
        assert!(report.count(Outcome::Passed) > 0, "{what}: the suite goes on after a case that differs:\n{report}");
    }
}

#[test]
fn suite_refuses_a_host_in_use() {
    let service = Service::new(HnsVersion::new(13, 3));
    let client = hcn::blocking::Client::new(service.clone());
    let subnet = hcn::Subnet::new("10.9.0.0/24".parse().unwrap(), [10, 9, 0, 1].into());
    let foreign = hcn::HostComputeNetwork::new("production", NetworkType::L2Bridge, subnet);
    let foreign = client.create(hcn::Guid::random(), &foreign).unwrap();
    let refusal = run(service.clone(), &Options::default(), |_| {}).unwrap_err();
    assert!(refusal.to_string().contains("production") && refusal.to_string().contains("--among-foreign"), "{refusal}");

    let report = run(service, &Options { among_foreign: true, ..Options::default() }, |_| {}).unwrap();
    assert!(report.passed(), "{}", report.failures());
    let left = client.list::<hcn::HostComputeNetwork>(&hcn::Query::default()).unwrap();
    assert_eq!(left, [foreign], "the suite removes its own networks and nothing else");
    assert_eq!(client.list::<hcn::HostComputeEndpoint>(&hcn::Query::default()).unwrap(), []);
    assert_eq!(client.list::<hcn::HostComputeLoadBalancer>(&hcn::Query::default()).unwrap(), []);
    assert_eq!(client.list::<hcn::HostComputeNamespace>(&hcn::Query::default()).unwrap(), []);
}
