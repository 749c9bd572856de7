//! The part of the reducer that resizes pods in place.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::PodState;
use crate::pod::resize::{self, Progress, Resources, Work};
use crate::pod::{Action, Attempt, Pending, ResizeNews, State, Update, status};

/// After a change at the runtime failed; upstream's back-off of a pod whose sync failed.
const RETRY: SignedDuration = SignedDuration::from_secs(10);

impl PodState {
    /// Keeps the record where an agent's next run finds it, before anything is done by it.
    pub(super) fn save(&mut self, now: Timestamp) -> Option<Action> {
        let due = match self.memory.saving {
            None => self.saved.as_ref() != Some(&self.record),
            Some(Attempt::RetryAt(at)) => at <= now,
            Some(Attempt::UnderWay | Attempt::Done) => false,
        };
        if !due || !self.saves() {
            return None;
        }
        self.memory.saving = Some(Attempt::UnderWay);
        self.saved = Some(self.record.clone());
        Some(Action::SaveResources(self.record.clone()))
    }

    /// Whether the record still serves somebody.
    pub(super) fn saves(&self) -> bool {
        self.memory.refused.is_none() && !self.is_ending()
    }

    /// What the API asks for and was not decided yet: None when nothing is open, else the question, unless it was put already.
    pub(super) fn wants(&mut self) -> Option<Option<Action>> {
        let ended = status::is_terminal(&self.pod);
        let wanted = resize::resources(&self.asked);
        if self.is_ending() || ended || self.memory.refused.is_some() || !resize::differ(&wanted, &self.record.allocated) {
            if self.memory.resize.work != Work::Asked {
                self.memory.resize.work = Work::Decided;
                return None;
            }
            return Some(None);
        }
        let current = self.generation();
        match &self.memory.resize.work {
            Work::Asked => Some(None),
            Work::Pending { generation, .. } if *generation == current => None,
            _ => {
                self.memory.resize.work = Work::Asked;
                Some(Some(Action::DecideResize { wanted }))
            }
        }
    }

    fn generation(&self) -> i64 {
        self.asked.metadata.generation.unwrap_or(0)
    }

    pub(super) fn decided(&mut self, wanted: Resources, verdict: Result<(), Pending>) -> Vec<Action> {
        let generation = self.generation();
        match verdict {
            Ok(()) => {
                self.memory.resize.work = Work::Decided;
                Arc::make_mut(&mut self.record.allocated).extend(wanted);
                self.pod = resize::with_resources(&self.asked, &self.record.allocated);
                // Errors of an earlier resize are over.
                self.memory.resize.progress = Some(Progress { generation, error: None });
                self.memory.resize.retry_at = None;
                vec![Action::ReportResize(ResizeNews::Started { generation })]
            }
            Err(pending) => {
                let before = status::condition(&self.pod, status::RESIZE_PENDING);
                let known =
                    before.is_some_and(|c| c.reason.as_deref() == Some(&pending.reason.to_string()) && c.observed_generation == Some(generation));
                self.memory.resize.work = Work::Pending { pending: pending.clone(), generation };
                let news = Action::ReportResize(ResizeNews::Pending { pending, generation });
                if known { Vec::new() } else { vec![news] }
            }
        }
    }

    /// Whether the pod waits for no decision of the node.
    pub(crate) fn has_decided_resize(&self) -> bool {
        self.memory.resize.work == Work::Decided
    }

    /// The pod as the API has it, with the resources that it asks for.
    pub(crate) fn asked(&self) -> &Arc<k8s_openapi::api::core::v1::Pod> {
        &self.asked
    }

    pub(super) fn updated(&mut self, update: &Update, result: Result<(), String>, now: Timestamp) -> Vec<Action> {
        self.version += 1;
        let resize = &mut self.memory.resize;
        resize.updating = None;
        match result {
            Ok(()) => {
                let still = self.observed.containers.iter().find(|c| c.name == update.container).is_some_and(|c| c.id == update.id);
                if still {
                    Arc::make_mut(&mut self.record.actuated).insert(update.container.clone(), update.to.requirements());
                }
                Vec::new()
            }
            Err(error) => {
                resize.retry_at = Some(now + RETRY);
                let generation = resize.progress.as_ref().map_or(self.asked.metadata.generation.unwrap_or(0), |p| p.generation);
                let progress = Progress { generation, error: Some(error.clone()) };
                let known = resize.progress.replace(progress.clone()) == Some(progress);
                let news = Action::ReportResize(ResizeNews::Failed { generation, error });
                if known { Vec::new() } else { vec![news] }
            }
        }
    }

    /// Notes whether running containers lack what is allocated, and says when a resize is complete.
    pub(super) fn progress(&mut self) -> Option<Action> {
        let spec = self.pod.spec.as_ref().filter(|_| self.node.resizes)?;
        let running = |name: &str| self.observed.newest(name).filter(|c| c.state == State::Running);
        let lacking = !resize::changes(spec, &self.record, running).is_empty();
        let known = self.memory.resize.progress.as_ref();
        match (lacking, known) {
            (true, None) => {
                // Begun by an earlier run of the agent.
                let begun = status::condition(&self.pod, status::RESIZE_IN_PROGRESS).and_then(|c| c.observed_generation);
                let generation = begun.unwrap_or_else(|| self.generation());
                self.memory.resize.progress = Some(Progress { generation, error: None });
                None
            }
            (false, Some(progress)) => {
                let generation = progress.generation;
                self.memory.resize.progress = None;
                Some(Action::ReportResize(ResizeNews::Completed { generation }))
            }
            _ => None,
        }
    }
}
