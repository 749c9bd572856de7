//! Carrying out in-place resizes: the record on disk, the node's decision, the changes at the runtime.

use cluster::EventType;
use cri::v1;
use thiserror_ext::AsReport as _;

use super::Worker;
use crate::agent::{Agent, key};
use crate::pod::resize::{self, Resource, Resources};
use crate::pod::{Event, Outcome, Record, ResizeNews, Update, resources};
use crate::volumes::PodDirs;

/// Bytes of a record at most.
const RECORD: u64 = 1 << 20;

/// The record of an earlier run of the agent, if it can be read.
pub(super) fn load(agent: &Agent, dirs: &PodDirs) -> Option<Record> {
    let path = dirs.resources().ok()?;
    let bytes = agent.root.read(&path, RECORD).ok().flatten()?;
    match serde_json::from_slice(&bytes) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::warn!(file = %path, %error, "the record of a pod's resources cannot be read; the pod has what it asks for");
            None
        }
    }
}

impl Worker {
    pub(super) fn save_resources(&self, record: &Record) -> Outcome {
        let write = || -> Result<(), host::HostError> {
            let bytes = serde_json::to_vec(record).unwrap_or_default();
            self.agent.root.create_dir_all(&self.dirs.pod, 0o750)?;
            self.agent.root.write_file(&self.dirs.resources()?, &bytes, 0o600)
        };
        match write() {
            Ok(()) => Outcome::Done,
            Err(error) => {
                tracing::warn!(pod = %key(&self.state.pod), error = %error.as_report(), "keeping the record of a pod's resources failed; trying again");
                Outcome::Failed
            }
        }
    }

    pub(super) fn decide_resize(&self, wanted: Resources) -> Event {
        let pod = resize::with_resources(self.state.asked(), &wanted);
        let verdict = self.agent.decide_resize(&self.uid, &pod);
        Event::ResizeDecided { wanted, verdict }
    }

    pub(super) fn report_resize(&self, news: &ResizeNews) {
        let (reason, words) = news.words();
        let (type_, generation, error) = match news {
            ResizeNews::Pending { pending, generation } => (EventType::Warning, *generation, Some(pending.message.as_str())),
            ResizeNews::Failed { generation, error } => (EventType::Warning, *generation, Some(error.as_str())),
            ResizeNews::Started { generation } | ResizeNews::Completed { generation } => (EventType::Normal, *generation, None),
        };
        // What is pending is what was asked for; the rest is about what the pod has.
        let pod = if matches!(news, ResizeNews::Pending { .. }) { self.state.asked() } else { &self.state.pod };
        self.event(None, type_, reason, resize::message(&words, pod, generation, error));
    }

    pub(super) async fn update(&mut self, update: Update) -> Event {
        let result = match self.refuses(&update).await {
            Some(reason) => Err(reason),
            None => self.tell_runtime(&update).await,
        };
        Event::Updated { update, result }
    }

    /// Why a memory limit cannot shrink now: the kernel would end the program that has more.
    async fn refuses(&self, update: &Update) -> Option<String> {
        let (old, new) = (update.from.memory_limit, update.to.memory_limit);
        if update.resource != Resource::Memory {
            return None;
        }
        // Also where this container gets more: another one, or the pod as a whole, gets less after it.
        if let Some(groups) = &self.agent.groups
            && let Some(reason) = groups.refuses(&self.state.pod).await
        {
            return Some(format!("cannot decrease memory limits: {reason}"));
        }
        if new == 0 || (old != 0 && new >= old) {
            return None;
        }
        let stats = self.agent.cri.container_stats(v1::ContainerStatsRequest { container_id: update.id.clone() }).await;
        let memory = match stats {
            Ok(stats) => stats.memory.and_then(|m| m.usage_bytes.or(m.working_set_bytes)),
            Err(error) => return Some(format!("cannot decrease memory limits: unable to read memory usage: {}", error.message())),
        };
        let name = &update.container;
        match memory {
            None => Some(format!("cannot decrease memory limits: missing container {name:?} memory usage")),
            Some(used) if used.value >= new as u64 => Some(format!(
                "cannot decrease memory limits: attempting to set container {name:?} memory limit ({new}) below current usage ({})",
                used.value
            )),
            Some(_) => None,
        }
    }

    /// The pod as a whole has more before its containers do, and less after them.
    pub(super) async fn resize_whole(&mut self, news: &ResizeNews) {
        let is_last = match news {
            ResizeNews::Started { .. } => false,
            ResizeNews::Completed { .. } => true,
            ResizeNews::Pending { .. } | ResizeNews::Failed { .. } => return,
        };
        // Each container's change tells it again, and says why that fails.
        if let Err(error) = self.tell_whole(is_last).await {
            tracing::warn!(pod = %key(&self.state.pod), error, "the runtime does not take what a resized pod has as a whole");
        }
        let Some(groups) = &self.agent.groups else { return };
        match news {
            ResizeNews::Started { .. } => {
                // Each container's change tries it again, and tells why it fails.
                if let Err(error) = groups.grow(&self.state.pod).await {
                    tracing::debug!(pod = %key(&self.state.pod), error = %error.as_report(), "a pod's control group does not grow yet");
                }
            }
            ResizeNews::Completed { .. } => groups.settle(&self.state.pod).await,
            ResizeNews::Pending { .. } | ResizeNews::Failed { .. } => {}
        }
    }

    /// Tells the runtime what the pod has as a whole, for runtimes that size a virtual machine for it. Many do not know the call, and
    /// containerd 2.2 has no code for that.
    async fn tell_whole(&mut self, is_last: bool) -> Result<(), String> {
        let (Some(sandbox), Some(spec)) = (self.state.observed.sandboxes.first(), &self.state.pod.spec) else { return Ok(()) };
        let (id, kernel) = (sandbox.id.clone(), &self.agent.side.kernel);
        let before = self.told.as_deref().filter(|(told, _)| *told == id).map(|(_, told)| told);
        let wanted = resources::linux_sandbox(spec, kernel);
        let now = if is_last { wanted } else { resources::larger(before, wanted) };
        if before == Some(&now) {
            return Ok(());
        }
        let overhead = Some(resources::linux_overhead(spec, kernel));
        let request = cri::UpdateSandboxRequest { pod_sandbox_id: id.clone(), overhead, resources: Some(now.clone()) };
        match self.agent.cri.update_sandbox(request).await {
            Err(error) if error.kind() != cri::Kind::Unimplemented && !error.message().contains("not implemented") => Err(error.message()),
            _ => {
                self.told = Some(Box::new((id, now)));
                Ok(())
            }
        }
    }

    async fn tell_runtime(&mut self, update: &Update) -> Result<(), String> {
        let resource = update.resource.name();
        let refused = |error| format!("failed to notify runtime for UpdatePodSandboxResources (resource={resource}); resize rejected: {error}");
        self.tell_whole(false).await.map_err(refused)?;
        if let Some(groups) = &self.agent.groups {
            groups.grow(&self.state.pod).await.map_err(|error| error.to_report_string())?;
        }
        let Some(mut container) = self.state.spec_of(&update.container) else {
            return Err("the pod has no such container any more".to_owned());
        };
        container.resources = Some(update.to.requirements());
        let side = &self.agent.side;
        let linux = resources::linux(&self.state.pod, &container, side.capacity.memory_bytes, &side.kernel);
        let request = v1::UpdateContainerResourcesRequest { container_id: update.id.clone(), linux: Some(linux), ..Default::default() };
        self.agent.cri.update_container_resources(request).await.map_err(|error| error.message())
    }
}
