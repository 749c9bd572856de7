//! The port over a socket: a client that is a [`HostNetwork`], and a server that offers one.
//!
//! A frame is a length (u32, little-endian) and that many bytes of JSON: `{"id","call","args"}` and `{"id","hresult","result","record"}`,
//! and `{"event"}` for notifications. `result` is a number (a handle) or a string (text). Handles belong to the connection. Answers come
//! in the order in which calls end: a client that sends several requests matches them by `id`.
//! Over TCP the first frame is `{"token"}`, from `MULLION_HCN_TOKEN`. The largest frame is [`MAX_FRAME`].

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::HResult;
use crate::guid::Guid;
use crate::port::{Args, Event, Handle, RawError, Reply};

mod client;
mod server;
mod stream;

pub use client::RemoteHcn;
pub use server::{Session, serve_connection};
pub use stream::{Address, AddressError, Listener, Stream};

/// The largest frame in bytes.
pub const MAX_FRAME: u32 = 16 << 20;
/// Frames up to that size are read at once.
const USUAL_FRAME: u32 = 16 << 10;

/// The arguments of a call, as they travel.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "lowercase")]
struct WireArgs {
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Handle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<Handle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    query: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
}

impl From<Args<'_>> for WireArgs {
    fn from(args: Args<'_>) -> Self {
        let own = |text: Option<&str>| text.map(str::to_owned);
        Self {
            network: args.network,
            id: args.id.map(|id| id.to_string()),
            handle: args.handle,
            settings: own(args.settings),
            query: own(args.query),
            method: own(args.method),
            path: own(args.path),
        }
    }
}

impl WireArgs {
    /// The arguments; an id that is no GUID is the error HNS gives for it.
    fn borrow(&self) -> Result<Args<'_>, RawError> {
        let id = self.id.as_deref().map(str::parse::<Guid>).transpose().map_err(|_| RawError::from(HResult::GUID_CONVERSION_FAILURE))?;
        Ok(Args {
            network: self.network,
            id,
            handle: self.handle,
            settings: self.settings.as_deref(),
            query: self.query.as_deref(),
            method: self.method.as_deref(),
            path: self.path.as_deref(),
        })
    }
}

/// What a client sends.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Request {
    id: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    call: String,
    args: WireArgs,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// What a server sends: an answer, or an event.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    hresult: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<Event>,
}

impl Answer {
    fn new(id: u64, outcome: Result<Reply, RawError>) -> Self {
        match outcome {
            Ok(Reply { handle, result }) => {
                let result = handle.map(|handle| Value::from(handle.0)).or(result.map(Value::from));
                Self { id: Some(id), result, ..Self::default() }
            }
            Err(RawError { hresult, record }) => Self { id: Some(id), hresult: hresult.0, record, ..Self::default() },
        }
    }

    fn outcome(self) -> Result<Reply, RawError> {
        if self.hresult != HResult::OK.0 {
            return Err(RawError { hresult: HResult(self.hresult), record: self.record });
        }
        Ok(match self.result {
            Some(Value::Number(number)) => Reply { handle: number.as_u64().map(Handle), result: None },
            Some(Value::String(text)) => Reply::text(text),
            _ => Reply::default(),
        })
    }
}

pub fn write_frame(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).ok().filter(|length| *length <= MAX_FRAME);
    let length = length.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("a frame of {} bytes is above the limit of {MAX_FRAME}", frame.len() - 4))
    })?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&frame)
}

/// Reads one frame; none at a clean end of the stream.
pub fn read_frame<T: for<'de> Deserialize<'de>>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_le_bytes(length);
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes is above the limit of {MAX_FRAME}")));
    }
    // Room for usual frames at once; then it grows with what arrives: a peer that announces much and sends little costs little.
    let mut bytes = Vec::with_capacity(length.min(USUAL_FRAME) as usize);
    stream.take(u64::from(length)).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests;
