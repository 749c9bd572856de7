//! Horizontal autoscaling: the size of workloads follows metrics.
//!
//! Inputs: HorizontalPodAutoscalers, the scale of their targets, pods, the metrics APIs (`metrics.k8s.io`, `custom.metrics.k8s.io`,
//! `external.metrics.k8s.io`). Outputs: the targets' size, the autoscalers' status, Events. Mirrors `pkg/controller/podautoscaler`.
//! Guarantees: each autoscaler is looked at once a period; what it recommended and did before is kept in memory alone, so that a new
//! process begins with the size it finds, as upstream's.

mod behavior;
mod metrics;
mod plan;
mod replicas;
pub(crate) mod target;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use cluster::{ApiServer, Client, EventRecorder, EventType, Informer, Key, Selection, is_not_found};
use jiff::Timestamp;
use k8s_openapi::api::{
    autoscaling::v2::{HorizontalPodAutoscaler, MetricSpec},
    core::v1::Pod,
};
use kube::{
    Api,
    api::{ListParams, PostParams, Resource},
};
use kube_rules::Selector;
use tokio_util::sync::CancellationToken;

use crate::runner::{Next, Queue};
use behavior::{Bounds, History};
use metrics::{Measure, measure};
use plan::{Course, Input, Report, course, least, recommend};
use target::Target;

/// How often an autoscaler is looked at (upstream: `--horizontal-pod-autoscaler-sync-period`).
pub const PERIOD: Duration = Duration::from_secs(15);

/// An autoscaler by name and uid: another one of the same name starts anew.
type Id = (Key, String);

/// What is remembered of an autoscaler.
#[derive(Default)]
struct Memory {
    history: History,
    /// The pods of its target, for others that select the same ones.
    selector: Option<Selector>,
}

struct Context {
    client: Client,
    autoscalers: Informer<String>,
    events: EventRecorder,
    period: Duration,
    memory: Mutex<HashMap<Id, Memory>>,
}

impl Context {
    fn memory(&self) -> MutexGuard<'_, HashMap<Id, Memory>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs the controller until `shutdown`.
pub(crate) async fn run(client: Client, api: ApiServer, period: Duration, shutdown: CancellationToken) {
    let autoscalers = Informer::start(Api::<HorizontalPodAutoscaler>::all(client.clone()), Selection::all().of(&api), |hpa| hpa.metadata.uid.clone());
    tokio::select! {
        () = autoscalers.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let queue = Queue::<Id>::default();
    let keys = queue.clone();
    // A change waits for the next period, as upstream: metrics are no newer before.
    autoscalers.subscribe(move |change| {
        if let Some(uid) = change.new.filter(|uid| change.old != Some(*uid)) {
            keys.add((change.key.clone(), uid.to_string()));
        }
    });
    let events = EventRecorder::new(client.clone(), "horizontal-pod-autoscaler", "");
    let context = Arc::new(Context { client, autoscalers, events, period, memory: Mutex::default() });
    queue.run("horizontalpodautoscaler", 5, shutdown, |id| sync(context.clone(), id)).await;
}

async fn sync(context: Arc<Context>, id: Id) -> anyhow::Result<Next> {
    if context.autoscalers.get(&id.0).is_none_or(|uid| *uid != id.1) {
        context.memory().remove(&id);
        return Ok(Next::Change);
    }
    if let Err(error) = reconcile(&context, &id).await {
        tracing::debug!(autoscaler = %id.0, error = format!("{error:#}"), "autoscaling failed; trying again after the period");
    }
    Ok(Next::Within(context.period))
}

async fn reconcile(context: &Context, id: &Id) -> anyhow::Result<()> {
    let api: Api<HorizontalPodAutoscaler> = Api::namespaced(context.client.clone(), &id.0.ns);
    let Some(hpa) = api.get_opt(&id.0.name).await?.filter(|hpa| hpa.metadata.uid.as_ref() == Some(&id.1)) else { return Ok(()) };
    let mut report = Report::new(&hpa, Timestamp::now());
    scale(context, id, &hpa, &mut report).await;
    let object = hpa.object_ref(&());
    for (type_, reason, message) in &report.events {
        context.events.event(&object, *type_, reason, None, message.clone());
    }
    if hpa.status.as_ref() == Some(&report.status) {
        return Ok(());
    }
    let changed = HorizontalPodAutoscaler { status: Some(report.status), ..hpa };
    match api.replace_status(&id.0.name, &PostParams::default(), &changed).await {
        Err(error) if is_not_found(&error) => Ok(()),
        Err(error) => {
            context.events.event(&object, EventType::Warning, "FailedUpdateStatus", None, crate::refusal(&error));
            Err(error).context("writing the autoscaler's status")
        }
        Ok(_) => Ok(()),
    }
}

/// Brings the target to the size that its metrics call for.
async fn scale(context: &Context, id: &Id, hpa: &HorizontalPodAutoscaler, report: &mut Report) {
    let (ns, now) = (&id.0.ns, Timestamp::now());
    let spec = &hpa.spec;
    let reference = &spec.scale_target_ref;
    let version = reference.api_version.as_deref().unwrap_or_default();
    let found = async {
        let target = Target::find(&context.client, ns, version, &reference.kind, &reference.name).await?;
        let scale = target.scale().await?;
        Ok::<_, String>((target, scale))
    };
    let (target, scale) = match found.await {
        Ok(found) => found,
        Err(error) => return report.no_scale(&error),
    };
    report.condition("AbleToScale", true, "SucceededGetScale", "the HPA controller was able to get the target's current scale");
    let current = scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    context.memory().entry(id.clone()).or_default().history.begin(current, now);

    let (desired, reason) = match course(spec, current) {
        Course::Off => {
            report.status.current_metrics = None;
            let message = "scaling is disabled since the replica count of the target is zero";
            report.condition("ScalingActive", false, "ScalingDisabled", message);
            return report.numbers(current, Some(0), false);
        }
        Course::Resize(to, reason) => {
            report.status.current_metrics = None;
            (to, reason.to_owned())
        }
        Course::Measure => {
            let status = scale.status.as_ref();
            let selector = status.and_then(|status| status.selector.as_deref()).unwrap_or_default();
            let present = status.map(|status| status.replicas).unwrap_or_default();
            match follow_metrics(context, id, hpa, (current, present, selector), report).await {
                Ok(decided) => decided,
                Err(error) => {
                    report.numbers(current, None, false);
                    return report.event(EventType::Warning, "FailedComputeMetricsReplicas", error);
                }
            }
        }
    };
    if desired == current {
        return report.numbers(current, Some(current), false);
    }
    let done = target.resize(desired).await;
    let failed = done.is_err();
    report.resized(desired, &reason, done);
    if failed {
        return report.numbers(current, None, false);
    }
    context.memory().entry(id.clone()).or_default().history.scaled(spec.behavior.as_ref(), current, desired, now);
    report.numbers(current, Some(desired), true);
}

/// The size that the metrics call for within the autoscaler's bounds, and why.
async fn follow_metrics(
    context: &Context,
    id: &Id,
    hpa: &HorizontalPodAutoscaler,
    (current, present, selector): (i32, i32, &str),
    report: &mut Report,
) -> Result<(i32, String), String> {
    let (ns, now) = (&id.0.ns, Timestamp::now());
    let spec = &hpa.spec;
    let pods = select(context, id, selector, report).await.inspect_err(|_| report.status.current_metrics = None)?;
    let mut measures: Vec<(MetricSpec, Result<Measure, String>)> = Vec::new();
    for metric in plan::metrics(spec) {
        let measured = measure(&context.client, ns, selector, &metric).await;
        measures.push((metric, measured));
    }
    let recommendation = recommend(&Input { ns, spec, current, present, pods: &pods, now }, &measures, report);
    let Some(wanted) = recommendation.replicas else { return Err(recommendation.error.unwrap_or_default()) };
    let wanted = wanted.max(0);
    let reason = if wanted > current { format!("{} above target", recommendation.metric) } else { "All metrics below target".to_owned() };
    let bounds = Bounds { current, min: least(spec), max: spec.max_replicas };
    let normalized = context.memory().entry(id.clone()).or_default().history.normalize(spec.behavior.as_ref(), bounds, wanted, now);
    report.normalized(&normalized);
    Ok((normalized.replicas, reason))
}

/// The pods of the target, unless another autoscaler selects one of them too.
async fn select(context: &Context, id: &Id, text: &str, report: &mut Report) -> Result<Vec<Pod>, String> {
    if text.is_empty() {
        report.event(EventType::Warning, "SelectorRequired", "selector is required");
        report.condition("ScalingActive", false, "InvalidSelector", "the HPA target's scale is missing a selector");
        return Err("selector is required".to_owned());
    }
    let selector = Selector::parse(text).map_err(|error| {
        let message = format!("couldn't convert selector into a corresponding internal selector object: {error}");
        report.event(EventType::Warning, "InvalidSelector", message.clone());
        report.condition("ScalingActive", false, "InvalidSelector", message.clone());
        message
    })?;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), &id.0.ns);
    let pods = pods.list(&ListParams::default().labels(text)).await.map_err(|error| crate::refusal(&error))?.items;
    let selecting: Vec<String> = {
        let mut memory = context.memory();
        memory.entry(id.clone()).or_default().selector = Some(selector);
        // One that is gone, or was replaced by another of its name, is remembered until its next turn.
        let is_present = |(key, uid): &Id| context.autoscalers.get(key).is_some_and(|present| *present == *uid);
        let selectors = memory.iter().filter(|(id, _)| is_present(id)).map(|((key, _), memory)| (key, memory.selector.as_ref()));
        selecting(selectors, &id.0.ns, &pods)
    };
    if selecting.len() > 1 {
        let message = format!("pods by selector {text} are controlled by multiple HPAs: [{}]", selecting.join(" "));
        report.event(EventType::Warning, "AmbiguousSelector", message.clone());
        report.condition("ScalingActive", false, "AmbiguousSelector", message.clone());
        return Err(message);
    }
    Ok(pods)
}

/// The autoscalers of a namespace whose selectors match one of these pods, in order.
fn selecting<'a>(selectors: impl Iterator<Item = (&'a Key, Option<&'a Selector>)>, ns: &str, pods: &[Pod]) -> Vec<String> {
    let matches = |selector: &Selector| pods.iter().any(|pod| selector.matches(pod.metadata.labels.as_ref().unwrap_or(&NONE)));
    let found = selectors.filter(|(key, selector)| key.ns == ns && selector.is_some_and(matches));
    let mut keys: Vec<String> = found.map(|(key, _)| key.to_string()).collect();
    keys.sort();
    keys
}

static NONE: kube_rules::Labels = kube_rules::Labels::new();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn autoscalers_of_the_same_pods_are_found() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "labels": {"app": "web"}}})).unwrap();
        let selector = |text: &str| Selector::parse(text).unwrap();
        let (web, db) = (selector("app=web"), selector("app=db"));
        let keys = ["shop/web", "shop/again", "shop/db", "shop/new", "other/web"].map(|text| {
            let (ns, name) = text.split_once('/').unwrap();
            Key::new(ns, name)
        });
        let selectors = [Some(&web), Some(&web), Some(&db), None, Some(&web)];
        let found = selecting(keys.iter().zip(selectors), "shop", std::slice::from_ref(&pod));
        assert_eq!(found, ["shop/again", "shop/web"]);
        assert_eq!(selecting(keys.iter().zip(selectors), "shop", &[]), Vec::<String>::new());
    }
}
