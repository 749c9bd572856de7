//! Connections against each other, and against peers that do not play by the rules.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use streaming::spdy::frame::{Decoder, Frame, reset};
use streaming::spdy::{Connection, Headers, Limits, Role, Stream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::time::timeout;

/// Long enough for a busy machine: only a failure takes it.
const SOON: Duration = Duration::from_secs(240);

fn pair(limits: Limits) -> (Connection, Connection) {
    let (a, b) = duplex(8 << 10);
    (Connection::new(a, Role::Client, Limits::default()), Connection::new(b, Role::Server, limits))
}

/// A stream begun by one and accepted by the other.
async fn stream(client: &Connection, server: &mut Connection, kind: &str) -> (Stream, Stream) {
    let accept = async {
        let incoming = server.next().await.unwrap();
        assert_eq!(incoming.headers().get("streamtype"), kind);
        incoming.accept().unwrap()
    };
    let (ours, theirs) = tokio::join!(client.open(Headers::new([("streamType", kind)])), accept);
    (ours.unwrap(), theirs)
}

#[tokio::test]
async fn bytes_and_ends_of_streams_pass_both_ways() {
    let (client, mut server) = pair(Limits::default());
    let (mut ours, mut theirs) = stream(&client, &mut server, "data").await;
    let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let echo = tokio::spawn(async move {
        let mut buffer = vec![0; 5000];
        while let Ok(count @ 1..) = theirs.receive.read(&mut buffer).await {
            theirs.send.write_all(&buffer[..count]).await.unwrap();
        }
    });
    let mut back = Vec::new();
    let write = async {
        ours.send.write_all(&sent).await.unwrap();
        ours.send.shutdown().await.unwrap();
    };
    let (_, read) = timeout(SOON, async { tokio::join!(write, ours.receive.read_to_end(&mut back)) }).await.unwrap();
    read.unwrap();
    assert!(back == sent);
    echo.await.unwrap();
}

#[tokio::test]
async fn a_stream_that_nobody_reads_does_not_stop_the_others() {
    let (client, mut server) = pair(Limits { window: 64 << 10, ..Limits::default() });
    let (mut full, unread) = stream(&client, &mut server, "full").await;
    let (mut free, mut read) = stream(&client, &mut server, "free").await;
    let filling = tokio::spawn(async move { full.send.write_all(&vec![0; 4 << 20]).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!filling.is_finished(), "there is no room for all of it");
    free.send.write_all(b"through").await.unwrap();
    free.send.shutdown().await.unwrap();
    let mut got = String::new();
    timeout(SOON, read.receive.read_to_string(&mut got)).await.unwrap().unwrap();
    assert_eq!(got, "through");
    // With the reader gone the writer need not wait.
    drop(unread.receive);
    timeout(SOON, filling).await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn refusals_and_resets_reach_the_other_side() {
    let (client, mut server) = pair(Limits { streams: 1, ..Limits::default() });
    let refuse = async { drop(server.next().await) };
    let (refused, ()) = tokio::join!(client.open(Headers::default()), refuse);
    assert_eq!(refused.err().unwrap().to_string(), format!("the peer reset the stream (status {})", reset::REFUSED_STREAM));
    let (mut ours, theirs) = stream(&client, &mut server, "one").await;
    assert!(client.open(Headers::default()).await.is_err(), "one at most");
    theirs.reset(reset::CANCEL);
    let error = timeout(SOON, ours.receive.read_u8()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn what_came_before_a_reset_is_read() {
    let (client, mut server) = pair(Limits::default());
    let (mut ours, mut theirs) = stream(&client, &mut server, "error").await;
    theirs.send.write_all(b"exit code 3").await.unwrap();
    theirs.reset(reset::CANCEL);
    let mut read = Vec::new();
    let error = timeout(SOON, ours.receive.read_to_end(&mut read)).await.unwrap().unwrap_err();
    assert_eq!((read.as_slice(), error.kind()), (&b"exit code 3"[..], std::io::ErrorKind::ConnectionReset));
}

#[tokio::test]
async fn a_lost_connection_ends_everything() {
    let (client, mut server) = pair(Limits::default());
    let (mut ours, theirs) = stream(&client, &mut server, "data").await;
    let ended = client.ended();
    drop((server, theirs));
    timeout(SOON, ended).await.unwrap();
    assert_eq!(ours.receive.read_u8().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionAborted);
    assert!(ours.send.write_all(b"x").await.is_err());
    assert!(client.open(Headers::default()).await.is_err());
}

#[tokio::test]
async fn closing_waits_for_a_slow_reader() {
    const MUCH: usize = 1_000_000;
    let (client, mut server) = pair(Limits::default());
    let (mut ours, mut theirs) = stream(&client, &mut server, "data").await;
    let closing = tokio::spawn(async move {
        theirs.send.write_all(&vec![1; MUCH]).await.unwrap();
        drop(theirs);
        server.close(SOON).await;
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!closing.is_finished(), "nothing has been read");
    let mut got = Vec::new();
    timeout(SOON, ours.receive.read_to_end(&mut got)).await.unwrap().unwrap();
    assert_eq!(got.len(), MUCH);
    timeout(SOON, closing).await.unwrap().unwrap();
}

/// A peer by hand: without flow control, as Go's is.
struct ByHand {
    io: DuplexStream,
    decoder: Decoder,
    buffer: BytesMut,
}

/// A header block that zlib itself made, with the window and level of Go: `streamtype: data`.
const BLOCK: &[u8] = include_bytes!("data/syn-stream-block.bin");

impl ByHand {
    fn new(io: DuplexStream) -> Self {
        Self { io, decoder: Decoder::default(), buffer: BytesMut::new() }
    }

    async fn send(&mut self, frame: Frame) {
        let mut wire = BytesMut::new();
        frame.encode(&mut wire);
        self.io.write_all(&wire).await.unwrap();
    }

    /// The next frame but for what connections begin with; None at the end.
    async fn next(&mut self) -> Option<Frame> {
        loop {
            match self.decoder.next(&mut self.buffer).unwrap() {
                Some(Frame::Settings(_) | Frame::WindowUpdate { stream: 0, .. }) => continue,
                Some(frame) => return Some(frame),
                None => {}
            }
            if timeout(SOON, self.io.read_buf(&mut self.buffer)).await.unwrap().unwrap() == 0 {
                return None;
            }
        }
    }
}

fn by_hand(limits: Limits) -> (ByHand, Connection) {
    let (a, b) = duplex(8 << 10);
    (ByHand::new(a), Connection::new(b, Role::Server, limits))
}

fn syn(stream: u32, block: &'static [u8]) -> Frame {
    Frame::SynStream { stream, associated: 0, priority: 0, fin: false, unidirectional: false, block: Bytes::from_static(block) }
}

#[tokio::test]
async fn pings_are_answered_and_strange_streams_refused() {
    let (mut peer, _server) = by_hand(Limits::default());
    peer.send(Frame::Ping(1)).await;
    assert_eq!(peer.next().await, Some(Frame::Ping(1)));
    peer.send(Frame::Data { stream: 9, fin: false, payload: Bytes::from_static(b"?") }).await;
    assert_eq!(peer.next().await, Some(Frame::RstStream { stream: 9, status: reset::INVALID_STREAM }));
    peer.send(syn(2, BLOCK)).await;
    assert_eq!(peer.next().await, Some(Frame::RstStream { stream: 2, status: reset::PROTOCOL_ERROR }), "even numbers are the server's");
}

#[tokio::test]
async fn a_peer_without_flow_control_is_read_and_written() {
    let (mut peer, mut server) = by_hand(Limits::default());
    peer.send(syn(1, BLOCK)).await;
    let incoming = server.next().await.unwrap();
    assert_eq!(incoming.headers().get("streamtype"), "data");
    let mut stream = incoming.accept().unwrap();
    assert!(matches!(peer.next().await, Some(Frame::SynReply { stream: 1, .. })));
    // More than any window that it never opens.
    let writing = tokio::spawn(async move {
        stream.send.write_all(&vec![7; 300_000]).await.unwrap();
        stream
    });
    let mut got = 0;
    while got < 300_000 {
        let Some(Frame::Data { payload, .. }) = peer.next().await else { panic!() };
        got += payload.len();
    }
    let mut stream = writing.await.unwrap();
    peer.send(Frame::Data { stream: 1, fin: true, payload: Bytes::from_static(b"end") }).await;
    let mut read = String::new();
    stream.receive.read_to_string(&mut read).await.unwrap();
    assert_eq!(read, "end");
}

#[tokio::test]
async fn stalled_stream_is_reset_for_the_others() {
    let (mut peer, mut server) = by_hand(Limits { window: 1000, stalled: Some(Duration::from_millis(100)), ..Limits::default() });
    peer.send(syn(1, BLOCK)).await;
    let _unread = server.next().await.unwrap().accept().unwrap();
    peer.send(Frame::Data { stream: 1, fin: false, payload: Bytes::from(vec![0; 5000]) }).await;
    peer.send(Frame::Ping(5)).await;
    assert!(matches!(peer.next().await, Some(Frame::SynReply { .. })));
    assert_eq!(peer.next().await, Some(Frame::RstStream { stream: 1, status: reset::FLOW_CONTROL_ERROR }));
    assert_eq!(peer.next().await, Some(Frame::Ping(5)));
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_held_back_and_leaves_is_noticed() {
    let (mut peer, mut server) = by_hand(Limits { window: 1000, ..Limits::default() });
    peer.send(syn(1, BLOCK)).await;
    let _unread = server.next().await.unwrap().accept().unwrap();
    peer.send(Frame::Data { stream: 1, fin: false, payload: Bytes::from(vec![0; 5000]) }).await;
    assert!(matches!(peer.next().await, Some(Frame::SynReply { .. })));
    assert!(timeout(Duration::from_secs(60), server.ended()).await.is_err(), "it is there");
    drop(peer);
    timeout(Duration::from_secs(60), server.ended()).await.unwrap();
}

#[tokio::test]
async fn a_peer_that_knows_windows_must_keep_within_them() {
    let (mut peer, mut server) = by_hand(Limits { window: 1000, ..Limits::default() });
    peer.send(Frame::Settings(Vec::new())).await;
    peer.send(syn(1, BLOCK)).await;
    let _unread = server.next().await.unwrap().accept().unwrap();
    peer.send(Frame::Data { stream: 1, fin: false, payload: Bytes::from(vec![0; 1001]) }).await;
    assert!(matches!(peer.next().await, Some(Frame::SynReply { .. })));
    assert_eq!(peer.next().await, Some(Frame::RstStream { stream: 1, status: reset::FLOW_CONTROL_ERROR }));
}

#[tokio::test]
async fn invalid_frames_end_the_connection() {
    for bytes in [&b"\x80\x02\0\x01\0\0\0\0"[..], &[0x80, 3, 0, 1, 0, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 9]] {
        let (mut peer, server) = by_hand(Limits::default());
        peer.io.write_all(bytes).await.unwrap();
        timeout(SOON, server.ended()).await.unwrap_or_else(|_| panic!("{bytes:?}"));
    }
}

#[tokio::test]
async fn peer_that_never_reads_answers_is_dropped() {
    let (a, b) = duplex(1 << 20);
    let server = Connection::new(b, Role::Server, Limits::default());
    let (mut from_server, mut to_server) = tokio::io::split(a);
    let asking = tokio::spawn(async move {
        let mut wire = BytesMut::new();
        Frame::Ping(1).encode(&mut wire);
        let many = wire.repeat(1000);
        // Nothing is read meanwhile.
        while to_server.write_all(&many).await.is_ok() {}
    });
    timeout(SOON, server.ended()).await.unwrap();
    drop(server);
    let mut rest = Vec::new();
    from_server.read_to_end(&mut rest).await.unwrap();
    rest.put_u8(0);
    timeout(SOON, asking).await.unwrap().unwrap();
}
