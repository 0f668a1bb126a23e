// SPDX-License-Identifier: MPL-2.0

//! Initialisation and properties of devices. `CUDA_VISIBLE_DEVICES` maps ordinals of this process to ordinals of the machine. The
//! UUID belongs to the machine's device.

use std::ffi::{c_char, c_int, c_uint};
use std::hash::{DefaultHasher, Hash, Hasher};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUresult, CUuuid};

use crate::entry::{Outcome, put, text};
use crate::files;
use crate::settings::{self, settings};

const VERSION: c_int = 12000;

/// The machine's ordinal of a device of this process.
pub(crate) fn on_machine(device: CUdevice) -> Outcome<u32> {
    let ordinal = usize::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    settings()
        .devices
        .get(ordinal)
        .copied()
        .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

/// This process's ordinal of a device of the machine. `None` if the device is not visible.
pub(crate) fn in_process(machine: u32) -> Option<CUdevice> {
    settings()
        .devices
        .iter()
        .position(|one| *one == machine)
        .map(|ordinal| ordinal as CUdevice)
}

/// Whether code on the first device can access memory of the second.
pub(crate) fn reaches(device: u32, memory: u32) -> bool {
    device == memory || settings().has("peers")
}

fn uuid(machine: u32) -> CUuuid {
    let mut bytes = [0; 16];
    for (half, part) in bytes.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (&settings().dir, machine, half).hash(&mut hasher);
        part.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    CUuuid {
        bytes: bytes.map(|byte| c_char::from_ne_bytes([byte])),
    }
}

fn pci_bus_id(machine: u32) -> String {
    format!("0000:{:02X}:00.0", machine + 1)
}

/// Copies a string with its terminating 0 into the caller's buffer. Truncates it if the buffer is too short.
fn put_text(to: *mut c_char, room: c_int, text: &str) -> Outcome {
    let room = usize::try_from(room).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let length = text.len().min(room - 1);
    // SAFETY: the caller promises that the buffer has this size.
    unsafe {
        to.cast::<u8>()
            .copy_from_nonoverlapping(text.as_ptr(), length);
        to.add(length).write(0);
    }
    Ok(())
}

fn attribute(attribute: CUdevice_attribute, machine: u32) -> c_int {
    use CUdevice_attribute as Attribute;
    let unless = |quirk: &str| c_int::from(!settings().has(quirk));
    match attribute {
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => 1024,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X => c_int::MAX,
        Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y
        | Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => 65535,
        Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 1,
        Attribute::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT => 512,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 7,
        Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => machine as c_int + 1,
        Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT
        | Attribute::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP => 1,
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR => {
            unless("no-stream-mem-ops")
        }
        Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM => {
            c_int::from(settings().has("same-host-pointer"))
        }
        Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED => unless("no-host-register"),
        Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED => {
            unless("no-read-only-register")
        }
        Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED => unless("no-vmm"),
        Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED => {
            c_int::from(!settings().has("no-vmm") && !settings().has("no-posix-fd"))
        }
        Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => unless("no-pools"),
        Attribute::CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED => unless("no-ipc-events"),
        // Attributes that the tests do not use are not supported.
        _ => 0,
    }
}

api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        settings::initialize()
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        put(version, VERSION)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        put(count, settings().devices.len() as c_int)
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        on_machine(ordinal)?;
        put(device, ordinal)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) {
        on_machine(dev)?;
        put_text(name, len, crate::DEVICE_NAME)
    }

    fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) {
        put(uuid, self::uuid(on_machine(dev)?))
    }

    fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, dev: CUdevice) {
        put(uuid, self::uuid(on_machine(dev)?))
    }

    fn cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) {
        put(pi, attribute(attrib, on_machine(dev)?))
    }

    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, dev: CUdevice) {
        on_machine(dev)?;
        put(major, 7)?;
        put(minor, 0)
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) {
        on_machine(dev)?;
        put(bytes, settings().memory as usize)
    }

    fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, dev: CUdevice) {
        put_text(pciBusId, len, &pci_bus_id(on_machine(dev)?))
    }

    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice, pciBusId: *const c_char) {
        let wanted = text(pciBusId)?;
        let found = settings().devices.iter().position(|machine| pci_bus_id(*machine).eq_ignore_ascii_case(&wanted));
        put(dev, found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)? as CUdevice)
    }

    fn cuDeviceCanAccessPeer(canAccessPeer: *mut c_int, dev: CUdevice, peerDev: CUdevice) {
        let (device, peer) = (on_machine(dev)?, on_machine(peerDev)?);
        put(canAccessPeer, c_int::from(device != peer && reaches(device, peer)))
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let context = crate::context::current()?;
        let all = settings().memory;
        let used = files::used_memory(&settings().dir, context.device);
        put(free, all.saturating_sub(used) as usize)?;
        put(total, all as usize)
    }
}
