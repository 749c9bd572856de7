//! SPDY/3.1 frames as bytes (SPDY Protocol - Draft 3.1, §2.2 and §2.6). Nothing here waits or keeps state but the place
//! within a data frame, whose payload is handed on in the pieces that arrive.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Largest control frame that is read; peers of this protocol send some hundred bytes.
pub const LARGEST_CONTROL: usize = 64 << 10;
/// Most entries of one SETTINGS frame.
const MOST_SETTINGS: usize = 64;

const VERSION: u16 = 3;
const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

/// One frame. Header blocks are still compressed: only their order on the wire says how to read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Begins a stream.
    SynStream {
        /// The new stream.
        stream: u32,
        /// The stream it belongs to; 0 for none.
        associated: u32,
        /// 0 (first) to 7.
        priority: u8,
        /// The sender has nothing more to send on it.
        fin: bool,
        /// The receiver must not send on it.
        unidirectional: bool,
        /// Compressed headers.
        block: Bytes,
    },
    /// Accepts a stream.
    SynReply {
        stream: u32,
        /// The sender has nothing to send on it.
        fin: bool,
        /// Compressed headers.
        block: Bytes,
    },
    /// Ends a stream at once.
    RstStream {
        stream: u32,
        /// Why: see [`reset`].
        status: u32,
    },
    /// Settings as (id, value).
    Settings(Vec<(u32, u32)>),
    /// A question for a sign of life, or the answer to one.
    Ping(u32),
    /// No further streams are accepted.
    GoAway {
        /// The last stream that was.
        last: u32,
        /// 0 when nothing is wrong.
        status: u32,
    },
    /// More headers.
    Headers {
        stream: u32,
        /// The sender has nothing more to send on it.
        fin: bool,
        /// Compressed headers.
        block: Bytes,
    },
    /// More room to send.
    WindowUpdate {
        /// On which stream; 0 for all together.
        stream: u32,
        /// Bytes.
        delta: u32,
    },
    /// A piece of a stream.
    Data {
        stream: u32,
        /// It was the last one.
        fin: bool,
        payload: Bytes,
    },
}

/// Status codes of [`Frame::RstStream`].
pub mod reset {
    /// A rule of the protocol was broken.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The stream is not known.
    pub const INVALID_STREAM: u32 = 2;
    /// The stream was not begun.
    pub const REFUSED_STREAM: u32 = 3;
    /// The sender has lost interest.
    pub const CANCEL: u32 = 5;
    /// More was sent than there was room for.
    pub const FLOW_CONTROL_ERROR: u32 = 7;
}

/// The setting for the room each new stream has.
pub const INITIAL_WINDOW: u32 = 7;

/// Bytes that are not SPDY/3.1. The connection cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Not version 3.
    #[error("the peer speaks version {0} of SPDY, and version 3 is needed")]
    Version(u16),
    /// A control frame too large to be one.
    #[error("a SPDY control frame of {0} bytes is larger than the {LARGEST_CONTROL} that are accepted")]
    Large(usize),
    /// A frame of the wrong form.
    #[error("a SPDY frame of type {kind} with {length} bytes is malformed")]
    Malformed { kind: u16, length: usize },
    /// Stream 0 has no frames of this type.
    #[error("a SPDY frame names no stream")]
    NoStream,
}

/// Takes frames off a byte stream.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The data frame whose payload is being read.
    data: Option<PartOfData>,
}

#[derive(Debug)]
struct PartOfData {
    stream: u32,
    fin: bool,
    left: usize,
}

impl Decoder {
    /// The next frame, taken off the front of `buffer`; None when more bytes are needed. Frames of unknown types are passed over.
    /// A data frame may come as several; the last has its `fin`.
    ///
    /// # Errors
    /// When the bytes are no SPDY/3.1.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(part) = &mut self.data {
                let count = part.left.min(buffer.len());
                if count == 0 && part.left > 0 {
                    return Ok(None);
                }
                part.left -= count;
                let frame = Frame::Data { stream: part.stream, fin: part.fin && part.left == 0, payload: buffer.split_to(count).freeze() };
                if part.left == 0 {
                    self.data = None;
                }
                return Ok(Some(frame));
            }
            let Some(head) = buffer.first_chunk::<8>() else { return Ok(None) };
            let word = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
            let (flags, length) = (head[4], u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize);
            if word >> 31 == 0 {
                if word == 0 {
                    return Err(FrameError::NoStream);
                }
                buffer.advance(8);
                self.data = Some(PartOfData { stream: word, fin: flags & FIN != 0, left: length });
                continue;
            }
            let (version, kind) = ((word >> 16) as u16 & 0x7fff, word as u16);
            if version != VERSION {
                return Err(FrameError::Version(version));
            }
            if length > LARGEST_CONTROL {
                return Err(FrameError::Large(length));
            }
            if buffer.len() < 8 + length {
                return Ok(None);
            }
            buffer.advance(8);
            if let Some(frame) = control(kind, flags, buffer.split_to(length).freeze())? {
                return Ok(Some(frame));
            }
        }
    }
}

/// A control frame from its body; None for an unknown type.
fn control(kind: u16, flags: u8, mut body: Bytes) -> Result<Option<Frame>, FrameError> {
    let malformed = FrameError::Malformed { kind, length: body.len() };
    let least = match kind {
        1 => 10,
        2 | 4 | 6 | 8 => 4,
        3 | 7 | 9 => 8,
        _ => return Ok(None),
    };
    if body.len() < least {
        return Err(malformed);
    }
    let fin = flags & FIN != 0;
    let first = body.get_u32();
    let stream = first & 0x7fff_ffff;
    if stream == 0 && matches!(kind, 1 | 2 | 3 | 8) {
        return Err(FrameError::NoStream);
    }
    Ok(Some(match kind {
        1 => {
            let associated = body.get_u32() & 0x7fff_ffff;
            let priority = body.get_u8() >> 5;
            body.advance(1);
            Frame::SynStream { stream, associated, priority, fin, unidirectional: flags & UNIDIRECTIONAL != 0, block: body }
        }
        2 => Frame::SynReply { stream, fin, block: body },
        3 => Frame::RstStream { stream, status: body.get_u32() },
        4 => {
            let count = first as usize;
            if count > MOST_SETTINGS || body.len() != count * 8 {
                return Err(malformed);
            }
            Frame::Settings((0..count).map(|_| (body.get_u32() & 0x00ff_ffff, body.get_u32())).collect())
        }
        6 => Frame::Ping(first),
        7 => Frame::GoAway { last: stream, status: body.get_u32() },
        8 => Frame::Headers { stream, fin, block: body },
        _ => Frame::WindowUpdate { stream, delta: body.get_u32() & 0x7fff_ffff },
    }))
}

impl Frame {
    /// Appends the frame to `out`. A payload or block longer than 2^24 - 1 cannot be written; senders cut before.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Frame::SynStream { stream, associated, priority, fin, unidirectional, block } => {
                head(out, 1, flag(*fin, FIN) | flag(*unidirectional, UNIDIRECTIONAL), 10 + block.len());
                out.put_u32(*stream);
                out.put_u32(*associated);
                out.put_u8(priority << 5);
                out.put_u8(0);
                out.put_slice(block);
            }
            Frame::SynReply { stream, fin, block } => {
                head(out, 2, flag(*fin, FIN), 4 + block.len());
                out.put_u32(*stream);
                out.put_slice(block);
            }
            Frame::RstStream { stream, status } => {
                head(out, 3, 0, 8);
                out.put_u32(*stream);
                out.put_u32(*status);
            }
            Frame::Settings(settings) => {
                head(out, 4, 0, 4 + settings.len() * 8);
                out.put_u32(settings.len() as u32);
                for (id, value) in settings {
                    out.put_u32(id & 0x00ff_ffff);
                    out.put_u32(*value);
                }
            }
            Frame::Ping(id) => {
                head(out, 6, 0, 4);
                out.put_u32(*id);
            }
            Frame::GoAway { last, status } => {
                head(out, 7, 0, 8);
                out.put_u32(*last);
                out.put_u32(*status);
            }
            Frame::Headers { stream, fin, block } => {
                head(out, 8, flag(*fin, FIN), 4 + block.len());
                out.put_u32(*stream);
                out.put_slice(block);
            }
            Frame::WindowUpdate { stream, delta } => {
                head(out, 9, 0, 8);
                out.put_u32(*stream);
                out.put_u32(*delta);
            }
            Frame::Data { stream, fin, payload } => {
                out.put_u32(*stream);
                out.put_u32(u32::from(flag(*fin, FIN)) << 24 | payload.len() as u32);
                out.put_slice(payload);
            }
        }
    }
}

fn flag(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

fn head(out: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    out.put_u16(0x8000 | VERSION);
    out.put_u16(kind);
    out.put_u32(u32::from(flags) << 24 | length as u32);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_frame() -> impl Strategy<Value = Frame> {
        let id = 1u32..0x7fff_ffff;
        let bytes = proptest::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from);
        prop_oneof![
            (id.clone(), 0u32..100, 0u8..8, any::<bool>(), any::<bool>(), bytes.clone()).prop_map(
                |(stream, associated, priority, fin, unidirectional, block)| Frame::SynStream {
                    stream,
                    associated,
                    priority,
                    fin,
                    unidirectional,
                    block
                }
            ),
            (id.clone(), any::<bool>(), bytes.clone()).prop_map(|(stream, fin, block)| Frame::SynReply { stream, fin, block }),
            (id.clone(), any::<u32>()).prop_map(|(stream, status)| Frame::RstStream { stream, status }),
            proptest::collection::vec((0u32..1 << 24, any::<u32>()), 0..MOST_SETTINGS).prop_map(Frame::Settings),
            any::<u32>().prop_map(Frame::Ping),
            (id.clone(), any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (id.clone(), any::<bool>(), bytes.clone()).prop_map(|(stream, fin, block)| Frame::Headers { stream, fin, block }),
            (id.clone(), 0u32..0x7fff_ffff).prop_map(|(stream, delta)| Frame::WindowUpdate { stream, delta }),
            (id, any::<bool>(), bytes).prop_map(|(stream, fin, payload)| Frame::Data { stream, fin, payload }),
        ]
    }

    proptest! {
        #[test]
        fn frames_are_read_as_written(frames in proptest::collection::vec(any_frame(), 1..8)) {
            let mut wire = BytesMut::new();
            frames.iter().for_each(|frame| frame.encode(&mut wire));
            let mut decoder = Decoder::default();
            for frame in frames {
                prop_assert_eq!(decoder.next(&mut wire).unwrap(), Some(frame));
            }
            prop_assert_eq!(decoder.next(&mut wire).unwrap(), None);
        }

        #[test]
        fn pieces_make_the_same_data(frame in any_frame(), cut in 1usize..64) {
            let mut wire = BytesMut::new();
            frame.encode(&mut wire);
            let (mut decoder, mut buffer, mut found) = (Decoder::default(), BytesMut::new(), Vec::new());
            for piece in wire.chunks(cut) {
                buffer.extend_from_slice(piece);
                while let Some(frame) = decoder.next(&mut buffer).unwrap() {
                    found.push(frame);
                }
            }
            if let Frame::Data { payload, fin, .. } = &frame {
                let mut joined = Vec::new();
                for (index, part) in found.iter().enumerate() {
                    let Frame::Data { payload, fin: ended, .. } = part else { panic!("{part:?}") };
                    joined.extend_from_slice(payload);
                    prop_assert_eq!(*ended, *fin && index + 1 == found.len());
                }
                prop_assert_eq!(&joined, payload);
            } else {
                prop_assert_eq!(found, vec![frame]);
            }
        }

        #[test]
        fn foreign_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let (mut decoder, mut buffer) = (Decoder::default(), BytesMut::from(&bytes[..]));
            while let Ok(Some(_)) = decoder.next(&mut buffer) {}
        }
    }

    #[test]
    fn hostile_frames_are_refused() {
        let refused = |bytes: &[u8]| Decoder::default().next(&mut BytesMut::from(bytes)).unwrap_err();
        assert_eq!(refused(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]), FrameError::Large(0x00ff_ffff));
        assert_eq!(refused(&[0x80, 2, 0, 1, 0, 0, 0, 10]), FrameError::Version(2));
        assert_eq!(refused(&[0x80, 3, 0, 6, 0, 0, 0, 0]), FrameError::Malformed { kind: 6, length: 0 });
        assert_eq!(refused(&[0, 0, 0, 0, 0, 0, 0, 0]), FrameError::NoStream);
        let settings = [&[0x80, 3, 0, 4, 0, 0, 0, 4][..], &[0xff; 4]].concat();
        assert_eq!(refused(&settings), FrameError::Malformed { kind: 4, length: 4 });
    }

    #[test]
    fn unknown_types_are_passed_over() {
        let mut wire = BytesMut::from(&[0x80, 3, 0, 99, 0, 0, 0, 2, 7, 7][..]);
        Frame::Ping(1).encode(&mut wire);
        assert_eq!(Decoder::default().next(&mut wire).unwrap(), Some(Frame::Ping(1)));
    }
}
