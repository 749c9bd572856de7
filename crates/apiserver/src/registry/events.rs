//! Events have two faces: core/v1, in which they are stored, and events.k8s.io/v1, which names the same members otherwise
//! (pkg/apis/events/v1/conversion.go).

use crate::kinds::KindInfo;
use serde_json::{Map, Value};

const GROUP: &str = "events.k8s.io";
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

/// Whether objects of this kind are stored under another one.
pub fn is_view(kind: &KindInfo) -> bool {
    kind.group == GROUP
}

/// A stored object as clients of `kind` see it.
pub fn outgoing(kind: &KindInfo, object: Value) -> Value {
    let is_event = object.get("kind").is_some_and(|name| name == kind.kind);
    if is_view(kind) && is_event { renamed(object, &kind.api_version(), |name| find(name, |pair| (pair.0, pair.1))) } else { object }
}

/// An object of a client of `kind` as it is stored.
pub fn incoming(kind: &KindInfo, object: Value) -> Value {
    if is_view(kind) { renamed(object, kind.version, |name| find(name, |pair| (pair.1, pair.0))) } else { object }
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
    use super::*;
    use serde_json::json;

    #[test]
    fn both_faces_say_the_same() {
        let view = crate::kinds::by_resource(GROUP, "v1", "events").unwrap();
        let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": "a"}, "involvedObject": {"kind": "Pod"}, "reason": "R",
            "message": "m", "source": {"component": "c"}, "count": 2, "reportingComponent": "x"});
        let shown = outgoing(view, event.clone());
        assert_eq!(
            shown,
            json!({"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {"name": "a"}, "regarding": {"kind": "Pod"}, "reason": "R",
            "note": "m", "deprecatedSource": {"component": "c"}, "deprecatedCount": 2, "reportingController": "x"})
        );
        assert_eq!(incoming(view, shown), event);
        let core = crate::kinds::by_resource("", "v1", "events").unwrap();
        assert_eq!(outgoing(core, event.clone()), event);
        let status = json!({"kind": "Status", "message": "gone"});
        assert_eq!(outgoing(view, status.clone()), status);
    }
}
