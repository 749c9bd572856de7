//! What the commands print about a cluster that runs.

use serde_json::Value;

use crate::cluster::{Cluster, PATIENCE, run, until};

/// Three nodes with the labels that manifests select by.
pub fn nodes_are_ready(cluster: &Cluster) {
    let table = cluster.kubectl(&["get", "nodes", "-o", "wide"]);
    for name in ["lin01", "win01", "win02"] {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is missing: {table}"));
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(columns[1], "Ready", "{line}");
        assert!(columns[5].starts_with("10.240.0."), "{line}");
    }
    assert!(table.contains("Windows Server 2022"), "{table}");
    let nodes = cluster.json(&["nodes", "-l", "beta.kubernetes.io/os=windows"]);
    let nodes = nodes["items"].as_array().expect("a list");
    assert_eq!(nodes.len(), 2, "two nodes run Windows");
    for node in nodes {
        let (labels, status) = (&node["metadata"]["labels"], &node["status"]);
        assert_eq!(labels["kubernetes.io/os"], "windows");
        assert_eq!(labels["node.kubernetes.io/windows-build"], "10.0.20348");
        assert_eq!((&status["capacity"]["cpu"], &status["capacity"]["memory"]), (&Value::from("8"), &Value::from("16Gi")), "declared capacity");
        assert!(status["nodeInfo"]["kernelVersion"].as_str().is_some_and(|version| version.starts_with("10.0.20348")), "{}", status["nodeInfo"]);
    }
}

/// The table for people and the document for programs.
pub fn status_lists_processes_and_nodes(cluster: &Cluster) {
    let text = cluster.place.mullion(&["status"]).ok("mullion status");
    assert!(text.contains(&format!("https://127.0.0.1:{}", cluster.port)), "{text}");
    let status: Value = serde_json::from_str(&cluster.place.mullion(&["status", "-o", "json"]).ok("mullion status -o json")).expect("JSON");
    let nodes = status["nodes"].as_array().expect("nodes");
    assert_eq!(nodes.len(), 3, "{status}");
    assert!(nodes.iter().all(|node| node["ready"] == true), "{status}");
    for node in nodes {
        let (is_windows, calls) = (node["name"] != "lin01", node["hcn"]["calls"].as_u64());
        assert_eq!(calls.is_some_and(|calls| calls > 0), is_windows, "calls to HNS: {node}");
    }
    assert!(text.contains("HNS CALLS") && text.lines().filter(|line| line.starts_with("win01 ")).count() >= 2, "{text}");
    let enter = text.lines().find_map(|line| line.split_once("enter the lab: ")).unwrap_or_else(|| panic!("no way into the lab: {text}")).1;
    let inside = run(cluster.place.command("sh").args(["-c", &format!("{enter} id -u")]), "").ok(enter);
    assert_eq!(inside.trim(), "0", "{enter}");
    let processes = status["processes"].as_array().expect("processes");
    assert!(processes.len() >= 9, "control plane, three nodes, three runtimes, two network services: {status}");
    for process in processes {
        assert_eq!((&process["ready"], &process["restarts"]), (&Value::from(true), &Value::from(0)), "{process}");
    }
}

/// `mullion hns list KIND --node NODE -o json`.
#[track_caller]
pub fn hns(cluster: &Cluster, kind: &str, node: &str) -> Vec<Value> {
    let text = cluster.place.mullion(&["hns", "list", kind, "--node", node, "-o", "json"]).ok("mullion hns list");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{kind} of {node} is no JSON ({error}): {text}"))
}

/// Whether a load balancer of a node answers at `ip`.
#[track_caller]
pub fn has_load_balancer(cluster: &Cluster, node: &str, ip: &str) -> bool {
    let at = |balancer: &Value| balancer["FrontendVIPs"].as_array().into_iter().flatten().any(|vip| vip == ip);
    hns(cluster, "loadbalancers", node).iter().any(at)
}

/// The simulated services of both Windows nodes hold what the agents made, for the Service `iis`.
pub fn hns_lists(cluster: &Cluster) {
    let list = |kind: &str, node: &str| hns(cluster, kind, node);
    let service = cluster.json(&["service", "iis"]);
    let ip = service["spec"]["clusterIP"].as_str().expect("a ClusterIP");
    for node in ["win01", "win02"] {
        let networks = list("networks", node);
        assert!(networks.iter().any(|network| network["Type"] == "L2Bridge"), "{networks:?}");
        until(&format!("a load balancer for {ip} on {node}"), PATIENCE, || {
            if has_load_balancer(cluster, node, ip) { Ok(()) } else { Err(format!("{:?}", list("loadbalancers", node))) }
        });
        let pods = cluster.json(&["pods", "--field-selector", &format!("spec.nodeName={node}")]);
        let endpoints = list("endpoints", node);
        for pod in pods["items"].as_array().into_iter().flatten().filter(|pod| pod["status"]["phase"] == "Running") {
            let pod_ip = &pod["status"]["podIP"];
            let known =
                endpoints.iter().any(|endpoint| endpoint["IpConfigurations"].as_array().into_iter().flatten().any(|ip| ip["IpAddress"] == *pod_ip));
            assert!(known, "{pod_ip} has an endpoint on {node}: {endpoints:?}");
        }
        assert!(!list("namespaces", node).is_empty() || pods["items"].as_array().is_none_or(Vec::is_empty), "pods of {node} have namespaces");
        let table = cluster.place.mullion(&["hns", "list", "networks", "--node", node]).ok("mullion hns list");
        assert!(table.starts_with("NAME") && table.contains("L2Bridge"), "{table}");
    }
    let output = cluster.place.mullion(&["hns", "list", "networks", "--node", "lin01"]);
    assert!(output.code != Some(0) && output.err.lines().count() == 1, "a Linux node has no such service: {output:?}");
}

/// Reading commands, on the Deployment `iis`.
pub fn kubectl_reads(cluster: &Cluster) {
    let pod = &cluster.pods("iis")[0];
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let ip = pod["status"]["podIP"].as_str().expect("an address");
    let node = pod["spec"]["nodeName"].as_str().expect("a node");
    until("the log of a request", PATIENCE, || {
        let log = cluster.kubectl(&["logs", name]);
        if log.contains("Mullion stand-in") && log.contains(" GET / ") { Ok(()) } else { Err(log) }
    });
    assert_eq!(cluster.kubectl(&["logs", "deployment/iis", "--tail=1"]).lines().count(), 1);
    let text = cluster.kubectl(&["describe", "pod", name]);
    for part in [name, ip, "microsoft/iis", "Status:           Running", "kubernetes.io/os=windows", "Successfully assigned default/", "Started"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    assert!(cluster.kubectl(&["describe", "deployment", "iis"]).contains("1 desired | 1 updated | 1 total | 1 available | 0 unavailable"));
    assert!(cluster.kubectl(&["describe", "service", "iis"]).contains(&format!("{ip}:80")));
    let text = cluster.kubectl(&["describe", "node", node]);
    assert!(text.contains(name) && text.contains("KubeletReady"), "{text}");
    let wide = cluster.kubectl(&["get", "pods", "-o", "wide"]);
    let head: Vec<&str> = wide.lines().next().unwrap_or_default().split_whitespace().collect();
    assert_eq!(head, ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "NOMINATED", "NODE", "READINESS", "GATES"]);
    let line = wide.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is missing: {wide}"));
    assert_eq!(line.split_whitespace().skip(1).take(3).collect::<Vec<_>>(), ["1/1", "Running", "0"]);
    assert!(line.contains(ip) && line.contains(node), "{line}");
    let text = cluster.kubectl(&["explain", "pod.spec.nodeSelector"]);
    assert!(text.contains("FIELD: nodeSelector <map[string]string>") && text.contains("fit on a node"), "{text}");
    let text = cluster.kubectl(&["explain", "deployment.spec"]);
    assert!(text.contains("GROUP:      apps") && text.contains("replicas\t<integer>"), "{text}");
}
