//! Requests to Windows pods, and the life of the Deployment that serves them.

use crate::cluster::{Cluster, PATIENCE, until};
use crate::commands::has_load_balancer;
use crate::from_node::{At, from_node, internal_ip, run_on_node};
use crate::http::{fetched, page, request};
use crate::{busybox, manifests};

const TITLE: &str = "IIS Windows Server (Mullion stand-in)";

/// The handbook's manifest, and its page on 127.0.0.1.
pub fn iis_answers_by_node_port(cluster: &Cluster) {
    cluster.apply(manifests::IIS);
    cluster.rolled_out("iis");
    let port = cluster.node_port("iis");
    let start = page(port, "/");
    assert!(start.contains(TITLE), "{start}");
    let hostname = page(port, "/hostname");
    let pod = &cluster.pods("iis")[0];
    assert_eq!(Some(hostname.trim()), pod["metadata"]["name"].as_str(), "the pod's name is its host name");
    let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
    assert!(node.starts_with("win"), "{node} runs a Windows pod");
}

/// What the Linux pod runs. Debian's static busybox resolves names in `nslookup` alone, hence no `wget`.
const CLIENT: &str = r#"
get() {
  for try in 1 2 3 4 5 6 7 8 9 10; do
    { printf 'GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n' "$1"; sleep 1; } | nc -w 3 "$2" 80 && return
    sleep 0.3
  done
  return 1
}
address() { nslookup "$1" | awk '/^Name:/ { found = 1 } found && /^Address/ { print $NF; exit }'; }
echo "by address"; get iis "$1" || exit 1
for name in iis iis.default.svc.cluster.local; do
  found=$(address "$name")
  echo "by name $name: $found"; get "$name" "$found" || exit 1
done
"#;

/// A Linux pod asks by address and by name; the answers are in its log.
pub fn linux_pod_reaches_it(cluster: &Cluster) {
    let loaded = busybox::load(cluster);
    assert!(loaded.contains("lin01") && !loaded.contains("win01"), "a Linux image is for Linux nodes: {loaded}");
    let service = cluster.json(&["service", "iis"]);
    let ip = service["spec"]["clusterIP"].as_str().expect("a ClusterIP");
    cluster.apply(&manifests::script("client", CLIENT, ip));
    let phase = until("the Linux pod's end", PATIENCE, || {
        let pod = cluster.json(&["pod", "client"]);
        match pod["status"]["phase"].as_str() {
            Some(phase @ ("Succeeded" | "Failed")) => Ok(phase.to_owned()),
            _ => Err(pod["status"].to_string()),
        }
    });
    let log = cluster.kubectl(&["logs", "client"]);
    assert_eq!(phase, "Succeeded", "{log}");
    for name in ["iis", "iis.default.svc.cluster.local"] {
        assert!(log.contains(&format!("by name {name}: {ip}\n")), "{log}");
    }
    assert_eq!(log.matches(&format!("<title>{TITLE}</title>")).count(), 3, "one page by address, two by name: {log}");
    assert!(log.contains(&format!("<b>{}</b>", cluster.pods("iis")[0]["metadata"]["name"].as_str().unwrap_or("?"))), "{log}");
}

/// Clients on both Windows nodes fetch from one server on the first.
pub fn windows_pods_reach_each_other(cluster: &Cluster) {
    windows_pods_fetch(cluster, true);
}

/// The same where Services are served in user space: their backends see the node.
pub fn windows_pods_reach_each_other_through_relays(cluster: &Cluster) {
    windows_pods_fetch(cluster, false);
}

fn windows_pods_fetch(cluster: &Cluster, services_keep_the_client: bool) {
    for (name, node) in [("server", "win01"), ("near", "win01"), ("far", "win02")] {
        cluster.apply(&manifests::web(name, node, "", ""));
    }
    for name in ["server", "near", "far"] {
        cluster.rolled_out(name);
    }
    let pod = &cluster.pods("server")[0];
    let name = pod["metadata"]["name"].as_str().expect("a name");
    let pod_ip = pod["status"]["podIP"].as_str().expect("a pod address");
    let service = cluster.json(&["service", "server"]);
    let cluster_ip = service["spec"]["clusterIP"].as_str().expect("a ClusterIP");
    for client in ["near", "far"] {
        let port = cluster.node_port(client);
        let own = page(port, "/hostname");
        assert_ne!(own.trim(), name, "{client} is a pod of its own");
        for host in [pod_ip, cluster_ip, "server", "server.default.svc.cluster.local"] {
            let answer = fetched(port, &format!("http://{host}/hostname"));
            assert_eq!(answer.trim(), name, "{client} asked {host}");
        }
        // Through the Service as without it, the server sees the client: load balancers leave its address as it is; relays do not.
        let own_ip = cluster.pods(client)[0]["status"]["podIP"].as_str().expect("a pod address").to_owned();
        for host in [pod_ip, cluster_ip].into_iter().take(if services_keep_the_client { 2 } else { 1 }) {
            let seen = fetched(port, &format!("http://{host}/headers"));
            assert!(seen.contains(&format!("client: {own_ip}:")), "{client}, which is {own_ip}, asked {host}: {seen}");
            assert!(seen.contains(&format!("server: {pod_ip}:80")), "{client} asked {host}: {seen}");
        }
    }
}

/// busybox' web server `penguin`, from the host and from a Windows pod (`near`, of an earlier step).
pub fn linux_server(cluster: &Cluster) {
    let serve = "mkdir -p /www && echo from Linux > /www/index.html && exec httpd -f -p 80 -h /www";
    cluster.apply(&format!("{}{}", manifests::script("penguin", serve, ""), manifests::node_port("penguin")));
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/penguin", "--timeout=30s"]);
    assert_eq!(page(cluster.node_port("penguin"), "/").trim(), "from Linux");
    let ip = cluster.pods("penguin")[0]["status"]["podIP"].as_str().expect("an address").to_owned();
    for host in [ip.as_str(), "penguin"] {
        assert_eq!(fetched(cluster.node_port("near"), &format!("http://{host}/")).trim(), "from Linux", "asked {host}");
    }
}

/// ClusterIPs and NodePorts from the Windows node `win01` itself: of a pod of its own, of one of another Windows node, and of one of a Linux
/// node (`server`, `far` and `penguin`, of earlier steps).
pub fn windows_node_reaches_services(cluster: &Cluster) {
    windows_node_asks(cluster, true);
}

/// The same where the node is no part of the pods' network (overlays): other nodes' pods answer it by NodePorts alone.
pub fn windows_node_reaches_services_of_its_own_pods(cluster: &Cluster) {
    windows_node_asks(cluster, false);
}

fn windows_node_asks(cluster: &Cluster, cluster_ips_of_others: bool) {
    let node = "win01";
    for (service, page) in [("server", "hostname"), ("far", "hostname"), ("penguin", "")] {
        let pod = &cluster.pods(service)[0];
        let is_own = pod["spec"]["nodeName"] == node;
        let answer = if page.is_empty() { "from Linux" } else { pod["metadata"]["name"].as_str().expect("a name") };
        let cluster_ip = cluster.json(&["service", service])["spec"]["clusterIP"].as_str().expect("a ClusterIP").to_owned();
        let by_cluster_ip = At { address: cluster_ip, port: 80, page };
        let node_port = u64::from(cluster.node_port(service));
        let at = |name: &str| At { address: internal_ip(cluster, name), port: node_port, page };
        let mut all: Vec<At> = [node, "win02", "lin01"].iter().map(|name| at(name)).collect();
        if is_own || cluster_ips_of_others {
            all.push(by_cluster_ip);
        } else {
            let output = run_on_node(cluster, node, &by_cluster_ip.script());
            assert!(!output.out.contains("HTTP/1"), "{service} at {by_cluster_ip:?}: {output:?}");
        }
        for at in &all {
            let seen = from_node(cluster, node, at);
            assert!(seen.contains(answer), "node {node} asked {service} at {at:?}: {seen}");
        }
    }
    // As process 1 it takes no notice of SIGTERM: it ends at the deadline.
    cluster.kubectl(&["delete", "pod/penguin", "service/penguin", "--grace-period=1", "--timeout=10s"]);
}

/// Another environment in the same manifest: new pods, and the NodePort serves them.
pub fn changed_manifest(cluster: &Cluster) {
    let manifest = |colour: &str| manifests::web("blue", "win02", "", &format!("        env: [{{name: COLOUR, value: {colour}}}]"));
    let applied = cluster.apply(&manifest("blue"));
    assert!(applied.contains("deployment.apps/blue created"), "{applied}");
    cluster.rolled_out("blue");
    let port = cluster.node_port("blue");
    assert!(page(port, "/env").contains("COLOUR=blue\n"));
    let again = cluster.apply(&manifest("blue"));
    assert!(again.contains("deployment.apps/blue unchanged") && again.contains("service/blue unchanged"), "{again}");
    let changed = cluster.apply(&manifest("green"));
    assert!(changed.contains("deployment.apps/blue configured") && changed.contains("service/blue unchanged"), "{changed}");
    cluster.rolled_out("blue");
    until("the changed environment", PATIENCE, || {
        let env = page(port, "/env");
        if env.contains("COLOUR=green\n") { Ok(()) } else { Err(env) }
    });
    assert_eq!(cluster.node_port("blue"), port, "a changed Deployment leaves the Service alone");
    until("one ReplicaSet with pods", PATIENCE, || {
        let sets = cluster.json(&["replicasets", "-l", "app=blue"]);
        let sizes: Vec<_> = sets["items"].as_array().into_iter().flatten().map(|set| set["spec"]["replicas"].as_i64().unwrap_or(-1)).collect();
        if sizes.len() == 2 && sizes.iter().sum::<i64>() == 1 { Ok(()) } else { Err(format!("{sizes:?}")) }
    });
    cluster.kubectl(&["delete", "deployment/blue", "service/blue"]);
}

/// A pod of each system at a port of its node, reached from a pod of another node.
pub fn host_ports(cluster: &Cluster) {
    cluster.apply(&manifests::web("asker", "win02", "", ""));
    cluster.apply(
        &manifests::windows_pod("porter", "microsoft/iis", ", kubernetes.io/hostname: win01")
            .replace("image: \"microsoft/iis\"", "image: \"microsoft/iis\", ports: [{containerPort: 80, hostPort: 8081}]"),
    );
    let server = "while true; do printf 'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\nof Linux' | nc -l -p 80; done";
    cluster.apply(&manifests::script("linux-porter", server, "").replace("name: main,", "name: main, ports: [{containerPort: 80, hostPort: 8082}],"));
    cluster.rolled_out("asker");
    cluster.ready("pod/porter");
    cluster.ready("pod/linux-porter");
    let port = cluster.node_port("asker");
    assert_eq!(fetched(port, "http://10.240.0.12:8081/hostname").trim(), "porter");
    assert_eq!(fetched(port, "http://10.240.0.11:8082/"), "of Linux");
    // A second pod for the same port waits.
    cluster.apply(
        &manifests::windows_pod("second", "microsoft/iis", ", kubernetes.io/hostname: win01")
            .replace("image: \"microsoft/iis\"", "image: \"microsoft/iis\", ports: [{containerPort: 80, hostPort: 8081}]"),
    );
    cluster.event("pod", "second", "FailedScheduling", "didn't have free ports for the requested pod ports");
    cluster.kubectl(&["delete", "--grace-period=1", "deployment/asker", "service/asker", "pod/porter", "pod/linux-porter", "pod/second"]);
}

/// Health at every address of a node, which load balancers ask; metrics on the node's own loopback, as upstream's.
pub fn proxies_serve_health_and_metrics(cluster: &Cluster) {
    for node in ["lin01", "win01", "win02"] {
        for path in ["healthz", "livez"] {
            let output = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}:10256/proxy/{path}")]);
            assert!(output.contains("\"nodeEligible\": true"), "{node}/{path}: {output}");
        }
        let outside = cluster.try_kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}:10249/proxy/metrics")], "");
        assert_ne!(outside.code, Some(0), "metrics are the node's own: {}", outside.out);
    }
    busybox::load(cluster);
    let script = "for path in metrics proxyMode readyz; do busybox wget -qO- http://127.0.0.1:10249/$path; echo; done; busybox cat /etc/hosts";
    cluster.apply(&manifests::script("scraper", script, "").replace("spec:\n", "spec:\n  hostNetwork: true\n"));
    let phase = || cluster.json(&["pod/scraper"])["status"]["phase"].as_str().unwrap_or_default().to_owned();
    until("the scraper", PATIENCE, || if phase() == "Succeeded" { Ok(()) } else { Err(phase()) });
    let output = cluster.kubectl(&["logs", "scraper"]);
    let nodes_hosts = "\n# Kubernetes-managed hosts file (host network).\n127.0.0.1\tlocalhost\n";
    let served = ["\nkubeproxy_sync_proxy_rules_last_timestamp_seconds", "\nmullion_service_proxy_missing 0\n", "\nnftables\n", "\"converged\":true"];
    for part in served.into_iter().chain([nodes_hosts]) {
        assert!(output.contains(part), "no {part:?} in {output}");
    }
    cluster.kubectl(&["delete", "pod/scraper"]);
}

/// Nothing of a deleted Deployment and Service is left, on the real host neither.
pub fn deletion(cluster: &Cluster) {
    cluster.apply(&manifests::web("gone", "win01", "", ""));
    cluster.rolled_out("gone");
    let port = cluster.node_port("gone");
    page(port, "/");
    let ip = cluster.json(&["service", "gone"])["spec"]["clusterIP"].as_str().expect("a ClusterIP").to_owned();
    until("a load balancer", PATIENCE, || if has_load_balancer(cluster, "win01", &ip) { Ok(()) } else { Err(ip.clone()) });
    let output = cluster.kubectl(&["delete", "deployment/gone", "service/gone"]);
    assert!(output.contains("deployment.apps \"gone\" deleted"), "{output}");
    until("pods and ReplicaSets end", PATIENCE, || {
        let left = cluster.kubectl(&["get", "pods,replicasets,endpointslices", "-l", "app=gone", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    until("the NodePort is closed", PATIENCE, || match request("GET", port, "/", "") {
        Err(error) if error.contains("refused") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    for node in ["win01", "win02"] {
        until(&format!("no load balancer on {node}"), PATIENCE, || if has_load_balancer(cluster, node, &ip) { Err(ip.clone()) } else { Ok(()) });
    }
    until("endpoint slices end", PATIENCE, || {
        let left = cluster.kubectl(&["get", "endpointslices", "-l", "kubernetes.io/service-name=gone", "-o", "name"]);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

/// NodePorts that the API server chooses lie in the cluster's range; others are refused, and so is one more than there are.
pub fn node_ports_are_of_the_range(cluster: &Cluster) {
    let range = cluster.node_ports();
    let service = |ports: &[String]| {
        format!("{{apiVersion: v1, kind: Service, metadata: {{name: many}}, spec: {{type: NodePort, ports: [{}]}}}}", ports.join(", "))
    };
    let ports = |count: usize| (1..=count).map(|n| format!("{{name: p{n}, port: {n}}}")).collect::<Vec<_>>();
    let refused = |manifest: &str, part: &str| {
        let output = cluster.try_kubectl(&["apply", "-f", "-"], manifest);
        assert!(output.code == Some(1) && output.err.contains(part), "{part}: {output:?}");
    };
    let outside = range.end() + 1;
    refused(
        &service(&[format!("{{port: 80, nodePort: {outside}}}")]),
        &format!(
            "spec.ports[0].nodePort: Invalid value: {outside}: provided port is not in the valid range. The range of valid ports is {}-{}",
            range.start(),
            range.end()
        ),
    );
    refused(&service(&ports(range.len() + 1)), "range is full");
    cluster.apply(&service(&ports(range.len() / 2)));
    let chosen: Vec<u64> =
        cluster.json(&["service", "many"])["spec"]["ports"].as_array().into_iter().flatten().filter_map(|port| port["nodePort"].as_u64()).collect();
    assert!(chosen.len() == range.len() / 2 && chosen.iter().all(|port| range.contains(&u16::try_from(*port).unwrap_or_default())), "{chosen:?}");
    cluster.kubectl(&["delete", "service", "many"]);
}
