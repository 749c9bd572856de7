//! One connection's protocol, without I/O: schema, monitor, lock, transactions.
//!
//! Flow: [`Session::start`] → for every message [`Session::receive`] → [`Output`]s. What outlives the connection is its [`Memory`].
//! Upstream: `lib/ovsdb-cs.c` of Open vSwitch.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::operation::{Outcome, Refused, Transaction};
use crate::replica::{Inconsistent, Replica, Size};
use crate::schema::{AtomType, ColumnUse, Schema, SchemaError, Support, TableUse};
use crate::value::excerpt;
use crate::wire::{Message, WireError};

/// The transaction before the first one.
const NO_TRANSACTION: &str = "00000000-0000-0000-0000-000000000000";
/// The database in which a server describes itself and its databases.
const SERVER: &str = "_Server";
const SERVER_USES: &[TableUse] = &[TableUse {
    name: "Database",
    required: true,
    columns: &[
        ColumnUse::required("name", AtomType::String),
        ColumnUse::required("model", AtomType::String),
        ColumnUse::required("connected", AtomType::Boolean),
        ColumnUse::required("leader", AtomType::Boolean),
    ],
}];
/// The ids of our monitors.
const MONITOR: &str = "replica";
const SERVER_MONITOR: &str = "server";

/// Why a connection is given up.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The database cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// What the server sends is no message.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// What it tells does not fit together.
    #[error(transparent)]
    Inconsistent(#[from] Inconsistent),
    /// It refused a request without which there is no replica.
    #[error("the server refused {method}: {answer}")]
    Refused {
        /// The request.
        method: &'static str,
        /// Its answer.
        answer: String,
    },
    /// Its tables are larger than what is kept.
    #[error("the tables that are used have {} rows of {} MiB, more than the {} rows or {} MiB that are kept; look which program fills the database", .size.rows, .size.bytes >> 20, .limit.rows, .limit.bytes >> 20)]
    TooLarge {
        /// What was told.
        size: Size,
        /// What is kept.
        limit: Size,
    },
    /// It follows another server, which alone takes transactions in order.
    #[error("the server is not the leader of its cluster")]
    NotLeader,
    /// It has lost its cluster.
    #[error("the server is not connected to its cluster")]
    NotConnected,
}

/// Whether this client holds its lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lock {
    /// No lock was asked for, or there is no connection.
    #[default]
    None,
    /// Another client holds it.
    Waiting,
    /// It is held.
    Held,
}

/// What a session wants of a database.
#[derive(Clone, Debug)]
pub struct Wants {
    /// The database.
    pub database: String,
    /// The tables and columns that are replicated and written.
    pub uses: &'static [TableUse],
    /// A lock that is held as long as the connection, one client at a time. Its name has letters, digits and underscores alone.
    pub lock: Option<String>,
    /// Whether a server is given up that is not the leader of its cluster.
    pub leader_only: bool,
}

/// What outlives a connection.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// The last known rows.
    pub replica: Arc<Replica>,
    /// What the server supported when they were read.
    pub support: Arc<Support>,
    /// The last transaction in them, from which a server may go on. Empty: it has to tell all.
    pub last_transaction: Option<String>,
}

/// Names a transaction until it is answered.
pub type Ticket = u64;

/// What a session asks of the program around it.
#[derive(Debug)]
pub enum Output {
    /// Send this.
    Send(Message),
    /// The rows or the lock changed; the first one says that the session is ready.
    Changed,
    /// A transaction was answered.
    Answer(Ticket, Result<Vec<Outcome>, Refused>),
    /// The connection is of no use: close it.
    Close(Problem),
}

/// The ways of monitoring, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Monitor {
    Since,
    Conditional,
    Plain,
}

impl Monitor {
    fn method(self) -> &'static str {
        match self {
            Self::Since => "monitor_cond_since",
            Self::Conditional => "monitor_cond",
            Self::Plain => "monitor",
        }
    }

    fn next(self) -> Option<Self> {
        match self {
            Self::Since => Some(Self::Conditional),
            Self::Conditional => Some(Self::Plain),
            Self::Plain => None,
        }
    }
}

#[derive(Debug)]
enum Pending {
    ServerSchema,
    ServerMonitor,
    Schema,
    Monitor(Monitor),
    Lock,
    Transaction(Ticket, Box<Transaction>),
    /// Its answer says nothing.
    Other,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    wants: Wants,
    memory: Memory,
    limit: Size,
    /// What describes the server, where it does.
    server: Option<(Replica, Support)>,
    next_id: u64,
    pending: HashMap<u64, Pending>,
    ready: bool,
    lock: Lock,
}

impl Session {
    /// A session that begins, with what an earlier one left.
    #[must_use]
    pub fn new(wants: Wants, memory: Memory) -> Self {
        Self { wants, memory, limit: Size::LIMIT, server: None, next_id: 0, pending: HashMap::new(), ready: false, lock: Lock::None }
    }

    /// With another limit of the rows that are kept.
    #[must_use]
    pub fn limited(mut self, limit: Size) -> Self {
        self.limit = limit;
        self
    }

    /// What is sent first.
    pub fn start(&mut self) -> Vec<Output> {
        if self.wants.leader_only { vec![self.request(Pending::ServerSchema, "get_schema", json!([SERVER]))] } else { vec![self.get_schema()] }
    }

    /// What outlives it.
    #[must_use]
    pub fn into_memory(self) -> Memory {
        self.memory
    }

    /// The last known rows.
    #[must_use]
    pub fn replica(&self) -> &Arc<Replica> {
        &self.memory.replica
    }

    /// What the server supports.
    #[must_use]
    pub fn support(&self) -> &Arc<Support> {
        &self.memory.support
    }

    /// Whether the rows are those of this server and transactions are taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the lock is held.
    #[must_use]
    pub fn lock(&self) -> Lock {
        self.lock
    }

    /// Sends a transaction; its answer carries the ticket.
    pub fn transact(&mut self, ticket: Ticket, transaction: Transaction) -> Output {
        let params = transaction.to_json(&self.wants.database, &self.memory.support);
        self.request(Pending::Transaction(ticket, Box::new(transaction)), "transact", params)
    }

    /// Asks whether the server is there still.
    pub fn probe(&mut self) -> Output {
        self.request(Pending::Other, "echo", json!([]))
    }

    /// Takes the lock from whoever holds it.
    pub fn steal(&mut self) -> Vec<Output> {
        self.ask_again("steal")
    }

    /// A client that waits for a lock or has lost it has to give it up before it may ask again.
    fn ask_again(&mut self, method: &str) -> Vec<Output> {
        let Some(lock) = self.wants.lock.clone().filter(|_| self.ready && self.lock != Lock::Held) else { return Vec::new() };
        vec![self.request(Pending::Other, "unlock", json!([lock])), self.request(Pending::Lock, method, json!([lock]))]
    }

    /// Gives the lock to whoever waits for it, and does not ask for it again.
    pub fn unlock(&mut self) -> Option<Output> {
        let lock = self.wants.lock.take().filter(|_| self.ready)?;
        self.lock = Lock::None;
        Some(self.request(Pending::Other, "unlock", json!([lock])))
    }

    /// Processes a message.
    pub fn receive(&mut self, message: Message) -> Vec<Output> {
        let done = match message {
            Message::Request { method, params, id } if method == "echo" => Ok(vec![Output::Send(Message::Reply { id, result: Ok(params) })]),
            Message::Request { id, .. } => Ok(vec![Output::Send(Message::Reply { id, result: Err(json!({"error": "unknown method"})) })]),
            Message::Notification { method, params } => self.notified(&method, &params),
            Message::Reply { id, result } => match id.as_u64().and_then(|id| self.pending.remove(&id)) {
                Some(pending) => self.answered(pending, result),
                None => Ok(Vec::new()),
            },
        };
        done.unwrap_or_else(|problem| {
            // What does not fit is fetched anew, from the first row.
            self.memory.last_transaction = None;
            if matches!(problem, Problem::TooLarge { .. }) {
                self.memory.replica = Arc::default();
            }
            vec![Output::Close(problem)]
        })
    }

    fn request(&mut self, pending: Pending, method: &str, params: Value) -> Output {
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, pending);
        Output::Send(Message::Request { method: method.to_owned(), params, id: json!(id) })
    }

    fn get_schema(&mut self) -> Output {
        let database = self.wants.database.clone();
        self.request(Pending::Schema, "get_schema", json!([database]))
    }

    fn monitor(&mut self, monitor: Monitor) -> Output {
        let tables = tables(&self.memory.support);
        let params = match monitor {
            Monitor::Since => {
                let last = self.memory.last_transaction.as_deref().unwrap_or(NO_TRANSACTION);
                json!([self.wants.database, MONITOR, tables, last])
            }
            Monitor::Conditional | Monitor::Plain => json!([self.wants.database, MONITOR, tables]),
        };
        self.request(Pending::Monitor(monitor), monitor.method(), params)
    }

    fn answered(&mut self, pending: Pending, result: Result<Value, Value>) -> Result<Vec<Output>, Problem> {
        match (pending, result) {
            (Pending::ServerSchema, Ok(schema)) => {
                let Some(support) = Schema::parse(&schema).and_then(|schema| schema.supports(SERVER_USES).ok()) else {
                    return Ok(vec![self.get_schema()]);
                };
                let params = json!([SERVER, SERVER_MONITOR, tables(&support)]);
                self.server = Some((Replica::default(), support));
                Ok(vec![self.request(Pending::ServerMonitor, Monitor::Conditional.method(), params)])
            }
            // An old server: it knows no clusters.
            (Pending::ServerSchema | Pending::ServerMonitor, Err(_)) => {
                self.server = None;
                Ok(vec![self.get_schema()])
            }
            (Pending::ServerMonitor, Ok(updates)) => {
                self.server_update(&updates)?;
                Ok(vec![self.get_schema()])
            }
            (Pending::Schema, Ok(schema)) => self.schema(&schema),
            (Pending::Schema, Err(answer)) => Err(Problem::Refused { method: "get_schema", answer: excerpt(&answer) }),
            (Pending::Monitor(monitor), Ok(result)) => self.monitored(monitor, &result),
            (Pending::Monitor(monitor), Err(answer)) => match monitor.next() {
                Some(next) => Ok(vec![self.monitor(next)]),
                None => Err(Problem::Refused { method: monitor.method(), answer: excerpt(&answer) }),
            },
            (Pending::Lock, Ok(result)) => {
                self.lock = if result.get("locked") == Some(&json!(true)) { Lock::Held } else { Lock::Waiting };
                Ok(vec![Output::Changed])
            }
            (Pending::Lock, Err(answer)) => Err(Problem::Refused { method: "lock", answer: excerpt(&answer) }),
            (Pending::Transaction(ticket, transaction), Ok(result)) => Ok(vec![Output::Answer(ticket, transaction.outcomes(&result))]),
            (Pending::Transaction(ticket, _), Err(answer)) => {
                let error = answer.as_str().or_else(|| answer.get("error")?.as_str()).unwrap_or("refused").to_owned();
                let refused = Refused { index: 0, operation: "transact".into(), error, details: excerpt(&answer) };
                Ok(vec![Output::Answer(ticket, Err(refused))])
            }
            (Pending::Other, _) => Ok(Vec::new()),
        }
    }

    fn schema(&mut self, schema: &Value) -> Result<Vec<Output>, Problem> {
        let malformed = || SchemaError::Malformed { database: self.wants.database.clone() };
        let support = Schema::parse(schema).ok_or_else(malformed)?.supports(self.wants.uses)?;
        if support != *self.memory.support {
            // Columns have come or gone: what is known does not have them.
            self.memory.last_transaction = None;
            self.memory.support = Arc::new(support);
        }
        // Else a server whose schema is changed ends all connections for it, which comes to the same.
        let aware = self.request(Pending::Other, "set_db_change_aware", json!([true]));
        Ok(vec![aware, self.monitor(Monitor::Since)])
    }

    fn monitored(&mut self, monitor: Monitor, result: &Value) -> Result<Vec<Output>, Problem> {
        let malformed = || Problem::Refused { method: monitor.method(), answer: excerpt(result) };
        let mut replica = Replica::default();
        let mut last = None;
        match monitor {
            Monitor::Since => {
                let [found, transaction, updates] = result.as_array().map(Vec::as_slice).ok_or_else(malformed)? else { return Err(malformed()) };
                if found.as_bool().ok_or_else(malformed)? {
                    replica = (*self.memory.replica).clone();
                }
                replica.update2(updates, &self.memory.support)?;
                last = last_transaction(transaction);
            }
            Monitor::Conditional => replica.update2(result, &self.memory.support)?,
            Monitor::Plain => replica.update(result, &self.memory.support)?,
        }
        self.fits(&replica)?;
        // Whole, and in one step: a reader sees the state before the connection was lost, and then this one.
        self.memory.replica = Arc::new(replica);
        self.memory.last_transaction = last;
        self.ready = true;
        let mut outputs = Vec::new();
        if let Some(lock) = self.wants.lock.clone() {
            outputs.push(self.request(Pending::Lock, "lock", json!([lock])));
        }
        outputs.push(Output::Changed);
        Ok(outputs)
    }

    fn fits(&self, replica: &Replica) -> Result<(), Problem> {
        let (size, limit) = (replica.size(), self.limit);
        if size.fits(limit) { Ok(()) } else { Err(Problem::TooLarge { size, limit }) }
    }

    fn server_update(&mut self, updates: &Value) -> Result<(), Problem> {
        let Some((replica, support)) = &mut self.server else { return Ok(()) };
        replica.update2(updates, support)?;
        let flag = |row: &crate::Row, column: &str| row.get(column).and_then(crate::Datum::as_bool) == Some(true);
        for (_, row) in replica.table("Database").rows() {
            if row.text("name") == self.wants.database && row.text("model") == "clustered" {
                if !flag(row, "connected") {
                    return Err(Problem::NotConnected);
                }
                if !flag(row, "leader") {
                    return Err(Problem::NotLeader);
                }
            }
        }
        Ok(())
    }

    fn notified(&mut self, method: &str, params: &Value) -> Result<Vec<Output>, Problem> {
        let is_ours = |id: &str| params.get(0).and_then(Value::as_str) == Some(id);
        let whole = || Problem::Wire(WireError::NotRpc(excerpt(params)));
        match method {
            "update2" if is_ours(SERVER_MONITOR) => {
                self.server_update(params.get(1).ok_or_else(whole)?)?;
                Ok(Vec::new())
            }
            "update" | "update2" | "update3" if is_ours(MONITOR) && self.ready => {
                let support = self.memory.support.clone();
                let replica = Arc::make_mut(&mut self.memory.replica);
                match method {
                    "update" => replica.update(params.get(1).ok_or_else(whole)?, &support)?,
                    "update2" => replica.update2(params.get(1).ok_or_else(whole)?, &support)?,
                    _ => {
                        replica.update2(params.get(2).ok_or_else(whole)?, &support)?;
                        self.memory.last_transaction = params.get(1).and_then(last_transaction);
                    }
                }
                self.fits(&self.memory.replica)?;
                Ok(vec![Output::Changed])
            }
            "locked" if params.get(0).and_then(Value::as_str) == self.wants.lock.as_deref() && self.wants.lock.is_some() => {
                self.lock = Lock::Held;
                Ok(vec![Output::Changed])
            }
            "stolen" if params.get(0).and_then(Value::as_str) == self.wants.lock.as_deref() && self.wants.lock.is_some() => {
                self.lock = Lock::Waiting;
                let mut outputs = self.ask_again("lock");
                outputs.push(Output::Changed);
                Ok(outputs)
            }
            "monitor_canceled" if is_ours(MONITOR) => Err(Problem::Refused { method: "monitor", answer: "the database was converted".into() }),
            _ => Ok(Vec::new()),
        }
    }
}

/// A transaction from which the server can go on; a server without a cluster has none.
fn last_transaction(value: &Value) -> Option<String> {
    value.as_str().filter(|id| *id != NO_TRANSACTION && id.len() == NO_TRANSACTION.len()).map(str::to_owned)
}

/// `<monitor-requests>` of all that is used and there.
fn tables(support: &Support) -> Value {
    let columns = |columns: &std::collections::BTreeMap<Arc<str>, crate::ColumnType>| columns.keys().map(|name| json!(&**name)).collect::<Vec<_>>();
    let request = |(name, kinds)| (str::to_owned(name), json!([{"columns": columns(kinds)}]));
    Value::Object(support.tables.iter().map(|(name, kinds)| request((&**name, kinds))).collect())
}

#[cfg(test)]
mod tests;
