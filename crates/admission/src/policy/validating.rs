//! ValidatingAdmissionPolicy (plugin/policy/validating/{dispatcher,validator}.go).

use super::invocation::{Cluster, Environment, Met, Policy, converted, is_exempt, meet, namespace_object};
use crate::cel::{Engine, Fault, Input, POLICY_BUDGET, Purpose};
use crate::matching::admission_request;
use crate::value::{list, name, text, texts};
use crate::{Attributes, Notes, Refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A message that an expression makes has at most so many bytes.
const MAX_MESSAGE: usize = 5 * 1024;
/// An audit annotation has at most so many bytes.
const MAX_ANNOTATION: usize = 10 * 1024;

/// A validation that does not hold, or could not be evaluated.
#[derive(Debug, PartialEq)]
struct Denial {
    /// Place of the validation.
    index: usize,
    message: String,
    reason: String,
}

/// What one policy says about one parameter.
#[derive(Debug, Default, PartialEq)]
struct Verdict {
    denials: Vec<Denial>,
    /// Key and value.
    annotations: Vec<(String, String)>,
    /// Annotations that could not be made, which refuse.
    failures: Vec<String>,
}

/// The refusal that counts: the first one.
struct Denied {
    policy: String,
    binding: Option<String>,
    message: String,
    reason: String,
}

impl Denied {
    fn refusal(self) -> Refusal {
        let by = match self.binding {
            Some(binding) => format!("ValidatingAdmissionPolicy '{}' with binding '{binding}'", self.policy),
            None => format!("ValidatingAdmissionPolicy '{}'", self.policy),
        };
        let message = format!("{by} denied request: {}", self.message);
        let reason = if self.reason.is_empty() { "Invalid".to_owned() } else { self.reason };
        let code = match reason.as_str() {
            "Forbidden" => 403,
            "Unauthorized" => 401,
            "RequestEntityTooLarge" => 413,
            _ => 422,
        };
        Refusal::Denied { causes: vec![message.clone()], message, prefixed: true, code, reason }
    }
}

/// Shows a request to the policies; the first denial in order decides.
pub async fn validate<L: Cluster, E: Engine>(
    environment: &Environment<'_, L, E>,
    policies: &[Policy],
    request: &Attributes<'_>,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if is_exempt(request) {
        return Ok(());
    }
    let mut denied = Vec::new();
    for policy in policies {
        let mut annotations = Annotations::default();
        for met in meet(policy, request, environment.cluster).await {
            let fault = |binding: Option<&Value>, message: String| Denied {
                policy: policy.name().to_owned(),
                binding: binding.map(|binding| name(binding).to_owned()),
                message,
                reason: String::new(),
            };
            let (binding, target, params) = match met {
                Met::Fault { .. } if policy.ignores_failures() => continue,
                Met::Fault { binding, message } => {
                    denied.push(fault(binding.as_deref(), message));
                    continue;
                }
                Met::Invocation { binding, target, params } => (binding, target, params),
            };
            let namespace = namespace_object(request, environment.cluster)?;
            let objects = async {
                let object = converted(request.object, &target, request, environment.cluster).await?;
                Ok::<_, String>((object, converted(request.old_object, &target, request, environment.cluster).await?))
            };
            let (object, old_object) = match objects.await {
                Ok(objects) => objects,
                Err(_) if policy.ignores_failures() => continue,
                Err(why) => {
                    denied.push(fault(Some(&binding), format!("failed to configure binding: {why}")));
                    continue;
                }
            };
            let asked = admission_request(request, &target);
            for params in &params {
                let input =
                    Input { object: &object, old_object: &old_object, request: &asked, params, namespace_object: &namespace, user: request.user };
                let verdict = decide(environment, policy, &input);
                annotations.add(verdict.annotations);
                denied.extend(enact(policy, &binding, verdict.denials, notes));
                denied.extend(verdict.failures.into_iter().map(|why| fault(Some(&binding), why)));
            }
        }
        annotations.publish(policy, notes);
    }
    denied.into_iter().next().map_or(Ok(()), |denied| Err(denied.refusal()))
}

/// Does what a binding wants done with denials; returns those that refuse.
fn enact(policy: &Policy, binding: &Value, denials: Vec<Denial>, notes: &mut Notes) -> Vec<Denied> {
    let actions = texts(binding, &["spec", "validationActions"]);
    let mut refusing = Vec::new();
    for denial in denials {
        for action in &actions {
            match *action {
                "Deny" => refusing.push(Denied {
                    policy: policy.name().to_owned(),
                    binding: Some(name(binding).to_owned()),
                    message: denial.message.clone(),
                    reason: denial.reason.clone(),
                }),
                "Warn" => notes.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                    policy.name(),
                    name(binding),
                    denial.message
                )),
                "Audit" => {
                    let failure = json!([{
                        "message": denial.message,
                        "policy": text(binding, &["spec", "policyName"]),
                        "binding": name(binding),
                        "expressionIndex": denial.index,
                        "validationActions": actions,
                    }]);
                    let key = "validation.policy.admission.k8s.io/validation_failure";
                    // The first failure stays: an audit event has each key once.
                    notes.audit.entry(key.to_owned()).or_insert_with(|| go_json(&failure));
                }
                _ => {}
            }
        }
    }
    refusing
}

/// JSON as Go writes it: safe inside HTML.
fn go_json(value: &Value) -> String {
    value.to_string().replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

/// Audit annotations of a policy: what several bindings and parameters say under a key is joined.
#[derive(Default)]
struct Annotations(BTreeMap<String, Vec<String>>);

impl Annotations {
    fn add(&mut self, annotations: Vec<(String, String)>) {
        for (key, value) in annotations {
            let values = self.0.entry(key).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }

    fn publish(self, policy: &Policy, notes: &mut Notes) {
        for (key, values) in self.0 {
            notes.annotate(format!("{}/{key}", policy.name()), values.join(", "));
        }
    }
}

fn denial(index: usize, message: String) -> Denial {
    Denial { index, message, reason: String::new() }
}

/// A policy's verdict on a request with one parameter.
fn decide<L, E: Engine>(environment: &Environment<'_, L, E>, policy: &Policy, input: &Input<'_>) -> Verdict {
    let fails = !policy.ignores_failures();
    let whole = |message: String| Verdict { denials: if fails { vec![denial(0, message)] } else { Vec::new() }, ..Verdict::default() };
    match environment.conditions_hold(policy, input) {
        Err(why) => return whole(why),
        Ok(false) => return Verdict::default(),
        Ok(true) => {}
    }
    let mut verdict = Verdict::default();
    match denials(environment.engine, policy, input, fails) {
        Err(why) => return whole(why),
        Ok(denials) => verdict.denials = denials,
    }
    let mut budget = POLICY_BUDGET;
    for one in list(policy.spec(), &["auditAnnotations"]) {
        let expression = text(one, &["valueExpression"]);
        match environment.engine.evaluate(expression, Purpose::AuditAnnotation, policy.scope(), input, &mut budget) {
            Err(fault @ Fault::OutOfBudget) => return whole(fault.text(expression)),
            Err(fault) if fails => verdict.failures.push(fault.text(expression)),
            Err(_) | Ok(Value::Null) => {}
            Ok(Value::String(value)) => {
                if !value.trim().is_empty() {
                    verdict.annotations.push((text(one, &["key"]).to_owned(), shorten(value.trim(), MAX_ANNOTATION).to_owned()));
                }
            }
            Ok(_) => verdict
                .failures
                .push(format!("valueExpression '{expression}' resulted in unsupported return type. Return type must be either string or null.")),
        }
    }
    verdict
}

/// At most so many bytes of a text, in whole characters.
fn shorten(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    &text[..end]
}

/// The validations that do not hold. Messages have what the validations leave of the budget.
fn denials(engine: &impl Engine, policy: &Policy, input: &Input<'_>, fails: bool) -> Result<Vec<Denial>, String> {
    let validations = list(policy.spec(), &["validations"]);
    let mut budget = POLICY_BUDGET;
    let mut results = Vec::new();
    for one in validations {
        let expression = text(one, &["expression"]);
        match engine.evaluate(expression, Purpose::Validation, policy.scope(), input, &mut budget) {
            Err(fault @ Fault::OutOfBudget) => return Err(fault.text(expression)),
            result => results.push(result),
        }
    }
    let mut messages = Vec::new();
    let mut exhausted = None;
    for one in validations {
        let expression = text(one, &["messageExpression"]);
        if expression.is_empty() {
            messages.push(None);
            continue;
        }
        match engine.evaluate(expression, Purpose::Message, policy.scope(), input, &mut budget) {
            Err(fault @ Fault::OutOfBudget) => {
                exhausted = Some(format!("failed messageExpression: {}", fault.text(expression)));
                break;
            }
            result => messages.push(result.ok()),
        }
    }
    messages.resize(validations.len(), None);
    let mut denials = Vec::new();
    for (index, ((validation, result), message)) in validations.iter().zip(results).zip(messages).enumerate() {
        match (result, &exhausted) {
            (Err(fault), _) if fails => denials.push(denial(index, fault.text(text(validation, &["expression"])))),
            (Ok(_), Some(why)) if fails => denials.push(denial(index, why.clone())),
            (Err(_), _) | (Ok(_), Some(_)) | (Ok(Value::Bool(true)), None) => {}
            (Ok(_), None) => {
                let reason = match text(validation, &["reason"]) {
                    "" => "Invalid",
                    given => given,
                };
                denials.push(Denial { index, message: message_of(validation, message), reason: reason.to_owned() });
            }
        }
    }
    Ok(denials)
}

/// What a failed validation says: the result of its messageExpression, its message, or the expression.
fn message_of(validation: &Value, evaluated: Option<Value>) -> String {
    let usable = |text: &&str| !text.is_empty() && text.len() <= MAX_MESSAGE && !text.contains('\n');
    let evaluated = evaluated.as_ref().and_then(Value::as_str).map(str::trim).filter(usable);
    let given = Some(text(validation, &["message"]).trim()).filter(|message| !message.is_empty());
    match evaluated.or(given) {
        Some(message) => message.to_owned(),
        None => format!("failed expression: {}", text(validation, &["expression"]).trim()),
    }
}
