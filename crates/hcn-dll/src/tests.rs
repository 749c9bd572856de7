//! The exports as C callers meet them, against a service in this process over TCP.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, Once, mpsc};
use std::time::Duration;

use hcn::port::{EventSink, Subscription};
use hcn::remote::{Address, Session, serve_connection};
use hcn::{Args, Event, Function, Guid, HResult, Handle, HostNetwork, RawError, Reply};

use crate::callbacks::{HcnRegisterServiceCallback, HcnUnregisterServiceCallback};
use crate::exports::*;
use crate::guest::*;
use crate::memory::{free, read};

/// Answers with what it was asked.
#[derive(Default)]
struct Echo {
    sinks: Mutex<Vec<EventSink>>,
}

impl HostNetwork for Echo {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        match function {
            Function::Create(_) | Function::Open(_) => Ok(Reply::handle(Handle(7))),
            Function::Delete(_) => Err(HResult::NETWORK_NOT_FOUND.into()),
            Function::Close(_) => Ok(Reply::default()),
            _ => Ok(Reply::text(format!("{function} {args:?}"))),
        }
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.sinks.lock().unwrap().push(sink);
        Ok(Subscription::new(()))
    }
}

static ECHO: Mutex<Option<Arc<Echo>>> = Mutex::new(None);

/// The service behind the exports of this process.
fn service() -> Arc<Echo> {
    static START: Once = Once::new();
    START.call_once(|| {
        let echo = Arc::new(Echo::default());
        let listener = Address::Tcp("127.0.0.1:0".into()).listen().unwrap();
        crate::service::choose(&format!("tcp:{}", listener.tcp_address().unwrap()), "secret");
        let session: Session = echo.clone();
        std::thread::spawn(move || {
            while let Ok(stream) = listener.accept() {
                let _ = serve_connection(stream, &session, Some("secret"));
            }
        });
        *ECHO.lock().unwrap() = Some(echo);
    });
    ECHO.lock().unwrap().clone().unwrap()
}

fn wide(text: &str) -> Vec<u16> {
    text.encode_utf16().chain([0]).collect()
}

/// Takes an out string, which is then freed.
fn take(text: *mut u16) -> Option<String> {
    // SAFETY: an out string of an export.
    let read = unsafe { read(text) };
    // SAFETY: as above, and freed once.
    unsafe { free(text) };
    read
}

#[test]
fn exports_serve_c_callers() {
    service();
    let id: Guid = "c08cb7b8-9b3c-408e-8e30-5e16a3aeb444".parse().unwrap();
    let raw = RawGuid::from(id);
    let settings = wide("{\"Name\":\"ü\"}");
    let (mut handle, mut record, mut text) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: every pointer lives through the calls.
    unsafe {
        assert_eq!(HcnCreateNetwork(&raw const raw, settings.as_ptr(), &raw mut handle, &raw mut record), 0);
        assert!(record.is_null(), "clients take any record as a failure");
        assert_eq!(HcnCreateEndpoint(handle, &raw const raw, settings.as_ptr(), &raw mut handle, std::ptr::null_mut()), 0);
        assert_eq!(HcnQueryEndpointProperties(handle, std::ptr::null(), &raw mut text, &raw mut record), 0);
        let asked = take(text).unwrap();
        assert!(asked.starts_with("HcnQueryEndpointProperties") && asked.contains("query: None"), "{asked}");
        assert_eq!(HcnEnumerateLoadBalancers(settings.as_ptr(), &raw mut text, std::ptr::null_mut()), 0);
        assert!(take(text).unwrap().contains("ü"));
        assert_eq!(HcnDeleteNetwork(&raw const raw, &raw mut record), HResult::NETWORK_NOT_FOUND.0.cast_signed());
        let record = take(record).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&record).unwrap()["ErrorCode"], 2_151_350_273_u32, "{record}");
        assert_eq!(HcnDeleteNetwork(&raw const raw, std::ptr::null_mut()), HResult::NETWORK_NOT_FOUND.0.cast_signed());
        let [method, path, body] = ["GET", "/globals/version", ""].map(wide);
        assert_eq!(HNSCall(method.as_ptr(), path.as_ptr(), body.as_ptr(), &raw mut text), 0);
        assert!(take(text).unwrap().contains("/globals/version"));
        let (mut count, mut entries) = (7, std::ptr::null_mut());
        assert_eq!(HcnEnumerateGuestNetworkPortReservations(&raw mut count, &raw mut entries), 0);
        assert_eq!(count, 0);
    }
    assert_eq!(HcnCloseEndpoint(handle), 0);
}

#[test]
fn guid_crosses_in_the_windows_layout() {
    let id: Guid = "c08cb7b8-9b3c-408e-8e30-5e16a3aeb444".parse().unwrap();
    assert_eq!(Guid::from(&RawGuid::from(id)), id);
}

/// Passes the event on to the channel that is the context.
unsafe extern "system" fn hear(event_type: u32, context: *mut c_void, status: i32, data: *const u16) {
    // SAFETY: the context is the test's sender, which outlives the registration.
    let sender = unsafe { &*context.cast::<mpsc::Sender<(u32, i32, Option<String>)>>() };
    // SAFETY: NUL-terminated during the call.
    sender.send((event_type, status, unsafe { read(data) })).unwrap();
}

#[test]
fn events_reach_a_callback_until_it_is_unregistered() {
    let echo = service();
    let (sender, receiver) = mpsc::channel::<(u32, i32, Option<String>)>();
    let mut registration = std::ptr::null_mut();
    // SAFETY: `hear` fits, and `sender` outlives the registration.
    let code = unsafe { HcnRegisterServiceCallback(Some(hear), (&raw const sender).cast_mut().cast(), &raw mut registration) };
    assert_eq!(code, 0);
    let sink = echo.sinks.lock().unwrap().last().unwrap().clone();
    let event = Event { event_type: Event::NAMESPACE_CREATE, status: HResult::OK, data: Some("{\"ID\":\"ü\"}".into()) };
    sink(event.clone());
    let heard = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(heard, (Event::NAMESPACE_CREATE, 0, event.data.clone()));
    // SAFETY: registered above, and ended once.
    assert_eq!(unsafe { HcnUnregisterServiceCallback(registration) }, 0);
    sink(event);
    assert!(receiver.recv_timeout(Duration::from_millis(100)).is_err(), "no event may come after the end");
}
