//! Connects a program's streams with a client's until one of the two ends.

use std::time::Duration;

use streaming::remotecommand::{Input, Outcome, Output, Streams};
use thiserror_ext::AsReport as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use crate::runtime::Runtime;
use crate::session::{self, Session, SessionControl, Want};

/// How long output is waited for after the program's end, while a child of it holds its output open.
const DRAIN: Duration = Duration::from_secs(2);
/// How long a program may go on after its client is gone and its streams have ended.
const ALONE: Duration = Duration::from_secs(5);

/// The program whose streams are connected.
pub(super) enum Program {
    /// A new program's.
    Exec { container: String, argv: Vec<String> },
    /// The container's own.
    Attach { container: String },
}

/// Runs the program for the client and reports its end.
pub(super) async fn run(runtime: &Runtime, program: Program, want: Want, tty: bool, streams: Streams) {
    let (opened, what) = match &program {
        Program::Exec { container, argv } => (runtime.open_exec(container, argv.clone(), tty, want).await, "error executing command in container"),
        Program::Attach { container } => (runtime.open_attach(container, want).await, "error attaching to container"),
    };
    let session = match opened {
        Ok(session) => session,
        Err(status) => return streams.finish(&Outcome::Failed(format!("{what}: {}", status.message()))).await,
    };
    let (streams, exit) = connect(session, streams, matches!(program, Program::Exec { .. })).await;
    let outcome = match (exit, program) {
        // The client is gone.
        (None, _) => return,
        (Some(Err(error)), _) => Outcome::Failed(format!("{what}: {}", error.as_report())),
        // How the container ended is in the pod's status.
        (Some(Ok(_)), Program::Attach { .. }) | (Some(Ok(0)), _) => Outcome::Success,
        (Some(Ok(code)), Program::Exec { argv, .. }) => {
            Outcome::Exit(code, format!("error executing command [{}], exit code {code}", argv.join(" ")))
        }
    };
    streams.finish(&outcome).await;
}

/// Copies until the program has ended and its output is delivered; None when the client left before.
async fn connect(session: Session, mut streams: Streams, ours: bool) -> (Streams, Option<anyhow::Result<i32>>) {
    let Session { stdin, stdout, stderr, mut control } = session;
    let (gone, ended) = (streams.gone.clone(), CancellationToken::new());
    let (to_client, errors_to_client, from_client) = (streams.stdout.take(), streams.stderr.take(), streams.stdin.take());
    let mut input = std::pin::pin!(feed(from_client, stdin));
    let exit = {
        let mut output = std::pin::pin!(async {
            tokio::join!(drain(stdout, to_client, &ended), drain(stderr, errors_to_client, &ended));
        });
        let (mut fed, mut sized, mut drained, mut exit) = (false, false, false, None);
        loop {
            tokio::select! {
                () = &mut input, if !fed => fed = true,
                size = streams.sizes.recv(), if !sized => match size {
                    Some(size) => control.resize(size.width, size.height),
                    None => sized = true,
                },
                code = wait(&mut control), if exit.is_none() => {
                    exit = Some(code);
                    ended.cancel();
                }
                () = &mut output, if !drained => drained = true,
                () = gone.cancelled() => break None,
            }
            if drained && exit.is_some() {
                break exit;
            }
        }
    };
    if exit.is_none() && ours {
        tokio::spawn(see_off(control));
    }
    (streams, exit)
}

async fn wait(control: &mut SessionControl) -> anyhow::Result<i32> {
    control.wait().await.map(|exit| exit.code)
}

/// The client is gone: its program has read the end of its input or lost its terminal. What goes on nevertheless, nobody sees.
async fn see_off(mut control: SessionControl) {
    if tokio::time::timeout(ALONE, control.wait()).await.is_err() {
        control.kill();
    }
}

async fn feed(from: Option<Input>, to: Option<session::Input>) {
    let (Some(from), Some(mut to)) = (from, to) else { return };
    let mut from = tokio::io::BufReader::with_capacity(32 << 10, from);
    if let Err(error) = tokio::io::copy_buf(&mut from, &mut to).await {
        tracing::debug!(%error, "a program's input ended early");
    }
}

/// Delivers output until its end, or, once the program has ended, until no more comes for a while. A client that reads slowly loses nothing.
async fn drain(from: Option<session::Output>, to: Option<Output>, ended: &CancellationToken) {
    let (Some(mut from), Some(mut to)) = (from, to) else { return };
    let mut buffer = vec![0; 32 << 10];
    loop {
        let read = tokio::select! {
            biased;
            read = from.read(&mut buffer) => read,
            () = async { ended.cancelled().await; tokio::time::sleep(DRAIN).await } => break,
        };
        match read {
            Ok(count @ 1..) => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
            _ => break,
        }
    }
    let _ = to.shutdown().await;
}
