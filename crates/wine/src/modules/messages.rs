//! Windows' wording of the messages of errors, in the place of Wine's: programs print them, and scripts look for them.
//!
//! They are in a resource of `kernelbase.dll`, a table for each language. The English one with Windows' words is longer than Wine's. It takes
//! the room of the longest table of another language, which the containers' language never selects, and that language gets Wine's English one.

/// Messages that Wine words otherwise, by the numbers of errors (Microsoft: System Error Codes).
const WORDS: &[(u32, &str)] = &[
    (1, "Incorrect function."),
    (2, "The system cannot find the file specified."),
    (3, "The system cannot find the path specified."),
    (5, "Access is denied."),
    (6, "The handle is invalid."),
    (15, "The system cannot find the drive specified."),
    (18, "There are no more files."),
    (19, "The media is write protected."),
    (21, "The device is not ready."),
    (32, "The process cannot access the file because it is being used by another process."),
    (38, "Reached the end of the file."),
    (50, "The request is not supported."),
    (53, "The network path was not found."),
    (80, "The file exists."),
    (87, "The parameter is incorrect."),
    (109, "The pipe has been ended."),
    (112, "There is not enough space on the disk."),
    (122, "The data area passed to a system call is too small."),
    (123, "The filename, directory name, or volume label syntax is incorrect."),
    (126, "The specified module could not be found."),
    (127, "The specified procedure could not be found."),
    (145, "The directory is not empty."),
    (183, "Cannot create a file when that file already exists."),
    (193, "%1 is not a valid Win32 application."),
    (206, "The filename or extension is too long."),
    (267, "The directory name is invalid."),
];

/// `RT_MESSAGETABLE`
const MESSAGES: u32 = 11;
/// The only table's name.
const NAME: u32 = 1;
/// English of the United States, and of nowhere.
const ENGLISH: [u32; 2] = [0x409, 0x9];

/// A table of one language: where the module says where it is, and that place.
#[derive(Clone, Copy, Debug)]
struct Table {
    language: u32,
    /// File offset of its data entry: address and size.
    entry: usize,
    address: u32,
    /// File offset.
    at: usize,
    size: usize,
}

/// Messages of a range of numbers, each with its header.
struct Block {
    low: u32,
    high: u32,
    messages: Vec<Vec<u8>>,
}

/// The module with Windows' words; none when it is built otherwise.
pub(super) fn reworded(mut module: Vec<u8>) -> Option<Vec<u8>> {
    let tables = tables(&module)?;
    let mut spare: Vec<Table> = tables.iter().copied().filter(|table| !ENGLISH.contains(&table.language)).collect();
    spare.sort_by_key(|table| table.size);
    for language in ENGLISH {
        let table = *tables.iter().find(|table| table.language == language)?;
        let mut blocks = read(module.get(table.at..table.at + table.size)?)?;
        reword(&mut blocks);
        let content = write(&blocks)?;
        let room = spare.pop().filter(|room| content.len() <= room.size)?;
        module.get_mut(room.at..room.at + content.len())?.copy_from_slice(&content);
        for (entry, address, size) in [(table.entry, room.address, content.len()), (room.entry, table.address, table.size)] {
            module.get_mut(entry..entry + 4)?.copy_from_slice(&address.to_le_bytes());
            module.get_mut(entry + 4..entry + 8)?.copy_from_slice(&u32::try_from(size).ok()?.to_le_bytes());
        }
    }
    Some(module)
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn index(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(long(bytes, at)?).ok()
}

/// The tables of messages of a PE32+ file, one a language.
fn tables(module: &[u8]) -> Option<Vec<Table>> {
    let header = index(module, 0x3c)?;
    let (sections, optional) = (usize::from(word(module, header + 6)?), usize::from(word(module, header + 20)?));
    let first = header + 24 + optional;
    let offset = |address: usize| {
        (0..sections).find_map(|number| {
            let section = first + 40 * number;
            let (size, begin, raw) = (index(module, section + 8)?, index(module, section + 12)?, index(module, section + 20)?);
            (begin..begin + size).contains(&address).then(|| address - begin + raw)
        })
    };
    // The third data directory.
    let root = offset(index(module, header + 24 + 112 + 16)?)?;
    let below = |entries: Vec<(u32, usize)>, wanted: u32| entries.into_iter().find(|(name, _)| *name == wanted).map(|(_, at)| at);
    let names = below(directory(module, root, 0)?, MESSAGES)?;
    let languages = below(directory(module, root, names)?, NAME)?;
    let mut tables = Vec::new();
    for (language, entry) in directory(module, root, languages)? {
        let entry = root + entry;
        let address = long(module, entry)?;
        let at = offset(usize::try_from(address).ok()?)?;
        tables.push(Table { language, entry, address, at, size: index(module, entry + 4)? });
    }
    Some(tables)
}

/// Names and offsets of what is in a directory of resources; offsets count from the root, without the mark of directories.
fn directory(module: &[u8], root: usize, at: usize) -> Option<Vec<(u32, usize)>> {
    let here = root + at;
    let count = usize::from(word(module, here + 12)?) + usize::from(word(module, here + 14)?);
    (0..count).map(|number| Some((long(module, here + 16 + 8 * number)?, index(module, here + 20 + 8 * number)? & 0x7fff_ffff))).collect()
}

fn read(table: &[u8]) -> Option<Vec<Block>> {
    let mut blocks = Vec::new();
    for number in 0..index(table, 0)? {
        let here = 4 + 12 * number;
        let (low, high, mut at) = (long(table, here)?, long(table, here + 4)?, index(table, here + 8)?);
        let mut messages = Vec::new();
        for _ in low..=high {
            let length = usize::from(word(table, at)?);
            messages.push(table.get(at..at + length).filter(|message| message.len() >= 4)?.to_vec());
            at += length;
        }
        blocks.push(Block { low, high, messages });
    }
    Some(blocks)
}

fn reword(blocks: &mut [Block]) {
    for (number, text) in WORDS {
        let Some(block) = blocks.iter_mut().find(|block| (block.low..=block.high).contains(number)) else { continue };
        let Some(message) = usize::try_from(number - block.low).ok().and_then(|at| block.messages.get_mut(at)) else { continue };
        let mut content: Vec<u8> = text.encode_utf16().chain("\r\n\0".encode_utf16()).flat_map(u16::to_le_bytes).collect();
        content.resize(content.len().next_multiple_of(4), 0);
        let length = u16::try_from(content.len() + 4).unwrap_or(u16::MAX);
        *message = [length.to_le_bytes().as_slice(), &1_u16.to_le_bytes(), &content].concat();
    }
}

fn write(blocks: &[Block]) -> Option<Vec<u8>> {
    let mut table = u32::try_from(blocks.len()).ok()?.to_le_bytes().to_vec();
    let mut at = 4 + 12 * blocks.len();
    for block in blocks {
        for number in [block.low, block.high, u32::try_from(at).ok()?] {
            table.extend(number.to_le_bytes());
        }
        at += block.messages.iter().map(Vec::len).sum::<usize>();
    }
    table.extend(blocks.iter().flat_map(|block| block.messages.iter().flatten()));
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All messages of a language, with their numbers.
    fn messages(module: &[u8], language: u32) -> Vec<(u32, String)> {
        let tables = tables(module).unwrap();
        let table = tables.iter().find(|table| table.language == language).unwrap();
        let text = |message: &[u8]| {
            let units: Vec<u16> = message[4..].chunks(2).map(|unit| u16::from_le_bytes(unit.try_into().unwrap())).collect();
            String::from_utf16(&units).unwrap().trim_end_matches('\0').to_owned()
        };
        let blocks = read(&module[table.at..table.at + table.size]).unwrap();
        blocks.iter().flat_map(|block| (block.low..).zip(block.messages.iter().map(|message| text(message)))).collect()
    }

    #[test]
    fn errors_have_windows_words_and_all_others_are_as_they_were() {
        let module = std::fs::read("/usr/lib/x86_64-linux-gnu/wine/x86_64-windows/kernelbase.dll").expect("Debian's Wine (tools/setup)");
        let changed = reworded(module.clone()).unwrap();
        assert_eq!(changed.len(), module.len());
        for language in ENGLISH {
            let (before, after) = (messages(&module, language), messages(&changed, language));
            assert_eq!(before.len(), after.len());
            for ((number, old), (_, new)) in before.iter().zip(&after) {
                match WORDS.iter().find(|(known, _)| known == number) {
                    Some((_, text)) => assert_eq!(new, &format!("{text}\r\n"), "was {old:?}"),
                    None => assert_eq!(old, new, "{number}"),
                }
            }
        }
        assert!(messages(&module, 0x409).contains(&(5, "Access denied.\n".to_owned())), "what this is for");
        assert_eq!(messages(&changed, 0x7), messages(&module, 0x7), "German");
    }

    #[test]
    fn other_files_are_left_alone() {
        for file in [&b""[..], b"MZ", &[0; 300], &[0xff; 300]] {
            assert_eq!(reworded(file.to_vec()), None);
        }
        assert!(read(&[1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 16, 0, 0, 0, 3, 0, 1]).is_none(), "a message shorter than its header");
    }
}
