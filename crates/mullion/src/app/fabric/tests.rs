use clap::Parser as _;

use super::*;
use crate::cli::{Cli, Command};

/// Nodes as `kubectl get nodes -o json` prints them: those of the alpha document.
const NODES: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lin01", "labels": {"kubernetes.io/os": "linux"}},
     "spec": {"podCIDR": "192.168.0.0/24", "podCIDRs": ["192.168.0.0/24"]},
     "status": {"addresses": [{"type": "Hostname", "address": "lin01"}, {"type": "InternalIP", "address": "10.0.0.1"}]}},
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "win01", "labels": {"kubernetes.io/os": "windows"}},
     "spec": {"podCIDR": "192.168.1.0/24"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}},
    {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "win02"},
     "spec": {"podCIDR": "192.168.2.0/24"}, "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.3"}],
     "nodeInfo": {"architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
        "kubeletVersion": "", "machineID": "", "operatingSystem": "windows", "osImage": "", "systemUUID": ""}}}]}"#;

fn printed(flags: &[&str]) -> Result<(String, Vec<String>)> {
    let Command::Fabric(FabricArgs { command: FabricCommand::Routes(args) }) =
        Cli::try_parse_from(["mullion", "fabric", "routes", "--file", "-"].iter().chain(flags))?.command
    else {
        bail!("another command")
    };
    print(&args, &nodes_of(NODES.as_bytes())?)
}

#[test]
fn flags_choose_node_format_and_next_hop() {
    let text = |flags: &[&str]| printed(flags).unwrap().0;
    assert_eq!(
        text(&["--for", "win02", "--next-hop", "pod-gateway", "--interface", "4"]),
        "route add 192.168.0.0 mask 255.255.255.0 192.168.0.1 if 4 -p\nroute add 192.168.1.0 mask 255.255.255.0 192.168.1.1 if 4 -p\n"
    );
    assert_eq!(text(&["--for", "win01"]).lines().next(), Some("route add 192.168.0.0 mask 255.255.255.0 10.0.0.1 -p"));
    assert_eq!(
        text(&["--for", "lin01", "--next-hop", "pod-gateway"]),
        "ip route add 192.168.1.0/24 via 10.0.0.2\nip route add 192.168.2.0/24 via 10.0.0.3\n"
    );
    assert_eq!(text(&["-o", "frr"]).lines().count(), 3, "a router has no pods of its own");
    let (_, problems) = printed(&["--cluster-cidr", "192.168.0.0/23"]).unwrap();
    let wrong = "node win02: pod CIDR 192.168.2.0/24 is outside the cluster's 192.168.0.0/23, so it gets no route; register the node anew";
    assert!(problems.len() == 1 && problems[0].starts_with(wrong), "{problems:?}");
}

#[test]
fn unknown_nodes_formats_and_files_are_refused() {
    let refused = |flags: &[&str]| printed(flags).unwrap_err().to_string();
    assert_eq!(refused(&["--for", "win09"]), "there is no node win09: name one of lin01, win01, win02");
    assert!(refused(&["-o", "vyos"]).contains("possible values: ios, junos"));
    assert!(nodes_of(b"win01").unwrap_err().to_string().contains("kubectl get nodes -o json"));
}
