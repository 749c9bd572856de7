//! An API server that can be stopped, started again and lost; a simulated host; and a proxy between them.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apiserver::{Identity, Server};
use hcn::{Guid, HcnClient, HnsVersion, HostComputeEndpoint, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::admin::CallFilter;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use service_proxy::hns::{Settings, vip_key};
use service_proxy::{BackendConfig, Config, Status};
use test_lab::server::Keys;
use test_lab::until_async;
use tokio::sync::watch;

use super::link::Link;

pub const NODE: &str = "win01";

pub struct World {
    pub link: Arc<Link>,
    pub simulator: Simulator,
    pub hcn: HcnClient,
    server: Option<Server>,
    keys: Keys,
    dir: tempfile::TempDir,
    store: u32,
    ballast: u32,
    /// Calls that changed something, taken from the simulator's log while waiting: it keeps the last thousand calls only.
    writes: Mutex<Vec<String>>,
}

impl World {
    /// Server and host, no proxy yet.
    pub async fn new() -> Self {
        let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(15, 5)), None).unwrap();
        let hcn = HcnClient::new(simulator.session());
        let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
        hcn.create_network(Guid::random(), &HostComputeNetwork::new("pods", NetworkType::L2Bridge, subnet)).await.unwrap();
        let (link, dir) = (Link::new(), tempfile::tempdir().unwrap());
        let mut world = Self { link, simulator, hcn, server: None, keys: Keys::new(), dir, store: 0, ballast: 0, writes: Mutex::default() };
        world.start().await;
        world
    }

    /// Starts the server on the present store, and leads the proxy to it.
    pub async fn start(&mut self) {
        let advertise = (IpAddr::from([10, 240, 0, 10]), 6443);
        // No event is kept for its youth: a test makes the server forget by writing much.
        let config = apiserver::Config { advertise, watch_history: Duration::ZERO, ..self.keys.config(self.dir.path().join(self.store.to_string())) };
        self.server = Some(apiserver::start(config).await.unwrap());
        self.open();
    }

    /// The proxy reaches the server again.
    pub fn open(&self) {
        let identity = Identity { user: "system:kube-proxy".into(), groups: vec!["system:masters".into()] };
        self.link.lead(self.server.as_ref().map(|server| server.in_process(identity)));
    }

    /// The proxy reaches nobody; connections are cut.
    pub fn close(&self) {
        self.link.lead(None);
    }

    /// Ends the server; it can be started again on its store, which forgets nothing but the past.
    pub async fn stop(&mut self) {
        self.close();
        self.server.take().unwrap().shutdown().await;
    }

    /// The next server begins with nothing.
    pub fn lose_store(&mut self) {
        self.store += 1;
    }

    /// A client that is always led to the server.
    pub fn admin(&self) -> Client {
        let identity = Identity { user: "admin".into(), groups: vec!["system:masters".into()] };
        Client::new(self.server.as_ref().unwrap().in_process(identity), "default")
    }

    /// Service `name` at 10.96.1.`n`, with one backend at 192.168.2.`n`.
    pub async fn create(&self, name: &str, n: u8) {
        let (services, slices) = (Api::<Service>::default_namespaced(self.admin()), Api::<EndpointSlice>::default_namespaced(self.admin()));
        let service = json!({"metadata": {"name": name}, "spec": {"clusterIP": format!("10.96.1.{n}"), "ports": [{"port": 80}]}});
        services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
        let slice = json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}}, "addressType": "IPv4",
            "ports": [{"name": "", "port": 80, "protocol": "TCP"}], "endpoints": [{"addresses": [format!("192.168.2.{n}")], "nodeName": "there"}]});
        slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.unwrap();
    }

    pub async fn delete(&self, name: &str) {
        let (services, slices) = (Api::<Service>::default_namespaced(self.admin()), Api::<EndpointSlice>::default_namespaced(self.admin()));
        services.delete(name, &DeleteParams::default()).await.unwrap();
        slices.delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Changes a Service and its slice in nothing that the proxy looks at.
    pub async fn touch(&self, name: &str) {
        let (services, slices) = (Api::<Service>::default_namespaced(self.admin()), Api::<EndpointSlice>::default_namespaced(self.admin()));
        let (params, note) = (PatchParams::default(), Patch::Merge(json!({"metadata": {"annotations": {"note": "touched"}}})));
        services.patch(name, &params, &note).await.unwrap();
        slices.patch(name, &params, &note).await.unwrap();
    }

    /// So much happens that the server forgets everything before.
    pub async fn outlive_history(&mut self) {
        let maps = Api::<ConfigMap>::default_namespaced(self.admin());
        for _ in 0..8 {
            self.ballast += 1;
            let data = [("data".to_owned(), char::from(b'a' + (self.ballast % 26) as u8).to_string().repeat(900_000))].into();
            let metadata = ObjectMeta { name: Some("ballast".into()), ..ObjectMeta::default() };
            let map = ConfigMap { metadata, data: Some(data), ..ConfigMap::default() };
            match maps.get_opt("ballast").await.unwrap() {
                None => drop(maps.create(&PostParams::default(), &map).await.unwrap()),
                Some(_) => drop(maps.replace("ballast", &PostParams::default(), &map).await.unwrap()),
            }
        }
    }

    /// The server's newest revision.
    pub async fn revision(&self) -> String {
        Api::<Service>::all(self.admin()).list(&Default::default()).await.unwrap().metadata.resource_version.unwrap()
    }

    /// Starts a proxy, which ends with the test.
    pub fn proxy(&self) -> watch::Receiver<Status> {
        let (status, reported) = watch::channel(Status::default());
        let backend = BackendConfig::Hns { client: self.hcn.clone(), settings: Settings::new("pods") };
        let config = Config { status: Some(status), ..Config::new(self.link.client(), NODE, "uid", backend) };
        tokio::spawn(service_proxy::run(config, std::future::pending()));
        reported
    }

    /// VIP → addresses of its backends, but for the API server's own Service.
    pub async fn seen(&self) -> Vec<String> {
        let endpoints = self.hcn.endpoints().await.unwrap();
        let ip =
            |id: &Guid| endpoints.iter().find(|e| e.id == *id).and_then(HostComputeEndpoint::ip).map_or("dangling".to_owned(), |ip| ip.to_string());
        let balancers = self.hcn.load_balancers().await.unwrap();
        let line = |lb: &hcn::HostComputeLoadBalancer| {
            let ips: Vec<String> = lb.host_compute_endpoints.iter().map(ip).collect();
            format!("{} -> {}", vip_key(lb).unwrap(), ips.join(" "))
        };
        let mut lines: Vec<String> = balancers.iter().map(line).filter(|line| !line.starts_with("10.96.0.1:443/")).collect();
        lines.sort();
        lines
    }

    /// Waits until these numbers (of [`World::create`]) are served, and nothing else, and the proxy makes no call: a call is in the log
    /// only after its effect.
    pub async fn until(&self, numbers: &[u8]) {
        let expected: Vec<String> = numbers.iter().map(|n| format!("10.96.1.{n}:80/tcp -> 192.168.2.{n}")).collect();
        // The API server's own Service has an endpoint and a load balancer too.
        let counts = async || [self.hcn.endpoints().await.unwrap().len(), self.hcn.load_balancers().await.unwrap().len()];
        let done = async || self.seen().await == expected && counts().await == [numbers.len() + 1; 2];
        self.until_true(&format!("{expected:?}"), async || done().await && self.hcn.snapshot().running == 0).await;
    }

    pub async fn until_true(&self, what: &str, done: impl AsyncFn() -> bool) {
        let look = async || {
            self.collect_writes();
            if done().await { Ok(()) } else { Err(format!("{:?}", self.seen().await)) }
        };
        until_async(what, look).await;
    }

    /// Calls that changed something since this was last asked.
    pub fn writes(&self) -> Vec<String> {
        self.collect_writes();
        std::mem::take(&mut self.writes.lock().unwrap())
    }

    fn collect_writes(&self) {
        let mut controls = self.simulator.controls();
        let writes = |call: &str| ["Create", "Modify", "Delete"].iter().any(|verb| call.contains(verb));
        let calls = controls.calls.select(&CallFilter::default()).into_iter().map(|call| call.call.clone()).filter(|call| writes(call));
        self.writes.lock().unwrap().extend(calls);
        controls.calls.reset();
    }
}
