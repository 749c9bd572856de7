//! The loop of one watch of the hub: it lists, watches, lists again, and reports what stops it.
//!
//! A list is streamed (a watch that begins with the present objects and marks their end by a bookmark), which costs the server least.
//! Servers that cannot do it answer in different ways, and each of them leads to a list page by page and a plain watch:
//!
//! | server | answer to a streamed list |
//! | --- | --- |
//! | Kubernetes 1.27 or newer, gate `WatchList` off | 422 Invalid: `sendInitialEvents` is forbidden |
//! | Kubernetes 1.19 to 1.26 | 422 Invalid: `resourceVersionMatch` is forbidden for watch |
//! | older, and servers that know no such parameter | a plain watch: objects, changes, and no end of the list |
//! | gate on, etcd before 3.4.31 or 3.5.13 | 200, and an ERROR event (500 InternalError: "… the required storage feature RequestWatchProgress is disabled") |
//! | gate on, resource without a watch cache (1.27 to 1.29) | 422 Invalid, as an answer or as an ERROR event |
//!
//! Refusals of these kinds hold for the server, and all watches of an [`ApiServer`] learn of them. Any other failure is tried three
//! times; then this watch alone lists page by page, as client-go does.

use std::{fmt, sync::Arc, time::Duration};

use backoff::Backoff;
use futures::{Stream, StreamExt, pin_mut};
use kube::{
    Api, Resource,
    core::Status,
    runtime::watcher::{self, Event, InitialListStrategy, watcher},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::{
    ApiServer,
    hub::{Object, Watch},
    informer::{Key, Selection},
    lean::{Lean, lean},
};

/// Where the rows of one reader of a watch go.
pub(crate) trait Target<R>: Send + Sync + 'static {
    /// A list begins, or begins anew.
    fn begin(&self);
    /// A row of the list that was begun.
    fn listed(&self, key: Key, row: R);
    /// The list is complete: what was not listed is gone.
    fn end(&self);
    /// A row changed after the list; none when it is gone.
    fn set(&self, key: Key, row: Option<R>);
    /// Why no events arrive at the moment, or that they do again.
    fn trouble(&self, reason: Option<&str>);
}

/// How often a list is asked for as a stream when the answers are errors that may pass.
const ATTEMPTS: u32 = 3;
/// A failure that lasts so long is warned about.
const PATIENCE: Duration = Duration::from_secs(3);
/// The warning is repeated as often while the failure lasts. Failures further apart are not one failure that lasts.
const REMINDER: Duration = Duration::from_secs(60);

/// Why a stream of events is given up.
enum End {
    /// List again in the usual way.
    Again,
    /// List page by page.
    Pages { reason: String, remember: Remember },
}

/// When a refusal to stream is taken for the server's own.
enum Remember {
    Now,
    /// Once it has listed: it may have been the network that was silent.
    OnceListed,
    Never,
}

/// Keeps the readers of `watch` up to date, for ever.
pub(crate) async fn run<K>(api: Api<K>, selection: Selection, watch: Arc<Watch>)
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    let url = api.resource_url();
    let mut reflector = Reflector {
        server: selection.server.clone(),
        resource: url.rsplit('/').next().unwrap_or(url).to_owned(),
        backoff: Backoff::new(Duration::from_millis(50), Duration::from_secs(10)),
        trouble: Trouble::default(),
        suspicion: None,
        watch,
    };
    let mut pages = false;
    loop {
        let streaming = !pages && reflector.server.streams_lists();
        if !streaming {
            reflector.server.count_fallback(&reflector.resource);
        }
        let strategy = if streaming { InitialListStrategy::StreamingList } else { InitialListStrategy::ListWatch };
        // On the heap once, not in each future that it is handed to.
        let stream = Box::pin(watcher(lean(api.clone()), selection.watcher_config(strategy)));
        pages = match reflector.follow(stream, streaming).await {
            End::Again => false,
            End::Pages { reason, remember } => {
                tracing::debug!(resource = reflector.resource, reason, "listing page by page");
                match remember {
                    Remember::Now => reflector.server.refuse(&reflector.resource, &reason),
                    Remember::OnceListed => reflector.suspicion = Some(reason),
                    Remember::Never => {}
                }
                true
            }
        };
    }
}

struct Reflector {
    server: ApiServer,
    resource: String,
    backoff: Backoff,
    trouble: Trouble,
    /// Why the server seems not to stream lists.
    suspicion: Option<String>,
    watch: Arc<Watch>,
}

/// What goes on within one stream of events.
struct Listing {
    /// The list is not complete.
    underway: bool,
    /// When the stream of this list began, and when it last brought something.
    times: Option<(Instant, Instant)>,
    /// The stream of this list has failed already; it may end, or stay open and silent.
    failed: bool,
    /// Attempts that came to nothing.
    attempts: u32,
}

impl Reflector {
    /// Takes events until the list has to be had in another way.
    async fn follow<K: Resource + 'static>(
        &mut self,
        mut stream: impl Stream<Item = watcher::Result<Event<Lean<K>>>> + Unpin,
        streaming: bool,
    ) -> End {
        let mut listing = Listing { underway: true, times: None, failed: false, attempts: 0 };
        let (server, watch) = (self.server.clone(), self.watch.clone());
        // A reader that joins sees the list begin, or waits for the next one.
        let joined = watch.reader_waits();
        pin_mut!(joined);
        let mut begun = false;
        loop {
            let event = if streaming && listing.underway {
                tokio::select! {
                    biased;
                    () = &mut joined, if begun => return End::Again,
                    event = stream.next() => event,
                    () = server.refused() => return End::Pages { reason: "another watch found it out".into(), remember: Remember::Never },
                    waited = silence(&server, listing.times) => {
                        let reason = format!("the end of a list of {} did not come within {} s", self.resource, waited.as_secs());
                        let remember = if listing.failed { Remember::Never } else { Remember::OnceListed };
                        return End::Pages { reason, remember };
                    }
                }
            } else {
                tokio::select! {
                    biased;
                    () = &mut joined, if begun => return End::Again,
                    event = stream.next() => event,
                }
            };
            begun |= matches!(event, Some(Ok(Event::Init)));
            let end = match event {
                None => Some(End::Again),
                Some(Ok(event)) => self.take(event, &mut listing, streaming).await,
                Some(Err(error)) => self.failed(&error, &mut listing, streaming).await,
            };
            if let Some(end) = end {
                return end;
            }
        }
    }

    async fn take<K: Resource + 'static>(&mut self, event: Event<Lean<K>>, listing: &mut Listing, streaming: bool) -> Option<End> {
        let now = Instant::now();
        match event {
            Event::Init => {
                // A stream that begins anew ended before the list did.
                let ended = streaming && listing.underway && listing.times.is_some() && !listing.failed;
                listing.failed = false;
                self.watch.begin();
                listing.underway = true;
                listing.times = Some((now, now));
                if ended {
                    let reason = format!("the watch of {} ended before the list did", self.resource);
                    return self.unsuccessful(&reason, None, listing).await;
                }
            }
            Event::InitApply(Lean(object)) => {
                if let Some((_, last)) = &mut listing.times {
                    *last = now;
                }
                self.watch.listed(Object::new(&object));
            }
            Event::InitDone => {
                listing.underway = false;
                listing.times = None;
                listing.attempts = 0;
                self.well();
                self.watch.end();
                if let Some(reason) = self.suspicion.take() {
                    self.server.refuse(&self.resource, &reason);
                }
            }
            Event::Apply(Lean(object)) => {
                self.well();
                self.watch.set(Object::new(&object));
            }
            Event::Delete(Lean(object)) => {
                self.well();
                self.watch.removed(Object::new(&object));
            }
        }
        None
    }

    async fn failed(&mut self, error: &watcher::Error, listing: &mut Listing, streaming: bool) -> Option<End> {
        let status = status(error);
        let listed = streaming && listing.underway;
        if let Some(status) = status.filter(|status| listed && refuses_streaming(status)) {
            return Some(End::Pages { reason: status.message.clone(), remember: Remember::Now });
        }
        // The stream lists again by itself.
        let expired = matches!(error, watcher::Error::WatchError(status) if status.code == 410) || matches!(error, watcher::Error::NoResourceVersion);
        let again = !listing.underway && is_of_the_past(error);
        listing.underway |= expired;
        listing.failed = true;
        let open = matches!(error, watcher::Error::WatchError(_) | watcher::Error::WatchFailed(_)) && !expired;
        listing.times = listing.times.filter(|_| open).map(|_| (Instant::now(), Instant::now()));
        let answered = listed && !matches!(error, watcher::Error::WatchStartFailed(error) if !matches!(error, kube::Error::Api(_)));
        let may_pass = answered && status.is_none_or(|status| !matches!(status.code, 401 | 403 | 404 | 410 | 429 | 503));
        let reason = error.to_string();
        if may_pass {
            return self.unsuccessful(&reason, status, listing).await;
        }
        self.pause(&reason, status).await;
        // Going on where we were would be refused for ever: list again and compare.
        again.then_some(End::Again)
    }

    /// A streamed list that came to nothing is tried again, and after some attempts had in another way.
    async fn unsuccessful(&mut self, reason: &str, status: Option<&Status>, listing: &mut Listing) -> Option<End> {
        listing.attempts += 1;
        self.pause(reason, status).await;
        (listing.attempts >= ATTEMPTS).then(|| End::Pages { reason: reason.to_owned(), remember: Remember::Never })
    }

    /// Counts and reports a failure, and waits.
    async fn pause(&mut self, reason: &str, status: Option<&Status>) {
        self.server.count_failure(&self.resource);
        if !self.trouble.lasts() {
            self.backoff.reset();
        }
        self.watch.trouble(Some(reason));
        let delay = self.backoff.next_delay();
        match self.trouble.failed(Instant::now(), status.is_some_and(|status| matches!(status.code, 401 | 403 | 404))) {
            Some(since) => {
                let resource = &self.resource;
                let way_out = way_out(status);
                tracing::warn!(resource, failing_for = ?since, "cannot watch {resource}: {reason}; {way_out}; trying again");
            }
            None => tracing::debug!(resource = self.resource, reason, ?delay, "watch failed; starting it again"),
        }
        tokio::time::sleep(delay).await;
    }

    fn well(&mut self) {
        self.backoff.reset();
        self.watch.trouble(None);
        if self.trouble.over() {
            tracing::info!(resource = self.resource, "the watch of {} works again", self.resource);
        }
    }
}

/// Completes when a server that accepted a streamed list has been silent for too long, or takes too long altogether; says how long.
async fn silence(server: &ApiServer, times: Option<(Instant, Instant)>) -> Duration {
    // No answer to the request itself yet: the transport has its own time limit for that.
    let Some((began, last)) = times else { return std::future::pending().await };
    let until = (last + server.silence()).min(began + server.longest());
    tokio::time::sleep_until(until).await;
    until - began
}

/// A failure that lasts.
#[derive(Default)]
struct Trouble {
    first: Option<Instant>,
    last: Option<Instant>,
    warned: Option<Instant>,
}

impl Trouble {
    /// Whether the failures so far are recent. A watch without events gives no sign that it works, so time decides.
    fn lasts(&self) -> bool {
        self.last.is_some_and(|last| last.elapsed() < REMINDER)
    }

    /// Notes a failure; says for how long it has lasted when that is to be warned about.
    fn failed(&mut self, now: Instant, refused: bool) -> Option<Duration> {
        if !self.lasts() {
            *self = Self::default();
        }
        let since = now - *self.first.get_or_insert(now);
        self.last = Some(now);
        let due = self.warned.is_none_or(|warned| now - warned >= REMINDER) && (refused || since >= PATIENCE);
        if due {
            self.warned = Some(now);
        }
        due.then_some(since)
    }

    /// Notes a success; says whether a failure had been warned about.
    fn over(&mut self) -> bool {
        std::mem::take(self).warned.is_some()
    }
}

/// What the server answered.
fn status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        WatchError(status) => Some(status),
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status)) | WatchFailed(kube::Error::Api(status)) => {
            Some(status)
        }
        _ => None,
    }
}

fn way_out(status: Option<&Status>) -> &'static str {
    match status.map(|status| status.code) {
        Some(401) => "check the certificate or token in the kubeconfig",
        Some(403) => "grant this identity the verbs list and watch (nodes need the group system:nodes and a name system:node:NODE)",
        Some(404) => "check that the API server serves this resource",
        Some(_) => "look into the API server's log",
        None => "check that the API server runs and that its address in the kubeconfig can be reached from here",
    }
}

/// Whether the error means that the server does not stream lists.
fn refuses_streaming(status: &Status) -> bool {
    matches!(status.code, 400 | 405 | 422) || status.message.contains("required storage feature")
}

/// Whether the server does not know yet what we have seen (its store was restored from the past, or begins anew), or no longer.
fn is_of_the_past(error: &watcher::Error) -> bool {
    let watcher::Error::WatchStartFailed(kube::Error::Api(status)) = error else { return false };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 410 || causes.into_iter().any(|cause| cause.reason == "ResourceVersionTooLarge")
}

#[cfg(test)]
mod tests;
