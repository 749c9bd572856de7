use hcn::{EndpointPolicy, Guid, HcnClient, HnsVersion, HostComputeEndpoint, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use serde_json::{Value, json};
use test_lab::api::{Kind, Reply, ScriptedApi};
use test_lab::until_async;

use super::*;
use crate::hns::{Hns, rules};

const KINDS: &[Kind] = &[
    ("/api/v1/namespaces", "v1", "Namespace"),
    ("/api/v1/nodes", "v1", "Node"),
    ("/api/v1/pods", "v1", "Pod"),
    ("/apis/networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy"),
    ("/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies", "policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"),
];

/// An API whose watches have the lines that a test sends, and a host whose HNS has one endpoint, 192.168.1.5.
struct World {
    api: ScriptedApi,
    hcn: HcnClient,
    endpoint: Guid,
    _simulator: Simulator,
}

impl World {
    /// With ClusterNetworkPolicies only where their kind is installed.
    async fn new(cluster_policies: bool) -> Self {
        let kinds = if cluster_policies { KINDS } else { &KINDS[..4] };
        let api = ScriptedApi::with(kinds, move |request| {
            if request.path != "/apis/policy.networking.k8s.io/v1alpha2" {
                return None;
            }
            let resource =
                json!({"name": "clusternetworkpolicies", "singularName": "", "kind": "ClusterNetworkPolicy", "namespaced": false, "verbs": []});
            let list = json!({"groupVersion": "policy.networking.k8s.io/v1alpha2", "resources": [resource]});
            Some(if cluster_policies { Reply::json(200, list) } else { Reply::status(404, "not found") })
        });
        let kernel = NoKernel { management: Some("10.240.0.12".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(HnsVersion::new(13, 3)), None).unwrap();
        let hcn = HcnClient::new(simulator.session());
        let subnet = Subnet::new("192.168.1.0/24".parse().unwrap(), "192.168.1.1".parse().unwrap());
        let network = hcn.create_network(Guid::random(), &HostComputeNetwork::new("mullion", NetworkType::L2Bridge, subnet)).await.unwrap();
        let endpoint = HostComputeEndpoint::local("pod", "192.168.1.5/24".parse().unwrap(), None);
        let endpoint = hcn.create_endpoint(&network.id, Guid::random(), &endpoint).await.unwrap().id;
        Self { api, hcn, endpoint, _simulator: simulator }
    }

    /// Starts the policies of node `win01`, and ends the lists.
    fn start(&self) -> (Gate, watch::Receiver<Status>, Metrics) {
        let ((gate, gates), (status, seen), metrics) = (gate(), watch::channel(Status::default()), Metrics::default());
        let config = Config {
            client: self.api.client.clone(),
            api: ApiServer::default(),
            node_name: "win01".to_owned(),
            backend: Backend::Hns { hns: Hns::new(self.hcn.clone()), changes: None },
            full_pass: Duration::from_secs(30),
            status: Some(status),
            metrics: metrics.clone(),
            gate: Some(gates),
        };
        tokio::spawn(run(config, std::future::pending()));
        self.api.listed();
        (gate, seen, metrics)
    }

    fn send(&self, at: usize, name: &str, namespace: Option<&str>, rest: Value) {
        self.send_as(at, "ADDED", name, namespace, rest);
    }

    fn send_as(&self, at: usize, change: &str, name: &str, namespace: Option<&str>, rest: Value) {
        let mut object = json!({"metadata": {"name": name, "namespace": namespace, "resourceVersion": "2", "uid": name}});
        rest.as_object().unwrap().iter().for_each(|(key, value)| object[key] = value.clone());
        self.api.send(KINDS[at].0, change, object);
    }

    /// Waits for the event of a ClusterNetworkPolicy.
    async fn event(&mut self, name: &str, message: &str) {
        let event = self.api.writes.recv().await.unwrap();
        let about = &event["involvedObject"];
        assert_eq!((&about["kind"], &about["name"]), (&json!("ClusterNetworkPolicy"), &json!(name)));
        assert_eq!((&event["reason"], &event["message"]), (&json!("PolicyNotUnderstood"), &json!(message)));
    }

    async fn rules(&self) -> usize {
        let endpoint = self.hcn.endpoint(&self.endpoint).await.unwrap().unwrap();
        endpoint.policies.iter().filter(|policy: &&EndpointPolicy| rules::is_ours(policy)).count()
    }
}

#[tokio::test]
async fn a_pod_waits_at_the_gate_until_its_rules_are_in_effect() {
    let world = World::new(false).await;
    world.send(3, "deny", Some("default"), json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}));
    let (gate, mut status, metrics) = world.start();
    status.wait_for(|status| status.ready).await.unwrap();
    assert_eq!(status.borrow().policies.len(), 1, "it is in effect, on no pod yet");
    let waits = tokio::spawn(gate.opened(Key::new("default", "web"), vec!["192.168.1.5".parse().unwrap()]));
    // The API shows the pod here only later, without an address.
    tokio::task::yield_now().await;
    assert!(!waits.is_finished() && world.rules().await == 0);
    world.send(2, "web", Some("default"), json!({"spec": {"nodeName": "win01", "containers": []}}));
    waits.await.unwrap();
    assert!(world.rules().await > 0, "the rules are there when the gate opens");
    let text = metrics.encode(exposition::Format::Text);
    for line in ["mullion_network_policy_ready 1", "mullion_network_policy_isolated_endpoints 1", "mullion_network_policy_effect_seconds_count 1"] {
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
    assert!(text.contains("mullion_network_policy_effective_timestamp_seconds{policy=\"NetworkPolicy default/deny\"} "), "{text}");
}

#[tokio::test]
async fn what_a_policy_gets_wrong_is_an_event_and_the_rest_holds() {
    let mut world = World::new(true).await;
    world.send(2, "web", Some("default"), json!({"spec": {"nodeName": "win01", "containers": []}, "status": {"podIP": "192.168.1.5"}}));
    let from = json!([{"ipBlock": {"cidr": "10.0.0.0/33"}}, {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["nowhere"]}}, {"podSelector": {}}]);
    world.send(3, "odd", Some("default"), json!({"spec": {"podSelector": {}, "ingress": [{"from": from, "ports": [{"port": 0}, {"port": 80}]}]}}));
    let (_gate, mut status, _) = world.start();
    status.wait_for(|status| status.ready && status.problems.len() == 3).await.unwrap();
    assert!(world.rules().await > 0);
    let mut seen = Vec::new();
    while seen.len() < 3 {
        let event = world.api.writes.recv().await.unwrap();
        assert_eq!((&event["reason"], &event["involvedObject"]["name"]), (&json!("PolicyNotUnderstood"), &json!("odd")));
        seen.push(event["message"].as_str().unwrap().to_owned());
    }
    assert!(seen[0].contains("10.0.0.0/33") && seen[1].contains("nowhere") && seen[2].contains("ports 0 to 0"), "{seen:?}");
    // A ClusterNetworkPolicy that is none changes nothing; a good one counts.
    let before = world.rules().await;
    world.send(4, "bad", None, json!({"spec": {"tier": "Middle", "priority": 1, "subject": {"namespaces": {}}}}));
    let rules = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
    world.send(4, "good", None, json!({"spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": rules}}));
    until_async("the rule of the Admin tier", async || {
        let now = world.rules().await;
        if now > before { Ok(()) } else { Err(now) }
    })
    .await;
    let told = status.wait_for(|status| status.policies.len() == 2 && status.problems.len() == 4).await.unwrap().clone();
    assert_eq!(told.policies.keys().map(ToString::to_string).collect::<Vec<_>>(), ["NetworkPolicy default/odd", "ClusterNetworkPolicy good"]);
    let reason = "the policy has no effect: tier \"Middle\" is none: use Admin or Baseline; correct it";
    assert_eq!(told.problems[3], format!("ClusterNetworkPolicy bad: {reason}"));
    world.event("bad", reason).await;
    // Once it can no longer be read, it loses its effect, and says so; what is right again counts again.
    world.send_as(4, "MODIFIED", "good", None, json!({"spec": {"tier": "Admin", "priority": "first", "subject": {"namespaces": {}}}}));
    world.event("good", "the policy has no effect: its spec is none of v1alpha2: invalid type: string \"first\", expected i32; correct it").await;
    until_async("no rule of the Admin tier", async || {
        let now = world.rules().await;
        if now == before { Ok(()) } else { Err(now) }
    })
    .await;
    status.wait_for(|status| status.policies.len() == 1 && status.problems.len() == 5).await.unwrap();
    world.send_as(4, "MODIFIED", "good", None, json!({"spec": {"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": rules}}));
    status.wait_for(|status| status.policies.len() == 2 && status.problems.len() == 4).await.unwrap();
    assert!(world.rules().await > before);
}
