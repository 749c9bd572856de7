//! Work on a pod's volumes, beside the worker: drivers and attachers take their time, and the pod may end meanwhile.

use cluster::EventType;
use jiff::Timestamp;
use thiserror_ext::AsReport as _;
use tokio_util::sync::CancellationToken;

use super::errors::MountError;
use super::site::Site;
use super::{Note, Worker};
use crate::bundles::Trusted;
use crate::claims::{self, Claims};
use crate::env::Facts;
use crate::pod::{Event, Outcome};
use crate::volumes::{self, Content, Places, PodDirs};

/// What became of the work.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// The volumes that are mounted.
    pub places: Places,
    pub claims: Option<Claims>,
    pub event: Event,
}

struct Job {
    site: Site,
    dirs: PodDirs,
    facts: Facts,
    places: Places,
    claims: Option<Claims>,
    ends: CancellationToken,
}

impl Worker {
    /// Begins to mount the volumes, or to bring the content of mounted ones up to date; a failure leaves the old content.
    pub(super) fn mount_volumes(&mut self, event: fn(Outcome) -> Event) {
        self.mounting = CancellationToken::new();
        let mut job = Job {
            site: self.site(),
            dirs: self.dirs.clone(),
            facts: self.facts(),
            places: self.places.clone(),
            claims: self.claims.clone(),
            ends: self.mounting.clone(),
        };
        let tell = self.tell.clone();
        tokio::spawn(async move {
            let outcome = match job.set_up().await {
                Ok(()) => Outcome::Done,
                Err(error) => {
                    if !job.ends.is_cancelled() {
                        job.site.event(None, EventType::Warning, error.reason(), error.to_report_string());
                    }
                    Outcome::Failed
                }
            };
            let _ = tell.send(Note::Mounted(Box::new(Mounted { places: job.places, claims: job.claims, event: event(outcome) })));
        });
    }
}

impl Job {
    async fn set_up(&mut self) -> Result<(), MountError> {
        let Site { agent, pod, .. } = &self.site;
        let (objects, tokens) = volumes::references(pod);
        let sources = self.site.fetch(objects).await?;
        let trusted = if volumes::wants_bundles(pod) { agent.bundles.get(&self.site.uid).await? } else { Trusted::default() };
        let tokens = agent.tokens.get(pod, &tokens, Timestamp::now()).await?;
        let claims = match self.claims.take() {
            Some(known) => known,
            None => {
                let node = agent.node.get(cluster::Key::cluster(&agent.side.node_name));
                claims::resolve(&agent.client, pod, node.as_deref()).await?
            }
        };
        let claims = &*self.claims.insert(claims);
        let content = Content { pod, sources: &sources, tokens: &tokens, trusted: &trusted, facts: &self.facts, claims };
        Ok(agent.volumes.set_up(&self.dirs, pod, &content, &mut self.places, &self.ends).await?)
    }
}
