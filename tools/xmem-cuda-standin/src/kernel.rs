// SPDX-License-Identifier: MPL-2.0

//! Modules and kernels. PTX is not executed. A module has the entry points that are named in its text, and those with a native
//! implementation can be launched. [`crate::PTX`] has all of them.

use std::collections::{HashMap, HashSet};
use std::ffi::{c_char, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{CUfunction, CUjit_option, CUmodule, CUresult, CUstream};

use crate::context;
use crate::entry::{Outcome, get, put, text};
use crate::settings::settings;
use crate::space::{self, Access};
use crate::stream;
use crate::work::{self, Random};

#[derive(Debug, Clone, Copy)]
enum Kernel {
    Fill,
    Check,
    Sum,
    EndLease,
    Trap,
}

const KNOWN: [(&str, Kernel); 5] = [
    ("xmem_fill", Kernel::Fill),
    ("xmem_check", Kernel::Check),
    ("xmem_sum", Kernel::Sum),
    ("xmem_end_lease", Kernel::EndLease),
    ("xmem_trap", Kernel::Trap),
];

/// A kernel with its arguments, which are read at the launch.
#[derive(Debug, Clone, Copy)]
enum Launch {
    Fill {
        pointer: u64,
        length: u64,
        byte: u8,
        pause: u32,
    },
    Check {
        pointer: u64,
        length: u64,
        byte: u8,
        result: u64,
    },
    Sum {
        pointer: u64,
        length: u64,
        result: u64,
    },
    EndLease {
        word: u64,
    },
    Trap,
}

#[derive(Debug, Default)]
struct Modules {
    modules: HashMap<u64, HashSet<String>>,
    functions: HashMap<u64, (u64, Kernel)>,
}

static MODULES: Mutex<Option<Modules>> = Mutex::new(None);

fn with<T>(use_it: impl FnOnce(&mut Modules) -> T) -> T {
    use_it(
        MODULES
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_default(),
    )
}

fn handle() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5600_0000);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// The entry points of a PTX text.
fn entries(ptx: &str) -> Outcome<HashSet<String>> {
    if !ptx.contains(".version") || !ptx.contains(".target") {
        return Err(CUresult::CUDA_ERROR_INVALID_IMAGE);
    }
    let is_name = |one: char| one.is_ascii_alphanumeric() || matches!(one, '_' | '$');
    let names = ptx
        .split(".entry")
        .skip(1)
        .map(|rest| rest.trim_start().chars().take_while(|one| is_name(*one)));
    Ok(names.map(Iterator::collect).collect())
}

fn load(image: *const c_void) -> Outcome<u64> {
    context::current()?;
    let entries = entries(&text(image.cast())?)?;
    let module = handle();
    with(|modules| modules.modules.insert(module, entries));
    Ok(module)
}

impl Kernel {
    fn with_arguments(self, parameters: *mut *mut c_void) -> Outcome<Launch> {
        fn argument<T: Copy>(parameters: *mut *mut c_void, index: usize) -> Outcome<T> {
            get(get(parameters.wrapping_add(index))?.cast::<T>())
        }
        let number = |index| argument::<u64>(parameters, index);
        let small = |index| argument::<u32>(parameters, index);
        Ok(match self {
            Self::Fill => Launch::Fill {
                pointer: number(0)?,
                length: number(1)?,
                byte: small(2)? as u8,
                pause: small(3)?,
            },
            Self::Check => Launch::Check {
                pointer: number(0)?,
                length: number(1)?,
                byte: small(2)? as u8,
                result: number(3)?,
            },
            Self::Sum => Launch::Sum {
                pointer: number(0)?,
                length: number(1)?,
                result: number(2)?,
            },
            Self::EndLease => Launch::EndLease { word: number(0)? },
            Self::Trap => Launch::Trap,
        })
    }
}

impl Launch {
    fn run(self, device: u32) -> Outcome {
        static LAUNCHED: AtomicU64 = AtomicU64::new(0);
        if LAUNCHED.fetch_add(1, Ordering::Relaxed) + 1 == settings().fail_kernel {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        let bytes = |address: u64, length: u64, access| {
            space::device_bytes(address, length as usize, device, access)
        };
        match self {
            Self::Fill {
                pointer,
                length,
                byte,
                pause,
            } => {
                let to = bytes(pointer, length, Access::Write)?;
                let mut done = 0;
                while done < length {
                    let part = (length - done).min(64 << 10);
                    let half = (part / 2) as usize;
                    let start = to.start().wrapping_add(done as usize);
                    // SAFETY: inside the memory that was looked up above.
                    unsafe { start.write_bytes(byte, half) };
                    if done == 0 {
                        Random::new(pointer).delay();
                    }
                    // SAFETY: as above.
                    unsafe { start.add(half).write_bytes(byte, part as usize - half) };
                    done += part;
                    std::thread::sleep(Duration::from_micros(pause.into()));
                    work::check()?;
                }
                Ok(())
            }
            Self::Check {
                pointer,
                length,
                byte,
                result,
            } => {
                let (from, to) = (
                    bytes(pointer, length, Access::Read)?,
                    bytes(result, 4, Access::Write)?,
                );
                let wrong = (0..length as usize)
                    // SAFETY: inside the memory that was looked up above. Other processes may write it, as on a device.
                    .filter(|index| unsafe { from.start().add(*index).read_volatile() } != byte)
                    .count();
                aligned(result, 4)?;
                // SAFETY: four aligned bytes that were looked up above.
                let word = unsafe { &*to.start().cast::<AtomicU32>() };
                word.fetch_add(wrong as u32, Ordering::AcqRel);
                Ok(())
            }
            Self::Sum {
                pointer,
                length,
                result,
            } => {
                let (from, to) = (
                    bytes(pointer, length, Access::Read)?,
                    bytes(result, 8, Access::Write)?,
                );
                let sum = (0..length as usize)
                    // SAFETY: inside the memory that was looked up above. Other processes may write it, as on a device.
                    .map(|index| u64::from(unsafe { from.start().add(index).read_volatile() }))
                    .sum();
                aligned(result, 8)?;
                // SAFETY: eight aligned bytes that were looked up above.
                unsafe { &*to.start().cast::<AtomicU64>() }.store(sum, Ordering::Release);
                Ok(())
            }
            Self::EndLease { word } => {
                aligned(word, 4)?;
                let to = bytes(word, 4, Access::Write)?;
                fence(Ordering::SeqCst);
                // SAFETY: four aligned bytes that were looked up above.
                unsafe { &*to.start().cast::<AtomicU32>() }.store(0, Ordering::Release);
                Ok(())
            }
            Self::Trap => Err(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        }
    }
}

fn aligned(address: u64, to: u64) -> Outcome {
    if address.is_multiple_of(to) {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_MISALIGNED_ADDRESS)
    }
}

api! {
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) {
        put(module, load(image)? as CUmodule)
    }

    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, _numOptions: c_uint, _options: *mut CUjit_option,
        _optionValues: *mut *mut c_void,
    ) {
        put(module, load(image)? as CUmodule)
    }

    fn cuModuleUnload(hmod: CUmodule) {
        context::current()?;
        with(|modules| {
            modules.functions.retain(|_, (module, _)| *module != hmod as u64);
            modules.modules.remove(&(hmod as u64)).map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
        })
    }

    fn cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) {
        context::current()?;
        let name = text(name)?;
        let function = with(|modules| {
            let entries = modules.modules.get(&(hmod as u64)).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            let known = KNOWN.iter().find(|(known, _)| *known == name && entries.contains(*known));
            let (_, kernel) = known.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
            let function = handle();
            modules.functions.insert(function, (hmod as u64, *kernel));
            Ok(function)
        })?;
        put(hfunc, function as CUfunction)
    }

    fn cuLaunchKernel(
        f: CUfunction, gridDimX: c_uint, gridDimY: c_uint, gridDimZ: c_uint, blockDimX: c_uint, blockDimY: c_uint,
        blockDimZ: c_uint, _sharedMemBytes: c_uint, hStream: CUstream, kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) {
        let (context, id) = stream::find(hStream)?;
        let kernel = with(|modules| modules.functions.get(&(f as u64)).copied());
        let (_, kernel) = kernel.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        // Kernels run in one thread.
        if [gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ] != [1; 6] || !extra.is_null() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let launch = kernel.with_arguments(kernelParams)?;
        let device = context.device;
        context.work.submit(id, move |_| launch.run(device))?;
        Ok(())
    }
}
