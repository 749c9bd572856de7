//! Calls that are killed, at every step; addresses that rest; many calls at once; what a call asks of HNS.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, mpsc};

use hcn::port::{Args, EventSink, Reply, Subscription};
use hcn::{Function, HostNetwork, RawError};

use super::*;
use crate::steps::{dying_after, step};

/// A service whose every call is a step before, and one after it.
struct Stepped(Arc<dyn HostNetwork>);

impl HostNetwork for Stepped {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        // A handle that unwinding closes is one that the kernel closes.
        if matches!(function, Function::Close(_)) {
            return self.0.call(function, args);
        }
        step();
        let reply = self.0.call(function, args);
        step();
        reply
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.0.subscribe(sink)
    }
}

fn fault(host: &Host, text: &str) {
    host.simulator.controls().add_fault(text.parse().unwrap()).unwrap();
}

/// What of pods is left: names of endpoints, and addresses.
fn left(host: &Host) -> Vec<String> {
    host.endpoints().into_iter().map(|endpoint| endpoint.name).chain(host.reserved()).collect()
}

fn gc(host: &Host, valid: Value) -> Result<(), CniError> {
    let mut conf = host.conf();
    conf["cni.dev/valid-attachments"] = valid;
    host.call(Command::Gc, "", "", conf).map(drop)
}

#[test]
fn what_a_killed_call_left_goes_with_gc_or_a_second_call() {
    let mut host = Host::new();
    let namespace = host.make_namespace().to_string();
    let plain = host.client.clone();
    let stepped = Client::new(Arc::new(Stepped(host.simulator.session())));
    let mut states = BTreeSet::new();
    for after in 0.. {
        host.client = stepped.clone();
        let died = dying_after(after, || host.call(Command::Add, "a", &namespace, host.conf()));
        host.client = plain.clone();
        states.insert(left(&host));
        gc(&host, json!([])).unwrap();
        assert_eq!(left(&host), [""; 0], "GC after {after} steps");
        if let Some(whole) = died {
            whole.unwrap();
            assert!(after > 15, "only {after} steps");
            break;
        }
        host.client = stepped.clone();
        assert!(dying_after(after, || host.call(Command::Add, "a", &namespace, host.conf())).is_none());
        host.client = plain.clone();
        let result = host.call(Command::Add, "a", &namespace, host.conf()).unwrap().unwrap();
        let address = result.primary_ip().unwrap().to_string();
        assert_eq!(left(&host), ["a_pods".to_owned(), address], "a second ADD after {after} steps");
        let made = host.endpoints().pop().unwrap();
        assert_eq!(made.host_compute_namespace.to_string(), namespace);
        host.client = stepped.clone();
        let died = dying_after(after, || host.call(Command::Del, "a", &namespace, host.conf()));
        host.client = plain.clone();
        host.call(Command::Del, "a", &namespace, host.conf()).unwrap();
        assert_eq!(left(&host), [""; 0], "DEL after one that {died:?} after {after} steps");
    }
    assert!(states.iter().any(|left| left.len() == 2) && states.iter().any(|left| left.len() == 1), "{states:?}");
}

/// HNS says that it deleted the endpoint, and has it: its address is not given out.
#[test]
fn an_address_rests_until_hns_is_free_of_it() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    let ranges = |conf: &mut Value| {
        conf["ipam"]["ranges"] = json!([[{"subnet": "10.10.187.64/26", "rangeStart": "10.10.187.70", "rangeEnd": "10.10.187.71"}]])
    };
    let mut conf = host.conf();
    ranges(&mut conf);
    host.call(Command::Add, "a", &namespace, conf.clone()).unwrap();
    // Once: DEL sees it, and deletes again.
    fault(&host, "stale-endpoint,count=1");
    host.call(Command::Del, "a", &namespace, conf.clone()).unwrap();
    assert_eq!(left(&host), [""; 0]);
    host.call(Command::Add, "b", &namespace, conf.clone()).unwrap();
    fault(&host, "stale-endpoint,count=all");
    let error = host.call(Command::Del, "b", &namespace, conf.clone()).unwrap_err();
    assert!(error.code == code::TRY_AGAIN && error.msg.contains("still shows it"), "{error:?}");
    assert_eq!(left(&host), ["b_pods", "10.10.187.71"]);
    let mut dead = conf.clone();
    dead["cni.dev/valid-attachments"] = json!([]);
    host.call(Command::Gc, "", "", dead.clone()).unwrap_err();
    assert_eq!(left(&host), ["b_pods", "10.10.187.71"], "GC lets it rest, too");
    host.simulator.clear_faults();
    host.call(Command::Gc, "", "", dead).unwrap();
    assert_eq!(left(&host), [""; 0]);
}

/// HNS has an endpoint with the address that is free here: of a sandbox that is gone, it is removed; of somebody else, another address is taken.
#[test]
fn an_address_that_hns_has_is_not_given_out() {
    let host = Host::new();
    let network = host.client.get_by_name::<HostComputeNetwork>("pods").unwrap().unwrap().id;
    let squat = |ip: &str, owner: &str, name: &str| {
        let endpoint = HostComputeEndpoint { owner: owner.into(), ..HostComputeEndpoint::local(name, format!("{ip}/26").parse().unwrap(), None) };
        host.client.create_endpoint(&network, Guid::random(), &endpoint).unwrap().id
    };
    let dead = squat("10.10.187.70", OWNER, "gone_pods");
    let foreign = [squat("10.10.187.71", "somebody", "x"), squat("10.10.187.72", "somebody", "y")];
    let add = |id: &str| {
        let namespace = host.make_namespace().to_string();
        host.call(Command::Add, id, &namespace, host.conf()).map(|result| result.unwrap().primary_ip().unwrap().to_string())
    };
    assert_eq!(add("a").unwrap(), "10.10.187.70", "in the place of the dead one");
    assert!(host.endpoints().iter().all(|endpoint| endpoint.id != dead));
    assert_eq!(add("b").unwrap(), "10.10.187.73");
    assert!(foreign.iter().all(|id| host.endpoints().iter().any(|endpoint| endpoint.id == *id)), "others' endpoints are left alone");
    assert_eq!(host.reserved(), ["10.10.187.70", "10.10.187.73"]);
    // A live pod of ours keeps its address, whatever the files say.
    std::fs::remove_file(host.ipam_dir.path().join("pods/10.10.187.70")).unwrap();
    std::fs::write(host.ipam_dir.path().join("pods/last_reserved_ip.0"), "10.10.187.126").unwrap();
    assert_eq!(add("c").unwrap(), "10.10.187.74");
    // Where all addresses are taken, ADD ends with HNS's reason and leaves nothing.
    let mut small = host.conf();
    small["ipam"]["ranges"] = json!([[{"subnet": "10.10.187.64/26", "rangeStart": "10.10.187.71", "rangeEnd": "10.10.187.72"}]]);
    let before = left(&host);
    let error = host.call(Command::Add, "d", &host.make_namespace().to_string(), small).unwrap_err();
    assert_eq!((error.code, left(&host)), (code::HOST_NETWORK, before), "{error:?}");
}

/// A service that refuses every address is asked for some, not for all that address management has.
#[test]
fn an_add_tries_a_bounded_number_of_addresses() {
    let host = Host::new();
    let namespace = host.make_namespace().to_string();
    fault(&host, "ep-dup-ip");
    host.simulator.controls().calls.reset();
    let error = host.call(Command::Add, "a", &namespace, host.conf()).unwrap_err();
    let counters = host.simulator.controls().calls.counters();
    let creates = counters.into_iter().find(|(call, _)| call.contains("CreateEndpoint")).unwrap().1.calls;
    assert_eq!((creates, error.code, left(&host)), (MOST_TRIES as u64 + 1, code::HOST_NETWORK, Vec::new()), "{error:?}");
    host.simulator.clear_faults();
    let result = host.call(Command::Add, "a", &namespace, host.conf()).unwrap().unwrap();
    assert_eq!(result.primary_ip().unwrap().to_string(), "10.10.187.87", "the one behind those that were tried");
}

/// Every call of HNS but for opening and closing. The pod network names its network's id; without it, or with an old one, HNS looks for the name.
#[test]
fn an_add_asks_hns_four_times_and_a_del_too() {
    let host = Host::new();
    let network = host.client.ids::<HostComputeNetwork>(&hcn::Query::by_name("pods")).unwrap()[0];
    let named = |id: Guid| {
        let mut conf = host.conf();
        (conf["hnsNetwork"], conf["loopbackDSR"]) = (json!(id.to_string()), json!(true));
        conf
    };
    let work = |command: Command, pod: &str, conf: Value| {
        let namespace = host.make_namespace().to_string();
        host.simulator.controls().calls.reset();
        host.call(command, pod, &namespace, conf).unwrap();
        let counters = host.simulator.controls().calls.counters();
        let counted = counters.into_iter().filter(|(call, _)| !call.contains("Open") && !call.contains("Close"));
        counted.map(|(call, counter)| format!("{call} {}", counter.calls)).collect::<Vec<_>>()
    };
    let four = ["HcnCreateEndpoint 1", "HcnModifyNamespace 1", "HcnQueryEndpointProperties 1", "HcnQueryNetworkProperties 1"];
    assert_eq!(work(Command::Add, "a", named(network)), four);
    let by_name =
        ["HcnCreateEndpoint 1", "HcnEnumerateNetworks 1", "HcnModifyNamespace 1", "HcnQueryEndpointProperties 1", "HcnQueryNetworkProperties 1"];
    assert_eq!(work(Command::Add, "b", host.conf()), by_name);
    assert_eq!(work(Command::Add, "c", named(Guid::random())), by_name, "a network with another id was made since");
    let del = work(Command::Del, "a", host.conf());
    assert_eq!(del, ["HcnDeleteEndpoint 1", "HcnEnumerateEndpoints 1", "HcnModifyNamespace 1", "HcnQueryEndpointProperties 1"]);
}

#[test]
fn a_hundred_pods_at_once_have_addresses_of_their_own() {
    let host = Host::new();
    host.client
        .create(
            Guid::random(),
            &HostComputeNetwork::new("many", NetworkType::L2Bridge, Subnet::new("10.20.0.0/16".parse().unwrap(), "10.20.0.1".parse().unwrap())),
        )
        .unwrap();
    let mut conf = host.conf();
    conf["name"] = json!("many");
    conf["ipam"]["ranges"] = json!([[{"subnet": "10.20.0.0/16", "rangeStart": "10.20.0.3"}]]);
    let pods: Vec<(String, String)> = (0..100).map(|n| (format!("pod{n}"), host.make_namespace().to_string())).collect();
    let (host, conf) = (&host, &conf);
    let all = |command: Command| {
        std::thread::scope(|scope| {
            let calls: Vec<_> = pods
                .iter()
                .map(|(id, namespace)| {
                    scope.spawn(move || {
                        handle_over(&Client::new(host.simulator.session()), &request(command, id, namespace, conf.clone()), Kind::Bridge).unwrap()
                    })
                })
                .collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect::<Vec<_>>()
        })
    };
    let addresses: BTreeSet<_> = all(Command::Add).into_iter().map(|result| result.unwrap().primary_ip().unwrap()).collect();
    assert_eq!((addresses.len(), host.endpoints().len()), (100, 100));
    all(Command::Del);
    assert!(host.endpoints().is_empty());
}

/// A service that says when it is to create an endpoint, and waits to be told so.
struct Held {
    service: Arc<dyn HostNetwork>,
    arrived: mpsc::Sender<()>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl HostNetwork for Held {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        if function == Function::Create(hcn::Kind::Endpoint) {
            self.arrived.send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        self.service.call(function, args)
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.service.subscribe(sink)
    }
}

/// A pod whose endpoint HNS does not finish holds no other pod up.
#[test]
fn a_call_that_hangs_holds_no_lock() {
    let host = Host::new();
    let namespaces = ["a", "b"].map(|_| host.make_namespace().to_string());
    let ((arrived, arrival), (leave, go)) = (mpsc::channel(), mpsc::channel());
    let held = Client::new(Arc::new(Held { service: host.simulator.session(), arrived, go: Mutex::new(go) }));
    let [first, second] = namespaces.each_ref().map(|namespace| (namespace.as_str(), host.conf()));
    std::thread::scope(|scope| {
        let hanging = scope.spawn(move || handle_over(&held, &request(Command::Add, "a", first.0, first.1), Kind::Bridge));
        arrival.recv().unwrap();
        let result = host.call(Command::Add, "b", second.0, second.1.clone()).unwrap().unwrap();
        assert_eq!(result.primary_ip().unwrap().to_string(), "10.10.187.71");
        host.call(Command::Del, "b", second.0, second.1).unwrap();
        leave.send(()).unwrap();
        assert_eq!(hanging.join().unwrap().unwrap().unwrap().primary_ip().unwrap().to_string(), "10.10.187.70");
    });
}
