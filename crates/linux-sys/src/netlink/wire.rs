//! Netlink messages and attributes, written and read.
//!
//! Lengths and headers are in host order; what an attribute holds is its family's matter
//! (rtnetlink: host order, nf_tables: network order).

/// Bytes of `nlmsghdr`.
pub const HEADER: usize = 16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
const TYPE_MASK: u16 = libc::NLA_TYPE_MASK as u16;

const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// Builds one or several messages in one buffer.
#[derive(Debug, Default, Clone)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Writes one message: its header, `fixed` (the family's own header) and what `body` adds.
    pub fn message(&mut self, kind: u16, flags: u16, seq: u32, fixed: &[u8], body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&seq.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(fixed);
        self.pad();
        body(self);
        let len = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// One attribute of raw bytes.
    ///
    /// # Panics
    /// When `value` is longer than an attribute can be (65,531 bytes): callers bound their input.
    pub fn attr(&mut self, kind: u16, value: &[u8]) {
        let len = u16::try_from(value.len() + 4).expect("a netlink attribute holds at most 65,531 bytes");
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.pad();
    }

    /// An 8-bit number.
    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// A 32-bit number in host order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// A 32-bit number in network order, as nf_tables wants them.
    pub fn attr_be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// A 64-bit number in network order.
    pub fn attr_be64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// A string with its closing NUL.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        let mut bytes = Vec::with_capacity(value.len() + 1);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
        self.attr(kind, &bytes);
    }

    /// An attribute of attributes, marked as nested (nf_tables refuses unmarked ones).
    ///
    /// # Panics
    /// When the content exceeds an attribute's length: callers bound their input.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        let len = u16::try_from(self.bytes.len() - start).expect("a nested netlink attribute holds at most 65,531 bytes");
        self.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// Raw bytes: a family header inside an attribute, or finished messages.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Without messages, with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes) }
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How many bytes were written.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds `flags` to those of the message that starts at `start`.
    pub fn add_flags(&mut self, start: usize, flags: u16) {
        let at = start + 6..start + 8;
        let now = u16::from_ne_bytes([self.bytes[at.start], self.bytes[at.start + 1]]);
        self.bytes[at].copy_from_slice(&(now | flags).to_ne_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

/// One message as received.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The message type.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The sequence number of the request that it answers.
    pub seq: u32,
    /// The family's header and the attributes.
    pub payload: &'a [u8],
}

/// The messages of one datagram; ends at the first malformed one.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let header = bytes.get(..HEADER)?;
        let len = u32_at(header, 0)? as usize;
        let payload = bytes.get(HEADER..len)?;
        let message = Received { kind: u16_at(header, 4)?, flags: u16_at(header, 6)?, seq: u32_at(header, 8)?, payload };
        bytes = bytes.get(align(len)..).unwrap_or(&[]);
        Some(message)
    })
}

/// The attributes of a payload as `(type without flags, value)`; ends at the first malformed one.
pub fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & TYPE_MASK;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(align(len)..).unwrap_or(&[]);
        Some((kind, value))
    })
}

/// The first attribute of type `kind`.
pub fn attr(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attrs(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// A 16-bit number in host order at an offset.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// A 32-bit number in host order at an offset.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A 64-bit number in host order at an offset.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A 32-bit number in network order.
pub fn be32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

/// A 64-bit number in network order.
pub fn be64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?))
}

/// A NUL-terminated string attribute as text.
pub fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_messages_read_back() {
        let mut w = Writer::default();
        w.message(7, 5, 42, &[1, 2], |w| {
            w.attr_str(3, "abc");
            w.nest(9, |w| w.attr_be32(1, 0x0102_0304));
        });
        w.message(8, 0, 43, &[], |_| {});
        let all: Vec<_> = messages(w.as_bytes()).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].kind, all[0].flags, all[0].seq), (7, 5, 42));
        let body = &all[0].payload[4..];
        assert_eq!(text(attr(body, 3).unwrap()), "abc");
        assert_eq!(be32(attr(attr(body, 9).unwrap(), 1).unwrap()), Some(0x0102_0304));
        assert_eq!(all[1].seq, 43);
    }

    #[test]
    fn cut_input_ends_quietly() {
        let mut w = Writer::default();
        w.message(7, 0, 1, &[], |w| w.attr(1, &[1, 2, 3, 4, 5]));
        for cut in 0..w.len() {
            assert_eq!(messages(&w.as_bytes()[..cut]).count(), 0);
        }
        assert_eq!(attrs(&[3, 0, 0, 0]).count(), 0, "a length below the header's own");
    }
}
