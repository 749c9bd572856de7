use hcn::{HnsVersion, HostComputeEndpoint, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use serde_json::{Value, json};
use test_lab::api::ScriptedApi;
use test_lab::{in_time, same, until_async};

use super::*;
use crate::hns::{Periods, vip_key};

const SERVICES: &str = "/api/v1/services";
const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(1 << 31);

fn api() -> ScriptedApi {
    ScriptedApi::new(&[(SERVICES, "v1", "Service"), (SLICES, "discovery.k8s.io/v1", "EndpointSlice")])
}

fn service(version: u32) -> Value {
    json!({"metadata": {"name": "web", "namespace": "default", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}})
}

fn slice(version: u32, addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|ip| json!({"addresses": [ip], "nodeName": "there"})).collect();
    json!({"metadata": {"name": "web-1", "namespace": "default", "resourceVersion": version.to_string(), "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints})
}

/// Waits until HNS has load balancers with these numbers of backends.
async fn until(hcn: &HcnClient, expected: &[(&str, usize)]) {
    let expected: Vec<(String, usize)> = expected.iter().map(|(key, count)| ((*key).to_owned(), *count)).collect();
    let seen = async || {
        let all = hcn.load_balancers().await.unwrap();
        all.iter().map(|lb| (vip_key(lb).unwrap().to_string(), lb.host_compute_endpoints.len())).collect::<Vec<_>>()
    };
    until_async(format_args!("{expected:?}"), async || same(seen().await, &expected)).await;
}

/// A simulated host with a pod network.
struct Host {
    simulator: Simulator,
    hcn: HcnClient,
}

impl Host {
    async fn new() -> Self {
        Self::of(HnsVersion::new(15, 5)).await
    }

    async fn of(version: HnsVersion) -> Self {
        let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
        let hcn = HcnClient::new(simulator.session());
        let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
        hcn.create_network(hcn::Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap();
        Self { simulator, hcn }
    }

    fn config(&self, client: Client, status: watch::Sender<Status>) -> Config {
        let backend = BackendConfig::Hns { client: self.hcn.clone(), settings: crate::hns::Settings::new("pods") };
        Config { status: Some(status), ..Config::new(client, "here", "uid", backend) }
    }
}

/// Upstream notes that it synced although Services failed.
#[tokio::test]
async fn health_follows_pending_work_not_attempts() {
    let (host, mut api) = (Host::new().await, api());
    let (status, mut seen) = watch::channel(Status::default());
    let config = host.config(api.client.clone(), status);
    let metrics = config.metrics.clone();
    let proxy = tokio::spawn(run(config, std::future::pending()));
    host.simulator.add_fault("fail-call=0x80004005,call=HcnCreateLoadBalancer".parse().unwrap()).unwrap();
    api.send(SERVICES, "ADDED", service(1));
    api.send(SLICES, "ADDED", slice(1, &["192.168.2.3"]));
    api.listed();
    let reported = seen.wait_for(|status| status.ready && !status.progress.failing.is_empty());
    let failing = in_time("a report of it", reported).await.unwrap().clone();
    assert!(!failing.is_converged() && metrics.last_synced().is_none(), "{failing:?}");
    assert!(failing.stuck_since.is_some() && failing.is_healthy(test_lab::LIMIT), "it waits, but not for long yet");
    assert!(!failing.is_healthy(Duration::ZERO));
    // The Service gets an event when it lasts.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    let event = in_time("an event", api.writes.recv()).await.unwrap();
    assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&json!("ServiceNotServed"), &json!("web")));
    assert!(event["message"].as_str().is_some_and(|text| text.starts_with("10.96.0.7:80/tcp: ")), "{event}");
    host.simulator.clear_faults();
    in_time("the retry", seen.wait_for(|status| status.is_converged() && status.stuck_since.is_none())).await.unwrap();
    assert!(metrics.last_synced().is_some());
    proxy.abort();
    parity::proved(parity::Hns, &["Health says synced although Services failed"]);
}

/// Policy Local asks for clients' addresses, which a version without direct server return hides; policy Cluster does not ask.
#[tokio::test]
async fn lost_client_address_is_an_event_of_the_requesting_service() {
    let asking = |policy: &str| {
        json!({"metadata": {"name": "web", "namespace": "default", "resourceVersion": "1"},
            "spec": {"type": "NodePort", "externalTrafficPolicy": policy, "clusterIP": "10.96.0.7", "ports": [{"port": 80, "nodePort": 30080}]}})
    };
    for (version, policy, reported) in
        [(HnsVersion::new(10, 0), "Local", true), (HnsVersion::new(10, 0), "Cluster", false), (HnsVersion::new(13, 3), "Local", false)]
    {
        let (host, mut api) = (Host::of(version).await, api());
        let pod = HostComputeEndpoint::local("pod", "192.168.1.5/24".parse().unwrap(), None);
        let network = host.hcn.network_by_name("pods").await.unwrap().unwrap().id;
        host.hcn.create_endpoint(&network, hcn::Guid::random(), &pod).await.unwrap();
        let (status, mut seen) = watch::channel(Status::default());
        let proxy = tokio::spawn(run(host.config(api.client.clone(), status), std::future::pending()));
        let mut local = slice(1, &["192.168.1.5"]);
        local["endpoints"][0]["nodeName"] = json!("here");
        api.send(SERVICES, "ADDED", asking(policy));
        api.send(SLICES, "ADDED", local);
        api.listed();
        in_time("convergence", seen.wait_for(|status| status.is_converged() && status.vips == 2)).await.unwrap();
        let event = if reported {
            in_time("an event", api.writes.recv()).await
        } else {
            // Time in which it must not come.
            tokio::time::timeout(Duration::from_secs(1), api.writes.recv()).await.ok().flatten()
        };
        let event = event.map(|event| (event["reason"].clone(), event["involvedObject"]["name"].clone(), event["message"].to_string()));
        assert_eq!(event.is_some(), reported, "HNS {version}, {policy}: {event:?}");
        if let Some((reason, service, message)) = event {
            assert_eq!((reason, service), (json!("NoClientAddress"), json!("web")));
            assert!(message.contains("externalTrafficPolicy Local"), "{message}");
        }
        proxy.abort();
    }
}

#[tokio::test]
async fn loop_waits_for_both_lists_follows_the_api_and_repairs_drift() {
    let (host, api) = (Host::new().await, api());
    let hcn = host.hcn.clone();
    let (status, _) = watch::channel(Status::default());
    // What happens does not wait for the next full pass.
    let config = Config { full_pass: Duration::from_secs(86_400), ..host.config(api.client.clone(), status) };
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let proxy = tokio::spawn(run(config, async move { drop(stopped.await) }));
    api.send(SERVICES, "ADDED", service(1));
    api.send(SLICES, "ADDED", slice(1, &["192.168.2.3"]));
    // Time in which nothing must be created.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(hcn.load_balancers().await.unwrap().is_empty(), "half a list is no list");
    api.listed();
    until(&hcn, &[("10.96.0.7:80/tcp", 1)]).await;
    api.send(SLICES, "MODIFIED", slice(2, &["192.168.2.3", "192.168.2.4"]));
    until(&hcn, &[("10.96.0.7:80/tcp", 2)]).await;
    // Another program deletes it.
    let id = hcn.load_balancers().await.unwrap()[0].id;
    hcn.delete_load_balancer(&id).await.unwrap();
    until(&hcn, &[("10.96.0.7:80/tcp", 2)]).await;
    api.send(SERVICES, "DELETED", service(3));
    until(&hcn, &[]).await;
    stop.send(()).unwrap();
    proxy.await.unwrap();
}

#[tokio::test]
async fn convergence_is_reported_at_once() {
    let (host, api) = (Host::new().await, api());
    let (status, mut seen) = watch::channel(Status::default());
    let mut config = Config { full_pass: NEVER, ..host.config(api.client.clone(), status) };
    // Neither the next enumeration nor the next full pass brings the report.
    let periods = Periods { enumerate: NEVER, network: NEVER, round: NEVER, pause: NEVER };
    config.backend = BackendConfig::Hns { client: host.hcn.clone(), settings: crate::hns::Settings { periods, ..crate::hns::Settings::new("pods") } };
    let proxy = tokio::spawn(run(config, std::future::pending()));
    api.send(SERVICES, "ADDED", service(1));
    api.send(SLICES, "ADDED", slice(1, &["192.168.2.3"]));
    api.listed();
    in_time("a report of convergence", seen.wait_for(|status| status.is_converged() && status.vips == 1)).await.unwrap();
    until(&host.hcn, &[("10.96.0.7:80/tcp", 1)]).await;
    proxy.abort();
}

/// What a load balancer hears that asks a node for a Service: the status and the number of ready pods there.
#[cfg(target_os = "linux")]
fn health(port: u16) -> Option<(String, String)> {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(test_lab::LIMIT)).ok()?;
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let weight = text.to_lowercase().lines().find_map(|line| Some(line.strip_prefix("x-load-balancing-endpoint-weight: ")?.to_owned()));
    Some((text.split(' ').nth(1)?.to_owned(), weight?))
}

#[cfg(target_os = "linux")]
async fn health_follows_pods_on_the_node(backend: BackendConfig) {
    let api = api();
    let proxy = tokio::spawn(run(Config::new(api.client.clone(), "here", "uid", backend), std::future::pending()));
    let local = json!({"metadata": {"name": "web", "namespace": "default", "resourceVersion": "1"},
        "spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 32000, "clusterIP": "10.96.0.7",
            "ports": [{"port": 80, "nodePort": 30080}]}});
    let mut pods = slice(1, &["192.168.1.5", "192.168.2.3"]);
    pods["endpoints"][0]["nodeName"] = json!("here");
    api.send(SERVICES, "ADDED", local);
    api.send(SLICES, "ADDED", pods);
    api.listed();
    until_health(Some(("200", "1"))).await;
    api.send(SLICES, "MODIFIED", slice(2, &["192.168.2.3"]));
    until_health(Some(("503", "0"))).await;
    api.send(SERVICES, "DELETED", service(3));
    until_health(None).await;
    proxy.abort();
}

#[cfg(target_os = "linux")]
async fn until_health(expected: Option<(&str, &str)>) {
    let expected = expected.map(|(status, weight)| (status.to_owned(), weight.to_owned()));
    let heard = async || tokio::task::spawn_blocking(|| health(32000)).await.unwrap();
    until_async(format_args!("health {expected:?}"), async || same(heard().await, &expected)).await;
}

/// The whole proxy in each mode, from the API to the client.
#[cfg(target_os = "linux")]
#[test]
fn each_mode_answers_at_the_health_check_node_port() {
    use linux_sys::ns::in_lab;
    in_lab("run::tests::each_mode_answers_at_the_health_check_node_port", || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
            let host = Host::new().await;
            let pod = HostComputeEndpoint::local("pod", "192.168.1.5/24".parse().unwrap(), None);
            let network = host.hcn.network_by_name("pods").await.unwrap().unwrap().id;
            host.hcn.create_endpoint(&network, hcn::Guid::random(), &pod).await.unwrap();
            health_follows_pods_on_the_node(BackendConfig::Hns { client: host.hcn.clone(), settings: crate::hns::Settings::new("pods") }).await;
            let node: std::net::IpAddr = "10.240.0.11".parse().unwrap();
            let nftables = crate::nftables::Settings::new(vec![node], crate::nftables::Pods::Unknown);
            health_follows_pods_on_the_node(BackendConfig::Nftables(nftables)).await;
            let userspace = crate::userspace::Settings {
                interface: Some(Arc::new(host::LinuxAddresses::open("lo").unwrap())),
                node_ips: vec![],
                node_ports: crate::node_ports::NodePorts::Primary,
                pods: vec![],
                udp_idle: Duration::from_secs(1),
            };
            health_follows_pods_on_the_node(BackendConfig::Userspace(userspace)).await;
        });
    });
    parity::Mode::ALL.into_iter().for_each(|mode| parity::proved(mode, &["healthCheckNodePort"]));
}

/// The same in user space, where another program has the address: pending VIPs are reported, and nothing counts as synced until it is served.
#[cfg(target_os = "linux")]
#[test]
fn userspace_is_not_synced_while_a_vip_fails() {
    use linux_sys::ns::in_lab;
    in_lab("run::tests::userspace_is_not_synced_while_a_vip_fails", || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
            let api = api();
            let (status, mut seen) = watch::channel(Status::default());
            let settings = crate::userspace::Settings {
                interface: None,
                node_ips: vec!["127.0.0.1".parse().unwrap()],
                node_ports: crate::node_ports::NodePorts::Primary,
                pods: vec![],
                udp_idle: Duration::from_secs(1),
            };
            let backend = BackendConfig::Userspace(settings);
            let config = Config { status: Some(status), ..Config::new(api.client.clone(), "here", "uid", backend) };
            let metrics = config.metrics.clone();
            let taken = std::net::TcpListener::bind("127.0.0.1:30080").unwrap();
            let proxy = tokio::spawn(run(config, std::future::pending()));
            // The ClusterIP is an address that the host has.
            let service = json!({"metadata": {"name": "web", "namespace": "default", "resourceVersion": "1"},
                "spec": {"type": "NodePort", "clusterIP": "127.0.0.7", "ports": [{"port": 80, "nodePort": 30080}]}});
            api.send(SERVICES, "ADDED", service);
            api.send(SLICES, "ADDED", slice(1, &["192.168.2.3"]));
            api.listed();
            let reported = seen.wait_for(|status| status.ready && !status.progress.failing.is_empty());
            let failing = in_time("a report of it", reported).await.unwrap().clone();
            assert_eq!((failing.progress.failing.len(), failing.vips), (1, 2), "{failing:?}");
            assert!(std::net::TcpStream::connect("127.0.0.7:80").is_ok(), "the ClusterIP is served");
            assert!(!failing.is_converged() && metrics.last_synced().is_none(), "{failing:?}");
            drop(taken);
            let converged = seen.wait_for(|status| status.is_converged() && status.stuck_since.is_none());
            in_time("the retry", converged).await.unwrap();
            assert!(metrics.last_synced().is_some());
            proxy.abort();
        });
    });
    parity::proved(parity::Userspace, &["Health says synced although Services failed", "A failure at a node port skips the other addresses"]);
}
