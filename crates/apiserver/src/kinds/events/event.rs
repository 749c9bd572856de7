//! Events of events.k8s.io: those of core/v1, whose members have other names here (pkg/apis/events/v1/conversion.go).

use crate::kind::Kind;
use crate::kinds::core::event::{self, common};
use crate::validation::field::{Errors, Field};
use crate::validation::names;
use k8s_openapi::api::events;
use serde_json::{Map, Value};

/// The names that differ: stored, and in events.k8s.io/v1.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

pub fn kind() -> Kind {
    common(Kind::new("events.k8s.io", "v1", "Event", "events", "io.k8s.api.events.v1.Event"))
        .described_by::<events::v1::Event>()
        .stored_as("", "v1", incoming, outgoing)
        .validate(validate)
}

/// An Event as events.k8s.io writes it: what that version made obligatory is there, what it deprecated is not.
fn validate(new: &Field, old: Option<&Field>, errors: &mut Errors) {
    event::validate(new, errors);
    if old.is_some() {
        return;
    }
    let at = |shown: &str, stored: &str| Field { path: shown.to_string(), value: new.get(stored).value };
    let controller = at("reportingController", "reportingComponent");
    if controller.is_empty() {
        errors.required(&controller, "");
    }
    errors.invalid_each(&controller, if controller.is_empty() { Vec::new() } else { names::qualified(controller.text()) });
    for (shown, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let field = new.get(shown);
        if field.is_empty() {
            errors.required(&field, "");
        } else if field.text().len() > limit {
            errors.invalid_value(&field, "", format!("can have at most {limit} characters"));
        }
    }
    let note = at("message", "message");
    if note.text().len() > 1024 {
        errors.invalid_value(&note, "", "can have at most 1024 characters");
    }
    if !new.get("eventTime").is_set() {
        errors.required(&new.get("eventTime"), "");
    }
    let kind = new.get("type");
    if !matches!(kind.text(), "Normal" | "Warning") {
        errors.invalid_value(&kind, "", format!("has invalid value: {}", kind.text()));
    }
    for member in ["firstTimestamp", "lastTimestamp", "count", "source"] {
        if !new.get(member).is_empty() && new.get(member).number() != Some(0) {
            errors.invalid_value(&new.get(member), "", "needs to be unset");
        }
    }
}

/// A stored object as clients see it.
fn outgoing(object: Value) -> Value {
    renamed(object, "events.k8s.io/v1", |name| find(name, |pair| (pair.0, pair.1)))
}

/// An object of a client as it is stored.
fn incoming(object: Value) -> Value {
    renamed(object, "v1", |name| find(name, |pair| (pair.1, pair.0)))
}

fn find(name: &str, order: impl Fn(&(&'static str, &'static str)) -> (&'static str, &'static str)) -> Option<&'static str> {
    NAMES.iter().map(order).find(|(from, _)| *from == name).map(|(_, to)| to)
}

fn renamed(object: Value, api_version: &str, name: impl Fn(&str) -> Option<&'static str>) -> Value {
    let Value::Object(members) = object else { return object };
    let mut renamed: Map<String, Value> = members.into_iter().map(|(member, value)| (name(&member).map_or(member, str::to_string), value)).collect();
    if renamed.contains_key("apiVersion") {
        renamed.insert("apiVersion".into(), api_version.into());
    }
    Value::Object(renamed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn both_faces_say_the_same() {
        let view = crate::kinds::by_resource("events.k8s.io", "v1", "events").unwrap();
        let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "involvedObject": {"kind": "Pod"}, "reason": "R",
            "message": "m", "source": {"component": "c"}, "count": 2, "reportingComponent": "x"});
        let shown = view.outgoing(event.clone());
        assert_eq!(
            shown,
            json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "a"}, "regarding": {"kind": "Pod"}, "reason": "R",
            "note": "m", "deprecatedSource": {"component": "c"}, "deprecatedCount": 2, "reportingController": "x"})
        );
        assert_eq!(view.incoming(shown), event);
        let core = crate::kinds::by_resource("", "v1", "events").unwrap();
        assert_eq!(core.outgoing(event.clone()), event);
        let status = json!({"kind": "Status", "message": "gone"});
        assert_eq!(view.outgoing(status.clone()), status);
    }
}
