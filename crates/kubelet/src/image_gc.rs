//! Removal of unused images when the file system of images fills up (upstream images/image_gc_manager.go).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cluster::{EventRecorder, EventType};
use cri::v1;
use host::{HostError, HostRoot, Space};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ObjectReference;
use thiserror_ext::AsReport as _;

use crate::config::ImageCollection;
use crate::images::records::Records;

/// Why images could not be collected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollectError {
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error("the runtime names no file system of images")]
    NoFileSystem,
    #[error("the file system of images cannot be measured")]
    Space(#[from] HostError),
    #[error("the file system of images has no size")]
    NoSize,
}

/// What is known of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Record {
    first_seen: Timestamp,
    /// When a container used it last, as far as was seen.
    last_used: Option<Timestamp>,
    size: u64,
    /// The runtime needs it itself.
    pinned: bool,
}

/// The images of the node, by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(BTreeMap<String, Record>);

impl Known {
    /// Takes in what the runtime lists: its images, and what its containers call theirs.
    fn update(&mut self, images: &[v1::Image], used: &BTreeSet<String>, now: Timestamp) {
        self.0.retain(|id, _| images.iter().any(|i| i.id == *id));
        for image in images {
            let names = std::iter::once(&image.id).chain(&image.repo_tags).chain(&image.repo_digests);
            let in_use = names.into_iter().any(|name| used.contains(name));
            let record = self.0.entry(image.id.clone()).or_insert(Record { first_seen: now, last_used: None, size: 0, pinned: false });
            // Nothing was seen later than now: the clock was set back.
            record.first_seen = record.first_seen.min(now);
            record.last_used = record.last_used.filter(|at| *at < now).or(record.last_used.map(|_| now - SignedDuration::from_nanos(1)));
            (record.size, record.pinned) = (image.size, image.pinned);
            if in_use {
                record.last_used = Some(now);
            }
        }
    }

    /// Images that nothing uses, and that did not come only just now.
    fn unused(&self, min_age: SignedDuration, now: Timestamp) -> impl Iterator<Item = (&String, &Record)> {
        self.0.iter().filter(move |(_, r)| !r.pinned && r.last_used != Some(now) && now.duration_since(r.first_seen) >= min_age)
    }

    /// The images that were used too long ago, as far as the collector has looked: not before it has looked for so long.
    fn old(&self, ages: Ages, began: Timestamp, now: Timestamp) -> Vec<(String, u64)> {
        if ages.max.is_zero() || now.duration_since(began) <= ages.max {
            return Vec::new();
        }
        // Upstream takes an image that was never used for one that was used at the beginning of time.
        let is_old = |r: &Record| now.duration_since(r.last_used.unwrap_or(r.first_seen)) > ages.max;
        self.unused(ages.min, now).filter(|(_, r)| is_old(r)).map(|(id, r)| (id.clone(), r.size)).collect()
    }

    /// The images to remove for `need` bytes: those used longest ago first.
    fn plan(&self, need: u64, min_age: SignedDuration, now: Timestamp) -> Vec<(String, u64)> {
        let mut order: Vec<_> = self.unused(min_age, now).collect();
        order.sort_by_key(|(id, r)| (r.last_used, r.first_seen, (*id).clone()));
        let mut freed = 0u64;
        let mut out = Vec::new();
        for (id, record) in order {
            if freed >= need {
                break;
            }
            freed = freed.saturating_add(record.size);
            out.push((id.clone(), record.size));
        }
        out
    }
}

/// How long images stay.
#[derive(Clone, Copy, Debug)]
struct Ages {
    min: SignedDuration,
    /// Zero for no such bound.
    max: SignedDuration,
}

impl Ages {
    fn of(policy: &ImageCollection) -> Self {
        let signed = |age| SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
        Ages { min: signed(policy.min_age), max: signed(policy.max_age) }
    }
}

/// Percent of a file system that are in use, and the bytes to free down to the low threshold once that is as much as the high one.
fn to_free(space: Space, policy: &ImageCollection) -> Option<(u64, u64)> {
    let available = space.available.min(space.capacity);
    let used = 100 - (u128::from(available) * 100 / u128::from(space.capacity.max(1))) as u64;
    let wanted = u128::from(space.capacity) * u128::from(100 - policy.low_percent.min(100)) / 100;
    (used >= u64::from(policy.high_percent)).then(|| (used, (wanted as u64).saturating_sub(available)))
}

/// The collector of one node.
pub(crate) struct Collector {
    /// What is known of the images.
    pub known: Mutex<Known>,
    /// Images that the node's pods have as volumes; None as long as it does not know all its pods.
    pub volumes: Box<dyn Fn() -> Option<BTreeSet<String>> + Send + Sync>,
    pub client: cri::Client,
    pub root: Arc<HostRoot>,
    pub policy: ImageCollection,
    pub records: Arc<Records>,
    pub recorder: EventRecorder,
    pub node: String,
}

impl Collector {
    /// Looks at the images again and again, for ever. A high threshold of 100 without a greatest age switches that off, as upstream.
    pub(crate) async fn keep(&self) {
        if self.policy.high_percent >= 100 && self.policy.max_age.is_zero() {
            return std::future::pending().await;
        }
        let began = Timestamp::now();
        loop {
            if let Err(error) = Box::pin(self.collect(began, Timestamp::now())).await {
                tracing::warn!(error = %error.as_report(), "cannot remove unused images; trying again");
            }
            tokio::time::sleep(self.policy.interval).await;
        }
    }

    /// Space on the file system of images.
    pub(crate) async fn space(&self) -> Result<Space, CollectError> {
        let info = self.client.image_fs_info(v1::ImageFsInfoRequest {}).await?;
        let place = info.image_filesystems.into_iter().find_map(|fs| fs.fs_id).ok_or(CollectError::NoFileSystem)?;
        let space = self.root.space(&self.root.parse(&place.mountpoint)?)?;
        if space.capacity == 0 { Err(CollectError::NoSize) } else { Ok(space) }
    }

    /// Removes all images that no container uses and that did not come just now.
    pub(crate) async fn remove_unused(&self) -> Result<(), CollectError> {
        let now = Timestamp::now();
        self.look(now).await?;
        let plan = self.known().plan(u64::MAX, Ages::of(&self.policy).min, now);
        self.remove(plan, now, "the node is short of disk").await;
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in which images there are, and which are used.
    async fn look(&self, now: Timestamp) -> Result<(), CollectError> {
        let images = self.client.list_images(v1::ListImagesRequest { filter: None }).await?;
        let containers = self.client.list_containers(v1::ListContainersRequest::default()).await?;
        let ids: Vec<String> = containers.iter().map(|c| c.id.clone()).collect();
        let names = |c: v1::Container| [c.image_ref, c.image_id, c.image.unwrap_or_default().image];
        let mut used: BTreeSet<String> = containers.into_iter().flat_map(names).filter(|name| !name.is_empty()).collect();
        match (self.volumes)() {
            Some(references) => {
                for reference in references {
                    let image = Some(v1::ImageSpec { image: reference, ..Default::default() });
                    let found = self.client.image_status(v1::ImageStatusRequest { image, verbose: false }).await?;
                    used.extend(found.image.map(|image| image.id));
                }
            }
            // A source of pods may be away for long, and the disk fill up meanwhile.
            None => used.extend(self.mounted(ids).await?),
        }
        self.known().update(&images, &used, now);
        Ok(())
    }

    /// The images that containers mount: each of them is asked for, as a list does not say it (upstream: `handleImageVolumes`).
    async fn mounted(&self, containers: Vec<String>) -> Result<BTreeSet<String>, CollectError> {
        let mut images = BTreeSet::new();
        for container_id in containers {
            let request = v1::ContainerStatusRequest { container_id, ..Default::default() };
            match self.client.container_status(request).await {
                Ok(answer) => images.extend(answer.status.into_iter().flat_map(|status| status.mounts).filter_map(|m| Some(m.image?.image))),
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(images)
    }

    /// Removes these images. Returns how many bytes they had.
    async fn remove(&self, plan: Vec<(String, u64)>, now: Timestamp, why: &str) -> u64 {
        let mut freed = 0u64;
        for (id, size) in plan {
            let image = v1::ImageSpec { image: id.clone(), ..Default::default() };
            match self.client.remove_image(v1::RemoveImageRequest { image: Some(image) }).await {
                Ok(()) => {
                    tracing::info!(image = id, size, "removed an unused image: {why}");
                    freed = freed.saturating_add(size);
                    self.known().0.remove(&id);
                }
                Err(error) => tracing::warn!(image = id, error = %error.as_report(), "removing an unused image failed"),
            }
        }
        // Upstream forgets images that it did not look at, too: then they would count as preloaded, and every pod might use them.
        let left: BTreeSet<String> = self.known().0.keys().cloned().collect();
        self.records.prune(&left, now);
        freed
    }

    async fn collect(&self, began: Timestamp, now: Timestamp) -> Result<(), CollectError> {
        self.look(now).await?;
        let ages = Ages::of(&self.policy);
        let old = self.known().old(ages, began, now);
        if !old.is_empty() {
            self.remove(old, now, "nothing used it for imageMaximumGCAge").await;
        }
        let space = self.space().await?;
        let Some((percent, need)) = to_free(space, &self.policy) else { return Ok(()) };
        let plan = self.known().plan(need, ages.min, now);
        let freed = self.remove(plan, now, &format!("the file system of images is {percent}% full")).await;
        if freed < need {
            self.report(percent, space.capacity, freed);
        }
        Ok(())
    }

    /// Says that the disk is full of something else.
    fn report(&self, percent: u64, capacity: u64, freed: u64) {
        let size = kube_rules::Quantity::from_bytes(i64::try_from(capacity).unwrap_or(i64::MAX));
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({percent}% of {size} used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data."
        );
        let node = Some(self.node.clone());
        let about = ObjectReference { kind: Some("Node".into()), name: node.clone(), uid: node, ..Default::default() };
        self.recorder.event(&about, EventType::Warning, "FreeDiskSpaceFailed", None, message);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn image(id: &str, size: u64) -> v1::Image {
        v1::Image { id: id.into(), repo_tags: vec![format!("{id}:1")], size, ..Default::default() }
    }

    fn used(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|n| (*n).to_owned()).collect()
    }

    #[test]
    fn images_go_in_the_order_of_their_last_use() {
        let mut all = vec![image("never", 10), image("old", 10), image("recent", 10), image("running", 10), image("pause", 10)];
        all[4].pinned = true;
        let mut known = Known::default();
        known.update(&all, &used(&["old:1", "recent", "running:1"]), t(0));
        known.update(&all, &used(&["recent", "running:1"]), t(300));
        all.push(image("new", 10));
        known.update(&all, &used(&["running:1"]), t(600));
        let plan = |need| known.plan(need, SignedDuration::from_mins(2), t(600)).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(plan(0), [""; 0]);
        assert_eq!(plan(5), ["never"]);
        assert_eq!(plan(11), ["never", "old"]);
        assert_eq!(plan(1000), ["never", "old", "recent"], "not what runs, what is pinned, what has just come");
        known.update(&all[1..], &used(&[]), t(900));
        assert_eq!(known.plan(5, SignedDuration::ZERO, t(900))[0].0, "new", "what is gone is forgotten");
    }

    #[test]
    fn images_that_nobody_uses_go_after_their_greatest_age() {
        let mut all = vec![image("never", 1), image("old", 2), image("recent", 3), image("running", 4), image("pause", 5)];
        all[4].pinned = true;
        let mut known = Known::default();
        known.update(&all, &used(&["old", "recent", "running"]), t(0));
        known.update(&all, &used(&["recent", "running"]), t(100));
        all.push(image("new", 6));
        known.update(&all, &used(&["running"]), t(150));
        let ages = |max| Ages { min: SignedDuration::from_secs(60), max: SignedDuration::from_secs(max) };
        let old = |max, began| known.old(ages(max), t(began), t(150)).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(old(100, 0), ["never", "old"], "not what is used, what is pinned, what has just come");
        assert_eq!(old(149, 0), ["never", "old"]);
        assert_eq!(old(150, -1), [""; 0], "one that was never used has the age of its coming");
        assert_eq!(old(49, 0), ["never", "old", "recent"]);
        assert_eq!(old(100, 50), [""; 0], "it has not looked for so long");
        assert_eq!(old(0, 0), [""; 0], "there is no such bound");
    }

    #[test]
    fn a_clock_that_was_set_back_keeps_no_image() {
        let all = [image("old", 10), image("running", 10)];
        let mut known = Known::default();
        known.update(&all, &used(&["old", "running"]), t(7200));
        known.update(&all, &used(&["running"]), t(3600));
        let plan = |known: &Known, at| known.plan(100, SignedDuration::from_mins(2), t(at)).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(plan(&known, 3600), [""; 0], "it counts as new");
        known.update(&all, &used(&["running"]), t(3720));
        assert_eq!(plan(&known, 3720), ["old"]);
    }

    #[test]
    fn space_is_freed_from_the_high_threshold_down_to_the_low_one() {
        let policy = ImageCollection { min_age: Duration::ZERO, ..ImageCollection::default() };
        let of = |available| to_free(Space { capacity: 1000, available, inodes: 0, inodes_free: 0 }, &policy);
        assert_eq!(of(160), None);
        assert_eq!(of(150), Some((85, 50)));
        assert_eq!(of(0), Some((100, 200)));
        assert_eq!(of(2000), None, "more free than there is");
    }
}
