//! The API status of a pod (upstream kubelet_pods.go, status/generate.go).

mod whole;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, HostIP, Pod,
    PodCondition, PodIP, PodSpec, PodStatus, ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use kube_rules::Quantity;

use super::plan::{Ending, Waiting};
use super::resize::{Amounts, Work};
use super::{Container, Hook, ImageState, Input, Kind, State, WaitingReason, Why, containers, is_host_network, is_recursive, restart};

/// The conditions that belong to the node agent; others are left alone.
pub(crate) const OWN_CONDITIONS: [&str; 8] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled", RESIZE_PENDING, RESIZE_IN_PROGRESS, ALL_RESTARTING];

/// A condition that several writers share: the agent writes it of pods that it evicts.
pub(crate) const DISRUPTION_TARGET: &str = "DisruptionTarget";
pub(super) const RESIZE_PENDING: &str = "PodResizePending";
pub(super) const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
const ALL_RESTARTING: &str = "AllContainersRestarting";

pub(super) fn render(i: &Input<'_>, waiting: &[Waiting], ending: Ending) -> PodStatus {
    let old = i.pod.status.clone().unwrap_or_default();
    let Some(spec) = &i.pod.spec else { return old };
    let mut status = PodStatus {
        conditions: old.conditions.clone(),
        start_time: old.start_time.clone().or(Some(seconds(i.now))),
        qos_class: old.qos_class.clone().or(Some(kube_rules::qos_class(spec).to_owned())),
        nominated_node_name: old.nominated_node_name.clone(),
        observed_generation: i.pod.metadata.generation,
        phase: old.phase.clone(),
        reason: old.reason.clone(),
        message: old.message.clone(),
        ..Default::default()
    };
    if let Some(refusal) = &i.memory.refused {
        status.phase = Some("Failed".into());
        status.reason = Some(refusal.reason.to_string());
        status.message = Some(format!("Pod was rejected: {}", refusal.message));
        return status;
    }
    let one = |(kind, c): (Kind, &Spec)| (kind, container(i, kind, c, waiting, ending, &old));
    let all: Vec<(Kind, ContainerStatus)> = containers(spec).map(one).collect();
    status.phase = Some(phase(i, spec, &all, ending, old.phase.as_deref()));
    let finished = matches!(old.phase.as_deref(), Some("Succeeded" | "Failed"));
    if ending == Ending::Over && !finished && deadline(i).is_some_and(|at| at <= i.now) {
        status.phase = Some("Failed".into());
        status.reason = Some("DeadlineExceeded".into());
        status.message = Some("Pod was active on the node longer than the specified deadline".into());
    }
    if let Some(evicted) = i.memory.evicted.as_ref().filter(|_| ending == Ending::Over && !finished) {
        status.phase = Some("Failed".into());
        status.reason = Some(evicted.reason.to_string());
        status.message = Some(evicted.message.clone());
        if let Some(message) = &evicted.disruption {
            let verdict = Verdict { ok: true, reason: Some("TerminationByKubelet"), message: Some(message.clone()) };
            set_condition(&mut status, DISRUPTION_TARGET, verdict, i.pod.metadata.generation, i.now);
        }
    }
    addresses(i, &mut status, &old);
    conditions(i, spec, &all, &mut status);
    let (inits, mains): (Vec<_>, Vec<_>) = all.into_iter().partition(|(k, _)| *k != Kind::Main);
    let statuses = |list: Vec<(Kind, ContainerStatus)>| (!list.is_empty()).then(|| list.into_iter().map(|(_, s)| s).collect());
    status.init_container_statuses = statuses(inits);
    let is_running = old.phase.as_deref() == Some("Running");
    status.allocated_resources = whole::allocated(spec);
    status.resources = Some(whole::resources(spec, is_running, i.node.resizes, &i.record.actuated));
    status.container_statuses = statuses(mains);
    status.container_statuses.iter_mut().for_each(|all| all.sort_by(|a, b| a.name.cmp(&b.name)));
    let ephemeral = |c: &Spec| ContainerStatus { ready: false, started: None, ..container(i, Kind::Init, c, waiting, ending, &old) };
    status.ephemeral_container_statuses = (!i.ephemeral.is_empty()).then(|| i.ephemeral.iter().map(ephemeral).collect());
    status.ephemeral_container_statuses.iter_mut().for_each(|all| all.sort_by(|a, b| a.name.cmp(&b.name)));
    whole::limit_messages(&mut status, containers(spec).count() + i.ephemeral.len());
    status
}

/// A container's mounts, which its status repeats; of those that are only read, whether they are so at every level.
fn mounts(c: &Spec, offered: bool) -> Option<Vec<VolumeMountStatus>> {
    c.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty()).map(|mounts| {
        let status = |mount: &VolumeMount| VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: mount.read_only.filter(|only| *only),
            recursive_read_only: (mount.read_only == Some(true)).then(|| {
                let mode = if is_recursive(mount, offered) == Ok(true) { "Enabled" } else { "Disabled" };
                mode.to_owned()
            }),
            volume_status: None,
        };
        mounts.iter().map(status).collect()
    })
}

/// A condition of the pod's status.
pub(super) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == type_)
}

/// Whether the pod's status says that it has ended.
pub(super) fn is_terminal(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// When `activeDeadlineSeconds` runs out.
pub(super) fn deadline(i: &Input<'_>) -> Option<Timestamp> {
    let seconds = i.pod.spec.as_ref()?.active_deadline_seconds?;
    let start = i.pod.status.as_ref()?.start_time.as_ref()?.0;
    start.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// The restart count that the next run of a container gets.
pub(super) fn next_restart(i: &Input<'_>, c: &Spec) -> u32 {
    if let Some(newest) = i.observed.newest(&c.name) {
        return newest.restarts + 1;
    }
    if let Some(restarts) = i.memory.reset.get(&c.name) {
        return *restarts;
    }
    // The runtime forgot it. A waiting state already counted the loss.
    old_status(i, &c.name).map_or(0, |old| {
        let ran = old.state.as_ref().is_some_and(|s| s.waiting.is_none());
        old.restart_count as u32 + u32::from(ran && old.container_id.is_some())
    })
}

/// Whether a running container counts as started.
pub(super) fn started(i: &Input<'_>, c: &Spec, running: &Container) -> bool {
    let hooked = i.memory.hooks.get(&running.id) == Some(&Hook::Running);
    !hooked && (c.startup_probe.is_none() || i.memory.health.get(&running.id).is_some_and(|h| h.started))
}

fn old_status<'a>(i: &'a Input<'_>, name: &str) -> Option<&'a ContainerStatus> {
    old(i.pod, name)
}

/// What the pod's status says of a container.
pub(crate) fn old<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let inits = status.init_container_statuses.iter().flatten();
    let others = status.container_statuses.iter().chain(&status.ephemeral_container_statuses).flatten();
    inits.chain(others).find(|s| s.name == name)
}

fn container(i: &Input<'_>, kind: Kind, c: &Spec, waiting: &[Waiting], ending: Ending, old_pod: &PodStatus) -> ContainerStatus {
    let mut attempts = i.observed.containers.iter().filter(|o| o.name == c.name);
    let Some(newest) = attempts.next() else {
        return missing(i, c, waiting, ending, old_pod);
    };
    let previous = attempts.find(|o| o.state == State::Exited);
    let old = old_status(i, &c.name);
    let reset = || i.memory.reset.get(&c.name).filter(|restarts| **restarts == newest.restarts).map(|_| restart::removed());
    let kept = || old.filter(|o| o.restart_count as u32 == newest.restarts).and_then(|o| o.last_state.clone());
    let mut status = ContainerStatus {
        name: c.name.clone(),
        image: newest.image.clone(),
        image_id: newest.image_id.clone(),
        container_id: Some(id(i, newest)),
        restart_count: newest.restarts as i32,
        allocated_resources: c.resources.as_ref().and_then(|r| r.requests.clone()),
        resources: Some(resources(i, c, newest)),
        last_state: previous.map(|p| terminated(i, p)).or_else(reset).or_else(kept),
        volume_mounts: mounts(c, i.node.is_recursive(i.pod, i.observed)),
        stop_signal: newest.stop_signal.map(|signal| signal.name().to_owned()),
        ..Default::default()
    };
    match newest.state {
        State::Running | State::Unknown => {
            let health = i.memory.health.get(&newest.id);
            let started = started(i, c, newest);
            let ready = c.readiness_probe.is_none() || health.is_some_and(|h| h.ready);
            status.started = Some(started);
            status.ready = started && ready && newest.state == State::Running && kind != Kind::Init && connected(i, newest);
            status.state =
                Some(ContainerState { running: Some(ContainerStateRunning { started_at: newest.started_at.map(seconds) }), ..Default::default() });
        }
        State::Exited if restarts_in_place(i, newest, waiting, ending) => {
            status.started = Some(true);
            status.ready = c.readiness_probe.is_none() && old.is_some_and(|o| o.ready);
            status.state =
                Some(ContainerState { running: Some(ContainerStateRunning { started_at: newest.started_at.map(seconds) }), ..Default::default() });
        }
        State::Exited => {
            status.started = Some(false);
            status.ready = kind == Kind::Init && newest.exit_code == 0;
            status.state = Some(terminated(i, newest));
            if ending == Ending::No
                && let Some(w) = waiting.iter().find(|w| w.name == c.name)
            {
                status.last_state = status.state.replace(waiting_state(w.reason, &w.message));
            }
        }
        State::Created => {
            status.started = Some(false);
            let w = waiting.iter().find(|w| w.name == c.name);
            status.state = Some(match w {
                Some(w) => waiting_state(w.reason, &w.message),
                None => default_waiting(i),
            });
        }
    }
    status
}

/// Whether a run that the agent has stopped is followed at once by the next one. Upstream stops a container and starts the next one within
/// one sync of the pod (kuberuntime_manager.go, SyncPod), and writes a status before and after it: a pod without a readiness probe stays
/// Ready while its container gets another image, other resources, or a new life after a failed probe. What is waited for ends that.
fn restarts_in_place(i: &Input<'_>, run: &Container, waiting: &[Waiting], ending: Ending) -> bool {
    let stopped = i.memory.stops.get(&run.id).map(|stop| stop.why);
    let restarts =
        matches!(stopped, Some(Why::Changed | Why::Resized | Why::Unhealthy | Why::StartupFailed | Why::PostStartFailed | Why::AllRestart));
    let known = old_status(i, &run.name).is_some_and(|old| {
        let running = old.state.as_ref().is_some_and(|s| s.running.is_some());
        running && old.started == Some(true) && old.container_id.as_deref() == Some(id(i, run).as_str())
    });
    let follows = || {
        let spec = i.pod.spec.as_ref()?;
        let (kind, c) = containers(spec).find(|(_, c)| c.name == run.name)?;
        Some(restart::follows(i, spec, kind, c, run))
    };
    let held = waiting.iter().any(|w| w.name == run.name);
    ending == Ending::No && restarts && known && !held && connected(i, run) && follows() == Some(true)
}

/// The resources that a container has: what is allocated, and while it runs what the runtime enforces. A memory request is known to
/// the agent alone. Below the least that a runtime can enforce the allocated value stands (upstream convertContainerStatusResources).
fn resources(i: &Input<'_>, c: &Spec, run: &Container) -> ResourceRequirements {
    const LEAST_SHARES: i64 = 2;
    const LEAST_LIMIT: i64 = 10;
    let mut resources = c.resources.clone().unwrap_or_default();
    if run.state != State::Running || !i.node.resizes {
        return resources;
    }
    let allocated = Amounts::of(&resources);
    let known = i.record.actuated.get(&c.name).map_or(allocated, Amounts::of);
    let enforced = run.resources.unwrap_or_default();
    let cpu = |actual: Option<i64>, known: i64, allocated: i64, least: i64| match actual {
        Some(actual) if actual > least || allocated > least => actual,
        Some(_) => allocated,
        None => known,
    };
    let put = |list: &mut Option<BTreeMap<String, ApiQuantity>>, name: &str, value: i64, quantity: Quantity| {
        // Only what is requested or limited at all has a list.
        if let Some(list) = list.as_mut().filter(|_| value != 0) {
            list.insert(name.to_owned(), ApiQuantity(quantity.to_string()));
        }
    };
    let limit = cpu(enforced.cpu_limit, known.cpu_limit, allocated.cpu_limit, LEAST_LIMIT);
    put(&mut resources.limits, "cpu", limit, Quantity::from_millis(limit));
    let memory = enforced.memory_limit.unwrap_or(known.memory_limit);
    put(&mut resources.limits, "memory", memory, Quantity::from_bytes(memory));
    let request = cpu(enforced.cpu_request, known.cpu_request, allocated.cpu_request, LEAST_SHARES);
    put(&mut resources.requests, "cpu", request, Quantity::from_millis(request));
    put(&mut resources.requests, "memory", known.memory_request, Quantity::from_bytes(known.memory_request));
    resources
}

/// Whether the sandbox of a container is there and has its network.
fn connected(i: &Input<'_>, c: &Container) -> bool {
    i.observed.sandboxes.iter().find(|s| s.id == c.sandbox).is_some_and(|s| s.ready && s.problem.is_none())
}

/// The status of a container that the runtime does not hold.
fn missing(i: &Input<'_>, c: &Spec, waiting: &[Waiting], ending: Ending, old_pod: &PodStatus) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: c.name.clone(),
        image: c.image.clone().unwrap_or_default(),
        started: Some(false),
        volume_mounts: mounts(c, i.node.is_recursive(i.pod, i.observed)),
        ..Default::default()
    };
    let old = old_status(i, &c.name);
    let reset = reset(i, c, old);
    if let Some(restarts) = reset {
        status.restart_count = restarts;
        if ending != Ending::No {
            status.state = Some(restart::removed());
            return status;
        }
        status.last_state = Some(restart::removed());
    } else if let Some(old) = old {
        status.restart_count = old.restart_count;
        status.last_state = old.last_state.clone();
        let state = old.state.clone().unwrap_or_default();
        let terminal = matches!(old_pod.phase.as_deref(), Some("Succeeded" | "Failed"));
        if state.terminated.is_some() && (terminal || ending != Ending::No) {
            return old.clone();
        }
        if state.terminated.is_some() || state.running.is_some() {
            let lost = if state.terminated.is_some() { state } else { lost(old.container_id.clone()) };
            if ending != Ending::No {
                status.state = Some(lost);
                return status;
            }
            status.last_state = Some(lost);
            status.restart_count += 1;
        }
    }
    let w = waiting.iter().find(|w| w.name == c.name);
    let mut state = match w {
        Some(w) => waiting_state(w.reason, &w.message),
        None if reset.is_some() => waiting_state(WaitingReason::RestartingAllContainers, restart::REMOVED),
        None => default_waiting(i),
    };
    if w.is_none() && matches!(i.memory.images.get(&c.name), Some(ImageState::Getting(_))) {
        // Still creating; the reason of the last failed pull stays until this one is over.
        let before = old.and_then(|o| o.state.as_ref()).and_then(|s| s.waiting.clone());
        const PULL: [&str; 4] = ["ErrImagePull", "RegistryUnavailable", "SignatureValidationFailed", "ImagePullBackOff"];
        let pull = |w: &ContainerStateWaiting| w.reason.as_deref().is_some_and(|reason| PULL.contains(&reason));
        if let Some(before) = before.filter(pull) {
            state.waiting = Some(before);
        }
    }
    status.state = Some(state);
    status
}

/// How often a container that was removed so that all start again has restarted with its next run. Of what an earlier run of the agent removed,
/// the condition tells.
fn reset(i: &Input<'_>, c: &Spec, old: Option<&ContainerStatus>) -> Option<i32> {
    if let Some(restarts) = i.memory.reset.get(&c.name) {
        return i32::try_from(*restarts).ok();
    }
    let began = condition(i.pod, ALL_RESTARTING).is_some_and(|c| c.status == "True");
    let ran = old.filter(|old| began && old.state.as_ref().is_some_and(|state| state.waiting.is_none()));
    ran.filter(|old| old.container_id.is_some()).map(|old| old.restart_count.saturating_add(1))
}

fn lost(container_id: Option<String>) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: 137,
            reason: Some("ContainerStatusUnknown".into()),
            message: Some("The container could not be located when the pod was deleted.  The container used to be Running".into()),
            container_id,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn default_waiting(i: &Input<'_>) -> ContainerState {
    let inits = i.pod.spec.as_ref().and_then(|s| s.init_containers.as_ref());
    let has_inits = inits.is_some_and(|l| !l.is_empty());
    waiting_state(if has_inits { WaitingReason::PodInitializing } else { WaitingReason::ContainerCreating }, "")
}

fn waiting_state(reason: WaitingReason, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_string()), message: (!message.is_empty()).then(|| message.to_owned()) }),
        ..Default::default()
    }
}

fn terminated(i: &Input<'_>, c: &Container) -> ContainerState {
    let reason = match (c.reason.as_str(), c.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(id(i, c)),
            exit_code: c.exit_code,
            reason: Some(reason.to_owned()),
            message: (!c.message.is_empty()).then(|| c.message.clone()),
            started_at: c.started_at.map(seconds),
            finished_at: c.finished_at.map(seconds),
            signal: None,
        }),
        ..Default::default()
    }
}

fn id(i: &Input<'_>, c: &Container) -> String {
    format!("{}://{}", i.node.runtime, c.id)
}

fn seconds(t: Timestamp) -> Time {
    Time(Timestamp::from_second(t.as_second()).unwrap_or(t))
}

fn phase(i: &Input<'_>, spec: &PodSpec, all: &[(Kind, ContainerStatus)], ending: Ending, old: Option<&str>) -> String {
    if let Some(old @ ("Succeeded" | "Failed")) = old {
        return old.to_owned();
    }
    let follows = |kind: Kind, name: &str, code: i32| {
        let c = containers(spec).map(|(_, c)| c).find(|c| c.name == name);
        let run = i.observed.newest(name).filter(|run| run.state == State::Exited);
        c.is_some_and(|c| match run {
            Some(run) => restart::follows(i, spec, kind, c, run),
            None => restart::by_policy(spec, kind, c, code),
        })
    };
    let (mut running_init, mut pending_init, mut failed_init, mut failed_for_good) = (0, 0, 0, false);
    let (mut running, mut waiting, mut stopped, mut succeeded, mut restarting) = (0, 0, 0, 0, 0);
    for (kind, s) in all {
        let state = s.state.clone().unwrap_or_default();
        let last = s.last_state.as_ref().and_then(|l| l.terminated.as_ref());
        match (kind, state.running.is_some(), &state.terminated) {
            (Kind::Main, true, _) => running += 1,
            (Kind::Main, _, Some(t)) => {
                stopped += 1;
                succeeded += i32::from(t.exit_code == 0);
                restarting += i32::from(follows(*kind, &s.name, t.exit_code));
            }
            (Kind::Main, ..) if last.is_some() => {
                stopped += 1;
                restarting += 1;
            }
            (Kind::Main, ..) => waiting += 1,
            (Kind::Sidecar, ..) => pending_init += i32::from(s.started != Some(true)),
            (Kind::Init, _, Some(t)) if t.exit_code != 0 => {
                failed_init += 1;
                failed_for_good |= !follows(*kind, &s.name, t.exit_code);
            }
            (Kind::Init, _, Some(_)) => {}
            (Kind::Init, true, _) => running_init += 1,
            (Kind::Init, ..) if last.is_some_and(|t| t.exit_code != 0) => failed_init += 1,
            (Kind::Init, ..) => pending_init += 1,
        }
    }
    let ran = running > 0 || stopped > 0;
    let phase = if ending == Ending::Over && (ran || super::is_deleted(i.pod) || failed_init > 0) {
        if stopped == succeeded && ran && waiting == 0 && failed_init == 0 { "Succeeded" } else { "Failed" }
    } else if failed_for_good {
        "Failed"
    } else if running_init > 0 || ((pending_init > 0 || failed_init > 0) && !ran) || waiting > 0 {
        "Pending"
    } else if running > 0 || restarting > 0 {
        "Running"
    } else if stopped == 0 {
        "Pending"
    } else if stopped == succeeded {
        "Succeeded"
    } else {
        "Failed"
    };
    phase.to_owned()
}

fn addresses(i: &Input<'_>, status: &mut PodStatus, old: &PodStatus) {
    status.host_ip = i.node.host_ips.first().cloned();
    let hosts = i.node.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect::<Vec<_>>();
    status.host_ips = (!hosts.is_empty()).then_some(hosts);
    let sandbox = i.observed.sandboxes.first();
    let ips = match sandbox {
        Some(_) if is_host_network(i.pod) => of_host(&i.node.host_ips, old),
        Some(s) if !s.ips.is_empty() => s.ips.clone(),
        _ => old.pod_ips.iter().flatten().map(|p| p.ip.clone()).collect(),
    };
    status.pod_ip = ips.first().cloned();
    let ips: Vec<PodIP> = ips.into_iter().map(|ip| PodIP { ip }).collect();
    status.pod_ips = (!ips.is_empty()).then_some(ips);
}

/// The addresses of a pod in the host's network: those that the node had when the pod got them, and a second one when the node has two by now.
fn of_host(hosts: &[String], old: &PodStatus) -> Vec<String> {
    let mut ips: Vec<String> = old.pod_ips.iter().flatten().map(|known| known.ip.clone()).collect();
    if ips.is_empty() {
        return hosts.to_vec();
    }
    let is_ipv6 = |ip: &String| ip.contains(':');
    if let ([first], [_, second]) = (&ips[..], hosts)
        && is_ipv6(first) != is_ipv6(second)
    {
        ips.push(second.clone());
    }
    ips
}

struct Verdict {
    ok: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
    fn yes() -> Self {
        Verdict { ok: true, reason: None, message: None }
    }

    fn no(reason: &'static str, message: Option<String>) -> Self {
        Verdict { ok: false, reason: Some(reason), message }
    }
}

fn names(list: &[&str]) -> String {
    format!("[{}]", list.join(" "))
}

/// A pod that was initialized once stays so, though its init containers run again. `was`: it is, as its status has it.
fn initialized(phase: &str, all: &[(Kind, ContainerStatus)], was: bool) -> Verdict {
    let incomplete: Vec<&str> = all
        .iter()
        .filter(|(k, s)| match k {
            Kind::Init => !s.ready,
            Kind::Sidecar => s.started != Some(true),
            Kind::Main => false,
        })
        .map(|(_, s)| s.name.as_str())
        .collect();
    let mains_ran = all.iter().any(|(k, s)| *k == Kind::Main && s.container_id.is_some());
    match phase {
        "Succeeded" => Verdict { ok: true, reason: Some("PodCompleted"), message: None },
        _ if incomplete.is_empty() || mains_ran || was => Verdict::yes(),
        _ => Verdict::no("ContainersNotInitialized", Some(format!("containers with incomplete status: {}", names(&incomplete)))),
    }
}

/// The pod's readiness gates.
fn gates(spec: &PodSpec, status: &PodStatus) -> Verdict {
    let open = |gate: &str| match status.conditions.iter().flatten().find(|c| c.type_ == gate) {
        Some(c) if c.status == "True" => None,
        Some(c) => Some(format!("the status of pod readiness gate {gate:?} is not \"True\", but {}", c.status)),
        None => Some(format!("corresponding condition of pod readiness gate {gate:?} does not exist.")),
    };
    let open: Vec<String> = spec.readiness_gates.iter().flatten().filter_map(|g| open(&g.condition_type)).collect();
    if open.is_empty() {
        return Verdict::yes();
    }
    Verdict::no("ReadinessGatesNotReady", Some(open.join(", ")))
}

fn conditions(i: &Input<'_>, spec: &PodSpec, all: &[(Kind, ContainerStatus)], status: &mut PodStatus) {
    let phase = status.phase.clone().unwrap_or_default();
    let sandbox = i.observed.sandboxes.first();
    let has_network = sandbox.is_some_and(|s| s.ready && s.problem.is_none() && (is_host_network(i.pod) || !s.ips.is_empty()));
    let unready: Vec<&str> = all.iter().filter(|(k, s)| *k != Kind::Init && !s.ready).map(|(_, s)| s.name.as_str()).collect();
    let containers_ready = || match phase.as_str() {
        "Succeeded" => Verdict::no("PodCompleted", None),
        "Failed" => Verdict::no("PodFailed", None),
        _ if unready.is_empty() => Verdict::yes(),
        _ => Verdict::no("ContainersNotReady", Some(format!("containers with unready status: {}", names(&unready)))),
    };
    let mut ready = containers_ready();
    if ready.ok {
        ready = gates(spec, status);
    }
    let network = if has_network { Verdict::yes() } else { Verdict { ok: false, reason: None, message: None } };
    let was = condition(i.pod, "Initialized").is_some_and(|c| c.status == "True");
    let own = [network, initialized(&phase, all, was), ready, containers_ready(), Verdict::yes()];
    let generation = i.pod.metadata.generation;
    for (type_, verdict) in OWN_CONDITIONS.into_iter().zip(own) {
        set_condition(status, type_, verdict, generation, i.now);
    }
    if restart::may_all_restart(spec) {
        set_condition(status, ALL_RESTARTING, all_restarting(i, spec, &phase), None, i.now);
    }
    let resize = &i.memory.resize;
    let pending = match &resize.work {
        Work::Pending { pending, generation } => Some((Some(pending.reason.to_string()), Some(pending.message.clone()), *generation)),
        _ => None,
    };
    let progress = resize.progress.as_ref().map(|p| (p.error.as_ref().map(|_| "Error".to_owned()), p.error.clone(), p.generation));
    resize_condition(status, RESIZE_PENDING, pending, i.now);
    resize_condition(status, RESIZE_IN_PROGRESS, progress.filter(|_| !matches!(phase.as_str(), "Succeeded" | "Failed")), i.now);
}

/// Whether all containers are being removed, so that they start again (upstream `GenerateAllContainersRestartingCondition`).
fn all_restarting(i: &Input<'_>, spec: &PodSpec, phase: &str) -> Verdict {
    match phase {
        "Succeeded" => Verdict::no("PodCompleted", None),
        "Failed" => Verdict::no("PodFailed", None),
        _ if restart::all_restart(i.observed, spec) => {
            Verdict { ok: true, reason: Some("RestartAllContainersStarted"), message: Some("container exited with restart policy rule".into()) }
        }
        _ => Verdict { ok: false, reason: None, message: None },
    }
}

/// Sets a condition of a resize (reason, message, generation), or takes it away.
fn resize_condition(status: &mut PodStatus, type_: &str, now_is: Option<(Option<String>, Option<String>, i64)>, now: Timestamp) {
    let list = status.conditions.get_or_insert_default();
    let before = list.iter().position(|c| c.type_ == type_).map(|at| list.remove(at));
    let Some((reason, message, generation)) = now_is else { return };
    let since = before.filter(|c| c.reason == reason).and_then(|c| c.last_transition_time);
    list.push(PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason,
        message,
        observed_generation: Some(generation),
        last_probe_time: None,
        last_transition_time: since.or(Some(seconds(now))),
    });
}

fn set_condition(status: &mut PodStatus, type_: &str, v: Verdict, generation: Option<i64>, now: Timestamp) {
    let list = status.conditions.get_or_insert_default();
    let value = if v.ok { "True" } else { "False" };
    let before = list.iter().find(|c| c.type_ == type_);
    let since = before.filter(|c| c.status == value).and_then(|c| c.last_transition_time.clone());
    let condition = PodCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: v.reason.map(str::to_owned),
        message: v.message,
        observed_generation: generation,
        last_probe_time: None,
        last_transition_time: since.or(Some(seconds(now))),
    };
    match list.iter_mut().find(|c| c.type_ == type_) {
        Some(place) => *place = condition,
        None => list.push(condition),
    }
}
