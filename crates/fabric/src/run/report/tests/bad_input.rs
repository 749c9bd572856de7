//! Wrong nodes beside a right one: each is an Event and a line in the log that name the node and the fix, and pods of the right one are reached.

use std::io;
use std::sync::OnceLock;

use test_lab::same;

use super::*;
use crate::conf;

/// What the process logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// That of the whole process: a subscriber of one thread misses what another thread was the first to log.
    fn of_process() -> &'static Self {
        static LOG: OnceLock<Log> = OnceLock::new();
        LOG.get_or_init(|| {
            let log = Self::default();
            let writer = log.clone();
            tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
            log
        })
    }

    fn has_line(&self, part: &str) -> bool {
        String::from_utf8_lossy(&self.0.lock().unwrap()).lines().any(|line| line.contains(" WARN ") && line.contains(part))
    }
}

/// An API server, a Windows host, and the fabric of its node `win01`.
struct Lab {
    log: &'static Log,
    hcn: HcnClient,
    routes: Arc<MemoryRoutes>,
    server: apiserver::Server,
    nodes: Api<Node>,
    events: Api<Event>,
    dir: tempfile::TempDir,
    _simulator: Simulator,
}

impl Lab {
    async fn new(mode: Mode) -> (Self, tokio::task::JoinHandle<()>) {
        let log = Log::of_process();
        let kernel = NoKernel { management: Some("127.0.0.12".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
        let hcn = HcnClient::new(simulator.session());
        let dir = tempfile::tempdir().unwrap();
        let server = apiserver::start(Keys::new().config(dir.path().join("store"))).await.unwrap();
        let client = |user: &str, group: &str| {
            let identity = Identity { user: user.into(), groups: vec![group.into(), "system:authenticated".into()] };
            Client::new(server.in_process(identity), "default")
        };
        let lan = HostRoute { dst: "127.0.0.0/24".parse().unwrap(), via: None, oif: 7, on_link: false, metric: 0, ours: false };
        let routes = Arc::new(MemoryRoutes(Mutex::new(vec![lan])));
        let fabric = config(&client("system:node:win01", "system:nodes"), &routes, &hcn, &dir.path().join("cni"));
        let settings = Settings { mode, ..fabric.settings };
        let fabric = tokio::spawn(run(Config { settings, full_pass: Duration::from_millis(200), ..fabric }, std::future::pending()));
        let admin = client("admin", "system:masters");
        let (nodes, events) = (Api::all(admin.clone()), Api::default_namespaced(admin));
        (Self { log, hcn, routes, server, nodes, events, dir, _simulator: simulator }, fabric)
    }

    /// Waits until `node` has the Event, whose message is in the log too; it names whom it is about and has the fix.
    async fn told(&self, node: &str, reason: &str, about: &str, fix: &str) {
        let message = until_async(&format!("{reason} of {node}"), async || {
            let all = self.events.list(&kube::api::ListParams::default()).await.unwrap().items;
            let found = all.iter().find(|e| e.involved_object.name.as_deref() == Some(node) && e.reason.as_deref() == Some(reason));
            found.and_then(|event| event.message.clone()).ok_or_else(|| format!("{:?}", all.iter().map(|event| &event.message).collect::<Vec<_>>()))
        })
        .await;
        assert!(message.starts_with(&format!("node {about}: ")) && message.contains(fix), "{reason}: {message}");
        until_async(&format!("{message:?} in the log"), async || self.log.has_line(&message)).await;
    }

    async fn end(self, fabric: tokio::task::JoinHandle<()>) {
        fabric.abort();
        self.server.shutdown().await;
    }
}

const ANNOTATION: &str = "flannel.alpha.coreos.com";

fn announced(backend: &str, data: &str, public_ip: &str) -> serde_json::Value {
    json!({format!("{ANNOTATION}/backend-type"): backend, format!("{ANNOTATION}/backend-data"): data, format!("{ANNOTATION}/public-ip"): public_ip})
}

#[tokio::test]
async fn wrong_nodes_are_told_and_the_rest_of_the_network_goes_on() {
    let (lab, fabric) = Lab::new(Mode::HostGateway).await;
    // A network of the same name but another type, and a route of somebody else.
    let subnet = Subnet::new("172.20.0.0/24".parse().unwrap(), "172.20.0.1".parse().unwrap());
    let foreign = hcn::Guid::random();
    lab.hcn.create_network(foreign, &HostComputeNetwork::new("mullion", NetworkType::Nat, subnet)).await.unwrap();
    let other = HostRoute { dst: "192.168.8.0/24".parse().unwrap(), via: "127.0.0.99".parse().ok(), oif: 7, on_link: false, metric: 5, ours: false };
    lab.routes.0.lock().unwrap().push(other);

    let own = json!({"metadata": {"name": "win01"}});
    lab.nodes.create(&PostParams::default(), &serde_json::from_value(own).unwrap()).await.unwrap();
    let address = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.12"}]}});
    lab.nodes.patch_status("win01", &PatchParams::default(), &Patch::Strategic(address)).await.unwrap();
    for (name, cidr, address, annotations) in [
        ("good", "192.168.2.0/24", "127.0.0.13", json!({})),
        ("overlaps", "192.168.2.128/25", "127.0.0.14", json!({})),
        ("outside", "10.9.0.0/24", "127.0.0.15", json!({})),
        ("far", "192.168.3.0/24", "10.99.0.3", json!({})),
        ("vxlan", "192.168.4.0/24", "127.0.0.16", announced("vxlan", r#"{"VNI":4096,"VtepMAC":"02:00:00:00:00:04"}"#, "")),
        ("forges", "192.168.5.0/24", "127.0.0.17", announced("ipip\nWARN node good: it has no pod CIDR", "null", "")),
        ("nowhere", "192.168.6.0/24", "127.0.0.18", announced("host-gw", "null", "255.255.255.255")),
        ("routed", "192.168.8.0/24", "127.0.0.19", json!({})),
    ] {
        register(&lab.nodes, name, cidr, address, annotations).await;
    }
    lab.told("win01", "PodCIDRMissing", "win01", "set spec.podCIDR of the Node").await;
    lab.told("overlaps", "PodCIDROverlaps", "overlaps", "until one of the two nodes is registered anew").await;
    lab.told("outside", "PodCIDROutside", "outside", "register the node anew with a pod CIDR of these").await;
    lab.told("win01", "NextHopUnreachable", "far", "give this host an address on the nodes' network").await;
    lab.told("vxlan", "NetworkBackendDiffers", "vxlan", "give all nodes one backend").await;
    lab.told("forges", "NetworkBackendDiffers", "forges", "give all nodes one backend").await;
    lab.told("nowhere", "NetworkAnnotationNotRead", "nowhere", "restart its pod network to write it anew").await;
    lab.told("win01", "RouteOfOthers", "routed", "remove it so that pods of routed are reached").await;
    let reached = || lab.routes.0.lock().unwrap().iter().filter(|route| route.ours).map(|route| route.dst.to_string()).collect::<Vec<_>>();
    until_async("the right node's route alone", async || same(reached(), &["192.168.2.0/24"])).await;

    // With its own pod CIDR the node meets the network of another type; that goes, and its pods can start.
    let spec = json!({"spec": {"podCIDR": "192.168.1.0/24", "podCIDRs": ["192.168.1.0/24"]}});
    lab.nodes.patch("win01", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    lab.told("win01", "HNSNetworkOfOthers", "win01", "Remove-HnsNetwork").await;
    assert!(lab.log.has_line("HNS network \"mullion\" of type NAT exists and is not ours"), "its type is named");
    lab.hcn.delete_network(&foreign).await.unwrap();
    until_async("the pod network of a node among wrong ones", async || lab.dir.path().join("cni").join(conf::FILE).exists()).await;
    lab.end(fabric).await;
}

#[tokio::test]
async fn wrong_tunnels_are_told_and_the_rest_of_the_network_goes_on() {
    let (lab, fabric) = Lab::new(Mode::Vxlan).await;
    let tunnel = |vni: u32, mac: &str| format!(r#"{{"VNI":{vni},"VtepMAC":"{mac}"}}"#);
    let (good, long) = (tunnel(4096, "02:00:00:00:00:02"), format!("{}{}", " ".repeat(2000), tunnel(4096, "02:00:00:00:00:07")));
    register(&lab.nodes, "win01", "192.168.1.0/24", "127.0.0.12", json!({})).await;
    for (name, cidr, address, backend, data) in [
        ("good", "192.168.2.0/24", "127.0.0.13", "vxlan", &*good),
        ("hosted", "192.168.3.0/24", "127.0.0.14", "host-gw", "null"),
        ("low", "192.168.4.0/24", "127.0.0.15", "vxlan", &tunnel(1, "02:00:00:00:00:04")),
        ("same", "192.168.5.0/24", "127.0.0.16", "vxlan", &good),
        ("group", "192.168.6.0/24", "127.0.0.17", "vxlan", &tunnel(4096, "ff:ff:ff:ff:ff:ff")),
        ("long", "192.168.7.0/24", "127.0.0.18", "vxlan", &long),
        ("cut", "192.168.8.0/24", "127.0.0.19", "vxlan", &good[..good.len() / 2]),
    ] {
        register(&lab.nodes, name, cidr, address, announced(backend, data, "")).await;
    }
    lab.told("hosted", "NetworkBackendDiffers", "hosted", "give all nodes one backend").await;
    lab.told("low", "NetworkSegmentDiffers", "low", "set \"VNI\": 4096 and \"Port\": 4789 in its net-conf.json").await;
    lab.told("same", "TunnelMACTaken", "same", "remove the annotation backend-data").await;
    for name in ["group", "long", "cut"] {
        lab.told(name, "NetworkAnnotationNotRead", name, "restart its pod network to write it anew").await;
    }
    until_async("the right node's tunnel alone", async || {
        let network = lab.hcn.network_by_name("mullion").await.unwrap();
        let remote = network.iter().flat_map(|network| &network.policies).filter_map(hcn::NetworkPolicy::as_remote_subnet_route);
        let known: Vec<String> = remote.map(|route| format!("{} at {}", route.destination_prefix, route.provider_address)).collect();
        same(known, &["192.168.2.0/24 at 127.0.0.13"])
    })
    .await;
    until_async("the pod network of a node among wrong ones", async || lab.dir.path().join("cni").join(conf::FILE).exists()).await;
    lab.end(fabric).await;
}
