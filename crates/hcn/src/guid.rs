//! Object identifiers of HNS, and the identifiers of the objects that a cluster owns.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

/// A GUID. HNS prints both cases in different places, so it is compared by value; it prints in lower case without braces.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub Uuid);

impl Guid {
    /// The all-zero GUID: "no object", and on a create "choose an id".
    pub const NIL: Self = Self(Uuid::nil());

    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Whether the GUID follows from a name, as those of [`owned_id`] do (UUID version 5).
    pub fn is_derived(&self) -> bool {
        self.0.get_version_num() == 5
    }

    /// Bytes of its text.
    pub const LENGTH: usize = 36;

    /// Its text, written into `buffer`: quicker than formatting it.
    pub fn encode<'a>(&self, buffer: &'a mut [u8; Self::LENGTH]) -> &'a str {
        self.0.as_hyphenated().encode_lower(buffer)
    }

    /// Whether this is the all-zero GUID.
    pub fn is_nil(&self) -> bool {
        self.0.is_nil()
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.encode(&mut [0; Self::LENGTH]))
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that is not a GUID.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a GUID: write it as xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, with or without braces")]
pub struct GuidError(String);

impl FromStr for Guid {
    type Err = GuidError;

    fn from_str(text: &str) -> Result<Self, GuidError> {
        let bare = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(text);
        // Uuid also reads forms that HNS refuses (no hyphens, urn:).
        if bare.len() != 36 {
            return Err(GuidError(text.to_owned()));
        }
        Uuid::parse_str(bare).map(Self).map_err(|_| GuidError(text.to_owned()))
    }
}

impl Serialize for Guid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Guid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(Self::NIL);
        }
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The GUID of that number, the first digit printed being the highest.
pub fn from_u128(number: u128) -> Guid {
    Guid(Uuid::from_u128(number))
}

/// The namespace of identifiers below: a UUIDv5 of "mullion.hcn" in the DNS namespace, so that other users of UUIDv5 never collide with ours.
fn owner_namespace(cluster_uid: &str) -> Uuid {
    Uuid::new_v5(&Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"mullion.hcn"), cluster_uid.as_bytes())
}

/// The GUID of the object that cluster `cluster_uid` owns under `kind` ("network", "endpoint", "loadbalancer", …) and `key`.
///
/// It is a UUIDv5, so the same three texts always give the same GUID: ownership, idempotence and adoption after a restart follow from it.
pub fn owned_id(cluster_uid: &str, kind: &str, key: &str) -> Guid {
    let kind = Uuid::new_v5(&owner_namespace(cluster_uid), kind.as_bytes());
    Guid(Uuid::new_v5(&kind, key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_read_in_either_case_and_with_braces() {
        let lower: Guid = "c08cb7b8-9b3c-408e-8e30-5e16a3aeb444".parse().unwrap();
        assert_eq!(lower, "{C08CB7B8-9B3C-408E-8E30-5E16A3AEB444}".parse().unwrap());
        assert_eq!(lower.to_string(), "c08cb7b8-9b3c-408e-8e30-5e16a3aeb444");
        assert!("c08cb7b89b3c408e8e305e16a3aeb444".parse::<Guid>().is_err());
        assert!("nonsense".parse::<Guid>().is_err());
    }

    #[test]
    fn owned_ids_differ_by_each_part_and_never_change() {
        let id = owned_id("uid", "endpoint", "a");
        assert_eq!(id, owned_id("uid", "endpoint", "a"));
        assert_eq!(id.0.get_version_num(), 5);
        for other in
            [owned_id("uid2", "endpoint", "a"), owned_id("uid", "network", "a"), owned_id("uid", "endpoint", "b"), owned_id("ui", "dendpoint", "a")]
        {
            assert_ne!(id, other);
        }
    }
}
