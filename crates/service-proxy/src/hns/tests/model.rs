//! Random histories with packets: Services, slices, pods' readiness, the node's zone and the proxy itself change; after each change a real
//! connection to each VIP reaches one of the backends that a naive reading of the objects names, and none where it names none.

use std::collections::BTreeSet;

use hns_sim::latency::mix;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::{NetNs, in_lab};
use serde_json::{Value, json};
use test_lab::net;

use super::packets::{Lab, serve_at};
use super::*;
use crate::inputs::Inputs;
use crate::rows::{ServiceRow, SliceRow};
use crate::vips::{NodePolicy, desired_vips};

/// Pods that answer; those of 192.168.1.0/24 are this node's.
const PODS: [&str; 5] = ["192.168.1.6", "192.168.1.7", "192.168.2.3", "192.168.2.4", "192.168.2.5"];
const ZONES: [&str; 2] = ["a", "b"];
const STEPS: u64 = 25;
const SEEDS: std::ops::RangeInclusive<u64> = 1..=6;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pod {
    Ready,
    /// Ends, and serves until it has ended.
    Fading,
    Unready,
}

/// What the API has of one Service.
#[derive(Clone, Debug, Default)]
struct Object {
    node_port: bool,
    balanced: bool,
    internal_local: bool,
    external_local: bool,
    hints: bool,
    pods: Vec<(usize, Option<Pod>)>,
}

impl Object {
    fn draw(draw: &mut impl FnMut(u64) -> u64) -> Self {
        let [node_port, balanced, internal_local, external_local, hints] = [2, 2, 4, 3, 3].map(|most| draw(most) == 0);
        let balanced = balanced && node_port;
        Self { node_port, balanced, internal_local, external_local: external_local && node_port, hints, pods: Self::draw_pods(draw) }
    }

    fn draw_pods(draw: &mut impl FnMut(u64) -> u64) -> Vec<(usize, Option<Pod>)> {
        let states = [None, Some(Pod::Ready), Some(Pod::Ready), Some(Pod::Fading), Some(Pod::Unready)];
        (0..PODS.len()).map(|pod| (pod, states[draw(5) as usize])).collect()
    }

    fn service(&self, n: usize) -> Value {
        let kind = ["ClusterIP", "NodePort", "LoadBalancer"][usize::from(self.node_port) + usize::from(self.balanced)];
        let policy = |local: bool| if local { "Local" } else { "Cluster" };
        let mut port = json!({"port": 80, "protocol": "TCP"});
        let mut spec = json!({"type": kind, "clusterIP": format!("10.96.0.{n}"), "internalTrafficPolicy": policy(self.internal_local)});
        if self.node_port {
            port["nodePort"] = (30_080 + n).into();
            spec["externalTrafficPolicy"] = policy(self.external_local).into();
        }
        spec["ports"] = json!([port]);
        let ingress = if self.balanced { json!([{"ip": format!("192.0.2.{n}")}]) } else { json!([]) };
        json!({"metadata": {"name": format!("s{n}"), "namespace": "default"}, "spec": spec, "status": {"loadBalancer": {"ingress": ingress}}})
    }

    /// The pods in two slices, as a control plane may cut them.
    fn slices(&self, n: usize) -> [Value; 2] {
        let endpoint = |(pod, state): &(usize, Option<Pod>)| {
            let state = (*state)?;
            let conditions = json!({"ready": state == Pod::Ready, "serving": state != Pod::Unready, "terminating": state == Pod::Fading});
            let node = if is_here(PODS[*pod]) { "here" } else { "there" };
            let mut endpoint = json!({"addresses": [PODS[*pod]], "nodeName": node, "conditions": conditions});
            if self.hints {
                endpoint["hints"] = json!({"forZones": [{"name": ZONES[pod % 2]}]});
            }
            Some(endpoint)
        };
        [0, 1].map(|part| {
            let of_part = self.pods.iter().filter(|(pod, _)| pod / 2 % 2 == part);
            json!({"metadata": {"name": format!("s{n}-{part}"), "namespace": "default", "labels": {"kubernetes.io/service-name": format!("s{n}")}},
                "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}],
                "endpoints": of_part.filter_map(endpoint).collect::<Vec<_>>()})
        })
    }

    /// Each VIP, and the backends that may answer there.
    fn expected(&self, n: usize, zone: &str) -> Vec<(String, Side, BTreeSet<&'static str>)> {
        let of = |state: Pod, near: bool, here: bool| -> BTreeSet<&'static str> {
            let fits = |(pod, s): &&(usize, Option<Pod>)| *s == Some(state) && (!near || ZONES[pod % 2] == zone) && (!here || is_here(PODS[*pod]));
            self.pods.iter().filter(fits).map(|(pod, _)| PODS[*pod]).collect()
        };
        let first = |choices: [BTreeSet<&'static str>; 3]| choices.into_iter().find(|pods| !pods.is_empty()).unwrap_or_default();
        let anywhere = first([
            if self.hints { of(Pod::Ready, true, false) } else { BTreeSet::new() },
            of(Pod::Ready, false, false),
            of(Pod::Fading, false, false),
        ]);
        let here = first([of(Pod::Ready, false, true), of(Pod::Fading, false, true), BTreeSet::new()]);
        let select = |local: bool| if local { here.clone() } else { anywhere.clone() };
        let mut vips = vec![(format!("10.96.0.{n}:80"), Side::Pod, select(self.internal_local))];
        if self.node_port {
            vips.push((format!("10.240.0.12:{}", 30_080 + n), Side::Peer, select(self.external_local)));
        }
        if self.balanced {
            vips.push((format!("192.0.2.{n}:80"), Side::Peer, select(self.external_local)));
        }
        vips
    }
}

fn is_here(ip: &str) -> bool {
    ip.starts_with("192.168.1.")
}

/// From where a VIP is asked.
#[derive(Clone, Copy, Debug)]
enum Side {
    Pod,
    Peer,
}

/// What the proxy heard, as its loop takes it in.
struct World {
    proxy: Proxy,
    inputs: Inputs,
    zone: &'static str,
}

impl World {
    fn hear(&mut self, n: usize, object: Option<&Object>) {
        let key = Key::new("default", format!("s{n}"));
        let row = object.and_then(|object| ServiceRow::of(&serde_json::from_value::<Service>(object.service(n)).unwrap()));
        self.inputs.service(&key, row);
        for part in [0, 1] {
            let key = Key::new("default", format!("s{n}-{part}"));
            let row =
                object.and_then(|object| SliceRow::of(&serde_json::from_value::<EndpointSlice>(object.slices(n)[part].clone()).unwrap(), "here"));
            self.inputs.slice(&key, row);
        }
    }

    async fn settle(&mut self) {
        let policy = NodePolicy { zone: Some(self.zone.to_owned()), ..NodePolicy::default() };
        for service in self.inputs.take_dirty() {
            let rows = self.inputs.rows(&service);
            let desired = rows.map(|(row, slices)| desired_vips(&service, &row, &slices, &policy)).unwrap_or_default();
            let changes = self.proxy.table.set_service(&service, desired);
            self.proxy.hns.touch(changes.into_iter().map(|change| change.key), &self.proxy.table);
        }
        self.proxy.rest().await;
    }
}

async fn history(lab: &Lab, client: &NetNs, seed: u64) -> (usize, usize) {
    let mut number = 0;
    let mut draw = |most: u64| {
        number += 1;
        mix(seed << 32 | number) % most
    };
    let mut world = World { proxy: lab.proxy(Table::default()), inputs: Inputs::default(), zone: ZONES[0] };
    let mut objects: BTreeMap<usize, Object> = BTreeMap::new();
    let (mut answered, mut silent) = (0, 0);
    for step in 0..STEPS {
        let n = 1 + draw(3) as usize;
        match draw(10) {
            0 => drop(objects.remove(&n)),
            1..=3 => drop(objects.insert(n, Object::draw(&mut draw))),
            4..=7 => objects.entry(n).or_default().pods = Object::draw_pods(&mut draw),
            8 => {
                world.zone = ZONES[draw(2) as usize];
                world.inputs.touch_all();
            }
            _ => world.proxy = lab.proxy(std::mem::take(&mut world.proxy.table)),
        }
        world.hear(n, objects.get(&n));
        world.settle().await;
        for (n, object) in &objects {
            for (to, side, expected) in object.expected(*n, world.zone) {
                let from = if matches!(side, Side::Pod) { client } else { &lab.peer };
                let patience = if expected.is_empty() { Duration::from_millis(60) } else { LIMIT };
                let heard = net::greeting(from, &to, patience);
                let right = heard.as_ref().map_or(expected.is_empty(), |name| expected.contains(name.as_str()));
                assert!(right, "seed {seed}, step {step}: {to} from {side:?} got {heard:?}, not one of {expected:?}: {object:?}");
                *(if expected.is_empty() { &mut silent } else { &mut answered }) += 1;
            }
        }
    }
    objects.keys().for_each(|n| world.hear(*n, None));
    world.settle().await;
    assert!(lab.client.load_balancers().await.unwrap().is_empty());
    (answered, silent)
}

async fn histories() {
    let lab = Lab::new().await;
    let there = Rtnl::open_in(&lab.peer).unwrap();
    let uplink = there.link("eth0").unwrap().unwrap().index;
    for ip in PODS.iter().filter(|ip| !is_here(ip) && **ip != "192.168.2.3") {
        there.add_addr(uplink, format!("{ip}/32").parse().unwrap()).unwrap();
    }
    net::route(&there, "192.0.2.0/24", "10.240.0.12");
    let client = lab.pod("192.168.1.5").await;
    let mut pods = Vec::new();
    for ip in PODS.iter().filter(|ip| is_here(ip)) {
        pods.push((lab.pod(ip).await, *ip));
    }
    for ns in pods.iter().map(|(ns, _)| ns).chain([&client, &lab.peer, &NetNs::current().unwrap()]) {
        net::settle(ns);
    }
    pods.iter().for_each(|(ns, ip)| serve_at(ns, ip, ip));
    PODS.iter().filter(|ip| !is_here(ip)).for_each(|ip| serve_at(&lab.peer, ip, ip));
    let (mut answered, mut silent) = (0, 0);
    for seed in SEEDS {
        let (a, s) = history(&lab, &client, seed).await;
        (answered, silent) = (answered + a, silent + s);
    }
    assert!(answered > 300 && silent > 15, "{answered} VIPs answered and {silent} were silent: the histories say little");
}

#[test]
fn random_histories_route_connections_to_the_expected_backends() {
    in_lab("hns::tests::model::random_histories_route_connections_to_the_expected_backends", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(histories());
    });
}
