//! Protobuf request bodies. kubectl's typed commands (`create deployment`, `create token`, `auth can-i`, `drain`) and Go clients send
//! upstream's protobuf envelope whatever the server offers; it is turned into the JSON they would have sent. Answers are always JSON,
//! which those clients accept.
//!
//! The table of messages, `types.txt`, is generated from upstream's Go types (which alone say what is a pointer); a line is read when its
//! message occurs, so that the table costs no memory.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

const TYPES: &str = include_str!("types.txt");
const MAGIC: &[u8] = b"k8s\0";
/// Deeper nesting than any of upstream's types.
const DEEPEST: usize = 64;

/// What is wrong with a body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It has no envelope.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoEnvelope,
    /// It ends too early, or a tag makes no sense.
    #[error("proto: the message is cut off or malformed")]
    Malformed,
    /// Its kind is not in the table.
    #[error("no kind {kind:?} is registered for version {version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\"")]
    UnknownKind {
        /// apiVersion of the envelope.
        version: String,
        /// kind of the envelope.
        kind: String,
    },
}

type Result<T> = std::result::Result<T, DecodeError>;

/// Decodes an enveloped object.
pub fn decode(body: &[u8]) -> Result<Value> {
    let unknown = body.strip_prefix(MAGIC).ok_or(DecodeError::NoEnvelope)?;
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(unknown) {
        match field? {
            (1, Wire::Bytes(bytes)) => {
                for field in Fields(bytes) {
                    match field? {
                        (1, Wire::Bytes(bytes)) => version = text(bytes),
                        (2, Wire::Bytes(bytes)) => kind = text(bytes),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = message_of(&version, &kind);
    let Some(line) = line(&name) else { return Err(DecodeError::UnknownKind { version, kind }) };
    let mut object = Map::new();
    object.insert("kind".into(), kind.into());
    object.insert("apiVersion".into(), version.into());
    merge_message(&mut object, line, raw, 0)?;
    Ok(Value::Object(object))
}

/// The table's name of a kind: `apps/v1` Deployment is `apps.Deployment`, `autoscaling/v2` HorizontalPodAutoscaler is
/// `autoscalingv2.HorizontalPodAutoscaler`.
fn message_of(version: &str, kind: &str) -> String {
    const EVERYWHERE: [&str; 5] = ["DeleteOptions", "CreateOptions", "UpdateOptions", "PatchOptions", "ListOptions"];
    let (group, version) = version.split_once('/').unwrap_or(("core", version));
    let package = if EVERYWHERE.contains(&kind) { "meta" } else { group.split('.').next().unwrap_or(group) };
    let versioned = format!("{package}{version}.{kind}");
    if line(&versioned).is_some() { versioned } else { format!("{package}.{kind}") }
}

fn line(message: &str) -> Option<&'static str> {
    TYPES.lines().find_map(|line| line.strip_prefix(message)?.strip_prefix(' '))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// One field of a message in the table.
struct Field {
    json: &'static str,
    always: bool,
    pointer: bool,
    repeated: bool,
    map: bool,
    kind: &'static str,
}

impl Field {
    fn find(line: &'static str, number: u64) -> Option<Self> {
        let word = line.split(' ').find(|word| word.split(':').next().and_then(|first| first.parse().ok()) == Some(number))?;
        let mut parts = word.splitn(3, ':').skip(1);
        let (json, kind) = (parts.next()?, parts.next()?);
        let (always, kind) = strip(kind, "!");
        let (pointer, kind) = strip(kind, "*");
        let (repeated, kind) = strip(kind, "[]");
        let (map, kind) = strip(kind, "{}");
        Some(Self { json, always, pointer, repeated, map, kind: kind.trim_start_matches('*') })
    }
}

fn strip(text: &'static str, prefix: &str) -> (bool, &'static str) {
    text.strip_prefix(prefix).map_or((false, text), |rest| (true, rest))
}

fn merge_message(object: &mut Map<String, Value>, line: &'static str, bytes: &[u8], depth: usize) -> Result<()> {
    if depth > DEEPEST {
        return Err(DecodeError::Malformed);
    }
    for entry in Fields(bytes) {
        let (number, wire) = entry?;
        let Some(field) = Field::find(line, number) else { continue };
        if field.json.is_empty() {
            // An embedded struct: its members are the outer object's.
            if let (Some(line), Wire::Bytes(bytes)) = (self::line(field.kind), wire) {
                merge_message(object, line, bytes, depth + 1)?;
            }
        } else if field.map {
            let (key, value) = map_entry(&field, wire, depth)?;
            let slot = object.entry(field.json).or_insert_with(|| Value::Object(Map::new()));
            slot.as_object_mut().into_iter().for_each(|map| drop(map.insert(key.clone(), value.clone())));
        } else if field.repeated {
            let value = convert(field.kind, wire, depth)?;
            let slot = object.entry(field.json).or_insert_with(|| Value::Array(Vec::new()));
            slot.as_array_mut().into_iter().for_each(|list| list.push(value.clone()));
        } else {
            let value = convert(field.kind, wire, depth)?;
            if field.always || field.pointer || !is_zero(&value) {
                object.insert(field.json.to_string(), value);
            }
        }
    }
    Ok(())
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn map_entry(field: &Field, wire: Wire<'_>, depth: usize) -> Result<(String, Value)> {
    let Wire::Bytes(bytes) = wire else { return Err(DecodeError::Malformed) };
    let (mut key, mut value) = (String::new(), None);
    for entry in Fields(bytes) {
        match entry? {
            (1, Wire::Bytes(bytes)) => key = text(bytes),
            (2, wire) => value = Some(convert(field.kind, wire, depth)?),
            _ => {}
        }
    }
    Ok((key, value.unwrap_or_else(|| "".into())))
}

/// A value of the table's type as JSON writes it.
fn convert(kind: &str, wire: Wire<'_>, depth: usize) -> Result<Value> {
    match (kind, wire) {
        ("i", Wire::Number(number)) => Ok(number.cast_signed().into()),
        ("b", Wire::Number(number)) => Ok((number != 0).into()),
        ("d", Wire::Fixed(bits)) => Ok(number(f64::from_bits(bits))),
        ("s", Wire::Bytes(bytes)) => Ok(text(bytes).into()),
        ("y", Wire::Bytes(bytes)) => Ok(STANDARD.encode(bytes).into()),
        ("T" | "U", Wire::Bytes(bytes)) => time(bytes, kind == "U"),
        ("Q", Wire::Bytes(bytes)) => first_text(bytes),
        ("I", Wire::Bytes(bytes)) => int_or_string(bytes),
        ("R" | "F" | "J", Wire::Bytes(bytes)) => raw(bytes),
        ("A" | "O" | "P", Wire::Bytes(bytes)) => schema_or_other(kind, bytes, depth),
        (message, Wire::Bytes(bytes)) => {
            let mut object = Map::new();
            if let Some(line) = line(message) {
                merge_message(&mut object, line, bytes, depth + 1)?;
            }
            // A named list of strings is a message of one repeated field.
            Ok(object.remove("=").unwrap_or(Value::Object(object)))
        }
        _ => Err(DecodeError::Malformed),
    }
}

fn first_text(bytes: &[u8]) -> Result<Value> {
    for field in Fields(bytes) {
        if let (1, Wire::Bytes(bytes)) = field? {
            return Ok(text(bytes).into());
        }
    }
    Ok("0".into())
}

fn raw(bytes: &[u8]) -> Result<Value> {
    for field in Fields(bytes) {
        if let (1, Wire::Bytes(bytes)) = field? {
            return serde_json::from_slice(bytes).map_err(|_| DecodeError::Malformed);
        }
    }
    Ok(Value::Null)
}

/// As Go writes it: a whole number has no fraction.
fn number(value: f64) -> Value {
    const LARGEST: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() <= LARGEST { serde_json::from_str(&format!("{value:.0}")).unwrap_or_default() } else { value.into() }
}

/// A schema where something else may stand: several schemas (A), a bool (O), or several strings (P).
fn schema_or_other(kind: &str, bytes: &[u8], depth: usize) -> Result<Value> {
    const SCHEMA: &str = "apiextensions.JSONSchemaProps";
    let (mut schema, mut several, mut allows) = (None, Vec::new(), false);
    for field in Fields(bytes) {
        match (kind, field?) {
            ("O", (1, Wire::Number(number))) => allows = number != 0,
            ("A" | "P", (1, wire)) | ("O", (2, wire)) => schema = Some(convert(SCHEMA, wire, depth + 1)?),
            ("A", (2, wire)) => several.push(convert(SCHEMA, wire, depth + 1)?),
            ("P", (2, Wire::Bytes(bytes))) => several.push(text(bytes).into()),
            _ => {}
        }
    }
    Ok(match (schema, kind) {
        (_, "A" | "P") if !several.is_empty() => several.into(),
        (Some(schema), _) => schema,
        (None, "O") => allows.into(),
        (None, _) => Value::Null,
    })
}

fn int_or_string(bytes: &[u8]) -> Result<Value> {
    let (mut is_string, mut number, mut string) = (false, 0, String::new());
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Number(kind)) => is_string = kind != 0,
            (2, Wire::Number(value)) => number = value.cast_signed(),
            (3, Wire::Bytes(bytes)) => string = text(bytes),
            _ => {}
        }
    }
    Ok(if is_string { string.into() } else { number.into() })
}

fn time(bytes: &[u8], micro: bool) -> Result<Value> {
    let (mut seconds, mut nanos) = (None, 0);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Number(value)) => seconds = Some(value.cast_signed()),
            (2, Wire::Number(value)) => nanos = i32::try_from(value.cast_signed()).unwrap_or_default(),
            _ => {}
        }
    }
    // The zero time is an empty message.
    let Some(seconds) = seconds else { return Ok(Value::Null) };
    let time = jiff::Timestamp::new(seconds, nanos).map_err(|_| DecodeError::Malformed)?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(time.strftime(format).to_string().into())
}

/// A value on the wire.
enum Wire<'a> {
    Number(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(DecodeError::Malformed))
    }
}

impl<'a> Fields<'a> {
    fn read(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => Wire::Fixed(u64::from_le_bytes(*self.take(8)?.first_chunk()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(u64::from(u32::from_le_bytes(*self.take(4)?.first_chunk()?))),
            _ => return None,
        };
        Some((tag >> 3, wire))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn varint(mut value: usize) -> Vec<u8> {
        let mut out = Vec::new();
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).unwrap());
        out
    }

    /// A length-delimited field.
    fn bytes(number: usize, content: &[u8]) -> Vec<u8> {
        [varint(number << 3 | 2), varint(content.len()), content.to_vec()].concat()
    }

    /// A bool that is true.
    fn flag(number: usize) -> Vec<u8> {
        [varint(number << 3), vec![1]].concat()
    }

    fn envelope(version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
        let type_meta = [bytes(1, version.as_bytes()), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &type_meta), bytes(2, raw)].concat()
    }

    #[test]
    fn a_service_becomes_its_json() {
        let port = [bytes(1, b""), bytes(2, b"TCP"), vec![3 << 3, 80], bytes(4, &[1 << 3, 0, 2 << 3, 81]), vec![5 << 3, 0]].concat();
        let selector = [bytes(1, b"app"), bytes(2, b"web")].concat();
        let spec = [bytes(1, &port), bytes(2, &selector), bytes(3, b"")].concat();
        let metadata = [bytes(1, b"web"), vec![7 << 3, 0], bytes(8, b"")].concat();
        let body = envelope("v1", "Service", &[bytes(1, &metadata), bytes(2, &spec)].concat());
        let expected = json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"name": "web"},
            "spec": {"ports": [{"protocol": "TCP", "port": 80, "targetPort": 81}], "selector": {"app": "web"}},
        });
        assert_eq!(decode(&body).unwrap(), expected);
    }

    #[test]
    fn versions_of_a_kind_have_their_own_messages() {
        let metric =
            [bytes(1, b"Resource"), bytes(4, &[bytes(1, b"cpu"), bytes(2, &[bytes(1, b"Utilization"), vec![4 << 3, 50]].concat())].concat())]
                .concat();
        let raw = bytes(2, &[vec![3 << 3, 5], bytes(4, &metric)].concat());
        let spec = decode(&envelope("autoscaling/v2", "HorizontalPodAutoscaler", &raw)).unwrap()["spec"].clone();
        let expected = json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
        assert_eq!(spec, json!({"maxReplicas": 5, "metrics": [expected]}));
        let raw = bytes(2, &[vec![3 << 3, 5], vec![4 << 3, 50]].concat());
        let spec = decode(&envelope("autoscaling/v1", "HorizontalPodAutoscaler", &raw)).unwrap()["spec"].clone();
        assert_eq!(spec, json!({"maxReplicas": 5, "targetCPUUtilizationPercentage": 50}));
    }

    #[test]
    fn pointers_keep_their_zeros() {
        let body = envelope("apps/v1", "Deployment", &bytes(2, &[1 << 3, 0, 5 << 3, 0]));
        assert_eq!(decode(&body).unwrap()["spec"], json!({"replicas": 0}));
    }

    #[test]
    fn a_definition_of_a_custom_resource_becomes_its_json() {
        let string = bytes(5, b"string");
        let property = |name: &[u8], schema: &[u8]| bytes(29, &[bytes(1, name), bytes(2, schema)].concat());
        let number = [bytes(5, b"number"), vec![9 << 3 | 1], 5.0_f64.to_le_bytes().to_vec(), flag(40)].concat();
        let list = [bytes(5, b"array"), bytes(24, &bytes(1, &string))].concat();
        let map = [bytes(5, b"object"), bytes(30, &bytes(2, &string))].concat();
        let open = [bytes(5, b"object"), bytes(30, &flag(1)), flag(38)].concat();
        let defaulted = [string.clone(), bytes(8, &bytes(1, b"\"a\""))].concat();
        let schema = [
            bytes(5, b"object"),
            property(b"n", &number),
            property(b"l", &list),
            property(b"m", &map),
            property(b"o", &open),
            property(b"d", &defaulted),
        ]
        .concat();
        let schema = bytes(1, &schema);
        let version = [bytes(1, b"v1"), vec![2 << 3, 1, 3 << 3, 1], bytes(4, &schema), bytes(5, &bytes(1, b""))].concat();
        let names = [bytes(1, b"things"), bytes(4, b"Thing")].concat();
        let spec = [bytes(1, b"example.com"), bytes(3, &names), bytes(4, b"Namespaced"), bytes(7, &version)].concat();
        let found = decode(&envelope("apiextensions.k8s.io/v1", "CustomResourceDefinition", &bytes(2, &spec))).unwrap();
        let properties = json!({
            "n": {"type": "number", "maximum": 5, "x-kubernetes-int-or-string": true}, "l": {"type": "array", "items": {"type": "string"}},
            "m": {"type": "object", "additionalProperties": {"type": "string"}}, "d": {"type": "string", "default": "a"},
            "o": {"type": "object", "additionalProperties": true, "x-kubernetes-preserve-unknown-fields": true},
        });
        let version = json!({"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}});
        assert_eq!(
            found["spec"],
            json!({"group": "example.com", "names": {"plural": "things", "kind": "Thing"}, "scope": "Namespaced", "versions": [version]})
        );
    }

    #[test]
    fn secrets_times_quantities_and_named_lists_are_written_as_json_does() {
        let data = [bytes(1, b"k"), bytes(2, &[0, 255])].concat();
        assert_eq!(decode(&envelope("v1", "Secret", &bytes(2, &data))).unwrap()["data"], json!({"k": "AP8="}));
        assert_eq!(convert("T", Wire::Bytes(&[1 << 3, 0]), 0).unwrap(), "1970-01-01T00:00:00Z");
        assert_eq!(convert("Q", Wire::Bytes(&bytes(1, b"100m")), 0).unwrap(), "100m");
        assert_eq!(convert("authentication.ExtraValue", Wire::Bytes(&[bytes(1, b"a"), bytes(1, b"b")].concat()), 0).unwrap(), json!(["a", "b"]));
    }

    #[test]
    fn every_message_that_is_named_is_in_the_table() {
        let names: Vec<&str> = TYPES.lines().skip(1).filter_map(|line| line.split(' ').next()).collect();
        for line in TYPES.lines().skip(1) {
            for word in line.split_whitespace().skip(1) {
                let kind = word.splitn(3, ':').nth(2).unwrap().trim_start_matches(['!', '*', '[', ']', '{', '}']);
                // Structs without members have no line.
                let empty = ["batch.JobSchedulingConfiguration", "apiextensions.CustomResourceSubresourceStatus"].contains(&kind);
                assert!(kind.len() == 1 || names.contains(&kind) || empty, "{line}: {kind}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(decode(b"{}").unwrap_err(), DecodeError::NoEnvelope);
        assert_eq!(decode(b"k8s\0\x0a\xff").unwrap_err(), DecodeError::Malformed);
        assert!(matches!(decode(&envelope("x/v1", "Y", b"")), Err(DecodeError::UnknownKind { .. })));
        assert_eq!(decode(&envelope("v1", "Pod", &[0x12, 0xff])).unwrap_err(), DecodeError::Malformed);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_end_in_a_value_or_an_error(noise: Vec<u8>) {
            let _ = decode(&envelope("v1", "Pod", &noise[..noise.len().min(100)]));
        }
    }
}
