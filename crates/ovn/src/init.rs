//! `master-init`, `minion-init` and `gateway-init`: the rows of [`crate::topology`], written, and the addresses of the host itself.
//!
//! Each may run again at any time: what is there stays, what is missing or wrong is written.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::Ipv4Net;
use ovsdb::session::Wants;
use ovsdb::{Client, Condition, Config, Datum, Error, Mutation, Mutator, Operation, Remote, Replica, Row};

use crate::chassis;
use crate::encapsulation::{self, EncapsulationError};
use crate::rows::{Plan, Ref, Want, plan};
use crate::schema::{LOCAL, LOCAL_USES, NORTHBOUND, NORTHBOUND_USES, SOUTHBOUND, SOUTHBOUND_USES};
use crate::topology::{self, Gateway, Outside};

/// How often a plan is made anew because another client was first.
const ATTEMPTS: usize = 5;

/// Where the databases are.
#[derive(Clone, Debug)]
pub struct Databases {
    /// The northbound database. None: where the local switch's `external_ids:ovn-nb` says, else [`Self::DEFAULT_NORTHBOUND`].
    pub northbound: Option<Vec<Remote>>,
    /// The southbound database, which only [`remove`] needs. None: [`Self::DEFAULT_SOUTHBOUND`].
    pub southbound: Option<Vec<Remote>>,
    /// The local switch's database.
    pub local: Vec<Remote>,
    /// For servers `ssl:…`.
    pub tls: Option<Arc<TlsConfig>>,
    /// How long is waited for a connection, and for the switch to do what was written.
    pub limit: Duration,
    /// Whether only plans are made.
    pub dry_run: bool,
}

/// TLS of clients.
pub type TlsConfig = ovsdb::ClientConfig;

impl Databases {
    /// The northbound database of this machine.
    pub const DEFAULT_NORTHBOUND: &str = "unix:/run/ovn/ovnnb_db.sock";
    /// The southbound database of this machine.
    pub const DEFAULT_SOUTHBOUND: &str = "unix:/run/ovn/ovnsb_db.sock";
    /// The switch's database of this machine.
    pub const DEFAULT_LOCAL: &str = ovsdb::names::LOCAL_SOCKET;
}

/// Why a host was not set up.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// A database does not answer, or refused what was written.
    #[error("cannot {operation}")]
    Database {
        /// What was to be done.
        operation: &'static str,
        /// The reason.
        #[source]
        source: Error,
    },
    /// `ovn-nb` of the local switch is wrong.
    #[error("cannot read external_ids:ovn-nb of the local switch")]
    Northbound(#[from] ovsdb::RemoteError),
    /// Rows are in the way or missing.
    #[error("nothing was written: {0}")]
    Refused(String),
    /// Another client wrote the same rows all the time.
    #[error("cannot write {database}: other clients change the same rows all the time; look which other program writes them")]
    Contended {
        /// The database.
        database: &'static str,
    },
    /// The switch did not make an interface.
    #[error("cannot use interface {name} of the local switch: {reason}")]
    Interface {
        /// The interface.
        name: String,
        /// The reason, and the way out.
        reason: String,
    },
    /// A setting is wrong.
    #[error("{0}")]
    Setting(String),
    /// Tunnels between hosts would not work.
    #[error("nothing was written: {0}")]
    Encapsulation(#[from] EncapsulationError),
    /// The host's own network.
    #[error("cannot set up the host's interface {name}")]
    Host {
        /// The interface.
        name: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
}

/// What was written, or would be.
#[derive(Debug, Default)]
pub struct Report(Vec<(&'static str, Plan)>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (database, plan) in &self.0 {
            if plan.is_empty() {
                writeln!(f, "{database}: nothing to do")?;
            } else {
                write!(f, "{database}:\n{plan}")?;
            }
        }
        Ok(())
    }
}

/// The clients of both databases.
struct Session<'a> {
    databases: &'a Databases,
    local: Client,
    northbound: Client,
    report: Report,
}

fn client(databases: &Databases, remotes: Vec<Remote>, database: &str, uses: &'static [ovsdb::TableUse]) -> Client {
    let wants = Wants { database: database.to_owned(), uses, lock: None, leader_only: database != LOCAL };
    Client::start(Config { tls: databases.tls.clone(), ..Config::new(remotes, wants) })
}

fn only(replica: &Replica) -> Option<&Row> {
    replica.table("Open_vSwitch").rows().next().map(|(_, row)| row)
}

impl<'a> Session<'a> {
    async fn open(databases: &'a Databases) -> Result<Self, InitError> {
        let local = client(databases, databases.local.clone(), LOCAL, LOCAL_USES);
        let operation = "read the local switch's database; start Open vSwitch, or give --ovs";
        let state = local.ready(databases.limit).await.map_err(|source| InitError::Database { operation, source })?;
        let remotes = match &databases.northbound {
            Some(remotes) => remotes.clone(),
            None => {
                let text = only(&state.replica).and_then(|row| row.entry("external_ids", "ovn-nb"));
                ovsdb::remotes(text.unwrap_or(Databases::DEFAULT_NORTHBOUND))?
            }
        };
        let northbound = client(databases, remotes, NORTHBOUND, NORTHBOUND_USES);
        let operation = "read the northbound database; start it, give --ovn-nb, or set external_ids:ovn-nb of the local switch";
        northbound.ready(databases.limit).await.map_err(|source| InitError::Database { operation, source })?;
        Ok(Self { databases, local, northbound, report: Report::default() })
    }

    /// A value of the local switch's `external_ids`.
    fn setting(&self, key: &str) -> Option<String> {
        only(&self.local.state().replica)?.entry("external_ids", key).map(str::to_owned)
    }

    fn datapath(&self) -> String {
        self.setting("ovn-bridge-datapath-type").unwrap_or_default()
    }

    /// What the local switch has to be told of tunnels, once they are known to work.
    fn encapsulation(&self) -> Result<Vec<Want>, InitError> {
        let settings = encapsulation::Settings {
            types: self.setting("ovn-encap-type"),
            address: self.setting("ovn-encap-ip"),
            remote: self.setting("ovn-remote"),
            is_userspace: self.datapath() == "netdev",
        };
        let (address, wants) = encapsulation::plan(&settings, encapsulation::route)?;
        #[cfg(target_os = "linux")]
        {
            let found = encapsulation::interface_with(address).map_err(|source| InitError::Host { name: address.to_string(), source })?;
            encapsulation::check(address, found)?;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = address;
        Ok(wants)
    }

    /// Writes what is wanted of the northbound database.
    async fn write_northbound(
        &mut self,
        scope: &str,
        wants: impl Fn(&Replica) -> Result<Vec<Want>, InitError>,
        guards: fn(&Replica) -> Vec<Operation>,
    ) -> Result<(), InitError> {
        let plan = settle(&self.northbound, NORTHBOUND, scope, self.databases.dry_run, wants, Vec::new(), guards).await?;
        self.report.0.push((NORTHBOUND, plan));
        Ok(())
    }

    /// Writes what is wanted of the local switch, and waits until the switch has done it.
    async fn write_local(&mut self, scope: &str, wants: &[Want]) -> Result<(), InitError> {
        let number = Operation::Mutate {
            table: "Open_vSwitch".into(),
            conditions: Vec::<Condition>::new(),
            mutations: vec![Mutation::new("next_cfg", Mutator::Add, Datum::from(1))],
        };
        let plan = settle(&self.local, LOCAL, scope, self.databases.dry_run, |_| Ok(wants.to_vec()), vec![number], no_guards).await?;
        let written = !plan.is_empty();
        self.report.0.push((LOCAL, plan));
        if written && !self.databases.dry_run {
            let number = |replica: &Replica, column: &str| only(replica).and_then(|row| row.get(column)?.as_integer()).unwrap_or_default();
            let next = number(&self.local.state().replica, "next_cfg");
            let done = self.local.when(self.databases.limit, |state| number(&state.replica, "cur_cfg") >= next).await;
            let operation = "wait for ovs-vswitchd to do what was written; look whether it runs";
            done.map_err(|source| InitError::Database { operation, source })?;
        }
        Ok(())
    }

    /// The MAC address that the switch gave an interface.
    fn mac(&self, name: &str) -> Result<String, InitError> {
        let replica = self.local.state().replica;
        let error = |reason: &str| InitError::Interface { name: name.to_owned(), reason: reason.to_owned() };
        let Some((_, row)) = Ref::named("Interface", name).find(&replica) else {
            return Err(error("there is none; make it, or give another name"));
        };
        if !row.text("error").is_empty() {
            return Err(error(row.text("error")));
        }
        match row.text("mac_in_use") {
            "" | "00:00:00:00:00:00" => Err(error("it has no MAC address; look into the log of ovs-vswitchd")),
            mac => Ok(mac.to_owned()),
        }
    }

    /// A node's switch, its management port, and the address on that.
    async fn node(&mut self, node: &Node) -> Result<(), InitError> {
        let scope = topology::node_scope(&node.name);
        node.check_overlap(&self.northbound.state().replica)?;
        let mut local = self.encapsulation()?;
        local.extend(topology::local_node(&node.name, &self.datapath()));
        self.write_local(&scope, &local).await?;
        let interface = topology::management_interface(&node.name);
        let mac = match self.mac(&interface) {
            Err(_) if self.databases.dry_run => "00:00:00:00:00:00".to_owned(),
            mac => mac?,
        };
        let chassis = self.setting("system-id");
        let wants = |replica: &Replica| {
            node.check_overlap(replica)?;
            Ok(topology::node(replica, &node.name, node.subnet, &mac, chassis.as_deref()))
        };
        self.write_northbound(&scope, wants, topology::node_guards).await?;
        if self.databases.dry_run {
            return Ok(());
        }
        let address = Ipv4Net::new(topology::nth(node.subnet, 2), node.subnet.prefix_len()).unwrap_or(node.subnet);
        let hop = topology::nth(node.subnet, 1);
        set_up(&interface, address, node.cluster_subnet, hop).map_err(|source| InitError::Host { name: interface, source })
    }
}

fn no_guards(_: &Replica) -> Vec<Operation> {
    Vec::new()
}

/// Plans and writes until nothing is left to do. `guards` are waits on what the plan was made from, besides its own rows.
async fn settle(
    client: &Client,
    database: &'static str,
    scope: &str,
    dry_run: bool,
    wants: impl Fn(&Replica) -> Result<Vec<Want>, InitError>,
    more: Vec<Operation>,
    guards: fn(&Replica) -> Vec<Operation>,
) -> Result<Plan, InitError> {
    for _ in 0..ATTEMPTS {
        let state = client.state();
        let wants = wants(&state.replica)?;
        let plan = plan(&state.replica, scope, &wants);
        if !plan.problems.is_empty() {
            return Err(InitError::Refused(plan.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")));
        }
        if plan.is_empty() || dry_run {
            return Ok(plan);
        }
        let mut transaction = plan.transaction(None);
        transaction.operations.splice(0..0, guards(&state.replica));
        transaction.operations.extend(more.iter().cloned());
        match client.transact(transaction).await {
            Ok(_) => return Ok(plan),
            Err(Error::Refused(refused)) if refused.is_outdated() => {}
            Err(source) => return Err(InitError::Database { operation: "write the database", source }),
        }
    }
    Err(InitError::Contended { database })
}

/// A node and its pods' addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name: that of its Node object.
    pub name: String,
    /// The addresses of all pods.
    pub cluster_subnet: Ipv4Net,
    /// The addresses of its pods.
    pub subnet: Ipv4Net,
}

impl Node {
    fn check(&self) -> Result<(), InitError> {
        let Self { name, cluster_subnet, subnet } = self;
        if name.is_empty() {
            return Err(InitError::Setting("the node has no name: give --node-name".into()));
        }
        if !cluster_subnet.contains(subnet) || subnet.prefix_len() > 29 {
            let text = format!("subnet {subnet} of the node is no part of {cluster_subnet} with room for pods: give one of at most /29 inside it");
            return Err(InitError::Setting(text));
        }
        Ok(())
    }

    fn check_overlap(&self, replica: &Replica) -> Result<(), InitError> {
        let Self { name, subnet, .. } = self;
        match topology::overlap(replica, name, *subnet) {
            Some((port, other)) => Err(InitError::Refused(format!(
                "subnet {subnet} of node {name} overlaps {other} of router port {port}; give the node another subnet, or remove the other node"
            ))),
            None => Ok(()),
        }
    }
}

/// Makes what the cluster has once, and what the master has as a node.
///
/// # Errors
/// A setting is wrong, a database does not answer, or rows of others are in the way.
pub async fn master(databases: &Databases, node: &Node) -> Result<Report, InitError> {
    node.check()?;
    let mut session = Session::open(databases).await?;
    session.write_northbound(&topology::master_scope(&node.name), |replica| Ok(topology::master(replica, &node.name)), no_guards).await?;
    session.node(node).await?;
    Ok(session.report)
}

/// Makes what a node has.
///
/// # Errors
/// As [`master`]; there is no cluster router yet.
pub async fn minion(databases: &Databases, node: &Node) -> Result<Report, InitError> {
    node.check()?;
    let mut session = Session::open(databases).await?;
    session.node(node).await?;
    Ok(session.report)
}

/// What a gateway host is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Its name.
    pub node: String,
    /// The addresses of all pods.
    pub cluster_subnet: Ipv4Net,
    /// Its address outside, with the length of its network's prefix.
    pub physical_ip: Ipv4Net,
    /// An interface that `br-int` takes for itself, or (true) a bridge that the host goes on using.
    pub interface: (String, bool),
    /// The router outside.
    pub next_hop: Ipv4Addr,
    /// Subnets whose pods leave through this gateway.
    pub rampout: Vec<Ipv4Net>,
}

/// Makes what a gateway host has.
///
/// # Errors
/// As [`minion`]; the local switch has no `system-id`, or no such bridge.
pub async fn gateway(databases: &Databases, settings: &GatewaySettings) -> Result<Report, InitError> {
    let mut session = Session::open(databases).await?;
    let (name, is_bridge) = &settings.interface;
    let no_chassis = || InitError::Setting("the local switch has no external_ids:system-id: start ovn-controller, or set it".into());
    let chassis = session.setting("system-id").ok_or_else(no_chassis)?;
    let free = |replica: &Replica| match topology::router_on(replica, &settings.node, &chassis) {
        Some(router) => Err(InitError::Refused(format!(
            "chassis {chassis} has gateway router {router} already; give this host's switch an external_ids:system-id of its own, or remove the other gateway"
        ))),
        None => Ok(()),
    };
    free(&session.northbound.state().replica)?;
    let scope = topology::gateway_scope(&settings.node);
    let outside = if *is_bridge { Outside::Bridge { name: name.clone(), mac: session.mac(name)? } } else { Outside::Interface(name.clone()) };
    let mut local = session.encapsulation()?;
    local.extend(topology::local_gateway(&settings.node, &outside, &session.datapath()));
    session.write_local(&scope, &local).await?;
    let mac = match session.mac(name) {
        Err(_) if databases.dry_run => "00:00:00:00:00:00".to_owned(),
        mac => mac?,
    };
    let gateway = Gateway {
        node: settings.node.clone(),
        cluster_subnet: settings.cluster_subnet,
        physical_ip: settings.physical_ip,
        interface: name.clone(),
        mac,
        next_hop: settings.next_hop,
        rampout: settings.rampout.clone(),
        chassis: chassis.clone(),
    };
    let wants = |replica: &Replica| {
        free(replica)?;
        topology::gateway(replica, &gateway).ok_or_else(|| InitError::Setting("100.64.1.0/24 has no address left for another gateway".into()))
    };
    session.write_northbound(&scope, wants, topology::gateway_guards).await?;
    if !is_bridge && !databases.dry_run {
        let host = |source| InitError::Host { name: name.clone(), source };
        forget_addresses(name).map_err(host)?;
    }
    Ok(session.report)
}

/// Removes a host's chassis from the southbound database, and then what the host has in the northbound one, whose rows lead to the chassis: a
/// removal that is cut off finds its way when it runs again. A running `ovn-controller` would make the chassis again.
///
/// # Errors
/// A database does not answer.
pub async fn remove(databases: &Databases, node: &str) -> Result<Report, InitError> {
    let of = |given: &Option<Vec<Remote>>, default: &str| given.clone().map_or_else(|| ovsdb::remotes(default), Ok);
    let northbound = client(databases, of(&databases.northbound, Databases::DEFAULT_NORTHBOUND)?, NORTHBOUND, NORTHBOUND_USES);
    let southbound = client(databases, of(&databases.southbound, Databases::DEFAULT_SOUTHBOUND)?, SOUTHBOUND, SOUTHBOUND_USES);
    let operation = "read the northbound database; start it, or give --ovn-nb";
    let rows = northbound.ready(databases.limit).await.map_err(|source| InitError::Database { operation, source })?.replica;
    let operation = "read the southbound database; start it, or give --ovn-sb";
    let bindings = southbound.ready(databases.limit).await.map_err(|source| InitError::Database { operation, source })?.replica;
    let chassis = chassis::removal(&rows, &bindings, node);
    if !chassis.is_empty() && !databases.dry_run {
        let operation = "remove the chassis";
        southbound.transact(chassis.transaction(None)).await.map_err(|source| InitError::Database { operation, source })?;
    }
    let mut report = Report(vec![(SOUTHBOUND, chassis)]);
    for scope in [topology::node_scope(node), topology::gateway_scope(node)] {
        let plan = settle(&northbound, NORTHBOUND, &scope, databases.dry_run, |_| Ok(Vec::new()), Vec::new(), no_guards).await?;
        report.0.push((NORTHBOUND, plan));
    }
    Ok(report)
}

#[cfg(target_os = "linux")]
fn link(rtnl: &linux_sys::netlink::Rtnl, name: &str) -> std::io::Result<u32> {
    let link = rtnl.link(name).map_err(std::io::Error::from)?;
    link.map(|link| link.index).ok_or_else(|| std::io::Error::other("the host has no such interface; look into the log of ovs-vswitchd"))
}

/// The node's address on its management port, and the way to the pods.
#[cfg(target_os = "linux")]
fn set_up(name: &str, address: Ipv4Net, cluster: Ipv4Net, hop: Ipv4Addr) -> std::io::Result<()> {
    use linux_sys::netlink::{Route, Rtnl};
    let rtnl = Rtnl::open().map_err(std::io::Error::from)?;
    let index = link(&rtnl, name)?;
    for other in rtnl.addrs(index).map_err(std::io::Error::from)? {
        if other.addr().is_ipv4() && other != address.into() {
            rtnl.del_addr(index, other).map_err(std::io::Error::from)?;
        }
    }
    rtnl.add_addr(index, address.into()).map_err(std::io::Error::from)?;
    rtnl.set_up(index).map_err(std::io::Error::from)?;
    rtnl.replace_route(&Route::new(cluster.into()).via(hop.into()).oif(index)).map_err(std::io::Error::from)
}

/// The interface's addresses are the gateway router's now.
#[cfg(target_os = "linux")]
fn forget_addresses(name: &str) -> std::io::Result<()> {
    let rtnl = linux_sys::netlink::Rtnl::open().map_err(std::io::Error::from)?;
    let index = link(&rtnl, name)?;
    rtnl.set_up(index).map_err(std::io::Error::from)?;
    let addresses = rtnl.addrs(index).map_err(std::io::Error::from)?;
    addresses
        .into_iter()
        .filter(|address| address.addr().is_ipv4())
        .try_for_each(|address| rtnl.del_addr(index, address).map_err(std::io::Error::from))
}

#[cfg(not(target_os = "linux"))]
fn set_up(_name: &str, address: Ipv4Net, cluster: Ipv4Net, hop: Ipv4Addr) -> std::io::Result<()> {
    let text = format!("the rows are written; give it address {address} and a route to {cluster} by {hop} with netsh");
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, text))
}

#[cfg(not(target_os = "linux"))]
fn forget_addresses(_name: &str) -> std::io::Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "the rows are written; take its IPv4 addresses away with netsh"))
}
