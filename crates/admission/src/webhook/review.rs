//! AdmissionReview: the question, and the answer that upstream accepts (plugin/webhook/request/admissionreview.go).

use crate::json_patch::{Patch, PatchError};
use crate::matching::{Target, admission_request};
use crate::value::{lookup, members, text, texts};
use crate::{Attributes, Refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Version of an AdmissionReview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    V1,
    V1beta1,
}

impl Version {
    /// The first version of a webhook's `admissionReviewVersions` that is known.
    pub(super) fn of(hook: &Value) -> Option<Self> {
        texts(hook, &["admissionReviewVersions"]).into_iter().find_map(|version| match version {
            "v1" => Some(Version::V1),
            "v1beta1" => Some(Version::V1beta1),
            _ => None,
        })
    }

    fn text(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V1beta1 => "v1beta1",
        }
    }
}

/// The question.
pub(super) fn question(version: Version, uid: &str, request: &Attributes<'_>, target: &Target, objects: [&Value; 2]) -> Value {
    let mut review = json!({"kind": "AdmissionReview", "apiVersion": format!("admission.k8s.io/{}", version.text()), "request": {"uid": uid}});
    let [object, old_object] = objects;
    if let (Value::Object(members), Some(all)) = (admission_request(request, target), review["request"].as_object_mut()) {
        for (name, value) in members {
            if name == "dryRun" {
                all.insert("object".into(), object.clone());
                all.insert("oldObject".into(), old_object.clone());
            }
            all.insert(name, value);
        }
    }
    review
}

/// The answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Response {
    pub allowed: bool,
    /// The Status of a refusal.
    pub status: Value,
    /// Of mutating webhooks; empty when there is none.
    pub patch: Vec<u8>,
    /// `JSONPatch`; others are refused when there is a patch.
    pub patch_type: String,
    pub audit_annotations: BTreeMap<String, String>,
    pub warnings: Vec<String>,
}

/// A member of a type, or upstream's complaint.
fn typed<T>(value: &Value, member: &str, wanted: &str, read: impl Fn(&Value) -> Option<T>) -> Result<Option<T>, String> {
    let Some(found) = lookup(value, &[member]) else { return Ok(None) };
    let kind = match found {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        _ => "object",
    };
    let complaint = || format!("json: cannot unmarshal {kind} into Go struct field AdmissionResponse.response.{member} of type {wanted}");
    read(found).map(Some).ok_or_else(complaint)
}

fn text_map(value: &Value) -> Option<BTreeMap<String, String>> {
    value.as_object()?.iter().map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

fn text_list(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

/// Reads an answer. The error is the reason that upstream puts after `failed calling webhook "NAME": `.
pub fn parse_response(body: &[u8], version: Version, uid: &str, mutating: bool) -> Result<Response, String> {
    let unreadable = |why: String| format!("failed to call webhook: {why}");
    let review: Value = serde_json::from_slice(body).map_err(|error| unreadable(error.to_string()))?;
    if !review.is_object() {
        return Err(unreadable("couldn't get version/kind; json parse error: json: cannot unmarshal value into an object".to_owned()));
    }
    let invalid = |why: String| Err(format!("received invalid webhook response: {why}"));
    let Some(response) = lookup(&review, &["response"]) else { return invalid("webhook response was absent".into()) };
    let text_of = |member| typed(response, member, "string", |value| value.as_str().map(str::to_owned)).map_err(unreadable);
    let allowed = typed(response, "allowed", "bool", Value::as_bool).map_err(unreadable)?.unwrap_or_default();
    let (given_uid, patch, patch_type) = (text_of("uid")?.unwrap_or_default(), text_of("patch")?, text_of("patchType")?);
    let patch = match patch {
        Some(text) => base64_bytes(&text).ok_or_else(|| unreadable("illegal base64 data in response.patch".to_owned()))?,
        None => Vec::new(),
    };
    let audit_annotations = typed(response, "auditAnnotations", "map[string]string", text_map).map_err(unreadable)?.unwrap_or_default();
    let warnings = typed(response, "warnings", "[]string", text_list).map_err(unreadable)?.unwrap_or_default();
    let status = lookup(response, &["status"]).cloned().unwrap_or_default();
    let mut result = Response { allowed, status, patch, patch_type: patch_type.clone().unwrap_or_default(), audit_annotations, warnings };
    if version == Version::V1beta1 {
        result.patch_type = if mutating && !result.patch.is_empty() { "JSONPatch".to_owned() } else { String::new() };
        if !mutating {
            result.patch.clear();
        }
        return Ok(result);
    }
    if given_uid != uid {
        return invalid(format!("expected response.uid={uid:?}, got {given_uid:?}"));
    }
    let given = (text(&review, &["apiVersion"]), text(&review, &["kind"]));
    if given != ("admission.k8s.io/v1", "AdmissionReview") {
        let got = crate::names::Kind::of(given.0, given.1);
        return invalid(format!("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got {got}"));
    }
    let why = match (mutating, result.patch.is_empty(), patch_type.as_deref()) {
        (true, false, None) => "webhook returned response.patch but not response.patchType",
        (true, true, Some(_)) => "webhook returned response.patchType but not response.patch",
        (true, false, Some("")) => r#"webhook returned invalid response.patchType of """#,
        (false, false, _) => "validating webhook may not return response.patch",
        (false, true, Some(_)) => "validating webhook may not return response.patchType",
        _ => return Ok(result),
    };
    invalid(why.to_owned())
}

fn base64_bytes(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect::<Vec<u8>>()).ok()
}

impl Response {
    /// The patch, when there is one with operations.
    pub(super) fn patch(&self) -> Result<Option<Patch>, PatchError> {
        if self.patch.is_empty() {
            return Ok(None);
        }
        Patch::parse(&self.patch).map(|patch| if patch.is_empty() { None } else { Some(patch) })
    }

    /// The refusal of a webhook with this name (plugin/webhook/errors/statuserror.go).
    pub(super) fn refusal(&self, hook: &str) -> Refusal {
        let denied = format!("admission webhook {hook:?} denied the request");
        let (reason, message) = (text(&self.status, &["reason"]), text(&self.status, &["message"]));
        let message = match (message, reason) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        let code = lookup(&self.status, &["code"])
            .and_then(Value::as_u64)
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (400..1000).contains(code));
        let details = lookup(&self.status, &["details"]).filter(|details| members(details, &[]).next().is_some()).cloned();
        Refusal::Status { code: code.unwrap_or(400), reason: reason.to_owned(), message, details }
    }
}
