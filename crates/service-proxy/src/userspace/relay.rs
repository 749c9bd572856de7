//! Relay of bytes between two connections.

#[cfg(target_os = "linux")]
mod splice;

#[cfg(target_os = "linux")]
pub use splice::{Relays, both_ways};

#[cfg(not(target_os = "linux"))]
pub use copying::{Relays, both_ways};

#[cfg(not(target_os = "linux"))]
mod copying {
    use std::io;
    use std::sync::Arc;

    use tokio::net::TcpStream;
    use tokio_util::sync::CancellationToken;

    /// Without splice there is nothing to share.
    #[derive(Default)]
    pub struct Relays;

    /// Carries bytes both ways until both ends are done, or one fails.
    pub async fn both_ways(mut client: TcpStream, mut backend: TcpStream, _: &Arc<Relays>, _: &CancellationToken) -> io::Result<()> {
        tokio::io::copy_bidirectional(&mut client, &mut backend).await.map(drop)
    }
}
