//! What keeps a host equal to the table: the Host Networking Service by a queue of its own, everything else by passes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cluster::Backoff;
use tokio::time::Instant;

use crate::hns::{Gap, Happening, Hns};
use crate::table::{Table, VipKey};

/// A VIP that could not be made what the table says; it is retried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which one.
    pub key: VipKey,
    /// Why, with the way out.
    pub reason: String,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many writes reached the host.
    pub writes: usize,
    /// What is left to do.
    pub failures: Vec<Failure>,
}

/// How far a backend is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The host was read, and every VIP was tried once.
    pub ready: bool,
    /// VIPs that wait or are under way.
    pub pending: usize,
    /// Those that are not what they should be, with the reason.
    pub failing: BTreeMap<VipKey, String>,
    /// What the host cannot do, by VIP.
    pub gaps: BTreeMap<VipKey, Vec<Gap>>,
    /// Why the host cannot be read or written at all.
    pub unavailable: Option<String>,
    /// How many writes reached the host.
    pub writes: u64,
}

pub(crate) enum Backend {
    Hns(Box<Hns>),
    #[cfg(target_os = "linux")]
    Nftables(Passes<crate::nftables::Nftables>),
    Userspace(Passes<crate::userspace::Userspace>),
}

/// Something that happened to a backend.
pub(crate) enum Turn {
    Hns(Happening),
    Pass,
}

impl Backend {
    /// These VIPs changed in the table.
    pub fn touch(&mut self, keys: impl IntoIterator<Item = VipKey>, table: &Table) {
        match self {
            Self::Hns(hns) => hns.touch(keys, table),
            #[cfg(target_os = "linux")]
            Self::Nftables(passes) => passes.dirty.extend(keys),
            Self::Userspace(passes) => passes.dirty.extend(keys),
        }
    }

    /// Begins what can be begun.
    pub fn begin(&mut self, table: &Table) {
        if let Self::Hns(hns) = self {
            hns.begin(table);
        }
    }

    /// Waits for the next thing to happen. May be dropped and called again at any time.
    pub async fn turn(&mut self) -> Turn {
        match self {
            Self::Hns(hns) => Turn::Hns(hns.happening().await),
            #[cfg(target_os = "linux")]
            Self::Nftables(passes) => {
                passes.due().await;
                Turn::Pass
            }
            Self::Userspace(passes) => {
                passes.due().await;
                Turn::Pass
            }
        }
    }

    /// Takes in what happened.
    pub fn take(&mut self, turn: Turn, table: &Table) {
        match (self, turn) {
            (Self::Hns(hns), Turn::Hns(happening)) => hns.take(happening, table),
            #[cfg(target_os = "linux")]
            (Self::Nftables(passes), Turn::Pass) => passes.pass(table, |nftables, dirty, full| nftables.sync(table, dirty, full)),
            (Self::Userspace(passes), Turn::Pass) => passes.pass(table, |userspace, dirty, full| userspace.sync(table, dirty, full)),
            (_, Turn::Hns(_)) | (Self::Hns(_), Turn::Pass) => {}
        }
    }

    /// How far it is, when people may see a difference.
    pub fn news(&mut self) -> Option<Progress> {
        match self {
            Self::Hns(hns) => hns.take_news().then(|| {
                let engine = hns.engine();
                Progress {
                    ready: engine.was_up_to_date(),
                    pending: engine.pending(),
                    failing: engine.failing().clone(),
                    gaps: engine.gaps().clone(),
                    unavailable: engine.unavailable().map(str::to_owned),
                    writes: engine.writes(),
                }
            }),
            #[cfg(target_os = "linux")]
            Self::Nftables(passes) => passes.take_news(),
            Self::Userspace(passes) => passes.take_news(),
        }
    }

    /// How many VIPs wait or are under way, and how many were done.
    pub fn pending(&self) -> (usize, u64) {
        match self {
            Self::Hns(hns) => (hns.engine().pending(), hns.engine().finished()),
            #[cfg(target_os = "linux")]
            Self::Nftables(passes) => (passes.pending(), passes.finished),
            Self::Userspace(passes) => (passes.pending(), passes.finished),
        }
    }

    /// Whether the host has what the table says of this VIP.
    pub fn is_settled(&self, key: &VipKey) -> bool {
        match self {
            Self::Hns(hns) => hns.engine().is_settled(key),
            #[cfg(target_os = "linux")]
            Self::Nftables(passes) => passes.pending() == 0,
            Self::Userspace(passes) => passes.pending() == 0,
        }
    }

    /// Asks for the calls of the Host Networking Service so far, where there is one.
    pub fn tallies(&self) -> Option<crate::metrics::Tallies> {
        match self {
            Self::Hns(hns) => Some(Box::new(hns.tallies())),
            #[cfg(target_os = "linux")]
            Self::Nftables(_) => None,
            Self::Userspace(_) => None,
        }
    }
}

/// Retries begin after this and double up to [`SLOWEST`].
const QUICKEST: Duration = Duration::from_millis(200);
const SLOWEST: Duration = Duration::from_secs(10);

/// A backend that makes what changed true in one pass, and compares everything now and then.
pub(crate) struct Passes<B> {
    backend: B,
    dirty: BTreeSet<VipKey>,
    /// A pass failed and is tried again then.
    retry: Option<Instant>,
    full_due: bool,
    next_full: Instant,
    full_pass: Duration,
    backoff: Backoff,
    progress: Progress,
    finished: u64,
    news: bool,
}

impl<B> Passes<B> {
    /// Passes of `backend`, the first over everything.
    pub fn new(backend: B, full_pass: Duration) -> Self {
        Self {
            backend,
            dirty: BTreeSet::new(),
            retry: None,
            full_due: true,
            next_full: Instant::now() + full_pass,
            full_pass,
            backoff: Backoff::new(QUICKEST, SLOWEST),
            progress: Progress::default(),
            finished: 0,
            news: false,
        }
    }

    /// The backend itself.
    pub fn into_inner(self) -> B {
        self.backend
    }

    fn take_news(&mut self) -> Option<Progress> {
        std::mem::take(&mut self.news).then(|| self.progress.clone())
    }

    fn pending(&self) -> usize {
        self.dirty.len().max(usize::from(self.full_due))
    }

    async fn due(&self) {
        match self.retry {
            Some(retry) => tokio::time::sleep_until(retry).await,
            None if self.full_due || !self.dirty.is_empty() => {}
            None => tokio::time::sleep_until(self.next_full).await,
        }
    }

    fn pass(&mut self, table: &Table, sync: impl FnOnce(&mut B, &BTreeSet<VipKey>, bool) -> Result<Outcome, String>) {
        let now = Instant::now();
        let full = self.full_due || now >= self.next_full;
        let dirty = std::mem::take(&mut self.dirty);
        self.retry = None;
        match sync(&mut self.backend, &dirty, full) {
            Ok(outcome) => {
                if full {
                    (self.full_due, self.next_full) = (false, now + self.full_pass);
                }
                if outcome.writes > 0 {
                    tracing::info!(writes = outcome.writes, vips = table.len(), failing = outcome.failures.len(), "programmed services");
                }
                self.finished += 1;
                for failure in outcome.failures.iter().filter(|failure| self.progress.failing.get(&failure.key) != Some(&failure.reason)) {
                    tracing::warn!(vip = %failure.key, "{}; trying again", failure.reason);
                }
                self.dirty = outcome.failures.iter().map(|failure| failure.key).collect();
                self.progress.failing = outcome.failures.into_iter().map(|failure| (failure.key, failure.reason)).collect();
                self.progress.writes += outcome.writes as u64;
                (self.progress.ready, self.progress.unavailable) = (true, None);
            }
            Err(reason) => {
                (self.dirty, self.full_due) = (dirty, full);
                if self.progress.unavailable.as_ref() != Some(&reason) {
                    tracing::warn!("services cannot be programmed: {reason}; trying again");
                }
                self.progress.unavailable = Some(reason);
            }
        }
        if self.dirty.is_empty() && self.progress.unavailable.is_none() {
            self.backoff.reset();
        } else {
            self.retry = Some(now + self.backoff.next_delay());
        }
        self.progress.pending = self.dirty.len();
        self.news = true;
    }
}
