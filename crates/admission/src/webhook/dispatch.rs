//! Calls webhooks for a request: mutating ones in order, validating ones at once (plugin/webhook/{mutating,validating}/dispatcher.go).

use super::Hook;
use super::call::{Caller, Endpoint};
use super::review::{Response, Version, parse_response, question};
use crate::cel::{Engine, Input, Scope};
use crate::matching::{Catalog, Target, admission_request, conditions_hold, is_exempt, webhook_target};
use crate::names::Kind;
use crate::reinvocation::Reinvocation;
use crate::value::text;
use crate::{Attributes, Notes, Refusal};
use serde_json::{Value, json};

/// What webhooks work with.
#[derive(Debug)]
pub struct Environment<'a, L, E, C> {
    pub catalog: &'a L,
    pub engine: &'a E,
    pub caller: &'a C,
}

/// Why a webhook gave no answer that counts.
enum Failure {
    /// It could not be called, or its answer is invalid: `failurePolicy` decides.
    Call(String),
    /// The request is refused whatever the policy.
    Refused(Refusal),
}

/// Objects of a request in the version of a kind.
struct Objects {
    object: Value,
    old_object: Value,
}

async fn objects(catalog: &impl Catalog, request: &Attributes<'_>, kind: &Kind) -> Result<Objects, Refusal> {
    if *kind == Target::of(request).kind {
        return Ok(Objects { object: request.object().clone(), old_object: request.old_object().clone() });
    }
    let convert = async |object: Option<&Value>| match object {
        Some(object) => catalog.convert(object, kind).await.map_err(Refusal::Internal),
        None => Ok(Value::Null),
    };
    Ok(Objects { object: convert(request.object).await?, old_object: convert(request.old_object).await? })
}

impl<L: Catalog, E: Engine, C: Caller> Environment<'_, L, E, C> {
    /// In which version a webhook sees the request, with the objects; none when it does not.
    async fn invocation(&self, hook: &Hook, request: &Attributes<'_>) -> Result<Option<(Target, Objects)>, Refusal> {
        let Some(target) = webhook_target(&hook.spec, request, self.catalog)? else { return Ok(None) };
        let objects = objects(self.catalog, request, &target.kind).await?;
        let asked = admission_request(request, &target);
        let input = Input {
            object: &objects.object,
            old_object: &objects.old_object,
            request: &asked,
            params: &Value::Null,
            namespace_object: &Value::Null,
            user: request.user,
        };
        let holds = conditions_hold(&hook.spec, Scope::default(), &input, self.engine).map_err(Refusal::Forbidden)?;
        Ok(if holds { Some((target, objects)) } else { None })
    }

    /// Asks a webhook.
    async fn ask(&self, hook: &Hook, request: &Attributes<'_>, target: &Target, objects: &Objects, mutating: bool) -> Result<Response, Failure> {
        if request.dry_run {
            match text(&hook.spec, &["sideEffects"]) {
                "None" | "NoneOnDryRun" => {}
                "" => return Err(Failure::Call("Webhook SideEffects is nil".into())),
                _ => {
                    let why = format!("admission webhook {:?} does not support dry run", hook.name());
                    return Err(Failure::Refused(Refusal::BadRequest(why)));
                }
            }
        }
        let Some(version) = Version::of(&hook.spec) else {
            let why = "could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)";
            return Err(Failure::Call(why.into()));
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let review = question(version, &uid, request, target, [&objects.object, &objects.old_object]);
        let endpoint = Endpoint::of(&hook.spec).map_err(Failure::Call)?;
        let post = self.caller.post(&endpoint, review.to_string().into_bytes());
        let answer = match tokio::time::timeout(endpoint.timeout, post).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) => return Err(Failure::Call(endpoint.failure(&why))),
            Err(_) => return Err(Failure::Call(endpoint.failure("context deadline exceeded"))),
        };
        let body = answer.success().map_err(Failure::Call)?;
        parse_response(&body, version, &uid, mutating).map_err(Failure::Call)
    }
}

fn note(response: &Response, hook: &Hook, notes: &mut Notes) {
    for (key, value) in &response.audit_annotations {
        notes.annotate(format!("{}/{key}", hook.name()), value.as_str());
    }
    notes.warnings.extend(response.warnings.iter().cloned());
}

fn failed(hook: &Hook, why: &str) -> Refusal {
    Refusal::Internal(format!("failed calling webhook {:?}: {why}", hook.name()))
}

/// Shows a request to validating webhooks, all at once; the first in order that refuses decides.
pub async fn validate<L: Catalog, E: Engine, C: Caller>(
    environment: &Environment<'_, L, E, C>,
    hooks: &[Hook],
    request: &Attributes<'_>,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if is_exempt(request) {
        return Ok(());
    }
    let mut invocations = Vec::new();
    for hook in hooks {
        if let Some((target, objects)) = environment.invocation(hook, request).await? {
            invocations.push((hook, target, objects));
        }
    }
    let calls = invocations.iter().map(|(hook, target, objects)| environment.ask(hook, request, target, objects, false));
    let answers = futures::future::join_all(calls).await;
    let mut refusal = None;
    for (index, ((hook, ..), answer)) in invocations.iter().zip(answers).enumerate() {
        let refused = match answer {
            Ok(response) => {
                note(&response, hook, notes);
                if response.allowed { None } else { Some(response.refusal(hook.name())) }
            }
            Err(Failure::Call(_)) if hook.ignores_failures() => {
                notes.annotate(format!("failed-open.validating.webhook.admission.k8s.io/round_0_index_{index}"), hook.name());
                None
            }
            Err(Failure::Call(why)) => Some(failed(hook, &why)),
            Err(Failure::Refused(refusal)) => Some(refusal),
        };
        refusal = refusal.or(refused);
    }
    refusal.map_or(Ok(()), Err)
}

/// Shows a request to mutating webhooks, one after another, each seeing what those before it changed in `object`. There is no object to
/// change in deletions.
pub async fn mutate<L: Catalog, E: Engine, C: Caller>(
    environment: &Environment<'_, L, E, C>,
    hooks: &[Hook],
    request: &Attributes<'_>,
    mut object: Option<&mut Value>,
    reinvocation: &mut Reinvocation,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if is_exempt(request) {
        return Ok(());
    }
    reinvocation.webhooks.begin(reinvocation.second, object.as_deref());
    let round = usize::from(reinvocation.second);
    for (index, hook) in hooks.iter().enumerate() {
        let asked = Attributes { object: object.as_deref(), ..request.clone() };
        let Some((target, objects)) = environment.invocation(hook, &asked).await? else { continue };
        if reinvocation.second && !reinvocation.webhooks.is_asked_again(&hook.id) {
            continue;
        }
        let place = format!("round_{round}_index_{index}");
        let answer = environment.ask(hook, &asked, &target, &objects, true).await;
        let own = Target::of(&asked).kind;
        let changed = match answer {
            Ok(response) => {
                note(&response, hook, notes);
                change(environment, hook, &response, (&target.kind, &own), &objects.object, &place, notes).await
            }
            Err(failure) => Err(failure),
        };
        let mutated = matches!(&changed, Ok(Some(new)) if Some(new) != object.as_deref());
        let said = json!({"configuration": hook.configuration, "webhook": hook.name(), "mutated": mutated});
        notes.annotate(format!("mutation.webhook.admission.k8s.io/{place}"), said.to_string());
        if mutated {
            reinvocation.webhooks.ask_again();
            reinvocation.want();
        }
        if text(&hook.spec, &["reinvocationPolicy"]) == "IfNeeded" {
            reinvocation.webhooks.remember(hook.id.clone());
        }
        match changed {
            Ok(Some(new)) => {
                if let Some(object) = object.as_deref_mut() {
                    *object = new;
                }
            }
            Ok(None) => {}
            Err(Failure::Call(_)) if hook.ignores_failures() => {
                notes.annotate(format!("failed-open.mutation.webhook.admission.k8s.io/{place}"), hook.name());
            }
            Err(Failure::Call(why)) => return Err(failed(hook, &why)),
            Err(Failure::Refused(refusal)) => return Err(refusal),
        }
    }
    reinvocation.webhooks.end(object.as_deref());
    Ok(())
}

/// The object after an answer, in the request's version (the second of `kinds`; the first is the one that the webhook saw); none when the
/// webhook changes nothing.
async fn change<L: Catalog, E: Engine, C: Caller>(
    environment: &Environment<'_, L, E, C>,
    hook: &Hook,
    response: &Response,
    kinds: (&Kind, &Kind),
    object: &Value,
    place: &str,
    notes: &mut Notes,
) -> Result<Option<Value>, Failure> {
    if !response.allowed {
        return Err(Failure::Refused(response.refusal(hook.name())));
    }
    let undecodable = |why| Failure::Call(format!("received undecodable patch in webhook response: {why}"));
    let Some(patch) = response.patch().map_err(undecodable)? else { return Ok(None) };
    let internal = |why: String| Failure::Refused(Refusal::Internal(why));
    if object.is_null() {
        let name = hook.name();
        return Err(internal(format!("admission webhook {name:?} attempted to modify the object, which is not supported for this operation")));
    }
    if response.patch_type != "JSONPatch" {
        return Err(Failure::Call(format!("unsupported patch type {:?}", response.patch_type)));
    }
    let patched = patch.apply(object).map_err(|error| internal(error.to_string()))?;
    let said = json!({"configuration": hook.configuration, "webhook": hook.name(), "patch": patch.to_value(), "patchType": "JSONPatch"});
    notes.annotate(format!("patch.webhook.admission.k8s.io/{place}"), said.to_string());
    let (seen, own) = kinds;
    let decoded = environment.catalog.decode(seen, patched).map_err(internal)?;
    if seen == own {
        return Ok(Some(decoded));
    }
    environment.catalog.convert(&decoded, own).await.map(Some).map_err(internal)
}
