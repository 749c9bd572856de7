//! The server half: one connection's requests, in order, to one session.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Answer, Request, SUBSCRIBE, Stream, read_frame, write_frame};
use crate::error::HResult;
use crate::port::{EventSink, Function, HostNetwork, RawError, Reply, Subscription};

/// What a connection talks to: its handles die when it is dropped.
pub type Session = Arc<dyn HostNetwork>;

/// Serves one connection until the peer ends it. Over TCP the peer's first frame must carry `token`.
///
/// Requests of one connection are answered in order: a slow call delays only its own connection. Bad JSON in a frame ends the connection.
pub fn serve_connection(mut stream: Stream, session: &Session, token: Option<&str>) -> io::Result<()> {
    let writer = Arc::new(Mutex::new(stream.try_clone()?));
    if stream.needs_token() {
        let hello = read_frame::<Request>(&mut stream)?.and_then(|request| request.token).unwrap_or_default();
        // A token that is empty would be everybody's.
        if !token.is_some_and(|token| !token.is_empty() && same(token.as_bytes(), hello.as_bytes())) {
            let denied = RawError::with_record(HResult::ACCESS_DENIED, "the token is wrong: set MULLION_HCN_TOKEN");
            return write(&writer, &Answer::new(1, Err(denied)));
        }
    }
    let mut subscription: Option<Subscription> = None;
    while let Some(request) = read_frame::<Request>(&mut stream)? {
        let outcome = if request.call == SUBSCRIBE {
            subscribe(session, &writer, &mut subscription)
        } else {
            request.call.parse::<Function>().and_then(|function| session.call(function, request.args.borrow()?))
        };
        write(&writer, &Answer::new(request.id, outcome))?;
    }
    Ok(())
}

fn subscribe(session: &Session, writer: &Arc<Mutex<Stream>>, subscription: &mut Option<Subscription>) -> Result<Reply, RawError> {
    if subscription.is_none() {
        let writer = writer.clone();
        let sink: EventSink = Arc::new(move |event| {
            // A peer that is gone needs no event; the reading side notices it.
            let _ = write(&writer, &Answer { event: Some(event), ..Answer::default() });
        });
        *subscription = Some(session.subscribe(sink)?);
    }
    Ok(Reply::default())
}

fn write(writer: &Mutex<Stream>, answer: &Answer) -> io::Result<()> {
    let mut stream = writer.lock().unwrap_or_else(PoisonError::into_inner);
    match write_frame(&mut *stream, answer) {
        // Too large a result: the caller gets an error instead of a broken connection.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let refused = RawError::with_record(HResult::OUT_OF_MEMORY, &error.to_string());
            write_frame(&mut *stream, &Answer::new(answer.id.unwrap_or_default(), Err(refused)))
        }
        other => other,
    }
}

/// Compares without telling by its time where the texts differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differences, (a, b)| differences | (a ^ b)) == 0
}
