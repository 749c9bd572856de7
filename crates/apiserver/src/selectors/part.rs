//! Reads a part of an encoded object: the members that selectors look at. The rest of it is passed over.

use serde::Deserialize as _;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// Members by their names, and what is wanted of each.
#[derive(Debug, Default)]
pub(super) struct Part<'a> {
    members: BTreeMap<&'a str, Part<'a>>,
    whole: bool,
}

impl<'a> Part<'a> {
    /// The values at these paths.
    pub fn of(paths: impl Iterator<Item = &'a [String]>) -> Self {
        let mut part = Self::default();
        paths.for_each(|path| part.add(path.iter().map(String::as_str)));
        part
    }

    /// The value at one more path.
    pub fn add(&mut self, path: impl Iterator<Item = &'a str>) {
        let last = path.fold(self, |part, member| part.members.entry(member).or_default());
        last.whole = true;
    }

    /// The object with these members alone; null when it is none.
    pub fn read(&self, bytes: &[u8]) -> Value {
        self.deserialize(&mut serde_json::Deserializer::from_slice(bytes)).unwrap_or_default()
    }
}

impl<'de> DeserializeSeed<'de> for &Part<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.whole { Value::deserialize(deserializer) } else { deserializer.deserialize_any(self) }
    }
}

/// What is no object has no members: it counts as null.
impl<'de> Visitor<'de> for &Part<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut found = Map::new();
        while let Some(Name(name)) = map.next_key()? {
            match self.members.get(&*name) {
                Some(part) => drop(found.insert(name.into_owned(), map.next_value_seed(part)?)),
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(Value::Object(found))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Value::Null)
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, _: &str) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

/// A name of a member, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_wanted_members_are_read() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let paths = ["metadata.labels", "spec.nodeName", "status.phase", "spec.volumes"].map(path);
        let part = Part::of(paths.iter().map(Vec::as_slice));
        let read = |object: Value| part.read(object.to_string().as_bytes());
        let pod = json!({"kind": "Pod", "metadata": {"name": "a", "labels": {"a\"b": "c", "d": {"e": 1}}}, "spec": {"nodeName": "n", "volumes": [{"a": 1}]},
            "status": [{"phase": "Running"}]});
        let expected =
            json!({"metadata": {"labels": {"a\"b": "c", "d": {"e": 1}}}, "spec": {"nodeName": "n", "volumes": [{"a": 1}]}, "status": null});
        assert_eq!(read(pod), expected);
        for other in [json!(null), json!(1), json!(-1), json!(1.5), json!("a"), json!(true), json!([{"spec": {}}])] {
            assert_eq!((read(json!({"spec": other})), read(other)), (json!({"spec": null}), Value::Null));
        }
        assert_eq!(part.read(b"{\"spec\": {"), Value::Null);
    }
}
