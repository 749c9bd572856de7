//! Client and server over TCP, which exists on every system.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::Duration;

use test_lab::{LIMIT, until};

use super::*;
use crate::port::{EventSink, Function, HostNetwork, Kind, Subscription};

/// Answers with its arguments; a query of an endpoint hangs until it is released.
#[derive(Default)]
struct Echo {
    calls: AtomicU32,
    sinks: Mutex<Vec<EventSink>>,
    released: (Mutex<bool>, Condvar),
    disconnected: AtomicBool,
}

impl Echo {
    fn release(&self) {
        *self.released.0.lock().unwrap() = true;
        self.released.1.notify_all();
    }
}

impl HostNetwork for Echo {
    fn call(&self, function: Function, args: Args<'_>) -> Result<Reply, RawError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match function {
            Function::Open(_) => Ok(Reply::handle(Handle(7))),
            HANGS => {
                drop(self.released.1.wait_while(self.released.0.lock().unwrap(), |released| !*released));
                Ok(Reply::text("late"))
            }
            Function::Delete(_) => Err(RawError::with_record(HResult::NETWORK_NOT_FOUND, "gone")),
            _ => Ok(Reply::text(format!("{function} {args:?}"))),
        }
    }

    fn subscribe(&self, sink: EventSink) -> Result<Subscription, RawError> {
        self.sinks.lock().unwrap().push(sink);
        Ok(Subscription::new(()))
    }

    fn disconnect(&self) {
        self.disconnected.store(true, Ordering::SeqCst);
    }
}

const HANGS: Function = Function::QueryEndpointStats;

/// A server on a free port that serves `count` connections.
fn server(echo: &Arc<Echo>, count: usize) -> String {
    let listener = Address::Tcp("127.0.0.1:0".into()).listen().unwrap();
    let address = format!("tcp:{}", listener.tcp_address().unwrap());
    let session: Session = echo.clone();
    std::thread::spawn(move || {
        for _ in 0..count {
            let stream = listener.accept().unwrap();
            // A refused peer may be gone before it is answered.
            let _ = serve_connection(stream, &session, Some("secret"));
        }
    });
    address
}

#[test]
fn calls_handles_and_errors_cross_the_socket() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    let args = Args { id: Some(Guid::NIL), settings: Some("{\"ü\":1}"), ..Args::default() };
    let handle = remote.call(Function::Open(Kind::Network), args).unwrap().handle.unwrap();
    let query = remote.call(Function::Query(Kind::Network), Args { handle: Some(handle), ..Args::default() }).unwrap().result.unwrap();
    assert!(query.contains("Handle(7)"), "the service sees its own number: {query}");
    // The service's own numbers mean nothing to callers: a handle of an earlier connection is dead, though the next gives the same numbers.
    let foreign = Args { handle: Some(Handle(7)), ..Args::default() };
    assert_eq!(remote.call(Function::Query(Kind::Network), foreign).unwrap_err().hresult, HResult::INVALID_HANDLE);
    let text = remote.call(Function::Create(Kind::Endpoint), args).unwrap().result.unwrap();
    assert_eq!(text, format!("HcnCreateEndpoint {args:?}"));
    let error = remote.call(Function::Delete(Kind::Network), args).unwrap_err();
    assert_eq!(error, RawError::with_record(HResult::NETWORK_NOT_FOUND, "gone"));
}

#[test]
fn wrong_token_is_refused_and_missing_service_is_an_error() {
    let echo = Arc::new(Echo::default());
    let address = server(&echo, 2);
    let remote = RemoteHcn::with_token(&address, Some("guess".into())).unwrap();
    let error = remote.call(Function::Open(Kind::Network), Args::default()).unwrap_err();
    assert!(matches!(error.hresult, HResult::ACCESS_DENIED | HResult::RPC_CALL_FAILED | HResult::RPC_CALL_FAILED_DNE), "{error:?}");
    assert_eq!(echo.calls.load(Ordering::Relaxed), 0);
    let gone = RemoteHcn::with_token("tcp:127.0.0.1:1", None).unwrap();
    assert_eq!(gone.call(Function::Open(Kind::Network), Args::default()).unwrap_err().hresult, HResult::RPC_NOT_REGISTERED);
    assert!(RemoteHcn::connect("pipe:x").is_err());
}

#[test]
fn empty_token_is_refused() {
    let echo = Arc::new(Echo::default());
    let listener = Address::Tcp("127.0.0.1:0".into()).listen().unwrap();
    let address = format!("tcp:{}", listener.tcp_address().unwrap());
    let session: Session = echo.clone();
    std::thread::spawn(move || {
        for token in [Some(""), None] {
            let _ = serve_connection(listener.accept().unwrap(), &session, token);
        }
    });
    for _ in 0..2 {
        let remote = RemoteHcn::with_token(&address, None).unwrap();
        assert!(remote.call(Function::Open(Kind::Network), Args::default()).is_err());
    }
    assert_eq!(echo.calls.load(Ordering::Relaxed), 0);
}

#[test]
fn events_cross_and_lost_connection_is_a_disconnect_event() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    let (sender, receiver) = mpsc::channel();
    let sender = Mutex::new(sender);
    let subscription = remote.subscribe(Arc::new(move |event| sender.lock().unwrap().send(event).unwrap())).unwrap();
    let sink = echo.sinks.lock().unwrap()[0].clone();
    let event = Event { event_type: Event::NETWORK_CREATE, status: HResult::OK, data: Some("{}".into()) };
    sink(event.clone());
    assert_eq!(receiver.recv_timeout(LIMIT).unwrap(), event);
    remote.break_connection();
    assert_eq!(receiver.recv_timeout(LIMIT).unwrap().event_type, Event::SERVICE_DISCONNECT);
    drop(subscription);
}

#[test]
fn registration_after_a_disconnect_event_hears_of_the_service_again() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    let (sender, receiver) = mpsc::channel();
    let register = || {
        let sender = Mutex::new(sender.clone());
        remote.subscribe(Arc::new(move |event| sender.lock().unwrap().send(event).unwrap())).unwrap()
    };
    let send = |sink: usize, event_type| {
        let sink = echo.sinks.lock().unwrap()[sink].clone();
        sink(Event { event_type, status: HResult::OK, data: None });
        receiver.recv_timeout(LIMIT).unwrap().event_type
    };
    let registration = register();
    assert_eq!(send(0, Event::SERVICE_DISCONNECT), Event::SERVICE_DISCONNECT, "the service restarts; the connection stays");
    drop(registration);
    let _again = register();
    assert_eq!(echo.sinks.lock().unwrap().len(), 2, "the service has a subscription again");
    assert_eq!(send(1, Event::NETWORK_CREATE), Event::NETWORK_CREATE);
    let _another = register();
    assert_eq!(echo.sinks.lock().unwrap().len(), 2, "which serves further registrations too");
}

#[test]
fn frames_have_a_limit_and_an_end() {
    let mut bytes: &[u8] = &(MAX_FRAME + 1).to_le_bytes();
    assert!(read_frame::<Value>(&mut bytes).is_err());
    let mut cut: &[u8] = &[5, 0, 0, 0, b'1'];
    assert_eq!(read_frame::<Value>(&mut cut).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    let mut none: &[u8] = &[];
    assert!(read_frame::<Value>(&mut none).unwrap().is_none());
    let mut frame = Vec::new();
    write_frame(&mut frame, &serde_json::json!({"a": 1})).unwrap();
    assert_eq!(frame[..4], [7, 0, 0, 0]);
    assert_eq!(read_frame::<Value>(&mut frame.as_slice()).unwrap(), Some(serde_json::json!({"a": 1})));
}

#[test]
fn hung_call_delays_no_other_of_its_connection() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    std::thread::scope(|scope| {
        let hung = [(); 3].map(|()| scope.spawn(|| remote.call(HANGS, Args::default())));
        until("three calls hang", || echo.calls.load(Ordering::Relaxed) == 3);
        for _ in 0..20 {
            assert!(remote.call(Function::Open(Kind::Network), Args::default()).unwrap().handle.is_some());
        }
        remote.subscribe(Arc::new(|_| {})).unwrap();
        assert!(!hung.iter().any(std::thread::ScopedJoinHandle::is_finished));
        echo.release();
        for call in hung {
            assert_eq!(call.join().unwrap().unwrap().result.as_deref(), Some("late"));
        }
    });
}

#[test]
fn answers_carry_the_id_of_their_request_and_come_as_calls_end() {
    let echo = Arc::new(Echo::default());
    let address: Address = server(&echo, 1).parse().unwrap();
    let mut stream = address.connect().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let request = |id, call: &str| Request { id, call: call.into(), ..Request::default() };
    write_frame(&mut stream, &Request { token: Some("secret".into()), ..Request::default() }).unwrap();
    // A client that sends one call at a time.
    for id in 1..=3 {
        write_frame(&mut stream, &request(id, "HcnEnumerateNetworks")).unwrap();
        assert_eq!(read_frame::<Answer>(&mut stream).unwrap().unwrap().id, Some(id));
    }
    // A client that does not wait.
    write_frame(&mut stream, &request(10, &HANGS.to_string())).unwrap();
    write_frame(&mut stream, &request(11, "HcnEnumerateNetworks")).unwrap();
    assert_eq!(read_frame::<Answer>(&mut stream).unwrap().unwrap().id, Some(11));
    echo.release();
    assert_eq!(read_frame::<Answer>(&mut stream).unwrap().unwrap().id, Some(10));
}

#[test]
fn server_that_answers_in_order_is_understood() {
    let listener = Address::Tcp("127.0.0.1:0".into()).listen().unwrap();
    let address = format!("tcp:{}", listener.tcp_address().unwrap());
    std::thread::spawn(move || {
        let mut stream = listener.accept().unwrap();
        read_frame::<Request>(&mut stream).unwrap();
        while let Some(request) = read_frame::<Request>(&mut stream).unwrap() {
            write_frame(&mut stream, &Answer::new(request.id, Ok(Reply::text(request.args.path.unwrap_or_default())))).unwrap();
        }
    });
    let remote = RemoteHcn::with_token(&address, None).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let remote = &remote;
            scope.spawn(move || {
                for call in 0..50 {
                    let path = format!("/{thread}/{call}");
                    let reply = remote.call(Function::HnsCall, Args { path: Some(&path), ..Args::default() }).unwrap();
                    assert_eq!(reply.result, Some(path));
                }
            });
        }
    });
}

#[test]
fn session_learns_of_a_peer_that_is_gone_while_its_call_hangs() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    std::thread::scope(|scope| {
        let hung = scope.spawn(|| remote.call(HANGS, Args::default()));
        until("the call hangs", || echo.calls.load(Ordering::Relaxed) == 1);
        remote.disconnect();
        assert_eq!(hung.join().unwrap().unwrap_err().hresult, HResult::RPC_CALL_FAILED);
        until("the session learns of it", || echo.disconnected.load(Ordering::SeqCst));
    });
    echo.release();
}

#[test]
fn client_that_is_dropped_ends_its_hung_calls() {
    let echo = Arc::new(Echo::default());
    let remote = RemoteHcn::with_token(&server(&echo, 1), Some("secret".into())).unwrap();
    let client = crate::HcnClient::exclusive(Arc::new(remote));
    let port = client.blocking().port().clone();
    let hasty = client.clone().with_deadline(Duration::from_secs(2));
    hasty.blocking().port().call(HANGS, Args::default()).unwrap_err();
    assert_eq!(client.snapshot().hung.len(), 1);
    drop((client, hasty, port));
    until("the connection is closed", || echo.disconnected.load(Ordering::SeqCst));
    echo.release();
}
