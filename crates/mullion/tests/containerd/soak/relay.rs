//! The agent's way to the API server, which can be closed.

use std::net::SocketAddr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::cluster::NODE_IP;

const KUBECONFIG: &str = "/run/node.conf";

pub struct Relay(watch::Sender<bool>);

impl Relay {
    /// Starts it, and leads the agent's configuration over it.
    pub async fn start() -> Self {
        let listener = TcpListener::bind((NODE_IP, 0)).await.unwrap();
        let text = std::fs::read_to_string(KUBECONFIG).unwrap();
        let address = |port: &str| format!("https://{NODE_IP}:{port}");
        let (_, rest) = text.split_once(&address("")).expect("the server in the kubeconfig");
        let port: String = rest.chars().take_while(char::is_ascii_digit).collect();
        let own = listener.local_addr().unwrap().port().to_string();
        std::fs::write(KUBECONFIG, text.replace(&address(&port), &address(&own))).unwrap();
        let server = SocketAddr::from((NODE_IP, port.parse().unwrap()));
        let (open, is_open) = watch::channel(true);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, server, is_open.clone()));
            }
        });
        Self(open)
    }

    /// Ends all connections; later ones end at once.
    pub fn close(&self) {
        self.0.send_replace(false);
    }

    pub fn open(&self) {
        self.0.send_replace(true);
    }
}

async fn pass(mut stream: TcpStream, server: SocketAddr, mut is_open: watch::Receiver<bool>) {
    if !*is_open.borrow() {
        return;
    }
    let Ok(mut to) = TcpStream::connect(server).await else { return };
    tokio::select! {
        _ = copy_bidirectional(&mut stream, &mut to) => {}
        _ = is_open.wait_for(|open| !open) => {}
    }
}
