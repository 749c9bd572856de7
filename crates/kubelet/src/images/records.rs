//! Records of pulls: with which credentials the node's images came, so that only pods that may pull an image use it
//! (KubeletEnsureSecretPulledImages; upstream pkg/kubelet/images/pullmanager).
//!
//! Before a pull there is an intent in `image_manager/pulling`, after it a record in `image_manager/pulled`, both in upstream's form
//! (`document`, pure), so that either agent goes on with the other's. What a record means for a pod is decided in `decide`, purely. An intent
//! whose pull did not end stays: its image counts as pulled with nobody knows what.

pub(crate) mod decide;
pub(crate) mod document;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cri::v1;
use host::{FileKind, HostError, HostRoot, PodPath};
use jiff::Timestamp;
use kube_rules::{Reference, ReferenceError};
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sha2::{Digest as _, Sha256};
use thiserror_ext::AsReport as _;

use super::keyring::{Credential, hex};
use decide::{Known, Match, Verdict, Verification, Why};
use document::{DocumentError, PullCredentials, PulledRecord};

/// A record that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the record {path} cannot be used")]
    Document { path: PodPath, source: DocumentError },
    #[error(transparent)]
    Name(#[from] ReferenceError),
}

/// Intents of an earlier agent, which are looked at once.
#[derive(Default)]
struct Earlier(Option<BTreeSet<String>>);

#[derive(Default)]
struct State {
    /// Pulls that run now, by image.
    running: HashMap<String, u32>,
}

/// The records of a node.
pub(crate) struct Records {
    root: Arc<HostRoot>,
    pulling: PodPath,
    pulled: PodPath,
    policy: Verification,
    /// Held while files are read and written.
    state: Mutex<State>,
    earlier: tokio::sync::Mutex<Earlier>,
    counts: Mutex<Counts>,
}

impl Records {
    /// Those beneath the agent's directory. Files of an older version are written anew.
    ///
    /// # Errors
    /// When the directories cannot be made.
    pub(crate) fn load(root: Arc<HostRoot>, dir: &PodPath, policy: Verification) -> Result<Self, HostError> {
        let at = |name: &str| dir.join("image_manager").and_then(|dir| dir.join(name));
        let (pulling, pulled) = (at("pulling")?, at("pulled")?);
        if policy != Verification::Off {
            for dir in [&pulling, &pulled] {
                root.create_dir_all(dir, 0o700)?;
            }
        }
        let records = Records { root, pulling, pulled, policy, state: Mutex::default(), earlier: Default::default(), counts: Mutex::default() };
        if records.are_off() {
            return Ok(records);
        }
        let intents = records.list(&records.pulling, document::read_intent);
        for (image, _) in intents.iter().filter(|(_, is_current)| !is_current) {
            records.log(records.write(&records.pulling, image, &document::write_intent(image)));
        }
        for (record, _) in records.list(&records.pulled, PulledRecord::read).iter().filter(|(_, is_current)| !is_current) {
            records.log(records.write(&records.pulled, &record.image_ref, &record.write()));
        }
        let earlier = Earlier(Some(intents.into_iter().map(|(image, _)| image).collect()));
        Ok(Records { earlier: tokio::sync::Mutex::new(earlier), ..records })
    }

    /// Whether there are no records: files of an earlier agent stay as they are.
    fn are_off(&self) -> bool {
        self.policy == Verification::Off
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, done: Result<(), RecordError>) {
        if let Err(error) = done {
            tracing::error!(error = %error.as_report(), "a record of an image pull cannot be kept; its image is pulled again when a pod needs it");
        }
    }

    fn write(&self, dir: &PodPath, key: &str, bytes: &[u8]) -> Result<(), RecordError> {
        Ok(self.root.write_file(&dir.join(&file_name(key)).map_err(HostError::from)?, bytes, 0o600)?)
    }

    fn remove(&self, dir: &PodPath, key: &str) -> Result<(), RecordError> {
        Ok(self.root.remove_tree(&dir.join(&file_name(key)).map_err(HostError::from)?)?)
    }

    fn read<T>(&self, dir: &PodPath, name: &str, parse: fn(&[u8]) -> Result<T, DocumentError>) -> Result<Option<T>, RecordError> {
        let path = dir.join(name).map_err(HostError::from)?;
        let Some(bytes) = self.root.read(&path, document::MAX_FILE + 1)? else { return Ok(None) };
        parse(&bytes).map(Some).map_err(|source| RecordError::Document { path, source })
    }

    /// Names of files that records have.
    fn names(&self, dir: &PodPath) -> Vec<String> {
        let all = self.root.read_dir(dir).unwrap_or_default().into_iter();
        all.filter(|(name, kind)| *kind != FileKind::Directory && name.starts_with("sha256-") && !name.ends_with(".tmp"))
            .map(|(name, _)| name)
            .collect()
    }

    /// Every file that can be read.
    fn list<T>(&self, dir: &PodPath, parse: fn(&[u8]) -> Result<T, DocumentError>) -> Vec<T> {
        let mut all = Vec::new();
        for name in self.names(dir) {
            match self.read(dir, &name, parse) {
                Ok(found) => all.extend(found),
                Err(error) => tracing::error!(error = %error.as_report(), "a record of an image pull cannot be read; ignoring it"),
            }
        }
        all
    }

    fn record(&self, reference: &str) -> Result<Option<PulledRecord>, RecordError> {
        let found = self.read(&self.pulled, &file_name(reference), PulledRecord::read)?;
        Ok(found.map(|(record, _)| record).filter(|record| record.image_ref == reference))
    }

    fn known(&self, image: &str, reference: &str) -> Result<Known, RecordError> {
        let state = self.lock();
        if let Some(record) = self.record(reference)? {
            return Ok(Known::Pulled(record));
        }
        let is_running = state.running.contains_key(image);
        let intended = is_running || self.read(&self.pulling, &file_name(image), document::read_intent)?.is_some_and(|(of, _)| of == image);
        Ok(if intended { Known::Intended } else { Known::Nothing })
    }

    /// Turns the intents of an earlier agent into records, where their images came: once, before anything else is asked.
    pub(crate) async fn adopt(&self, client: &cri::Client) {
        let mut earlier = self.earlier.lock().await;
        let Some(intents) = &earlier.0 else { return };
        if !intents.is_empty() {
            match client.list_images(v1::ListImagesRequest { filter: None }).await {
                Ok(images) => self.log(self.adopt_all(intents, &images)),
                Err(error) => {
                    tracing::error!(error = %error.as_report(), "cannot list images to see which pulls of an earlier agent ended; trying again");
                    return;
                }
            }
        }
        earlier.0 = None;
    }

    fn adopt_all(&self, intents: &BTreeSet<String>, images: &[v1::Image]) -> Result<(), RecordError> {
        for image in images {
            for name in image.repo_digests.iter().chain(&image.repo_tags).filter(|name| intents.contains(*name)) {
                self.note(name, &image.id, &PullCredentials::default())?;
                self.remove(&self.pulling, name)?;
            }
        }
        Ok(())
    }

    /// Whether a pod may use the image that is there under `reference`.
    pub(crate) fn check(&self, image: &str, reference: &str) -> Verdict {
        if self.are_off() {
            return Verdict::Allowed(Why::Policy);
        }
        let verdict = match self.known(image, reference) {
            Ok(known) => decide::verdict(&self.policy, image, &known),
            Err(error) => {
                tracing::error!(error = %error.as_report(), image, "a record of an image pull cannot be read; the image is pulled again");
                self.count("error");
                return Verdict::Pull;
            }
        };
        match &verdict {
            Verdict::Allowed(Why::Policy) => self.count("credentialPolicyAllowed"),
            Verdict::Allowed(Why::Record) => self.count("credentialRecordFound"),
            Verdict::Pull => self.count("mustAuthenticate"),
            // The comparison counts.
            Verdict::Like(_) => {}
        }
        verdict
    }

    /// Whether a pod with these credentials may use the image, which was pulled with the `recorded` ones.
    pub(crate) fn compare(&self, image: &str, reference: &str, recorded: &PullCredentials, credentials: &[Credential]) -> bool {
        match decide::compare(recorded, &PullCredentials::of_pod(credentials)) {
            Match::None => {
                self.count("mustAuthenticate");
                false
            }
            Match::Found(noted) => {
                if let Some(secret) = noted {
                    let used = PullCredentials { kubernetes_secrets: vec![secret], ..PullCredentials::default() };
                    self.log(self.note(image, reference, &used));
                }
                self.count("credentialRecordFound");
                true
            }
        }
    }

    /// Counts a check that failed because the pod's credentials could not be had.
    pub(crate) fn check_failed(&self) {
        self.count("error");
    }

    fn count(&self, result: &'static str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).checks.entry(result).or_default() += 1;
    }

    /// Counts a request for an image, under what upstream tells of it.
    pub(crate) fn count_request(&self, policy: &'static str, present: Option<bool>, pull: Option<bool>) {
        let text = |known: Option<bool>| known.map_or("unknown", |known| if known { "true" } else { "false" });
        let labels = [policy, text(present), text(pull)];
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).requests.entry(labels).or_default() += 1;
    }

    /// Writes what an image was pulled with.
    fn note(&self, image: &str, reference: &str, used: &PullCredentials) -> Result<(), RecordError> {
        if self.are_off() {
            return Ok(());
        }
        let _held = self.lock();
        let name = Reference::untagged(image)?;
        let known = self.record(reference).unwrap_or_else(|error| {
            tracing::warn!(error = %error.as_report(), image, "a record of an image pull cannot be read; writing it anew");
            None
        });
        match decide::merged(known, reference, name, used, Timestamp::now()) {
            Some(record) => self.write(&self.pulled, reference, &record.write()),
            None => Ok(()),
        }
    }

    /// Writes down that an image is about to be pulled.
    ///
    /// # Errors
    /// When that cannot be written: the image must not be pulled then.
    pub(crate) fn intend<'a>(&'a self, image: &'a str) -> Result<Intent<'a>, RecordError> {
        let mut state = self.lock();
        if !self.are_off() {
            self.write(&self.pulling, image, &document::write_intent(image))?;
        }
        *state.running.entry(image.to_owned()).or_default() += 1;
        Ok(Intent { records: self, image, runs: true })
    }

    /// Forgets one pull that runs. Returns whether it was the last.
    fn ended(&self, state: &mut State, image: &str) -> bool {
        match state.running.get_mut(image) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                state.running.remove(image);
                true
            }
        }
    }

    /// Removes the records of images that are no more, but for those that changed after `until`.
    pub(crate) fn prune(&self, images: &BTreeSet<String>, until: Timestamp) {
        if self.are_off() {
            return;
        }
        let _held = self.lock();
        for (record, _) in self.list(&self.pulled, PulledRecord::read) {
            // Times of records are in whole seconds.
            if record.last_updated_time.is_none_or(|at| at.as_second() < until.as_second()) && !images.contains(&record.image_ref) {
                self.log(self.remove(&self.pulled, &record.image_ref));
            }
        }
    }

    /// Writes the metrics, under upstream's names.
    pub(crate) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, dir) in [
            ("kubelet_imagemanager_ondisk_pullintents", "Number of ImagePullIntents stored on disk.", &self.pulling),
            ("kubelet_imagemanager_ondisk_pulledrecords", "Number of ImagePulledRecords stored on disk.", &self.pulled),
        ] {
            encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(self.names(dir).len() as u64))?;
        }
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Counter for how many times kubelet checked whether credentials need to be re-verified to access an image";
        let mut family = encoder.encode_descriptor("kubelet_imagemanager_image_mustpull_checks", help, None, MetricType::Counter)?;
        for (result, count) in &counts.checks {
            family.encode_family(&[("result", *result)])?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        let help = "Number of ensure-image requests processed by the kubelet.";
        let mut family = encoder.encode_descriptor("kubelet_image_manager_ensure_image_requests", help, None, MetricType::Counter)?;
        for ([policy, present, pull], count) in &counts.requests {
            let labels = [("pull_policy", *policy), ("present_locally", *present), ("pull_required", *pull)];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(count, None)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Counts {
    checks: BTreeMap<&'static str, u64>,
    /// By pull policy, whether the image was there, and whether it had to be pulled.
    requests: BTreeMap<[&'static str; 3], u64>,
}

/// The file of an image or of a reference.
fn file_name(key: &str) -> String {
    format!("sha256-{}", hex(&Sha256::digest(key)))
}

/// A pull that was written down. Dropped without an end, it stays written: the runtime may go on with it.
#[must_use]
pub(crate) struct Intent<'a> {
    records: &'a Records,
    image: &'a str,
    runs: bool,
}

impl Intent<'_> {
    /// The image is here.
    pub(crate) fn pulled(self, reference: &str, used: Option<&Credential>) {
        match self.records.note(self.image, reference, &PullCredentials::of(used)) {
            Ok(()) => self.forget(),
            error => self.records.log(error),
        }
    }

    /// The runtime said that it is not.
    pub(crate) fn failed(self) {
        self.forget();
    }

    fn forget(mut self) {
        let mut state = self.records.lock();
        if self.records.ended(&mut state, self.image) && !self.records.are_off() {
            self.records.log(self.records.remove(&self.records.pulling, self.image));
        }
        self.runs = false;
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        if self.runs {
            self.records.ended(&mut self.records.lock(), self.image);
        }
    }
}
