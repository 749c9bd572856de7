//! What lies below an object in paths.

use super::{PrepareUpdate, ValidatePart};

#[derive(Clone)]
pub struct Subresource {
    pub name: &'static str,
    pub body: BodyKind,
    /// Sorted.
    pub verbs: &'static [&'static str],
    pub route: Route,
}

/// The kind of a subresource's body, as discovery states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl BodyKind {
    /// The name of the type in `schema/types.txt`.
    pub fn schema_type(&self) -> String {
        let group = self.group.split('.').next().filter(|group| !group.is_empty()).unwrap_or("core");
        format!("io.k8s.api.{group}.{}.{}", self.version, self.kind)
    }

    pub fn new(group: &str, version: &str, kind: &str) -> Self {
        Self { group: group.to_string(), version: version.to_string(), kind: kind.to_string() }
    }
}

/// Who answers requests for a subresource.
#[derive(Clone)]
pub enum Route {
    /// The registry: the status.
    Status,
    /// The registry: another part of the object.
    Part(PartHooks),
    /// Replicas, as a Scale.
    Scale(ScalePaths),
    /// A module of `subresources`.
    Action,
    /// A connection to a node or pod.
    Connect,
}

/// What is special about a write of a part.
#[derive(Clone)]
pub struct PartHooks {
    /// Puts back what the part may not change (old, new).
    pub prepare: PrepareUpdate,
    /// In place of the main resource's checks (new, old).
    pub validate: Option<ValidatePart>,
}

/// Where an object has what a Scale shows: members that lead there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    pub spec_replicas: Vec<String>,
    pub status_replicas: Vec<String>,
    /// A label selector (an object), a map of labels, or a selector as text. Empty: none is shown.
    pub selector: Vec<String>,
}

impl Default for ScalePaths {
    fn default() -> Self {
        let path = |members: [&str; 2]| members.map(str::to_string).to_vec();
        Self { spec_replicas: path(["spec", "replicas"]), status_replicas: path(["status", "replicas"]), selector: path(["spec", "selector"]) }
    }
}
