//! Network policies between Linux and Windows pods: what upstream's test/e2e/network/netpol holds plug-ins to.

use std::thread;

use serde_json::{Value, json};

use crate::busybox;
use crate::cluster::{Cluster, PATIENCE, until};

/// Namespaces `px` and `py` have the same three pods; each is called by its namespace's second letter and its own name.
const PODS: [(&str, &str, &str); 6] =
    [("px", "a", "lin01"), ("px", "b", "win01"), ("px", "c", "win02"), ("py", "a", "lin01"), ("py", "b", "win01"), ("py", "c", "win02")];
const IIS: &str = "mcr.microsoft.com/windows/servercore/iis:windowsservercore-ltsc2022";

fn is_linux(pod: (&str, &str, &str)) -> bool {
    pod.2.starts_with("lin")
}

fn title((ns, name, _): (&str, &str, &str)) -> String {
    format!("{}/{name}", &ns[1..])
}

/// The pods, and a Service for each.
pub fn pods_run(cluster: &Cluster) {
    busybox::load(cluster);
    let mut items: Vec<Value> = ["px", "py"]
        .iter()
        .map(|ns| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ns, "labels": {"ns": &ns[1..]}}}))
        .collect();
    for (ns, name, node) in PODS {
        let mut container = json!({"name": "c", "image": IIS, "ports": [{"name": "serve-80", "containerPort": 80}]});
        if is_linux((ns, name, node)) {
            let serve = "mkdir -p /www && echo here > /www/index.html && httpd -p 81 -h /www && exec httpd -f -p 80 -h /www";
            container["image"] = busybox::IMAGE.into();
            container["imagePullPolicy"] = "Never".into();
            container["command"] = json!(["/bin/sh", "-c", serve]);
        }
        let spec = json!({"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 0, "containers": [container]});
        items.push(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": ns, "labels": {"pod": name}}, "spec": spec}));
        let spec = json!({"selector": {"pod": name}, "ports": [{"port": 80}]});
        items.push(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": ns}, "spec": spec}));
    }
    cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string());
    for ns in ["px", "py"] {
        cluster.kubectl(&["-n", ns, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s"]);
    }
    expect(cluster, "without policies", |_, _| true);
}

fn address(cluster: &Cluster, (ns, name, _): (&str, &str, &str), service: bool) -> String {
    let (kind, path) = if service { ("service", "/spec/clusterIP") } else { ("pod", "/status/podIP") };
    let object: Value = serde_json::from_str(&cluster.kubectl(&["-n", ns, "get", kind, name, "-o", "json"])).expect("JSON");
    object.pointer(path).and_then(Value::as_str).expect("an address").to_owned()
}

/// Which of the addresses a pod gets an answer from.
fn reached(cluster: &Cluster, (ns, name, node): (&str, &str, &str), addresses: &[String], port: u16) -> Vec<bool> {
    // What is behind a number is the answer of that address. (Wine's cmd takes && for &.)
    let numbered = || addresses.iter().enumerate();
    let script: String = if is_linux((ns, name, node)) {
        let ask = |(n, ip): (usize, &String)| {
            format!("{{ (printf 'GET / HTTP/1.0\\r\\n\\r\\n'; sleep 1) | nc -w 1 {ip} {port} | awk 'NR == 1 {{ print \"[{n}] answered\" }}'; }} & ")
        };
        numbered().map(ask).collect::<String>() + "wait"
    } else {
        numbered().map(|(n, ip)| format!("echo [{n}]& curl -s -m 1 http://{ip}:{port}/")).collect::<Vec<_>>().join("& ")
    };
    let shell: &[&str] = if is_linux((ns, name, node)) { &["sh", "-c"] } else { &["cmd", "/c"] };
    let args = [&["-n", ns, "exec", name, "--"], shell, &[&script]].concat();
    let output = cluster.try_kubectl(&args, "").out;
    let answer = |n: usize| {
        let behind = output.split_once(&format!("[{n}]")).map_or("", |(_, behind)| behind);
        (0..addresses.len()).fold(behind, |text, next| text.split_once(&format!("[{next}]")).map_or(text, |(before, _)| before))
    };
    (0..addresses.len()).map(|n| !answer(n).trim().is_empty()).collect()
}

/// Whether each pair of pods reaches each other as it is expected to, by titles such as `x/a`; a policy takes a moment.
fn expect(cluster: &Cluster, what: &str, allowed: impl Fn(&str, &str) -> bool) {
    expect_at(cluster, what, 80, false, allowed);
}

fn expect_at(cluster: &Cluster, what: &str, port: u16, service: bool, allowed: impl Fn(&str, &str) -> bool) {
    // Windows pods answer at port 80 alone.
    let targets: Vec<_> = PODS.into_iter().filter(|pod| port == 80 || is_linux(*pod)).collect();
    let addresses: Vec<String> = targets.iter().map(|pod| address(cluster, *pod, service)).collect();
    until(what, PATIENCE, || {
        let rows: Vec<Vec<bool>> = thread::scope(|scope| {
            let asks: Vec<_> = PODS.iter().map(|pod| scope.spawn(|| reached(cluster, *pod, &addresses, port))).collect();
            asks.into_iter().map(|ask| ask.join().expect("an answer")).collect()
        });
        let mut wrong = Vec::new();
        for (from, row) in PODS.iter().zip(rows) {
            for (to, reached) in targets.iter().zip(row) {
                // A pod always reaches itself.
                let wanted = from == to || allowed(&title(*from), &title(*to));
                if wanted != reached {
                    wrong.push(format!("{} → {}: {}", title(*from), title(*to), if reached { "answered" } else { "silent" }));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
    });
}

pub fn policy(cluster: &Cluster, ns: &str, name: &str, spec: Value) {
    let metadata = json!({"name": name, "namespace": ns});
    cluster.apply(&json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}).to_string());
}

pub fn clear(cluster: &Cluster) {
    for ns in ["px", "py"] {
        cluster.kubectl(&["-n", ns, "delete", "networkpolicies", "--all"]);
    }
}

fn pod(name: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"pod": name}}})
}

fn namespace(name: &str) -> Value {
    json!({"namespaceSelector": {"matchLabels": {"ns": name}}})
}

/// Deny by default, then let in by selectors: the one case that every mode of the pod network has.
pub fn selected_peers_get_in(cluster: &Cluster) {
    policy(cluster, "px", "deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}));
    expect(cluster, "nothing gets in", |_, to| !to.starts_with('x'));
    policy(cluster, "px", "allow", json!({"podSelector": {}, "ingress": [{"from": [pod("b"), namespace("y")]}]}));
    expect(cluster, "selected peers get in", |from, to| !to.starts_with('x') || from == "x/b" || from.starts_with('y'));
    clear(cluster);
    expect(cluster, "without policies again", |_, _| true);
}

/// Selectors of pods and namespaces: both, either, by expressions; changed labels and changed policies.
pub fn selectors_choose_peers(cluster: &Cluster) {
    let allow = |from: Value| policy(cluster, "px", "allow", json!({"podSelector": {}, "ingress": [{"from": from}]}));
    let mut both = namespace("y");
    both["podSelector"] = pod("a")["podSelector"].clone();
    allow(json!([both]));
    expect(cluster, "a pod of a namespace", |from, to| !to.starts_with('x') || from == "y/a");
    allow(json!([namespace("y"), pod("a")]));
    expect(cluster, "a namespace, or a pod of the own one", |from, to| !to.starts_with('x') || from.starts_with('y') || from == "x/a");
    allow(json!([{"podSelector": {"matchExpressions": [{"key": "pod", "operator": "NotIn", "values": ["a"]}]}, "namespaceSelector": {}}]));
    expect(cluster, "by expressions", |from, to| !to.starts_with('x') || !from.ends_with('a'));
    allow(json!([{"podSelector": {"matchLabels": {"friend": "yes"}}, "namespaceSelector": {}}]));
    expect(cluster, "nobody has the label", |_, to| !to.starts_with('x'));
    cluster.kubectl(&["-n", "py", "label", "pod", "c", "friend=yes"]);
    expect(cluster, "the labelled pod", |from, to| !to.starts_with('x') || from == "y/c");
    cluster.kubectl(&["-n", "py", "label", "pod", "c", "friend-"]);
    allow(json!([{"namespaceSelector": {"matchLabels": {"friends": "yes"}}}]));
    cluster.kubectl(&["label", "namespace", "py", "friends=yes"]);
    expect(cluster, "the labelled namespace", |from, to| !to.starts_with('x') || from.starts_with('y'));
    cluster.kubectl(&["label", "namespace", "py", "friends-"]);
    expect(cluster, "no namespace any more", |_, to| !to.starts_with('x'));
    clear(cluster);
}

/// Ports by number, range and name; policies add up.
pub fn ports_and_names_of_ports(cluster: &Cluster) {
    let at = |name: &str, ports: Value| policy(cluster, "px", name, json!({"podSelector": {}, "ingress": [{"ports": ports}]}));
    at("one", json!([{"port": 81}]));
    expect(cluster, "another port", |_, to| !to.starts_with('x'));
    expect_at(cluster, "that port", 81, false, |_, _| true);
    at("two", json!([{"port": "serve-80"}]));
    expect(cluster, "policies add up", |_, _| true);
    cluster.kubectl(&["-n", "px", "delete", "networkpolicy", "one"]);
    expect(cluster, "a named port", |_, _| true);
    expect_at(cluster, "the other port", 81, false, |_, to| !to.starts_with('x'));
    at("two", json!([{"port": 70, "endPort": 90}]));
    expect_at(cluster, "a range", 81, false, |_, _| true);
    at("two", json!([{"port": 80, "protocol": "UDP"}]));
    expect(cluster, "another protocol", |_, to| !to.starts_with('x'));
    clear(cluster);
}

/// Egress by selectors, networks and names of ports; both directions at once; through Services too.
pub fn egress_and_services(cluster: &Cluster) {
    policy(
        cluster,
        "px",
        "out",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [namespace("y")], "ports": [{"port": "serve-80"}]}]}),
    );
    let out = |from: &str, to: &str| !from.starts_with('x') || to.starts_with('y');
    expect(cluster, "to a namespace", out);
    expect_at(cluster, "through Services", 80, true, out);
    let (a, b) = (address(cluster, PODS[3], false), address(cluster, PODS[4], false));
    let block = json!([{"ipBlock": {"cidr": "192.168.0.0/16", "except": [format!("{a}/32")]}}]);
    policy(cluster, "px", "out", json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": block}]}));
    expect(cluster, "all but an exception", |from, to| !from.starts_with('x') || to != "y/a");
    policy(
        cluster,
        "px",
        "also",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": format!("{a}/32")}}]}]}),
    );
    expect(cluster, "one policy's exception is allowed by another", |_, _| true);
    cluster.kubectl(&["-n", "px", "delete", "networkpolicy", "also"]);
    policy(
        cluster,
        "px",
        "out",
        json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": {"cidr": format!("{b}/32")}}]}]}),
    );
    policy(cluster, "py", "in", json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [namespace("x")]}]}));
    let both = |from: &str, to: &str| match (from.starts_with('x'), to.starts_with('x')) {
        (true, _) => to == "y/b",
        (false, true) => true,
        (false, false) => false,
    };
    expect(cluster, "each side has to allow it", both);
    policy(cluster, "px", "out", json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}));
    expect(cluster, "neither in nor out", |_, _| false);
    clear(cluster);
    expect(cluster, "without policies again", |_, _| true);
}

const CLUSTER_POLICIES: &str = r#"{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
"metadata": {"name": "clusternetworkpolicies.policy.networking.k8s.io",
  "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/network-policy-api/pull/300"}},
"spec": {"group": "policy.networking.k8s.io", "scope": "Cluster",
  "names": {"kind": "ClusterNetworkPolicy", "plural": "clusternetworkpolicies", "singular": "clusternetworkpolicy"},
  "versions": [{"name": "v1alpha2", "served": true, "storage": true,
    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}"#;

/// Tiers before and after NetworkPolicies, from when the kind is installed.
pub fn tiers_count_before_and_after(cluster: &Cluster) {
    cluster.apply(CLUSTER_POLICIES);
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/clusternetworkpolicies.policy.networking.k8s.io", "--timeout=30s"]);
    let apply = |name: &str, tier: &str, rules: Value| {
        let spec = json!({"tier": tier, "priority": 10, "subject": {"namespaces": {"matchLabels": {"ns": "x"}}}, "ingress": rules});
        let object =
            json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": name}, "spec": spec});
        cluster.apply(&object.to_string());
    };
    let of = |ns: &str| json!([{"namespaces": {"matchLabels": {"ns": ns}}}]);
    apply("base", "Baseline", json!([{"action": "Deny", "from": of("y")}]));
    expect(cluster, "the Baseline tier denies", |from, to| !to.starts_with('x') || from.starts_with('x'));
    policy(cluster, "px", "open", json!({"podSelector": {}, "ingress": [{}]}));
    expect(cluster, "a NetworkPolicy counts before it", |_, _| true);
    let a = json!([{"pods": {"namespaceSelector": {"matchLabels": {"ns": "y"}}, "podSelector": {"matchLabels": {"pod": "a"}}}}]);
    apply("admin", "Admin", json!([{"action": "Pass", "from": a}, {"action": "Deny", "from": of("y")}]));
    expect(cluster, "the Admin tier counts first, and passes what it passes", |from, to| {
        !to.starts_with('x') || from.starts_with('x') || from == "y/a"
    });
    cluster.kubectl(&["delete", "clusternetworkpolicies.policy.networking.k8s.io", "--all"]);
    clear(cluster);
    expect(cluster, "without policies again", |_, _| true);
}

/// The command names the rule; wrong parts of a policy are events, and the rest holds.
pub fn explained_and_reported(cluster: &Cluster) {
    let ingress = json!([{"from": [pod("a")], "ports": [{"port": "serve-80"}]}]);
    policy(cluster, "px", "web", json!({"podSelector": {"matchLabels": {"pod": "b"}}, "ingress": ingress}));
    let kubeconfig = cluster.place.dir().join("pki/admin.conf");
    let explain = |from: &str| {
        let args = ["policy", "explain", "--from", from, "--to", "px/b", "--port", "serve-80", "-o", "json"];
        let mut command = cluster.place.command(crate::cluster::mullion());
        let output = crate::cluster::run(command.args(args).env("KUBECONFIG", &kubeconfig), "");
        serde_json::from_str::<Value>(&output.ok("mullion policy explain")).expect("JSON")
    };
    let allowed = explain("px/a");
    assert_eq!((&allowed["allowed"], &allowed["rule"]), (&json!(true), &json!("NetworkPolicy px/web ingress[0]")), "{allowed}");
    let denied = explain("py/c");
    let rule = "isolated by NetworkPolicy px/web; no rule allows it";
    assert_eq!((&denied["allowed"], &denied["rule"]), (&json!(false), &json!(rule)), "{denied}");
    expect(cluster, "as it is explained", |from, to| to != "x/b" || from == "x/a");
    clear(cluster);
}
