use std::sync::Mutex;

use super::*;

/// Remembers writes; a read returns the offset.
#[derive(Default)]
struct Echo(Mutex<Vec<(u16, u8)>>);

impl PortDevice for Echo {
    fn read(&self, offset: u16) -> u8 {
        offset.to_le_bytes()[0]
    }

    fn write(&self, offset: u16, value: u8) {
        self.0.lock().unwrap().push((offset, value));
    }
}

impl MmioDevice for Echo {
    fn read(&self, offset: u64, data: &mut [u8]) {
        data[0] = offset.to_le_bytes()[0];
    }

    fn write(&self, offset: u64, data: &[u8]) {
        self.0
            .lock()
            .unwrap()
            .push((u16::try_from(offset).unwrap(), data[0]));
    }
}

fn ports() -> (PortBus, Arc<Echo>) {
    let device = Arc::new(Echo::default());
    let mut bus = PortBus::new();
    bus.insert(0x10, 4, device.clone()).unwrap();
    (bus, device)
}

#[test]
fn port_without_a_device_reads_ones() {
    let (bus, device) = ports();
    let mut data = [0; 4];
    bus.read(0x20, 4, &mut data);
    assert_eq!(data, [0xff; 4]);
    bus.write(0x20, 4, &data);
    assert!(device.0.lock().unwrap().is_empty());
    assert!(!MmioBus::new().read(0x20, &mut data));
    assert!(!MmioBus::new().write(0x20, &data));
}

#[test]
fn wide_accesses_are_split_into_bytes() {
    let (bus, device) = ports();
    let mut data = [0; 4];
    bus.read(0x12, 4, &mut data);
    assert_eq!(data, [2, 3, 0xff, 0xff]);
    bus.write(0x11, 2, &[5, 6]);
    assert_eq!(*device.0.lock().unwrap(), [(1, 5), (2, 6)]);
}

#[test]
fn repetitions_stay_at_their_port() {
    let (bus, device) = ports();
    bus.write(0x11, 1, b"abc");
    assert_eq!(*device.0.lock().unwrap(), [(1, b'a'), (1, b'b'), (1, b'c')]);
    let mut data = [0; 4];
    bus.read(0x11, 2, &mut data);
    assert_eq!(data, [1, 2, 1, 2]);
}

#[test]
fn port_space_wraps_and_odd_sizes_are_survived() {
    let (bus, _) = ports();
    let mut data = [0; 7];
    bus.read(0xffff, 4, &mut data);
    assert_eq!(data, [0xff; 7]);
    bus.read(0x10, 0, &mut data);
    assert_eq!(data, [0; 7]);
    bus.read(0x10, usize::MAX, &mut data);
    assert_eq!(data, [0, 1, 2, 3, 0xff, 0xff, 0xff]);
}

#[test]
fn devices_may_not_overlap() {
    let (mut bus, device) = ports();
    let overlap = |start| Err(BusError::Overlap { start, other: 0x10 });
    assert_eq!(bus.insert(0x13, 1, device.clone()), overlap(0x13));
    assert_eq!(bus.insert(0x0e, 3, device.clone()), overlap(0x0e));
    assert_eq!(bus.insert(0x00, 0x100, device.clone()), overlap(0));
    assert_eq!(bus.insert(0x0e, 2, device.clone()), Ok(()));
    assert_eq!(bus.insert(0x14, 1, device.clone()), Ok(()));
    assert_eq!(
        bus.insert(0, 0, device.clone()),
        Err(BusError::Range { start: 0, len: 0 })
    );
    let beyond = Err(BusError::Range {
        start: 0xffff,
        len: 2,
    });
    assert_eq!(bus.insert(0xffff, 2, device), beyond);
}

#[test]
fn mmio_goes_to_its_device() {
    let device = Arc::new(Echo::default());
    let mut bus = MmioBus::new();
    bus.insert(0xfec0_0000, 0x20, device.clone()).unwrap();
    let mut data = [0; 2];
    assert!(bus.read(0xfec0_0010, &mut data));
    assert_eq!(data, [0x10, 0xff]);
    assert!(bus.write(0xfec0_001f, &[9]));
    assert_eq!(*device.0.lock().unwrap(), [(0x1f, 9)]);
    assert!(!bus.write(0xfec0_0020, &[9]));
}
