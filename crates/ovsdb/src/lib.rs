//! Client of the Open vSwitch Database protocol (RFC 7047): a replica of tables that survives lost connections, and transactions.
//!
//! Flow: bytes → [`wire`] (messages) → [`session`] (one connection's protocol, without I/O) → [`Replica`] and answers; [`Client`] does the
//! I/O and connects again. Knows nothing of OVN and Kubernetes, but for [`names`] on which its users agree.
//! Guarantees: a reader sees whole states of the database only, before and after a lost connection; no transaction is sent twice; columns
//! that the server's schema lacks are neither asked for nor written; a message has at most 64 MiB.
//! Does not do: servers of a cluster are tried one after another, not in parallel; tables are replicated whole, without conditions and
//! without a bound on their size, so the server is trusted with the process's memory.

mod client;
pub mod names;
mod operation;
mod replica;
mod schema;
pub mod session;
mod stream;
mod tls;
mod value;
pub mod wire;

pub use client::{Client, Config, State};
pub use operation::{Condition, Function, Mutation, Mutator, Operation, Outcome, Refused, Transaction, Until};
pub use replica::{Inconsistent, Replica, Row, Size, Table};
pub use rustls::ClientConfig;
pub use schema::{AtomType, ColumnType, ColumnUse, Schema, SchemaError, Support, TableUse};
pub use session::{Lock, Problem};
pub use stream::{Remote, RemoteError, remotes};
pub use tls::{TlsError, TlsFiles, client_config};
pub use uuid::Uuid;
pub use value::{Atom, Datum, Real, ValueError};

/// Why a transaction brought no outcome.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection whose schema has been checked. Wait for [`Client::ready`].
    #[error("cannot send the transaction: there is no connection to {database} ({reason})")]
    NotConnected {
        /// The database.
        database: String,
        /// Why the last attempt to connect failed.
        reason: String,
    },
    /// The connection ended before the answer. Whether the transaction took effect shows in the replica after the next connection.
    #[error("the connection to {database} ended before it answered the transaction: look at the rows again before another attempt")]
    Lost {
        /// The database.
        database: String,
    },
    /// The server is connected and does not answer. The transaction may still take effect.
    #[error("{database} did not answer the transaction within {seconds} s: look at the rows again before another attempt")]
    Late {
        /// The database.
        database: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The server refused it; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// No connection came about in time.
    #[error("cannot connect to {database} within {seconds} s: {reason}")]
    Timeout {
        /// The database.
        database: String,
        /// How long it was waited for.
        seconds: u64,
        /// Why the last attempt failed.
        reason: String,
    },
}
