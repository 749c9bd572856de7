//! Deadline, bound, cancellation and counts, over services that hang.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use test_lab::{LIMIT, until};

use super::*;
use crate::Guid;
use crate::document::Query;
use crate::port::{Args, EventSink, Function, Handle, Kind, Reply, Subscription};

/// A deadline that tests wait for.
const SHORT: Duration = Duration::from_secs(2);

/// Opens hang until they are released; everything else is answered.
#[derive(Default)]
struct Service {
    released: Mutex<u32>,
    changed: Condvar,
    calls: Mutex<Vec<Function>>,
    closed: Mutex<Vec<Handle>>,
}

impl Service {
    /// Lets that many opens go on.
    fn release(&self, opens: u32) {
        *self.released.lock().unwrap() += opens;
        self.changed.notify_all();
    }

    fn calls(&self) -> Vec<Function> {
        self.calls.lock().unwrap().clone()
    }
}

impl HostNetwork for Service {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        self.calls.lock().unwrap().push(function);
        match function {
            Function::Open(_) => {
                let released = self.released.lock().unwrap();
                *self.changed.wait_while(released, |released| *released == 0).unwrap() -= 1;
                Ok(Reply::handle(Handle(7)))
            }
            Function::Close(_) => {
                self.closed.lock().unwrap().extend(args.handle);
                Ok(Reply::default())
            }
            Function::Delete(_) => Err(HResult::NETWORK_NOT_FOUND.into()),
            _ => Ok(Reply::text("[]")),
        }
    }

    fn subscribe(&self, _sink: EventSink) -> Result<Subscription, RawError> {
        Ok(Subscription::new(()))
    }
}

/// Answers with the thread that made the call.
struct Threads;

impl HostNetwork for Threads {
    fn call(&self, _: Function, _: Args<'_>) -> Result<Reply, RawError> {
        Ok(Reply::text(format!("{:?}", std::thread::current().id())))
    }

    fn subscribe(&self, _sink: EventSink) -> Result<Subscription, RawError> {
        Ok(Subscription::new(()))
    }
}

fn client(places: usize) -> (Arc<Service>, HcnClient) {
    let service = Arc::new(Service::default());
    (service.clone(), HcnClient::with_limits(service, Limits { places, deadline: LIMIT }))
}

fn open(client: &HcnClient) -> Result<Reply, RawError> {
    client.blocking().port().call(Function::Open(Kind::Network), Args { id: Some(Guid::NIL), ..Args::default() })
}

fn list(client: &HcnClient) -> Result<Reply, RawError> {
    client.blocking().port().call(Function::Enumerate(Kind::Network), Args::default())
}

#[test]
fn threads_are_kept_for_the_next_call() {
    let client = HcnClient::with_limits(Arc::new(Threads), Limits { places: 3, deadline: LIMIT });
    let threads = Mutex::new(BTreeSet::new());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let thread = list(&client).unwrap().result.unwrap();
                    threads.lock().unwrap().insert(thread);
                }
            });
        }
    });
    let count = threads.lock().unwrap().len();
    assert!((1..=3).contains(&count), "{count} threads made 400 calls");
}

#[test]
fn blocking_calls_end_at_their_deadline_and_are_refused_when_every_place_hangs() {
    let (service, client) = client(2);
    let hasty = client.clone().with_deadline(SHORT);

    assert_eq!(open(&hasty).unwrap_err().hresult, HResult::TIMEOUT);
    assert!(list(&client).is_ok(), "one place is left");
    assert_eq!(open(&hasty).unwrap_err().hresult, HResult::TIMEOUT);
    let snapshot = client.snapshot();
    assert_eq!((snapshot.running, snapshot.hung.len(), snapshot.timed_out), (2, 2, 2));
    assert!(snapshot.hung[0].to_string().starts_with("HcnOpenNetwork hangs for "), "{:?}", snapshot.hung);
    // Far from the deadline of the call that is refused.
    let started = Instant::now();
    let refused = list(&client).unwrap_err();
    assert!(started.elapsed() < LIMIT / 2, "refused at once");
    assert!(refused.record.as_deref().is_some_and(|text| text.contains("Restart-Service")), "{refused:?}");
    assert_eq!(client.snapshot().refused, 1);

    service.release(2);
    until("what was opened late is closed", || service.closed.lock().unwrap().len() == 2);
    until("the places come back", || client.snapshot().running == 0);
    assert!(list(&client).is_ok());
}

#[test]
fn answer_in_time_is_delivered_and_stays_open() {
    let (service, client) = client(1);
    service.release(1);
    assert_eq!(open(&client).unwrap().handle, Some(Handle(7)));
    assert_eq!(*service.closed.lock().unwrap(), []);
}

#[tokio::test]
async fn operation_ends_at_its_deadline_and_makes_no_further_call() {
    let (service, client) = client(2);
    let hasty = client.clone().with_deadline(SHORT);
    let error = hasty.network(&Guid::NIL).await.unwrap_err();
    assert!(matches!(&error, HcnError::Deadline { operation, .. } if operation.starts_with("reading network")), "{error}");
    assert_eq!(client.network_ids().await.unwrap(), [], "the hung call stalls nobody");
    service.release(1);
    until("the place comes back", || client.snapshot().running == 0);
    let (opened, closed) = (Function::Open(Kind::Network), Function::Close(Kind::Network));
    assert_eq!(service.calls(), [opened, Function::Enumerate(Kind::Network), closed], "no query for a caller that is gone");
}

#[tokio::test]
async fn operations_are_refused_when_every_place_hangs_also_those_that_wait() {
    let (service, client) = client(1);
    let hasty = client.clone().with_deadline(SHORT);
    let (hung, waited) = tokio::join!(hasty.network(&Guid::NIL), client.network_ids());
    assert!(matches!(hung, Err(HcnError::Deadline { .. })), "{hung:?}");
    let refused = client.network_ids().await;
    for error in [waited, refused].map(Result::unwrap_err) {
        let text = error.to_string();
        assert!(error.is_service_down() && text.starts_with("listing the ids of networks was refused"), "{text}");
        assert!(text.contains("all 1 calls") && text.contains("HcnOpenNetwork hangs") && text.contains("Restart-Service"), "{text}");
    }
    assert_eq!(client.snapshot().refused, 2);
    service.release(1);
    until("the place comes back", || client.snapshot().running == 0);
    assert!(client.network_ids().await.is_ok());
}

#[tokio::test]
async fn cancelled_operation_that_waits_never_begins() {
    let (service, client) = client(1);
    let busy = tokio::spawn({
        let client = client.clone();
        async move { client.network(&Guid::NIL).await }
    });
    tokio::task::yield_now().await;
    until("the place is taken", || service.calls().len() == 1);
    let waits = tokio::time::timeout(SHORT, client.network_ids()).await;
    assert!(waits.is_err());
    let snapshot = client.snapshot();
    assert_eq!((snapshot.running, snapshot.waiting, snapshot.cancelled), (1, 0, 1));
    assert!(snapshot.hung.is_empty(), "a call that is awaited does not hang");
    service.release(1);
    busy.await.unwrap().unwrap_err();
    assert!(!service.calls().contains(&Function::Enumerate(Kind::Network)));
}

#[tokio::test]
async fn cancelled_operation_keeps_its_place_until_its_call_returns_and_closes_what_it_opened() {
    let (service, client) = client(1);
    assert!(tokio::time::timeout(SHORT, client.network(&Guid::NIL)).await.is_err());
    let snapshot = client.snapshot();
    assert_eq!((snapshot.running, snapshot.cancelled, snapshot.timed_out), (1, 1, 0));
    assert!(snapshot.hung.is_empty(), "its deadline has not passed");
    // Others wait for the place, and are not refused.
    let (listed, ()) = tokio::join!(client.network_ids(), async { service.release(1) });
    assert_eq!(listed.unwrap(), []);
    assert_eq!(*service.closed.lock().unwrap(), [Handle(7)]);
}

#[tokio::test]
async fn calls_are_counted_by_function() {
    let (service, client) = client(4);
    client.network_ids().await.unwrap();
    client.blocking().ids::<crate::HostComputeNetwork>(&Query::default()).unwrap();
    client.delete_network(&Guid::NIL).await.unwrap();
    client.clone().with_deadline(SHORT).network(&Guid::NIL).await.unwrap_err();
    let snapshot = client.snapshot();
    let tally = |function| snapshot.functions.get(&function).copied().unwrap_or_default();
    let (list, delete, open) =
        (tally(Function::Enumerate(Kind::Network)), tally(Function::Delete(Kind::Network)), tally(Function::Open(Kind::Network)));
    assert_eq!((list.calls, list.failed, list.hung), (2, 0, 0));
    assert_eq!((delete.calls, delete.failed), (1, 1), "absence is success for the operation and a failure of the call");
    assert_eq!((open.calls, open.hung), (0, 1), "a call that hangs has not returned");
    assert_eq!((snapshot.places, snapshot.running, snapshot.waiting), (4, 1, 0));
    service.release(1);
    until("the call returns", || client.snapshot().running == 0);
    let total = client.snapshot().total();
    assert_eq!((total.calls, total.failed, total.hung), (5, 1, 1), "with the close of what was opened late");
}

#[tokio::test]
async fn operation_that_panics_is_an_error_and_costs_no_place() {
    let (_, client) = client(1);
    let error = client.run(|| "jumping".into(), |_| -> Result<(), HcnError> { panic!("on purpose") }).await.unwrap_err();
    assert_eq!(error.to_string(), "jumping ended without an answer");
    assert!(client.network_ids().await.is_ok());
}
