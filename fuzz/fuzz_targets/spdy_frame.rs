//! SPDY frames: what is read can be written and is read again, and a connection outlives no hostile peer.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use streaming::spdy::frame::Decoder;
use streaming::spdy::{Connection, Limits, Role};
use tokio::io::AsyncWriteExt;

fuzz_target!(|data: &[u8]| {
    let (mut decoder, mut buffer) = (Decoder::default(), data.into());
    while let Ok(Some(frame)) = decoder.next(&mut buffer) {
        let mut written = bytes::BytesMut::new();
        frame.encode(&mut written);
        let again = Decoder::default().next(&mut written).expect("a frame that was written can be read");
        assert_eq!(again, Some(frame));
    }
    // Header blocks are read by a connection alone.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let (mut peer, ours) = tokio::io::duplex(1 << 20);
        let mut connection = Connection::new(ours, Role::Server, Limits { streams: 8, ..Limits::default() });
        peer.write_all(data).await.expect("room for all of it");
        peer.shutdown().await.expect("an end");
        let serve = async { while let Some(incoming) = connection.next().await { drop(incoming.accept()) } };
        tokio::time::timeout(Duration::from_secs(1), serve).await.expect("the end of the connection is noticed");
    });
});
