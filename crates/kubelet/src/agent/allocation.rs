//! Which pods hold which of the node's resources, and the resizes that wait for some.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::Agent;
use crate::pod::resize::{self, Pending, PendingReason};
use crate::pod::{Event, admit};
use crate::worker::Note;

/// A pod with the resources that it waits for.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    pod: Arc<Pod>,
    since: Timestamp,
}

impl Agent {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Deferred>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod holds nothing any more: others may get what they wait for.
    pub(crate) fn release(&self, uid: &str) {
        self.devices.release(uid);
        if self.admitted().remove(uid).is_some() {
            if let Some(groups) = &self.groups {
                groups.changed();
            }
            self.grant_deferred();
        }
    }

    /// The newest object of a pod that holds resources takes the place of the one that was admitted: two are not kept. One that differs in
    /// what it is given waits for the decision about that.
    pub(crate) fn renew(&self, uid: &str, pod: &Arc<Pod>) {
        if let Some(held) = self.admitted().get_mut(uid).filter(|held| held.spec == pod.spec) {
            *held = pod.clone();
        }
    }

    /// The pod waits for nothing.
    pub(crate) fn forget_deferred(&self, uid: &str) {
        self.waiting().remove(uid);
    }

    /// Whether the node has the resources that `pod` asks for; if so, they are its own from now on. Else it waits for them.
    pub(crate) fn decide_resize(&self, uid: &str, pod: &Arc<Pod>) -> Result<(), Pending> {
        if self.side.os.is_windows() {
            let message = "In-place pod resize is not supported on Windows".to_owned();
            return Err(Pending { reason: PendingReason::Infeasible, message });
        }
        let shrinks = {
            let mut waiting = self.waiting();
            let mut admitted = self.admitted();
            let others = admitted.iter().filter(|(other, _)| *other != uid).map(|(_, p)| &**p);
            if let Err(refusal) = admit::resources(pod, &self.allocatable, others) {
                let since = waiting.get(uid).map_or_else(Timestamp::now, |d| d.since);
                waiting.insert(uid.to_owned(), Deferred { pod: pod.clone(), since });
                return Err(Pending { reason: PendingReason::Deferred, message: refusal.message });
            }
            waiting.remove(uid);
            let before = admitted.insert(uid.to_owned(), pod.clone());
            before.is_some_and(|before| !resize::rank(pod, &before, Timestamp::UNIX_EPOCH).0)
        };
        if shrinks {
            self.grant_deferred();
        }
        Ok(())
    }

    /// Grants waiting resizes that fit now, the most important first.
    fn grant_deferred(&self) {
        let mut waiting = self.waiting();
        let mut admitted = self.admitted();
        let mut order: Vec<(String, Deferred)> = waiting.iter().map(|(uid, d)| (uid.clone(), d.clone())).collect();
        order.sort_by_key(|(uid, d)| resize::rank(&d.pod, admitted.get(uid).unwrap_or(&d.pod), d.since));
        for (uid, deferred) in order {
            let others = admitted.iter().filter(|(other, _)| **other != uid).map(|(_, p)| &**p);
            if !admitted.contains_key(&uid) || admit::resources(&deferred.pod, &self.allocatable, others).is_err() {
                continue;
            }
            admitted.insert(uid.clone(), deferred.pod.clone());
            waiting.remove(&uid);
            let wanted = resize::resources(&deferred.pod);
            self.workers.tell(&uid, Note::Done(Event::ResizeDecided { wanted, verdict: Ok(()) }));
        }
    }
}
