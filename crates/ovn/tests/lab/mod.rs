//! Clients and commands on OVN's own programs.
#![allow(dead_code, reason = "each suite uses its part")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ipnet::Ipv4Net;
use linux_sys::ns::NetNs;
use ovn::init::{Databases, Node};
use ovn::rows::{Plan, Want, plan};
use ovn::schema::{NORTHBOUND, NORTHBOUND_USES};
use ovn::watcher;
use ovsdb::session::Wants;
use ovsdb::{Client, Config, Remote, Replica};
use test_lab::ovn::{Central, Chassis, Place};
use test_lab::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::api::Api;

pub const LIMIT: Duration = Duration::from_secs(30);
pub const PATIENCE: Duration = Duration::from_secs(2);

pub fn net(text: &str) -> Ipv4Net {
    text.parse().unwrap()
}

pub fn config(central: &Central) -> Config {
    let wants = Wants { database: NORTHBOUND.into(), uses: NORTHBOUND_USES, lock: None, leader_only: false };
    Config::new(vec![central.socket("nb").parse::<Remote>().unwrap()], wants)
}

pub async fn client(central: &Central) -> Client {
    let client = Client::start(config(central));
    client.ready(LIMIT).await.unwrap();
    client
}

/// Plans and writes; what is left to do afterwards is nothing.
pub async fn apply(client: &Client, scope: &str, wants: impl Fn(&Replica) -> Vec<Want>) -> Plan {
    let replica = client.state().replica;
    let first = plan(&replica, scope, &wants(&replica));
    assert!(first.problems.is_empty(), "{first}");
    if !first.is_empty() {
        client.transact(first.transaction(None)).await.unwrap_or_else(|error| panic!("{error}: {first}"));
    }
    let replica = client.state().replica;
    let second = plan(&replica, scope, &wants(&replica));
    assert!(second.is_empty() && second.problems.is_empty(), "{first}\nand then\n{second}");
    first
}

/// Runs the watcher until the runtime ends.
pub fn watching(central: &Central, api: &Api) -> tokio::task::JoinHandle<()> {
    watching_at(&central.socket("nb"), api)
}

/// The same with another way to the database.
pub fn watching_at(remote: &str, api: &Api) -> tokio::task::JoinHandle<()> {
    let northbound = Config::new(ovsdb::remotes(remote).unwrap(), watcher::wants());
    let config = watcher::Config { client: api.client(), northbound, full_pass: Duration::from_secs(600) };
    tokio::spawn(watcher::run(config, std::future::pending()))
}

/// Runs the watcher until the test ends.
pub fn watch(central: &Central, api: &Api) {
    let (api, northbound) = (api.clone(), Config { wants: watcher::wants(), ..config(central) });
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = watcher::Config { client: api.client(), northbound, full_pass: Duration::from_secs(600) };
            watcher::run(config, std::future::pending()).await;
        });
    });
}

/// A way to the northbound database on which transactions are counted.
pub fn counted(central: &Central) -> (String, Arc<AtomicUsize>) {
    let path = central.programs.path("counted.sock");
    let (listener, counter) = (UnixListener::bind(&path).unwrap(), Arc::new(AtomicUsize::new(0)));
    let (database, count) = (central.programs.path("nb.sock"), counter.clone());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = UnixStream::connect(&database).await.unwrap();
            let ((mut from, mut back), (mut answers, mut to)) = (client.into_split(), server.into_split());
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut back).await });
            let count = count.clone();
            tokio::spawn(async move {
                let (mut buffer, mut seen) = (vec![0; 64 << 10], String::new());
                while let Ok(length @ 1..) = from.read(&mut buffer).await {
                    seen.push_str(&String::from_utf8_lossy(&buffer[..length]));
                    count.fetch_add(seen.matches(TRANSACT).count(), Ordering::Relaxed);
                    // The beginning of another one, at most.
                    seen = seen.split_off(seen.rfind(TRANSACT).map_or(seen.len().saturating_sub(TRANSACT.len() - 1), |at| at + TRANSACT.len()));
                    to.write_all(&buffer[..length]).await.unwrap();
                }
            });
        }
    });
    (format!("unix:{}", path.display()), counter)
}

const TRANSACT: &str = "\"method\":\"transact\"";

pub fn node(name: &str, subnet: &str) -> Node {
    Node { name: name.into(), cluster_subnet: net("192.168.0.0/16"), subnet: net(subnet) }
}

/// Runs one of the commands in a host's namespace.
pub fn init<T: Send>(host: &Chassis, command: impl AsyncFnOnce(&Databases) -> T + Send) -> T {
    let databases =
        Databases { northbound: None, southbound: None, local: ovsdb::remotes(&host.local()).unwrap(), tls: None, limit: LIMIT, dry_run: false };
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(command(&databases));
    host.ns.run(run).unwrap()
}

/// Connects a pod by hand, with what its annotation says. Its address is reported as its node does.
pub fn pod(host: &Chassis, api: &Api, name: &str) -> NetNs {
    let ns = unreported_pod(host, api, name);
    api.reported(name, &address(api, name));
    ns
}

/// The same, of a node that reports no address.
pub fn unreported_pod(host: &Chassis, api: &Api, name: &str) -> NetNs {
    let text = until(format!("the annotation of {name}"), || api.annotation(name, "ovn"));
    let network: serde_json::Value = serde_json::from_str(&text).unwrap();
    let text = |key: &str| network[key].as_str().unwrap().to_owned();
    let (address, mac, gateway) = (text("ip_address"), text("mac_address"), text("gateway_ip"));
    let (namespace, pod) = name.split_once('/').unwrap_or(("default", name));
    let place = Place { address: &address, mac: &mac, gateway: &gateway, uid: &format!("uid-of-{pod}") };
    host.pod(pod, &format!("{namespace}_{pod}"), &place)
}

/// The address that OVN gave a pod.
pub fn address(api: &Api, pod: &str) -> String {
    let network: serde_json::Value = serde_json::from_str(&api.annotation(pod, "ovn").unwrap()).unwrap();
    network["ip_address"].as_str().unwrap().split('/').next().unwrap().to_owned()
}

pub fn ping(ns: &NetNs, to: &str, size: u32) -> Result<(), String> {
    ping_with(ns, &["-M", "do", "-s", &size.to_string(), to])
}

/// With one of the addresses of the sender.
pub fn ping_as(ns: &NetNs, from: &str, to: &str) -> Result<(), String> {
    ping_with(ns, &["-I", from, to])
}

fn ping_with(ns: &NetNs, args: &[&str]) -> Result<(), String> {
    let output = ns.run(|| Command::new("ping").args(["-c", "1", "-W", "1"]).args(args).output()).unwrap().unwrap();
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stdout).into_owned()) }
}
