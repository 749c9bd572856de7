use serde_json::json;

use super::*;

fn service(ip: &str) -> ServiceRow {
    let object = json!({"metadata": {"name": "web"}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
    ServiceRow::of(&serde_json::from_value(object).unwrap()).unwrap()
}

fn slice(service: &str, address: &str) -> SliceRow {
    let object = json!({"metadata": {"labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
        "ports": [{"port": 80}], "endpoints": [{"addresses": [address]}]});
    SliceRow::of(&serde_json::from_value(object).unwrap(), "here").unwrap()
}

fn key(name: &str) -> Key {
    Key::new("default", name)
}

fn dirty(inputs: &mut Inputs) -> Vec<String> {
    inputs.take_dirty().into_iter().map(|key| key.name).collect()
}

#[test]
fn unchanged_rows_do_not_mark_a_service_dirty() {
    let mut inputs = Inputs::default();
    assert!(inputs.service(&key("web"), Some(service("10.96.0.7"))) && inputs.slice(&key("web-x"), Some(slice("web", "10.1.0.5"))));
    assert_eq!(dirty(&mut inputs), ["web"]);
    assert!(!inputs.service(&key("web"), Some(service("10.96.0.7"))) && !inputs.slice(&key("web-x"), Some(slice("web", "10.1.0.5"))));
    assert!(!inputs.service(&key("nobody"), None) && !inputs.slice(&key("nobody-x"), None));
    assert_eq!(dirty(&mut inputs), [""; 0]);
    assert!(inputs.slice(&key("web-x"), Some(slice("web", "10.1.0.6"))));
    assert_eq!(dirty(&mut inputs), ["web"]);
}

#[test]
fn slice_of_any_name_follows_its_service_label() {
    // Services whose names begin like each other, and slices whose names begin like another Service or like none.
    for name in ["web-x", "web-api-x", "mirrored", "web"] {
        let mut inputs = Inputs::default();
        for (n, name) in ["web", "web-api", "other"].into_iter().enumerate() {
            inputs.service(&key(name), Some(service(&format!("10.96.0.{n}"))));
        }
        for owner in ["web", "other", "web-api", "web", "web"] {
            inputs.slice(&key(name), Some(slice(owner, "10.1.0.5")));
            let with: Vec<&str> = ["web", "web-api", "other"].into_iter().filter(|s| !inputs.rows(&key(s)).unwrap().1.is_empty()).collect();
            assert_eq!(with, [owner], "slice {name}");
        }
        assert!(inputs.slice(&key(name), None));
        assert!(inputs.rows(&key("web")).unwrap().1.is_empty() && inputs.elsewhere.is_empty(), "slice {name}");
    }
}

#[test]
fn relist_replaces_old_rows_when_it_completes() {
    let shared = SharedInputs::default();
    let begin = || {
        Keeper::<ServiceRow>::begin(&shared);
        Keeper::<SliceRow>::begin(&shared);
    };
    let end = || (Keeper::<ServiceRow>::end(&shared), Keeper::<SliceRow>::end(&shared));
    begin();
    for name in ["kept", "gone", "bare"] {
        assert!(shared.put(key(name), service("10.96.0.7")));
    }
    for (name, of) in [("kept-1", "kept"), ("kept-2", "kept"), ("gone-1", "gone"), ("mirrored", "bare")] {
        assert!(shared.put(key(name), slice(of, "10.1.0.5")));
    }
    assert_eq!(end(), (false, false), "all of it was in the list");
    dirty(&mut shared.lock());
    // A list that failed, and then one without some objects.
    begin();
    assert!(!shared.put(key("gone"), service("10.96.0.7")));
    begin();
    for name in ["kept", "bare"] {
        assert!(!shared.put(key(name), service("10.96.0.7")));
    }
    assert!(!shared.put(key("kept-1"), slice("kept", "10.1.0.5")));
    assert!(shared.lock().rows(&key("gone")).is_some(), "nothing goes before the end of the list");
    assert_eq!(end(), (true, true));
    let mut inputs = shared.lock();
    assert_eq!(dirty(&mut inputs), ["bare", "gone", "kept"]);
    assert!(inputs.rows(&key("gone")).is_none());
    assert_eq!((inputs.rows(&key("kept")).unwrap().1.len(), inputs.rows(&key("bare")).unwrap().1.len()), (1, 0));
    assert!(inputs.elsewhere.is_empty());
    inputs.service(&key("kept"), None);
    inputs.service(&key("bare"), None);
    inputs.slice(&key("kept-1"), None);
    assert!(inputs.namespaces.is_empty(), "nothing is kept of what is gone");
}
