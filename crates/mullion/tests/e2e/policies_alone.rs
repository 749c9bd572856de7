//! Policies without the rest of Mullion: `mullion policy run` on two nodes, and on a third a node agent without pod network and proxy, whose network
//! and plug-in are Azure's.

use std::fs::{self, File};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::cluster::{self, Cluster, PATIENCE, Step, mullion, until};
use crate::commands::hns;
use crate::from_node::line_on_node;
use crate::policies::{self, clear, policy};
use crate::recovery::{kill_process, process};

/// The node of another owner.
const AZURE: &str = "win02";
/// The nodes with `mullion policy run`, and what it is told of them.
const ALONE: [(&str, &str); 2] = [("lin01", "--os linux"), ("win01", "--os windows:20348 --hcn unix:RUN/win01.hcn")];

/// What docs/network-policy.md says of the node's rights.
const RIGHTS: &str = "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: policies}
rules:
- {apiGroups: [''], resources: [pods, namespaces, nodes], verbs: [get, list, watch]}
- {apiGroups: [networking.k8s.io], resources: [networkpolicies], verbs: [get, list, watch]}
- {apiGroups: [policy.networking.k8s.io], resources: [clusternetworkpolicies], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: policies}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: policies}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:nodes'}]
";

#[test]
fn policies_hold_on_networks_of_others() {
    let cluster = Cluster::up("");
    cluster.apply(RIGHTS);
    give_to_azure(&cluster);
    let mut running = ALONE.map(|(node, options)| run_alone(&cluster, node, options));
    let steps: &[Step] = &[
        ("pods reach each other without policies", policies::pods_run),
        ("deny by default, let in by selectors", policies::selected_peers_get_in),
        ("on Azure's endpoints only marked rules come and go", only_marked_rules_change),
        ("every program put the policies into effect", all_are_in_effect),
    ];
    cluster::take(&cluster, steps);
    assert!(running.iter_mut().all(|child| child.try_wait().is_ok_and(|ended| ended.is_none())), "they run until the cluster ends");
}

/// Starts the policies of a node in its network. They end with the lab.
fn run_alone(cluster: &Cluster, node: &str, options: &str) -> Child {
    let command = format!(
        "{} policy run --kubeconfig {}/pki/{node}.conf --hostname-override {node} {options}",
        mullion().display(),
        cluster.place.dir().display()
    );
    let line = line_on_node(cluster, node, &command);
    let log = File::create(log_of(cluster, node)).expect("a log");
    let mut command = cluster.place.command("sh");
    command.args(["-c", &line]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().expect("mullion policy run")
}

fn log_of(cluster: &Cluster, node: &str) -> std::path::PathBuf {
    cluster.place.path().join(format!("{node}-policy.log"))
}

/// Takes the pods' network from a node, and gives it one that the plug-ins of Azure make.
fn give_to_azure(cluster: &Cluster) {
    let host = cluster.place.dir().join("hosts").join(AZURE);
    let file = host.join("node.yaml");
    let before = fs::read_to_string(&file).expect("the node's configuration");
    let after = before.replace("networkPolicy: false", "networkPolicy: true").replace("without: []", "without: [fabric, proxy]");
    assert!(after.contains("networkPolicy: true") && after.contains("[fabric, proxy]"), "{before}");
    fs::write(&file, after).expect("the node's configuration");
    kill_process(cluster, &format!("{AZURE}/node"));
    until("the node again", PATIENCE, || {
        let process = process(cluster, &format!("{AZURE}/node"));
        if process["restarts"].as_u64() >= Some(1) && process["ready"] == true { Ok(()) } else { Err(process.to_string()) }
    });
    let network = network_of(cluster, "mullion").expect("the network that Mullion made");
    let lost = ["hns", "fault", "add", &format!("lost-object,id={}", network["ID"].as_str().unwrap_or_default()), "--node", AZURE];
    cluster.place.mullion(&lost).ok("mullion hns fault add");
    until("no network of Mullion's", PATIENCE, || network_of(cluster, "mullion").map_or(Ok(()), |network| Err(network.to_string())));

    let cidr = cluster.json(&["node", AZURE])["spec"]["podCIDR"].as_str().expect("a pod CIDR").to_owned();
    let base = cidr.rsplit_once('.').expect("an IPv4 network").0;
    let addresses: Vec<Value> = (10..30).map(|n| json!({"Address": format!("{base}.{n}"), "IsPrimary": n == 10})).collect();
    let interfaces =
        json!({"Interfaces": [{"MacAddress": "000D3A6E1825", "IsPrimary": true, "IPSubnets": [{"Prefix": cidr, "IPAddresses": addresses}]}]});
    let file = host.join("interfaces.json");
    fs::write(&file, interfaces.to_string()).expect("the machine's interfaces");
    let plugin = json!({
        "type": "azure-vnet", "mode": "bridge", "bridge": "azure0", "master": "Ethernet",
        "ipam": {"type": "azure-vnet-ipam", "environment": "mas", "interfacesFile": file, "dataDir": host.join("cni").join("azure")},
        "dns": {"Nameservers": ["10.96.0.10"], "Search": ["svc.cluster.local"]},
        "AdditionalArgs": [
            {"Name": "EndpointPolicy", "Value": {"Type": "OutBoundNAT", "ExceptionList": ["192.168.0.0/16", "10.96.0.0/12", "10.240.0.0/24"]}},
            {"Name": "EndpointPolicy", "Value": {"Type": "ACL", "Action": "Allow", "Direction": "In", "Priority": 300, "Protocols": "58"}}],
    });
    let list = json!({"cniVersion": "0.3.0", "name": "azure", "plugins": [plugin]});
    let conf = host.join("cni").join("conf");
    fs::write(conf.join("10-azure.conflist"), list.to_string())
        .and_then(|()| fs::remove_file(conf.join("10-mullion.conflist")))
        .expect("a configuration");
}

fn network_of(cluster: &Cluster, name: &str) -> Option<Value> {
    hns(cluster, "networks", AZURE).into_iter().find(|network| network["Name"] == name)
}

/// The policies of the endpoints on Azure's network: ours, and the others with their endpoint.
fn policies_of_azure(cluster: &Cluster) -> (usize, Vec<Value>) {
    let network = network_of(cluster, "azure").expect("Azure's network");
    let endpoints = hns(cluster, "endpoints", AZURE).into_iter().filter(|endpoint| endpoint["HostComputeNetwork"] == network["ID"]);
    let (mut ours, mut others) = (0, Vec::new());
    for endpoint in endpoints {
        for policy in endpoint["Policies"].as_array().into_iter().flatten() {
            if policy.to_string().contains("\"mullion-np-") {
                ours += 1;
            } else {
                others.push(json!([endpoint["Name"], policy]));
            }
        }
    }
    (ours, others)
}

fn only_marked_rules_change(cluster: &Cluster) {
    let before = until("none of our rules", PATIENCE, || match policies_of_azure(cluster) {
        (0, others) => Ok(others),
        (ours, _) => Err(format!("{ours} rules")),
    });
    assert!(before.iter().filter(|policy| policy.to_string().contains("\"58\"")).count() >= 2, "two pods with a rule of Azure's: {before:?}");
    policy(cluster, "px", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    let during = until("our rules", PATIENCE, || match policies_of_azure(cluster) {
        (0, _) => Err("none".to_owned()),
        (_, others) => Ok(others),
    });
    assert_eq!(during, before, "what others made is as it was");
    clear(cluster);
    until("no rules of ours", PATIENCE, || match policies_of_azure(cluster) {
        (0, others) if others == before => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

fn all_are_in_effect(cluster: &Cluster) {
    let logs = ALONE.map(|(node, _)| fs::read_to_string(log_of(cluster, node)).expect("a log"));
    for log in logs.into_iter().chain([cluster.place.mullion(&["logs", AZURE, "node"]).ok("mullion logs")]) {
        assert!(log.contains("a policy is in effect policy=NetworkPolicy px/deny"), "{log}");
    }
}
