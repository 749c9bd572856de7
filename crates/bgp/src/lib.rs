//! BGP-4 without I/O: messages, sessions, routing tables, and a [`Speaker`] made of them. Knows nothing of Kubernetes.
//!
//! Flow: inputs (connections, frames, the clock) → [`Speaker`] → outputs (frames to send, connections to open and close) and
//! routes. Every step is a pure function of the state and one input: no sockets, no clock, no async.
//! Keeps: RFC 4271 (sessions, decision), 4456 (reflection), 4724 (graceful restart), 4760 (IPv6), 2918 (route refresh), 6793
//! (AS numbers of four octets), 7606 (malformed attributes withdraw routes instead of ending sessions).
//! Leaves out: confederations, multipath, ADD-PATH, dampening; unicast of IPv4 and IPv6 alone.

pub mod rib;
pub mod session;
mod speaker;
pub mod wire;

pub use speaker::{Config, Connect, Input, Learned, Output, Peer, PeerStatus, Secret, Speaker};
pub use wire::Family;

/// A moment, counted from any fixed start.
pub type Time = std::time::Duration;
