//! `ipMasq`: pods leave their network with the node's address.

use ipnet::IpNet;

use crate::spec::{CniError, code};

/// Not available yet.
pub(super) fn ensure(network: &str, _subnet: IpNet) -> Result<(), CniError> {
    Err(CniError::new(code::UNSUPPORTED_FIELD, format!("network {network:?}: ipMasq is not supported")))
}
