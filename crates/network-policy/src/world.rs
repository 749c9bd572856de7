//! What is known of the cluster, and what follows for the endpoints of this node (pure, incremental).
//!
//! A change of a pod touches the groups that it enters or leaves, and its own endpoint where it is local. A change of a policy compiles
//! the local endpoints anew that it selects. A group exists while a profile names it.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::Key;

use crate::policy::{Both, Direction, Namespaces, PodSelector, Policy, PolicyId, Protocol};
use crate::profile::{GroupKey, Profile};
use crate::rows::{Labels, NodeRow, PodRow};
use table::Table;

/// A member of a group: an address, of a group of named ports with a port.
pub type Member = (IpAddr, Option<(Protocol, u16)>);

/// A group and who is in it.
#[derive(Debug, Default)]
pub struct Group {
    /// How many endpoints' profiles name it.
    uses: usize,
    /// Each with how many rows bring it: an address may go from one pod to the next.
    members: BTreeMap<Member, u32>,
}

/// A pod of this node as its endpoint needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoint {
    pub ips: Box<[IpAddr]>,
    /// The rules; none where every packet passes.
    pub profiles: Both<Option<Arc<Profile>>>,
}

/// What a backend has not programmed yet.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Local pods whose addresses or rules differ.
    pub endpoints: BTreeSet<Key>,
    /// Groups that came or went, or whose members did: each member with whether it was in before.
    pub groups: BTreeMap<Arc<GroupKey>, BTreeMap<Member, bool>>,
    /// The host's own addresses.
    pub host: bool,
}

impl Changes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The cluster as policies see it.
#[derive(Debug, Default)]
pub struct World {
    /// The node whose endpoints count; none counts every pod.
    node: Option<Box<str>>,
    pods: Table<Key, PodRow>,
    namespaces: Table<Key, Labels>,
    nodes: Table<Key, NodeRow>,
    policies: Table<PolicyId, Policy>,
    /// Addresses of local pods that the API does not show yet.
    early: BTreeMap<Key, Box<[IpAddr]>>,
    groups: BTreeMap<Arc<GroupKey>, Group>,
    endpoints: BTreeMap<Key, Endpoint>,
    changes: Changes,
}

/// A kind of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Pods,
    Namespaces,
    Nodes,
    NamespacedPolicies,
    ClusterPolicies,
}

impl World {
    /// An empty world, of the endpoints of `node`; without one, of all pods.
    pub fn new(node: Option<&str>) -> Self {
        Self { node: node.map(Into::into), ..Self::default() }
    }

    /// What changed since this was last asked.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The local pods that have an address.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Key, &Endpoint)> {
        self.endpoints.iter()
    }

    pub fn endpoint(&self, key: &Key) -> Option<&Endpoint> {
        self.endpoints.get(key)
    }

    /// The groups that profiles name.
    pub fn groups(&self) -> impl Iterator<Item = &Arc<GroupKey>> {
        self.groups.keys()
    }

    /// Whether a profile names the group.
    pub fn has_group(&self, group: &GroupKey) -> bool {
        self.groups.contains_key(group)
    }

    /// The members of a group of pods or nodes; nothing of a group that no profile names.
    pub fn members(&self, group: &GroupKey) -> impl Iterator<Item = Member> {
        self.groups.get(group).into_iter().flat_map(|group| group.members.keys().copied())
    }

    /// Whether a group has a member now.
    pub fn has_member(&self, group: &GroupKey, member: Member) -> bool {
        match group {
            GroupKey::Nets(ranges) => ranges.iter().any(|range| range.contains(member.0)),
            _ => self.groups.get(group).is_some_and(|group| group.members.contains_key(&member)),
        }
    }

    /// The addresses of this node, as its Node object has them.
    pub fn host_ips(&self) -> &[IpAddr] {
        let own = self.node.as_deref().and_then(|node| self.nodes.get(&Key::cluster(node)));
        own.map_or(&[], |row| &row.ips)
    }

    /// The addresses of the node that runs a pod.
    pub fn node_ips(&self, pod: &Key) -> &[IpAddr] {
        let node = self.pods.get(pod).and_then(|row| self.nodes.get(&Key::cluster(&*row.node)));
        node.map_or(&[], |row| &row.ips)
    }

    pub fn pod(&self, key: &Key) -> Option<&PodRow> {
        self.pods.get(key)
    }

    pub fn pods(&self) -> impl Iterator<Item = (&Key, &PodRow)> {
        self.pods.iter()
    }

    pub fn policies(&self) -> impl Iterator<Item = (&PolicyId, &Policy)> {
        self.policies.iter()
    }

    pub fn policy(&self, id: &PolicyId) -> Option<&Policy> {
        self.policies.get(id)
    }

    /// How many local pods a policy selects.
    pub fn selected_by(&self, policy: &Policy) -> usize {
        let selected = |key: &&Key| {
            let labels = self.namespaces.get(&Key::cluster(&*key.ns));
            self.pods.get(key).is_some_and(|row| selects(&policy.subject, &key.ns, labels, row))
        };
        self.endpoints.keys().filter(selected).count()
    }

    /// A list of rows of that kind begins.
    pub fn begin(&mut self, kind: Kind) {
        match kind {
            Kind::Pods => self.pods.begin(),
            Kind::Namespaces => self.namespaces.begin(),
            Kind::Nodes => self.nodes.begin(),
            Kind::NamespacedPolicies | Kind::ClusterPolicies => self.policies.begin(),
        }
    }

    /// A list is complete: rows that it did not bring go.
    pub fn end(&mut self, kind: Kind) -> bool {
        match kind {
            Kind::Pods => self.pods.stale(|_| true).into_iter().map(|key| self.set_pod(&key, None)).fold(false, |a, b| a | b),
            Kind::Namespaces => self.namespaces.stale(|_| true).into_iter().map(|key| self.set_namespace(&key.name, None)).fold(false, |a, b| a | b),
            Kind::Nodes => self.nodes.stale(|_| true).into_iter().map(|key| self.set_node(&key.name, None)).fold(false, |a, b| a | b),
            Kind::NamespacedPolicies | Kind::ClusterPolicies => {
                let clusters = kind == Kind::ClusterPolicies;
                let stale = self.policies.stale(|id| matches!(id, PolicyId::Cluster(_)) == clusters);
                stale.into_iter().map(|id| self.set_policy(&id, None)).fold(false, |a, b| a | b)
            }
        }
    }

    /// Takes in a pod as it is now. Returns whether anything differs.
    pub fn set_pod(&mut self, key: &Key, row: Option<PodRow>) -> bool {
        if self.pods.keep(key, row.as_ref()) {
            return false;
        }
        let labels = self.namespaces.get(&Key::cluster(&*key.ns)).cloned();
        // Before the API shows its addresses, a local pod has those that its node gave it.
        if row.as_ref().is_none_or(|row| !row.ips.is_empty()) {
            self.early.remove(key);
        }
        let old = self.pods.set(key.clone(), row);
        let new = self.pods.get(key).cloned();
        self.regroup(key, (old.as_ref(), labels.as_ref()), (new.as_ref(), labels.as_ref()));
        self.compile(key);
        true
    }

    /// Takes in the addresses of a local pod before the API shows them. They make its endpoint closed in time, and no member of a group.
    pub fn set_early(&mut self, key: &Key, ips: &[IpAddr]) {
        if self.pods.get(key).is_none_or(|row| row.ips.is_empty()) {
            self.early.insert(key.clone(), ips.into());
            self.compile(key);
        }
    }

    /// Takes in the labels of a namespace.
    pub fn set_namespace(&mut self, name: &str, row: Option<Labels>) -> bool {
        let key = Key::cluster(name);
        if self.namespaces.keep(&key, row.as_ref()) {
            return false;
        }
        let old = self.namespaces.set(key.clone(), row);
        let new = self.namespaces.get(&key).cloned();
        let pods: Vec<(Key, PodRow)> = self.in_namespace(name).map(|(key, row)| (key.clone(), row.clone())).collect();
        for (key, row) in pods {
            self.regroup(&key, (Some(&row), old.as_ref()), (Some(&row), new.as_ref()));
            self.compile(&key);
        }
        true
    }

    /// Takes in a node.
    pub fn set_node(&mut self, name: &str, row: Option<NodeRow>) -> bool {
        let key = Key::cluster(name);
        if self.nodes.keep(&key, row.as_ref()) {
            return false;
        }
        let old = self.nodes.set(key.clone(), row);
        let new = self.nodes.get(&key).cloned();
        let ips = |row: &Option<NodeRow>| row.as_ref().map(|row| row.ips.clone());
        self.changes.host |= self.node.as_deref() == Some(name) && ips(&old) != ips(&new);
        for (group, state) in &mut self.groups {
            let GroupKey::Nodes(selectors) = &**group else { continue };
            let members = |row: Option<&NodeRow>| -> BTreeSet<Member> {
                let row = row.filter(|row| selectors.iter().any(|selector| row.labels.satisfy(selector)));
                row.into_iter().flat_map(|row| row.ips.iter().map(|ip| (*ip, None))).collect()
            };
            let changed = state.exchange(&members(old.as_ref()), &members(new.as_ref()));
            note(&mut self.changes, group, changed);
        }
        true
    }

    /// Takes in a policy.
    pub fn set_policy(&mut self, id: &PolicyId, row: Option<Policy>) -> bool {
        if self.policies.keep(id, row.as_ref()) {
            return false;
        }
        let old = self.policies.set(id.clone(), row);
        let new = self.policies.get(id).cloned();
        let subjects: Vec<&PodSelector> = [&old, &new].into_iter().flatten().map(|policy| &policy.subject).collect();
        let affected = |key: &&Key| {
            let Some(row) = self.pods.get(key) else { return false };
            let labels = self.namespaces.get(&Key::cluster(&*key.ns));
            subjects.iter().any(|subject| selects(subject, &key.ns, labels, row))
        };
        let affected: Vec<Key> = self.endpoints.keys().filter(affected).cloned().collect();
        affected.iter().for_each(|key| self.compile(key));
        true
    }

    fn in_namespace(&self, name: &str) -> impl Iterator<Item = (&Key, &PodRow)> {
        self.pods.range(Key::new(name, "")..).take_while(move |(key, _)| key.ns == name)
    }

    fn is_local(&self, row: &PodRow) -> bool {
        self.node.as_ref().is_none_or(|node| row.node == *node)
    }

    /// Moves a pod between groups.
    fn regroup(&mut self, key: &Key, old: (Option<&PodRow>, Option<&Labels>), new: (Option<&PodRow>, Option<&Labels>)) {
        for (group, state) in &mut self.groups {
            let members = |(row, labels): (Option<&PodRow>, Option<&Labels>)| row.map(|row| members(group, key, row, labels)).unwrap_or_default();
            let changed = state.exchange(&members(old), &members(new));
            note(&mut self.changes, group, changed);
        }
    }

    /// The endpoint of a local pod, anew.
    fn compile(&mut self, key: &Key) {
        let new = self.pods.get(key).filter(|row| self.is_local(row)).and_then(|row| {
            let ips = if row.ips.is_empty() { self.early.get(key)?.clone() } else { row.ips.clone() };
            let labels = self.namespaces.get(&Key::cluster(&*key.ns));
            let own = self.policies.range(PolicyId::Namespaced(Key::new(&*key.ns, ""))..);
            let own = own.take_while(|(id, _)| matches!(id, PolicyId::Namespaced(policy) if policy.ns == key.ns));
            let clusters = self.policies.range(PolicyId::Cluster("".into())..);
            let selected: Vec<(&PolicyId, &Policy)> =
                own.chain(clusters).filter(|(_, policy)| selects(&policy.subject, &key.ns, labels, row)).collect();
            let profile = |direction| Profile::compile(direction, &selected, &row.ports).map(Arc::new);
            Some(Endpoint { ips, profiles: Both { ingress: profile(Direction::Ingress), egress: profile(Direction::Egress) } })
        });
        let old = self.endpoints.get(key).cloned();
        if old == new {
            return;
        }
        // Groups that both name stay as they are.
        for profile in new.iter().flat_map(Endpoint::all) {
            profile.groups().for_each(|group| self.acquire(group));
        }
        for profile in old.iter().flat_map(Endpoint::all) {
            profile.groups().for_each(|group| self.release(group));
        }
        match new {
            Some(endpoint) => self.endpoints.insert(key.clone(), endpoint),
            None => self.endpoints.remove(key),
        };
        self.changes.endpoints.insert(key.clone());
    }

    fn acquire(&mut self, key: &Arc<GroupKey>) {
        if let Some(group) = self.groups.get_mut(key) {
            group.uses += 1;
            return;
        }
        let mut group = Group { uses: 1, members: BTreeMap::new() };
        match &**key {
            GroupKey::Nets(_) => {}
            GroupKey::Nodes(selectors) => {
                let selected = self.nodes.iter().filter(|(_, row)| selectors.iter().any(|selector| row.labels.satisfy(selector)));
                let members: Vec<Member> = selected.flat_map(|(_, row)| row.ips.iter().map(|ip| (*ip, None))).collect();
                members.into_iter().for_each(|member| *group.members.entry(member).or_default() += 1);
            }
            GroupKey::Pods(_) | GroupKey::Named(..) => {
                for (pod, row) in self.pods.iter() {
                    let labels = self.namespaces.get(&Key::cluster(&*pod.ns));
                    members(key, pod, row, labels).into_iter().for_each(|member| *group.members.entry(member).or_default() += 1);
                }
            }
        }
        self.groups.insert(key.clone(), group);
        self.changes.groups.entry(key.clone()).or_default();
    }

    fn release(&mut self, key: &Arc<GroupKey>) {
        let Some(group) = self.groups.get_mut(key) else { return };
        group.uses -= 1;
        if group.uses == 0 {
            self.groups.remove(key);
            self.changes.groups.entry(key.clone()).or_default();
        }
    }
}

fn note(changes: &mut Changes, group: &Arc<GroupKey>, changed: Vec<(Member, bool)>) {
    if !changed.is_empty() {
        let held = changes.groups.entry(group.clone()).or_default();
        changed.into_iter().for_each(|(member, was_in)| _ = held.entry(member).or_insert(was_in));
    }
}

impl Group {
    /// Takes members out and others in; returns those that differ, with whether they were in.
    fn exchange(&mut self, out: &BTreeSet<Member>, come: &BTreeSet<Member>) -> Vec<(Member, bool)> {
        let mut changed = Vec::new();
        for member in come.difference(out) {
            let count = self.members.entry(*member).or_default();
            *count += 1;
            if *count == 1 {
                changed.push((*member, false));
            }
        }
        for member in out.difference(come) {
            let Some(count) = self.members.get_mut(member) else { continue };
            *count -= 1;
            if *count == 0 {
                self.members.remove(member);
                changed.push((*member, true));
            }
        }
        changed
    }
}

impl Endpoint {
    /// Its profiles.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Profile>> {
        self.profiles.ingress.iter().chain(&self.profiles.egress)
    }
}

/// Whether a selector selects a pod. A namespace that is not known yet has no labels.
pub fn selects(selector: &PodSelector, namespace: &str, labels: Option<&Labels>, row: &PodRow) -> bool {
    let in_namespace = match &selector.namespaces {
        Namespaces::Named(name) => **name == *namespace,
        Namespaces::Labelled(selector) if selector.is_all() => true,
        Namespaces::Labelled(selector) => labels.is_some_and(|labels| labels.satisfy(selector)),
    };
    in_namespace && row.labels.satisfy(&selector.pods)
}

/// What a pod brings into a group.
fn members(group: &GroupKey, key: &Key, row: &PodRow, labels: Option<&Labels>) -> BTreeSet<Member> {
    let selected = |selectors: &[PodSelector]| selectors.iter().any(|selector| selects(selector, &key.ns, labels, row));
    match group {
        GroupKey::Pods(selectors) if selected(selectors) => row.ips.iter().map(|ip| (*ip, None)).collect(),
        GroupKey::Named(selectors, ranges, protocol, name) => {
            let selected = selected(selectors);
            let ips: Vec<IpAddr> = row.ips.iter().copied().filter(|ip| selected || ranges.iter().any(|range| range.contains(*ip))).collect();
            let ports = row.ports.iter().filter(|port| port.name == *name && protocol.is_none_or(|protocol| protocol == port.protocol));
            ports.flat_map(|port| ips.iter().map(|ip| (*ip, Some((port.protocol, port.port))))).collect()
        }
        _ => BTreeSet::new(),
    }
}
