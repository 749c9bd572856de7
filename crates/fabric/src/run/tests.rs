use std::sync::Mutex;

use hcn::HnsVersion;
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use host::{HostRoute, RoutesError};
use serde_json::json;
use test_lab::api::ScriptedApi;
use test_lab::until_async;

use super::*;
use crate::conf;
use crate::examples;
use crate::mode::{Attachment, Mode, PodSettings, Vxlan};

const NODES: &str = "/api/v1/nodes";

fn nodes() -> ScriptedApi {
    ScriptedApi::new(&[(NODES, "v1", "Node")])
}

fn send(api: &ScriptedApi, kind: &str, name: &str, cidr: Option<&str>, address: &str) {
    let object = json!({"metadata": {"name": name, "resourceVersion": "1"}, "spec": {"podCIDR": cidr, "podCIDRs": cidr.map(|c| [c])},
        "status": {"addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": address}]}});
    api.send(NODES, kind, object);
}

/// A routing table in memory, which marks what is added.
#[derive(Default)]
pub(super) struct MemoryRoutes(pub Mutex<Vec<HostRoute>>);

impl Routes for MemoryRoutes {
    fn list(&self) -> Result<Vec<HostRoute>, RoutesError> {
        Ok(self.0.lock().unwrap().clone())
    }

    fn add(&self, route: &HostRoute) -> Result<(), RoutesError> {
        let mut table = self.0.lock().unwrap();
        table.retain(|r| r.dst != route.dst || r.metric != route.metric);
        table.push(HostRoute { ours: true, ..route.clone() });
        Ok(())
    }

    fn delete(&self, route: &HostRoute) -> Result<(), RoutesError> {
        assert!(route.ours, "{route:?} is not ours");
        self.0.lock().unwrap().retain(|r| r.dst != route.dst || r.via != route.via);
        Ok(())
    }

    fn restore(&self, route: &HostRoute) -> Result<(), RoutesError> {
        self.0.lock().unwrap().push(HostRoute { ours: false, ..route.clone() });
        Ok(())
    }

    fn mtu(&self, _interface: u32) -> Result<Option<u32>, RoutesError> {
        Ok(Some(1500))
    }

    fn interface(&self, _name: &str) -> Result<Option<u32>, RoutesError> {
        Ok(None)
    }
}

impl MemoryRoutes {
    fn ours(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.0.lock().unwrap().iter().filter(|r| r.ours).map(|r| format!("{} via {} dev {}", r.dst, r.via.unwrap(), r.oif)).collect();
        lines.sort();
        lines
    }
}

pub(super) fn config(client: &Client, routes: &Arc<MemoryRoutes>, hcn: &HcnClient, dir: &std::path::Path) -> Config {
    let pods = PodSettings {
        cni_conf_dir: dir.to_owned(),
        subnet_env: Some(dir.join("run/subnet.env")),
        ..examples::pods(Attachment::Windows { adapter: "Ethernet".into(), loopback_dsr: true })
    };
    Config {
        client: client.clone(),
        api: cluster::ApiServer::default(),
        settings: Settings {
            mode: Mode::HostGateway,
            vxlan: Vxlan::default(),
            bgp: mode::bgp::Bgp::default(),
            node_name: "win01".into(),
            cluster_cidrs: vec!["192.168.0.0/16".parse().unwrap()],
            role: Role::Node(Box::new(pods)),
        },
        routes: routes.clone(),
        hcn: Some(hcn.clone()),
        full_pass: Duration::from_secs(3600),
        changes: None,
        status: None,
        facts: None,
    }
}

/// The network is ours and its host endpoint attached.
async fn whole(simulator: &Simulator, what: &str) {
    until_async(what, async || {
        let state = simulator.state();
        let hosts = state.endpoints.iter().filter(|(_, row)| state.networks.contains_key(&row.network));
        state.networks.len() == 2 && hosts.map(|(_, row)| row.read()).any(|endpoint| endpoint.on_host && endpoint.document.name == "mullion_ep")
    })
    .await;
}

#[tokio::test]
async fn lost_hns_objects_are_repaired_without_waiting_for_the_periodic_pass() {
    let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
    let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
    let hcn = HcnClient::new(simulator.session());
    let api = nodes();
    let dir = tempfile::tempdir().unwrap();
    let routes = Arc::new(MemoryRoutes::default());
    let changes = hcn::watch::Watch::start(HcnClient::new(simulator.session()), hcn::watch::Timing::default()).listen();
    let config = Config { changes: Some(changes), ..config(&api.client, &routes, &hcn, dir.path()) };
    let fabric = tokio::spawn(run(config, std::future::pending()));
    send(&api, "ADDED", "win01", Some("192.168.1.0/24"), "10.240.0.12");
    api.listed();
    whole(&simulator, "the network").await;
    let conf = dir.path().join(conf::FILE);
    until_async("the configuration", async || conf.exists()).await;

    let pods = async || hcn.network_by_name("mullion").await.unwrap().unwrap().id;
    let network = pods().await;
    hcn.delete_network(&network).await.unwrap();
    whole(&simulator, "a deleted network comes back").await;
    hcn.delete_endpoint(&hns::Desired::endpoint_id("uid", "mullion")).await.unwrap();
    whole(&simulator, "a deleted host endpoint comes back").await;
    simulator.restart(hns_sim::admin::Restart { wipe: true, ..Default::default() }).unwrap();
    whole(&simulator, "everything comes back").await;
    // The network is another one of the same name: the host's endpoint is made on that one.
    simulator.add_fault("net-new-id,count=1".parse().unwrap()).unwrap();
    let other = pods().await;
    assert_ne!(other, network);
    whole(&simulator, "the host's endpoint on the new network").await;
    assert_eq!(pods().await, other, "the service's id stays");
    until_async("the configuration", async || conf.exists()).await;
    fabric.abort();
}

#[tokio::test]
async fn windows_node_gets_routes_then_network_then_configuration() {
    let simulator = Simulator::new(
        Box::new(NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true }),
        Switches::of(HnsVersion::new(13, 3)),
        None,
    )
    .unwrap();
    let hcn = HcnClient::new(simulator.session());
    let mut api = nodes();
    let dir = tempfile::tempdir().unwrap();
    let lan = HostRoute { dst: "10.240.0.0/24".parse().unwrap(), via: None, oif: 7, on_link: false, metric: 0, ours: false };
    let routes = Arc::new(MemoryRoutes(Mutex::new(vec![lan])));
    let (status, mut seen) = watch::channel(Status::default());
    let config = Config { full_pass: Duration::from_millis(100), status: Some(status), ..config(&api.client, &routes, &hcn, dir.path()) };
    let stale = dir.path().join(conf::FILE);
    std::fs::write(&stale, "{}").unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let fabric = tokio::spawn(run(config, async move { drop(stopped.await) }));
    send(&api, "ADDED", "win01", None, "10.240.0.12");
    send(&api, "ADDED", "lin01", Some("192.168.0.0/24"), "10.240.0.11");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(routes.ours(), [""; 0], "half a list is no list");
    api.listed();
    until_async("the peer's route", async || routes.ours() == ["192.168.0.0/24 via 10.240.0.11 dev 7"]).await;
    assert!(hcn.networks().await.unwrap().is_empty(), "without a pod CIDR there is no network");
    let fail = hns_sim::admin::Fault {
        name: "fail-call".into(),
        call: Some("HcnCreateEndpoint".into()),
        hresult: Some(hcn::HResult::FAIL),
        count: Some(hns_sim::admin::Count::Calls(1)),
        ..Default::default()
    };
    simulator.controls().add_fault(fail).unwrap();
    send(&api, "MODIFIED", "win01", Some("192.168.1.0/24"), "10.240.0.12");
    let refused = |status: &Status| status.problems.iter().any(|problem| problem.text.contains("create the host's endpoint"));
    let failing = seen.wait_for(refused).await.unwrap().clone();
    assert!(!failing.ready, "{failing:?}");
    assert!(!stale.exists(), "what an earlier boot left is hidden until the network is ready");
    seen.wait_for(|status| status.ready && status.problems.is_empty()).await.unwrap();
    assert!(std::fs::read_to_string(&stale).unwrap().contains("win-bridge"));
    let subnet_env = std::fs::read_to_string(dir.path().join("run/subnet.env")).unwrap();
    assert!(subnet_env.contains("FLANNEL_SUBNET=192.168.1.1/24\nFLANNEL_MTU=1500\n"), "{subnet_env}");
    let written = api.writes.recv().await.unwrap();
    assert_eq!(written["metadata"]["annotations"]["flannel.alpha.coreos.com/backend-type"], "host-gw", "announced: {written}");
    // Drift: the route and the host's endpoint vanish; a peer moves; a peer leaves.
    routes.0.lock().unwrap().retain(|r| !r.ours);
    let endpoint = hcn.endpoint_by_name("mullion_ep").await.unwrap().unwrap().id;
    hcn.delete_endpoint(&endpoint).await.unwrap();
    until_async("the route to come back", async || routes.ours() == ["192.168.0.0/24 via 10.240.0.11 dev 7"]).await;
    until_async("the endpoint to come back", async || !simulator.state().endpoints.is_empty()).await;
    send(&api, "MODIFIED", "lin01", Some("192.168.0.0/24"), "10.240.0.99");
    until_async("the route to follow", async || routes.ours() == ["192.168.0.0/24 via 10.240.0.99 dev 7"]).await;
    send(&api, "DELETED", "lin01", Some("192.168.0.0/24"), "10.240.0.99");
    until_async("the route to go", async || routes.ours().is_empty()).await;
    stop.send(()).unwrap();
    fabric.await.unwrap();
    assert!(stale.exists(), "pods outlive a restart");
}
