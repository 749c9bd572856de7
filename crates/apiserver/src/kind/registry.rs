//! The kinds that a server serves: a set that readers take as it is, and that can be replaced while the server runs.

use super::{Kind, KnownDefinitions};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Upstream's order of its groups (kube-apiserver's `apiVersionPriorities`); all others follow by name.
const ORDER: [&str; 22] = [
    "",
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "networking.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "node.k8s.io",
    "discovery.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "resource.k8s.io",
    "storagemigration.k8s.io",
];

/// The kinds of a server.
pub struct Kinds {
    set: RwLock<Arc<Set>>,
    /// Held by who makes the kinds of custom resources from their definitions.
    pub custom: tokio::sync::Mutex<KnownDefinitions>,
}

/// The kinds at one time.
#[derive(Debug, Default)]
pub struct Set {
    /// By group and plural, the preferred version first.
    kinds: BTreeMap<String, BTreeMap<String, Vec<Arc<Kind>>>>,
    /// The groups with their versions, in the order of discovery.
    groups: Vec<Group>,
    /// Rises with each replacement of a server's set.
    generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// "" for the core group.
    pub name: String,
    /// The preferred one first.
    pub versions: Vec<String>,
}

impl Kinds {
    pub fn new(kinds: impl IntoIterator<Item = Arc<Kind>>) -> Self {
        Self { set: RwLock::new(Arc::new(Set::new(kinds, 0))), custom: tokio::sync::Mutex::default() }
    }

    /// What is served now.
    pub fn now(&self) -> Arc<Set> {
        Arc::clone(&self.set.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The kind of a resource path, if it is served.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Kind>> {
        self.now().find(group, version, plural).cloned()
    }

    /// Serves from now on what `change` makes of the present set. Requests that have begun end with the kind with which they began.
    pub fn replace(&self, change: impl FnOnce(&Set) -> Vec<Arc<Kind>>) {
        let mut current = self.set.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(Set::new(change(&current), current.generation + 1));
    }

    /// Serves this kind too, in place of one of the same group, version and plural.
    pub fn add(&self, kind: Kind) {
        self.replace(|set| set.all().filter(|other| !same(other, &kind)).cloned().chain([Arc::new(kind.clone())]).collect());
    }

    /// Serves this kind no longer.
    pub fn remove(&self, group: &str, version: &str, plural: &str) {
        self.replace(|set| set.all().filter(|kind| !(kind.is(group, plural) && kind.version == version)).cloned().collect());
    }
}

fn same(one: &Kind, other: &Kind) -> bool {
    one.is(&other.group, &other.plural) && one.version == other.version
}

impl Set {
    pub fn new(kinds: impl IntoIterator<Item = Arc<Kind>>, generation: u64) -> Self {
        let mut set = Self { generation, ..Self::default() };
        let mut groups: BTreeMap<(usize, String), Vec<String>> = BTreeMap::new();
        for kind in kinds {
            let rank = ORDER.iter().position(|group| *group == kind.group).unwrap_or(ORDER.len());
            let versions = groups.entry((rank, kind.group.clone())).or_default();
            if !versions.contains(&kind.version) {
                versions.push(kind.version.clone());
            }
            set.kinds.entry(kind.group.clone()).or_default().entry(kind.plural.clone()).or_default().push(kind);
        }
        set.kinds.values_mut().flat_map(BTreeMap::values_mut).for_each(|versions| versions.sort_by_key(|kind| rank(&kind.version)));
        set.groups = groups
            .into_iter()
            .map(|((_, name), mut versions)| {
                versions.sort_by_key(|version| rank(version));
                Group { name, versions }
            })
            .collect();
        set
    }

    /// The kind of a resource path, if it is served.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.kinds.get(group)?.get(plural)?.iter().find(|kind| kind.version == version)
    }

    /// The kind in the version that is preferred.
    pub fn preferred(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.versions(group, plural).first()
    }

    /// The kind in all its versions.
    pub fn versions(&self, group: &str, plural: &str) -> &[Arc<Kind>] {
        self.kinds.get(group).and_then(|plurals| plurals.get(plural)).map_or(&[], Vec::as_slice)
    }

    /// Every kind, by group and plural.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values().flat_map(BTreeMap::values).flatten()
    }

    /// Every resource of one group and version in discovery's order (by plural name).
    pub fn of_group_version(&self, group: &str, version: &str) -> Vec<&Arc<Kind>> {
        self.all().filter(|kind| kind.group == group && kind.version == version).collect()
    }

    /// The served groups with their versions, in upstream's order of priority; the core group comes first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// How often the set has been replaced.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

/// Where a version stands among others: v2, v1, v1beta2, v1alpha1, then all that are written otherwise by name
/// (apimachinery/pkg/version `CompareKubeAwareVersionStrings`).
fn rank(version: &str) -> (Reverse<(u8, u64, u64)>, String) {
    let parsed = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let major: u64 = rest[..digits].parse().ok()?;
        let (stage, minor) = match &rest[digits..] {
            "" => (3, ""),
            rest if rest.starts_with("beta") => (2, &rest["beta".len()..]),
            rest if rest.starts_with("alpha") => (1, &rest["alpha".len()..]),
            _ => return None,
        };
        let minor = if minor.is_empty() && stage == 3 { 0 } else { minor.parse().ok()? };
        Some((stage, major, minor))
    };
    (Reverse(parsed().unwrap_or_default()), version.to_string())
}
