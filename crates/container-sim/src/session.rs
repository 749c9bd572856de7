//! Session: the streams of a program in a container, for `exec` and `attach`.
//!
//! A [`Session`] is a connection to a sandbox's shim, plus descriptors that the shim handed over on it: pipes to and from
//! the program, or copies of its terminal's master. Bytes never pass through the shim for `exec`; for `attach` the shim
//! copies what it logs into pipes of the client's own, and waits for a client that does not read (as containerd does).
//!
//! Concrete types: [`Input`] is `AsyncWrite`, [`Output`] is `AsyncRead`, both over descriptors that do not block. With a
//! terminal there is one output (`stdout`), and the end of an input is an end for this client only.
//!
//! Dropping a session gives its streams up and leaves the program running, as upstream's runtimes do: it then reads the
//! end of its input, or loses its terminal. [`SessionControl::kill`] ends it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe;

use crate::shim::Exit;
use crate::shim::client::Link;

/// The streams that a client requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Want {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

/// A program's streams, and a hold on it.
#[derive(Debug)]
pub(crate) struct Session {
    /// Dropping it is the end of the program's input.
    pub stdin: Option<Input>,
    /// With a terminal: everything that it shows.
    pub stdout: Option<Output>,
    /// None with a terminal.
    pub stderr: Option<Output>,
    pub control: SessionControl,
}

/// The other end of a program's standard input.
#[derive(Debug)]
pub(crate) struct Input(pipe::Sender);

/// The other end of a program's output. A terminal whose other end is closed reads as an end, not as an error.
#[derive(Debug)]
pub(crate) struct Output(pipe::Receiver);

impl Input {
    /// `fd` must not block; a pipe's end or a terminal's master.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        // Unchecked: a terminal is no pipe, and is polled, read and written in the same way.
        pipe::Sender::from_file_unchecked(File::from(fd)).map(Self)
    }
}

impl Output {
    /// `fd` must not block; a pipe's end or a terminal's master.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Self> {
        pipe::Receiver::from_file_unchecked(File::from(fd)).map(Self)
    }
}

impl AsyncWrite for Input {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    /// Nothing: the input ends when it is dropped.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for Output {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.0).poll_read(cx, buffer)) {
            Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => Poll::Ready(Ok(())),
            result => Poll::Ready(result),
        }
    }
}

/// A hold on the program of a session.
#[derive(Debug)]
pub(crate) struct SessionControl {
    link: Link,
    /// The terminal's master, for its size.
    terminal: Option<OwnedFd>,
}

impl SessionControl {
    pub(crate) fn new(link: Link, terminal: Option<OwnedFd>) -> Self {
        Self { link, terminal }
    }

    /// Sets the size of the terminal; without one there is nothing to do.
    pub(crate) fn resize(&self, width: u16, height: u16) {
        if let Some(terminal) = &self.terminal {
            // A program that has ended has no size.
            let _ = linux_sys::terminal::resize(terminal, width, height);
        }
    }

    /// Waits for the end of the program: of the second one for `exec`, of the container for `attach`. Output may still be
    /// on its way then. May be called again.
    ///
    /// # Errors
    /// When the shim is gone, and the exit code with it.
    pub(crate) async fn wait(&mut self) -> anyhow::Result<Exit> {
        self.link.exit().await
    }

    /// Kills the program of an `exec` with everything it started in its session; an attached container goes on.
    pub(crate) fn kill(&self) {
        self.link.kill();
    }
}
