use super::*;
use hcn::Kind;

fn called(function: Function, id: Option<Guid>) -> Called<'static> {
    Called { function, id, texts: [Some(r#"{"Name":"Pod"}"#), None, None] }
}

#[test]
fn fault_hits_the_calls_it_names_until_its_count_is_used_up() {
    let mut faults = Faults::new(1);
    let create = called(Function::Create(Kind::Endpoint), None);
    let number = faults.add("fail-call=0x6be,call=HcnCreate*,text=pod,skip=1,count=1".parse().unwrap()).unwrap();
    faults.add("slow-call=5ms".parse().unwrap()).unwrap();
    let slow = |effects: Effects| effects.error.is_none() && effects.delay == Duration::from_millis(5);
    assert!(slow(faults.effects_on(&called(Function::Open(Kind::Endpoint), None))));
    assert!(slow(faults.effects_on(&Called { texts: [None; 3], ..create })), "another text");
    assert!(slow(faults.effects_on(&create)), "the first call is skipped");
    let hit = faults.effects_on(&create);
    assert_eq!((hit.error, hit.names), (Some(HResult::RPC_CALL_FAILED), vec!["fail-call", "slow-call"]));
    assert!(slow(faults.effects_on(&create)), "used up");
    assert!(!faults.remove(number) && faults.list().len() == 1);
    let id = Guid::random();
    faults.add(Fault { id: Some(id), ..Fault::named("port-exists") }).unwrap();
    let create = Function::Create(Kind::LoadBalancer);
    assert_eq!(faults.effects_on(&called(create, Some(id))).error, Some(HResult::PORT_ALREADY_EXISTS));
    assert_eq!(faults.effects_on(&called(create, Some(Guid::NIL))).error, None);
}

#[test]
fn fault_probability_follows_the_seed() {
    let draws = |seed| {
        let mut faults = Faults::new(seed);
        faults.add("svc-down,probability=0.25".parse().unwrap()).unwrap();
        (0..400).map(|_| faults.effects_on(&called(Function::HnsCall, None)).error.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(draws(7), draws(7));
    assert_ne!(draws(7), draws(8));
    let hits = draws(7).into_iter().filter(|hit| *hit).count();
    assert!((60..140).contains(&hits), "{hits}");
}

#[test]
fn fault_texts_round_trip_and_bad_ones_are_refused() {
    for kind in KINDS {
        let text = match kind.action {
            Action::Delay => format!("{},delay=200ms,count=3", kind.name),
            Action::Fail => format!("{},code=0x803b0013,delay=90ms,probability=0.5", kind.name),
            Action::Incident(Incident::Restart) => format!("{},mode=crash,delay=120000ms", kind.name),
            _ => kind.name.to_owned(),
        };
        let fault: Fault = text.parse().unwrap();
        assert_eq!(fault.to_string(), text);
        assert_eq!(serde_json::from_value::<Fault>(serde_json::to_value(&fault).unwrap()).unwrap(), fault);
        assert!(!kind.what.is_empty() && !kind.evidence.is_empty());
        for call in kind.calls.split(' ').filter(|call| !call.is_empty()) {
            assert!(Function::all().any(|function| matches(call, &function.to_string())), "{call}");
        }
        assert_eq!(KINDS.iter().filter(|other| other.name == kind.name).count(), 1, "{}", kind.name);
    }
    for bad in [
        "flood",
        "slow-call",
        "fail-call",
        "slow-call=5",
        "wipe=now",
        "hang,code=0x5",
        "svc-down,call=HcnFly",
        "svc-down,probability=2",
        "ep-delete-hang,delay=1s",
        "ep-port-blocked,delay=1s",
        "net-blip-loses-ip=1s",
        "hns-restart=slowly",
        "svc-down,color=red",
        "svc-down,count",
        "fail-call=0x0",
        "fail-call=3",
        "fail-call=0x10000",
        "ep-dup-ip=3",
        "port-exists=2",
        "ep-stuck=1",
        "wipe=3",
        "lost-object=5",
        "svc-deadlock=10s",
        "net-blip=1800",
        "net-create-slow=0x5",
        "hns-restart=5s",
        "svc-down,count=0",
        "svc-down,count=some",
        "hang,mode=crash",
        "",
    ] {
        assert!(bad.parse::<Fault>().is_err(), "{bad}");
    }
    assert_eq!("fail-call=HCN_E_PORT_ALREADY_EXISTS".parse::<Fault>().unwrap().hresult, Some(HResult::PORT_ALREADY_EXISTS));
}

#[test]
fn start_faults_do_not_hit_calls() {
    let mut faults = Faults::new(0);
    faults.add("network-lost-on-reboot,count=1".parse().unwrap()).unwrap();
    faults.add("restart-drops-dsr".parse().unwrap()).unwrap();
    assert_eq!(faults.effects_on(&called(Function::HnsCall, None)), Effects::default());
    assert_eq!(faults.losses(), [Loss::Networks, Loss::DirectServerReturn]);
    assert_eq!(faults.losses(), [Loss::DirectServerReturn]);
}

#[test]
fn fault_value_is_refused_with_its_usage() {
    let refused = |text: &str| text.parse::<Fault>().unwrap_err();
    for (text, words) in [
        ("ep-dup-ip=3", vec!["\"3\" is no result code", "ep-dup-ip[=CODE]", "without it 0x80071392"]),
        ("wipe=3", vec!["wipe takes no VALUE", "write wipe"]),
        ("slow-call=fast", vec!["slow-call=DURATION", "200ms"]),
        ("net-blip=soon", vec!["net-blip[=DURATION]", "without it 1800ms"]),
        ("hns-restart=slowly", vec!["\"slowly\"", "hns-restart[=MODE]", "clean, crash or reboot"]),
        ("fail-call", vec!["needs a code", "fail-call=CODE"]),
    ] {
        let error = refused(text);
        words.into_iter().for_each(|word| assert!(error.contains(word), "{word:?} is not in {error:?}"));
    }
    let decimal: Fault = "fail-call=2151350291".parse().unwrap();
    assert_eq!(decimal.hresult, Some(HResult::PORT_ALREADY_EXISTS), "as error records have it");
}

#[test]
fn incidents_hit_once_and_lasting_states_until_cleared() {
    let mut faults = Faults::new(1);
    let any = called(Function::HnsCall, None);
    for (text, expected) in
        [("wipe", 1), ("hns-restart=crash", 1), ("wipe,count=3", 3), ("wipe,count=all", 9), ("svc-down", 9), ("svc-down,count=2", 2)]
    {
        faults.clear();
        faults.add(text.parse().unwrap()).unwrap();
        let hits = (0..9).filter(|_| !faults.effects_on(&any).names.is_empty()).count();
        assert_eq!(hits, expected, "{text}");
        assert_eq!(faults.list().is_empty(), expected < 9, "{text}");
    }
    // Whatever happens to the service or an object beside the call happens once.
    for kind in KINDS
        .iter()
        .filter(|kind| matches!(kind.action, Action::Incident(_) | Action::Outage(_)) && kind.action != Action::Outage(Outage::WithSwitch))
    {
        assert_eq!(kind.hits, Hits::Once, "{}", kind.name);
    }
}
