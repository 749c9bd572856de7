use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use test_lab::{in_time, until_async};

use super::*;
use crate::error::HResult;
use crate::port::{Args, EventSink, Function, HostNetwork, Kind, RawError, Reply};

const ANSWERS: u8 = 0;
const FAILS: u8 = 1;
const HANGS: u8 = 2;

/// A service that answers, fails or hangs, by its mode.
#[derive(Default)]
struct Service {
    mode: AtomicU8,
    released: (Mutex<()>, Condvar),
    namespaces: Mutex<Vec<Guid>>,
    /// How often its namespaces were listed.
    probes: AtomicUsize,
    sinks: Mutex<Vec<EventSink>>,
}

impl Service {
    fn set(&self, mode: u8) {
        self.mode.store(mode, Ordering::SeqCst);
        let _guard = self.released.0.lock().unwrap();
        self.released.1.notify_all();
    }

    fn notify(&self, event_type: u32) {
        let sinks = self.sinks.lock().unwrap();
        sinks.iter().for_each(|sink| sink(Event { event_type, status: HResult::OK, data: None }));
    }

    fn restart(&self) {
        let sinks = std::mem::take(&mut *self.sinks.lock().unwrap());
        sinks.iter().for_each(|sink| sink(Event { event_type: Event::SERVICE_DISCONNECT, status: HResult::OK, data: None }));
    }
}

impl HostNetwork for Service {
    fn call(&self, function: Function, _: Args<'_>) -> Result<Reply, RawError> {
        let mut guard = self.released.0.lock().unwrap();
        while self.mode.load(Ordering::SeqCst) == HANGS {
            guard = self.released.1.wait(guard).unwrap();
        }
        if self.mode.load(Ordering::SeqCst) == FAILS {
            return Err(HResult::RPC_NOT_REGISTERED.into());
        }
        match function {
            Function::Enumerate(Kind::Namespace) => {
                self.probes.fetch_add(1, Ordering::SeqCst);
                Ok(Reply::text(serde_json::to_string(&*self.namespaces.lock().unwrap()).unwrap()))
            }
            _ => Ok(Reply::text("[]")),
        }
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        if self.mode.load(Ordering::SeqCst) == FAILS {
            return Err(HResult::RPC_NOT_REGISTERED.into());
        }
        self.sinks.lock().unwrap().push(sink);
        Ok(Subscription::new(()))
    }
}

const FAST: Timing = Timing {
    probe: Duration::from_millis(10),
    retry: Duration::from_millis(5),
    grace: Duration::from_millis(100),
    slow: Duration::from_millis(50),
    hung: Duration::from_millis(200),
    full_pass: Duration::from_secs(3600),
};

fn start(timing: Timing) -> (Arc<Service>, Watch) {
    let service = Arc::new(Service::default());
    (service.clone(), Watch::start(HcnClient::new(service), timing))
}

async fn becomes(health: &mut watch::Receiver<Health>, what: &str, holds: impl Fn(&Health) -> bool) -> Health {
    in_time(what, health.wait_for(|health| holds(health))).await.unwrap().clone()
}

async fn next(listener: &mut Listener) -> Change {
    in_time("a change", listener.next()).await
}

/// A listener that has read the change of its start and of the first registration.
async fn settled(watch: &Watch) -> Listener {
    let mut listener = watch.listen();
    for _ in 0..2 {
        assert_eq!(next(&mut listener).await, Change::All);
    }
    listener
}

#[tokio::test]
async fn watch_distinguishes_slow_from_down_and_recovers() {
    let (service, watch) = start(FAST);
    let mut health = watch.health();
    becomes(&mut health, "answering", Health::is_answering).await;
    service.set(HANGS);
    let slow = becomes(&mut health, "slow", |health| matches!(health, Health::Slow { .. })).await;
    assert!(matches!(&slow, Health::Slow { reason } if reason.contains("HcnEnumerateNetworks has not been answered")), "{slow:?}");
    becomes(&mut health, "down after a hang", |health| matches!(health, Health::Down { .. })).await;
    service.set(ANSWERS);
    becomes(&mut health, "answering", Health::is_answering).await;
    service.set(FAILS);
    becomes(&mut health, "failing before it is down", |health| matches!(health, Health::Failing { .. })).await;
    let down = becomes(&mut health, "down", |health| matches!(health, Health::Down { .. })).await;
    assert!(matches!(&down, Health::Down { reason } if reason.contains("0x6d9")), "the reason is the service's: {down:?}");
    service.set(ANSWERS);
    becomes(&mut health, "answering", Health::is_answering).await;
}

#[tokio::test]
async fn short_restart_is_not_down_and_everything_is_compared_after_it() {
    let (service, watch) = start(Timing { grace: Duration::from_secs(3600), ..FAST });
    let mut listener = settled(&watch).await;
    let mut health = watch.health();
    becomes(&mut health, "answering", Health::is_answering).await;
    service.set(FAILS);
    service.restart();
    becomes(&mut health, "failing", |health| matches!(health, Health::Failing { .. })).await;
    service.set(ANSWERS);
    assert_eq!(next(&mut listener).await, Change::All);
    becomes(&mut health, "answering", Health::is_answering).await;
    service.notify(Event::NETWORK_DELETE);
    assert!(matches!(next(&mut listener).await, Change::Event(event) if event.event_type == Event::NETWORK_DELETE), "registered again");
}

#[tokio::test]
async fn object_that_vanishes_without_notification_is_noticed() {
    let (service, watch) = start(FAST);
    let mut listener = settled(&watch).await;
    let id = Guid::random();
    service.namespaces.lock().unwrap().push(id);
    // A probe must have seen it, and another begun after that; a new object is no change.
    let probes = service.probes.load(Ordering::SeqCst);
    until_async("two probes", async || service.probes.load(Ordering::SeqCst) >= probes + 2).await;
    service.namespaces.lock().unwrap().clear();
    assert_eq!(next(&mut listener).await, Change::All);
}

#[tokio::test]
async fn listener_that_falls_behind_compares_everything() {
    let (service, watch) = start(Timing { probe: Duration::from_secs(3600), ..FAST });
    let mut listener = settled(&watch).await;
    (0..2 * EVENTS).for_each(|_| service.notify(Event::NAMESPACE_CREATE));
    // The watch passes them on in turns; nobody reads meanwhile.
    for _ in 0..EVENTS {
        tokio::task::yield_now().await;
    }
    let mut change = next(&mut listener).await;
    for _ in 0..EVENTS {
        if change == Change::All {
            return;
        }
        change = next(&mut listener).await;
    }
    panic!("no Change::All");
}
