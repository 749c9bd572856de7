//! A request as admission sees it (upstream: `admission.Attributes`).

use serde_json::Value;
use std::collections::BTreeMap;

/// What the request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As `AdmissionReview` and rules write it.
    pub fn text(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    pub operation: Operation,
    /// Group of the resource; empty for core.
    pub group: &'a str,
    pub version: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Empty for the resource itself.
    pub subresource: &'a str,
    /// Kind of the object, such as `Scale` for the subresource `scale`, with its group and version.
    pub kind: &'a str,
    pub kind_group: &'a str,
    pub kind_version: &'a str,
    /// Empty for cluster-wide objects; of a Namespace its own name.
    pub namespace: &'a str,
    pub name: &'a str,
    /// What is to be stored; none for deletions.
    pub object: Option<&'a Value>,
    /// What is stored; none for creations.
    pub old_object: Option<&'a Value>,
    /// `CreateOptions`, `UpdateOptions`, `DeleteOptions`; null when there are none.
    pub options: &'a Value,
    pub user: &'a UserInfo,
    pub dry_run: bool,
}

impl<'a> Attributes<'a> {
    /// Whether the request is about this resource or a subresource of it.
    pub fn is(&self, group: &str, resource: &str) -> bool {
        self.group == group && self.resource == resource
    }

    /// The new object; null when there is none.
    pub fn object(&self) -> &'a Value {
        self.object.unwrap_or(&Value::Null)
    }

    /// The stored object; null when there is none.
    pub fn old_object(&self) -> &'a Value {
        self.old_object.unwrap_or(&Value::Null)
    }
}
