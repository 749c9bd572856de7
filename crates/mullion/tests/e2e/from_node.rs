//! Requests that a node itself makes, from the host compartment of a simulated Windows host too.

use crate::cluster::{Cluster, Output, PATIENCE, run, until};

/// A page of a server at an address.
#[derive(Clone, Debug)]
pub struct At {
    pub address: String,
    pub port: u64,
    pub page: &'static str,
}

impl At {
    pub fn url(&self) -> String {
        let host = if self.address.contains(':') { format!("[{}]", self.address) } else { self.address.clone() };
        format!("http://{host}:{}/{}", self.port, self.page)
    }

    /// What busybox' shell does to get it. Debian's static busybox resolves no service's name, hence no `wget`.
    pub fn script(&self) -> String {
        let Self { address, port, page } = self;
        format!("printf 'GET /{page} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' | /bin/busybox nc -w 5 {address} {port}")
    }
}

/// The shell line that runs a command in a node's own network; `RUN` in it is the directory of the cluster's sockets.
pub fn line_on_node(cluster: &Cluster, node: &str, command: &str) -> String {
    let status = cluster.place.mullion(&["status"]).ok("mullion status");
    let enter = status.lines().find_map(|line| line.split_once("enter the lab: ")).map(|(_, enter)| enter.to_owned()).expect("a way into the lab");
    let run_dir = std::fs::read_dir(cluster.place.path().join("run").join("mullion")).expect("RUN's place");
    let run_dir = run_dir.flatten().map(|entry| entry.path()).find(|path| path.is_dir()).expect("RUN").display().to_string();
    format!("exec {enter} nsenter --net={run_dir}/ns/{node} {}", command.replace("RUN", &run_dir))
}

/// What a script writes that runs in a node's own network.
pub fn run_on_node(cluster: &Cluster, node: &str, script: &str) -> Output {
    run(cluster.place.command("sh").args(["-c", &line_on_node(cluster, node, "sh -s")]), script)
}

/// A page, asked in a node's own network.
#[track_caller]
pub fn from_node(cluster: &Cluster, node: &str, at: &At) -> String {
    until(&format!("{} from node {node}", at.url()), PATIENCE, || {
        let output = run_on_node(cluster, node, &at.script());
        if output.out.contains(" 200 OK") { Ok(output.out.replace('\r', "")) } else { Err(format!("{output:?}")) }
    })
}

/// A node's internal addresses, the primary one first.
#[track_caller]
pub fn internal_ips(cluster: &Cluster, node: &str) -> Vec<String> {
    let node = cluster.json(&["node", node]);
    let internal = node["status"]["addresses"].as_array().into_iter().flatten().filter(|address| address["type"] == "InternalIP");
    internal.filter_map(|address| address["address"].as_str()).map(str::to_owned).collect()
}

/// A node's first internal address.
#[track_caller]
pub fn internal_ip(cluster: &Cluster, node: &str) -> String {
    internal_ips(cluster, node).into_iter().next().expect("an internal address")
}
