//! The node's and controllers' view of the API: informers with compact rows, events, leases.
//!
//! Inputs: a kubeconfig ([`client_from_kubeconfig`]) or any tower service that answers API requests (`kube::Client::new`).
//! Guarantees: one watch per kind and [`ApiServer`] value serves all informers and feeds; an [`Informer`] keeps only the rows its owner
//! asked for, never whole objects; nothing here blocks its caller;
//! every loop backs off with jitter and starts again after a lost connection.
//! Not covered: it decides nothing about the cluster; the crates above it do.

mod client;
mod events;
mod feed;
mod hub;
mod informer;
mod lean;
mod lease;
mod reflect;
mod renewal;
mod requests;
mod retry;
mod server;
pub mod unread;

pub use client::{client_from_kubeconfig, client_with_token, config_from_kubeconfig, install_crypto_provider, with_certificate, with_user_agent};
pub use events::{EventRecorder, EventType};
pub use feed::{Feed, Keeper};
pub use informer::{Change, Informer, Key, Selection};
pub use lease::keep_node_lease;
pub use renewal::{Renewal, renewable};
pub use requests::Requests;
pub use retry::{is_conflict, is_forbidden, is_not_found, update_status_with_retry, update_with_retry};
pub use server::{ApiServer, Watches};

/// The API client of every part of Mullion.
pub type Client = kube::Client;

/// What can go wrong while reaching the API or changing an object in it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig could not be read or parsed. Retrying does not help until the file changes.
    #[error("reading kubeconfig {path:?} failed: check that the file exists and holds clusters, users and a current-context")]
    Kubeconfig {
        path: std::path::PathBuf,
        #[source]
        source: Box<kube::config::KubeconfigError>,
    },
    /// The kubeconfig names certificates or keys that cannot be used.
    #[error("making an API client from {path:?} failed: check the certificates and keys it names")]
    Client {
        path: std::path::PathBuf,
        /// The error of the client library.
        #[source]
        source: Box<kube::Error>,
    },
    /// What was given of an API server cannot be used.
    #[error("cannot make a client of API server {server}: check its URL and the certificate of its authority")]
    Server {
        /// The URL that was given.
        server: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A request was refused or did not reach the server.
    #[error("{operation} {object} failed")]
    Request {
        /// "reading", "updating", …
        operation: &'static str,
        /// Kind and name of the object.
        object: String,
        /// The answer of the server or the error of the transport.
        #[source]
        source: Box<kube::Error>,
    },
    /// Others kept changing the object; each of our attempts found a newer version.
    #[error("updating {object} found a newer version {attempts} times in a row: try again later")]
    Conflict {
        /// Kind and name of the object.
        object: String,
        /// How often it was tried.
        attempts: u32,
    },
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
