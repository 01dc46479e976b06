use introspect::modules::synthetic::{COMING, FORMS, Form, Guest, LIVE, Shape};
use introspect::{Btf, read_virt};

use super::*;
use crate::{KernelMemory, NotReadable};

struct Memory<'g>(&'g Guest);

impl KernelMemory for Memory<'_> {
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), NotReadable> {
        let len = buf.len();
        let read = read_virt(&self.0.memory, &Guest::paging(), at, buf);
        read.map_err(|_| NotReadable { at, len })
    }
}

fn read_with(guest: &Guest, types: Option<&Btf>) -> Result<Vec<ListedModule>, ModuleListError> {
    let memory = Memory(guest);
    let view = KernelView::new(&memory, &guest.kernel, types, 0);
    ModuleList::new(&view)?.read(&view)
}

fn read(guest: &Guest) -> Result<Vec<ListedModule>, ModuleListError> {
    read_with(guest, Some(&guest.btf()))
}

#[test]
fn modules_are_listed_with_size_references_and_users() {
    for form in FORMS {
        let mut guest = Guest::new(form);
        let used = guest.module(LIVE);
        let user = guest.module(COMING);
        guest.use_module(used, user);
        guest.make_permanent(user);
        let modules = read(&guest).expect("a list");
        let [first, second] = &modules[..] else {
            panic!("{modules:?}")
        };
        assert_eq!((&*first.name, first.state), ("steady", ModuleState::Live));
        assert_eq!(first.size_bytes, 0x2000, "{form:?}");
        assert_eq!(first.references, Some(1));
        assert_eq!(
            (&first.users[..], first.permanent),
            (&["fresh".to_owned()][..], false)
        );
        assert_eq!(
            (&*second.name, second.state),
            ("fresh", ModuleState::Coming)
        );
        // The init parts count while they exist.
        assert_eq!(second.size_bytes, 0x3000, "{form:?}");
        assert_eq!((second.references, second.permanent), (Some(0), true));
        assert!(second.users.is_empty() && second.address.is_some());
    }
}

#[test]
fn unformed_modules_are_left_out() {
    let mut guest = Guest::new(Form::Memory);
    let unformed = Shape { state: 3, ..LIVE };
    guest.module(unformed);
    assert_eq!(read(&guest), Ok(Vec::new()));
}

#[test]
fn broken_lists_are_refused() {
    let mut guest = Guest::new(Form::Layouts);
    let module = guest.module(LIVE);
    assert_eq!(read_with(&guest, None), Err(ModuleListError::NoTypes));
    let link = Guest::link(module);
    guest.put(link, &link.0.to_le_bytes());
    assert_eq!(read(&guest), Err(ModuleListError::Endless));
    guest.put(link, &[0; 8]);
    assert!(matches!(
        read(&guest),
        Err(ModuleListError::Unreadable { at: Gva(0), .. })
    ));
    guest.put(link, &guest.head.0.to_le_bytes().clone());
    // The users' list does not return to its head.
    guest.use_module(module, module);
    let users = read(&guest).expect("a list")[0].users.clone();
    assert_eq!(users, ["steady"]);
    guest.kernel = introspect::SymbolTable::default();
    assert_eq!(read(&guest), Err(ModuleListError::NoList));
}
