//! The simulated Host Networking Service: any calls with any texts are answered, a refused one changes nothing, and the indexes stay true.
//!
//! The first byte chooses the version. Then a line is a call: three bytes for the function, the object and its network, then the text.

#![no_main]

use hcn::{Args, Function, Guid, Handle, HnsVersion, Kind};
use hns_sim::Simulator;
use hns_sim::kernel::NoKernel;
use hns_sim::state::{Change, State};
use hns_sim::switches::Switches;
use libfuzzer_sys::fuzz_target;

const VERSIONS: [HnsVersion; 4] = [HnsVersion::new(9, 5), HnsVersion::new(13, 3), HnsVersion::new(15, 4), HnsVersion::new(16, 0)];
const METHODS: [&str; 3] = ["GET", "POST", "DELETE"];

fn id(byte: u8) -> Guid {
    let digit = byte & 0x0f;
    format!("0000000{digit:x}-0000-4000-8000-00000000000{digit:x}").parse().expect("it has the form of a GUID")
}

fuzz_target!(|data: &[u8]| {
    let Some((version, lines)) = data.split_first() else { return };
    let kernel = NoKernel { management: Some([10, 240, 0, 11].into()), survived: false };
    let switches = Switches::of(VERSIONS[usize::from(*version) % VERSIONS.len()]);
    let simulator = Simulator::new(Box::new(kernel), switches, None).expect("nothing stands in the way");
    let session = simulator.session();
    let functions: Vec<Function> = Function::all().collect();
    for line in lines.split(|byte| *byte == b'\n').take(24) {
        let [function, object, network, text @ ..] = line else { continue };
        let function = functions[usize::from(*function) % functions.len()];
        let text = String::from_utf8_lossy(text);
        let open = |kind: Kind, byte: u8| -> Option<Handle> {
            session.call(Function::Open(kind), Args { id: Some(id(byte)), ..Args::default() }).ok()?.handle
        };
        let (path, body) = text.split_once(' ').unwrap_or((&text, ""));
        let mut args = Args { id: Some(id(*object)), settings: Some(&text), query: Some(&text), ..Args::default() };
        match function {
            Function::Create(Kind::Endpoint) => args.network = open(Kind::Network, *network),
            Function::Modify(kind) | Function::Query(kind) => args.handle = open(kind, *object),
            Function::HnsCall => (args.method, args.path, args.settings) = (Some(METHODS[usize::from(*network) % 3]), Some(path), Some(body)),
            _ => {}
        }
        let before = simulator.state();
        let outcome = session.call(function, args);
        let after = simulator.state();
        assert!(outcome.is_ok() || after == before, "{function} changed what it refused to change: {text}");
        let mut rebuilt = State::default();
        after.ids().for_each(|(kind, id)| rebuilt.apply(Change { kind, id, after: after.get(kind, &id) }));
        assert!(rebuilt == after, "{function} left the indexes wrong: {text}");
    }
});
