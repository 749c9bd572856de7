//! `pipe-relay NAME PORT PROGRAM [ARG...]`: offers the server at 127.0.0.1:PORT at the named pipe `\\.\pipe\NAME` as long as PROGRAM runs, and
//! ends as it does. So programs in Wine reach a container runtime outside as they reach containerd on Windows.

#[cfg(windows)]
#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    use std::io::Error;

    let mut args = std::env::args_os().skip(1);
    let pipe = args.next().and_then(|name| name.into_string().ok());
    let port = args.next().and_then(|port| port.to_str()?.parse().ok());
    let (Some(pipe), Some(port), Some(program)) = (pipe, port, args.next()) else {
        return Err(Error::other("usage: pipe-relay NAME PORT PROGRAM [ARG...]"));
    };
    let name = format!(r"\\.\pipe\{pipe}");
    let failed = |error| Error::other(format!("offering the pipe {name}: {error}"));
    let first = tokio::net::windows::named_pipe::ServerOptions::new().first_pipe_instance(true).create(&name).map_err(failed)?;
    let mut program = tokio::process::Command::new(program).args(args).spawn()?;
    let status = tokio::select! {
        error = relay(&name, port, first) => return Err(failed(error)),
        status = program.wait() => status?,
    };
    std::process::exit(status.code().unwrap_or(1))
}

/// Connects each client of the pipe to the server. Returns when no client can be taken any more.
#[cfg(windows)]
async fn relay(name: &str, port: u16, mut next: tokio::net::windows::named_pipe::NamedPipeServer) -> std::io::Error {
    use tokio::net::TcpStream;
    use tokio::net::windows::named_pipe::ServerOptions;

    loop {
        if let Err(error) = next.connect().await {
            return error;
        }
        // The next one is there before this one is served: clients find no gap.
        let mut pipe = match ServerOptions::new().create(name) {
            Ok(new) => std::mem::replace(&mut next, new),
            Err(error) => return error,
        };
        tokio::spawn(async move {
            let relayed = async { tokio::io::copy_bidirectional(&mut pipe, &mut TcpStream::connect(("127.0.0.1", port)).await?).await };
            if let Err(error) = relayed.await {
                eprintln!("pipe-relay: a connection to port {port} ended: {error}");
            }
        });
    }
}

#[cfg(not(windows))]
fn main() {
    eprintln!("pipe-relay: named pipes are Windows'");
    std::process::exit(64);
}
