// SPDX-License-Identifier: MPL-2.0

//! Legacy handles of memory from cuMemAlloc, with the documented rules:
//!
//! - A handle is for the whole allocation, also if it was requested for a pointer into it.
//! - Only another process can open it, while the exporter is alive and has not freed the memory.
//! - Handles of one device of one process may be opened by one context of each device of this process. Opening a handle again in
//!   the same context is counted and returns the same pointer (with the quirk `already-mapped`: an error, as with older drivers).
//! - Imported memory, VMM memory and stream-ordered memory cannot be exported.
//!
//! The driver documents the error for few of these cases. Callers must not depend on it.

use std::collections::HashMap;
use std::ffi::{c_char, c_uint};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::context::{self, Context};
use crate::entry::{Outcome, put};
use crate::files::{MemoryFile, Process};
use crate::settings::settings;
use crate::space::{self, Backing, Kind};
use crate::{device, memory};

/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag. It is mandatory.
const LAZY_PEER_ACCESS: c_uint = 1;

/// The 64 bytes of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Token {
    /// Distinguishes memory, events, and bytes that are no handle.
    pub(crate) kind: [u8; 8],
    pub(crate) exporter: Process,
    /// The name of the file.
    pub(crate) id: u64,
    /// The device's ordinal in the machine.
    pub(crate) device: u32,
}

impl Token {
    pub(crate) fn encode(&self) -> [c_char; 64] {
        let mut bytes = [0_u8; 64];
        bytes[..8].copy_from_slice(&self.kind);
        bytes[8..24].copy_from_slice(&self.exporter.to_bytes());
        bytes[24..32].copy_from_slice(&self.id.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.device.to_le_bytes());
        bytes.map(|byte| c_char::from_ne_bytes([byte]))
    }

    pub(crate) fn decode(handle: [c_char; 64], kind: [u8; 8]) -> Outcome<Self> {
        // c_char is signed on some architectures and unsigned on others.
        let bytes = handle.map(|byte| byte.to_ne_bytes()[0]);
        if bytes[..8] != kind || bytes[36..].iter().any(|byte| *byte != 0) {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(Self {
            kind,
            exporter: Process::from_bytes(bytes[8..24].try_into().expect("16 bytes")),
            id: u64::from_le_bytes(bytes[24..32].try_into().expect("8 bytes")),
            device: u32::from_le_bytes(bytes[32..36].try_into().expect("4 bytes")),
        })
    }

    /// Fails for this process's own handles, and for handles of dead processes.
    pub(crate) fn check_exporter(&self) -> Outcome {
        if self.exporter == settings().process {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        if !self.exporter.is_alive() {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        Ok(())
    }
}

pub(crate) const MEMORY: [u8; 8] = *b"xmemsimM";

/// An opened handle.
#[derive(Debug)]
struct Import {
    address: u64,
    context: u64,
    device: u32,
    count: usize,
}

static IMPORTS: Mutex<Option<HashMap<Token, Import>>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut HashMap<Token, Import>) -> T) -> T {
    use_it(
        IMPORTS
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default(),
    )
}

/// Removes the imports of a destroyed context.
pub(crate) fn forget(context: u64) {
    with(|imports| imports.retain(|_, import| import.context != context));
}

fn open(token: Token, context: &Context) -> Outcome<u64> {
    token.check_exporter()?;
    with(|imports| {
        if let Some(import) = imports.get_mut(&token)
            && import.context == context.handle
        {
            if settings().has("already-mapped") {
                return Err(CUresult::CUDA_ERROR_ALREADY_MAPPED);
            }
            import.count += 1;
            return Ok(import.address);
        }
        let taken = |(known, import): (&Token, &Import)| {
            let same = known.exporter == token.exporter && known.device == token.device;
            same && import.device == context.device && import.context != context.handle
        };
        if imports.iter().any(taken) {
            return Err(CUresult::CUDA_ERROR_ALREADY_MAPPED);
        }
        if !device::reaches(context.device, token.device) {
            return Err(CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
        }
        let file = MemoryFile::open(&settings().dir, &format!("{:016x}", token.id));
        let file = Arc::new(file.map_err(|_| CUresult::CUDA_ERROR_INVALID_HANDLE)?);
        let address = memory::place(context, Kind::Imported, file)?;
        let import = Import {
            address,
            context: context.handle,
            device: context.device,
            count: 1,
        };
        imports.insert(token, import);
        Ok(address)
    })
}

fn close(address: u64) -> Outcome {
    let context = context::current()?;
    with(|imports| {
        let found = imports
            .iter_mut()
            .find(|(_, import)| import.address == address);
        let (token, import) = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        import.count -= 1;
        if import.count > 0 {
            return Ok(());
        }
        let token = *token;
        imports.remove(&token);
        // Queued work may still use the memory.
        let _ = context.work.wait_for_all();
        space::with(|space| space.remove(&address));
        Ok(())
    })
}

pub(crate) fn open_memory(to: *mut CUdeviceptr, handle: &CUipcMemHandle, flags: c_uint) -> Outcome {
    settings().unless("no-legacy-ipc")?;
    let context = context::current()?;
    if flags != LAZY_PEER_ACCESS {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    put(to, open(Token::decode(handle.reserved, MEMORY)?, &context)?)
}

api! {
    fn cuIpcGetMemHandle(pHandle: *mut CUipcMemHandle, dptr: CUdeviceptr) {
        settings().unless("no-legacy-ipc")?;
        context::current()?;
        let found = space::with(|space| {
            let (_, block) = space::find(space, dptr).filter(|(_, block)| block.kind == Kind::Own)?;
            let Backing::File { file, .. } = &*block.backing else { return None };
            Some((file.id()?, block.device))
        });
        let (id, device) = found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let token = Token { kind: MEMORY, exporter: settings().process, id, device };
        put(pHandle, CUipcMemHandle { reserved: token.encode() })
    }

    fn cuIpcOpenMemHandle_v2(pdptr: *mut CUdeviceptr, handle: CUipcMemHandle, Flags: c_uint) {
        open_memory(pdptr, &handle, Flags)
    }

    fn cuIpcCloseMemHandle(dptr: CUdeviceptr) {
        settings().unless("no-legacy-ipc")?;
        close(dptr)
    }
}
