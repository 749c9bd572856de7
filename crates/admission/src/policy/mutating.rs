//! MutatingAdmissionPolicy (plugin/policy/mutating).

use super::invocation::{Cluster, Environment, Met, Policy, converted, is_exempt, meet, namespace_object};
use crate::cel::{Engine, Input, POLICY_BUDGET, Purpose};
use crate::json_patch::{Patch, PatchError};
use crate::matching::{Target, admission_request};
use crate::names::Kind;
use crate::reinvocation::Reinvocation;
use crate::value::{list, name, text};
use crate::{Attributes, Refusal};
use serde_json::Value;
use std::sync::Arc;

/// A policy that could not do its work.
struct PolicyError {
    message: String,
    /// Empty for faults of configuration.
    reason: &'static str,
}

fn policy_error(policy: &Policy, binding: Option<&Value>, why: &str, reason: &'static str) -> PolicyError {
    let message = match binding {
        Some(binding) => format!("policy '{}' with binding '{}' denied request: {why}", policy.name(), name(binding)),
        None => format!("policy {:?} denied request: {why}", policy.name()),
    };
    PolicyError { message, reason }
}

/// One policy with one binding and one parameter.
struct Invocation<'a> {
    policy: &'a Policy,
    binding: Arc<Value>,
    target: Target,
    params: Arc<Value>,
}

impl Invocation<'_> {
    fn id(&self) -> String {
        let params = (text(&self.params, &["metadata", "namespace"]), name(&self.params));
        format!("{}/{}/{}/{}", self.policy.name(), name(&self.binding), params.0, params.1)
    }
}

/// Lets policies change the object of a creation or an update, one after another.
pub async fn mutate<L: Cluster, E: Engine>(
    environment: &Environment<'_, L, E>,
    policies: &[Policy],
    request: &Attributes<'_>,
    object: Option<&mut Value>,
    reinvocation: &mut Reinvocation,
) -> Result<(), Refusal> {
    if is_exempt(request) {
        return Ok(());
    }
    let mut errors = Vec::new();
    let mut invocations = Vec::new();
    let asked = Attributes { object: object.as_deref(), ..request.clone() };
    for policy in policies {
        for met in meet(policy, &asked, environment.cluster).await {
            match met {
                Met::Fault { .. } if policy.ignores_failures() => {}
                Met::Fault { binding, message } => errors.push(policy_error(policy, binding.as_deref(), &message, "")),
                Met::Invocation { binding, target, params } => {
                    let each = |params| Invocation { policy, binding: binding.clone(), target: target.clone(), params };
                    invocations.extend(params.into_iter().map(each));
                }
            }
        }
    }
    if !invocations.is_empty() {
        let namespace = namespace_object(request, environment.cluster)?;
        run(environment, invocations, request, object, &namespace, reinvocation, &mut errors).await?;
    }
    let Some(first) = errors.first() else { return Ok(()) };
    let reason = if first.reason.is_empty() { "Forbidden" } else { first.reason };
    let causes = errors.iter().map(|error| error.message.clone()).collect();
    Err(Refusal::Denied { message: first.message.clone(), prefixed: false, code: 403, reason: reason.to_owned(), causes })
}

async fn run<L: Cluster, E: Engine>(
    environment: &Environment<'_, L, E>,
    invocations: Vec<Invocation<'_>>,
    request: &Attributes<'_>,
    mut object: Option<&mut Value>,
    namespace: &Value,
    reinvocation: &mut Reinvocation,
    errors: &mut Vec<PolicyError>,
) -> Result<(), Refusal> {
    reinvocation.policies.begin(reinvocation.second, object.as_deref());
    let own = Target::of(request).kind;
    for invocation in invocations {
        let policy = invocation.policy;
        let mut refuse = |why: &str| {
            if !policy.ignores_failures() {
                errors.push(policy_error(policy, Some(&invocation.binding), why, "Invalid"));
            }
        };
        let convert = async |object| converted(object, &invocation.target, request, environment.cluster).await.map_err(Refusal::Internal);
        let mut current = convert(object.as_deref()).await?;
        let old_object = convert(request.old_object).await?;
        let asked = admission_request(request, &invocation.target);
        let before = current.clone();
        let sees = Sees { old_object: &old_object, request: &asked, params: &invocation.params, namespace, user: request.user };
        match environment.conditions_hold(policy, &sees.input(&current)) {
            Err(why) => {
                refuse(&why);
                continue;
            }
            Ok(false) => continue,
            Ok(true) => {}
        }
        let id = invocation.id();
        if reinvocation.second && !reinvocation.policies.is_asked_again(&id) {
            continue;
        }
        for mutation in list(policy.spec(), &["mutations"]) {
            if current.is_null() {
                break;
            }
            match patched(environment, policy, mutation, &sees.input(&current), &invocation.target.kind) {
                Ok(new) => current = new,
                Err(Failed::Policy(why)) => refuse(&why),
                Err(Failed::Internal(why)) => return Err(Refusal::Internal(why)),
            }
        }
        if current != before {
            reinvocation.policies.ask_again();
            reinvocation.want();
            if let Some(object) = object.as_deref_mut() {
                *object = if invocation.target.kind == own {
                    current
                } else {
                    environment.cluster.convert(&current, &own).await.map_err(|why| Refusal::Internal(format!("failed to convert object: {why}")))?
                };
            }
        }
        if text(policy.spec(), &["reinvocationPolicy"]) == "IfNeeded" {
            reinvocation.policies.remember(id);
        }
    }
    reinvocation.policies.end(object.as_deref());
    Ok(())
}

/// What the expressions of an invocation see beside the object.
struct Sees<'a> {
    old_object: &'a Value,
    request: &'a Value,
    params: &'a Value,
    namespace: &'a Value,
    user: &'a crate::UserInfo,
}

impl Sees<'_> {
    fn input<'b>(&'b self, object: &'b Value) -> Input<'b> {
        let Sees { old_object, request, params, namespace, user } = *self;
        Input { object, old_object, request, params, namespace_object: namespace, user }
    }
}

/// Why a mutation did not happen.
enum Failed {
    /// `failurePolicy` decides.
    Policy(String),
    /// The API server is at fault.
    Internal(String),
}

/// The object after one mutation.
fn patched<L: Cluster, E: Engine>(
    environment: &Environment<'_, L, E>,
    policy: &Policy,
    mutation: &Value,
    input: &Input<'_>,
    kind: &Kind,
) -> Result<Value, Failed> {
    let mut budget = POLICY_BUDGET;
    let mut evaluate = |purpose, expression: &str| {
        let result = environment.engine.evaluate(expression, purpose, policy.scope(), input, &mut budget);
        result.map_err(|fault| match fault {
            crate::cel::Fault::Compile(why) => Failed::Policy(why),
            other => Failed::Policy(other.text(expression)),
        })
    };
    let changed = if text(mutation, &["patchType"]) == "JSONPatch" {
        let operations = evaluate(Purpose::JsonPatch, text(mutation, &["jsonPatch", "expression"]))?;
        match Patch::from_value(operations).and_then(|patch| patch.apply(input.object)) {
            Ok(new) => new,
            Err(PatchError::TestFailed(_)) => return Ok(input.object.clone()),
            Err(error) => return Err(Failed::Policy(format!("JSON Patch: {error}"))),
        }
    } else {
        let mut configuration = evaluate(Purpose::ApplyConfiguration, text(mutation, &["applyConfiguration", "expression"]))?;
        if !configuration.is_object() {
            return Err(Failed::Policy("unsupported return type from ApplyConfiguration expression".into()));
        }
        configuration["apiVersion"] = kind.api_version().into();
        configuration["kind"] = kind.kind.as_str().into();
        let merged = environment.cluster.merge(kind, input.object, &configuration);
        merged.map_err(|why| Failed::Policy(format!("error applying patch: {why}")))?
    };
    environment.cluster.decode(kind, changed).map_err(Failed::Internal)
}
