//! Events about objects, as upstream's `client-go/tools/record` writes them.
//!
//! Flow: [`EventRecorder::event`] puts a note into a bounded queue and returns; one task per recorder takes notes out, asks the
//! [`correlate::Correlator`] what to do (create, count up, leave out) and writes core/v1 Events.
//! Guarantees: the caller never waits; a full queue drops the note and says so in the log; an Event refused by the server is dropped,
//! one that could not reach it is tried again up to twelve times; a server that has too much to do gets Events more slowly.

mod correlate;

use std::time::Duration;

use backoff::Backoff;
use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, api::Patch};
use thiserror_ext::AsReport;
use tokio::{sync::mpsc, time::Instant};

use crate::{Client, is_not_found, unread};
use correlate::{Correlator, Note, Verdict};

/// Notes waiting to be written (upstream: `maxQueuedEvents`).
const QUEUE: usize = 1000;
/// Attempts for one Event (upstream: `maxTriesPerEvent`).
const ATTEMPTS: u32 = 12;
/// A server that takes longer for one Event has too much to do. Then Events, which nothing depends on, make room for statuses: the recorder
/// pauses after each for a multiple of what it took, so that it has a fifth of the requests that it could have.
const SLOW: Duration = Duration::from_millis(150);
const PAUSE: u32 = 4;
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// With so many notes waiting it does not pause: the queue has an end, and what does not fit is lost.
const CROWDED: usize = QUEUE / 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Things go as they should.
    Normal,
    /// Someone may have to look.
    Warning,
}

impl EventType {
    /// The value of the Event's `type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Writes Events for one component. Clones share the queue; the task ends with the last clone, after it wrote what was queued.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Note>,
}

impl EventRecorder {
    /// A recorder that signs as `component` on `host` (the node's name, or empty).
    ///
    /// Panics outside a tokio runtime.
    pub fn new(client: Client, component: &str, host: &str) -> Self {
        let (queue, notes) = mpsc::channel(QUEUE);
        let writer = Writer { client, component: component.to_owned(), host: host.to_owned(), correlator: Correlator::default(), warned: false };
        tokio::spawn(writer.run(notes));
        Self { queue }
    }

    /// Notes an Event about `object`; repeats of the same (object, type, reason, message) raise one Event's count.
    /// `action` is what was done or failed, as upstream names it ("Binding"), where there is one.
    pub fn event(&self, object: &ObjectReference, type_: EventType, reason: &str, action: Option<&str>, message: impl Into<String>) {
        let note = Note {
            object: object.clone(),
            type_,
            reason: reason.to_owned(),
            action: action.map(str::to_owned),
            message: message.into(),
            at: Timestamp::now(),
        };
        if let Err(error) = self.queue.try_send(note) {
            tracing::warn!(reason, object = object.name, error = %error.as_report(), "an event was dropped");
        }
    }
}

struct Writer {
    client: Client,
    component: String,
    host: String,
    correlator: Correlator,
    /// A lost event was warned about.
    warned: bool,
}

impl Writer {
    async fn run(mut self, mut notes: mpsc::Receiver<Note>) {
        while let Some(note) = notes.recv().await {
            let begun = Instant::now();
            let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
            while let Err(error) = Box::pin(self.write(&note)).await {
                if !worth_retrying(&error) || backoff.attempts() + 1 >= ATTEMPTS {
                    self.lost(&note, &error);
                    break;
                }
                tokio::time::sleep(backoff.next_delay()).await;
            }
            tokio::time::sleep(pause(begun.elapsed(), notes.len(), notes.is_closed())).await;
        }
    }

    /// Says so, the first time as a warning: what goes wrong with one event mostly goes wrong with the next.
    fn lost(&mut self, note: &Note, error: &kube::Error) {
        let (reason, object) = (&note.reason, note.object.name.as_deref().unwrap_or_default());
        if std::mem::replace(&mut self.warned, true) {
            tracing::debug!(reason, object, error = %error.as_report(), "an event was not written");
        } else {
            let component = &self.component;
            tracing::warn!("cannot write event {reason} of {object}: {error}; let {component} create and patch events; further ones at debug level");
        }
    }

    async fn write(&mut self, note: &Note) -> kube::Result<()> {
        let (message, bump) = match self.correlator.correlate(note) {
            Verdict::Skip => return Ok(()),
            Verdict::Create { message } => (message, None),
            Verdict::Bump { message, event, count } => (message, Some((event, count))),
        };
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace(note));
        let mut count = 1;
        if let Some((name, bumped)) = bump {
            let patch = serde_json::json!({"count": bumped, "lastTimestamp": Time(note.at), "message": message});
            match unread::patch(&events, &name, &Patch::Merge(patch)).await {
                Err(error) if is_not_found(&error) => count = bumped,
                Err(error) => return Err(error),
                Ok(()) => {
                    self.correlator.written(note, name, bumped);
                    return Ok(());
                }
            }
        }
        let event = self.render(note, &message, count);
        let name = event.metadata.name.clone().unwrap_or_default();
        unread::create(&events, &event).await?;
        self.correlator.written(note, name, count);
        Ok(())
    }

    fn render(&self, note: &Note, message: &str, count: i32) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{}.{:x}", note.object.name.as_deref().unwrap_or_default(), note.at.as_nanosecond())),
                namespace: Some(namespace(note).to_owned()),
                ..Default::default()
            },
            involved_object: note.object.clone(),
            type_: Some(note.type_.as_str().to_owned()),
            reason: Some(note.reason.clone()),
            action: note.action.clone(),
            message: Some(message.to_owned()),
            count: Some(count),
            first_timestamp: Some(Time(note.at)),
            last_timestamp: Some(Time(note.at)),
            source: Some(EventSource { component: Some(self.component.clone()), host: Some(self.host.clone()).filter(|host| !host.is_empty()) }),
            reporting_component: Some(self.component.clone()),
            reporting_instance: Some(self.host.clone()),
            ..Default::default()
        }
    }
}

/// Events about cluster-scoped objects are in `default`.
fn namespace(note: &Note) -> &str {
    note.object.namespace.as_deref().filter(|ns| !ns.is_empty()).unwrap_or("default")
}

/// How long the recorder waits after an Event that took so long, with so many notes waiting. One that ends writes what is left at once.
fn pause(took: Duration, waiting: usize, ends: bool) -> Duration {
    if took < SLOW || waiting >= CROWDED || ends { Duration::ZERO } else { (took * PAUSE).min(LONGEST_PAUSE) }
}

/// A refusal stays one; anything else may pass.
fn worth_retrying(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::SerdeError(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
