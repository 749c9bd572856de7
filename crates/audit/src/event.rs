//! One event as a line of JSON: `audit.k8s.io/v1` Event (apiserver/pkg/apis/audit/v1).

use crate::policy::{Level, Stage};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Longest user agent, in bytes; longer ones are cut (`maxUserAgentLength`).
const LONGEST_AGENT: usize = 1024;

/// Annotations that quote the request's object; they need level Request.
const PATCH_ANNOTATION: &str = "patch.webhook.admission.k8s.io/";

/// How a line begins; an item of a list has no type.
const LINE: &[u8] = br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#;

/// Annotation of events that lack their objects because they were too large.
const TRUNCATED: &str = "audit.k8s.io/truncated";

/// Bounds of what a back-end gets (`--audit-*-truncate-*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncate {
    /// Bytes of an event. A larger one loses its objects; one that is larger even then is dropped.
    pub max_event: usize,
}

/// What stands for a bearer token.
const REDACTED: &str = "REDACTED";

/// The object that a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub api_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subresource: String,
}

impl ObjectReference {
    /// Fills in what the request's path does not say from the metadata of its object.
    pub fn complete(&mut self, object: &Value) {
        let own = |member: &str| object["metadata"][member].as_str().unwrap_or_default();
        let members =
            [(&mut self.namespace, "namespace"), (&mut self.name, "name"), (&mut self.uid, "uid"), (&mut self.resource_version, "resourceVersion")];
        for (field, member) in members {
            if field.is_empty() {
                *field = own(member).to_owned();
            }
        }
    }
}

/// What is known of a request so far.
#[derive(Clone, Debug)]
pub struct Event {
    pub level: Level,
    pub audit_id: String,
    /// Path and query, as the client sent them.
    pub request_uri: String,
    pub verb: String,
    /// `authentication.k8s.io/v1` UserInfo; an empty object of requests that are not authenticated.
    pub user: Value,
    pub impersonated_user: Option<Value>,
    pub source_ips: Vec<String>,
    pub user_agent: String,
    pub object: Option<ObjectReference>,
    /// See [`status_of`].
    pub status: Option<Value>,
    /// The request's object, at level Request.
    pub request_object: Option<Value>,
    /// The response's object as JSON on one line, at level RequestResponse.
    pub response_object: Option<Vec<u8>>,
    pub received: Timestamp,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Head<'a> {
    kind: &'static str,
    api_version: &'static str,
    level: Level,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: Stage,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<&'a Value>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<&'a ObjectReference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'a Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tail<'a> {
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

/// A time as upstream's `MicroTime` prints it.
fn micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

impl Event {
    /// The event at a stage, with its line end.
    pub fn line(&self, stage: Stage, at: Timestamp, annotations: &BTreeMap<String, String>) -> Vec<u8> {
        let head = Head {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: self.level,
            audit_id: &self.audit_id,
            stage,
            request_uri: &self.request_uri,
            verb: &self.verb,
            user: &self.user,
            impersonated_user: self.impersonated_user.as_ref(),
            source_ips: &self.source_ips,
            user_agent: &self.user_agent,
            object_ref: self.object.as_ref(),
            response_status: self.status.as_ref(),
            request_object: self.request_object.as_ref().filter(|_| self.level >= Level::Request),
        };
        let shown = annotations.iter().filter(|(key, _)| self.level >= Level::Request || !key.starts_with(PATCH_ANNOTATION));
        let tail = Tail {
            request_received_timestamp: micro_time(self.received),
            stage_timestamp: micro_time(if stage == Stage::RequestReceived { self.received } else { at }),
            annotations: shown.map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        };
        // Neither can fail: keys are texts. The parts become one object.
        let mut line = serde_json::to_vec(&head).unwrap_or_default();
        let tail = serde_json::to_vec(&tail).unwrap_or_default();
        line.pop();
        if let Some(response) = self.response_object.as_ref().filter(|_| self.level >= Level::RequestResponse) {
            line.extend_from_slice(b",\"responseObject\":");
            line.extend_from_slice(response);
        }
        line.push(b',');
        line.extend_from_slice(tail.get(1..).unwrap_or_default());
        line.push(b'\n');
        line
    }
}

impl Event {
    /// The event as [`Event::line`] makes it, within bounds: without its objects when it would be larger, none when even that is too large
    /// (apiserver/plugin/pkg/audit/truncate).
    pub fn line_within(&self, bounds: Truncate, stage: Stage, at: Timestamp, annotations: &BTreeMap<String, String>) -> Option<Vec<u8>> {
        // The end of the line is not of the event.
        let fits = |line: &Vec<u8>| line.len() <= bounds.max_event.saturating_add(1);
        let line = self.line(stage, at, annotations);
        if fits(&line) || self.level < Level::Request {
            return Some(line).filter(fits);
        }
        let mut told = annotations.clone();
        told.insert(TRUNCATED.into(), "true".into());
        let small = Self { request_object: None, response_object: None, ..self.clone() };
        Some(small.line(stage, at, &told)).filter(fits)
    }
}

/// Lines as one `audit.k8s.io/v1` EventList.
pub(crate) fn list<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Vec<u8> {
    let mut list = br#"{"kind":"EventList","apiVersion":"audit.k8s.io/v1","metadata":{},"items":["#.to_vec();
    for (index, line) in lines.enumerate() {
        if index > 0 {
            list.push(b',');
        }
        list.push(b'{');
        list.extend_from_slice(line.strip_prefix(LINE).unwrap_or(line).trim_ascii_end());
    }
    list.extend_from_slice(b"]}\n");
    list
}

/// A user agent as events have it.
pub fn user_agent(agent: &str) -> String {
    if agent.len() <= LONGEST_AGENT {
        return agent.to_owned();
    }
    let end = (0..=LONGEST_AGENT).rev().find(|at| agent.is_char_boundary(*at)).unwrap_or_default();
    format!("{}...TRUNCATED", &agent[..end])
}

/// `responseStatus` of a response with this code: of a Status more than the code.
pub fn status_of(code: u16, response: Option<&Value>) -> Value {
    let mut status = json!({"metadata": {}});
    let of = response.filter(|response| response["kind"] == "Status" && response["apiVersion"] == "v1");
    for member in ["status", "message", "reason", "details"] {
        if let Some(value) = of.and_then(|response| response.get(member)).filter(|value| !value.is_null()) {
            status[member] = value.clone();
        }
    }
    status["code"] = code.into();
    status
}

/// Removes `managedFields` from an object, from the items of a list, and from the objects of a table.
pub fn omit_managed_fields(object: &mut Value) {
    let remove = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.shift_remove("managedFields");
        }
    };
    remove(object);
    for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        remove(item);
    }
    for row in object.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(object) = row.get_mut("object") {
            remove(object);
        }
    }
}

/// Where objects of a resource carry a bearer token of somebody.
pub fn token_path(group: &str, resource: &str, subresource: &str) -> Option<&'static [&'static str]> {
    match (group, resource, subresource) {
        ("authentication.k8s.io", "tokenreviews", "") => Some(&["spec", "token"]),
        ("", "serviceaccounts", "token") => Some(&["status", "token"]),
        _ => None,
    }
}

/// Puts a word in the place of a token: no policy can ask for tokens.
pub fn redact(object: &mut Value, path: &[&str]) {
    let found = path.iter().try_fold(object, |value, member| value.get_mut(*member));
    if let Some(token) = found.filter(|token| !token.is_null()) {
        *token = REDACTED.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(level: Level) -> Event {
        Event {
            level,
            audit_id: "id".into(),
            request_uri: "/api/v1/namespaces/a/pods?x=y".into(),
            verb: "create".into(),
            user: json!({"username": "jane", "groups": ["system:authenticated"]}),
            impersonated_user: None,
            source_ips: vec!["127.0.0.1".into()],
            user_agent: "kubectl/v1".into(),
            object: Some(ObjectReference { resource: "pods".into(), namespace: "a".into(), api_version: "v1".into(), ..ObjectReference::default() }),
            status: Some(status_of(201, None)),
            request_object: Some(json!({"kind": "Pod"})),
            response_object: Some(br#"{"kind":"Pod","metadata":{}}"#.to_vec()),
            received: "2026-01-02T03:04:05.678901234Z".parse().unwrap(),
        }
    }

    fn line(level: Level, stage: Stage) -> String {
        let annotations = [("authorization.k8s.io/decision", "allow"), ("patch.webhook.admission.k8s.io/round_0_index_0", "{}")];
        let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        String::from_utf8(event(level).line(stage, "2026-01-02T03:04:06Z".parse().unwrap(), &annotations)).unwrap()
    }

    #[test]
    fn a_line_has_upstream_s_members_in_upstream_s_order() {
        let expected = concat!(
            r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"id","stage":"ResponseComplete","#,
            r#""requestURI":"/api/v1/namespaces/a/pods?x=y","verb":"create","user":{"username":"jane","groups":["system:authenticated"]},"#,
            r#""sourceIPs":["127.0.0.1"],"userAgent":"kubectl/v1","objectRef":{"resource":"pods","namespace":"a","apiVersion":"v1"},"#,
            r#""responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","#,
            r#""stageTimestamp":"2026-01-02T03:04:06.000000Z","annotations":{"authorization.k8s.io/decision":"allow"}}"#,
            "\n",
        );
        assert_eq!(line(Level::Metadata, Stage::ResponseComplete), expected);
    }

    #[test]
    fn bodies_need_their_level() {
        let request = line(Level::Request, Stage::ResponseComplete);
        assert!(request.contains(r#""requestObject":{"kind":"Pod"}"#) && request.contains("patch.webhook") && !request.contains("responseObject"));
        let both = line(Level::RequestResponse, Stage::RequestReceived);
        let read: Value = serde_json::from_str(&both).unwrap();
        assert_eq!((&read["responseObject"], &read["stageTimestamp"]), (&json!({"kind": "Pod", "metadata": {}}), &read["requestReceivedTimestamp"]));
    }

    #[test]
    fn events_that_are_too_large_lose_their_objects_or_are_dropped() {
        let at = "2026-01-02T03:04:06Z".parse().unwrap();
        let within = |level: Level, max_event: usize| event(level).line_within(Truncate { max_event }, Stage::ResponseComplete, at, &BTreeMap::new());
        let whole = event(Level::RequestResponse).line(Stage::ResponseComplete, at, &BTreeMap::new());
        assert_eq!(within(Level::RequestResponse, whole.len() - 1), Some(whole.clone()), "the end of the line is not counted");
        let small = within(Level::RequestResponse, whole.len() - 2).unwrap();
        let read: Value = serde_json::from_slice(&small).unwrap();
        assert_eq!(read["annotations"], json!({"audit.k8s.io/truncated": "true"}));
        assert!(read.get("requestObject").is_none() && read.get("responseObject").is_none() && read["objectRef"]["resource"] == "pods");
        assert_eq!(within(Level::RequestResponse, 100), None);
        assert_eq!(within(Level::Metadata, 100), None, "there is nothing to take away");
    }

    #[test]
    fn items_of_a_list_are_events_without_their_type() {
        let lines = [line(Level::Metadata, Stage::RequestReceived).into_bytes(), line(Level::Request, Stage::ResponseComplete).into_bytes()];
        let read: Value = serde_json::from_slice(&list(lines.iter().map(Vec::as_slice))).unwrap();
        let items: Vec<Value> = lines
            .iter()
            .map(|line| {
                let mut event: Value = serde_json::from_slice(line).unwrap();
                event.as_object_mut().unwrap().retain(|name, _| name != "kind" && name != "apiVersion");
                event
            })
            .collect();
        assert_eq!(read, json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": items}));
    }

    #[test]
    fn a_status_says_why() {
        let failure =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "reason": "NotFound", "code": 404});
        let expected = r#"{"metadata":{},"status":"Failure","message":"no","reason":"NotFound","code":404}"#;
        assert_eq!(status_of(404, Some(&failure)).to_string(), expected);
        assert_eq!(status_of(200, Some(&json!({"kind": "Pod", "status": {}}))).to_string(), r#"{"metadata":{},"code":200}"#);
    }

    #[test]
    fn managed_fields_and_tokens_can_be_left_out() {
        let with = json!({"metadata": {"name": "a", "managedFields": [{}]}});
        let mut list = json!({"metadata": {}, "items": [with], "rows": [{"object": with}, {"object": null}]});
        omit_managed_fields(&mut list);
        assert!(!list.to_string().contains("managedFields"), "{list}");
        let mut review = json!({"spec": {"token": "secret", "audiences": []}});
        redact(&mut review, token_path("authentication.k8s.io", "tokenreviews", "").unwrap());
        assert_eq!(review, json!({"spec": {"token": "REDACTED", "audiences": []}}));
        let mut other = json!({"spec": {}});
        redact(&mut other, &["status", "token"]);
        assert_eq!(other, json!({"spec": {}}));
        assert_eq!(token_path("", "secrets", ""), None);
    }

    #[test]
    fn long_user_agents_are_cut_between_letters() {
        let cut = user_agent(&format!("{}ä{}", "a".repeat(1023), "b".repeat(9)));
        assert_eq!(cut, format!("{}...TRUNCATED", "a".repeat(1023)));
        assert_eq!(user_agent("short"), "short");
    }
}
