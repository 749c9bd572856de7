use super::*;

#[test]
fn routes_are_read_from_birds_table() {
    let text = "Table master4:\n0.0.0.0/0            unicast [kernel1 12:00:00.000] * (10)\n\tvia 10.240.0.254 on lan0\n10.240.0.0/24        unicast [direct1 12:00:00.000] * (240)\n\tdev lan0\n192.168.1.0/24       unicast [mullion4 12:00:00.000] * (200)\n\tvia 10.240.0.12 on lan0\n                     unicast [static9 12:00:00.000] (200)\n\tvia 10.240.0.99 on lan0\n192.168.9.0/24       blackhole [static9 12:00:00.000] * (200)\n\nTable master6:\nfd00:1::/64          unicast [mullion6 12:00:00.000] * (200)\n\tvia fd00::12 on lan0\n";
    let lines: Vec<String> =
        parse(text).iter().map(|route| format!("{} {} {}", route.dst, route.via.map_or("-".into(), |via| via.to_string()), route.ours)).collect();
    assert_eq!(
        lines,
        [
            "0.0.0.0/0 10.240.0.254 false",
            "10.240.0.0/24 - false",
            "192.168.1.0/24 10.240.0.12 true",
            "192.168.1.0/24 10.240.0.99 false",
            "fd00:1::/64 fd00::12 true",
        ]
    );
}

#[test]
fn ends_of_answers_are_told_from_their_lines() {
    assert_eq!(code_of(b"0000 "), Some((0, true)));
    assert_eq!(code_of(b"1007-Table master4:"), Some((1007, false)));
    assert_eq!(code_of(b"0001 BIRD 2.0.12 ready."), Some((1, true)));
    for line in [&b" 192.168.1.0/24"[..], b"", b"12", b"1007", b"12:00 x", b"00a0 x"] {
        assert_eq!(code_of(line), None, "{:?}", String::from_utf8_lossy(line));
    }
}
