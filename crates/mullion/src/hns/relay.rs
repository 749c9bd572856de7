//! `mullion hns relay`: a simulated service over TCP, behind a token.
//!
//! Programs under Wine cannot use unix sockets. Each connection has one of its own at the service, so that handles die with their program.

use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use hcn::Guid;
use hcn::remote::{Address, RemoteHcn, Session, serve_connection};

use super::Target;
use crate::exit::{Code, Failure};

/// `mullion hns relay`.
#[derive(Clone, Debug, Args)]
pub struct RelayArgs {
    #[command(flatten)]
    target: Target,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: String,
}

/// Serves until the process is asked to end. What programs need in their environment is printed first.
pub fn main(args: &RelayArgs) -> Result<(), Failure> {
    crate::init_logs();
    let unnamed = || {
        let error = anyhow::anyhow!("no service is named: give --node NODE (`mullion status` lists the nodes) or --hcn ADDRESS");
        Failure::new(Code::Usage, error)
    };
    let service = args.target.address()?.ok_or_else(unnamed)?;
    let listener = Address::Tcp(args.listen.clone()).listen().with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.tcp_address().context("the listener has no address")?;
    // A relay that is started again serves the programs that are still there.
    let token = match std::env::var("MULLION_HCN_TOKEN") {
        Ok(token) if token.is_empty() => {
            let why = "MULLION_HCN_TOKEN is empty, and every program would have it; set it to a secret, or unset it to have one made";
            return Err(anyhow::anyhow!("cannot start the relay: {why}").into());
        }
        Ok(token) => token,
        Err(_) => Guid::random().to_string(),
    };
    println!("MULLION_HCN=tcp:{address}");
    println!("MULLION_HCN_TOKEN={token}");
    loop {
        let stream = listener.accept().with_context(|| format!("cannot accept on {address}"))?;
        let session: Session = Arc::new(RemoteHcn::connect(&service)?);
        let token = token.clone();
        let serve = move || {
            if let Err(error) = serve_connection(stream, &session, Some(&token)) {
                tracing::debug!(%error, "a program's connection broke");
            }
        };
        std::thread::Builder::new().name("relay".into()).spawn(serve).context("no thread for a connection")?;
    }
}
