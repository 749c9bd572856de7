//! Which policies, bindings and parameters a request meets (plugin/policy/generic).

use crate::cel::{Engine, Scope, Variable};
use crate::matching::{Catalog, Target, constraints_target, selector, selects};
use crate::names::Kind;
use crate::value::{list, lookup, name, text};
use crate::{Attributes, Refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

/// What policies need of the API server, beside what webhooks do.
pub trait Cluster: Catalog {
    /// Whether objects of a kind have namespaces; none when there is no such kind.
    fn is_namespaced(&self, kind: &Kind) -> Option<bool>;

    /// An object of a kind, if it is there; the namespace is empty for cluster-wide ones. It may be stored in another version that cannot be
    /// converted.
    fn object(&self, kind: &Kind, namespace: &str, name: &str) -> impl Future<Output = Result<Option<Arc<Value>>, String>> + Send;

    /// All objects of a kind, in a namespace where it is not empty.
    fn objects(&self, kind: &Kind, namespace: &str) -> impl Future<Output = Result<Vec<Arc<Value>>, String>> + Send;

    /// An object merged with an apply configuration, as server-side apply merges them but without owners. The error is upstream's, such as
    /// `invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: .spec.selector`.
    fn merge(&self, kind: &Kind, object: &Value, configuration: &Value) -> Result<Value, String>;
}

/// What policies work with.
#[derive(Debug)]
pub struct Environment<'a, L, E> {
    pub cluster: &'a L,
    pub engine: &'a E,
}

/// A policy that has bindings.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(super) definition: Arc<Value>,
    pub(super) bindings: Vec<Arc<Value>>,
    pub(super) variables: Vec<Variable>,
}

/// The policies that bindings name, with their bindings, by name.
pub fn policies(definitions: &[Arc<Value>], bindings: &[Arc<Value>]) -> Vec<Policy> {
    let mut all: BTreeMap<&str, Policy> = BTreeMap::new();
    for definition in definitions {
        let variable = |one: &Value| Variable { name: text(one, &["name"]).into(), expression: text(one, &["expression"]).into() };
        let variables = list(definition, &["spec", "variables"]).iter().map(variable).collect();
        all.insert(name(definition), Policy { definition: definition.clone(), bindings: Vec::new(), variables });
    }
    let mut sorted: Vec<&Arc<Value>> = bindings.iter().collect();
    sorted.sort_by(|a, b| name(a).cmp(name(b)));
    for binding in sorted {
        if let Some(policy) = all.get_mut(text(binding, &["spec", "policyName"])) {
            policy.bindings.push(binding.clone());
        }
    }
    all.into_values().filter(|policy| !policy.bindings.is_empty()).collect()
}

impl Policy {
    pub(super) fn name(&self) -> &str {
        name(&self.definition)
    }

    pub(super) fn spec(&self) -> &Value {
        &self.definition["spec"]
    }

    /// Whether failures of the policy itself let requests pass.
    pub(super) fn ignores_failures(&self) -> bool {
        text(self.spec(), &["failurePolicy"]) == "Ignore"
    }

    pub(super) fn scope(&self) -> Scope<'_> {
        Scope { params: lookup(self.spec(), &["paramKind"]).is_some(), variables: Some(&self.variables) }
    }

    fn param_kind(&self) -> Option<Kind> {
        lookup(self.spec(), &["paramKind"]).map(|kind| Kind::of(text(kind, &["apiVersion"]), text(kind, &["kind"])))
    }
}

/// Why a policy cannot decide, or what it is to decide.
pub(super) enum Met {
    /// Upstream's words; without a binding when the policy itself is at fault.
    Fault { binding: Option<Arc<Value>>, message: String },
    /// A binding that matches, with each of its parameters; null for none.
    Invocation { binding: Arc<Value>, target: Target, params: Vec<Arc<Value>> },
}

/// Whether no policy sees the request: policies themselves, and questions of authentication and authorization.
pub(super) fn is_exempt(request: &Attributes<'_>) -> bool {
    match request.group {
        "admissionregistration.k8s.io" => matches!(
            request.resource,
            "validatingadmissionpolicies" | "validatingadmissionpolicybindings" | "mutatingadmissionpolicies" | "mutatingadmissionpolicybindings"
        ),
        "authentication.k8s.io" => matches!(request.resource, "selfsubjectreviews" | "tokenreviews"),
        "authorization.k8s.io" => {
            matches!(request.resource, "localsubjectaccessreviews" | "selfsubjectaccessreviews" | "selfsubjectrulesreviews" | "subjectaccessreviews")
        }
        _ => false,
    }
}

/// What a request meets of a policy.
pub(super) async fn meet(policy: &Policy, request: &Attributes<'_>, cluster: &impl Cluster) -> Vec<Met> {
    let configure = |why: String| vec![Met::Fault { binding: None, message: format!("failed to configure policy: {why}") }];
    let Some(constraints) = lookup(policy.spec(), &["matchConstraints"]) else {
        return configure("policy contained no match constraints, a required field".into());
    };
    let target = match checked_target(constraints, request, cluster) {
        Err(why) => return configure(why),
        Ok(None) => return Vec::new(),
        Ok(Some(target)) => target,
    };
    let kind = policy.param_kind();
    let scope = match kind.as_ref().map(|kind| (kind, cluster.is_namespaced(kind))) {
        Some((kind, None)) => return configure(format!("failed to find resource referenced by paramKind: '{kind}'")),
        Some((_, scope)) => scope,
        None => None,
    };
    let params = kind.as_ref().zip(scope);
    let mut met = Vec::new();
    for binding in &policy.bindings {
        met.extend(bind(binding, &target, params, request, cluster).await);
    }
    met
}

fn checked_target(constraints: &Value, request: &Attributes<'_>, cluster: &impl Cluster) -> Result<Option<Target>, String> {
    for side in ["namespace", "object"] {
        if lookup(constraints, &[&format!("{side}Selector")]).is_none() {
            return Err(format!("a nil {side} selector was passed, please ensure selectors are initialized properly"));
        }
    }
    constraints_target(constraints, request, cluster).map_err(|refusal| refusal.to_string())
}

async fn bind(binding: &Arc<Value>, target: &Target, params: Option<(&Kind, bool)>, request: &Attributes<'_>, cluster: &impl Cluster) -> Option<Met> {
    let fault = |why: String| Some(Met::Fault { binding: Some(binding.clone()), message: format!("failed to configure binding: {why}") });
    if let Some(constraints) = lookup(binding, &["spec", "matchResources"]) {
        match checked_target(constraints, request, cluster) {
            Err(why) => return fault(why),
            Ok(None) => return None,
            Ok(Some(_)) => {}
        }
    }
    match collect_params(params, lookup(binding, &["spec", "paramRef"]), request.namespace, cluster).await {
        Err(why) => fault(why),
        Ok(params) if params.is_empty() => None,
        Ok(params) => Some(Met::Invocation { binding: binding.clone(), target: target.clone(), params }),
    }
}

/// The parameters of a binding: one null when there are to be none, nothing when there are none and that is fine.
async fn collect_params(
    kind: Option<(&Kind, bool)>,
    reference: Option<&Value>,
    namespace: &str,
    cluster: &impl Cluster,
) -> Result<Vec<Arc<Value>>, String> {
    let (Some((kind, is_namespaced)), Some(reference)) = (kind, reference) else { return Ok(vec![Arc::new(Value::Null)]) };
    let given = text(reference, &["namespace"]);
    let namespace = match (is_namespaced, given, namespace) {
        (false, "", _) => "",
        (false, ..) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".into()),
        (true, "", "") => return Err("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".into()),
        (true, "", own) => own,
        (true, given, _) => given,
    };
    let chosen = lookup(reference, &["selector"]);
    let found: Vec<Arc<Value>> = match (text(reference, &["name"]), chosen) {
        ("", None) => return Err("one of name or selector must be provided".into()),
        ("", Some(wanted)) => {
            let wanted = selector(Some(wanted));
            cluster.objects(kind, namespace).await?.into_iter().filter(|object| selects(&wanted, object)).collect()
        }
        (_, Some(_)) => return Err("paramRef.name and paramRef.selector are mutually exclusive".into()),
        (name, None) => cluster.object(kind, namespace, name).await?.into_iter().collect(),
    };
    if found.is_empty() && text(reference, &["parameterNotFoundAction"]) == "Deny" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".into());
    }
    // Expressions may read apiVersion and kind, which stored objects may lack.
    let complete = |object: Arc<Value>| {
        if lookup(&object, &["kind"]).is_some() {
            return object;
        }
        let mut whole = (*object).clone();
        whole["apiVersion"] = kind.api_version().into();
        whole["kind"] = kind.kind.as_str().into();
        Arc::new(whole)
    };
    Ok(found.into_iter().map(complete).collect())
}

/// `namespaceObject` of a request: the Namespace with the members that expressions may read; null for cluster-wide objects.
pub(super) fn namespace_object(request: &Attributes<'_>, catalog: &impl Catalog) -> Result<Value, Refusal> {
    let is_namespace = request.kind_group.is_empty() && request.kind_version == "v1" && request.kind == "Namespace";
    let wanted = request.namespace;
    if wanted.is_empty() || is_namespace {
        return Ok(Value::Null);
    }
    let Some(namespace) = catalog.namespace(wanted) else {
        let message = format!("namespaces {wanted:?} not found");
        let details = Some(json!({"name": wanted, "kind": "namespaces"}));
        return Err(Refusal::Status { code: 404, reason: "NotFound".into(), message, details });
    };
    const SHOWN: [&str; 12] = [
        "name",
        "generateName",
        "namespace",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "labels",
        "annotations",
        "finalizers",
    ];
    let mut shown = json!({"metadata": {}});
    for member in SHOWN {
        if let Some(value) = lookup(&namespace, &["metadata", member]) {
            shown["metadata"][member] = value.clone();
        }
    }
    for member in ["spec", "status"] {
        if let Some(value) = lookup(&namespace, &[member]) {
            shown[member] = value.clone();
        }
    }
    Ok(shown)
}

/// Objects of a request in the version that a policy sees.
pub(super) async fn converted(object: Option<&Value>, target: &Target, request: &Attributes<'_>, cluster: &impl Cluster) -> Result<Value, String> {
    match object {
        None => Ok(Value::Null),
        Some(object) if target.kind == Target::of(request).kind => Ok(object.clone()),
        Some(object) => cluster.convert(object, &target.kind).await.map_err(|why| format!("failed to convert object version: {why}")),
    }
}

impl<L, E: Engine> Environment<'_, L, E> {
    /// Whether the match conditions of a policy hold.
    pub(super) fn conditions_hold(&self, policy: &Policy, input: &crate::cel::Input<'_>) -> Result<bool, String> {
        crate::matching::conditions_hold(policy.spec(), policy.scope(), input, self.engine)
    }
}
