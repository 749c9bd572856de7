//! Authentication: client certificates, ServiceAccount tokens, bootstrap tokens, anonymous; and impersonation
//! (apiserver/pkg/authentication).

pub mod bootstrap_token;
pub mod token;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Group of all authenticated users.
pub const AUTHENTICATED: &str = "system:authenticated";
/// Group of all others.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group that may do anything.
pub const MASTERS: &str = "system:masters";
/// The group of node identities.
pub const NODES: &str = "system:nodes";
/// The prefix of a node's user name.
pub const NODE_USER: &str = "system:node:";
/// The prefix of a ServiceAccount's user name.
pub const SERVICE_ACCOUNT_USER: &str = "system:serviceaccount:";

/// The member of [`UserInfo::extra`] that names what proved the user: a certificate or a token.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";

/// Upstream's `user.Info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    /// User id ("" when the proof has none).
    pub uid: String,
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: Map<String, Value>,
}

impl UserInfo {
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let mut groups: Vec<String> = groups.iter().map(ToString::to_string).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED || group == UNAUTHENTICATED) {
            groups.push(AUTHENTICATED.into());
        }
        Self { name: name.into(), uid: String::new(), groups, extra: Map::new() }
    }

    pub fn anonymous() -> Self {
        Self::new("system:anonymous", &[UNAUTHENTICATED])
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }

    /// The node's name, when this is a node's identity.
    pub fn node_name(&self) -> Option<&str> {
        self.name.strip_prefix(NODE_USER).filter(|name| !name.is_empty() && self.is_in(NODES))
    }

    /// `authentication.k8s.io/v1` UserInfo.
    pub fn to_value(&self) -> Value {
        let mut user = json!({"username": self.name, "groups": self.groups});
        if !self.uid.is_empty() {
            user["uid"] = self.uid.as_str().into();
        }
        if !self.extra.is_empty() {
            user["extra"] = Value::Object(self.extra.clone());
        }
        user
    }
}

/// The identity of a verified client certificate: common name and organisations; its digest is the credential
/// (apiserver/pkg/authentication/request/x509 `CommonNameUserConversion`).
pub fn from_certificate(der: &[u8]) -> Option<UserInfo> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let name = certificate.subject().iter_common_name().next()?.as_str().ok()?;
    let groups: Vec<&str> = certificate.subject().iter_organization().filter_map(|group| group.as_str().ok()).collect();
    let digest: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    let extra = Map::from_iter([(CREDENTIAL_ID.to_owned(), json!([format!("X509SHA256={digest}")]))]);
    Some(UserInfo { extra, ..UserInfo::new(name, &groups) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_name_user_and_groups() {
        let ca = pki::Ca::generate("ca", std::time::Duration::from_secs(86_400)).unwrap();
        let request = pki::CertRequest { cn: "system:node:n1".into(), orgs: vec![NODES.into()], client: true, days: 1, ..Default::default() };
        let issued = ca.issue(&request).unwrap();
        let der = pki::certificate_der(&issued.cert_pem).unwrap();
        let user = from_certificate(&der[0]).unwrap();
        assert_eq!(user.node_name(), Some("n1"));
        assert_eq!(user.groups, [NODES, AUTHENTICATED]);
        let digest = ring::digest::digest(&ring::digest::SHA256, &der[0]);
        let digest: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(user.extra["authentication.kubernetes.io/credential-id"], json!([format!("X509SHA256={digest}")]));
        assert!(from_certificate(b"x").is_none());
    }

    #[test]
    fn only_members_of_the_group_are_nodes() {
        assert_eq!(UserInfo::new("system:node:n1", &["other"]).node_name(), None);
        assert_eq!(UserInfo::new("bob", &[NODES]).node_name(), None);
    }
}
