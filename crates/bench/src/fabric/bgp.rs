//! Routes that a BGP peer tells a node, until they are in the kernel.
//!
//! The node is `mullion node` with the pod network alone, in a namespace of its own with an API server; its peer is a speaker of ours within
//! the benchmark, in another namespace on the same link.

use std::fs::File;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bgp::{Config, Connect, Family, Peer};
use fabric::apply::sessions;
use fabric::calico::{AS_NUMBER, PORT};
use fabric::mode::bgp::Speaker;
use host::{HostRoute, LinuxRoutes, Routes as _};
use ipnet::IpNet;
use linux_sys::netlink::Rtnl;
use linux_sys::ns::NetNs;
use tokio::sync::mpsc;

use crate::figures::Figures;
use crate::process::{Helper, Running};

/// How many routes a peer tells.
pub const ROUTES: u32 = 10_000;
const LIMIT: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(120);
/// The first node of the API server.
const NODE: &str = "10.240.1.1";
const PEER: &str = "10.240.0.2";
const PEER_AS: u32 = 64600;

/// What the node's file says beside its paths: the pod network in the mode bgp, and nothing else of a node.
fn configuration(directory: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{directory}/cri\n\
         tlsCertFile: {directory}/none\ntlsPrivateKeyFile: {directory}/none\nauthentication: {{x509: {{clientCAFile: {directory}/none}}}}\n\
         clusterDNS: [10.96.0.10]\n---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.128.0.0/9\n---\n\
         apiVersion: mullion.io/v1alpha1\nkind: NodeConfiguration\nkubeconfig: {directory}/kubeconfig\nnodeName: node-0\nnodeIP: {NODE}\nos: linux\n\
         roots: [{directory}]\nserviceCIDR: 10.96.0.0/12\nlan: 10.240.0.0/16\nnetwork: bgp\nbgp: {{peers: {{{PEER}: {PEER_AS}}}}}\n\
         cniConfDir: {directory}/cni\nwithout: [kubelet, proxy]\n"
    )
}

pub fn measure(figures: &mut Figures, mullion: &Path) -> Result<()> {
    let (node, peer) = (NetNs::new_anonymous()?, NetNs::new_anonymous()?);
    let (near, far) = (Rtnl::open_in(&node)?, Rtnl::open_in(&peer)?);
    near.add_veth("eth0", "eth0", Some(&peer))?;
    near.set_up(1)?;
    for (rtnl, address) in [(&near, NODE), (&far, PEER)] {
        let index = rtnl.link("eth0")?.context("a link is gone")?.index;
        rtnl.add_addr(index, format!("{address}/16").parse()?)?;
        rtnl.set_up(index)?;
    }
    let directory = tempfile::tempdir()?;
    let path = directory.path().to_str().context("the directory for temporary files has a strange name")?;
    let mut api = node.run(|| Helper::start(&["proxy-api", "1", path]))??;
    ensure!(api.line()? == "listening", "the API server did not say that it listens");
    let (announce, announced) = mpsc::channel(1);
    let speaker = speak(&peer, announced)?;
    let (file, log) = (directory.path().join("node.yaml"), directory.path().join("log"));
    std::fs::write(&file, configuration(path))?;
    let output = File::create(&log)?;
    let mut command = Command::new(mullion);
    command.arg("node").arg("--config").arg(&file).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let running = Running(node.run(|| command.spawn())??);
    let table = LinuxRoutes::open_in(&node)?;
    // One route first: the session is there.
    for (what, count) in [(None, 1), (Some("received and installed"), ROUTES), (Some("withdrawn and removed"), 1), (None, 0)] {
        let (begun, before) = (Instant::now(), running.cpu()?);
        announce.blocking_send(count).context("the peer ended")?;
        while ours(&table)?.len() != count as usize {
            ensure!(begun.elapsed() < PATIENCE, "waited in vain for {count} routes:\n{}", std::fs::read_to_string(&log)?);
            sleep(Duration::from_millis(5));
        }
        let (took, cpu) = (begun.elapsed(), running.cpu()? - before);
        let Some(what) = what else { continue };
        let name = format!("{ROUTES} routes told by a peer, {what}");
        if count == ROUTES {
            figures.time(name, took, LIMIT)
        } else {
            figures.background_time(name, took)
        }
        figures.background_time(format!("… of that the node's processor time ({what})"), cpu);
    }
    drop(announce);
    ensure!(speaker.join().is_ok_and(|ended| ended.is_ok()), "the peer failed");
    Ok(())
}

fn ours(table: &LinuxRoutes) -> Result<Vec<HostRoute>> {
    Ok(table.list()?.into_iter().filter(|route| route.ours).collect())
}

/// The peer, on a thread in its namespace: tells as many routes as it is asked for.
fn speak(ns: &NetNs, mut announced: mpsc::Receiver<u32>) -> Result<JoinHandle<Result<()>>> {
    let talk = async move {
        let running = sessions::Running::start(speaker(0)?, false);
        while let Some(count) = announced.recv().await {
            running.configure(speaker(count)?);
        }
        Ok(())
    };
    let work = || tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(talk);
    // A thread is in the namespace of the one that starts it; `run`'s own has a small stack.
    Ok(ns.run(|| std::thread::Builder::new().stack_size(8 << 20).spawn(work))??)
}

fn speaker(count: u32) -> Result<Speaker> {
    let local: IpAddr = PEER.parse()?;
    let node = Peer {
        name: "node".to_owned(),
        asn: AS_NUMBER,
        connect: Connect { port: PORT, local, password: None },
        families: [Family::V4].into(),
        client: false,
        keep_next_hop: false,
        own_as_allowed: 0,
        longest_restart: 0,
    };
    // From 100.64.0.0/24 on: no network of the cluster's.
    let net = |n: u32| Ok(IpNet::new(IpAddr::from((0x6440_0000 + (n << 8)).to_be_bytes()), 24)?);
    let config = Config {
        asn: PEER_AS,
        id: PEER.parse()?,
        hold: 90,
        restart_time: None,
        cluster: None,
        local_pref: 100,
        next_hop_v4: Some(local),
        next_hop_v6: None,
        forward: Vec::new(),
        announce: (0..count).map(net).collect::<Result<_>>()?,
        peers: [(NODE.parse()?, node)].into(),
    };
    Ok(Speaker { config, listen: [(local, PORT)].into() })
}
