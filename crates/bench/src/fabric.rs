//! `bench fabric`: the pod network between nodes: plans, routes in the kernel, memory, routes of BGP, and packets through its tunnel, in namespaces
//! of its own.

mod bgp;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fabric::apply::{forwarding, routes, tunnels};
use fabric::mode::{self, Desired, HostState, Inputs, Mode, Role, Settings, Uplink, Vxlan};
use fabric::{Attachment, NodeRow, PodSettings};
use host::{HostRoute, LinuxRoutes, Routes as _};
use linux_sys::netlink::{Route, Rtnl, Vxlan as Device};
use linux_sys::ns::NetNs;
use linux_sys::sysctl;

use crate::figures::{Amount, Figures, Limit, Report};
use crate::namespaced;
use crate::process::{Helper, Running};
use crate::up::median;

/// How many nodes a large cluster has.
pub const NODES: usize = 1_000;
const ROUNDS: usize = 21;
/// How long a stream runs.
const STREAM: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The mullion to measure; figures of a release build are the ones that count
    #[arg(long)]
    pub mullion: PathBuf,
}

/// Measures and prints.
pub fn main(args: &Args) -> Result<()> {
    let mullion = args.mullion.canonicalize().with_context(|| format!("finding {} failed", args.mullion.display()))?;
    namespaced::again(["fabric-part".to_owned(), "--mullion".to_owned(), mullion.display().to_string()])
}

/// Everything, within the namespaces.
pub fn part(args: &Args) -> Result<ExitCode> {
    let rtnl = Rtnl::open()?;
    rtnl.set_up(1)?;
    // A network that has the next hops of all nodes.
    rtnl.add_veth("up0", "up1", None)?;
    for (link, address) in [("up0", Some("10.240.0.1/16")), ("up1", None)] {
        let index = rtnl.link(link)?.context("a link is gone")?.index;
        if let Some(address) = address {
            rtnl.add_addr(index, address.parse()?)?;
        }
        rtnl.set_up(index)?;
    }
    let mut report = Report::resume();
    for mode in [Mode::HostGateway, Mode::Vxlan] {
        report.table(&format!("the mode {mode}, {NODES} nodes"), |figures| plans(figures, mode));
    }
    report.table(&format!("routes in the kernel, {NODES} nodes"), kernel);
    report.table(&format!("`mullion fabric router`, {NODES} nodes"), |figures| memory(figures, &args.mullion));
    report.table("`mullion node --network bgp`, the pod network alone", |figures| bgp::measure(figures, &args.mullion));
    report.table("pod to pod of two nodes, vxlan", throughput);
    Ok(report.end())
}

/// The pod CIDR and address of node `n`.
fn places(n: usize) -> (String, String) {
    (format!("10.{}.{}.0/24", 128 + n / 250, n % 250), format!("10.240.{}.{}", 1 + n / 250, n % 250 + 1))
}

fn row(n: usize) -> NodeRow {
    let (cidr, address) = places(n);
    let mac = fabric::flannel::Mac([0x02, 0, 0, 0, (n / 256) as u8, (n % 256) as u8]);
    let public_ip = address.parse().ok();
    let announcement = fabric::flannel::Announcement::Vxlan { vni: Vxlan::LEAST_VNI, mac: Some(mac), public_ip };
    NodeRow { pod_cidrs: cidr.parse().into_iter().collect(), addresses: address.parse().into_iter().collect(), announcement, ..NodeRow::default() }
}

fn nodes(mode: Mode) -> BTreeMap<String, NodeRow> {
    let row = |n| match mode {
        Mode::Vxlan => row(n),
        _ => NodeRow { announcement: fabric::flannel::Announcement::None, ..row(n) },
    };
    (0..NODES).map(|n| (format!("node-{n}"), row(n))).collect()
}

fn settings(mode: Mode, name: &str, cluster: &str) -> Result<Settings> {
    let pods = PodSettings {
        attachment: Attachment::Linux { bridge: "cni0".into() },
        cluster_uid: "uid".into(),
        network_name: "mullion".into(),
        service_cidrs: vec!["10.96.0.0/12".parse()?],
        lans: vec!["10.240.0.0/16".parse()?],
        dns_ip: "10.96.0.10".parse()?,
        cluster_domain: "cluster.local".into(),
        cni_conf_dir: "/conf".into(),
        ipam_dir: None,
        subnet_env: None,
    };
    let cluster_cidrs = vec![cluster.parse()?];
    let role = Role::Node(Box::new(pods));
    Ok(Settings { mode, vxlan: Vxlan::default(), bgp: mode::bgp::Bgp::default(), node_name: name.to_owned(), cluster_cidrs, role })
}

fn route(dst: &str, via: Option<&str>, index: u32) -> Result<HostRoute> {
    let via = via.map(str::parse).transpose()?;
    Ok(HostRoute { dst: dst.parse()?, via, oif: index, on_link: false, metric: 0, ours: false })
}

/// The pure part: what a node wants of a large cluster, and how that differs from what it has.
fn plans(figures: &mut Figures, mode: Mode) -> Result<()> {
    let (settings, mut nodes) = (settings(mode, "node-0", "10.128.0.0/9")?, nodes(mode));
    let state = HostState { uplink: Some(Uplink { index: 2, mtu: 1500 }), ..HostState::default() };
    let lan = [route("10.240.0.0/16", None, 2)?];
    let decide = |nodes: &BTreeMap<String, NodeRow>, observed: &[HostRoute]| {
        let desired = mode::desired(&Inputs { settings: &settings, nodes, routes: observed, state: &state });
        let plan = routes::plan(&desired.routes, observed, Some(9));
        (desired, plan)
    };
    let timed = |nodes: &BTreeMap<String, NodeRow>, observed: &[HostRoute]| {
        let rounds = (0..ROUNDS).map(|_| {
            let begun = Instant::now();
            let steps = decide(nodes, observed).1.steps.len();
            (begun.elapsed(), steps)
        });
        median(rounds.collect())
    };
    let (full, steps) = timed(&nodes, &lan);
    ensure!(steps == NODES - 1, "{steps} steps for {NODES} nodes");
    figures.time(format!("full plan (median of {ROUNDS})"), full, Duration::from_millis(10));
    // What the kernel then has.
    let desired = decide(&nodes, &lan).0;
    let on_link = mode == Mode::Vxlan;
    let mut observed = lan.to_vec();
    let oif = if on_link { 9 } else { 2 };
    observed.extend(desired.routes.iter().map(|(dst, hop)| HostRoute { dst: *dst, via: Some(hop.via), oif, on_link, metric: 0, ours: true }));
    let (idle, steps) = timed(&nodes, &observed);
    ensure!(steps == 0, "{steps} steps where nothing is to do");
    figures.background_time("plan where nothing changed", idle);
    if let Some(gone) = nodes.remove("node-7") {
        let (change, steps) = timed(&nodes, &observed);
        ensure!(steps == 1, "{steps} steps for one node that is gone: {:?}", gone.pod_cidrs);
        figures.time("plan of one node's change", change, Duration::from_millis(1));
    }
    Ok(())
}

/// The calls that a pass makes, to a routing table of the kernel.
fn kernel(figures: &mut Figures) -> Result<()> {
    let (settings, mut nodes) = (settings(Mode::HostGateway, "node-0", "10.128.0.0/9")?, nodes(Mode::HostGateway));
    let table = LinuxRoutes::open()?;
    let pass = |nodes: &BTreeMap<String, NodeRow>| -> Result<(Duration, usize)> {
        let begun = Instant::now();
        let observed = table.list()?;
        let desired = mode::desired(&Inputs { settings: &settings, nodes, routes: &observed, state: &HostState::default() });
        let steps = routes::plan(&desired.routes, &observed, None).steps.len();
        let (problems, done) = routes::keep(&table, &desired.routes, &observed, None);
        ensure!(done && problems.is_empty(), "{problems:?}");
        Ok((begun.elapsed(), steps))
    };
    let (all, steps) = pass(&nodes)?;
    ensure!(steps == NODES - 1, "{steps} routes");
    figures.background_time("first pass, every route added", all);
    figures.background_time("pass where nothing changed", pass(&nodes)?.0);
    let mut changes = Vec::new();
    for name in (1..ROUNDS).map(|n| format!("node-{n}")) {
        nodes.remove(&name);
        changes.push(pass(&nodes)?);
    }
    figures.at_most("changes of the kernel's table for one node", Amount::count(changes.iter().map(|change| change.1).max().unwrap_or(0)), 1.0);
    figures.background_time("pass of one node's change", median(changes).0);
    table.list()?.iter().filter(|route| route.ours).try_for_each(|route| table.delete(route))?;
    Ok(())
}

/// The program itself, alone in its file, with one node and with many.
fn memory(figures: &mut Figures, mullion: &Path) -> Result<()> {
    let (idle, _) = router(mullion, 1)?;
    let (full, took) = router(mullion, NODES)?;
    figures.background("memory with one node (PSS)", Amount::megabytes(idle));
    figures.at_most(format!("memory with {NODES} nodes above that (PSS)"), Amount::megabytes(full.saturating_sub(idle)), 10.0);
    figures.background_time("start until every route is there", took);
    Ok(())
}

/// Its share of memory at rest, in bytes, and how long it took until all routes were there.
fn router(mullion: &Path, nodes: usize) -> Result<(u64, Duration)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().context("the directory for temporary files has a strange name")?;
    let mut api = Helper::start(&["proxy-api", &nodes.to_string(), path])?;
    ensure!(api.line()? == "listening", "the API server did not say that it listens");
    let program = directory.path().join("mullion");
    std::fs::copy(mullion, &program)?;
    let output = File::create(directory.path().join("log"))?;
    let kubeconfig = format!("--kubeconfig={path}/kubeconfig");
    let args = ["fabric", "router", &kubeconfig, "--cluster-cidr=10.128.0.0/9"];
    let begun = Instant::now();
    let child = Command::new(&program).args(args).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn()?;
    let running = Running(child);
    let table = LinuxRoutes::open()?;
    let ours = || -> Result<Vec<HostRoute>> { Ok(table.list()?.into_iter().filter(|route| route.ours).collect()) };
    while ours()?.len() < nodes {
        ensure!(begun.elapsed() < Duration::from_secs(60), "{}", std::fs::read_to_string(directory.path().join("log"))?);
        sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    // At rest.
    sleep(Duration::from_secs(3));
    let memory = running.memory(&program)?.all;
    drop(running);
    ours()?.iter().try_for_each(|route| table.delete(route))?;
    Ok((memory, took))
}

/// A node of the pair: number 1 or 2, with pods 10.128.N.0/24.
struct Node {
    number: u8,
    ns: NetNs,
    uplink: u32,
}

impl Node {
    fn address(number: u8) -> String {
        format!("10.241.0.{number}")
    }
}

fn pair() -> Result<[Node; 2]> {
    let (one, two) = (NetNs::new_anonymous()?, NetNs::new_anonymous()?);
    Rtnl::open_in(&one)?.add_veth("eth0", "eth0", Some(&two))?;
    let node = |number: u8, ns: NetNs| -> Result<Node> {
        let rtnl = Rtnl::open_in(&ns)?;
        let uplink = rtnl.link("eth0")?.context("a link is gone")?.index;
        rtnl.add_addr(uplink, format!("{}/24", Node::address(number)).parse()?)?;
        rtnl.set_up(uplink)?;
        rtnl.set_up(1)?;
        ns.run(|| sysctl::set("net.ipv4.ip_forward", "1"))??;
        Ok(Node { number, ns, uplink })
    };
    Ok([node(1, one)?, node(2, two)?])
}

/// Our tunnel and our bridge beside the same tunnel with a pod on a link of its own, made by hand.
fn throughput(figures: &mut Figures) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let (ours, by_hand) = (pair()?, pair()?);
    let mut our_pods = Vec::new();
    for node in &ours {
        our_pods.push(our_pod(node, directory.path())?);
    }
    let mut other_pods = Vec::new();
    for node in &by_hand {
        other_pods.push(pod_by_hand(node)?);
    }
    // In turns, since the machine changes.
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let port = 5000 + round;
        others.push(stream(&other_pods[0], &other_pods[1], SocketAddr::new("10.128.2.5".parse()?, port))?);
        mine.push(stream(&our_pods[0].0, &our_pods[1].0, SocketAddr::new(our_pods[1].1, port))?);
    }
    let (mine, others) = (median(mine) as f64, median(others) as f64);
    figures.add_detailed(
        "beside the same tunnel made by hand",
        Amount::percent(mine / others * 100.0),
        "median of 5",
        Limit::AtLeast(Amount::percent(85.0)),
    );
    figures.background("ours", Amount::bits_per_second(mine));
    figures.background("by hand", Amount::bits_per_second(others));
    Ok(())
}

/// A pod as the fabric and the plug-in `bridge` make it.
fn our_pod(node: &Node, directory: &Path) -> Result<(NetNs, IpAddr)> {
    let name = |number: u8| format!("node-{number}");
    let rows: BTreeMap<String, NodeRow> = [1, 2]
        .into_iter()
        .map(|number| {
            let cidr = format!("10.128.{number}.0/24").parse().into_iter().collect();
            let address: Vec<IpAddr> = Node::address(number).parse().into_iter().collect();
            // What each will announce: the MAC follows from cluster and name.
            (name(number), NodeRow { pod_cidrs: cidr, addresses: address, ..NodeRow::default() })
        })
        .collect();
    let state = HostState { uplink: Some(Uplink { index: node.uplink, mtu: 1500 }), ..HostState::default() };
    let decide = |own: u8, rows: &BTreeMap<String, NodeRow>| -> Result<Desired> {
        let settings = settings(Mode::Vxlan, &name(own), "10.128.0.0/9")?;
        Ok(mode::desired(&Inputs { settings: &settings, nodes: rows, routes: &[], state: &state }))
    };
    let mut announced = rows.clone();
    for number in [1, 2] {
        let annotations = decide(number, &rows)?.annotations;
        announced.entry(name(number)).and_modify(|row| row.announcement = fabric::flannel::Announcement::read(&annotations));
    }
    let desired = decide(node.number, &announced)?;
    node.ns.run(|| -> Result<()> {
        let tunnel = desired.tunnel.as_ref().context("no tunnel")?;
        let index = tunnels::ensure(tunnel)?;
        tunnels::add(&tunnel.name, index, &desired.vteps)?;
        let table = LinuxRoutes::open()?;
        let (problems, done) = routes::keep(&table, &desired.routes, &table.list()?, Some(index));
        ensure!(done && problems.is_empty(), "{problems:?}");
        Ok(forwarding::ensure(&desired.masquerade)?)
    })??;
    let path = directory.join(format!("pod-{}", node.number));
    let ns = NetNs::create_at(&path)?;
    let mut plugin = desired.cni.context("no configuration")?["plugins"][0].clone();
    plugin["cniVersion"] = "1.0.0".into();
    plugin["name"] = "mullion".into();
    plugin["ipam"]["dataDir"] = directory.join(format!("ipam-{}", node.number)).display().to_string().into();
    let path = path.display().to_string();
    let env = |key: &str| {
        let env = [("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", "pod"), ("CNI_NETNS", &path), ("CNI_IFNAME", "eth0"), ("CNI_PATH", "/")];
        env.iter().find(|(other, _)| *other == key).map(|(_, value)| (*value).to_owned())
    };
    let outcome = node.ns.run(|| cni::plugin::run("bridge", &env, plugin.to_string().as_bytes()))?;
    ensure!(outcome.success, "{}", outcome.stdout);
    let result: serde_json::Value = serde_json::from_str(&outcome.stdout)?;
    let address: ipnet::IpNet = result["ips"][0]["address"].as_str().context("no address")?.parse()?;
    Ok((ns, address.addr()))
}

/// A pod behind the same tunnel, with plain calls.
fn pod_by_hand(node: &Node) -> Result<NetNs> {
    let (own, other) = (node.number, 3 - node.number);
    let rtnl = Rtnl::open_in(&node.ns)?;
    let mac = |number: u8| [0x02, 0, 0, 0, 1, number];
    let device = Device { vni: 4096, local: Node::address(own).parse().ok(), device: Some(node.uplink), port: 4789, learning: false };
    rtnl.add_vxlan("vx", &device)?;
    let tunnel = rtnl.link("vx")?.context("a link is gone")?.index;
    rtnl.set_mac(tunnel, mac(own))?;
    rtnl.set_mtu(tunnel, 1450)?;
    rtnl.add_addr(tunnel, format!("10.128.{own}.0/32").parse()?)?;
    rtnl.set_up(tunnel)?;
    let router = format!("10.128.{other}.0").parse()?;
    rtnl.add_neigh(tunnel, router, mac(other))?;
    rtnl.add_fdb(tunnel, mac(other), Node::address(other).parse().ok(), None)?;
    let mut route = Route::new(format!("10.128.{other}.0/24").parse()?).via(router).oif(tunnel);
    route.onlink = true;
    rtnl.add_route(&route)?;
    let pod = NetNs::new_anonymous()?;
    rtnl.add_veth("pod", "eth0", Some(&pod))?;
    let inside = Rtnl::open_in(&pod)?;
    for (rtnl, link, address) in [(&rtnl, "pod", format!("10.128.{own}.1/24")), (&inside, "eth0", format!("10.128.{own}.5/24"))] {
        let index = rtnl.link(link)?.context("a link is gone")?.index;
        rtnl.set_mtu(index, 1450)?;
        rtnl.add_addr(index, address.parse()?)?;
        rtnl.set_up(index)?;
    }
    inside.add_route(&Route::new("0.0.0.0/0".parse()?).via(format!("10.128.{own}.1").parse()?))?;
    Ok(pod)
}

/// Bits a second of one TCP stream.
fn stream(from: &NetNs, to_ns: &NetNs, to: SocketAddr) -> Result<u64> {
    let listener = to_ns.run(|| TcpListener::bind(to))??;
    let sink = std::thread::spawn(move || -> std::io::Result<u64> {
        let (mut stream, _) = listener.accept()?;
        let (mut buffer, mut all) = (vec![0; 1 << 18], 0);
        loop {
            match stream.read(&mut buffer)? {
                0 => return Ok(all),
                length => all += length as u64,
            }
        }
    });
    let mut stream = from.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(10)))?.with_context(|| format!("no way to {to}"))?;
    let (block, begun) = (vec![0; 1 << 18], Instant::now());
    while begun.elapsed() < STREAM {
        stream.write_all(&block)?;
    }
    drop(stream);
    let bytes = sink.join().ok().context("the other end failed")??;
    Ok((bytes as f64 * 8.0 / begun.elapsed().as_secs_f64()) as u64)
}
