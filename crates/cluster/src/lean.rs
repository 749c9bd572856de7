//! Objects as they are read from the API, without the record of who wrote which field (`metadata.managedFields`).
//!
//! That record is a third of a pod's bytes and most of its values, as a tree of names. Nobody here needs it but the API server: it is skipped
//! where it stands, and never becomes values.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

/// An object without `metadata.managedFields`.
#[derive(Clone, Debug)]
pub(crate) struct Lean<K>(pub K);

/// Where the objects of a [`Lean`] are: it has no kind of its own.
pub(crate) struct Place(String);

/// The same objects, read in this form.
pub(crate) fn lean<K: Resource>(api: Api<K>) -> Api<Lean<K>> {
    let place = Place(api.resource_url().to_owned());
    Api::all_with(api.into_client(), &place)
}

impl<K: Resource> Resource for Lean<K> {
    type DynamicType = Place;
    type Scope = K::Scope;

    fn kind(_: &Place) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn group(_: &Place) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn version(_: &Place) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn plural(place: &Place) -> Cow<'_, str> {
        Cow::Borrowed(place.0.rsplit('/').next().unwrap_or_default())
    }

    fn metadata_api() -> bool {
        K::metadata_api()
    }

    fn url_path(place: &Place, _: Option<&str>) -> String {
        place.0.clone()
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        K::deserialize(Part { at: At::Object, of: deserializer }).map(Self)
    }
}

/// How deep in an object.
#[derive(Clone, Copy)]
enum At {
    Object,
    Metadata,
}

/// A reader, visitor, seed or map of an object or of its metadata.
struct Part<T> {
    at: At,
    of: T,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Part<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.of.deserialize_any(Part { at: self.at, of: visitor })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.of.deserialize_map(Part { at: self.at, of: visitor })
    }

    fn deserialize_struct<V: Visitor<'de>>(self, name: &'static str, fields: &'static [&'static str], visitor: V) -> Result<V::Value, D::Error> {
        self.of.deserialize_struct(name, fields, Part { at: self.at, of: visitor })
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.of.deserialize_option(Part { at: self.at, of: visitor })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        visitor.visit_newtype_struct(self)
    }

    // An object and its metadata are maps; what else stands in their place is refused by who reads it.
    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct enum
        identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Part<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.of.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.of.visit_map(Members { at: self.at, map, metadata: false })
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        self.of.visit_some(Part { at: self.at, of: deserializer })
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.of.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.of.visit_unit()
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<V::Value, E> {
        self.of.visit_bool(value)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<V::Value, E> {
        self.of.visit_i64(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<V::Value, E> {
        self.of.visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<V::Value, E> {
        self.of.visit_f64(value)
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.of.visit_str(value)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.of.visit_borrowed_str(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.of.visit_seq(seq)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Part<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        self.of.deserialize(Part { at: self.at, of: deserializer })
    }
}

/// The members of an object or of its metadata.
struct Members<A> {
    at: At,
    map: A,
    /// The next value is the object's metadata.
    metadata: bool,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Members<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        loop {
            let Some(Name(name)) = self.map.next_key()? else { return Ok(None) };
            match self.at {
                At::Metadata if name == "managedFields" => {
                    self.map.next_value::<IgnoredAny>()?;
                    continue;
                }
                At::Metadata => {}
                At::Object => self.metadata = name == "metadata",
            }
            return seed.deserialize(name.into_deserializer()).map(Some);
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        if std::mem::take(&mut self.metadata) {
            self.map.next_value_seed(Part { at: At::Metadata, of: seed })
        } else {
            self.map.next_value_seed(seed)
        }
    }
}

/// A member's name, copied only if the JSON string has escapes.
struct Name<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;

        impl<'de> Visitor<'de> for Read {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a member")
            }

            fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(value)))
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(value.to_owned())))
            }
        }

        deserializer.deserialize_str(Read)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Node, Pod};
    use kube::core::{DynamicObject, ObjectList, PartialObjectMeta, WatchEvent};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Value {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"managedFields": [{"manager": "a", "fieldsV1": {"f:spec": {"f:containers": {}}}}], "name": "p", "labels": {"managedFields": "a label"},
                "annotations": {"a\"b": "c"}},
            "spec": {"containers": [{"name": "c", "env": [{"name": "metadata", "value": "managedFields"}]}]},
            "status": {"phase": "Running"},
        })
    }

    fn without(mut object: Value) -> Value {
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        object
    }

    fn read<K: DeserializeOwned>(text: &str) -> K {
        serde_json::from_str::<Lean<K>>(text).unwrap().0
    }

    #[test]
    fn an_object_is_read_whole_but_for_its_managed_fields() {
        let text = pod().to_string();
        let expected: Pod = serde_json::from_value(without(pod())).unwrap();
        assert_eq!(read::<Pod>(&text), expected);
        assert_eq!(serde_json::to_value(read::<DynamicObject>(&text)).unwrap(), without(pod()));
        assert_eq!(read::<PartialObjectMeta<Pod>>(&text).metadata, expected.metadata);
        let from_value: Lean<Pod> = serde_json::from_value(pod()).unwrap();
        assert_eq!(from_value.0, expected, "names that are not borrowed");
    }

    #[test]
    fn lists_and_events_hold_such_objects() {
        let text = json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [pod(), pod()]}).to_string();
        let list: ObjectList<Lean<Pod>> = serde_json::from_str(&text).unwrap();
        assert_eq!((list.items.len(), list.metadata.resource_version.as_deref()), (2, Some("7")));
        assert!(list.items.iter().all(|pod| pod.0.metadata.managed_fields.is_none() && pod.0.metadata.name.as_deref() == Some("p")));
        for text in [json!({"type": "ADDED", "object": pod()}).to_string(), json!({"object": pod(), "type": "ADDED"}).to_string()] {
            let WatchEvent::Added(Lean(added)) = serde_json::from_str::<WatchEvent<Lean<Pod>>>(&text).unwrap() else { panic!("{text}") };
            assert_eq!(added, serde_json::from_value(without(pod())).unwrap(), "{text}");
        }
    }

    #[test]
    fn an_object_may_lack_its_metadata_and_wrong_ones_are_refused() {
        for text in ["{}", r#"{"metadata":null}"#, r#"{"metadata":{}}"#] {
            let plain = serde_json::from_str::<Node>(text).map_err(|error| error.to_string());
            assert_eq!(serde_json::from_str::<Lean<Node>>(text).map(|node| node.0).map_err(|error| error.to_string()), plain, "{text}");
        }
        for text in [r#"{"metadata":[]}"#, r#"{"metadata":"x"}"#, r#"{"metadata":1}"#, "7", r#""x""#, "[]", "true", r#"{"metadata":{"name":7}}"#] {
            let plain = serde_json::from_str::<Node>(text).unwrap_err().to_string();
            assert_eq!(serde_json::from_str::<Lean<Node>>(text).unwrap_err().to_string(), plain, "{text}");
        }
    }

    #[tokio::test]
    async fn it_is_asked_for_where_the_objects_are() {
        let client = kube::Client::new(
            tower::service_fn(|_: http::Request<kube::client::Body>| async {
                Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::empty()))
            }),
            "x",
        );
        assert_eq!(lean(Api::<Pod>::namespaced(client.clone(), "shop")).resource_url(), "/api/v1/namespaces/shop/pods");
        assert_eq!(lean(Api::<Node>::all(client)).resource_url(), "/api/v1/nodes");
    }
}
