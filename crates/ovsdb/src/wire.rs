//! JSON-RPC 1.0 as OVSDB has it: JSON objects back to back on a stream, without any frame (RFC 7047, section 4).

use serde_json::{Value, json};

use crate::value::excerpt;

/// Why a stream cannot be read on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A message is longer than is kept.
    #[error("a message is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// What comes is no JSON object.
    #[error("what is sent is no JSON object: another program listens there")]
    NotJson,
    /// It is an object, but no message.
    #[error("what is sent is no message of JSON-RPC: {0}")]
    NotRpc(String),
}

/// Cuts a stream of bytes into JSON objects. It keeps at most one unfinished message, and no more than a limit of that.
#[derive(Debug)]
pub struct Framer {
    buffer: Vec<u8>,
    /// Where the message begins that is being read.
    start: usize,
    /// How far it has been looked at.
    scanned: usize,
    depth: usize,
    in_text: bool,
    escaped: bool,
    limit: usize,
}

impl Framer {
    /// For messages of at most so many bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, scanned: 0, depth: 0, in_text: false, escaped: false, limit }
    }

    /// Takes in what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message; none: more has to be read first.
    ///
    /// # Errors
    /// What was read is no message; the stream cannot be used any more.
    pub fn next_message(&mut self) -> Result<Option<Message>, WireError> {
        while self.scanned < self.buffer.len() {
            let byte = self.buffer[self.scanned];
            if self.depth == 0 && byte.is_ascii_whitespace() {
                self.scanned += 1;
                self.start = self.scanned;
                continue;
            }
            if self.depth == 0 && byte != b'{' {
                return Err(WireError::NotJson);
            }
            self.scanned += 1;
            if self.scanned - self.start > self.limit {
                return Err(WireError::TooLong { limit: self.limit });
            }
            self.step(byte);
            if self.depth == 0 {
                let message = Message::parse(&self.buffer[self.start..self.scanned]);
                self.start = self.scanned;
                if self.start == self.buffer.len() {
                    // What one large message needed is not kept for the small ones after it.
                    self.buffer = Vec::new();
                    (self.start, self.scanned) = (0, 0);
                }
                return message.map(Some);
            }
        }
        Ok(None)
    }

    fn step(&mut self, byte: u8) {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
    }
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// It wants an answer with the same id.
    Request {
        /// What to do.
        method: String,
        /// With what.
        params: Value,
        /// Any value but null.
        id: Value,
    },
    /// It wants no answer.
    Notification {
        /// What happened.
        method: String,
        /// To what.
        params: Value,
    },
    /// The answer to a request.
    Reply {
        /// The request's.
        id: Value,
        /// What came of it, or why nothing did.
        result: Result<Value, Value>,
    },
}

impl Message {
    /// Reads a message.
    ///
    /// # Errors
    /// It is no JSON, or no message.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|_| WireError::NotJson)?;
        let Value::Object(mut object) = value else { return Err(WireError::NotJson) };
        let id = object.remove("id").unwrap_or_default();
        match (object.remove("method"), object.remove("params")) {
            (Some(Value::String(method)), Some(params @ Value::Array(_))) if id.is_null() => Ok(Self::Notification { method, params }),
            (Some(Value::String(method)), Some(params @ Value::Array(_))) => Ok(Self::Request { method, params, id }),
            (None, None) if !id.is_null() && (object.contains_key("result") || object.contains_key("error")) => {
                let error = object.remove("error").unwrap_or_default();
                let result = object.remove("result").unwrap_or_default();
                Ok(Self::Reply { id, result: if error.is_null() { Ok(result) } else { Err(error) } })
            }
            _ => Err(WireError::NotRpc(excerpt(&Value::Object(object)))),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let value = match self {
            Self::Request { method, params, id } => json!({"method": method, "params": params, "id": id}),
            Self::Notification { method, params } => json!({"method": method, "params": params, "id": null}),
            Self::Reply { id, result: Ok(result) } => json!({"result": result, "error": null, "id": id}),
            Self::Reply { id, result: Err(error) } => json!({"result": null, "error": error, "id": id}),
        };
        value.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(framer: &mut Framer) -> Vec<Message> {
        std::iter::from_fn(|| framer.next_message().unwrap()).collect()
    }

    #[test]
    fn messages_of_the_specification_are_read_and_written() {
        let cases = [
            (json!({"method": "echo", "params": [], "id": "echo"}), "request"),
            (json!({"method": "update", "params": [null, {}], "id": null}), "notification"),
            (json!({"result": [{"count": 1}], "error": null, "id": 3}), "reply"),
            (json!({"result": null, "error": {"error": "unknown database"}, "id": 3}), "reply"),
        ];
        for (value, what) in cases {
            let message = Message::parse(value.to_string().as_bytes()).unwrap();
            let found = match message {
                Message::Request { .. } => "request",
                Message::Notification { .. } => "notification",
                Message::Reply { .. } => "reply",
            };
            assert_eq!(found, what);
            assert_eq!(serde_json::from_slice::<Value>(&message.to_bytes()).unwrap(), value);
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for wrong in [json!({}), json!({"id": 1}), json!({"method": 1, "params": [], "id": 1}), json!({"method": "x", "params": {}, "id": 1})] {
            assert!(matches!(Message::parse(wrong.to_string().as_bytes()), Err(WireError::NotRpc(_))), "{wrong}");
        }
        let mut framer = Framer::new(100);
        framer.push(b"HTTP/1.1 400 Bad Request");
        assert_eq!(framer.next_message(), Err(WireError::NotJson));
        let mut framer = Framer::new(100);
        framer.push(b"{]");
        assert!(framer.next_message().is_err());
    }

    #[test]
    fn braces_in_texts_end_no_message() {
        let first = Message::Request { method: "echo".into(), params: json!(["}{", "\"}", "\\"]), id: json!(1) };
        let second = Message::Notification { method: "locked".into(), params: json!(["ü"]) };
        let mut framer = Framer::new(1000);
        framer.push(&[first.to_bytes(), b"\n ".to_vec(), second.to_bytes()].concat());
        assert_eq!(all(&mut framer), [first, second]);
        assert_eq!(framer.buffer.capacity(), 0, "nothing is kept of what was read");
    }

    #[test]
    fn what_is_too_long_ends_the_stream_before_it_is_kept() {
        let mut framer = Framer::new(64);
        framer.push(b"{\"method\": \"");
        assert_eq!(framer.next_message(), Ok(None));
        framer.push(&[b'x'; 100]);
        assert_eq!(framer.next_message(), Err(WireError::TooLong { limit: 64 }));
        // Many short ones are no long one.
        let mut framer = Framer::new(64);
        let message = Message::Notification { method: "x".into(), params: json!([]) };
        framer.push(&message.to_bytes().repeat(10));
        assert_eq!(all(&mut framer).len(), 10);
    }

    proptest! {
        #[test]
        fn cuts_of_the_stream_change_nothing(texts in proptest::collection::vec(".{0,12}", 1..5), cut in 1usize..9) {
            let messages: Vec<Message> =
                texts.iter().map(|text| Message::Request { method: "echo".into(), params: json!([text, [{"a": text}]]), id: json!(text) }).collect();
            let bytes: Vec<u8> = messages.iter().flat_map(Message::to_bytes).collect();
            let mut framer = Framer::new(10_000);
            let mut found = Vec::new();
            for part in bytes.chunks(cut) {
                framer.push(part);
                found.extend(all(&mut framer));
            }
            prop_assert_eq!(found, messages);
        }
    }
}
