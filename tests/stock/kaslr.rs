//! Kernels that unpack themselves and choose their address.

use events::{Hex, ProbeState};
use manifest::{GuestEnd, Word as _};
use probes::resolve;

use crate::boot::{Boot, Stock, probe};

/// Alignment of a 64-bit kernel.
const ALIGNMENT_BYTES: u64 = 2 << 20;

/// Boots `image` as a bzImage and returns the distance from the linked address.
fn check(image: &str) -> u64 {
    const PROBES: [&str; 3] = [
        "kprobe:do_sys_openat2",
        "kprobe:ksys_read",
        "kprobe:__x64_sys_getpid",
    ];
    let stock = Stock::fetch(image);
    let mut boot = Boot::new(&stock, "opens=30 reads=20 getpids=10")
        .cpus(2)
        .option("--boot", manifest::Boot::BzImage.word());
    for probe in PROBES {
        boot = boot.probe(probe);
    }
    let ran = boot.run();
    assert_eq!(ran.code, Some(0), "{}", ran.report());
    ran.assert_well();
    let (summary, counts) = (ran.summary(), ran.counts());
    assert_eq!(summary.guest.end, GuestEnd::Poweroff);
    let mut slides = Vec::new();
    for (name, made) in PROBES
        .into_iter()
        .zip([counts.openat, counts.read, counts.getpid])
    {
        let probe = probe(&summary, name);
        assert_eq!(
            (probe.hits, probe.state),
            (made, ProbeState::Armed),
            "{image}: {name}"
        );
        let spec = name.parse().expect("a probe");
        let resolved = resolve(&stock.kernel, &spec, 0).expect("it exists");
        let linked = resolved[0].place.as_ref().expect("it can be probed").ip;
        let Some(Hex(ip)) = probe.ip else {
            panic!("{name} is armed nowhere");
        };
        slides.push(ip.wrapping_sub(linked.0));
    }
    assert!(
        slides.iter().all(|slide| *slide == slides[0]),
        "{slides:x?}"
    );
    assert_eq!(slides[0] % ALIGNMENT_BYTES, 0);
    slides[0]
}

/// By chance, a kernel chooses the linked address once in some hundreds of boots. Two kernels do not choose so at the same time.
#[test]
fn kernels_that_move_are_followed() {
    let slides = std::thread::scope(|scope| {
        let boots = ["debian-6.1", "debian-sid"].map(|image| scope.spawn(move || check(image)));
        boots.map(|boot| boot.join().expect("it is followed"))
    });
    assert_ne!(slides, [0, 0]);
}
