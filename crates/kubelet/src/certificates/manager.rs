//! Keeps one certificate good: asks for the first one, and for the next before it ends (upstream: client-go's `certificate.Manager`).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use pki::pair_store::StoreError;
use pki::{Key, Pair, PairStore, Subject};
use thiserror_ext::AsReport as _;
use tokio::sync::watch;

use super::Current;
use super::bootstrap::{Bootstrap, BootstrapError};
use super::metrics::Counts;
pub use super::plan::Purpose;
use super::plan::{self, Step};
use super::request::{self, RequestError, Submitted, Wanted};

/// How long one request is waited for.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How long a node may be without a good client certificate, while the API server answers, before its agent ends (upstream: `exitAfter`).
const WITHOUT: Duration = Duration::from_secs(5 * 60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(10);
/// Between two certificates at least, whatever their lives are.
const PAUSE: Duration = Duration::from_secs(1);

/// Why the agent cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    #[error("cannot use the node's certificates")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// Upstream's rule: a wrapper, or a bootstrap kubeconfig at the next start, may bring a new certificate.
    #[error(
        "there has been no valid client certificate for {minutes} minutes, and the API server gives no new one: approve the node's certificate \
         signing request (kubectl get csr), or start the agent with --bootstrap-kubeconfig"
    )]
    Expired { minutes: u64 },
}

/// Why one attempt failed.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error("cannot make a key")]
    Key(#[source] pki::Error),
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("the certificate that was issued cannot be used")]
    Pair(#[source] pki::pair::PairError),
    #[error("the certificate that was issued is another one: {0}")]
    Other(String),
    #[error("cannot keep the certificate")]
    Store(#[source] StoreError),
}

/// The client that requests go through: by whether there is a certificate that is good.
pub type Requester = Box<dyn Fn(bool) -> kube::Client + Send + Sync>;

/// What a manager needs.
pub struct Parts {
    pub purpose: Purpose,
    pub store: PairStore,
    /// Credentials that count when the store has none, and are replaced at once (upstream: those in a kubeconfig of kubeadm's).
    pub first: Option<Pair>,
    /// How a node gets its first certificate; none where it is asked for like any other.
    pub bootstrap: Option<Bootstrap>,
    /// What the certificate says; none as long as that is not known.
    pub wanted: watch::Receiver<Option<Subject>>,
    pub requester: Requester,
}

/// Keeps a certificate; [`Manager::current`] has it.
pub struct Manager {
    purpose: Purpose,
    store: PairStore,
    wanted: watch::Receiver<Option<Subject>>,
    requester: Requester,
    bootstrap: Option<Bootstrap>,
    current: watch::Sender<Option<Arc<Pair>>>,
    counts: Arc<Counts>,
    /// The certificate is replaced whatever it says.
    is_forced: bool,
    /// Whether the API server answered the last request.
    is_answered: AtomicBool,
}

impl Manager {
    /// A manager with the certificate of its store, if that is good.
    ///
    /// # Errors
    /// When the store has a certificate that cannot be used.
    pub fn new(parts: Parts) -> Result<Self, ManagerError> {
        let now = SystemTime::now();
        let kept = parts.store.current()?.filter(|pair| now < pair.leaf().not_after);
        let (current, is_forced) = match (kept, parts.first) {
            (Some(pair), _) => (Some(pair), false),
            (None, Some(first)) => {
                if let Err(error) = parts.store.update(&first, &stamp()) {
                    tracing::warn!(error = %error.as_report(), "the kubeconfig's certificate cannot be kept in --cert-dir");
                }
                (Some(first), true)
            }
            (None, None) => (None, false),
        };
        let (current, reader) = watch::channel(current.map(Arc::new));
        let counts = Counts::new(parts.purpose, reader);
        let Parts { purpose, store, wanted, requester, bootstrap, .. } = parts;
        Ok(Self { purpose, store, wanted, requester, bootstrap, current, counts, is_forced, is_answered: AtomicBool::new(false) })
    }

    /// The certificate in use.
    pub fn current(&self) -> Current {
        self.current.subscribe()
    }

    /// Its metrics.
    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Runs for ever.
    ///
    /// # Errors
    /// Of a client certificate: [`ManagerError::Bootstrap`], [`ManagerError::Expired`].
    pub async fn run(self) -> Result<Infallible, ManagerError> {
        if let Some(bootstrap) = &self.bootstrap {
            let pair = bootstrap.run().await.inspect_err(|_| self.counts.failure())?;
            self.current.send_replace(Some(Arc::new(pair)));
        }
        let end = async {
            match self.purpose {
                Purpose::Client => self.without_certificate().await,
                // The agent works without a server, too.
                Purpose::Serving => std::future::pending().await,
            }
        };
        tokio::select! {
            never = self.keep() => match never {},
            error = end => Err(error),
        }
    }

    async fn keep(&self) -> Infallible {
        let mut wanted = self.wanted.clone();
        let mut is_forced = self.is_forced;
        // Each certificate has its own place between 70 and 90 %.
        let mut due: Option<(Arc<Pair>, SystemTime)> = None;
        loop {
            let current = self.current.borrow().clone();
            due = match (current, due) {
                (Some(pair), Some((known, deadline))) if Arc::ptr_eq(&pair, &known) => Some((known, deadline)),
                (Some(pair), _) => {
                    let deadline = plan::deadline(pair.leaf(), random());
                    tracing::info!(
                        purpose = self.purpose.name(),
                        expires = %shown(pair.leaf().not_after),
                        replaced = %shown(deadline),
                        "using a certificate"
                    );
                    Some((pair, deadline))
                }
                (None, _) => None,
            };
            let subject = wanted.borrow_and_update().clone();
            let (leaf, deadline) = (due.as_ref().map(|(pair, _)| pair.leaf()), due.as_ref().map(|(_, deadline)| *deadline));
            let step = match &subject {
                Some(_) if is_forced => Step::Request("it was not made for this node alone".to_owned()),
                _ => plan::next(leaf, subject.as_ref(), deadline, SystemTime::now()),
            };
            match (step, subject) {
                (Step::Request(reason), Some(subject)) => {
                    tracing::info!(purpose = self.purpose.name(), reason, "asking for a certificate");
                    tokio::select! {
                        () = self.ask(&subject) => is_forced = false,
                        // What is asked for meanwhile is something else.
                        () = other_than(&mut wanted, &subject) => continue,
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                (Step::Use(until), _) => {
                    let left = until.duration_since(SystemTime::now()).unwrap_or_default();
                    tokio::select! {
                        // Clocks are set, and machines sleep: the time is looked at again.
                        () = tokio::time::sleep(left.min(Duration::from_secs(60))) => {}
                        () = changed(&mut wanted) => {}
                    }
                }
                (Step::Idle | Step::Request(_), _) => changed(&mut wanted).await,
            }
        }
    }

    /// Asks until there is a certificate.
    async fn ask(&self, subject: &Subject) {
        let mut failures = 0;
        while let Err(error) = self.attempt(subject).await {
            self.counts.failure();
            let delay = plan::delay(failures, random());
            failures = failures.saturating_add(1);
            tracing::warn!(
                purpose = self.purpose.name(),
                error = %error.as_report(),
                again = ?delay,
                "cannot get a certificate; the old one is used until its end"
            );
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(&self, subject: &Subject) -> Result<(), AttemptError> {
        let key = Key::generate().map_err(AttemptError::Key)?;
        let is_good = self.current.borrow().as_ref().is_some_and(|pair| pair.is_valid(SystemTime::now()));
        let client = (self.requester)(is_good);
        let wanted = Wanted { purpose: self.purpose, subject, key: &key, is_first: false };
        let certificate = async {
            let asked: Submitted = request::submit(&client, &wanted).await?;
            tracing::info!(purpose = self.purpose.name(), csr = asked.name, "waiting for the approval of a certificate signing request");
            request::issued(&client, &asked, PATIENCE).await
        };
        let certificate = certificate.await;
        let answered = certificate.as_ref().map_or_else(RequestError::server_answers, |_| true);
        self.is_answered.store(answered, Ordering::Relaxed);
        let pair = Pair::parse(&certificate?, &key.pem()).map_err(AttemptError::Pair)?;
        if let Some(reason) = plan::missing(pair.leaf(), subject) {
            return Err(AttemptError::Other(reason));
        }
        self.store.update(&pair, &stamp()).map_err(AttemptError::Store)?;
        let old = self.current.send_replace(Some(Arc::new(pair)));
        if let Some(old) = old {
            self.counts.replaced(SystemTime::now().duration_since(old.leaf().not_before).unwrap_or_default());
        }
        Ok(())
    }

    /// Completes when the node has been without a good certificate for too long, although the API server answers.
    async fn without_certificate(&self) -> ManagerError {
        let mut last = tokio::time::Instant::now();
        loop {
            tokio::time::sleep(LOOK).await;
            if self.current.borrow().as_ref().is_some_and(|pair| SystemTime::now() <= pair.leaf().not_after) {
                last = tokio::time::Instant::now();
            } else if last.elapsed() >= WITHOUT {
                if self.is_answered.load(Ordering::Relaxed) {
                    return ManagerError::Expired { minutes: last.elapsed().as_secs() / 60 };
                }
                tracing::warn!("there is no valid client certificate, and the API server does not answer; still trying");
            }
        }
    }
}

/// Completes when something else is wanted.
async fn other_than(wanted: &mut watch::Receiver<Option<Subject>>, subject: &Subject) {
    if wanted.wait_for(|now| now.as_ref() != Some(subject)).await.is_err() {
        std::future::pending().await
    }
}

async fn changed(wanted: &mut watch::Receiver<Option<Subject>>) {
    if wanted.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The name of a pair, as Go formats `2006-01-02-15-04-05`.
pub(crate) fn stamp() -> String {
    Timestamp::now().strftime("%Y-%m-%d-%H-%M-%S").to_string()
}

fn shown(time: SystemTime) -> String {
    Timestamp::try_from(time).map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()).unwrap_or_default()
}

/// From 0 to 1.
fn random() -> f64 {
    const UNIT: Duration = Duration::from_secs(1_000_000);
    // Up to a fifth is added.
    (backoff::jittered(UNIT) - UNIT).as_secs_f64() / UNIT.as_secs_f64() * 5.0
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::path::Path;

    use tokio::time::{Instant, timeout};

    const HOUR: Duration = Duration::from_secs(3600);

    fn pair() -> Pair {
        let ca = pki::Ca::generate("ca", HOUR * 48).unwrap();
        let request = pki::CertRequest { cn: "system:node:n".into(), client: true, days: 1, ..Default::default() };
        let issued = ca.issue(&request).unwrap();
        Pair::parse(&issued.cert_pem, &issued.key_pem).unwrap()
    }

    /// A manager that asks for nothing, because nobody knows what its certificate has to say.
    fn manager(purpose: Purpose, dir: &Path, is_answered: bool) -> Manager {
        let store = PairStore::open(dir, purpose.prefix(), None).unwrap();
        let (_, wanted) = watch::channel(None);
        let requester: Requester = Box::new(|_| unreachable!("nothing is asked for"));
        let manager = Manager::new(Parts { purpose, store, first: None, bootstrap: None, wanted, requester }).unwrap();
        manager.is_answered.store(is_answered, Ordering::Relaxed);
        manager
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_ends_after_five_minutes_without_a_client_certificate_while_the_server_answers() {
        let dir = tempfile::tempdir().unwrap();
        let manager = manager(Purpose::Client, dir.path(), true);
        let current = manager.current.clone();
        current.send_replace(Some(Arc::new(pair())));
        let mut run = std::pin::pin!(manager.run());
        assert!(timeout(HOUR, &mut run).await.is_err(), "it has a good one");
        current.send_replace(None);
        let since = Instant::now();
        let error = run.await.unwrap_err();
        assert!(matches!(error, ManagerError::Expired { minutes: 5 }), "{error}");
        let waited = since.elapsed();
        assert!(waited + LOOK >= WITHOUT && waited <= WITHOUT + LOOK, "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_goes_on_while_the_server_is_silent_and_without_a_serving_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let client = manager(Purpose::Client, dir.path(), false);
        assert!(timeout(HOUR, client.run()).await.is_err(), "a new certificate may come when the server is back");
        let serving = manager(Purpose::Serving, dir.path(), true);
        assert!(timeout(HOUR, serving.run()).await.is_err());
    }
}
