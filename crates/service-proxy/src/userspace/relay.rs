//! Bytes from one connection to another and back.

use std::io;

use tokio::net::TcpStream;

/// Carries bytes both ways until both ends are done, or one fails.
#[cfg(not(target_os = "linux"))]
pub async fn both_ways(mut client: TcpStream, mut backend: TcpStream, _: &Pipes) -> io::Result<()> {
    tokio::io::copy_bidirectional(&mut client, &mut backend).await.map(drop)
}

/// Systems without splice need none.
#[cfg(not(target_os = "linux"))]
#[derive(Default)]
pub struct Pipes;

#[cfg(target_os = "linux")]
pub use splice::{Pipes, both_ways};

#[cfg(target_os = "linux")]
mod splice {
    use std::os::fd::OwnedFd;
    use std::sync::{Mutex, PoisonError};

    use rustix::net::{Shutdown, shutdown};
    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    use tokio::io::Interest;

    use super::*;

    /// What a pipe may hold; the kernel takes fewer where its limits say so.
    const SIZE: usize = 1 << 20;
    /// Pipes that are kept for the next one who needs one.
    const KEPT: usize = 64;

    /// Who carries so much at once is in no hurry.
    const BULK: usize = 1 << 16;

    struct Pipe {
        read: OwnedFd,
        write: OwnedFd,
    }

    /// Empty pipes. A connection has one only while bytes are on their way: thousands that are quiet need none.
    #[derive(Default)]
    pub struct Pipes(Mutex<Vec<Pipe>>);

    impl Pipes {
        fn take(&self) -> io::Result<Pipe> {
            if let Some(pipe) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
                return Ok(pipe);
            }
            let (read, write) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
            // Smaller pipes work too.
            let _ = fcntl_setpipe_size(&write, SIZE);
            Ok(Pipe { read, write })
        }

        fn give(&self, pipe: Pipe) {
            let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if pipes.len() < KEPT {
                pipes.push(pipe);
            }
        }
    }

    /// Carries bytes both ways until both ends are done, or one fails; the bytes never enter this process.
    pub async fn both_ways(client: TcpStream, backend: TcpStream, pipes: &Pipes) -> io::Result<()> {
        tokio::try_join!(one_way(&client, &backend, pipes), one_way(&backend, &client, pipes)).map(drop)
    }

    async fn one_way(from: &TcpStream, to: &TcpStream, pipes: &Pipes) -> io::Result<()> {
        let mut bulk = false;
        loop {
            from.readable().await?;
            if bulk {
                // Others first: meanwhile more arrives, and one call carries it all.
                tokio::task::yield_now().await;
            }
            let pipe = pipes.take()?;
            // A pipe with bytes left in it is never given back: on an error it is dropped.
            let (open, carried) = while_ready(from, to, &pipe).await?;
            pipes.give(pipe);
            bulk = carried >= BULK;
            if !open {
                // The other end may be gone already, which ends the other way too.
                let _ = shutdown(to, Shutdown::Write);
                return Ok(());
            }
        }
    }

    /// Carries what is there; says whether the stream goes on, and how many bytes there were.
    async fn while_ready(from: &TcpStream, to: &TcpStream, pipe: &Pipe) -> io::Result<(bool, usize)> {
        let mut carried = 0;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        loop {
            let read = from.try_io(Interest::READABLE, || Ok(splice(from, None, &pipe.write, None, SIZE, flags)?));
            let mut inside = match read {
                Ok(0) => return Ok((false, carried)),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok((true, carried)),
                Err(error) => return Err(error),
            };
            carried += inside;
            while inside > 0 {
                to.writable().await?;
                match to.try_io(Interest::WRITABLE, || Ok(splice(&pipe.read, None, to, None, inside, flags)?)) {
                    Ok(count) => inside -= count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}
