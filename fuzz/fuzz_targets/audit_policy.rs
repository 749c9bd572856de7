//! Policies of the audit log, and the events of requests that they ask for: a policy is used or refused with a reason, and every event is one
//! line of JSON with what the request said, whatever it said.

#![no_main]

use audit::policy::{Attributes, Level, Policy, Stage};
use audit::{Event, ObjectReference, event};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

fuzz_target!(|text: &str| {
    let (policy, request) = text.split_once('\0').unwrap_or((text, ""));
    let policy = match Policy::read(policy) {
        Ok((policy, _)) => policy,
        Err(error) => return assert!(error.to_string().starts_with("cannot ")),
    };
    let mut words = request.split(' ').chain(std::iter::repeat(""));
    let mut word = || words.next().unwrap_or_default();
    let (user, groups, is_resource) = (word(), [word().to_owned()], word() != "path");
    let asked = Attributes {
        user: Some((user, groups.as_slice())),
        verb: word(),
        is_resource,
        group: word(),
        resource: word(),
        subresource: word(),
        namespace: word(),
        name: word(),
        path: word(),
    };
    let decision = policy.decide(&asked);
    if decision.level == Level::None {
        return;
    }
    let written = Event {
        level: decision.level,
        audit_id: word().into(),
        request_uri: asked.path.into(),
        verb: asked.verb.into(),
        user: json!({"username": user, "groups": groups}),
        impersonated_user: None,
        source_ips: Vec::new(),
        user_agent: event::user_agent(request),
        object: Some(ObjectReference { resource: asked.resource.into(), name: asked.name.into(), ..ObjectReference::default() }),
        status: Some(event::status_of(200, None)),
        request_object: Some(json!({"text": request})),
        response_object: Some(json!({"text": request}).to_string().into_bytes()),
        received: jiff::Timestamp::UNIX_EPOCH,
    };
    let annotations = [("key".to_owned(), request.to_owned())].into();
    let line = written.line(Stage::ResponseComplete, jiff::Timestamp::UNIX_EPOCH, &annotations);
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    let read: Value = serde_json::from_slice(&line).expect("an event is JSON");
    assert_eq!((&read["verb"], &read["requestURI"], &read["annotations"]["key"]), (&json!(asked.verb), &json!(asked.path), &json!(request)));
    assert_eq!(read.get("requestObject").is_some(), decision.level >= Level::Request);
    assert_eq!(read.get("responseObject").is_some(), decision.level == Level::RequestResponse);
});
