//! What a kind is called, in objects and in paths, and whether its objects live in namespaces.

/// The names of a kind in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// API group; empty for the core group.
    pub group: String,
    pub version: String,
    /// The kind's name in objects.
    pub kind: String,
    /// The name of lists of objects: as a rule the kind's name and `List`.
    pub list_kind: String,
    /// The resource's name in paths.
    pub plural: String,
    /// What users may type for one object.
    pub singular: String,
    /// What users may type for short.
    pub short_names: Vec<String>,
    /// Groups of resources (`all`) this one is part of.
    pub categories: Vec<String>,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
}

impl Names {
    /// `GROUP/VERSION`, or the version alone in the core group: what objects say as `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether this is the resource of that group, in whatever version.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }
}
