//! The services of a simulated host: its container runtime and its Host Networking Service.

use anyhow::Result;
use container_sim::{CniDirs, Config, HostDirs};
use host::NodeOs;

use super::cli::{ContainerSimArgs, HnsSimArgs};
use crate::app::node::drive;
use crate::exit::Failure;

/// `mullion container-sim`.
pub fn container_sim(args: ContainerSimArgs) -> Result<(), Failure> {
    crate::init_logs();
    let host = host_dirs(args.os, &args.roots)?;
    let config = Config {
        node: args.node,
        os: args.os,
        socket: args.socket,
        state_dir: args.state_dir,
        cache_dir: args.cache_dir,
        host,
        netns_dir: args.netns_dir,
        hcn: args.hcn,
        cni: CniDirs { conf_dir: args.cni_conf_dir, bin_dir: args.cni_bin_dir },
        processors: args.processors,
        registries: args.registries.into(),
        stand_ins: !args.no_stand_ins,
        power_dir: args.power_dir,
        template: args.os.is_windows().then(super::template::version).flatten(),
    };
    crate::run_agent(container_sim::run(config, crate::end_requested())).map_err(Failure::from)
}

fn host_dirs(os: NodeOs, roots: &[String]) -> Result<HostDirs> {
    if os.is_windows() {
        return Ok(HostDirs::Drives(roots.iter().map(|root| drive(root)).collect::<Result<_>>()?));
    }
    match roots {
        [root] => Ok(HostDirs::Root(root.into())),
        _ => anyhow::bail!("a Linux node has one --root, not {}", roots.len()),
    }
}

/// `mullion hns-sim`.
pub fn hns_sim(args: HnsSimArgs) -> Result<(), Failure> {
    crate::init_logs();
    let config = hns_sim::Config {
        node: args.node,
        netns_dir: args.netns_dir,
        state_dir: args.state_dir,
        socket: args.socket,
        admin_socket: args.admin_socket,
        hns_version: args.hns_version,
        uplink: args.uplink,
        switches: args.switches,
        options: hns_sim::Options { faults: args.faults, latency: args.latency, seed: args.seed },
    };
    hns_sim::run(&config).map_err(Failure::from)
}
