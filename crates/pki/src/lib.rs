//! The cluster's certificate authority, certificates, kubeconfigs and ServiceAccount signing key (ECDSA P-256 throughout).
//!
//! Guarantees: every key that is made here is ECDSA P-256 (ring cannot generate RSA keys); files that hold keys are written with mode 0600 and replaced
//! atomically; nothing here reads the environment or the network.

mod ca;
mod der;
mod files;
mod key;
mod kubeconfig;
pub mod pair;
pub mod pair_store;
mod request;
pub mod service_account;
pub mod unverified;
mod yaml;

use ca::BACKDATE;
pub use ca::{Ca, CertKey, CertRequest, certificate_der, new_csr, private_key_der};
pub use files::{write_private, write_public};
pub use key::{Key, Subject};
pub use kubeconfig::{Credentials, KubeConfig, kubeconfig_of_files};
pub use pair::{Leaf, Pair};
pub use pair_store::PairStore;

pub use request::{SigningRequest, Usages, not_after};

/// What can go wrong with keys, certificates and kubeconfigs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate or key could not be made.
    #[error("making a certificate for {subject:?} failed")]
    Generate {
        /// The common name asked for.
        subject: String,
        #[source]
        source: rcgen::Error,
    },
    /// A PEM text does not hold what it should.
    #[error("reading {what} as PEM failed: check that the file is whole and holds an ECDSA P-256 key or its certificate")]
    Parse {
        /// What was being read ("CA key", "certificate", …).
        what: &'static str,
        #[source]
        source: rcgen::Error,
    },
    /// A PEM text has no block of the kind asked for.
    #[error("no {what} found in the PEM text")]
    Missing {
        /// What was sought.
        what: &'static str,
    },
    /// More organisations than a subject can hold here.
    #[error("certificate for {subject:?} asks for {count} organisations, but at most two are supported: drop some groups")]
    TooManyOrganisations {
        /// The common name asked for.
        subject: String,
        /// How many were asked for.
        count: usize,
    },
    /// A certificate signing request cannot be read or answered.
    #[error("{reason}")]
    Request { reason: String },
    /// A file could not be read or written.
    #[error("{operation} {path:?} failed")]
    File {
        /// "reading" or "writing".
        operation: &'static str,
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A kubeconfig file does not parse.
    #[error("kubeconfig {path:?} is not valid")]
    KubeConfig {
        path: std::path::PathBuf,
        #[source]
        source: serde_yaml_ng::Error,
    },
    /// A kubeconfig without a required member.
    #[error("kubeconfig {path:?} has no {member}: write it anew")]
    KubeConfigMember {
        path: std::path::PathBuf,
        /// The member that is missing.
        member: &'static str,
    },
    /// The signing key is not a P-256 key in PKCS#8.
    #[error("the ServiceAccount key is not an ECDSA P-256 key in PKCS#8 PEM: {reason}")]
    SigningKey {
        /// The error of ring.
        reason: String,
    },
}
