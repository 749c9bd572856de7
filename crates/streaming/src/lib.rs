//! Wire protocols of `exec`, `attach` and `port-forward`, both ends: between kubectl, the API server, the node agent and the
//! container runtime, once an HTTP/1.1 connection has been upgraded.
//!
//! | module | what it does |
//! | --- | --- |
//! | [`upgrade`] | requests and answers that upgrade a connection, and passing one through |
//! | [`spdy`] | SPDY/3.1: frames, header compression, streams with flow control |
//! | [`websocket`] | numbered channels, and a byte stream inside messages |
//! | [`remotecommand`] | a program's streams over either wire, and from one to the other |
//! | [`portforward`] | connections to a pod's ports over SPDY |
//! | [`links`] | links in HTML pages that a proxy passes on |
//!
//! Peers are foreign: what they can make this side hold is limited in each module, and a peer that does not read or write
//! delays only itself.

pub mod links;
pub mod portforward;
pub mod remotecommand;
pub mod spdy;
pub mod upgrade;
pub mod websocket;
