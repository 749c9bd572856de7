//! SPDY/3.1, as far as Kubernetes uses it.

mod connection;
pub mod frame;
mod headers;
mod stream;

pub use connection::{Connection, Error, Limits, Role};
pub use headers::{HeaderError, Headers};
pub use stream::{Incoming, ReceiveHalf, SendHalf, Stream};
