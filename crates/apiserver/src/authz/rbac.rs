//! Role-based access control over the stored roles and bindings (plugin/pkg/auth/authorizer/rbac).
//!
//! The objects are compiled once and again whenever one of them changes.

use super::{Attributes, Decision};
use crate::authn::{SERVICE_ACCOUNT_USER, UserInfo};
use crate::object;
use crate::store::Store;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

const PREFIXES: [&str; 4] = [
    "rbac.authorization.k8s.io/roles/",
    "rbac.authorization.k8s.io/clusterroles/",
    "rbac.authorization.k8s.io/rolebindings/",
    "rbac.authorization.k8s.io/clusterrolebindings/",
];

/// The compiled policy, with the revisions it was compiled from.
#[derive(Default)]
pub(super) struct Cache(Mutex<Option<([u64; 4], Arc<Policy>)>>);

impl Cache {
    pub(super) fn current(&self, store: &Store) -> Arc<Policy> {
        let version = PREFIXES.map(|prefix| store.last_change(prefix));
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, policy)) = cached.as_ref().filter(|(of, _)| *of == version) {
            return Arc::clone(policy);
        }
        let policy = Arc::new(Policy::compile(PREFIXES.map(|prefix| store.list(prefix).1.into_iter().map(|(_, entry)| entry.value()).collect())));
        *cached = Some((version, Arc::clone(&policy)));
        policy
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Rule {
    verbs: Vec<String>,
    groups: Vec<String>,
    resources: Vec<String>,
    names: Vec<String>,
    paths: Vec<String>,
}

impl Rule {
    fn from_value(value: &Value) -> Self {
        let texts = |member: &str| object::list(value, &[member]).iter().filter_map(Value::as_str).map(str::to_string).collect();
        Self {
            verbs: texts("verbs"),
            groups: texts("apiGroups"),
            resources: texts("resources"),
            names: texts("resourceNames"),
            paths: texts("nonResourceURLs"),
        }
    }

    fn to_value(&self) -> Value {
        let mut value = json!({"verbs": self.verbs});
        let members = [("apiGroups", &self.groups), ("resources", &self.resources), ("resourceNames", &self.names), ("nonResourceURLs", &self.paths)];
        for (member, texts) in members {
            if !texts.is_empty() {
                value[member] = json!(texts);
            }
        }
        value
    }

    /// pkg/apis/rbac/v1/evaluation_helpers.go and rbac.go `RuleAllows`.
    fn allows(&self, attributes: &Attributes) -> bool {
        if !self.allows_verb(&attributes.verb) {
            return false;
        }
        if !attributes.is_resource {
            return self.paths.iter().any(|path| path_matches(path, &attributes.path));
        }
        let group = self.groups.iter().any(|group| group == "*" || *group == attributes.group);
        let name = self.names.is_empty() || self.names.contains(&attributes.name);
        group && name && self.allows_resource(&attributes.resource, &attributes.subresource)
    }

    fn allows_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == "*" || own == verb)
    }

    fn allows_resource(&self, resource: &str, subresource: &str) -> bool {
        let combined = if subresource.is_empty() { resource.to_string() } else { format!("{resource}/{subresource}") };
        let any_of_subresource = |own: &str| !subresource.is_empty() && own.strip_prefix("*/") == Some(subresource);
        self.resources.iter().any(|own| own == "*" || *own == combined || any_of_subresource(own))
    }
}

fn path_matches(pattern: &str, path: &str) -> bool {
    pattern == "*" || pattern == path || pattern.strip_suffix('*').is_some_and(|prefix| path.starts_with(prefix))
}

struct Binding {
    name: String,
    /// "" for a ClusterRoleBinding.
    namespace: String,
    role_kind: String,
    role: String,
    subjects: Vec<Subject>,
    rules: Arc<[Rule]>,
}

enum Subject {
    User(String),
    Group(String),
    /// The account's user name, and `NAME/NAMESPACE`.
    ServiceAccount(String, String),
}

impl Subject {
    fn from_value(value: &Value, namespace: &str) -> Option<Self> {
        let name = object::text(value, &["name"]).to_string();
        match object::text(value, &["kind"]) {
            "User" => Some(Self::User(name)),
            "Group" => Some(Self::Group(name)),
            "ServiceAccount" => {
                let own = object::text(value, &["namespace"]);
                let namespace = if own.is_empty() { namespace } else { own };
                Some(Self::ServiceAccount(format!("{SERVICE_ACCOUNT_USER}{namespace}:{name}"), format!("{name}/{namespace}")))
            }
            _ => None,
        }
    }

    fn is(&self, user: &UserInfo) -> bool {
        match self {
            Self::User(name) | Self::ServiceAccount(name, _) => *name == user.name,
            Self::Group(name) => user.is_in(name),
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::User(name) => write!(formatter, "User {name:?}"),
            Self::Group(name) => write!(formatter, "Group {name:?}"),
            Self::ServiceAccount(_, name) => write!(formatter, "ServiceAccount {name:?}"),
        }
    }
}

impl Binding {
    /// Why the binding allows something to a user (`clusterRoleBindingDescriber`, `roleBindingDescriber`).
    fn reason(&self, user: &UserInfo) -> String {
        let Self { name, namespace, role_kind, role, .. } = self;
        let binding =
            if namespace.is_empty() { format!("ClusterRoleBinding {name:?}") } else { format!("RoleBinding {:?}", format!("{name}/{namespace}")) };
        let subject = self.subjects.iter().find(|subject| subject.is(user)).map(ToString::to_string).unwrap_or_default();
        format!("RBAC: allowed by {binding} of {role_kind} {role:?} to {subject}")
    }
}

pub(super) struct Policy {
    bindings: Vec<Binding>,
    /// Role references that lead nowhere, for the refusal's message.
    missing: HashMap<String, Vec<usize>>,
}

impl Policy {
    fn compile([roles, cluster_roles, bindings, cluster_bindings]: [Vec<Value>; 4]) -> Self {
        let mut rules = HashMap::<(String, String), Arc<[Rule]>>::new();
        for role in roles.iter().chain(&cluster_roles) {
            let key = (object::namespace(role).to_string(), object::name(role).to_string());
            rules.insert(key, object::list(role, &["rules"]).iter().map(Rule::from_value).collect());
        }
        let mut policy = Self { bindings: Vec::new(), missing: HashMap::new() };
        for binding in cluster_bindings.iter().chain(&bindings) {
            let namespace = object::namespace(binding).to_string();
            let (kind, role) = (object::text(binding, &["roleRef", "kind"]), object::text(binding, &["roleRef", "name"]).to_string());
            let scope = if kind == "Role" { namespace.clone() } else { String::new() };
            let subjects = object::list(binding, &["subjects"]).iter().filter_map(|subject| Subject::from_value(subject, &namespace)).collect();
            let found = rules.get(&(scope, role.clone())).cloned();
            if found.is_none() {
                policy
                    .missing
                    .entry(format!("{}.rbac.authorization.k8s.io {role:?} not found", kind.to_ascii_lowercase()))
                    .or_default()
                    .push(policy.bindings.len());
            }
            let name = object::name(binding).to_string();
            let (role_kind, rules) = (kind.to_owned(), found.unwrap_or_else(|| Arc::from([])));
            policy.bindings.push(Binding { name, namespace, role_kind, role, subjects, rules });
        }
        policy
    }

    fn applying<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> impl Iterator<Item = (usize, &'a Binding)> {
        let scoped = move |binding: &Binding| binding.namespace.is_empty() || binding.namespace == namespace && !namespace.is_empty();
        self.bindings.iter().enumerate().filter(move |(_, binding)| scoped(binding) && binding.subjects.iter().any(|subject| subject.is(user)))
    }

    pub(super) fn decide(&self, attributes: &Attributes) -> Decision {
        let namespace = if attributes.is_resource { attributes.namespace.as_str() } else { "" };
        let mut dangling = Vec::new();
        for (index, binding) in self.applying(&attributes.user, namespace) {
            if binding.rules.iter().any(|rule| rule.allows(attributes)) {
                return Decision::Allow(binding.reason(&attributes.user));
            }
            dangling.extend(self.missing.iter().filter(|(_, indices)| indices.contains(&index)).map(|(text, _)| text.clone()));
        }
        dangling.dedup();
        let reason = match dangling.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        Decision::NoOpinion(reason)
    }

    pub(super) fn rules(&self, user: &UserInfo, namespace: &str) -> (Vec<Value>, Vec<Value>) {
        let all = self.applying(user, namespace).flat_map(|(_, binding)| binding.rules.iter());
        let (paths, resources): (Vec<_>, Vec<_>) = all.partition(|rule| rule.resources.is_empty());
        (resources.into_iter().map(Rule::to_value).collect(), paths.into_iter().map(Rule::to_value).collect())
    }

    pub(super) fn covers(&self, user: &UserInfo, namespace: &str, wanted: &[Value]) -> bool {
        let own: Vec<&Rule> = self.applying(user, namespace).flat_map(|(_, binding)| binding.rules.iter()).collect();
        wanted.iter().map(Rule::from_value).all(|rule| {
            let verbs = &rule.verbs;
            verbs.iter().all(|verb| {
                let holds = |own: &&&Rule| own.allows_verb(verb) || own.verbs.contains(verb);
                let path_held = |path: &String| own.iter().filter(holds).any(|own| own.paths.iter().any(|pattern| path_matches(pattern, path)));
                let resource_held = |group: &String, resource: &String| {
                    own.iter().filter(holds).any(|own| {
                        let groups = own.groups.iter().any(|own| own == "*" || own == group);
                        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                        let names = own.names.is_empty() || !rule.names.is_empty() && rule.names.iter().all(|name| own.names.contains(name));
                        groups && names && own.allows_resource(resource, subresource)
                    })
                };
                rule.paths.iter().all(path_held)
                    && rule.groups.iter().all(|group| rule.resources.iter().all(|resource| resource_held(group, resource)))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let role = json!({"metadata": {"name": "reader", "namespace": "a"}, "rules": [{"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods", "pods/log"]}]});
        let named = json!({"metadata": {"name": "one"}, "rules": [{"verbs": ["get"], "apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["x"]},
            {"verbs": ["get"], "nonResourceURLs": ["/metrics", "/debug/*"]}]});
        let binding = json!({"metadata": {"name": "b", "namespace": "a"}, "roleRef": {"kind": "Role", "name": "reader"}, "subjects": [{"kind": "User", "name": "bob"}]});
        let cluster = json!({"metadata": {"name": "c"}, "roleRef": {"kind": "ClusterRole", "name": "one"}, "subjects": [{"kind": "Group", "name": "devs"}, {"kind": "ServiceAccount", "name": "sa", "namespace": "z"}]});
        let dangling =
            json!({"metadata": {"name": "d"}, "roleRef": {"kind": "ClusterRole", "name": "gone"}, "subjects": [{"kind": "User", "name": "bob"}]});
        Policy::compile([vec![role], vec![named], vec![binding], vec![cluster, dangling]])
    }

    fn ask(user: UserInfo, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let (group, resource) = resource.split_once(':').unwrap_or(("", resource));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let attributes = Attributes {
            user,
            verb: verb.into(),
            is_resource: true,
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: name.into(),
            ..Attributes::default()
        };
        matches!(policy().decide(&attributes), Decision::Allow(_))
    }

    #[test]
    fn bindings_decide() {
        let bob = || UserInfo::new("bob", &[]);
        let dev = || UserInfo::new("eve", &["devs"]);
        assert!(ask(bob(), "get", "pods", "a", "p"));
        assert!(ask(bob(), "get", "pods/log", "a", "p"));
        assert!(!ask(bob(), "get", "pods/exec", "a", "p"));
        assert!(!ask(bob(), "get", "pods", "b", "p"));
        assert!(!ask(bob(), "delete", "pods", "a", "p"));
        assert!(ask(dev(), "get", "apps:deployments", "q", "x"));
        assert!(!ask(dev(), "get", "apps:deployments", "q", "y"));
        assert!(ask(UserInfo::new("system:serviceaccount:z:sa", &[]), "get", "apps:deployments", "q", "x"));
    }

    #[test]
    fn reasons_name_binding_role_and_subject() {
        let reason = |user: UserInfo, group: &str, resource: &str, name: &str| {
            let (namespace, name) = ("a".to_owned(), name.to_owned());
            let (group, resource) = (group.to_owned(), resource.to_owned());
            let asked = Attributes { user, verb: "get".into(), is_resource: true, group, resource, namespace, name, ..Attributes::default() };
            policy().decide(&asked)
        };
        let allowed = |text: &str| Decision::Allow(format!("RBAC: allowed by {text}"));
        let bob = reason(UserInfo::new("bob", &[]), "", "pods", "p");
        assert_eq!(bob, allowed("RoleBinding \"b/a\" of Role \"reader\" to User \"bob\""));
        let dev = reason(UserInfo::new("eve", &["devs"]), "apps", "deployments", "x");
        assert_eq!(dev, allowed("ClusterRoleBinding \"c\" of ClusterRole \"one\" to Group \"devs\""));
        let account = reason(UserInfo::new("system:serviceaccount:z:sa", &[]), "apps", "deployments", "x");
        assert_eq!(account, allowed("ClusterRoleBinding \"c\" of ClusterRole \"one\" to ServiceAccount \"sa/z\""));
    }

    #[test]
    fn paths_and_dangling_roles() {
        let mut attributes =
            Attributes { user: UserInfo::new("eve", &["devs"]), verb: "get".into(), path: "/debug/x".into(), ..Attributes::default() };
        assert!(matches!(policy().decide(&attributes), Decision::Allow(_)));
        attributes.user = UserInfo::new("bob", &[]);
        assert_eq!(policy().decide(&attributes), Decision::NoOpinion("RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found".into()));
    }

    #[test]
    fn a_user_covers_only_what_they_hold() {
        let bob = UserInfo::new("bob", &[]);
        let held = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
        let more = json!({"verbs": ["get", "delete"], "apiGroups": [""], "resources": ["pods"]});
        assert!(policy().covers(&bob, "a", &[held]));
        assert!(!policy().covers(&bob, "a", &[more]));
    }
}
