//! Stand-in of Redis: strings, counters and expiry over RESP, in memory.

mod resp;
mod store;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::stop_signal;
use resp::{Parsed, Reply, parse};
use store::{Session, Store};

/// Where Redis listens.
pub(crate) const PORT: u16 = 6379;
/// Clients at a time; one more gets Redis' message and is closed.
const MAX_CLIENTS: u64 = 1000;

/// Serves until asked to stop.
pub(crate) async fn serve(port: u16) -> Result<()> {
    let listener = super::listen(port).await?;
    let store = Rc::new(RefCell::new(Store::new(port, Instant::now())));
    println!("[1] {} # Server started, Redis version 3.0.504 (Mullion stand-in: nothing is saved)", now());
    println!("[1] {} * The server is now ready to accept connections on port {port}", now());
    let local = tokio::task::LocalSet::new();
    let signal = local.run_until(accept(listener, store)).await?;
    println!("[1] {} # Received {signal}, scheduling shutdown...", now());
    println!("[1] {} # Redis is now ready to exit, bye bye...", now());
    Ok(())
}

async fn accept(listener: TcpListener, store: Rc<RefCell<Store>>) -> Result<&'static str> {
    let stop = stop_signal();
    tokio::pin!(stop);
    loop {
        tokio::select! {
            signal = &mut stop => return signal.context("cannot wait for signals"),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let store = store.clone();
                    tokio::task::spawn_local(async move {
                        store.borrow_mut().connections += 1;
                        store.borrow_mut().clients += 1;
                        // A client that goes away in the middle is its own affair.
                        let _ = talk(stream, &store).await;
                        store.borrow_mut().clients -= 1;
                    });
                }
                // A connection that ended before it was accepted, or no descriptors for a moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            },
        }
    }
}

async fn talk(mut stream: TcpStream, store: &RefCell<Store>) -> std::io::Result<()> {
    let _ = stream.set_nodelay(true);
    if store.borrow().clients > MAX_CLIENTS {
        return stream.write_all(b"-ERR max number of clients reached\r\n").await;
    }
    let mut session = Session::default();
    let (mut input, mut output) = (Vec::new(), Vec::new());
    loop {
        let mut used = 0;
        loop {
            match parse(&input[used..]) {
                Parsed::Request(args, length) => {
                    used += length;
                    if !args.is_empty() {
                        store.borrow_mut().answer(&mut session, &args, Instant::now()).write(&mut output);
                    }
                    if session.quit {
                        return stream.write_all(&output).await;
                    }
                }
                Parsed::Partial => break,
                Parsed::Wrong(text) => {
                    Reply::error(format!("Protocol error: {text}")).write(&mut output);
                    return stream.write_all(&output).await;
                }
            }
        }
        input.drain(..used);
        stream.write_all(&output).await?;
        output.clear();
        if stream.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

/// The time as Redis logs it.
fn now() -> impl std::fmt::Display {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    format!("{}.{:03}", now.strftime("%d %b %H:%M:%S"), now.millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn a_connection_is_served_and_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let store = Rc::new(RefCell::new(Store::new(PORT, Instant::now())));
        let local = tokio::task::LocalSet::new();
        local.spawn_local(accept(listener, store));
        let client = async {
            let ask = async |request: &[u8]| {
                let mut stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(request).await.unwrap();
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await.unwrap();
                answer
            };
            assert_eq!(ask(b"SET k v\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\nQUIT\r\nPING\r\n").await, "+OK\r\n$1\r\nv\r\n+OK\r\n");
            assert_eq!(ask(b"GET k\r\n*1\r\nPING\r\n").await, "$1\r\nv\r\n-ERR Protocol error: expected '$', got 'P'\r\n");
        };
        local.run_until(client).await;
    }
}
