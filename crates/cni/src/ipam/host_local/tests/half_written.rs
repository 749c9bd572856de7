//! Files of which a crash left the beginning, and files that are something else.

use super::*;

fn gc(conf: &Value, valid: &[&str]) {
    let mut gc = request(Command::Gc, "", conf.clone());
    let list: Vec<Value> = valid.iter().map(|id| json!({"containerID": id, "ifname": "eth0"})).collect();
    gc.config.document.insert("cni.dev/valid-attachments".into(), json!(list));
    handle(&gc).unwrap();
}

#[test]
fn half_written_reservation_keeps_its_address_and_stops_nobody() {
    let whole = "live\r\neth0";
    for cut in 0..whole.len() {
        let dir = tempfile::tempdir().unwrap();
        let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/29"}]]));
        assert_eq!(add_one("live", &conf).unwrap(), "10.1.0.2/29");
        let file = dir.path().join("pods/10.1.0.2");
        fs::write(&file, &whole[..cut]).unwrap();
        assert_eq!(add_one("next", &conf).unwrap(), "10.1.0.3/29", "{cut}");
        handle(&request(Command::Check, "next", conf.clone())).unwrap();
        gc(&conf, &["live", "next"]);
        assert!(file.exists(), "{cut}: it may be that of a pod that runs");
        for id in ["d", "e", "f"] {
            add_one(id, &conf).unwrap();
        }
        assert_eq!(add_one("g", &conf).unwrap_err().code, code::EXHAUSTED, "{cut}: nobody else gets the address");
        handle(&request(Command::Del, "next", conf.clone())).unwrap();
        // The pod asks again: it gets a whole reservation, and the half one is nobody's. Files of old versions hold the container's id alone.
        let again = add_one("live", &conf).unwrap();
        let is_old_form = whole[..cut].trim() == "live";
        assert_eq!(again == "10.1.0.2/29", is_old_form, "{cut}: {again}");
        gc(&conf, &["live"]);
        assert_eq!(file.exists(), is_old_form, "{cut}");
        gc(&conf, &[]);
        assert_eq!(fs::read_dir(dir.path().join("pods")).unwrap().count(), 2, "{cut}: lock and last");
    }
}

#[test]
fn half_written_last_address_and_odd_files_stop_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let conf = ipam(dir.path(), json!([[{"subnet": "10.1.0.0/24"}]]));
    let store = dir.path().join("pods");
    let mut taken = Vec::new();
    let texts =
        (0..="10.1.0.77".len()).map(|cut| "10.1.0.77".as_bytes()[..cut].to_vec()).chain([vec![0xff, 0xfe, 0x31, 0], vec![0; 9], b"fd00::1".to_vec()]);
    for (n, last) in texts.enumerate() {
        fs::create_dir_all(&store).unwrap();
        fs::write(store.join("last_reserved_ip.0"), last).unwrap();
        taken.push(add_one(&format!("c{n}"), &conf).unwrap());
    }
    let count = taken.len();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), count, "each its own");
    // Bytes that are no text, and a directory, have an address's name.
    fs::write(store.join("10.1.0.100"), [0xff, 0xfe, 0x61, 0]).unwrap();
    fs::create_dir(store.join("10.1.0.101")).unwrap();
    fs::write(store.join("last_reserved_ip.0"), "10.1.0.99").unwrap();
    assert_eq!(add_one("after", &conf).unwrap(), "10.1.0.102/24");
    handle(&request(Command::Check, "after", conf.clone())).unwrap();
    handle(&request(Command::Del, "after", conf.clone())).unwrap();
    gc(&conf, &[]);
    let left: Vec<_> = fs::read_dir(&store).unwrap().flatten().filter_map(|file| file.file_name().into_string().ok()).collect();
    assert!(left.len() == 3 && left.iter().any(|name| name == "10.1.0.101"), "{left:?}");
}
