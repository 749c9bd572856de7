//! NetworkPolicies with packets: what they let through and what not, between pods of two hosts and by way of a Service.
//!
//! Needs what the suite of packets needs.
#![cfg(target_os = "linux")]

mod api;
mod lab;

use std::io::Read as _;
use std::time::Duration;

use api::Api;
use lab::{address, init, node, ping, unreported_pod, watch};
use linux_sys::ns::{NetNs, in_lab};
use ovn::init as commands;
use serde_json::{Value, json};
use test_lab::net::{Lan, ask_udp, connect, greet, serve_udp};
use test_lab::ovn::{Central, Chassis};
use test_lab::until;

/// A packet that a policy drops stays without an answer.
const SILENCE: Duration = Duration::from_millis(400);

/// Two hosts, a server `db` on the second, and on the first `web` and, in namespace `other`, `job`.
struct World {
    api: Api,
    hosts: [Chassis; 2],
    db: NetNs,
    web: NetNs,
    job: NetNs,
    _central: Central,
    _lan: Lan,
}

/// Whether a connection comes about and carries something.
fn reaches(ns: &NetNs, to: &str) -> bool {
    let Ok(mut stream) = connect(ns, to, SILENCE) else { return false };
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    stream.read(&mut [0; 64]).is_ok_and(|length| length > 0)
}

impl World {
    fn new() -> Self {
        let (central, lan, api) = (Central::new(), Lan::new(), Api::default());
        let hosts = [Chassis::new(&central, &lan, "cp", "10.240.0.11"), Chassis::new(&central, &lan, "lin01", "10.240.0.12")];
        let (master, worker) = (node("cp", "192.168.1.0/24"), node("lin01", "192.168.2.0/24"));
        init(&hosts[0], async |databases| commands::master(databases, &master).await).unwrap();
        init(&hosts[1], async |databases| commands::minion(databases, &worker).await).unwrap();
        api.namespace("default", json!({"team": "a"}));
        api.namespace("other", json!({"team": "b"}));
        api.pod("db", "lin01");
        api.pod("web", "cp");
        api.pod("other/job", "cp");
        watch(&central, &api);
        // No node reports an address: policies hold before one does.
        let pod = |host: usize, name: &str| unreported_pod(&hosts[host], &api, name);
        let (db, web, job) = (pod(1, "db"), pod(0, "web"), pod(0, "other/job"));
        let world = Self { api, hosts, db, web, job, _central: central, _lan: lan };
        let server = world.ip("db");
        for port in [8080, 9090] {
            greet(&world.db, &format!("{server}:{port}"), |_| "db".to_owned());
        }
        serve_udp(&world.db, &format!("{server}:53"), |_, _| "db".to_owned());
        for client in [&world.web, &world.job] {
            until("the server", || reaches(client, &format!("{server}:8080")));
        }
        world
    }

    fn ip(&self, pod: &str) -> String {
        address(&self.api, pod)
    }

    /// What reaches the server: each client with the ports.
    fn reaching(&self) -> String {
        let server = self.ip("db");
        let tcp = |client: &NetNs, port: u16| reaches(client, &format!("{server}:{port}"));
        // All at once: each that is dropped takes its time.
        std::thread::scope(|scope| {
            let (tcp, server) = (&tcp, &server);
            let clients = [("web", &self.web), ("job", &self.job)].map(|(name, client)| {
                let all = [
                    ("8080", scope.spawn(move || tcp(client, 8080))),
                    ("9090", scope.spawn(move || tcp(client, 9090))),
                    ("53/udp", scope.spawn(move || ask_udp(client, &format!("{server}:53"), SILENCE).is_ok())),
                    ("icmp", scope.spawn(move || ping(client, server, 56).is_ok())),
                ];
                (name, all)
            });
            let texts = clients.map(|(name, all)| {
                let reached: Vec<&str> = all.into_iter().filter_map(|(port, probe)| probe.join().unwrap().then_some(port)).collect();
                format!("{name}: {}", reached.join(" ")).trim_end().to_owned()
            });
            texts.join("; ")
        })
    }

    /// Writes a policy of `default`, and waits until it is so.
    fn policy(&self, name: &str, spec: Value, expected: &str) {
        self.api.policy(name, spec);
        self.is(name, expected);
    }

    fn remove(&self, policy: &str, expected: &str) {
        self.api.remove("networkpolicies", policy);
        self.is(policy, expected);
    }

    fn is(&self, what: &str, expected: &str) {
        until(format!("{what}: {expected}"), || test_lab::same(self.reaching(), &expected.to_owned()));
    }
}

const ALL: &str = "web: 8080 9090 53/udp icmp; job: 8080 9090 53/udp icmp";
const NONE: &str = "web:; job:";

fn select(pod: &str) -> Value {
    json!({"matchLabels": {"name": pod}})
}

fn to_db(rule: Value) -> Value {
    json!({"podSelector": select("db"), "policyTypes": ["Ingress"], "ingress": [rule]})
}

#[test]
fn policies_let_in_whom_their_rules_name() {
    in_lab("policies_let_in_whom_their_rules_name", || {
        let world = World::new();
        let server = format!("{}:8080", world.ip("db"));
        world.is("without a policy", ALL);
        until("another node, without a policy", || reaches(&world.hosts[0].ns, &server));
        world.policy("deny", json!({"podSelector": {}, "policyTypes": ["Ingress"]}), NONE);
        until("the pod's own node, which always comes in", || reaches(&world.hosts[1].ns, &server));
        assert!(!reaches(&world.hosts[0].ns, &server), "another node does not");
        until("answers to what the pod itself sends", || ping(&world.db, &world.ip("other/job"), 56));
        // Rules add up.
        world.policy("db", to_db(json!({"from": [{"podSelector": select("web")}], "ports": [{"port": "web"}]})), "web: 8080; job:");
        let by_namespace = json!({"from": [{"namespaceSelector": {"matchLabels": {"team": "b"}}}], "ports": [{"protocol": "UDP", "port": 53}]});
        world.policy("dns", to_db(by_namespace), "web: 8080; job: 53/udp");
        // A namespace's labels change, and with them who is meant.
        world.api.namespace("default", json!({"team": "b"}));
        world.is("both namespaces", "web: 8080 53/udp; job: 53/udp");
        world.api.namespace("default", json!({"team": "a"}));
        world.is("one namespace", "web: 8080; job: 53/udp");
        world.remove("dns", "web: 8080; job:");
        let (web, job) = (world.ip("web"), world.ip("other/job"));
        let block = |cidr: &str, except: &[&str]| json!({"from": [{"ipBlock": {"cidr": cidr, "except": except}}]});
        world.policy("db", to_db(block("192.168.0.0/16", &[&format!("{web}/32")])), "web:; job: 8080 9090 53/udp icmp");
        world.policy("db", to_db(block("192.168.0.0/16", &[&format!("{job}/32")])), "web: 8080 9090 53/udp icmp; job:");
        world.policy("db", to_db(json!({"ports": [{"port": 9000, "endPort": 9100}]})), "web: 9090; job: 9090");
        world.remove("db", NONE);
        world.remove("deny", ALL);
    });
}

#[test]
fn policies_let_out_to_whom_their_rules_name() {
    in_lab("policies_let_out_to_whom_their_rules_name", || {
        let world = World::new();
        let (web, db) = (world.ip("web"), world.ip("db"));
        let job_alone = "web:; job: 8080 9090 53/udp icmp";
        let out = |rules: Value| json!({"podSelector": select("web"), "policyTypes": ["Egress"], "egress": rules});
        world.policy("web", out(json!([])), job_alone);
        until("answers, which go out", || ping(&world.job, &web, 56).and(ping(&world.db, &web, 56)));
        assert!(ping(&world.web, &world.ip("other/job"), 56).is_err(), "nothing else does");
        let named = json!([{"to": [{"podSelector": select("db")}], "ports": [{"port": "web"}]}]);
        world.policy("web", out(named), "web: 8080; job: 8080 9090 53/udp icmp");
        // The rule is about pods; a Service leads to one.
        world.api.service("db", "10.96.0.10", 80, 30080);
        world.api.slice("db", &[&db], 8080);
        until("the Service", || reaches(&world.web, "10.96.0.10:80"));
        world.api.slice("db", &[&db], 9090);
        until("the Service at a port that is not allowed", || !reaches(&world.web, "10.96.0.10:80") && reaches(&world.job, "10.96.0.10:80"));
        let block = json!([{"to": [{"ipBlock": {"cidr": "192.168.2.0/24"}}]}]);
        world.policy("web", out(block), ALL);
        until("the Service again", || reaches(&world.web, "10.96.0.10:80"));
        let except = json!([{"to": [{"ipBlock": {"cidr": "192.168.0.0/16", "except": [format!("{db}/32")]}}]}]);
        world.policy("web", out(except), job_alone);
        until("what is not excepted", || ping(&world.web, &world.ip("other/job"), 56));
        // Both sides have to agree.
        world.policy("web", out(json!([{}])), ALL);
        world.policy("db", to_db(json!({"from": [{"namespaceSelector": {}, "podSelector": select("job")}]})), job_alone);
        world.remove("db", ALL);
        world.remove("web", ALL);
    });
}
