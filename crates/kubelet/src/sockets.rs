//! Unix sockets of the node: those that plug-ins serve, and those that the agent serves.

use std::sync::Arc;

use futures::future::BoxFuture;
use host::{HostRoot, PodPath, SocketListener};
use thiserror_ext::AsReport as _;

/// How to reach a socket of the node.
pub(crate) fn connector(
    root: &Arc<HostRoot>,
    path: &PodPath,
) -> impl Fn() -> BoxFuture<'static, std::io::Result<csi::Stream>> + Clone + Send + 'static {
    let (root, path) = (root.clone(), path.clone());
    move || {
        let (root, path) = (root.clone(), path.clone());
        Box::pin(async move {
            let connected = tokio::task::spawn_blocking(move || root.connect(&path)).await;
            let socket = connected.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
            csi::Stream::from_std(socket.map_err(|error| std::io::Error::other(error.to_report_string()))?)
        })
    }
}

/// The connections to a socket of the agent.
#[cfg(unix)]
pub(crate) fn incoming(listener: SocketListener) -> std::io::Result<tokio_stream::wrappers::UnixListenerStream> {
    Ok(tokio_stream::wrappers::UnixListenerStream::new(tokio::net::UnixListener::from_std(listener.into_std()?)?))
}

/// The connections to a socket of the agent. Windows' reactor accepts none of this family: a thread does.
#[cfg(windows)]
pub(crate) fn incoming(listener: SocketListener) -> std::io::Result<tokio_stream::wrappers::ReceiverStream<std::io::Result<csi::Stream>>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    let runtime = tokio::runtime::Handle::current();
    std::thread::Builder::new().name("plug-in socket".into()).spawn(move || {
        let _entered = runtime.enter();
        loop {
            let connection = listener.accept().and_then(csi::Stream::from_std);
            if connection.is_err() {
                // Such as: no descriptor is left.
                std::thread::sleep(std::time::Duration::from_millis(100));
            } else if sender.blocking_send(connection).is_err() {
                return;
            }
        }
    })?;
    Ok(tokio_stream::wrappers::ReceiverStream::new(receiver))
}

/// An open connection to a named pipe of the agent.
#[cfg(windows)]
pub(crate) struct Pipe(tokio::net::windows::named_pipe::NamedPipeServer);

#[cfg(windows)]
mod pipe {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::windows::named_pipe::ServerOptions;

    use super::Pipe;

    impl AsyncRead for Pipe {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Pipe {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(context, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(context)
        }
    }

    impl tonic::transport::server::Connected for Pipe {
        type ConnectInfo = ();

        fn connect_info(&self) {}
    }

    /// The connections to a named pipe of the agent. Programs of other machines are refused, and a pipe that another program has made.
    pub(crate) fn incoming(name: &'static str) -> io::Result<impl futures::Stream<Item = io::Result<Pipe>>> {
        let first = ServerOptions::new().first_pipe_instance(true).create(name)?;
        Ok(futures::stream::unfold(first, move |server| async move {
            let connected = server.connect().await;
            // The next caller finds a pipe before this one is served.
            let next = loop {
                match ServerOptions::new().create(name) {
                    Ok(next) => break next,
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
                }
            };
            Some((connected.map(|()| Pipe(server)), next))
        }))
    }
}
#[cfg(windows)]
pub(crate) use pipe::incoming as incoming_pipe;
