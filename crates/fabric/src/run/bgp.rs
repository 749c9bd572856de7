//! Of the mode bgp, what lives from pass to pass: the running speaker, and watches of Calico's resources.

use std::sync::Arc;
use std::time::Duration;

use cluster::ApiServer;
use host::HostRoute;
use kube::Client;

use crate::apply::sessions::{PASSWORDS, Running};
use crate::calico::Watch;
use crate::mode::bgp::{Known, Speaker};
use crate::mode::{Mode, Role, Settings};

#[derive(Default)]
pub(super) struct Bgp {
    calico: Watch,
    running: Option<Running>,
}

impl Bgp {
    /// None: this host has no speaker of ours.
    pub fn of(settings: &Settings) -> Option<Self> {
        (settings.mode == Mode::Bgp && matches!(settings.role, Role::Node(_))).then(Self::default)
    }

    /// What the mode decides from; none: the cluster's configuration has not arrived yet.
    pub async fn known(&mut self, client: &Client, api: &ApiServer, period: Duration) -> Option<Arc<Known>> {
        let resources = self.calico.look(client, api, period).await?;
        let sessions = self.running.as_ref().map(Running::reached).unwrap_or_default();
        Some(Arc::new(Known { resources, sessions, passwords: PASSWORDS }))
    }

    /// Starts the speaker, or gives it its configuration. Without a decision it goes on as it is.
    pub fn carry_out(&mut self, speaker: Option<&Speaker>, observed: &[HostRoute]) {
        match (speaker, &self.running) {
            (None, _) => {}
            (Some(speaker), Some(running)) => running.configure(speaker.clone()),
            (Some(speaker), None) => {
                let restarted = observed.iter().any(|route| route.ours);
                self.running = Some(Running::start(speaker.clone(), restarted));
            }
        }
    }

    /// Waits until sessions reached something else, or the configuration changed.
    pub async fn changed(bgp: &mut Option<Self>) {
        let Some(Self { calico, running }) = bgp else { return std::future::pending().await };
        let sessions = async {
            match running {
                Some(running) => running.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sessions => {}
            () = calico.changed() => {}
        }
    }
}
