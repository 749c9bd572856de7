//! An API server for several nodes: Nodes that they annotate, and Calico's resources once a test installs them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};
use test_lab::api::{Reply, Seen, end_of_list, event, fake_client};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

const NODES: &str = "/api/v1/nodes";
const GROUP: &str = "/apis/crd.projectcalico.org/v1";
const CALICO: [(&str, &str); 3] = [("bgppeers", "BGPPeer"), ("bgpconfigurations", "BGPConfiguration"), ("ippools", "IPPool")];

#[derive(Default)]
struct State {
    /// By path and name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    watches: Vec<(String, UnboundedSender<Value>)>,
    calico: bool,
}

/// Clones are the same server.
#[derive(Clone, Default)]
pub struct Api(Arc<Mutex<State>>);

impl Api {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// A client; its runtime is the caller's.
    pub fn client(&self) -> kube::Client {
        let api = self.clone();
        fake_client(move |seen| api.answer(seen))
    }

    fn answer(&self, seen: &Seen) -> Reply {
        if seen.method == "PATCH" {
            if let (Some(name), Value::Object(annotations)) = (seen.path.strip_prefix("/api/v1/nodes/"), &seen.body["metadata"]["annotations"]) {
                self.annotate(name, annotations.iter().map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default())));
            }
            return Reply::json(200, seen.body.clone());
        }
        if seen.method != "GET" {
            return Reply::json(201, seen.body.clone());
        }
        let mut state = self.state();
        if seen.path == GROUP {
            if !state.calico {
                return Reply::status(404, "the server could not find the requested resource");
            }
            let resources: Vec<Value> = CALICO
                .iter()
                .map(|(plural, kind)| json!({"name": plural, "singularName": "", "kind": kind, "namespaced": false, "verbs": ["list", "watch"]}))
                .collect();
            return Reply::json(200, json!({"kind": "APIResourceList", "groupVersion": "crd.projectcalico.org/v1", "resources": resources}));
        }
        let (sender, lines) = unbounded_channel();
        for object in state.objects.get(&seen.path).into_iter().flat_map(BTreeMap::values) {
            sender.send(event("ADDED", object.clone())).unwrap();
        }
        let (version, kind) = match CALICO.iter().find(|(plural, _)| seen.path == format!("{GROUP}/{plural}")) {
            Some((_, kind)) => ("crd.projectcalico.org/v1", *kind),
            None => ("v1", "Node"),
        };
        sender.send(end_of_list(version, kind, "1")).unwrap();
        state.watches.push((seen.path.clone(), sender));
        Reply::live(lines)
    }

    fn put(&self, path: &str, name: &str, object: Value) {
        let mut state = self.state();
        let known = state.objects.entry(path.to_owned()).or_default().insert(name.to_owned(), object.clone());
        let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
        state.watches.retain(|(of, sender)| of != path || sender.send(event(kind, object.clone())).is_ok());
    }

    /// A Node with those pod CIDRs and addresses.
    pub fn node(&self, name: &str, cidrs: &[&str], addresses: &[&str]) {
        let addresses: Vec<Value> = addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "resourceVersion": "1", "labels": {"name": name}},
            "spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}, "status": {"addresses": addresses}});
        self.put(NODES, name, object);
    }

    pub fn annotate<'a>(&self, name: &str, annotations: impl Iterator<Item = (&'a str, &'a str)>) {
        let mut object = self.state().objects[NODES][name].clone();
        for (key, value) in annotations {
            object["metadata"]["annotations"][key] = json!(value);
        }
        self.put(NODES, name, object);
    }

    pub fn annotation(&self, name: &str, key: &str) -> Option<String> {
        self.state().objects[NODES][name]["metadata"]["annotations"][key].as_str().map(str::to_owned)
    }

    pub fn remove_node(&self, name: &str) {
        let mut state = self.state();
        let object = state.objects.get_mut(NODES).unwrap().remove(name).unwrap();
        state.watches.retain(|(of, sender)| of != NODES || sender.send(event("DELETED", object.clone())).is_ok());
    }

    /// Installs Calico's kinds.
    pub fn install_calico(&self) {
        self.state().calico = true;
    }

    /// One of Calico's resources, by its plural.
    pub fn calico(&self, plural: &str, name: &str, spec: Value) {
        let kind = CALICO.iter().find(|(known, _)| *known == plural).unwrap().1;
        let object =
            json!({"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": {"name": name, "resourceVersion": "1"}, "spec": spec});
        self.put(&format!("{GROUP}/{plural}"), name, object);
    }
}
