//! The service over its sockets: typed client, deadlines, faults, counters, tables. No kernel.
#![cfg(unix)]

use std::path::Path;
use std::time::Duration;

use hcn::document::*;
use hcn::table::{Listing, render};
use hcn::{Guid, HResult, HcnClient, HcnError, HnsVersion};
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use hns_sim::{Config, Simulator, admin, server};
use serde_json::{Value, json};
use test_lab::{LIMIT, until, until_async};

fn id(number: u8) -> Guid {
    format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap()
}

fn network() -> HostComputeNetwork {
    HostComputeNetwork::new("mullion", NetworkType::L2Bridge, Subnet::new("192.168.1.0/24".parse().unwrap(), [192, 168, 1, 1].into()))
}

fn config(directory: &Path) -> Config {
    Config {
        node: "win01".into(),
        netns_dir: directory.join("ns"),
        state_dir: directory.join("hns"),
        socket: directory.join("win01.hcn"),
        admin_socket: directory.join("win01.hcn-admin"),
        hns_version: HnsVersion::new(15, 5),
        uplink: "eth0".into(),
        switches: Vec::new(),
        options: hns_sim::Options::default(),
    }
}

fn service() -> (tempfile::TempDir, HcnClient) {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(config.hns_version), None).unwrap();
    server::serve(&simulator, &config).unwrap();
    let client = HcnClient::connect(&format!("unix:{}", config.socket.display())).unwrap();
    (directory, client)
}

fn ask(directory: &tempfile::TempDir, call: &str, args: Value) -> std::io::Result<Value> {
    admin::request(&directory.path().join("win01.hcn-admin"), call, args)
}

#[tokio::test]
async fn typed_client_works_over_the_socket() {
    let (directory, client) = service();
    assert!(client.features().await.unwrap().modify_load_balancer);
    assert_eq!(client.network_by_name("mullion").await.unwrap(), None);
    client.create_network(id(1), &network()).await.unwrap();
    let pod = HostComputeEndpoint::local("pod", "192.168.1.5/24".parse().unwrap(), Some([192, 168, 1, 1].into()));
    client.create_endpoint(&id(1), id(2), &pod).await.unwrap();
    client.create_endpoint(&id(1), id(3), &HostComputeEndpoint::remote([192, 168, 2, 7].into())).await.unwrap();
    client.create_namespace(id(4), &HostComputeNamespace::default()).await.unwrap();
    client.add_endpoint_to_namespace(&id(4), &id(2)).await.unwrap();
    client.add_endpoint_to_namespace(&id(4), &id(2)).await.expect("being there already is success");
    let balancer = HostComputeLoadBalancer::new(Some([10, 96, 0, 1].into()), Protocol::TCP, 80, 8080, vec![id(2), id(3)]);
    client.create_load_balancer(id(5), &balancer).await.unwrap();
    client.modify_load_balancer(&id(5), &HostComputeLoadBalancer { host_compute_endpoints: vec![id(3)], ..balancer }).await.unwrap();
    assert_eq!(client.endpoints_of(&id(1)).await.unwrap().len(), 2);
    assert_eq!(client.namespace(&id(4)).await.unwrap().unwrap().endpoints().collect::<Vec<_>>(), [id(2)]);
    client.create_route(id(6), &HostComputeRoute { host_compute_endpoints: vec![id(2)], ..HostComputeRoute::default() }).await.unwrap();
    assert_eq!(client.routes().await.unwrap().len(), 1);
    let nobody = client.create_load_balancer(id(7), &HostComputeLoadBalancer::default()).await.unwrap_err();
    assert_eq!(nobody.hresult(), Some(HResult::INVALID_POLICY));

    let lists = Listing::ALL.map(|listing| render(client.blocking(), listing, false).unwrap());
    assert!(lists[0].contains("mullion   L2Bridge   192.168.1.0/24   192.168.1.1   10.240.0.11"), "{}", lists[0]);
    assert!(lists[1].contains("192.168.2.7   02-11-C0-A8-02-07   remote"), "{}", lists[1]);
    assert!(lists[2].contains("10.96.0.1   80     tcp        192.168.2.7:8080"), "{}", lists[2]);
    assert_eq!(lists[3].lines().count(), 2, "{}", lists[3]);
    let json: Vec<HostComputeEndpoint> = serde_json::from_str(&render(client.blocking(), Listing::Endpoints, true).unwrap()).unwrap();
    assert_eq!(json.len(), 2);

    for number in [5, 5] {
        client.delete_load_balancer(&id(number)).await.expect("absence is success");
    }
    client.remove_endpoint_from_namespace(&id(4), &id(2)).await.unwrap();
    client.remove_endpoint_from_namespace(&id(4), &id(2)).await.expect("absence is success");
    client.delete_network(&id(1)).await.unwrap();
    assert_eq!(client.endpoints().await.unwrap(), []);
    let counters = ask(&directory, "counters", Value::Null).unwrap();
    assert_eq!(counters["HcnCreateEndpoint"]["calls"], 2, "{counters}");
    assert_eq!(counters["HcnCreateLoadBalancer"]["failed"], 1, "{counters}");
    let log = ask(&directory, "calls", Value::Null).unwrap();
    assert!(log.as_array().unwrap().iter().any(|call| call["call"] == "HcnDeleteNetwork" && call["id"] == json!(id(1))), "{log}");
}

#[tokio::test]
async fn faults_hit_calls_and_deadlines_hold() {
    let (directory, client) = service();
    client.create_network(id(1), &network()).await.unwrap();
    ask(&directory, "add-fault", json!({"name": "fail-call", "call": "HcnOpenNetwork", "hresult": HResult::RPC_CALL_FAILED, "count": 1})).unwrap();
    let error = client.network(&id(1)).await.unwrap_err();
    assert!(error.is_service_down() && !error.is_not_found(), "{error}");
    assert!(client.network(&id(1)).await.unwrap().is_some(), "it hit once");
    ask(&directory, "add-fault", json!({"name": "slow-call", "delay_ms": 400})).unwrap();
    let hasty = client.clone().with_deadline(Duration::from_millis(50));
    let error = hasty.delete_network(&id(1)).await.unwrap_err();
    assert!(matches!(error, HcnError::Deadline { .. }) && error.to_string().contains("deleting network"), "{error}");
    assert_eq!(ask(&directory, "faults", Value::Null).unwrap().as_array().unwrap().len(), 1);
    ask(&directory, "clear-faults", Value::Null).unwrap();
    until_async("the slow delete", async || client.network(&id(1)).await.unwrap().is_none()).await;
    assert!(ask(&directory, "add-fault", json!({"name": "flood"})).is_err());
    assert!(ask(&directory, "add-fault", json!({"name": "slow-call", "delay_ms": 1, "color": "red"})).is_err());
    assert!(ask(&directory, "dance", Value::Null).is_err());
}

#[test]
fn restart_cuts_connections_and_clients_reconnect() {
    use hcn::blocking::Client;
    use hns_sim::admin::{AdminClient, CallFilter, RestartMode};

    let (directory, service) = service();
    let client: &Client = service.blocking();
    let admin = AdminClient::new(directory.path().join("win01.hcn-admin"));
    client.create(id(1), &network()).unwrap();
    let (sender, heard) = std::sync::mpsc::channel();
    let subscribe = |client: &Client| {
        let sender = std::sync::Mutex::new(sender.clone());
        client.subscribe(std::sync::Arc::new(move |event: hcn::Event| sender.lock().unwrap().send(event.event_type).unwrap_or(()))).unwrap()
    };
    let next = || heard.recv_timeout(LIMIT).unwrap();
    let subscription = subscribe(client);
    client.create(id(2), &HostComputeNamespace::default()).unwrap();
    assert_eq!(next(), hcn::Event::NAMESPACE_CREATE, "events cross the socket");
    // A call that hangs is cut off by the restart, as everything is.
    let number = admin.add_fault(&"ep-delete-hang".parse().unwrap()).unwrap();
    let hung = Client::connect(&format!("unix:{}", directory.path().join("win01.hcn").display())).unwrap();
    let hung = std::thread::spawn(move || hung.delete::<HostComputeEndpoint>(&id(9)).unwrap_err());
    until("the delete hangs", || admin.faults().unwrap()[0].hits > 0);
    admin.restart(RestartMode::Clean, Duration::from_millis(50)).unwrap();
    assert!(hung.join().unwrap().is_service_down());
    assert_eq!(next(), hcn::Event::SERVICE_DISCONNECT);
    drop(subscription);
    assert!(!admin.status().unwrap().running);
    until("an answer of the restarted service", || client.features());
    let _subscription = subscribe(client);
    client.delete::<HostComputeNamespace>(&id(2)).unwrap();
    assert_eq!(next(), hcn::Event::NAMESPACE_DELETE, "who registers again hears again");
    assert_eq!(client.ids::<HostComputeNetwork>(&Query::default()).unwrap(), [id(1)]);

    let status = admin.status().unwrap();
    assert_eq!((status.running, status.restarts, status.objects["Network"], status.faults), (true, 1, 1, 1));
    admin.remove_fault(number).unwrap();
    assert!(admin.remove_fault(number).is_err());
    let failed = admin.calls(&CallFilter { failed: true, call: Some("HcnDeleteEndpoint".into()), ..CallFilter::default() }).unwrap();
    assert_eq!((failed.len(), failed[0].faults.as_slice()), (1, ["ep-delete-hang".to_owned()].as_slice()));
    let latest = admin.calls(&CallFilter { limit: Some(2), ..CallFilter::default() }).unwrap();
    assert!(latest.len() == 2 && latest[0].number + 1 == latest[1].number, "{latest:?}");
    assert!(admin.calls(&CallFilter { since: latest[1].number, ..CallFilter::default() }).unwrap().is_empty());
    let latency = "read=1ms,write=2ms".parse().unwrap();
    admin.set_latency(&latency).unwrap();
    assert_eq!(admin.latency().unwrap(), latency);
    assert!(admin.switches().unwrap().iter().any(|switch| switch.name == "reserve-gateway" && switch.value == "true"));
    admin.set_switch("host-needs-route=false").unwrap();
    assert!(admin.switches().unwrap().iter().any(|switch| switch.name == "host-needs-route" && switch.value == "false"));
    for wrong in ["host-needs-route=perhaps", "weather=fine", "weather"] {
        assert!(admin.set_switch(wrong).is_err(), "{wrong}");
    }
    assert_eq!(admin.calls(&CallFilter { call: Some("HcnDelete*".into()), ..CallFilter::default() }).unwrap().len(), 2);
    admin.reset_counters().unwrap();
    assert!(admin.counters().unwrap().is_empty());
    admin.wipe().unwrap();
    assert_eq!(admin.status().unwrap().objects.values().sum::<usize>(), 0);
}

#[test]
fn missing_service_is_reported_down() {
    let directory = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = HcnClient::connect(&format!("unix:{}", directory.path().join("none").display())).unwrap();
    let error = runtime.block_on(client.networks()).unwrap_err();
    assert!(error.is_service_down() && error.to_string().contains("none"), "{error}");
}
