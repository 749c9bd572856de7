//! Events in the form in which they are stored. Those of events.k8s.io are the same objects.

use crate::kind::Kind;
use crate::kind::SelectableField;
use crate::table::text::{get, get_or, integer, since, time};
use crate::table::{NAME, name, number, text, wide};
use crate::validation::field::{Errors, Field};
use jiff::Timestamp;
use k8s_openapi::api::core;
use serde_json::Value;

pub fn kind() -> Kind {
    common(Kind::new("", "v1", "Event", "events", "io.k8s.api.core.v1.Event"))
        .described_by::<core::v1::Event>()
        .validate(|new, _, errors| validate(new, errors))
}

/// What both groups' Events have: the names, the fields that are selected by, the table.
pub fn common(kind: Kind) -> Kind {
    let involved = ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"];
    let kind = involved.iter().fold(kind.short(&["ev"]).create_on_update(), |kind, member| {
        kind.selectable(SelectableField::new(&format!("involvedObject.{member}")))
            .selectable(SelectableField::new(&format!("regarding.{member}")).or_at(&["involvedObject", member]))
    });
    ["reason", "reportingComponent", "type"]
        .iter()
        .fold(kind, |kind, path| kind.selectable(SelectableField::new(path)))
        .selectable(SelectableField::new("reportingController").or_at(&["reportingComponent"]))
        .selectable(SelectableField::new("source").at(&["source", "component"]).or_at(&["reportingComponent"]))
        .table(
            [
                text("Last Seen"),
                text("Type"),
                text("Reason"),
                text("Object"),
                wide(text("Subobject")),
                wide(text("Source")),
                text("Message"),
                wide(text("First Seen")),
                wide(number("Count")),
                wide(NAME),
            ],
            cells,
        )
}

/// An Event lies where its object lies, or in `default` when that has no namespace.
pub fn validate(new: &Field, errors: &mut Errors) {
    let own = new.get("metadata").get("namespace").text();
    let involved = new.get("involvedObject").get("namespace");
    let expected = if involved.is_empty() { matches!(own, "default" | "kube-system" | "") } else { involved.text() == own };
    if !expected {
        errors.invalid_value(&involved, involved.text(), "does not match event.namespace");
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointer: &str| time(object, pointer).map(|_| since(object, pointer, now));
    let first = at("/firstTimestamp").unwrap_or_else(|| since(object, "/eventTime", now));
    let series = object.get("series").filter(|series| !series.is_null());
    let last = match series {
        Some(_) => since(object, "/series/lastObservedTime", now),
        None => at("/lastTimestamp").unwrap_or_else(|| first.clone()),
    };
    let count = match series {
        Some(_) => integer(object, "/series/count"),
        None => integer(object, "/count").max(1),
    };
    let kind = get(object, "/involvedObject/kind").to_lowercase();
    let target = match get(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        last.into(),
        get(object, "/type").into(),
        get(object, "/reason").into(),
        target.into(),
        get(object, "/involvedObject/fieldPath").into(),
        event_source(object).into(),
        get(object, "/message").trim().into(),
        first.into(),
        count.into(),
        name(object),
    ]
}

/// `component, host`.
fn event_source(event: &Value) -> String {
    let component = get_or(event, "/source/component", get(event, "/reportingComponent"));
    let host = get_or(event, "/source/host", get(event, "/reportingInstance"));
    if host.is_empty() { component.to_string() } else { format!("{component}, {host}") }
}
