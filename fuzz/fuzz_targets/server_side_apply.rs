//! Server-side apply and strategic merge patches: any live object and any configuration, one a line. What could
//! be applied can be applied again.

#![no_main]

use std::sync::OnceLock;

use kube_schema::manager::{FieldManager, ResetFields, one_version};
use kube_schema::schema::Schema;
use kube_schema::set::FieldSet;
use kube_schema::{facts, strategic};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

const TYPES: &str = "Meta
 labels map[string]string {}string omitempty
 finalizers []string []string omitempty list:set patch:merge
 managedFields []Entry []extension omitempty list:atomic
Item
 name string string
 port int32 int32
 ports []Item []@Item omitempty list:map,name,port patch:merge key:name
 any RawExtension extension omitempty
Root
 kind string string omitempty
 apiVersion string string omitempty
 metadata Meta @Meta omitempty
 items []Item []@Item list:map,name patch:merge key:name
 one Item @Item ptr omitempty map:atomic
";

fuzz_target!(|text: &str| {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    let schema = SCHEMA.get_or_init(|| facts::schema(TYPES, &[]).expect("the table is good"));
    let (first, second) = text.split_once('\n').unwrap_or((text, "{}"));
    let (Ok(live), Ok(mut config)) = (serde_json::from_str::<Value>(first), serde_json::from_str::<Value>(second)) else { return };
    if let Some(members) = config.as_object_mut() {
        members.insert("apiVersion".into(), "x/v1".into());
        members.insert("kind".into(), "Y".into());
    }
    let reset = |_: &str| ResetFields::These(FieldSet::default());
    for of in [schema.find("Root").expect("it is defined"), schema.type_at(Schema::DEDUCED)] {
        let (api_version, kind, now) = ("x/v1", "Y", jiff::Timestamp::UNIX_EPOCH);
        let fields = FieldManager { of, api_version, kind, subresource: "", reset: &reset, convert: &one_version, now };
        let mut updated = config.clone();
        fields.update(Some(&live), &mut updated, "one");
        let _ = strategic::apply(of, &live, &config);
        if let Ok(once) = fields.apply(Some(&live), &config, "kubectl", true) {
            assert!(fields.apply(Some(&once), &config, "kubectl", true).is_ok());
        }
    }
});
