//! Command-line definitions of `mullion ovn`, and of the programs of 2017 whose names answer too: `ovn-k8s-overlay`, `ovn-k8s-watcher` and
//! `ovn-k8s-gateway-helper`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ipnet::Ipv4Net;
use ovn::init::Databases;

/// `mullion ovn`.
#[derive(Clone, Debug, Args)]
pub struct OvnArgs {
    #[command(subcommand)]
    pub command: OvnCommand,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum OvnCommand {
    #[command(flatten)]
    Init(InitCommand),
    /// Give pods logical ports and Services load balancers, until it is ended
    Watcher(WatcherArgs),
    /// Share a gateway's network card between its host and the pods, until it is ended
    GatewayHelper(HelperArgs),
    /// Remove what a node or gateway host has in OVN's databases
    Remove(RemoveArgs),
}

/// `ovn-k8s-overlay`: sets up a host, once or again.
#[derive(Debug, Parser)]
#[command(name = "ovn-k8s-overlay", version, about = "Set up a host of a cluster whose pod network is OVN")]
pub struct Overlay {
    #[command(subcommand)]
    pub command: InitCommand,
}

/// `ovn-k8s-watcher`: the watcher, with the flags that its service files have.
#[derive(Debug, Parser)]
#[command(name = "ovn-k8s-watcher", version, about = "Give pods logical ports and Services load balancers")]
pub struct Watcher {
    #[command(flatten)]
    pub args: WatcherArgs,
}

/// `ovn-k8s-gateway-helper`, with the flags that its service files have.
#[derive(Debug, Parser)]
#[command(name = "ovn-k8s-gateway-helper", version, about = "Share a gateway's network card between its host and the pods")]
pub struct GatewayHelper {
    #[command(flatten)]
    pub args: HelperArgs,
}

/// What sets up a host.
#[derive(Clone, Debug, Subcommand)]
pub enum InitCommand {
    /// Make the cluster's router and load balancers, and this host's switch
    #[command(name = "master-init")]
    Master(MasterArgs),
    /// Make this node's switch and management port
    #[command(name = "minion-init")]
    Minion(MinionArgs),
    /// Make this gateway host's router to the outside
    #[command(name = "gateway-init")]
    Gateway(GatewayArgs),
}

/// What `ssl:` servers are shown and checked with.
#[derive(Clone, Debug, Args)]
pub struct TlsArgs {
    /// Private key, for servers ssl:HOST:PORT
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "ca_cert"])]
    pub private_key: Option<PathBuf>,
    /// Certificate of that key
    #[arg(long, value_name = "FILE", requires_all = ["private_key", "ca_cert"])]
    pub certificate: Option<PathBuf>,
    /// Certificate of the servers' authority
    #[arg(long, value_name = "FILE", requires_all = ["private_key", "certificate"])]
    pub ca_cert: Option<PathBuf>,
}

/// Where the databases are.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// Servers of OVN's northbound database, with commas between them [default: external_ids:ovn-nb of the local switch, else this machine's]
    #[arg(long, value_name = "REMOTES")]
    pub ovn_nb: Option<String>,
    /// The local Open vSwitch's database
    #[arg(long, value_name = "REMOTES", default_value = Databases::DEFAULT_LOCAL)]
    pub ovs: String,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds to wait for the databases and the switch
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// `master-init`.
#[derive(Clone, Debug, Args)]
pub struct MasterArgs {
    /// Addresses of all pods
    #[arg(long, value_name = "CIDR")]
    pub cluster_ip_subnet: Ipv4Net,
    /// Addresses of this host's pods, part of those
    #[arg(long, value_name = "CIDR")]
    pub master_switch_subnet: Ipv4Net,
    /// Name of this host's Node
    #[arg(long, value_name = "NAME")]
    pub node_name: String,
    #[command(flatten)]
    pub databases: DatabaseArgs,
}

/// `minion-init`.
#[derive(Clone, Debug, Args)]
pub struct MinionArgs {
    /// Addresses of all pods
    #[arg(long, value_name = "CIDR")]
    pub cluster_ip_subnet: Ipv4Net,
    /// Addresses of this node's pods, part of those
    #[arg(long, value_name = "CIDR")]
    pub minion_switch_subnet: Ipv4Net,
    /// Name of the Node
    #[arg(long, value_name = "NAME")]
    pub node_name: String,
    #[command(flatten)]
    pub databases: DatabaseArgs,
}

/// `gateway-init`.
#[derive(Clone, Debug, Args)]
#[command(group = clap::ArgGroup::new("outside").required(true).args(["physical_interface", "bridge_interface"]))]
pub struct GatewayArgs {
    /// Addresses of all pods
    #[arg(long, value_name = "CIDR")]
    pub cluster_ip_subnet: Ipv4Net,
    /// This host's address outside, with the length of its network's prefix
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    pub physical_ip: Ipv4Net,
    /// An interface that is the gateway's alone: its addresses are taken away
    #[arg(long, value_name = "NAME")]
    pub physical_interface: Option<String>,
    /// A bridge of the local switch that the host goes on using
    #[arg(long, value_name = "NAME")]
    pub bridge_interface: Option<String>,
    /// The router outside
    #[arg(long, value_name = "ADDRESS")]
    pub default_gw: Ipv4Addr,
    /// Subnets whose pods leave through this gateway, with commas between them
    #[arg(long, value_name = "CIDRS", value_delimiter = ',')]
    pub rampout_ip_subnets: Vec<Ipv4Net>,
    /// Name of this host
    #[arg(long, value_name = "NAME")]
    pub node_name: String,
    #[command(flatten)]
    pub databases: DatabaseArgs,
}

/// `watcher`.
#[derive(Clone, Debug, Args)]
pub struct WatcherArgs {
    /// Kubeconfig that may list and watch pods, Services, EndpointSlices, namespaces and NetworkPolicies, and patch pods
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: String,
    /// Servers of OVN's northbound database, with commas between them
    #[arg(long, value_name = "REMOTES", default_value = Databases::DEFAULT_NORTHBOUND)]
    pub ovn_nb: String,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds after which everything is compared at the latest
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub full_pass: u64,
    /// The only mode there is; taken because service files have it
    #[arg(long)]
    pub overlay: bool,
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// What programs of Open vSwitch's kind have.
#[derive(Clone, Debug, Args)]
pub struct DaemonArgs {
    /// File for the process's id [without FILE: /run/PROGRAM.pid]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub pidfile: Option<String>,
    /// File for the log [without FILE: /var/log/openvswitch/PROGRAM.log]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub log_file: Option<String>,
    /// Open vSwitch's levels of its log; MULLION_LOG says what is logged
    #[arg(short = 'v', value_name = "LEVEL", hide = true)]
    pub levels: Vec<String>,
    /// Refused: let a service manager keep it in the background
    #[arg(long, hide = true)]
    pub detach: bool,
}

/// `gateway-helper`.
#[derive(Clone, Debug, Args)]
pub struct HelperArgs {
    /// Kubeconfig that may list and watch Services
    #[arg(long, env = "KUBECONFIG")]
    pub kubeconfig: String,
    /// The bridge that the host shares, which gateway-init got as --bridge-interface
    #[arg(long, value_name = "NAME")]
    pub physical_bridge: String,
    /// The network card in that bridge
    #[arg(long, value_name = "NAME")]
    pub physical_interface: String,
    /// The local Open vSwitch's database
    #[arg(long, value_name = "REMOTES", default_value = Databases::DEFAULT_LOCAL)]
    pub ovs: String,
    /// Directory of the local Open vSwitch's sockets
    #[arg(long, value_name = "DIR", default_value = "/run/openvswitch")]
    pub ovs_rundir: PathBuf,
    /// Seconds after which everything is compared at the latest
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    pub full_pass: u64,
    #[command(flatten)]
    pub daemon: DaemonArgs,
}

/// `remove`.
#[derive(Clone, Debug, Args)]
pub struct RemoveArgs {
    /// Name of the host
    #[arg(long, value_name = "NAME")]
    pub node_name: String,
    /// Servers of OVN's northbound database, with commas between them
    #[arg(long, value_name = "REMOTES", default_value = Databases::DEFAULT_NORTHBOUND)]
    pub ovn_nb: String,
    /// Servers of OVN's southbound database, with commas between them [default: those of the northbound one, port 6642 for 6641]
    #[arg(long, value_name = "REMOTES")]
    pub ovn_sb: Option<String>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Seconds to wait for the database
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub timeout: u64,
    /// Print what would be removed, and remove nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_2017_are_taken() {
        let overlay = |line: &str| Overlay::try_parse_from(line.split(' '));
        let master = "ovn-k8s-overlay master-init --cluster-ip-subnet=192.168.0.0/16 --master-switch-subnet=192.168.1.0/24 --node-name=master1";
        assert!(matches!(overlay(master).unwrap().command, InitCommand::Master(args) if args.node_name == "master1"));
        let minion = "ovn-k8s-overlay minion-init --cluster-ip-subnet=192.168.0.0/16 --minion-switch-subnet=192.168.2.0/24 --node-name=win01";
        assert!(overlay(minion).is_ok());
        let gateway = "ovn-k8s-overlay gateway-init --cluster-ip-subnet=192.168.0.0/16 --physical-ip=10.33.74.138/24 --bridge-interface=breth0 \
                       --default-gw=10.33.74.253 --node-name=gw --rampout-ip-subnets=192.168.2.0/24,192.168.3.0/24";
        let gateway = gateway.split_whitespace().collect::<Vec<_>>().join(" ");
        let InitCommand::Gateway(args) = overlay(&gateway).unwrap().command else { panic!("another command") };
        assert_eq!((args.rampout_ip_subnets.len(), args.bridge_interface.as_deref()), (2, Some("breth0")));
        assert!(overlay(&format!("{gateway} --physical-interface=eth1")).is_err(), "one of the two");
        assert!(overlay(&gateway.replace("--bridge-interface=breth0 ", "")).is_err(), "one of the two");
        let watcher = "ovn-k8s-watcher --overlay --pidfile --log-file=/tmp/log -vfile:info -vconsole:emer --kubeconfig=k";
        let daemon = Watcher::try_parse_from(watcher.split(' ')).unwrap().args.daemon;
        assert_eq!((daemon.pidfile.as_deref(), daemon.log_file.as_deref()), (Some(""), Some("/tmp/log")));
        assert_eq!(daemon.levels, ["file:info", "console:emer"]);
        let helper = "ovn-k8s-gateway-helper --physical-bridge=breth0 --physical-interface=eth0 --pidfile --detach --kubeconfig=k";
        assert!(GatewayHelper::try_parse_from(helper.split(' ')).unwrap().args.daemon.detach);
    }
}
