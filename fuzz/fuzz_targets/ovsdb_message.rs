//! What a database server sends: any bytes as its stream, from the first answer on.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ovsdb::session::{Memory, Output, Session, Wants};
use ovsdb::wire::{Framer, Message};
use ovsdb::{AtomType, ColumnUse, Operation, TableUse, Transaction};

const USES: &[TableUse] = &[TableUse {
    name: "T",
    required: true,
    columns: &[
        ColumnUse::required("name", AtomType::String),
        ColumnUse::texts("ids"),
        ColumnUse::optional("refs", AtomType::Uuid),
        ColumnUse::optional("number", AtomType::Integer),
    ],
}];
const LIMIT: usize = 1 << 16;

fuzz_target!(|data: &[u8]| {
    let wants = Wants { database: "DB".into(), uses: USES, lock: Some("lock".into()), leader_only: data.first() == Some(&b' ') };
    let mut session = Session::new(wants, Memory::default());
    session.start();
    let mut framer = Framer::new(LIMIT);
    let mut sent = false;
    for part in data.chunks(97) {
        framer.push(part);
        while let Ok(Some(message)) = framer.next_message() {
            // What was read can be written, and read again.
            assert_eq!(Message::parse(&message.to_bytes()).as_ref(), Ok(&message));
            if session.receive(message).iter().any(|output| matches!(output, Output::Close(_))) {
                return;
            }
        }
        if session.is_ready() && !sent {
            sent = true;
            session.transact(1, Transaction { operations: vec![Operation::Comment("fuzz".into())] });
        }
    }
    // Every row has a value for every column that the server has.
    for (_, row) in session.replica().table("T").rows() {
        assert!(row.columns().all(|(name, _)| session.support().has("T", name)));
    }
});
