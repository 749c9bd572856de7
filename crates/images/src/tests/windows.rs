//! Layers of Windows images over Wine's template.

use super::*;
use crate::windows::compose;
use crate::windows::hive::{Key, Semantics, Value as HiveValue, build};

const NODE: NodeOs = NodeOs::Windows { build: 20348 };

fn plain(entries: &[Entry<'_>]) -> (Vec<u8>, Vec<u8>) {
    let tar = tarball(entries);
    (tar.clone(), tar)
}

fn windows(layers: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    Oci::default().image("demo:1", "windows", Some("10.0.20348.1"), layers).archive()
}

fn hive(keys: Vec<Key>) -> Vec<u8> {
    build::hive(&Key { name: "ROOT".into(), keys, ..Key::default() })
}

fn software(name: &str, data: &[u8]) -> Vec<u8> {
    let value = HiveValue { name: "v".into(), kind: 4, data: Some(data.to_vec()) };
    hive(vec![Key { name: name.into(), values: vec![value], ..Key::default() }])
}

#[test]
fn files_go_to_drive_c_as_the_layers_below_spell_them() {
    let first = plain(&[Dir("Files/"), Dir("Files/App/"), File("Files/App/Run.exe", b"1"), File("UtilityVM/Files/x", b""), File("bcd.bak", b"")]);
    let second = plain(&[
        File("Files/APP/run.EXE", b"2"),
        File("Files/app/data.txt:Zone.Identifier", b"stream"),
        File("Files/Windows/System32/CMD.exe", b"not for Wine"),
        File("Files/Windows/System32/mine.dll", b"mine"),
        Symlink("Files/app/there", "C:/App/Run.exe"),
        Symlink("Files/app/elsewhere", "//?/Volume{0}/x"),
        Symlink("Files/app/beside", "run.exe"),
        Hard("Files/App/hard.exe", "Files/app/RUN.exe"),
        File("Files/Windows/System32/.wh.ntdll.dll", b""),
    ]);
    let third = plain(&[File("Files/app/.wh.RUN.exe", b""), File("Files/App/.wh..wh..opq", b"")]);
    let fixture = Fixture::new(NODE);
    let images = fixture.load(&windows(&[first, second, third])).unwrap();
    let [first, second, third] = [0, 1, 2].map(|number| fixture.layer(&images[0].layers[number]));
    assert_eq!(std::fs::read(first.join("drive_c/App/Run.exe")).unwrap(), b"1");
    assert_eq!(std::fs::read_dir(&first).unwrap().count(), 1, "nothing but drive C");
    let read = |name: &str| std::fs::read_to_string(second.join("drive_c").join(name));
    assert_eq!(read("App/Run.exe").unwrap(), "2");
    assert_eq!(read("App/hard.exe").unwrap(), "2");
    assert_eq!(read("windows/system32/mine.dll").unwrap(), "mine");
    assert!(read("windows/system32/cmd.exe").is_err(), "Wine's own stays");
    let names = |dir: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&second.join("drive_c/App")), ["Run.exe", "beside", "hard.exe", "there"]);
    assert_eq!(names(&second.join("drive_c/windows/system32")), ["mine.dll"], "no whiteout of Wine's files either");
    assert_eq!(std::fs::read_link(second.join("drive_c/App/there")).unwrap(), Path::new("../App/Run.exe"));
    assert_eq!(std::fs::canonicalize(second.join("drive_c/App/beside")).unwrap(), std::fs::canonicalize(second.join("drive_c/App/Run.exe")).unwrap());
    assert!(is_whiteout(&third.join("drive_c/App/Run.exe")));
    assert!(rustix::fs::getxattr(third.join("drive_c/App"), layer::OPAQUE, &mut [0u8; 4]).is_ok());
}

#[test]
fn bases_are_replaced_by_the_template() {
    let own = plain(&[File("Files/app.exe", b"own")]);
    // By its content, as pushed since 2023 under an ordinary media type; and by its history.
    let by_content = plain(&[File("Files/Windows/System32/ntdll.dll", b"Microsoft"), File("Files/other", b"")]);
    let fixture = Fixture::new(NODE);
    for _ in 0..2 {
        let images = fixture.load(&windows(&[by_content.clone(), own.clone()])).unwrap();
        assert_eq!(images[0].layers.len(), 1);
        assert!(fixture.layer(&images[0].layers[0]).join("drive_c/app.exe").exists());
    }
    let alone = fixture.store.list().unwrap()[0].layers.clone();
    // A foreign layer that the archive does not even hold.
    let mut oci = Oci::default();
    let blob = oci.blob(own.1.clone());
    let foreign = json!({ "mediaType": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "size": 1, "digest": digest_of(b"base") });
    let config = config("windows", Some("10.0.20348.1"), &[digest_of(b"base layer"), digest_of(&own.0)]);
    let archive = oci.manifest("demo:2", &config, vec![foreign, blob]).archive();
    assert_eq!(fixture.load(&archive).unwrap()[0].layers, alone, "shared: the base makes no difference");
    // Without its media type it is missing.
    let mut oci = Oci::default();
    let blob = oci.blob(own.1.clone());
    let missing = json!({ "size": 1, "digest": digest_of(b"base") });
    let error = fixture.load(&oci.manifest("demo:2", &config, vec![missing, blob]).archive()).unwrap_err().to_report_string();
    assert!(error.contains("does not contain"), "{error}");
}

#[test]
fn hives_are_applied_to_the_registry_below() {
    let one = plain(&[File("Hives/Software_Delta", &software("Mine", &[1, 0, 0, 0])), File("Hives/Sam_Delta", b"not read")]);
    let gone = Key { name: "wine".into(), semantics: Semantics::Tombstone, ..Key::default() };
    let two = plain(&[File("Hives/Software_Delta", &software("MINE", &[2, 0, 0, 0])), File("Hives/DefaultUser_Delta", &hive(vec![]))]);
    let three = plain(&[File("Hives/Software_Delta", &hive(vec![gone])), File("Files/a", b"")]);
    let fixture = Fixture::new(NODE);
    let image = fixture.load(&windows(&[one, two, three])).unwrap().remove(0);
    let layers: Vec<PathBuf> = image.layers.iter().map(|id| fixture.layer(id)).collect();
    let template = fixture.dir.path().join("wine-template");
    let files = compose(&|name| std::fs::read_to_string(template.join(name)), &layers).unwrap();
    let [("system.reg", text)] = files.as_slice() else { panic!("user.reg does not change: {files:?}") };
    assert!(text.contains("[Software\\\\Mine] 0\n\"v\"=dword:00000002\n") && !text.contains("Wine]"), "{text}");
    let damaged = fixture.load(&windows(&[plain(&[File("Hives/System_Delta", b"regf")])])).unwrap_err().to_report_string();
    assert!(damaged.contains("registry in \"Hives/System_Delta\"") && damaged.contains("damaged"), "{damaged}");
}

#[test]
fn hostile_windows_layers_are_refused_or_stay_inside() {
    for (entries, words) in [
        (&[File("Files/..\\..\\evil", b"x")][..], "name that Windows does not have"),
        (&[File("Files/../../evil", b"x")], "points out"),
        (&[File("Files/.wh...", b"")], "points out"),
        (&[Hard("Files/x", "Hives/secret")], "points out"),
    ] {
        let fixture = Fixture::new(NODE);
        let error = fixture.load(&windows(&[plain(entries)])).unwrap_err().to_report_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(std::fs::read_dir(fixture.store.layers_dir()).unwrap().count(), 0, "nothing half unpacked stays");
    }
    let fixture = Fixture::new(NODE);
    let layer = plain(&[
        Symlink("Files/up", "../../../.."),
        Dir("Files/etc/"),
        Symlink("Files/abs", "/etc"),
        Symlink("Files/deep/c", "c:\\..\\.."),
        Device("Files/dev"),
    ]);
    let image = fixture.load(&windows(&[layer])).unwrap().remove(0);
    let drive = fixture.layer(&image.layers[0]).join("drive_c");
    assert!(!drive.join("up").exists() && !drive.join("deep/c").exists() && !drive.join("dev").exists());
    assert_eq!(std::fs::read_link(drive.join("abs")).unwrap(), Path::new("etc"), "C:\\etc");
}

/// A layer that has the node write or read outside of its directory, by links whose depth in the archive is not that of
/// their place, through the place of a hive, or by a second name of a link.
#[test]
fn links_of_a_windows_layer_never_carry_a_write_out_of_it() {
    let hive = software("Evil", &[1, 0, 0, 0]);
    // The canary lies beside the directory of all layers: two levels above the one that is unpacked into.
    let attacks: [(&str, &[Entry<'_>]); 5] = [
        (
            "drive C that is no directory",
            &[
                Symlink("Files", "C:/"),
                Dir("Files/hives"),
                Symlink("Files/w/x/y/z", "C:/hives"),
                Symlink("Files/w/x/y/z/software", "C:/canary"),
                File("Hives/Software_Delta", &hive),
            ],
        ),
        ("drive C that is no directory", &[File("Files", b"x")]),
        (
            "through a link",
            &[Dir("Files/a/b/c/d/"), Symlink("Files/a/b/c/d/e", "C:/"), Symlink("Files/a/b/c/d/e/up", "C:/canary"), File("Files/up/written", b"x")],
        ),
        ("through a link", &[Dir("Files/a/"), Symlink("Files/to", "C:/a"), File("Files/to/.wh.x", b"")]),
        ("through a link", &[Dir("Files/a/b/c/"), Symlink("Files/a/b/c/link", "C:/canary"), Hard("Files/out", "Files/a/b/c/link")]),
    ];
    for (words, entries) in attacks {
        let fixture = Fixture::new(NODE);
        let canary = fixture.store.layers_dir().parent().unwrap().join("canary");
        std::fs::write(&canary, "untouched").unwrap();
        let loaded = fixture.load(&windows(&[plain(entries)]));
        assert_eq!(std::fs::read(&canary).unwrap(), b"untouched", "{words}");
        let error = loaded.expect_err(words).to_report_string();
        assert!(error.contains(words), "{error}");
    }
    // What earlier versions unpacked is not read through links either.
    let fixture = Fixture::new(NODE);
    let image = fixture.load(&windows(&[plain(&[File("Hives/Software_Delta", &hive)])])).unwrap().remove(0);
    let layer = fixture.layer(&image.layers[0]);
    let place = layer.join("hives/software");
    std::fs::rename(&place, fixture.dir.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(fixture.dir.path().join("elsewhere"), &place).unwrap();
    let template = fixture.dir.path().join("wine-template");
    compose(&|name| std::fs::read_to_string(template.join(name)), &[layer]).unwrap_err();
}

#[test]
fn layers_are_shared_and_go_with_their_last_image() {
    let fixture = Fixture::new(NODE);
    let common = plain(&[File("Files/common", b"x")]);
    let own = |text: &[u8]| plain(&[File("Files/own", text)]);
    fixture.load(&windows(&[common.clone(), own(b"1")])).unwrap();
    let second = Oci::default().image("demo:2", "windows", Some("10.0.20348.1"), &[common, own(b"2")]).archive();
    let second = fixture.load(&second).unwrap().remove(0);
    let count = || std::fs::read_dir(fixture.store.layers_dir()).unwrap().count();
    assert_eq!(count(), 3);
    // Another cluster's node, and a container that still runs.
    let other = Store::open(&fixture.dir.path().join("other"), &fixture.dir.path().join("cache"), NODE).unwrap();
    assert_eq!(other.collect_garbage().unwrap(), 0);
    fixture.store.remove("demo:1").unwrap();
    assert_eq!(count(), 2, "the common layer and the second's own");
    let container = fixture.dir.path().join("cri/sandboxes/s/containers/c");
    std::fs::create_dir_all(&container).unwrap();
    std::fs::write(container.join("start.json"), json!({ "layers": [Store::layer_name(&second.layers[1])] }).to_string()).unwrap();
    fixture.store.remove("demo:2").unwrap();
    assert_eq!(count(), 1, "a container uses it");
    std::fs::remove_dir_all(&container).unwrap();
    let _held = fixture.store.in_use().unwrap();
    assert_eq!(other.collect_garbage().unwrap(), 0, "while somebody unpacks");
    drop(_held);
    let ingest = fixture.dir.path().join("cache/ingest");
    std::fs::create_dir_all(&ingest).unwrap();
    for (name, age) in [("old", 25), ("new", 1)] {
        let file = std::fs::File::create(ingest.join(name)).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(age * 3600)).unwrap();
    }
    assert_eq!(other.collect_garbage().unwrap(), 1);
    assert!(ingest.join("new").exists() && !ingest.join("old").exists(), "half-fetched layers wait for a day");
}

#[test]
fn without_a_template_a_windows_image_is_refused_with_the_way_out() {
    let fixture = Fixture::new(NODE);
    std::fs::remove_dir_all(fixture.dir.path().join("wine-template")).unwrap();
    let error = fixture.load(&windows(&[plain(&[File("Files/a", b"")])])).unwrap_err().to_report_string();
    assert!(error.contains("there is no Windows template") && error.ends_with("make it with `mullion template`"), "{error}");
}
