//! Ports of the local Open vSwitch.

use std::time::Duration;

use ovsdb::session::Wants;
use ovsdb::{Atom, AtomType, Client, ColumnUse, Condition, Datum, Mutation, Mutator, Operation, Remote, Replica, Row, TableUse, Transaction, Uuid};
use thiserror_ext::AsReport as _;

use super::later;
use super::pod::Pod;
use crate::spec::CniError;

const DATABASE: &str = "Open_vSwitch";
/// How long the local database may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a port is added or removed anew because another program was first.
const ATTEMPTS: usize = 5;
/// The owner's mark, as in OVN's databases.
const OWNER: &str = "mullion.io/owner";

const IDS: ColumnUse = ColumnUse::texts("external_ids");
const USES: &[TableUse] = &[
    TableUse { name: "Open_vSwitch", required: true, columns: &[IDS] },
    TableUse {
        name: "Bridge",
        required: true,
        columns: &[
            ColumnUse::required("name", AtomType::String),
            ColumnUse::required("ports", AtomType::Uuid),
            ColumnUse::required("datapath_type", AtomType::String),
        ],
    },
    TableUse {
        name: "Port",
        required: true,
        columns: &[
            ColumnUse::required("name", AtomType::String),
            ColumnUse::required("interfaces", AtomType::Uuid),
            ColumnUse::texts("other_config"),
            IDS,
        ],
    },
    TableUse {
        name: "Interface",
        required: true,
        columns: &[ColumnUse::required("name", AtomType::String), ColumnUse::optional("error", AtomType::String), IDS],
    },
];

/// Whether the database may be there: a socket that is not is that of a switch that does not run.
pub(super) fn is_there(remotes: &str) -> bool {
    let may_be = |remote: Remote| !matches!(remote, Remote::Unix(path) if !path.exists());
    ovsdb::remotes(remotes).is_ok_and(|remotes| remotes.into_iter().any(may_be))
}

/// The mark of the ports of a network.
pub(super) fn owner(network: &str) -> String {
    format!("cni/{network}")
}

/// What the local switch says of the cluster.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub server: Option<String>,
    pub token: Option<String>,
    /// A file with the certificate of the server's authority.
    pub authority: Option<String>,
}

/// A port to add.
pub(super) struct NewPort<'a> {
    pub link: &'a str,
    pub pod: &'a Pod,
    pub sandbox: &'a str,
    pub network: &'a str,
    pub mac: String,
    pub addresses: Vec<String>,
}

/// A port with one interface that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Port {
    pub uuid: Uuid,
    pub interface: Uuid,
    pub link: String,
    pub owner: String,
    pub iface_id: String,
    pub sandbox: String,
    pub installed: bool,
}

/// The bridge of the logical network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bridge {
    uuid: Uuid,
    pub is_userspace: bool,
}

/// The local switch.
pub(super) struct Switch {
    client: Client,
}

fn unanswered(error: &ovsdb::Error) -> CniError {
    later(format!("{}; look whether Open vSwitch runs on this node", error.as_report()))
}

impl Switch {
    pub async fn open(remotes: &str) -> Result<Self, CniError> {
        let remotes = ovsdb::remotes(remotes).map_err(|e| CniError::config(e.to_string()))?;
        let wants = Wants { database: DATABASE.into(), uses: USES, lock: None, leader_only: false };
        let client = Client::start(ovsdb::Config::new(remotes, wants));
        client.ready(ANSWER).await.map_err(|error| unanswered(&error))?;
        Ok(Self { client })
    }

    pub fn settings(&self) -> Settings {
        let replica = self.client.state().replica;
        let row = replica.table("Open_vSwitch").rows().next().map(|(_, row)| row);
        let get = |key: &str| row?.entry("external_ids", key).filter(|value| !value.is_empty()).map(str::to_owned);
        Settings { server: get("k8s-api-server"), token: get("k8s-api-token"), authority: get("k8s-ca-certificate") }
    }

    pub fn bridge(&self, name: &str) -> Result<Bridge, CniError> {
        let found =
            bridge(&self.client.state().replica, name).map(|(uuid, row)| Bridge { uuid, is_userspace: row.text("datapath_type") == "netdev" });
        found
            .ok_or_else(|| later(format!("the local switch has no bridge {name}; run mullion ovn minion-init, and look whether ovn-controller runs")))
    }

    pub fn ports(&self, bridge: &str) -> Vec<Port> {
        ports(&self.client.state().replica, bridge)
    }

    /// Adds a port, in the place of those of our own that the pod has from before.
    pub async fn attach(&self, name: &str, port: &NewPort<'_>) -> Result<(), CniError> {
        self.write(|| attachment(self.bridge(name)?.uuid, &self.ports(name), port).map(Some)).await
    }

    /// Removes the ports for which that holds.
    pub async fn detach(&self, name: &str, which: impl Fn(&Port) -> bool) -> Result<(), CniError> {
        self.write(|| {
            let Ok(bridge) = self.bridge(name) else { return Ok(None) };
            let going: Vec<Port> = self.ports(name).into_iter().filter(|port| which(port)).collect();
            Ok((!going.is_empty()).then(|| Transaction { operations: going.iter().flat_map(|port| removal(bridge.uuid, port)).collect() }))
        })
        .await
    }

    /// Writes what the rows ask for, until no other program changes them meanwhile.
    async fn write(&self, plan: impl Fn() -> Result<Option<Transaction>, CniError>) -> Result<(), CniError> {
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let Some(transaction) = plan()? else { return Ok(()) };
            match self.client.transact(transaction).await {
                Ok(_) => return Ok(()),
                Err(ovsdb::Error::Refused(refused)) if refused.is_outdated() => last = Some(refused),
                Err(error) => return Err(unanswered(&error)),
            }
        }
        Err(later(format!(
            "other programs change ports of the local switch all the time: {}",
            last.map(|refused| refused.to_string()).unwrap_or_default()
        )))
    }

    /// Waits until OVN has made the port's flows.
    pub async fn installed(&self, port: &NewPort<'_>, limit: Duration) -> Result<(), CniError> {
        let interface = |replica: &Replica| {
            let found = replica.table("Interface").rows().find(|(_, row)| row.text("name") == port.link);
            found.map(|(_, row)| (is_installed(row), row.text("error").to_owned()))
        };
        let settled = |replica: &Replica| interface(replica).is_none_or(|(installed, error)| installed || !error.is_empty());
        let waited = self.client.when(limit, |state| settled(&state.replica)).await;
        let name = port.pod.port_name();
        match (waited, interface(&self.client.state().replica)) {
            (_, Some((true, _))) => Ok(()),
            (Ok(_), Some((false, error))) => Err(later(format!("Open vSwitch cannot use {}: {error}", port.link))),
            (Ok(_), None) => Err(later(format!("another program removed port {} of the local switch", port.link))),
            (Err(_), _) => Err(later(format!(
                "OVN made no flows for {name} within {} s; look whether ovn-controller and ovn-northd run, and whether the logical port is there",
                limit.as_secs()
            ))),
        }
    }
}

fn is_installed(interface: &Row) -> bool {
    interface.entry("external_ids", "ovn-installed") == Some("true")
}

fn bridge<'a>(replica: &'a Replica, name: &str) -> Option<(Uuid, &'a Row)> {
    replica.table("Bridge").rows().find(|(_, row)| row.text("name") == name)
}

fn ports(replica: &Replica, name: &str) -> Vec<Port> {
    let uuids = bridge(replica, name).and_then(|(_, row)| row.get("ports")).into_iter().flat_map(Datum::uuids);
    let port = |uuid: Uuid| {
        let row = replica.table("Port").get(uuid)?;
        let interface = row.get("interfaces")?.uuids().next()?;
        let interface_row = replica.table("Interface").get(interface)?;
        let id = |key: &str| interface_row.entry("external_ids", key).unwrap_or_default().to_owned();
        Some(Port {
            uuid,
            interface,
            link: row.text("name").to_owned(),
            owner: row.entry("external_ids", OWNER).unwrap_or_default().to_owned(),
            iface_id: id("iface-id"),
            sandbox: id("sandbox"),
            installed: is_installed(interface_row),
        })
    };
    uuids.filter_map(port).collect()
}

fn removal(bridge: Uuid, port: &Port) -> [Operation; 3] {
    let delete = |table: &str, uuid| Operation::Delete { table: table.into(), conditions: vec![Condition::row(uuid)] };
    let leave = Operation::Mutate {
        table: "Bridge".into(),
        conditions: vec![Condition::row(bridge)],
        mutations: vec![Mutation::new("ports", Mutator::Delete, port.uuid.into())],
    };
    [leave, delete("Port", port.uuid), delete("Interface", port.interface)]
}

fn attachment(bridge: Uuid, there: &[Port], port: &NewPort<'_>) -> Result<Transaction, CniError> {
    let (id, owner) = (port.pod.port_name(), owner(port.network));
    let in_the_way: Vec<&Port> = there.iter().filter(|other| other.iface_id == id || other.link == port.link).collect();
    if let Some(other) = in_the_way.iter().find(|other| other.owner != owner) {
        let whose = if other.owner.is_empty() { "another program" } else { &other.owner };
        return Err(later(format!("port {} of the local switch has iface-id {:?} and belongs to {whose}; remove it", other.link, other.iface_id)));
    }
    let mut operations: Vec<Operation> = in_the_way.iter().flat_map(|other| removal(bridge, other)).collect();
    for table in ["Port", "Interface"] {
        operations.push(Operation::wait_none(table, vec![Condition::equal("name", port.link)]));
    }
    let address = port.addresses.first().map(String::as_str).unwrap_or_default();
    let addresses = port.addresses.join(",");
    let ids = [
        ("attached_mac", port.mac.as_str()),
        ("iface-id", &id),
        ("iface-id-ver", &port.pod.uid),
        ("ip_address", address),
        ("ip_addresses", &addresses),
        ("sandbox", port.sandbox),
    ];
    let ids = Datum::map(ids.into_iter().filter(|(_, value)| !value.is_empty()));
    let named = |name: &str| Datum::from(Atom::Named(name.to_owned()));
    let name = || ("name".to_owned(), Datum::from(port.link));
    let interface = [name(), ("external_ids".to_owned(), ids)];
    let row = [
        name(),
        ("interfaces".to_owned(), named("interface")),
        ("other_config".to_owned(), Datum::map([("transient", "true")])),
        ("external_ids".to_owned(), Datum::map([(OWNER, owner.as_str())])),
    ];
    operations.push(Operation::Insert { table: "Interface".into(), name: Some("interface".into()), row: interface.into() });
    operations.push(Operation::Insert { table: "Port".into(), name: Some("port".into()), row: row.into() });
    operations.push(Operation::Mutate {
        table: "Bridge".into(),
        conditions: vec![Condition::row(bridge)],
        mutations: vec![Mutation::new("ports", Mutator::Insert, named("port"))],
    });
    Ok(Transaction { operations })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there(link: &str, owner: &str, iface_id: &str) -> Port {
        Port { link: link.into(), owner: owner.into(), iface_id: iface_id.into(), uuid: Uuid::from_u128(2), ..Port::default() }
    }

    #[test]
    fn a_port_takes_the_place_of_the_pods_own_one_and_of_no_other() {
        let pod = Pod { namespace: "default".into(), name: "web".into(), uid: String::new() };
        let port = NewPort {
            link: "veth1",
            pod: &pod,
            sandbox: "c1",
            network: "net",
            mac: "0a:00:00:00:00:01".into(),
            addresses: vec!["10.1.1.3/24".into()],
        };
        let written = |ports: &[Port]| attachment(Uuid::from_u128(1), ports, &port).map(|transaction| format!("{:?}", transaction.operations));
        let alone = written(&[there("veth2", "cni/net", "default_db")]).unwrap();
        assert!(!alone.contains("Delete") && alone.contains("default_web") && !alone.contains("iface-id-ver"), "{alone}");
        let replaces = written(&[there("veth2", "cni/net", "default_web")]).unwrap();
        assert!(replaces.find("Delete").unwrap() < replaces.find("Insert {").unwrap(), "{replaces}");
        for (other, whose) in [(there("veth2", "", "default_web"), "another program"), (there("veth1", "cni/other", ""), "cni/other")] {
            let error = written(&[other]).unwrap_err();
            assert!(error.msg.contains(&format!("belongs to {whose}; remove it")), "{error}");
        }
    }
}
