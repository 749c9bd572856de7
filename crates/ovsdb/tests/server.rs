//! The client against Open vSwitch's own `ovsdb-server`, with OVN's northbound schema (Debian's packages ovn-common and openvswitch-switch).
#![cfg(target_os = "linux")]

use std::path::Path;
use std::time::Duration;

use ovsdb::session::Wants;
use ovsdb::{
    AtomType, Client, ColumnUse, Condition, Config, Datum, Error, Lock, Mutation, Mutator, Operation, Outcome, Remote, State, TableUse, Transaction,
};
use tempfile::TempDir;
use test_lab::ovn::{Programs, run};

const SCHEMA: &str = "/usr/share/ovn/ovn-nb.ovsschema";
const DATABASE: &str = "OVN_Northbound";
const LIMIT: Duration = Duration::from_secs(20);
const USES: &[TableUse] = &[
    TableUse {
        name: "Logical_Switch",
        required: true,
        columns: &[
            ColumnUse::required("name", AtomType::String),
            ColumnUse::required("ports", AtomType::Uuid),
            ColumnUse::texts("other_config"),
            ColumnUse::texts("external_ids"),
            // No server has it.
            ColumnUse::optional("colour", AtomType::String),
        ],
    },
    TableUse {
        name: "Logical_Switch_Port",
        required: true,
        columns: &[
            ColumnUse::required("name", AtomType::String),
            ColumnUse::required("addresses", AtomType::String),
            ColumnUse::optional("tag", AtomType::Integer),
            ColumnUse::optional("up", AtomType::Boolean),
        ],
    },
];

/// An `ovsdb-server` with a database of its own, in a directory of the test.
struct Server {
    programs: Programs,
    _dir: TempDir,
}

impl Server {
    fn new(clustered: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Self { programs: Programs::new(dir.path()), _dir: dir };
        if clustered {
            let raft = format!("unix:{}", server.programs.text("raft"));
            run("ovsdb-tool", &["create-cluster", &server.programs.text("server.db"), SCHEMA, &raft]);
        } else {
            server.create();
        }
        server.start();
        server
    }

    fn create(&self) {
        run("ovsdb-tool", &["create", &self.programs.text("server.db"), SCHEMA]);
    }

    fn start(&mut self) {
        self.programs.start_database("server", &[]);
    }

    fn end(&mut self) {
        self.programs.end("server");
    }

    fn control(&self, args: &[&str]) -> String {
        let target = self.programs.text("server.ctl");
        run("ovs-appctl", &[&["-t", target.as_str()], args].concat())
    }

    fn remote(&self) -> Remote {
        Remote::Unix(self.programs.path("server.sock"))
    }

    fn client(&self) -> Client {
        self.client_with(None, true)
    }

    fn client_with(&self, lock: Option<&str>, leader_only: bool) -> Client {
        let wants = Wants { database: DATABASE.into(), uses: USES, lock: lock.map(str::to_owned), leader_only };
        Client::start(Config::new(vec![self.remote()], wants))
    }
}

fn switch(name: &str) -> Transaction {
    let port = [("name".to_owned(), format!("{name}-port").into()), ("addresses".to_owned(), Datum::set(["dynamic", "unknown"]))];
    let row = [
        ("name".to_owned(), name.into()),
        ("ports".to_owned(), ovsdb::Atom::Named("port".into()).into()),
        ("other_config".to_owned(), Datum::map([("subnet", "10.1.1.0/24")])),
        ("colour".to_owned(), "red".into()),
    ];
    Transaction {
        operations: vec![
            Operation::wait_none("Logical_Switch", vec![Condition::equal("name", name)]),
            Operation::Insert { table: "Logical_Switch_Port".into(), name: Some("port".into()), row: port.into() },
            Operation::Insert { table: "Logical_Switch".into(), name: None, row: row.into() },
        ],
    }
}

fn names(state: &State, table: &str) -> Vec<String> {
    let mut names: Vec<String> = state.replica.table(table).rows().map(|(_, row)| row.text("name").to_owned()).collect();
    names.sort();
    names
}

async fn sees(client: &Client, expected: &[&str]) -> State {
    client
        .when(LIMIT, |state| state.connected && names(state, "Logical_Switch") == expected)
        .await
        .unwrap_or_else(|error| panic!("{error}: {expected:?}, {:?}", names(&client.state(), "Logical_Switch")))
}

async fn writes_and_reads(server: &Server) {
    let (first, second) = (server.client(), server.client());
    first.ready(LIMIT).await.unwrap();
    let outcomes = first.transact(switch("node1")).await.unwrap();
    let Outcome::Row(uuid) = outcomes[2] else { panic!("{outcomes:?}") };
    // One's own change is in the rows when the answer is there.
    let own = first.state();
    assert_eq!(names(&own, "Logical_Switch"), ["node1"]);
    let state = sees(&second, &["node1"]).await;
    let row = state.replica.table("Logical_Switch").get(uuid).unwrap();
    assert_eq!((row.entry("other_config", "subnet"), row.get("colour")), (Some("10.1.1.0/24"), None));
    let port = state.replica.table("Logical_Switch_Port").get(row.get("ports").unwrap().uuids().next().unwrap()).unwrap();
    assert_eq!(port.get("addresses").unwrap(), &Datum::set(["dynamic", "unknown"]));
    assert!(port.get("tag").unwrap().is_empty());
    assert!(state.support.missing().contains(&("Logical_Switch", "colour")));
    // Twice the same: the wait fails, and nothing changes.
    match second.transact(switch("node1")).await {
        Err(Error::Refused(refused)) => assert!(refused.is_outdated() && refused.index == 0, "{refused}"),
        other => panic!("{other:?}"),
    }
    // A change by elements reaches the other as a difference.
    let change = |value| Operation::Mutate {
        table: "Logical_Switch".into(),
        conditions: vec![Condition::row(uuid)],
        mutations: vec![Mutation::new("external_ids", Mutator::Insert, Datum::map([("k", value)]))],
    };
    let select = Operation::Select { table: "Logical_Switch".into(), conditions: vec![Condition::row(uuid)], columns: vec!["external_ids".into()] };
    let outcomes = second.transact(Transaction { operations: vec![change("v"), select] }).await.unwrap();
    assert_eq!(outcomes[0], Outcome::Count(1));
    let Outcome::Rows(rows) = &outcomes[1] else { panic!("{outcomes:?}") };
    assert_eq!(second.state().support.row("Logical_Switch", &rows[0]).unwrap()["external_ids"], Datum::map([("k", "v")]));
    first
        .when(LIMIT, |state| state.replica.table("Logical_Switch").get(uuid).is_some_and(|row| row.entry("external_ids", "k") == Some("v")))
        .await
        .unwrap();
    // A row that is gone is gone with its children.
    let gone = Operation::Delete { table: "Logical_Switch".into(), conditions: vec![Condition::row(uuid)] };
    first.transact(Transaction { operations: vec![gone] }).await.unwrap();
    assert!(names(&sees(&second, &[]).await, "Logical_Switch_Port").is_empty());
}

#[tokio::test]
async fn rows_are_written_read_and_guarded() {
    writes_and_reads(&Server::new(false)).await;
}

#[tokio::test]
async fn a_clustered_database_is_used_by_way_of_its_leader() {
    let server = Server::new(true);
    writes_and_reads(&server).await;
    // It has a history: after a lost connection only what changed is told.
    let (client, other) = (server.client(), server.client());
    client.ready(LIMIT).await.unwrap();
    client.transact(switch("node1")).await.unwrap();
    server.control(&["ovsdb-server/reconnect"]);
    client.when(LIMIT, |state| state.connections == 2).await.unwrap();
    sees(&client, &["node1"]).await;
    sees(&other, &["node1"]).await;
}

#[tokio::test]
async fn a_restarted_server_changes_no_row() {
    let mut server = Server::new(false);
    let client = server.client();
    client.ready(LIMIT).await.unwrap();
    client.transact(switch("node1")).await.unwrap();
    client.transact(switch("node2")).await.unwrap();
    let before = client.state().replica;
    server.end();
    client.when(LIMIT, |state| !state.connected).await.unwrap();
    assert_eq!(client.state().replica, before, "what was known stays known");
    assert!(matches!(client.transact(switch("node3")).await, Err(Error::NotConnected { .. })));
    server.start();
    let after = client.when(LIMIT, |state| state.connections == 2).await.unwrap().replica;
    assert_eq!(after, before);
    // And with rows that came and went meanwhile.
    server.end();
    let _ = std::fs::remove_file(server.programs.path("server.db"));
    server.create();
    server.start();
    let writer = server.client();
    writer.ready(LIMIT).await.unwrap();
    writer.transact(switch("node3")).await.unwrap();
    sees(&client, &["node3"]).await;
}

#[tokio::test]
async fn a_lock_lets_one_client_write() {
    let server = Server::new(false);
    let first = server.client_with(Some("mullion"), false);
    first.when(LIMIT, |state| state.lock == Lock::Held).await.unwrap();
    let second = server.client_with(Some("mullion"), false);
    second.when(LIMIT, |state| state.lock == Lock::Waiting).await.unwrap();
    let guarded = |name: &str| {
        let mut transaction = switch(name);
        transaction.operations.insert(0, Operation::Assert { lock: "mullion".into() });
        transaction
    };
    first.transact(guarded("node1")).await.unwrap();
    match second.transact(guarded("node2")).await {
        Err(Error::Refused(refused)) => assert!(refused.is_not_owner(), "{refused}"),
        other => panic!("{other:?}"),
    }
    // It can be taken, given away, and is free when its holder ends.
    second.steal().await;
    second.when(LIMIT, |state| state.lock == Lock::Held).await.unwrap();
    first.when(LIMIT, |state| state.lock == Lock::Waiting).await.unwrap();
    second.transact(guarded("node2")).await.unwrap();
    second.unlock().await;
    first.when(LIMIT, |state| state.lock == Lock::Held).await.unwrap();
    let third = server.client_with(Some("mullion"), false);
    third.when(LIMIT, |state| state.lock == Lock::Waiting).await.unwrap();
    drop(first);
    third.when(LIMIT, |state| state.lock == Lock::Held).await.unwrap();
}

#[tokio::test]
async fn another_database_is_refused_with_its_name() {
    let server = Server::new(false);
    let wants = Wants { database: "OVN_Southbound".into(), uses: USES, lock: None, leader_only: false };
    let client = Client::start(Config::new(vec![server.remote()], wants));
    let error = client.ready(Duration::from_millis(500)).await.unwrap_err().to_string();
    assert!(error.contains("OVN_Southbound") && error.contains("get_schema"), "{error}");
    assert!(Path::new(SCHEMA).exists());
}
