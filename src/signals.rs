//! ctrl-C: the first signal ends the run, the second signal ends the process.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;

use crate::stop::{StopReason, StopSignal};

const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
/// Shells report a process killed by a signal as this number plus the signal's number.
const KILLED: i32 = 128;

/// Makes the first signal request `stop` instead of killing the process; later signals end the process.
pub(crate) fn listen(stop: &StopSignal) -> io::Result<()> {
    let armed = Arc::new(AtomicBool::new(false));
    for signal in SIGNALS {
        // The handler itself ends the process, so a stuck process ends, too.
        flag::register_conditional_shutdown(signal, KILLED + signal, Arc::clone(&armed))?;
    }
    let mut signals = Signals::new(SIGNALS)?;
    let stop = stop.clone();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                armed.store(true, Ordering::SeqCst);
                stop.request(StopReason::Signal);
            }
        })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_signal_asks_for_the_end() {
        let stop = StopSignal::default();
        listen(&stop).expect("listen");
        signal_hook::low_level::raise(SIGHUP).expect("raise");
        assert_eq!(stop.wait(Duration::from_secs(60)), Some(StopReason::Signal));
    }
}
