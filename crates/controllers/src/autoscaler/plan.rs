//! Size, conditions and events of one autoscaler (upstream: `podautoscaler/horizontal.go`). Pure.

use cluster::EventType;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        autoscaling::v2::{
            ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
            HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricIdentifier, MetricSpec, MetricStatus, MetricTarget, MetricValueStatus,
            ObjectMetricStatus, PodsMetricStatus, ResourceMetricSource, ResourceMetricStatus,
        },
        core::v1::Pod,
    },
    apimachinery::pkg::{
        api::resource::Quantity as ApiQuantity,
        apis::meta::v1::{LabelSelector, Time},
    },
};
use kube_rules::Quantity;

use super::{
    behavior::Normalized,
    metrics::Measure,
    replicas::{Goal, Proposal, Tolerances, Workload, of_pods, of_value, of_value_per_pod},
};

/// What is to be said of an autoscaler: its status and events.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub status: HorizontalPodAutoscalerStatus,
    pub events: Vec<(EventType, &'static str, String)>,
    now: Timestamp,
}

impl Report {
    pub fn new(hpa: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        Self { status: hpa.status.clone().unwrap_or_default(), events: Vec::new(), now }
    }

    pub fn event(&mut self, type_: EventType, reason: &'static str, message: impl Into<String>) {
        self.events.push((type_, reason, message.into()));
    }

    pub fn condition(&mut self, type_: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let all = self.status.conditions.get_or_insert_default();
        let index = all.iter().position(|one| one.type_ == type_).unwrap_or_else(|| {
            all.push(HorizontalPodAutoscalerCondition { type_: type_.to_owned(), ..HorizontalPodAutoscalerCondition::default() });
            all.len() - 1
        });
        let Some(condition) = all.get_mut(index) else { return };
        if condition.status != status {
            condition.last_transition_time = Some(Time(self.now));
        }
        condition.status = status.to_owned();
        condition.reason = Some(reason.to_owned());
        condition.message = Some(message.into());
    }

    /// The workload's size cannot be read.
    pub fn no_scale(&mut self, error: &str) {
        self.event(EventType::Warning, "FailedGetScale", error);
        let message = format!("the HPA controller was unable to get the target's current scale: {error}");
        self.condition("AbleToScale", false, "FailedGetScale", message);
    }

    /// The workload's size was changed, or an attempt was made.
    pub fn resized(&mut self, to: i32, reason: &str, done: Result<(), String>) {
        match done {
            Ok(()) => {
                let message = format!("the HPA controller was able to update the target scale to {to}");
                self.condition("AbleToScale", true, "SucceededRescale", message);
                self.event(EventType::Normal, "SuccessfulRescale", format!("New size: {to}; reason: {reason}"));
                // It says whether an autoscaler may start from nothing, which needs a feature that is off by default.
                self.status.conditions.get_or_insert_default().retain(|condition| condition.type_ != "ScaledToZero");
            }
            Err(error) => {
                self.event(EventType::Warning, "FailedRescale", format!("New size: {to}; reason: {reason}; error: {error}"));
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                self.condition("AbleToScale", false, "FailedUpdateScale", message);
            }
        }
    }

    pub fn normalized(&mut self, normalized: &Normalized) {
        let (reason, message) = normalized.able;
        self.condition("AbleToScale", true, reason, message);
        let (is_limited, (reason, message)) = normalized.limited;
        self.condition("ScalingLimited", is_limited, reason, message);
    }

    /// The numbers of the status; `rescaled`: the size was changed just now.
    pub fn numbers(&mut self, current: i32, desired: Option<i32>, rescaled: bool) {
        self.status.current_replicas = Some(current);
        self.status.desired_replicas = desired.unwrap_or(self.status.desired_replicas);
        if rescaled {
            self.status.last_scale_time = Some(Time(self.now));
        }
    }
}

/// What follows from a workload's size alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Course {
    /// Somebody scaled it to nothing, so that it is left alone.
    Off,
    Resize(i32, &'static str),
    /// Metrics decide.
    Measure,
}

pub(super) fn least(spec: &HorizontalPodAutoscalerSpec) -> i32 {
    spec.min_replicas.unwrap_or(1)
}

pub(super) fn course(spec: &HorizontalPodAutoscalerSpec, current: i32) -> Course {
    if current == 0 {
        Course::Off
    } else if current > spec.max_replicas {
        Course::Resize(spec.max_replicas, "Current number of replicas above Spec.MaxReplicas")
    } else if current < least(spec) {
        Course::Resize(least(spec), "Current number of replicas below Spec.MinReplicas")
    } else {
        Course::Measure
    }
}

/// The metrics of an autoscaler; one without any has upstream's default.
pub(super) fn metrics(spec: &HorizontalPodAutoscalerSpec) -> Vec<MetricSpec> {
    spec.metrics.clone().filter(|metrics| !metrics.is_empty()).unwrap_or_else(|| {
        let target = MetricTarget { type_: "Utilization".to_owned(), average_utilization: Some(80), ..MetricTarget::default() };
        let resource = Some(ResourceMetricSource { name: "cpu".to_owned(), target });
        vec![MetricSpec { type_: "Resource".to_owned(), resource, ..MetricSpec::default() }]
    })
}

/// What metrics are compared with.
pub(super) struct Input<'a> {
    pub ns: &'a str,
    pub spec: &'a HorizontalPodAutoscalerSpec,
    /// Of the workload's specification and status.
    pub current: i32,
    pub present: i32,
    pub pods: &'a [Pod],
    pub now: Timestamp,
}

/// What the metrics call for together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Recommendation {
    /// None: there is too little to go by.
    pub replicas: Option<i32>,
    /// The metric that calls for most.
    pub metric: String,
    /// Of the metrics that say nothing.
    pub error: Option<String>,
}

/// A metric that says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Failure {
    reason: &'static str,
    /// As condition and event have it.
    error: String,
    /// As the error of all metrics has it.
    whole: String,
}

/// Compares all metrics with what was measured; the largest size wins.
pub(super) fn recommend(input: &Input<'_>, measures: &[(MetricSpec, Result<Measure, String>)], report: &mut Report) -> Recommendation {
    let (mut replicas, mut metric) = (0, String::new());
    let mut statuses = Vec::new();
    let mut failures: Vec<Failure> = Vec::new();
    for (spec, measure) in measures {
        match evaluate(input, spec, measure) {
            Ok((proposal, name, status)) => {
                statuses.push(status);
                if replicas == 0 || proposal.replicas > replicas {
                    (replicas, metric) = (proposal.replicas, name);
                }
            }
            Err(failure) => {
                statuses.push(MetricStatus::default());
                report.event(EventType::Warning, failure.reason, failure.error.clone());
                failures.push(failure);
            }
        }
    }
    report.status.current_metrics = Some(statuses);
    let (count, all) = (failures.len(), measures.len());
    let error = failures.first().map(|first| format!("invalid metrics ({count} invalid out of {all}), first error is: {}", first.whole));
    match failures.first() {
        Some(first) if count >= all || replicas < input.current => {
            let message = format!("the HPA was unable to compute the replica count: {}", first.error);
            report.condition("ScalingActive", false, first.reason, message);
            Recommendation { replicas: None, metric: String::new(), error }
        }
        _ => {
            let message = format!("the HPA was able to successfully calculate a replica count from {metric}");
            report.condition("ScalingActive", true, "ValidMetricFound", message);
            Recommendation { replicas: Some(replicas), metric, error }
        }
    }
}

type Evaluated = (Proposal, String, MetricStatus);

fn evaluate(input: &Input<'_>, spec: &MetricSpec, measure: &Result<Measure, String>) -> Result<Evaluated, Failure> {
    if let Some(source) = &spec.resource {
        let (proposal, value, name) = of_resource(input, &source.target, (&source.name, ""), measure).map_err(|error| Failure {
            reason: "FailedGetResourceMetric",
            whole: format!("failed to get {} resource metric value: {error}", source.name),
            error,
        })?;
        let resource = Some(ResourceMetricStatus { name: source.name.clone(), current: value });
        return Ok((proposal, name, MetricStatus { type_: "Resource".to_owned(), resource, ..MetricStatus::default() }));
    }
    if let Some(source) = &spec.container_resource {
        let names = (source.name.as_str(), source.container.as_str());
        let (proposal, value, name) = of_resource(input, &source.target, names, measure).map_err(|error| Failure {
            reason: "FailedGetContainerResourceMetric",
            whole: format!("failed to get {} container metric value: {error}", source.container),
            error,
        })?;
        let status = ContainerResourceMetricStatus { name: source.name.clone(), container: source.container.clone(), current: value };
        let status = MetricStatus { type_: "ContainerResource".to_owned(), container_resource: Some(status), ..MetricStatus::default() };
        return Ok((proposal, name, status));
    }
    if spec.pods.is_some() {
        return of_pods_metric(input, spec, measure).map_err(|error| Failure {
            reason: "FailedGetPodsMetric",
            whole: format!("failed to get pods metric value: {error}"),
            error,
        });
    }
    if spec.object.is_some() {
        return of_object(input, spec, measure).map_err(|(error, outer)| Failure {
            reason: "FailedGetObjectMetric",
            whole: format!("failed to get object metric value: {outer}{error}"),
            error,
        });
    }
    if let Some(source) = &spec.external {
        return of_external(input, spec, measure).map_err(|(error, outer)| Failure {
            reason: "FailedGetExternalMetric",
            whole: format!("failed to get {} external metric value: {outer}{error}", source.metric.name),
            error,
        });
    }
    let error = format!("unknown metric source type {:?}", spec.type_);
    Err(Failure { reason: "InvalidMetricSourceType", whole: error.clone(), error })
}

fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let default = Tolerances::default();
    let Some(behavior) = &spec.behavior else { return default };
    let given = |tolerance: Option<&ApiQuantity>| Some(Quantity::parse(&tolerance?.0).ok()?.as_f64());
    Tolerances {
        down: given(behavior.scale_down.as_ref().and_then(|rules| rules.tolerance.as_ref())).unwrap_or(default.down),
        up: given(behavior.scale_up.as_ref().and_then(|rules| rules.tolerance.as_ref())).unwrap_or(default.up),
    }
}

fn workload<'a>(input: &Input<'a>) -> Workload<'a> {
    Workload { current: input.current, pods: input.pods, tolerances: tolerances(input.spec), now: input.now }
}

fn millis(quantity: Option<&ApiQuantity>) -> Option<i64> {
    Some(Quantity::parse(&quantity?.0).ok()?.milli_value())
}

fn quantity(millis: i64) -> ApiQuantity {
    ApiQuantity(Quantity::from_millis(millis).to_string())
}

/// Memory is shown in binary units, as the metrics API does.
fn resource_quantity(resource: &str, millis: i64) -> ApiQuantity {
    if resource == "memory" && millis % 1000 == 0 { ApiQuantity(Quantity::from_bytes(millis / 1000).to_string()) } else { quantity(millis) }
}

fn of_resource(
    input: &Input<'_>,
    target: &MetricTarget,
    (resource, container): (&str, &str),
    measure: &Result<Measure, String>,
) -> Result<(Proposal, MetricValueStatus, String), String> {
    let average = millis(target.average_value.as_ref());
    let goal = match (average, target.average_utilization) {
        (Some(average), _) => Goal::Average(average),
        (None, Some(percent)) => Goal::Utilization { percent, container },
        (None, None) => {
            return Err(
                "invalid resource metric source: neither an average utilization target nor an average value (usage) target was set".to_owned()
            );
        }
    };
    let what = if average.is_some() { "usage" } else { "utilization" };
    let proposal = match measure {
        Ok(Measure::Pods(samples)) => of_pods(&workload(input), goal, resource, samples.clone()),
        Ok(_) => Err(format!("unable to get metrics for resource {resource}: the answer is not about pods")),
        Err(error) => Err(format!("unable to get metrics for resource {resource}: {error}")),
    };
    let proposal = proposal.map_err(|error| format!("failed to get {resource} {what}: {error}"))?;
    let name = match (average, container) {
        (Some(_), _) => format!("{resource} resource"),
        (None, "") => format!("{resource} resource utilization (percentage of request)"),
        (None, _) => format!("{resource} container resource utilization (percentage of request)"),
    };
    let value = MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(resource_quantity(resource, proposal.usage)),
        value: None,
    };
    Ok((proposal, value, name))
}

fn identifier(metric: &MetricIdentifier) -> MetricIdentifier {
    MetricIdentifier { name: metric.name.clone(), selector: metric.selector.clone() }
}

fn average(usage: i64) -> MetricValueStatus {
    MetricValueStatus { average_value: Some(quantity(usage)), ..MetricValueStatus::default() }
}

fn whole(usage: i64) -> MetricValueStatus {
    MetricValueStatus { value: Some(quantity(usage)), ..MetricValueStatus::default() }
}

fn of_pods_metric(input: &Input<'_>, spec: &MetricSpec, measure: &Result<Measure, String>) -> Result<Evaluated, String> {
    let Some(source) = &spec.pods else { return Err("invalid pods metric source".to_owned()) };
    let target = millis(source.target.average_value.as_ref()).ok_or("invalid pods metric source: no average value target was set")?;
    let unable = |error: &str| format!("unable to get metric {}: {error}", source.metric.name);
    let proposal = match measure {
        Ok(Measure::Pods(samples)) => of_pods(&workload(input), Goal::Average(target), "", samples.clone())?,
        Ok(_) => return Err(unable("the answer is not about pods")),
        Err(error) => return Err(unable(error)),
    };
    let status = PodsMetricStatus { metric: identifier(&source.metric), current: average(proposal.usage) };
    let status = MetricStatus { type_: "Pods".to_owned(), pods: Some(status), ..MetricStatus::default() };
    Ok((proposal, format!("pods metric {}", source.metric.name), status))
}

/// An error, and what goes before it where errors of all metrics are told.
type Told = (String, String);

fn plain(error: &str) -> Told {
    (error.to_owned(), String::new())
}

fn of_object(input: &Input<'_>, spec: &MetricSpec, measure: &Result<Measure, String>) -> Result<Evaluated, Told> {
    let Some(source) = &spec.object else { return Err(plain("invalid object metric source")) };
    let (metric, object) = (&source.metric, &source.described_object);
    let unable = |error: &str| format!("unable to get metric {}: {} on {} {}/{error}", metric.name, object.kind, input.ns, object.name);
    let usage = match measure {
        Ok(Measure::Value(value)) => Ok(*value),
        Ok(_) => Err(unable("the answer is no single value")),
        Err(error) => Err(unable(error)),
    };
    let target = &source.target;
    let (proposal, current, name) = match (target.type_.as_str(), millis(target.value.as_ref()), millis(target.average_value.as_ref())) {
        ("Value", Some(target), _) => {
            let proposal = usage.and_then(|usage| of_value(&workload(input), usage, target)).map_err(|error| plain(&error))?;
            (proposal, whole(proposal.usage), format!("{} metric {}", object.kind, metric.name))
        }
        ("AverageValue", _, Some(target)) => {
            let usage = usage.map_err(|error| (error, format!("failed to get {} object metric: ", metric.name)))?;
            let proposal = of_value_per_pod(input.present, tolerances(input.spec), usage, target);
            (proposal, average(proposal.usage), format!("external metric {}({})", metric.name, selector(metric.selector.as_ref())))
        }
        _ => return Err(plain("invalid object metric source: neither a value target nor an average value target was set")),
    };
    let status = ObjectMetricStatus { described_object: object.clone(), metric: identifier(metric), current };
    Ok((proposal, name, MetricStatus { type_: "Object".to_owned(), object: Some(status), ..MetricStatus::default() }))
}

fn of_external(input: &Input<'_>, spec: &MetricSpec, measure: &Result<Measure, String>) -> Result<Evaluated, Told> {
    let Some(source) = &spec.external else { return Err(plain("invalid external metric source")) };
    let metric = &source.metric;
    let shown = selector(metric.selector.as_ref());
    let unable = |error: &str| format!("unable to get external metric {}/{}/{shown}: {error}", input.ns, metric.name);
    let usage = match measure {
        Ok(Measure::Values(values)) => Ok(values.iter().fold(0, |sum: i64, value| sum.saturating_add(*value))),
        Ok(_) => Err(unable("the answer is no list of values")),
        Err(error) => Err(unable(error)),
    };
    let (proposal, current) = if let Some(target) = millis(source.target.average_value.as_ref()) {
        let usage = usage.map_err(|error| (error, format!("failed to get {} external metric: ", metric.name)))?;
        let proposal = of_value_per_pod(input.present, tolerances(input.spec), usage, target);
        (proposal, average(proposal.usage))
    } else if let Some(target) = millis(source.target.value.as_ref()) {
        let proposal = usage.and_then(|usage| of_value(&workload(input), usage, target));
        let proposal = proposal.map_err(|error| (error, format!("failed to get external metric {}: ", metric.name)))?;
        (proposal, whole(proposal.usage))
    } else {
        return Err(plain("invalid external metric source: neither a value target nor an average value target was set"));
    };
    let status = ExternalMetricStatus { metric: identifier(metric), current };
    let status = MetricStatus { type_: "External".to_owned(), external: Some(status), ..MetricStatus::default() };
    Ok((proposal, format!("external metric {}({shown})", metric.name), status))
}

/// A selector as upstream's messages show it.
fn selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".to_owned() };
    let labels: String = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|one| {
            let values = one.values.as_deref().unwrap_or_default().join(" ");
            format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", one.key, one.operator)
        })
        .collect();
    format!("&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
