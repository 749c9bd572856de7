//! Plan for the CSI volumes of one node: pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use cluster::Key;

use crate::storage::{csi::AttachmentRow, rows::CsiSource};

/// How long a volume of an unhealthy node may stay mounted (upstream: `maxWaitForUnmountDuration`).
pub(super) const PATIENCE: Duration = Duration::from_secs(6 * 60);

/// The name of a volume in a node's status.
pub(super) fn unique_name(csi: &CsiSource) -> String {
    kube_rules::csi::unique_name(&csi.driver, &csi.handle)
}

/// The name of the VolumeAttachment of a volume and a node.
pub(super) fn attachment_name(csi: &CsiSource, node: &str) -> String {
    kube_rules::csi::attachment_name(&csi.driver, &csi.handle, node)
}

/// Row of a node, as far as volumes go.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct NodeRow {
    /// Its volumes are attached from here and not by its agent.
    pub managed: bool,
    pub ready: bool,
    pub out_of_service: bool,
    /// Volumes that its agent has mounted, or is about to.
    pub in_use: BTreeSet<String>,
    /// Volumes that its status says are attached.
    pub reported: Vec<String>,
}

/// A volume that pods of the node need.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub volume: String,
    pub csi: CsiSource,
    /// It must not be on two nodes at once.
    pub exclusive: bool,
    pub pods: Vec<Key>,
}

/// A volume's place, by its attachment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attached {
    /// The attachment's own name.
    pub name: String,
    pub csi: CsiSource,
    pub volume: String,
    pub row: Arc<AttachmentRow>,
}

/// What a pass over one node is made from.
pub(super) struct Input<'a> {
    /// The node's name; its row, if it exists.
    pub name: &'a str,
    pub node: Option<&'a NodeRow>,
    pub wanted: &'a [Wanted],
    /// All attachments of the cluster.
    pub attachments: &'a [Attached],
    /// Pods on other nodes, by the volumes that they use.
    pub elsewhere: &'a BTreeMap<String, Vec<Key>>,
    /// For how long each volume of the node has not been wanted.
    pub idle: &'a BTreeMap<String, Duration>,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Say in the node's status which volumes are attached.
    Report {
        volumes: Vec<String>,
    },
    Attach {
        attachment: String,
        volume: String,
        driver: String,
    },
    /// `checked`: only if the node's agent, asked anew, does not use it.
    Detach {
        attachment: String,
        unique: String,
        checked: bool,
    },
    /// The volume is on another node; the pods are told.
    Refuse {
        pod: Key,
        message: String,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { volumes } => write!(f, "report [{}]", volumes.join(" ")),
            Self::Attach { volume, driver, .. } => write!(f, "attach {volume} of {driver}"),
            Self::Detach { unique, checked: true, .. } => write!(f, "detach {unique}"),
            Self::Detach { unique, .. } => write!(f, "detach {unique} by force"),
            Self::Refuse { pod, message } => write!(f, "tell {pod}: {message}"),
        }
    }
}

/// Everything to do now, in this order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Plan {
    pub steps: Vec<Step>,
    /// When a volume is detached by force, if nothing changes before.
    pub recheck: Option<Duration>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        f.write_str(&if steps.is_empty() { "nothing".to_owned() } else { steps.join("; ") })
    }
}

/// Plan for a node. Volumes are detached before others are attached; the status says so before a volume goes.
pub(super) fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let own: Vec<&Attached> = input.attachments.iter().filter(|one| one.row.node == input.name).collect();
    let mut reported = BTreeSet::new();
    let mut detached = Vec::new();
    for attached in &own {
        let unique = unique_name(&attached.csi);
        if attached.row.deleting {
            continue;
        }
        if input.wanted.iter().any(|one| unique_name(&one.csi) == unique) {
            reported.extend(attached.row.attached.then_some(unique));
            continue;
        }
        match release(input, &unique) {
            Release::Now { checked } => detached.push(Step::Detach { attachment: attached.name.clone(), unique, checked }),
            Release::Within(left) => {
                plan.recheck = [plan.recheck, left].into_iter().flatten().min();
                reported.extend(attached.row.attached.then_some(unique));
            }
        }
    }
    if let Some(node) = input.node {
        // What others attached is theirs.
        let foreign = node.reported.iter().filter(|name| !name.starts_with(kube_rules::csi::PREFIX)).cloned();
        let volumes: Vec<String> = foreign.chain(reported).collect();
        if volumes != node.reported {
            plan.steps.push(Step::Report { volumes });
        }
    }
    plan.steps.extend(detached);
    if input.node.is_some_and(|node| node.managed) {
        let missing = input.wanted.iter().filter(|one| !own.iter().any(|attached| attached.csi == one.csi));
        plan.steps.extend(missing.flat_map(|one| attach(input, one)));
    }
    plan
}

/// Whether a volume that nobody wants any more may go.
enum Release {
    Now {
        checked: bool,
    },
    /// It is still mounted; after this time it goes by force.
    Within(Option<Duration>),
}

fn release(input: &Input<'_>, unique: &str) -> Release {
    let idle = input.idle.get(unique).copied().unwrap_or_default();
    let left = PATIENCE.saturating_sub(idle);
    // A node that does not exist cannot say that it unmounted anything.
    let (ready, out_of_service, mounted) = match input.node {
        Some(node) => (node.ready, node.out_of_service, node.in_use.contains(unique)),
        None => (false, false, true),
    };
    let forced = !ready && left.is_zero();
    if mounted && !forced && !out_of_service {
        return Release::Within((!ready).then_some(left));
    }
    Release::Now { checked: !left.is_zero() && !out_of_service && input.node.is_some() }
}

fn attach(input: &Input<'_>, wanted: &Wanted) -> Vec<Step> {
    let taken = wanted.exclusive && input.attachments.iter().any(|one| one.csi == wanted.csi && one.row.node != input.name);
    if taken {
        let holders = input.elsewhere.get(&wanted.volume).map(Vec::as_slice).unwrap_or_default();
        let told = |pod: &Key| Step::Refuse { pod: pod.clone(), message: multi_attach(&wanted.volume, &pod.ns, holders) };
        return wanted.pods.iter().map(told).collect();
    }
    let attachment = attachment_name(&wanted.csi, input.name);
    vec![Step::Attach { attachment, volume: wanted.volume.clone(), driver: wanted.csi.driver.clone() }]
}

/// Why a volume cannot be attached to a second node; users see only names of their own namespace.
fn multi_attach(volume: &str, ns: &str, holders: &[Key]) -> String {
    let local: Vec<&str> = holders.iter().filter(|pod| pod.ns == ns).map(|pod| pod.name.as_str()).collect();
    let others = holders.len() - local.len();
    let reason = match (local.is_empty(), others) {
        (true, 0) => "Volume is already exclusively attached to one node and can't be attached to another".to_owned(),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (false, _) => format!("Volume is already used by pod(s) {} and {others} pod(s) in different namespaces", local.join(", ")),
    };
    format!("Multi-Attach error for volume {volume:?} {reason}")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
