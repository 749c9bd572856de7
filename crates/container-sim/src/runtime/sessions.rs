//! Exec, attach and port-forward: second programs, attached clients, connections into a pod's network.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_cri::v1;
use linux_sys::ns::NetNs;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tonic::Status;

use super::filter::by_prefix;
use super::{Runtime, failed, not_found};
use crate::session::{Input, Output, Session, SessionControl, Want};
use crate::shim::client::Link;
use crate::shim::{AttachRequest, ExecRequest, Exit, Handed, Request};

/// Most output that ExecSync returns, both streams together: what upstream's clients accept in one message, less room
/// for the rest of it. containerd cuts each stream at 16 MiB, which then does not arrive.
const EXEC_SYNC_OUTPUT: usize = 16 * 1024 * 1024 - 64 * 1024;

/// How long ExecSync reads on after the program's end while other processes hold its output open.
const DRAIN: Duration = Duration::from_secs(2);

impl Runtime {
    /// Starts a second program in a running container.
    pub(crate) async fn open_exec(&self, container: &str, argv: Vec<String>, tty: bool, want: Want) -> Result<Session, Status> {
        let (id, dir) = self.running(container)?;
        if argv.is_empty() {
            return Err(Status::invalid_argument("cmd cannot be empty"));
        }
        let request = ExecRequest { id, argv, tty, stdin: want.stdin, stdout: want.stdout, stderr: want.stderr && !tty };
        let opened = Link::open(&dir, &Request::Exec(request)).await;
        let (link, handed) = opened.map_err(|error| {
            let context =
                "failed to exec in container: failed to start exec: OCI runtime exec failed: exec failed: unable to start container process";
            failed(&error.context(context))
        })?;
        with_terminal(handed, want).and_then(|handed| session(link, handed)).map_err(|error| failed(&error))
    }

    /// Attaches to a running container's own streams.
    pub(crate) async fn open_attach(&self, container: &str, want: Want) -> Result<Session, Status> {
        let (id, dir) = self.running(container)?;
        let request = AttachRequest { id, stdin: want.stdin, stdout: want.stdout, stderr: want.stderr };
        let opened = Link::open(&dir, &Request::Attach(request)).await;
        let (link, handed) = opened.map_err(|error| failed(&error.context("failed to attach to container")))?;
        session(link, handed).map_err(|error| failed(&error))
    }

    /// Id of a running container, and its sandbox's directory.
    pub(super) fn running(&self, id: &str) -> Result<(String, std::path::PathBuf), Status> {
        let record = self.container(id).ok_or_else(|| not_found("container", id))?;
        if !record.is_running() {
            return Err(failed(&anyhow!("container is in {} state", record.state().as_str_name())));
        }
        Ok((record.id, self.records.sandbox_dir(&record.sandbox)))
    }

    /// Connects to a port in a pod's network: on its loopback, else at its addresses.
    pub(crate) async fn dial_pod(&self, sandbox: &str, port: u16) -> Result<TcpStream, Status> {
        let (record, ready) = {
            let state = self.state();
            let sandbox = by_prefix(&state.sandboxes, sandbox).ok_or_else(|| not_found("sandbox", sandbox))?;
            (sandbox.record.clone(), sandbox.is_ready())
        };
        if !ready {
            return Err(failed(&anyhow!("sandbox container {:?} is not running", record.id)));
        }
        let path = self.network.path(&record);
        let mut addresses: Vec<SocketAddr> = vec![([127, 0, 0, 1], port).into(), (std::net::Ipv6Addr::LOCALHOST, port).into()];
        addresses.extend(record.ips.iter().map(|ip| SocketAddr::new(*ip, port)));
        let mut refused = None;
        for address in addresses {
            match dial(path.clone(), address).await {
                Ok(stream) => return Ok(stream),
                // The first one is what a user expects to see.
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let error = refused.unwrap_or_else(|| anyhow!("no address to try"));
        Err(failed(&error.context(format!("failed to dial port {port} in sandbox {:?}", record.id))))
    }

    pub(super) async fn exec_sync(&self, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse, Status> {
        let run = async {
            let want = Want { stdin: false, stdout: true, stderr: true };
            let session = self.open_exec(&request.container_id, request.cmd, false, want).await?;
            let mut running = KillOnDrop(session.control);
            let mut gathered = Gathered::default();
            let exit = gather(&mut running.0, session.stdout, session.stderr, &mut gathered).await;
            let exit = exit.map_err(|error| failed(&error.context("failed to exec in container")))?;
            Ok(v1::ExecSyncResponse { stdout: gathered.stdout, stderr: gathered.stderr, exit_code: exit.code })
        };
        match u64::try_from(request.timeout) {
            Ok(seconds @ 1..) => tokio::time::timeout(Duration::from_secs(seconds), run).await.unwrap_or_else(|_| {
                // By this code a kubelet knows that a probe took too long.
                let message = format!("failed to exec in container: timeout {seconds}s exceeded: context deadline exceeded");
                Err(Status::deadline_exceeded(message))
            }),
            _ => run.await,
        }
    }
}

#[derive(Default)]
struct Gathered {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Reads both streams until the program has ended and they have, dropping what is too much.
async fn gather(control: &mut SessionControl, stdout: Option<Output>, stderr: Option<Output>, gathered: &mut Gathered) -> anyhow::Result<Exit> {
    let room = AtomicUsize::new(EXEC_SYNC_OUTPUT);
    let both = async { tokio::join!(read(stdout, &mut gathered.stdout, &room), read(stderr, &mut gathered.stderr, &room)) };
    let mut both = std::pin::pin!(both);
    let exit = tokio::select! {
        _ = &mut both => return control.wait().await,
        exit = control.wait() => exit,
    };
    // A child of the program may hold the streams open for as long as it lives.
    let _ = tokio::time::timeout(DRAIN, both).await;
    exit
}

async fn read(output: Option<Output>, into: &mut Vec<u8>, room: &AtomicUsize) {
    let Some(mut output) = output else { return };
    let mut buffer = vec![0; 32 * 1024];
    while let Ok(count @ 1..) = output.read(&mut buffer).await {
        let kept = count.min(room.load(Ordering::Relaxed));
        room.fetch_sub(kept, Ordering::Relaxed);
        into.extend_from_slice(&buffer[..kept]);
    }
}

/// Kills the program when the request ends: on a timeout, and when the client is gone.
struct KillOnDrop(SessionControl);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Fine when it has ended.
        self.0.kill();
    }
}

/// Descriptors as what the client asked for.
fn session(link: Link, handed: Vec<(Handed, OwnedFd)>) -> anyhow::Result<Session> {
    let (mut stdin, mut stdout, mut stderr, mut terminal) = (None, None, None, None);
    for (kind, fd) in handed {
        match kind {
            Handed::Stdin => stdin = Some(Input::new(fd)?),
            Handed::Stdout => stdout = Some(Output::new(fd)?),
            Handed::Stderr => stderr = Some(Output::new(fd)?),
            Handed::Terminal => terminal = Some(fd),
        }
    }
    Ok(Session { stdin, stdout, stderr, control: SessionControl::new(link, terminal) })
}

/// A second program's terminal is all that is handed over for it: its input and output are made of that.
fn with_terminal(handed: Vec<(Handed, OwnedFd)>, want: Want) -> anyhow::Result<Vec<(Handed, OwnedFd)>> {
    let mut all = Vec::new();
    for (kind, fd) in handed {
        if kind == Handed::Terminal {
            for copied in [(Handed::Stdin, want.stdin), (Handed::Stdout, want.stdout)].into_iter().filter(|(_, asked)| *asked) {
                all.push((copied.0, fd.try_clone().context("cannot copy a terminal's descriptor")?));
            }
        }
        all.push((kind, fd));
    }
    Ok(all)
}

/// Connects from a network namespace, the caller's own without `path`. A socket stays where it was made.
async fn dial(path: Option<std::path::PathBuf>, address: SocketAddr) -> anyhow::Result<TcpStream> {
    let make = move || if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() };
    let socket = match path {
        None => make()?,
        Some(path) => {
            let runtime = tokio::runtime::Handle::current();
            let made = tokio::task::spawn_blocking(move || {
                NetNs::open(&path)?.run(|| {
                    let _runtime = runtime.enter();
                    make()
                })
            });
            made.await??.context("cannot make a socket in the pod's network")?
        }
    };
    tokio::time::timeout(DIAL, socket.connect(address))
        .await
        .with_context(|| format!("connect {address}: timed out"))?
        .with_context(|| format!("connect {address}"))
}

/// How long one address may take to answer.
const DIAL: Duration = Duration::from_secs(5);
