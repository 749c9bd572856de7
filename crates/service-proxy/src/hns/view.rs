//! What is known of the Host Networking Service: what plans depend on, and what answers change.

use std::collections::HashMap;

use hcn::Guid;

use super::Settings;
use super::document::{Capabilities, NetworkContext, Remote};
use super::mirror::{Mirror, Stamp};
use super::plan::Context;
use crate::table::{VipAddress, VipKey};

/// The service as this process knows it.
#[derive(Debug)]
pub struct View {
    pub cluster_uid: String,
    /// Name of the host's own endpoint on the network.
    pub root_endpoint: String,
    pub mirror: Mirror,
    pub network: NetworkContext,
    pub capabilities: Capabilities,
    /// Objects that we deleted lately: an enumeration that began before may still show them.
    deleted: HashMap<Guid, Stamp>,
    stamp: Stamp,
    changed: Stamp,
}

impl View {
    /// A view that knows nothing yet.
    pub fn new(cluster_uid: String, settings: &Settings) -> Self {
        Self {
            cluster_uid,
            root_endpoint: settings.root_endpoint.clone(),
            mirror: Mirror::default(),
            network: NetworkContext::default(),
            capabilities: Capabilities::default(),
            deleted: HashMap::new(),
            stamp: 0,
            changed: 0,
        }
    }

    /// What a plan depends on.
    pub fn context(&self) -> Context<'_> {
        Context { cluster_uid: &self.cluster_uid, mirror: &self.mirror, network: &self.network, capabilities: self.capabilities }
    }

    /// A number greater than every one before; calls are named by it.
    pub fn tick(&mut self) -> Stamp {
        self.stamp += 1;
        self.stamp
    }

    /// The stamp of a change of the mirror.
    pub fn write_stamp(&mut self) -> Stamp {
        self.changed = self.tick();
        self.changed
    }

    /// When the mirror last changed.
    pub fn changed(&self) -> Stamp {
        self.changed
    }

    /// The endpoint that makes the address of `key` known, where the network is an overlay.
    pub fn service_vip_endpoint(&self, key: &VipKey) -> Option<Guid> {
        match key.address {
            VipAddress::Ip(ip) if self.network.overlay => Some(Remote::ServiceVip(ip).id(&self.cluster_uid, &self.network)),
            _ => None,
        }
    }

    /// Notes that we deleted an object. Deletions before `oldest`, the start of the oldest enumeration that counts, are forgotten.
    pub fn note_deleted(&mut self, id: Guid, oldest: Stamp) {
        let stamp = self.write_stamp();
        self.deleted.retain(|_, at| *at >= oldest);
        self.deleted.insert(id, stamp);
    }

    /// Whether we deleted the object after `since`.
    pub fn is_just_deleted(&self, id: &Guid, since: Stamp) -> bool {
        self.deleted.get(id).is_some_and(|at| *at >= since)
    }
}
