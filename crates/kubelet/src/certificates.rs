//! Certificates that the node asks the cluster for: its client certificate (TLS bootstrap and rotation) and its serving certificate.
//!
//! Flow: `plan` (pure) says when which certificate is asked for; `request` carries a signing request to the API server and waits for the
//! certificate; [`bootstrap`] gets a node's first client certificate; [`manager`] keeps a certificate good;
//! [`identity`] is the client with it; [`serving`] gives the server the newest one, and reads files that change.
//! Inputs: kubeconfigs, the directory of certificates, the Node's addresses. Outputs: signing requests, pairs in that directory,
//! the kubeconfig of a node that was bootstrapped.
//! Mirrors `pkg/kubelet/certificate` and client-go's `util/certificate`.
//! Guarantees: a certificate of another node, or for another key, is never used; keys are in no log; a certificate is used until its end
//! when no other comes.

pub mod bootstrap;
pub mod identity;
pub mod manager;
pub(crate) mod metrics;
pub(crate) mod plan;
pub(crate) mod request;
pub mod serving;

use std::sync::Arc;

use pki::{Pair, Subject};
use tokio::sync::watch;

pub use metrics::Counts;

/// A certificate in use, for others: none before there is the first one.
pub type Current = watch::Receiver<Option<Arc<Pair>>>;

/// What a node's client certificate says.
pub fn client_subject(node_name: &str) -> Subject {
    Subject { common_name: format!("system:node:{node_name}"), organisations: vec!["system:nodes".to_owned()], ..Subject::default() }
}

/// Checks that a certificate is no other node's.
///
/// # Errors
/// [`OtherNode`].
pub fn check_node(pair: &Pair, node_name: &str) -> Result<(), OtherNode> {
    match pair.leaf().common_name.strip_prefix("system:node:") {
        Some(other) if other != node_name => Err(OtherNode { other: other.to_owned(), node: node_name.to_owned() }),
        _ => Ok(()),
    }
}

/// The credentials are those of another node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the client certificate is that of node {other:?}, but this node is {node:?}: give the node's own kubeconfig, or --hostname-override={other}; \
     to ask for a new certificate, remove the kubeconfig and kubelet-client-current.pem in --cert-dir, and give --bootstrap-kubeconfig"
)]
pub struct OtherNode {
    other: String,
    node: String,
}
