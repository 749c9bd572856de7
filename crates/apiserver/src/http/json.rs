//! A JSON reader that notices members which stand twice in one object: the last one counts, as everywhere, but strict clients want to know.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::map::Entry;
use serde_json::{Map, Number, Value};
use std::cell::{Cell, RefCell};
use std::fmt;

/// Most repetitions that are named (sigs.k8s.io/json has the same limit).
const MOST: usize = 100;

/// Reads a document; the second part names the members that stand twice, as `duplicate field "spec.replicas"`.
pub fn read(body: &[u8]) -> serde_json::Result<(Value, Vec<String>)> {
    let place = Place::default();
    let value = read_noting(body, &place)?;
    if !place.any.get() {
        return Ok((value, Vec::new()));
    }
    // Only now is it worth knowing where.
    let place = Place { named: true, ..Place::default() };
    let value = read_noting(body, &place)?;
    Ok((value, place.found.into_inner()))
}

fn read_noting(body: &[u8], place: &Place) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let value = Reader(place).deserialize(&mut deserializer)?;
    deserializer.end().map(|()| value)
}

#[derive(Default)]
struct Place {
    /// Whether paths are kept.
    named: bool,
    /// Whether anything stands twice.
    any: Cell<bool>,
    path: RefCell<String>,
    found: RefCell<Vec<String>>,
}

impl Place {
    /// Runs `read` one step further down.
    fn below<T>(&self, step: impl FnOnce() -> String, read: impl FnOnce() -> T) -> T {
        if !self.named {
            return read();
        }
        let step = step();
        let length = self.path.borrow().len();
        self.path.borrow_mut().push_str(&step);
        let result = read();
        self.path.borrow_mut().truncate(length);
        result
    }

    fn member(&self, name: &str) -> String {
        if self.path.borrow().is_empty() { name.to_string() } else { format!(".{name}") }
    }

    fn repeated(&self, name: &str) {
        self.any.set(true);
        if !self.named {
            return;
        }
        let step = self.member(name);
        let mut found = self.found.borrow_mut();
        let text = format!("duplicate field \"{}{step}\"", self.path.borrow());
        if found.len() < MOST && !found.contains(&text) {
            found.push(text);
        }
    }
}

struct Reader<'a>(&'a Place);

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any valid JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let index = list.len();
            match self.0.below(|| format!("[{index}]"), || items.next_element_seed(Reader(self.0)))? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let value = self.0.below(|| self.0.member(&name), || members.next_value_seed(Reader(self.0)))?;
            match map.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(value)),
                Entry::Occupied(mut entry) => {
                    self.0.repeated(entry.key());
                    entry.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        /// Whatever the text, the value is serde_json's.
        #[test]
        fn values_are_those_of_the_usual_reader(text in r#"[\[\]{}",:a-c0-9.e+\- \\tnu]{0,60}"#) {
            let usual: Option<Value> = serde_json::from_str(&text).ok();
            prop_assert_eq!(read(text.as_bytes()).ok().map(|(value, _)| value), usual);
        }

        /// A document without repetitions is read as it was written.
        #[test]
        fn documents_survive(numbers in proptest::collection::vec(any::<i64>(), 0..5), float in any::<f64>(), text in ".*") {
            let document = json!({"numbers": numbers, "float": float, "text": text, "deep": [[{"a": null, "b": [true]}]]});
            let (value, repeated) = read(document.to_string().as_bytes()).unwrap();
            prop_assert_eq!(value, serde_json::from_str::<Value>(&document.to_string()).unwrap());
            prop_assert!(repeated.is_empty());
        }
    }

    #[test]
    fn repetitions_are_named_and_the_last_counts() {
        let text = br#"{"a":1,"spec":{"x":[{"y":1,"y":2},{"y":null}],"a":1.5},"a":"z","a":-3}"#;
        let (value, found) = read(text).unwrap();
        assert_eq!(value, json!({"a": -3, "spec": {"x": [{"y": 2}, {"y": null}], "a": 1.5}}));
        assert_eq!(found, ["duplicate field \"spec.x[0].y\"", "duplicate field \"a\""]);
        assert!(read(b"{} {}").is_err() && read(b"{").is_err());
        assert!(read(b"{\"a\":true}").unwrap().1.is_empty());
    }
}
