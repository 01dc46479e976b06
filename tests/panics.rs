//! The panic hook, in a process of its own, because the hook sees the panics of all threads.

use events::{GuestSummary, Summary};
use hyprobe::panics::{self, Since};
use manifest::GuestEnd;

#[test]
fn panic_of_any_thread_is_noted_with_its_place_and_fails_the_run() {
    panics::note_all();
    let mut summary = Summary {
        accel: "kvm".to_owned(),
        guest: GuestSummary {
            end: GuestEnd::Poweroff,
            detail: None,
            crash: None,
            vcpus: Vec::new(),
            log: None,
        },
        ran_ns: 0,
        probes: Vec::new(),
        dropped: 0,
        restarts: Vec::new(),
    };
    let since = Since::now();
    since.judge(&mut summary);
    assert_eq!(
        (since.first(), summary.guest.end),
        (None, GuestEnd::Poweroff)
    );
    let thread = std::thread::Builder::new().name("writer".to_owned());
    let thread = thread.spawn(|| panic!("no\nroom")).expect("a thread");
    thread.join().expect_err("it panics");
    let text = since.first().expect("a panic");
    assert!(
        text.contains("`writer` panicked at tests/panics.rs:"),
        "{text}"
    );
    assert!(text.contains(": no\\nroom; "), "{text}");
    assert_eq!(Since::now().first(), None);
    since.judge(&mut summary);
    assert_eq!(summary.guest.end, GuestEnd::Failed);
    assert_eq!(summary.guest.detail, Some(text));
}
