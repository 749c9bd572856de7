use std::sync::Mutex;

use hcn::document::{Acl, Action, SetPolicy, SetPolicyType};
use hcn::{Direction as HnsDirection, HnsVersion, HostComputeEndpoint, HostComputeNetwork, NetworkType, Subnet};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::switches::Switches;
use serde_json::json;

use super::*;
use crate::examples::{apply, apply_cluster, delete, key, labels, pod, world};

/// A network of another owner with endpoints that another plug-in made.
struct Lab {
    client: HcnClient,
    hns: Hns,
    world: Mutex<World>,
    network: Guid,
    _simulator: Simulator,
}

impl Lab {
    async fn new(version: HnsVersion) -> Self {
        let kernel = NoKernel { management: Some("10.240.0.11".parse().unwrap()), survived: true };
        let simulator = Simulator::new(Box::new(kernel), Switches::of(version), None).unwrap();
        let client = HcnClient::new(simulator.session());
        let subnet = Subnet::new("10.1.0.0/24".parse().unwrap(), "10.1.0.1".parse().unwrap());
        let mut network = HostComputeNetwork::new("azure", NetworkType::L2Bridge, subnet);
        network.owner = "azure-vnet".to_owned();
        let network = client.create_network(Guid::random(), &network).await.unwrap().id;
        Self { hns: Hns::new(client.clone()), client, world: Mutex::new(world()), network, _simulator: simulator }
    }

    /// An endpoint, attached to a namespace, for the pod `x/pN`, which a plug-in gave its policies.
    async fn pod(&self, n: u8, policies: Vec<EndpointPolicy>) -> Guid {
        let address = format!("10.1.0.{n}");
        let mut endpoint = HostComputeEndpoint::local(format!("pod{n}"), format!("{address}/24").parse().unwrap(), None);
        endpoint.policies = policies;
        let id = self.client.create_endpoint(&self.network, Guid::random(), &endpoint).await.unwrap().id;
        let namespace = self.client.create_namespace(Guid::random(), &hcn::HostComputeNamespace::default()).await.unwrap().id;
        self.client.add_endpoint_to_namespace(&namespace, &id).await.unwrap();
        self.world.lock().unwrap().set_pod(&key(&format!("x/p{n}")), Some(pod(&[&address], &format!("pod=p{n}"))));
        id
    }

    async fn sync(&mut self) -> usize {
        self.pass(false).await
    }

    async fn pass(&mut self, full: bool) -> usize {
        let changes = self.world.lock().unwrap().take_changes();
        let world = &self.world;
        self.hns.sync(&|see: &mut dyn FnMut(&World)| see(&world.lock().unwrap()), &changes, full).await.unwrap()
    }

    async fn policies(&self, id: &Guid) -> Vec<EndpointPolicy> {
        self.client.endpoint(id).await.unwrap().unwrap().policies
    }

    async fn sets(&self) -> Vec<(String, String)> {
        let network = self.client.network(&self.network).await.unwrap().unwrap();
        network.policies.iter().filter_map(NetworkPolicy::as_set).map(|set| (set.id, set.values)).collect()
    }

    fn apply(&self, name: &str, spec: serde_json::Value) {
        apply(&mut self.world.lock().unwrap(), name, spec);
    }

    fn calls(&self) -> u64 {
        self.client.snapshot().total().calls
    }
}

/// What other programs put on endpoints: rules without a mark, with marks of theirs, in odd order and with members that we never write.
fn foreign() -> Vec<EndpointPolicy> {
    let acl = |id: &str, priority, action| {
        let acl = Acl { id: id.into(), priority, action, direction: HnsDirection::In, protocols: "6".into(), ..Acl::default() };
        EndpointPolicy::acl(&acl)
    };
    let mut odd = acl("calico-7", 65500, Action::Block);
    odd.settings["Vendor"] = json!({"kept": true});
    vec![
        odd,
        EndpointPolicy::outbound_nat(["10.0.0.0/8".parse().unwrap()]),
        acl("", 200, Action::Allow),
        EndpointPolicy::sdn_route("10.96.0.0/12".parse().unwrap()),
        acl("azure-acl-mullion-np-", 4000, Action::Allow),
    ]
}

fn others(policies: &[EndpointPolicy]) -> Vec<EndpointPolicy> {
    policies.iter().filter(|policy| !rules::is_ours(policy) && policy.policy_type != hcn::document::EndpointPolicyType::L2Driver).cloned().collect()
}

#[tokio::test]
async fn on_endpoints_of_others_only_marked_rules_change() {
    for version in [HnsVersion::new(9, 5), HnsVersion::new(13, 3), HnsVersion::new(15, 5)] {
        let mut lab = Lab::new(version).await;
        let (id, bystander) = (lab.pod(5, foreign()).await, lab.pod(6, foreign()).await);
        let (before, untouched) = (lab.policies(&id).await, lab.policies(&bystander).await);
        lab.sync().await;
        assert_eq!((lab.policies(&id).await, lab.policies(&bystander).await), (before.clone(), untouched.clone()), "no policy selects them");
        let spec = |peer: &str| json!({"podSelector": {"matchLabels": {"pod": "p5"}}, "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": peer}}}]}]});
        for peer in ["p6", "p7"] {
            lab.apply("x/some", spec(peer));
            assert!(lab.sync().await > 0);
            let now = lab.policies(&id).await;
            assert!(now.iter().any(rules::is_ours), "{version}");
            assert_eq!(others(&now), others(&before), "{version}: what others made is as it was read");
            assert_eq!(lab.policies(&bystander).await, untouched, "{version}");
        }
        // Another program changes its own rules meanwhile: nothing of that is lost, neither now nor with the last rule of ours.
        let mut changed = lab.policies(&id).await;
        let added = EndpointPolicy::acl(&Acl { id: "later".into(), priority: 77, ..Acl::default() });
        changed.insert(0, added);
        lab.client.modify_endpoint(&id, ModifyRequest::endpoint_policies(RequestType::Update, &changed)).await.unwrap();
        lab.apply("x/some", spec("p6"));
        lab.sync().await;
        assert_eq!(others(&lab.policies(&id).await), others(&changed), "{version}");
        delete(&mut lab.world.lock().unwrap(), "x/some");
        lab.sync().await;
        assert_eq!(others(&lab.policies(&id).await), others(&changed), "{version}");
        assert!(!lab.policies(&id).await.iter().any(rules::is_ours), "{version}: the last rule goes");
    }
}

#[tokio::test]
async fn sets_stand_for_groups_where_the_version_has_them() {
    let mut lab = Lab::new(HnsVersion::new(13, 3)).await;
    let theirs =
        SetPolicy { id: "npm".into(), name: "npm".into(), policy_type: SetPolicyType::IpSet, values: "10.1.0.9".into(), ..SetPolicy::default() };
    let request = ModifyRequest::network_policies(RequestType::Add, &[NetworkPolicy::set(&theirs)]);
    lab.client.modify_network(&lab.network, request).await.unwrap();
    let id = lab.pod(5, Vec::new()).await;
    lab.pod(6, Vec::new()).await;
    lab.apply(
        "x/some",
        json!({"podSelector": {"matchLabels": {"pod": "p5"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"team": "red"}}}], "ports": [{"port": 80}, {"port": 90, "endPort": 95}]}]}),
    );
    lab.sync().await;
    assert_eq!(lab.sets().await, [("npm".to_owned(), "10.1.0.9".to_owned())], "a group without members has no set");
    let red = |n: u8| pod(&[&format!("10.1.0.{n}")], &format!("pod=p{n},team=red"));
    lab.world.lock().unwrap().set_pod(&key("x/p6"), Some(red(6)));
    lab.sync().await;
    let sets = lab.sets().await;
    assert_eq!((sets.len(), sets[1].1.as_str()), (2, "10.1.0.6"));
    let acl = lab.policies(&id).await.iter().filter_map(EndpointPolicy::as_acl).find(|acl| acl.local_addresses == sets[1].0).unwrap();
    assert_eq!((acl.local_ports.as_str(), acl.remote_addresses.as_str(), acl.action), ("80,90-95", "", Action::Allow));
    // A member more is one call: the rules stay as they are.
    let mut remote = red(200);
    remote.node = "win02".into();
    lab.world.lock().unwrap().set_pod(&key("x/p200"), Some(remote));
    let (before, rules) = (lab.calls(), lab.policies(&id).await);
    let after_read = lab.calls();
    lab.sync().await;
    // Open, modify, close of the network.
    assert!(lab.calls() - after_read <= 3, "{} calls, {} to read", lab.calls() - after_read, after_read - before);
    assert_eq!((lab.sets().await[1].1.as_str(), lab.policies(&id).await), ("10.1.0.6,10.1.0.200", rules));
    delete(&mut lab.world.lock().unwrap(), "x/some");
    lab.sync().await;
    assert_eq!(lab.sets().await, [("npm".to_owned(), "10.1.0.9".to_owned())], "sets of others stay, ours go with the last rule");
}

#[tokio::test]
async fn tiers_of_hns_carry_rules_that_pass() {
    let spec = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": [
        {"action": "Pass", "from": [{"pods": {"podSelector": {"matchLabels": {"pod": "p6"}}}}]}, {"action": "Deny", "from": [{"namespaces": {}}]}]});
    for (version, tiers) in [(HnsVersion::new(13, 3), 0), (HnsVersion::new(15, 5), 2)] {
        let mut lab = Lab::new(version).await;
        let id = lab.pod(5, foreign()).await;
        lab.pod(6, Vec::new()).await;
        apply_cluster(&mut lab.world.lock().unwrap(), "admin", &spec);
        lab.sync().await;
        let now = lab.policies(&id).await;
        assert_eq!(now.iter().filter_map(EndpointPolicy::as_tier_acl).count(), tiers, "{version}");
        assert!(tiers > 0 || now.iter().filter(|policy| rules::is_ours(policy)).count() >= 3, "{version}: one list");
        // A full pass finds everything in place.
        assert_eq!(lab.pass(true).await, 0, "{version}");
    }
}

#[tokio::test]
async fn endpoints_that_come_again_get_their_rules_again() {
    let mut lab = Lab::new(HnsVersion::new(13, 3)).await;
    let id = lab.pod(5, Vec::new()).await;
    lab.apply("x/deny", json!({"podSelector": {}}));
    lab.sync().await;
    assert!(lab.policies(&id).await.iter().any(rules::is_ours));
    // A plug-in repairs it in place: the same id and address, and no rules.
    let endpoint = HostComputeEndpoint::local("pod5", "10.1.0.5/24".parse().unwrap(), None);
    lab.client.delete_endpoint(&id).await.unwrap();
    lab.client.create_endpoint(&lab.network, id, &endpoint).await.unwrap();
    lab.hns.forget_named(&format!("{{\"ID\":\"{}\"}}", id.to_string().to_uppercase()));
    lab.sync().await;
    assert!(lab.policies(&id).await.iter().any(rules::is_ours));
    // Another pod of the same name gets the address, and its endpoint another id.
    lab.client.delete_endpoint(&id).await.unwrap();
    lab.world.lock().unwrap().set_pod(&key("x/p5"), None);
    let again = lab.pod(5, Vec::new()).await;
    lab.sync().await;
    assert!(lab.policies(&again).await.iter().any(rules::is_ours));
    // What another program removes, the periodic pass puts back.
    lab.client.modify_endpoint(&again, ModifyRequest::endpoint_policies(RequestType::Update, &[])).await.unwrap();
    assert_eq!(lab.pass(true).await, 1);
    assert!(lab.policies(&again).await.iter().any(rules::is_ours));
    // A pod that is no longer one of the node's loses our rules, where its endpoint is still there.
    let mut moved = pod(&["10.1.0.5"], "");
    (moved.node, moved.labels) = ("win02".into(), labels("pod=p5"));
    lab.world.lock().unwrap().set_pod(&key("x/p5"), Some(moved));
    lab.sync().await;
    assert!(!lab.policies(&again).await.iter().any(rules::is_ours));
}
