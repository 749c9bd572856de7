//! Wiring of `mullion ovn`, also called `ovn-k8s-overlay`, `ovn-k8s-watcher` and `ovn-k8s-gateway-helper`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use ovn::helper;
use ovn::init::{self, Databases, GatewaySettings, InitError, Node, Report, TlsConfig};
use ovn::watcher;
use ovsdb::TlsFiles;

use crate::cli::ovn_cli::{
    DaemonArgs, DatabaseArgs, GatewayArgs, GatewayHelper, HelperArgs, InitCommand, MasterArgs, MinionArgs, Overlay, OvnArgs, OvnCommand, RemoveArgs,
    TlsArgs, Watcher, WatcherArgs,
};
use crate::exit::{self, Code, Failure};
use crate::log_file::LogFile;

const OVERLAY: &str = "ovn-k8s-overlay";
const WATCHER: &str = "ovn-k8s-watcher";
const HELPER: &str = "ovn-k8s-gateway-helper";

fn own_name(name: &str) -> &str {
    name.strip_suffix(".exe").unwrap_or(name)
}

/// Whether a program of that name is this one.
pub fn is_own_name(name: &str) -> bool {
    [OVERLAY, WATCHER, HELPER].contains(&own_name(name))
}

/// Runs the program of that name with the process's arguments.
pub fn main_by_name(name: &str) -> ExitCode {
    fn run<P: Parser>(then: impl FnOnce(P) -> Result<(), Failure>) -> ExitCode {
        match P::try_parse() {
            Ok(parsed) => exit::report(then(parsed), false),
            Err(error) => exit::report_usage(&error, false),
        }
    }
    match own_name(name) {
        WATCHER => run(|program: Watcher| watch(program.args)),
        HELPER => run(|program: GatewayHelper| help(program.args)),
        _ => run(|program: Overlay| set_up(program.command)),
    }
}

/// Runs the subcommand.
pub fn main(args: OvnArgs) -> Result<(), Failure> {
    match args.command {
        OvnCommand::Init(command) => set_up(command),
        OvnCommand::Watcher(args) => watch(args),
        OvnCommand::GatewayHelper(args) => help(args),
        OvnCommand::Remove(RemoveArgs { node_name, ovn_nb, ovn_sb, tls, timeout, dry_run }) => {
            let southbound =
                ovn_sb.or_else(|| southbound_beside(&ovn_nb)).ok_or_else(|| usage(anyhow!("give --ovn-sb: --ovn-nb has another port than 6641")))?;
            let ovs = Databases::DEFAULT_LOCAL.to_owned();
            let databases = databases_of(&DatabaseArgs { ovn_nb: Some(ovn_nb), ovs, tls, timeout, dry_run })?;
            let databases = Databases { southbound: Some(ovsdb::remotes(&southbound).map_err(usage)?), ..databases };
            report(crate::agent_runtime()?.block_on(init::remove(&databases, &node_name)))
        }
    }
}

/// Where the southbound database is when the northbound one is where it usually is.
fn southbound_beside(northbound: &str) -> Option<String> {
    let beside = |remote: &str| match remote.strip_suffix(":6641") {
        Some(host) => Some(format!("{host}:6642")),
        None => remote.strip_suffix("/ovnnb_db.sock").map(|dir| format!("{dir}/ovnsb_db.sock")),
    };
    Some(northbound.split(',').map(beside).collect::<Option<Vec<_>>>()?.join(","))
}

fn tls(args: &TlsArgs) -> Result<Option<Arc<TlsConfig>>> {
    let TlsArgs { private_key: Some(private_key), certificate: Some(certificate), ca_cert: Some(ca_cert) } = args.clone() else { return Ok(None) };
    Ok(Some(ovsdb::client_config(&TlsFiles { private_key, certificate, ca_cert })?))
}

fn usage<E: Into<anyhow::Error>>(error: E) -> Failure {
    Failure::new(Code::Usage, error)
}

fn databases_of(args: &DatabaseArgs) -> Result<Databases, Failure> {
    Ok(Databases {
        northbound: args.ovn_nb.as_deref().map(ovsdb::remotes).transpose().map_err(usage)?,
        southbound: None,
        local: ovsdb::remotes(&args.ovs).map_err(usage)?,
        tls: tls(&args.tls)?,
        limit: Duration::from_secs(args.timeout),
        dry_run: args.dry_run,
    })
}

fn report(done: Result<Report, InitError>) -> Result<(), Failure> {
    match done {
        Ok(report) => {
            print!("{report}");
            Ok(())
        }
        Err(error @ InitError::Setting(_)) => Err(usage(error)),
        Err(error) => Err(error.into()),
    }
}

fn set_up(command: InitCommand) -> Result<(), Failure> {
    let runtime = crate::agent_runtime()?;
    match command {
        InitCommand::Master(MasterArgs { cluster_ip_subnet, master_switch_subnet, node_name, databases }) => {
            let node = Node { name: node_name, cluster_subnet: cluster_ip_subnet, subnet: master_switch_subnet };
            report(runtime.block_on(init::master(&databases_of(&databases)?, &node)))
        }
        InitCommand::Minion(MinionArgs { cluster_ip_subnet, minion_switch_subnet, node_name, databases }) => {
            let node = Node { name: node_name, cluster_subnet: cluster_ip_subnet, subnet: minion_switch_subnet };
            report(runtime.block_on(init::minion(&databases_of(&databases)?, &node)))
        }
        InitCommand::Gateway(args) => {
            let databases = databases_of(&args.databases)?;
            report(runtime.block_on(init::gateway(&databases, &gateway_settings(args)?)))
        }
    }
}

fn gateway_settings(args: GatewayArgs) -> Result<GatewaySettings> {
    let interface = match (args.physical_interface, args.bridge_interface) {
        (Some(name), _) => (name, false),
        (None, Some(name)) => (name, true),
        (None, None) => return Err(anyhow!("give --physical-interface or --bridge-interface")),
    };
    Ok(GatewaySettings {
        node: args.node_name,
        cluster_subnet: args.cluster_ip_subnet,
        physical_ip: args.physical_ip,
        interface,
        next_hop: args.default_gw,
        rampout: args.rampout_ip_subnets,
    })
}

fn watch(args: WatcherArgs) -> Result<(), Failure> {
    let remotes = ovsdb::remotes(&args.ovn_nb).map_err(usage)?;
    let tls = tls(&args.tls)?;
    let northbound = ovsdb::Config { tls, ..ovsdb::Config::new(remotes, watcher::wants()) };
    let full_pass = Duration::from_secs(args.full_pass);
    daemon(WATCHER, args.daemon, async {
        cluster::install_crypto_provider();
        let client = cluster::client_from_kubeconfig(args.kubeconfig.as_ref()).await?;
        watcher::run(watcher::Config { client, northbound, full_pass }, crate::end_requested()).await;
        Ok(())
    })
}

fn help(args: HelperArgs) -> Result<(), Failure> {
    let local = ovsdb::remotes(&args.ovs).map_err(usage)?;
    let HelperArgs { kubeconfig, physical_bridge: bridge, physical_interface: interface, ovs_rundir: run_dir, .. } = args;
    let full_pass = Duration::from_secs(args.full_pass);
    daemon(HELPER, args.daemon, async {
        cluster::install_crypto_provider();
        let client = cluster::client_from_kubeconfig(kubeconfig.as_ref()).await?;
        helper::run(helper::Config { client, local, run_dir, bridge, interface, full_pass }, crate::end_requested()).await;
        Ok(())
    })
}

/// Runs an agent with Open vSwitch's flags for its kind.
fn daemon(name: &str, args: DaemonArgs, agent: impl Future<Output = Result<()>>) -> Result<(), Failure> {
    if args.detach {
        return Err(usage(anyhow!("--detach is not supported: leave it out, and let a service manager such as systemd keep the program running")));
    }
    let path = |given: Option<String>, usual: String| given.map(|path| if path.is_empty() { usual } else { path });
    let open = |path: String| LogFile::open(path.as_str().into()).with_context(|| format!("--log-file: {path} cannot be opened"));
    let log_file = path(args.log_file, format!("/var/log/openvswitch/{name}.log")).map(open).transpose()?;
    crate::init_logs_with("info", log_file);
    let pidfile = path(args.pidfile, format!("/run/{name}.pid"));
    if let Some(path) = &pidfile {
        std::fs::write(path, format!("{}\n", std::process::id())).with_context(|| format!("--pidfile: {path} cannot be written"))?;
    }
    let done = crate::run_agent(agent);
    if let Some(path) = &pidfile {
        let _ = std::fs::remove_file(path);
    }
    done.map_err(Failure::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_southbound_database_is_beside_the_northbound_one() {
        let cases = [
            ("tcp:10.0.0.1:6641,ssl:ovn:6641", Some("tcp:10.0.0.1:6642,ssl:ovn:6642")),
            ("unix:/run/ovn/ovnnb_db.sock", Some("unix:/run/ovn/ovnsb_db.sock")),
            ("tcp:10.0.0.1:6641,tcp:10.0.0.2:16641", None),
        ];
        for (northbound, southbound) in cases {
            assert_eq!(southbound_beside(northbound).as_deref(), southbound);
        }
    }

    #[test]
    fn names_of_2017_are_ours() {
        assert!(["ovn-k8s-overlay", "ovn-k8s-watcher.exe", "ovn-k8s-gateway-helper"].map(is_own_name).iter().all(|own| *own));
        assert!(!is_own_name("ovn-k8s") && !is_own_name("mullion"));
    }
}
