//! The columns of HorizontalPodAutoscalers.

use crate::object;
use crate::table::text::{get, get_or, integer, list};
use crate::table::{age, name};
use jiff::Timestamp;
use serde_json::Value;

const UNKNOWN: &str = "<unknown>";
/// So many metrics are shown.
const SHOWN: usize = 2;

pub(super) fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let reference = format!("{}/{}", get(object, "/spec/scaleTargetRef/kind"), get(object, "/spec/scaleTargetRef/name"));
    let least = object::integer(object, &["spec", "minReplicas"]).map_or_else(|| "<unset>".to_string(), |least| least.to_string());
    vec![
        name(object),
        reference.into(),
        metrics(object).into(),
        least.into(),
        integer(object, "/spec/maxReplicas").into(),
        integer(object, "/status/currentReplicas").into(),
        age(object, now),
    ]
}

fn metrics(object: &Value) -> String {
    let statuses = list(object, "/status/currentMetrics");
    let shown: Vec<String> =
        list(object, "/spec/metrics").iter().enumerate().map(|(index, spec)| metric(spec, statuses.get(index).unwrap_or(&Value::Null))).collect();
    match shown.len() {
        0 => "<none>".into(),
        count if count > SHOWN => format!("{} + {} more...", shown[..SHOWN].join(", "), count - SHOWN),
        _ => shown.join(", "),
    }
}

fn metric(spec: &Value, status: &Value) -> String {
    let source = match get(spec, "/type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".into(),
    };
    let (Some(spec), status) = (spec.get(source), status.get(source).unwrap_or(&Value::Null)) else { return "<unknown type>".into() };
    let average = get(spec, "/target/averageValue");
    let current = |member: &str| get_or(status, &format!("/current/{member}"), UNKNOWN).to_string();
    match source {
        "external" | "object" if !average.is_empty() => format!("{}/{average} (avg)", current("averageValue")),
        "external" | "object" => format!("{}/{}", current("value"), get(spec, "/target/value")),
        "pods" => format!("{}/{average}", current("averageValue")),
        _ if !average.is_empty() => format!("{}: {}/{average}", get(spec, "/name"), current("averageValue")),
        _ => {
            let percent = |value: &Value, path: [&str; 2], missing: &str| {
                object::integer(value, &path).map_or_else(|| missing.to_string(), |percent| format!("{percent}%"))
            };
            let now = percent(status, ["current", "averageUtilization"], UNKNOWN);
            format!("{}: {now}/{}", get(spec, "/name"), percent(spec, ["target", "averageUtilization"], "<auto>"))
        }
    }
}
