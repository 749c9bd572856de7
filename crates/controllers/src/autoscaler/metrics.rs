//! What the metrics APIs say (upstream: `podautoscaler/metrics/client.go`).

use cluster::Client;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{MetricIdentifier, MetricSpec};
use kube_rules::Quantity;
use serde_json::Value;

use super::replicas::{Sample, Samples};

const RESOURCE: &str = "metrics.k8s.io";
const CUSTOM: &str = "custom.metrics.k8s.io";
const EXTERNAL: &str = "external.metrics.k8s.io";
/// The window of a custom metric that names none (upstream: `metricServerDefaultMetricWindow`).
const WINDOW: SignedDuration = SignedDuration::from_mins(1);

/// What was measured for one metric.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Measure {
    Pods(Samples),
    /// One value, in thousandths.
    Value(i64),
    /// Values of a metric from elsewhere.
    Values(Vec<i64>),
}

/// Measures what `spec` asks for, of the pods that `selector` matches.
pub(super) async fn measure(client: &Client, ns: &str, selector: &str, spec: &MetricSpec) -> Result<Measure, String> {
    if let Some(source) = &spec.resource {
        return resource(client, ns, selector, &source.name, "").await;
    }
    if let Some(source) = &spec.container_resource {
        return resource(client, ns, selector, &source.name, &source.container).await;
    }
    if let Some(source) = &spec.pods {
        let path = format!("namespaces/{ns}/pods/{}/{}", escaped("*"), escaped(&source.metric.name));
        let items = custom(client, &path, &[("labelSelector", selector.to_owned())], &source.metric).await?;
        return Ok(Measure::Pods(items.iter().filter_map(sample).collect()));
    }
    if let Some(source) = &spec.object {
        let object = &source.described_object;
        let group = object.api_version.as_deref().and_then(|version| version.split_once('/')).map(|(group, _)| group);
        let path = if object.kind == "Namespace" && group.is_none() {
            // An autoscaler sees its own namespace only.
            format!("namespaces/{ns}/metrics/{}", escaped(&source.metric.name))
        } else {
            let version = object.api_version.as_deref().unwrap_or("v1");
            let plural = super::target::plural(client, version, &object.kind).await.map_err(|error| failed("custom", &error))?;
            let resource = group.map_or_else(|| plural.clone(), |group| format!("{plural}.{group}"));
            format!("namespaces/{ns}/{resource}/{}/{}", escaped(&object.name), escaped(&source.metric.name))
        };
        let items = custom(client, &path, &[], &source.metric).await?;
        return items.first().and_then(value).map(Measure::Value).ok_or_else(|| failed("custom", "the answer has no value"));
    }
    if let Some(source) = &spec.external {
        let query = vec![("labelSelector", selector_text(&source.metric))];
        let items = items(client, EXTERNAL, &format!("namespaces/{ns}/{}", escaped(&source.metric.name)), &query).await;
        let items = items.map_err(|error| failed("external", &error))?;
        if items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        return Ok(Measure::Values(items.iter().filter_map(value).collect()));
    }
    Err(format!("unknown metric source type {:?}", spec.type_))
}

fn failed(api: &str, error: &str) -> String {
    format!("unable to fetch metrics from {api} metrics API: {error}")
}

async fn resource(client: &Client, ns: &str, selector: &str, name: &str, container: &str) -> Result<Measure, String> {
    let query = [("labelSelector", selector.to_owned())];
    let items = items(client, RESOURCE, &format!("namespaces/{ns}/pods"), &query).await.map_err(|error| failed("resource", &error))?;
    if items.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    Ok(Measure::Pods(items.iter().filter_map(|item| usage(item, name, container)).collect()))
}

/// A pod's usage of a resource: of one container, or of all when each has a value.
fn usage(item: &Value, resource: &str, container: &str) -> Option<(String, Sample)> {
    let containers = item["containers"].as_array()?;
    let of = |one: &Value| quantity(&one["usage"][resource]);
    let value = if container.is_empty() {
        let values: Vec<i64> = containers.iter().map(of).collect::<Option<_>>()?;
        (!values.is_empty()).then(|| values.iter().fold(0, |sum: i64, value| sum.saturating_add(*value)))
    } else {
        containers.iter().find(|one| one["name"] == container).and_then(of)
    };
    let window = item["window"].as_str().and_then(|text| text.parse().ok()).unwrap_or(SignedDuration::ZERO);
    Some((item["metadata"]["name"].as_str()?.to_owned(), Sample { value: value?, at: time(&item["timestamp"])?, window }))
}

/// A pod's value of a custom metric.
fn sample(item: &Value) -> Option<(String, Sample)> {
    // v1beta1 has `windowSeconds` too, under `window`.
    let seconds = item["windowSeconds"].as_i64().or_else(|| item["window"].as_i64());
    let window = seconds.map_or(WINDOW, SignedDuration::from_secs);
    Some((item["describedObject"]["name"].as_str()?.to_owned(), Sample { value: value(item)?, at: time(&item["timestamp"])?, window }))
}

fn value(item: &Value) -> Option<i64> {
    quantity(&item["value"])
}

fn quantity(value: &Value) -> Option<i64> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Some(Quantity::parse(&text).ok()?.milli_value())
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

async fn custom(client: &Client, path: &str, query: &[(&str, String)], metric: &MetricIdentifier) -> Result<Vec<Value>, String> {
    let mut query = query.to_vec();
    query.push(("metricLabelSelector", selector_text(metric)));
    let items = items(client, CUSTOM, path, &query).await.map_err(|error| failed("custom", &error))?;
    if items.is_empty() { Err("no metrics returned from custom metrics API".to_owned()) } else { Ok(items) }
}

/// The items of a list, in the version of the API that the server prefers.
async fn items(client: &Client, group: &str, path: &str, query: &[(&str, String)]) -> Result<Vec<Value>, String> {
    let groups = client.list_api_groups().await.map_err(|error| crate::refusal(&error))?.groups;
    let found = groups.iter().find(|one| one.name == group);
    let version = found.and_then(|one| one.preferred_version.as_ref().or(one.versions.first())).map(|version| version.group_version.clone());
    let version = version.ok_or_else(|| unserved(group, path))?;
    let given = query.iter().filter(|(_, value)| !value.is_empty());
    let query: Vec<String> = given.map(|(name, value)| format!("{name}={}", escaped(value))).collect();
    let request = http::Request::get(format!("/apis/{version}/{path}?{}", query.join("&"))).body(Vec::new()).map_err(|error| error.to_string())?;
    let answer: Value = client.request(request).await.map_err(|error| crate::refusal(&error))?;
    Ok(answer["items"].as_array().cloned().unwrap_or_default())
}

/// Upstream's words where nobody serves one of the APIs.
fn unserved(group: &str, path: &str) -> String {
    if group == CUSTOM {
        return format!("no custom metrics API ({CUSTOM}) registered");
    }
    let resource = path.rsplit('/').next().unwrap_or_default();
    let resource = percent_encoding::percent_decode_str(resource).decode_utf8_lossy();
    format!("the server could not find the requested resource (get {resource}.{group})")
}

fn escaped(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// The selector of a metric, as requests carry it.
fn selector_text(metric: &MetricIdentifier) -> String {
    let Some(selector) = &metric.selector else { return String::new() };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.as_deref().unwrap_or_default().join(",");
        match one.operator.as_str() {
            "In" => format!("{} in ({values})", one.key),
            "NotIn" => format!("{} notin ({values})", one.key),
            "DoesNotExist" => format!("!{}", one.key),
            _ => one.key.clone(),
        }
    });
    labels.chain(expressions).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_that_of_all_containers_or_of_one() {
        let item =
            |containers: Value| json!({"metadata": {"name": "p"}, "timestamp": "2026-01-01T12:00:00Z", "window": "15s", "containers": containers});
        let both = json!([{"name": "a", "usage": {"cpu": "100m", "memory": "1Mi"}}, {"name": "b", "usage": {"cpu": "250000000n"}}]);
        for (containers, resource, container, expected) in [
            (both.clone(), "cpu", "", Some(350)),
            (both.clone(), "cpu", "b", Some(250)),
            (both.clone(), "memory", "a", Some(1024 * 1024 * 1000)),
            (both.clone(), "memory", "", None),
            (both, "cpu", "c", None),
            (json!([]), "cpu", "", None),
        ] {
            let found = usage(&item(containers), resource, container);
            assert_eq!(found.as_ref().map(|(_, sample)| sample.value), expected, "{resource} {container}");
            if let Some((name, sample)) = found {
                assert_eq!((name.as_str(), sample.window), ("p", SignedDuration::from_secs(15)));
            }
        }
    }

    #[test]
    fn custom_metrics_of_pods_have_windows() {
        let item = |more: Value| {
            let mut item = json!({"describedObject": {"name": "p"}, "timestamp": "2026-01-01T12:00:00Z", "value": "1500m"});
            item.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
            item
        };
        assert_eq!(sample(&item(json!({}))).unwrap().1.window, WINDOW);
        assert_eq!(sample(&item(json!({"windowSeconds": 30}))).unwrap().1.window, SignedDuration::from_secs(30));
        assert_eq!(sample(&item(json!({"value": 2}))).unwrap().1.value, 2000);
        assert_eq!(sample(&item(json!({"value": "x"}))), None);
    }

    #[test]
    fn an_api_that_nobody_serves_is_named() {
        for (group, path, expected) in [
            (RESOURCE, "namespaces/a/pods", "the server could not find the requested resource (get pods.metrics.k8s.io)"),
            (CUSTOM, "namespaces/a/pods/%2A/qps", "no custom metrics API (custom.metrics.k8s.io) registered"),
            (EXTERNAL, "namespaces/a/queue%5Fsize", "the server could not find the requested resource (get queue_size.external.metrics.k8s.io)"),
        ] {
            assert_eq!(unserved(group, path), expected);
        }
    }

    #[test]
    fn selectors_of_metrics_are_written_as_requests_carry_them() {
        let metric: MetricIdentifier = serde_json::from_value(json!({"name": "qps", "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "c", "operator": "In", "values": ["d", "e"]}, {"key": "f", "operator": "NotIn", "values": ["g"]},
            {"key": "h", "operator": "Exists"}, {"key": "i", "operator": "DoesNotExist"},
        ]}}))
        .unwrap();
        assert_eq!(selector_text(&metric), "a=b,c in (d,e),f notin (g),h,!i");
        assert_eq!(selector_text(&MetricIdentifier::default()), "");
    }
}
