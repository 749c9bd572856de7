//! Decisions on Namespaces, pods and what makes pods (pod-security-admission/admission/admission.go).

use super::checks::{Pod, Violation, evaluate};
use super::level::{Level, LevelVersion, PREFIX, Policy, label, policy_of};
use crate::value::{lookup, name, text};
use crate::{Attributes, FieldError, Notes, Operation, Refusal};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// So many pods of a Namespace are looked at when its level changes.
pub const MAX_PODS: usize = 3000;

/// Subresources of pods that change nothing that a check looks at.
const IGNORED_SUBRESOURCES: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

/// Whose requests are not looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exemptions {
    pub namespaces: Vec<String>,
    pub usernames: Vec<String>,
    pub runtime_classes: Vec<String>,
}

/// The plug-in's configuration. The default enforces nothing that a Namespace does not ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    pub defaults: Policy,
    pub exemptions: Exemptions,
}

/// What the plug-in needs of the cluster.
pub trait Source {
    fn namespace(&self, name: &str) -> Option<Arc<Value>>;
    fn pods(&self, namespace: &str) -> Vec<Arc<Value>>;
    /// Whether the time for looking at a Namespace's pods is over (upstream: a second).
    fn out_of_time(&self) -> bool;
}

/// Decides on a request.
pub fn validate(configuration: &Configuration, source: &impl Source, request: &Attributes<'_>, notes: &mut Notes) -> Result<(), Refusal> {
    if !matches!(request.operation, Operation::Create | Operation::Update) {
        return Ok(());
    }
    let admission = Admission { configuration, source, request };
    match (request.group, request.resource) {
        ("", "namespaces") => admission.namespace(notes),
        ("", "pods") => admission.pod(notes),
        _ => admission.workload(notes),
    }
}

/// Where a kind has its pod template.
fn template_path(group: &str, resource: &str) -> Option<&'static [&'static str]> {
    match (group, resource) {
        ("", "podtemplates") => Some(&["template"]),
        ("", "replicationcontrollers") | ("apps", "replicasets" | "deployments" | "statefulsets" | "daemonsets") | ("batch", "jobs") => {
            Some(&["spec", "template"])
        }
        ("batch", "cronjobs") => Some(&["spec", "jobTemplate", "spec", "template"]),
        _ => None,
    }
}

struct Admission<'a, S> {
    configuration: &'a Configuration,
    source: &'a S,
    request: &'a Attributes<'a>,
}

impl<S: Source> Admission<'_, S> {
    fn policy(&self, namespace: &Value) -> (Policy, Vec<FieldError>) {
        policy_of(&namespace["metadata"]["labels"], &self.configuration.defaults)
    }

    fn is_exempt_namespace(&self) -> bool {
        let name = self.request.namespace;
        !name.is_empty() && self.configuration.exemptions.namespaces.iter().any(|one| one == name)
    }

    /// Whether Namespace or user is exempt; says so in the audit event.
    fn is_exempt(&self, notes: &mut Notes) -> bool {
        let user = &self.request.user.name;
        let why = if self.is_exempt_namespace() {
            "namespace"
        } else if !user.is_empty() && self.configuration.exemptions.usernames.contains(user) {
            "user"
        } else {
            return false;
        };
        notes.annotate(format!("{PREFIX}exempt"), why);
        true
    }

    fn is_exempt_class(&self, spec: &Value) -> bool {
        let class = text(spec, &["runtimeClassName"]);
        !class.is_empty() && self.configuration.exemptions.runtime_classes.iter().any(|one| one == class)
    }

    fn namespace(&self, notes: &mut Notes) -> Result<(), Refusal> {
        if !self.request.subresource.is_empty() {
            return Ok(());
        }
        let object = self.request.object();
        let (new, errors) = self.policy(object);
        if self.request.operation == Operation::Create {
            if !errors.is_empty() {
                return Err(Refusal::Invalid(errors));
            }
            if self.is_exempt_namespace() {
                self.warn_of_exemption(&new, notes);
            }
            return Ok(());
        }
        let (old, old_errors) = self.policy(self.request.old_object());
        if !errors.is_empty() && errors != old_errors {
            return Err(Refusal::Invalid(errors));
        }
        let relaxed = new.enforce.version == old.enforce.version && new.enforce.level <= old.enforce.level;
        if new.enforce.level == Level::Privileged || relaxed {
            return Ok(());
        }
        if self.is_exempt_namespace() {
            self.warn_of_exemption(&new, notes);
        } else {
            notes.warnings.extend(self.pods_of_namespace(name(object), new.enforce));
        }
        Ok(())
    }

    /// Says which labels of an exempt Namespace have no effect.
    fn warn_of_exemption(&self, policy: &Policy, notes: &mut Notes) {
        if policy.is_privileged() || policy.is_equivalent(&self.configuration.defaults) {
            return;
        }
        let labels = &self.request.object()["metadata"]["labels"];
        let is_set = |mode: &str| label(labels, mode).or(label(labels, &format!("{mode}-version"))).is_some();
        let modes: Vec<String> = [("enforce", policy.enforce), ("audit", policy.audit), ("warn", policy.warn)]
            .into_iter()
            .filter(|(mode, wanted)| wanted.level != Level::Privileged && is_set(mode))
            .map(|(mode, wanted)| format!("{mode}={wanted}"))
            .collect();
        let name = name(self.request.object());
        notes.warn(format!("namespace {name:?} is exempt from Pod Security, and the policy ({}) will be ignored", modes.join(", ")));
    }

    /// Warnings of the pods that a new level would refuse.
    fn pods_of_namespace(&self, namespace: &str, enforce: LevelVersion) -> Vec<String> {
        let pods = self.by_priority(self.source.pods(namespace));
        let mut checked = 0;
        // Reasons, with the first pod's name and the number of pods.
        let mut found = BTreeMap::<String, (&str, usize)>::new();
        for pod in pods.iter().take(MAX_PODS) {
            checked += 1;
            let violations = evaluate(enforce, &Pod { metadata: &pod["metadata"], spec: &pod["spec"] });
            if !violations.is_empty() {
                let reasons: Vec<String> = violations.into_iter().map(|one| one.reason).collect();
                let entry = found.entry(reasons.join(", ")).or_insert((name(pod), 0));
                entry.0 = entry.0.min(name(pod));
                entry.1 += 1;
            }
            if self.source.out_of_time() {
                break;
            }
        }
        let mut warnings = Vec::new();
        if checked < pods.len() {
            let total = pods.len();
            warnings.push(format!("new PodSecurity enforce level only checked against the first {checked} of {total} existing pods"));
        }
        if !found.is_empty() {
            let level = enforce.to_string();
            warnings.push(format!("existing pods in namespace {namespace:?} violate the new PodSecurity enforce level {level:?}"));
        }
        let mut of_pods: Vec<String> = found
            .into_iter()
            .map(|(reasons, (first, count))| match count {
                1 => format!("{first}: {reasons}"),
                2 => format!("{first} (and 1 other pod): {reasons}"),
                _ => format!("{first} (and {} other pods): {reasons}", count - 1),
            })
            .collect();
        of_pods.sort_unstable();
        warnings.extend(of_pods);
        warnings
    }

    /// One pod of each controller first.
    fn by_priority(&self, pods: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
        let mut seen = BTreeSet::<String>::new();
        let (mut first, mut further) = (Vec::new(), Vec::new());
        for pod in pods {
            if self.is_exempt_class(&pod["spec"]) {
                continue;
            }
            let owners = crate::value::list(&pod, &["metadata", "ownerReferences"]);
            let controller = owners.iter().find(|owner| crate::value::is_true(owner, &["controller"]));
            let again = controller.is_some_and(|owner| !seen.insert(text(owner, &["uid"]).to_owned()));
            if again { further.push(pod) } else { first.push(pod) }
        }
        first.append(&mut further);
        first
    }

    fn pod(&self, notes: &mut Notes) -> Result<(), Refusal> {
        if IGNORED_SUBRESOURCES.contains(&self.request.subresource) || self.is_exempt(notes) {
            return Ok(());
        }
        let namespace = self.request.namespace;
        let Some(stored) = self.source.namespace(namespace) else {
            notes.annotate(
                format!("{PREFIX}error"),
                format!("Internal error occurred: failed to lookup namespace {namespace:?}: namespace {namespace:?} not found"),
            );
            return Err(Refusal::Internal(format!("failed to lookup namespace {namespace:?}")));
        };
        let (policy, errors) = self.policy(&stored);
        if errors.is_empty() && policy.is_privileged() {
            notes.annotate(format!("{PREFIX}enforce-policy"), LevelVersion::default().to_string());
            return Ok(());
        }
        let object = self.request.object();
        if self.request.operation == Operation::Update && !is_significant(&object["spec"], &self.request.old_object()["spec"]) {
            return Ok(());
        }
        self.evaluate(&policy, &errors, &Pod { metadata: &object["metadata"], spec: &object["spec"] }, true, notes)
    }

    fn workload(&self, notes: &mut Notes) -> Result<(), Refusal> {
        let Some(path) = template_path(self.request.group, self.request.resource) else { return Ok(()) };
        if !self.request.subresource.is_empty() || self.is_exempt(notes) {
            return Ok(());
        }
        let namespace = self.request.namespace;
        let Some(stored) = self.source.namespace(namespace) else {
            let why = format!("failed to lookup namespace {namespace:?}: namespace {namespace:?} not found");
            notes.annotate(format!("{PREFIX}error"), why);
            return Ok(());
        };
        let (policy, errors) = self.policy(&stored);
        if errors.is_empty() && policy.warn.level == Level::Privileged && policy.audit.level == Level::Privileged {
            return Ok(());
        }
        let Some(template) = lookup(self.request.object(), path) else { return Ok(()) };
        self.evaluate(&policy, &errors, &Pod { metadata: &template["metadata"], spec: &template["spec"] }, false, notes)
    }

    fn evaluate(&self, policy: &Policy, errors: &[FieldError], pod: &Pod<'_>, enforce: bool, notes: &mut Notes) -> Result<(), Refusal> {
        if self.is_exempt_class(pod.spec) {
            notes.annotate(format!("{PREFIX}exempt"), "runtimeClass");
            return Ok(());
        }
        if !errors.is_empty() {
            notes.annotate(format!("{PREFIX}error"), format!("Failed to parse policy: {}", crate::refusal::aggregate(errors)));
        }
        let violates = |wanted: LevelVersion, word: &str| {
            let violations = evaluate(wanted, pod);
            let wanted = wanted.to_string();
            if violations.is_empty() { None } else { Some(format!("{word} PodSecurity {wanted:?}: {}", details(&violations))) }
        };
        if enforce {
            notes.annotate(format!("{PREFIX}enforce-policy"), policy.enforce.to_string());
        }
        if let Some(why) = violates(policy.audit, "would violate") {
            notes.annotate(format!("{PREFIX}audit-violations"), why);
        }
        if enforce && let Some(why) = violates(policy.enforce, "violates") {
            return Err(Refusal::Forbidden(why));
        }
        if let Some(why) = violates(policy.warn, "would violate") {
            notes.warn(why);
        }
        Ok(())
    }
}

/// `host namespaces (hostPID=true), privileged`.
fn details(violations: &[Violation]) -> String {
    let one = |violation: &Violation| match violation.detail.as_str() {
        "" => violation.reason.clone(),
        detail => format!("{} ({detail})", violation.reason),
    };
    violations.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Whether an update of a pod has containers or images that were not checked yet.
fn is_significant(new: &Value, old: &Value) -> bool {
    let image = |container: &Value| text(container, &["image"]).to_owned();
    for member in ["containers", "initContainers"] {
        let (new, old) = (crate::value::list(new, &[member]), crate::value::list(old, &[member]));
        if new.len() != old.len() || new.iter().zip(old).any(|(new, old)| image(new) != image(old)) {
            return true;
        }
    }
    let known = crate::value::list(old, &["ephemeralContainers"]);
    crate::value::list(new, &["ephemeralContainers"]).iter().any(|new| {
        let same = known.iter().find(|old| text(old, &["name"]) == text(new, &["name"]));
        same.is_none_or(|old| image(old) != image(new))
    })
}
