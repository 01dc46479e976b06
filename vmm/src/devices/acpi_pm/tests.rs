use super::*;
use crate::devices::recording::Recorder;

#[test]
fn only_s5_powers_off() {
    let sink = Arc::new(Recorder::new());
    let device = AcpiPm::new(sink.clone());
    // Sleep type without enable, S3, the status register, the wrong reset value.
    for (offset, value) in [(0, 5 << 2), (0, 3 << 2 | 1 << 5), (1, 0x80), (2, 0), (3, 1)] {
        device.write(offset, value);
    }
    assert_eq!(sink.take(), []);
    device.write(0, 5 << 2 | 1 << 5);
    assert_eq!(sink.take(), [Shutdown::PowerOff]);
    device.write(2, 1);
    assert_eq!(sink.take(), [Shutdown::Reset]);
}

#[test]
fn nothing_is_pending() {
    let device = AcpiPm::new(Arc::new(Recorder::new()));
    assert_eq!(
        (0..4).map(|offset| device.read(offset)).collect::<Vec<_>>(),
        [0; 4]
    );
}
