//! An API server with pods, Services, EndpointSlices and policies, which keeps the annotations of pods. Names without a namespace,
//! `NAMESPACE/NAME`, are of namespace `default`.
#![allow(dead_code, reason = "each suite uses its part")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use test_lab::api::{Reply, Seen, end_of_list, event, fake_client};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const KINDS: [(&str, &str, &str, &str); 6] = [
    ("nodes", "/api/v1/nodes", "v1", "Node"),
    ("namespaces", "/api/v1/namespaces", "v1", "Namespace"),
    ("networkpolicies", "/apis/networking.k8s.io/v1/networkpolicies", "networking.k8s.io/v1", "NetworkPolicy"),
    ("pods", "/api/v1/pods", "v1", "Pod"),
    ("services", "/api/v1/services", "v1", "Service"),
    ("endpointslices", "/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSlice"),
];

#[derive(Default)]
struct State {
    /// By plural, and by namespace and name.
    objects: BTreeMap<&'static str, BTreeMap<String, Value>>,
    watches: Vec<(&'static str, UnboundedSender<Value>)>,
    patches: usize,
}

/// Clones are the same server.
#[derive(Clone, Default)]
pub struct Api(Arc<Mutex<State>>);

/// A name with its namespace.
fn full(name: &str) -> String {
    if name.contains('/') { name.to_owned() } else { format!("default/{name}") }
}

fn key(object: &Value) -> String {
    let part = |name: &str| object["metadata"][name].as_str();
    part("namespace").map_or_else(|| part("name").unwrap().to_owned(), |namespace| format!("{namespace}/{}", part("name").unwrap()))
}

fn metadata(name: &str) -> Value {
    let full = full(name);
    let (namespace, name) = full.split_once('/').unwrap();
    json!({"name": name, "namespace": namespace, "resourceVersion": "1"})
}

impl Api {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        fake_client(move |seen| api.answer(seen))
    }

    fn answer(&self, seen: &Seen) -> Reply {
        if seen.method == "PATCH" {
            return self.patch(seen);
        }
        let Some((plural, _, version, kind)) = KINDS.iter().find(|(_, path, ..)| *path == seen.path) else {
            return Reply::status(404, "there is no such resource");
        };
        let (sender, lines) = unbounded_channel();
        let mut state = self.state();
        for object in state.objects.get(plural).into_iter().flat_map(BTreeMap::values) {
            sender.send(event("ADDED", object.clone())).unwrap();
        }
        sender.send(end_of_list(version, kind, "1")).unwrap();
        state.watches.push((plural, sender));
        Reply::live(lines)
    }

    fn patch(&self, seen: &Seen) -> Reply {
        let name = seen.path.strip_prefix("/api/v1/namespaces/").unwrap().replacen("/pods/", "/", 1);
        let found = self.state().objects.get("pods").and_then(|pods| pods.get(&name)).cloned();
        let Some(mut pod) = found else { return Reply::status(404, "gone") };
        for (key, value) in seen.body["metadata"]["annotations"].as_object().unwrap() {
            pod["metadata"]["annotations"][key] = value.clone();
        }
        let metadata = pod["metadata"].clone();
        self.put("pods", pod);
        self.state().patches += 1;
        Reply::json(200, json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}))
    }

    fn put(&self, plural: &'static str, object: Value) {
        let mut state = self.state();
        let name = key(&object);
        let known = state.objects.entry(plural).or_default().insert(name, object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        state.watches.retain(|(of, sender)| *of != plural || sender.send(event(kind, object.clone())).is_ok());
    }

    pub fn remove(&self, plural: &'static str, name: &str) {
        let mut state = self.state();
        let object = state.objects.get_mut(plural).unwrap().remove(&full(name)).unwrap();
        state.watches.retain(|(of, sender)| *of != plural || sender.send(event("DELETED", object.clone())).is_ok());
    }

    pub fn namespace(&self, name: &str, labels: Value) {
        let metadata = json!({"name": name, "resourceVersion": "1", "labels": labels});
        self.put("namespaces", json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}));
    }

    /// A Node with an address.
    pub fn node(&self, name: &str, ip: &str) {
        let status = json!({"addresses": [{"type": "InternalIP", "address": ip}, {"type": "Hostname", "address": name}]});
        self.put("nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "1"}, "status": status}));
    }

    /// A pod with a label `name`, whose port 8080 is called `web`.
    pub fn pod(&self, name: &str, node: &str) {
        self.pod_with(name, node, json!({}));
    }

    /// The same with annotations that its author wrote.
    pub fn pod_with(&self, name: &str, node: &str, annotations: Value) {
        let mut metadata = metadata(name);
        metadata["annotations"] = annotations;
        metadata["uid"] = json!(format!("uid-of-{}", metadata["name"].as_str().unwrap()));
        metadata["labels"] = json!({"name": metadata["name"]});
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let spec = json!({"nodeName": node, "containers": [{"name": "main", "ports": ports}]});
        self.put("pods", json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    }

    /// The address that the pod's node reports.
    pub fn reported(&self, name: &str, ip: &str) {
        let mut pod = self.state().objects["pods"][&full(name)].clone();
        pod["status"] = json!({"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]});
        self.put("pods", pod);
    }

    /// A NetworkPolicy.
    pub fn policy(&self, name: &str, spec: Value) {
        self.put("networkpolicies", json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(name), "spec": spec}));
    }

    pub fn service(&self, name: &str, ip: &str, port: u16, node_port: u16) {
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ports": [{"name": "http", "port": port, "nodePort": node_port}]});
        self.put("services", json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(name), "spec": spec}));
    }

    pub fn slice(&self, service: &str, addresses: &[&str], port: u16) {
        let mut metadata = metadata(service);
        metadata["labels"] = json!({"kubernetes.io/service-name": metadata["name"]});
        let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let ports = json!([{"name": "http", "port": port, "protocol": "TCP"}]);
        let object = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata, "addressType": "IPv4",
            "endpoints": endpoints, "ports": ports});
        self.put("endpointslices", object);
    }

    pub fn annotation(&self, pod: &str, key: &str) -> Option<String> {
        self.state().objects.get("pods")?.get(&full(pod))?["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    /// How many times a pod was written.
    pub fn patches(&self) -> usize {
        self.state().patches
    }
}
