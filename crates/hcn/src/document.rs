//! The V2 documents of the Host Compute Network schema.
//!
//! Reading: member names in any case, numbers or strings for enums and flags, `null` as absent, unknown members kept.
//! Writing: members at their default are omitted, as HNS omits them; `SchemaVersion` is always written.
//! Sources: the hcn schema page of Microsoft's Virtualization-Documentation and hnslib's `hcn` package.

mod endpoint;
mod guest;
mod load_balancer;
mod namespace;
mod network;
mod policy;
mod request;
mod service;
mod settings;
pub mod v1;

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

pub use endpoint::*;
pub use guest::*;
pub use load_balancer::*;
pub use namespace::*;
pub use network::*;
pub use policy::*;
pub use request::*;
pub use service::*;
pub use settings::*;

/// The version of the schema that a document is written in. HNS gates features by its own version, not by this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SchemaVersion {
    /// 1 for the old shape, 2 for this one.
    #[serde(rename = "Major")]
    pub major: u32,
    #[serde(rename = "Minor")]
    pub minor: u32,
}

document! {
    /// The members of a schema version, read in any case.
    pub struct SchemaVersionMembers {
        major: u32 = "Major";
        minor: u32 = "Minor";
    }
}

impl<'de> Deserialize<'de> for SchemaVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SchemaVersionMembers { major, minor, .. } = SchemaVersionMembers::deserialize(deserializer)?;
        Ok(Self { major, minor })
    }
}

impl Default for SchemaVersion {
    fn default() -> Self {
        Self { major: 2, minor: 0 }
    }
}

/// A member that clients write as a string or as a number; kept as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub String);

impl Token {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Token;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a whole number")
            }
            fn visit_str<E>(self, text: &str) -> Result<Token, E> {
                Ok(Token(text.to_owned()))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Token, E> {
                Ok(Token(number.to_string()))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Token, E> {
                Ok(Token(number.to_string()))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// An IP protocol. Travels as its number; names are read too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u32);

impl Protocol {
    pub const TCP: Self = Self(6);
    pub const UDP: Self = Self(17);
    pub const SCTP: Self = Self(132);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::TCP => f.write_str("tcp"),
            Self::UDP => f.write_str("udp"),
            Self::SCTP => f.write_str("sctp"),
            Self(number) => write!(f, "{number}"),
        }
    }
}

impl Serialize for Protocol {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}

impl<'de> Deserialize<'de> for Protocol {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let token = Token::deserialize(deserializer)?;
        match token.as_str().to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::TCP),
            "udp" => Ok(Self::UDP),
            "sctp" => Ok(Self::SCTP),
            number => number.parse().map(Self).map_err(|_| serde::de::Error::custom(format!("{number:?} is not an IP protocol"))),
        }
    }
}

document! {
    /// The last error of an object.
    pub struct HealthData {
        last_error_code: u32 = "LastErrorCode";
        /// When, in units of 100 ns since 1601 (FILETIME).
        last_update_time: u64 = "LastUpdateTime";
    }
}

document! {
    /// What HNS last thought of an object.
    pub struct Health {
        data: HealthData = "Data";
        /// What lies under the object: `Resources`, `SharedContainers`, `LayeredOn`, `SwitchGuid`, `UtilityVM`, `VirtualMachine`.
        details: Option<Box<Value>> = "Extra";
    }
}

document! {
    /// Name resolution of a network or an endpoint.
    pub struct Dns {
        /// The connection's own suffix.
        domain: String = "Domain" | "Suffix";
        /// Suffixes to try, in order.
        search: Vec<String> = "Search";
        server_list: Vec<String> = "ServerList";
        options: Vec<String> = "Options";
    }
}

document! {
    /// A route inside a subnet or an endpoint's compartment.
    pub struct Route {
        next_hop: String = "NextHop";
        /// What goes there; `0.0.0.0/0` or `::/0` is the default route.
        destination_prefix: String = "DestinationPrefix";
        /// Lower wins.
        metric: u16 = "Metric";
    }
}

impl Route {
    /// The IPv4 default route by `next_hop`.
    pub fn default_via(next_hop: impl fmt::Display) -> Self {
        Self { next_hop: next_hop.to_string(), destination_prefix: "0.0.0.0/0".into(), ..Self::default() }
    }
}

/// The V2 document's text.
///
/// # Panics
/// Never: documents hold only strings, numbers, lists and maps with string keys.
pub fn to_text<T: Serialize>(document: &T) -> String {
    serde_json::to_string(document).expect("a document always serializes")
}
